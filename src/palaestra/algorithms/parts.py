"""What algorithms share: functions and small objects, from the settings of a constructor to targets and noise."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from palaestra import policies
from palaestra.algorithms.algorithm import Algorithm, AlgorithmConfig
from palaestra.core import Batch, Plan, Prioritized, RunSeeds, SpecTree, StepType, seeded_initialisation
from palaestra.nn import (
    CoreModel,
    EncoderOption,
    EnsembleNetwork,
    Network,
    NetworkConfig,
    OptimizerOption,
    ReturnDistribution,
)
from palaestra.ops import gae, n_step_targets, standardize, td_target

__all__ = ["AdvantageBatch", "FixedPolicy", "SoftBatch", "StateValue", "Temperature", "TransitionBatch", "ValueBatch"]

_ConfigT = TypeVar("_ConfigT", bound=AlgorithmConfig)
_PlanT = TypeVar("_PlanT", bound=Plan)
_BatchT = TypeVar("_BatchT", bound=Batch)


# -- settings


def settings(config: _ConfigT, seeds: RunSeeds | None, network: EncoderOption) -> tuple[_ConfigT, RunSeeds]:
    """What an algorithm is made of: the first line of its constructor.

    Args:
        config: hyperparameters, with a field `network`.
        seeds: of the run; seed 0 by default.
        network: the user's encoder, or a mapping with one for each part; goes into `config.network.encoder`.
    """
    if network is not None:
        own: Any = {"network": dataclasses.replace(config.network, encoder=network)}  # pyright: ignore
        config = dataclasses.replace(config, **own)
    return config, seeds or RunSeeds(0)


def plan_of(kind: type[_PlanT], config: AlgorithmConfig, **more: Any) -> _PlanT:
    """A plan with the values of all settings that are called as its fields are.

    Args:
        kind: of plan.
        config: hyperparameters.
        more: fields that no setting says, or that a setting of the same name says otherwise.
    """
    names = [field.name for field in dataclasses.fields(kind) if hasattr(config, field.name)]
    values: dict[str, Any] = {name: getattr(config, name) for name in names}
    return kind(**{**values, **more})


# -- learning from unrolls


class AdvantageBatch(Batch):
    """Rows of an unroll; every field is [T, B, ...], [T, N, ...] or [N, ...]."""

    observation: Any
    action: Any
    advantage: Tensor
    value: Tensor
    """Before the update."""
    value_target: Tensor
    valid: Tensor


@final
class StateValue:
    """What states are worth to a policy: V(x).

    Where the policy codes its observations (pictures, own encoders, recurrent cells), the value looks at the same
    features and helps to train them, unless an encoder of its own is configured.

    Args:
        policy: whose features are shared.
        observation_spec: of the environment.
        config: of the networks; the parts are "policy" and "value".
        shares: whether features may be shared at all.
    """

    def __init__(
        self,
        policy: policies.StochasticPolicy,
        observation_spec: SpecTree,
        config: NetworkConfig,
        *,
        shares: bool = True,
    ) -> None:
        _, layers = config.parts("policy", "value")
        self._policy, self._shares = policy, shares and not config.has_separate_encoders
        if self._shares and policy.splits:
            self.network = Network(policy.feature_spec, 1, layers.on_features())
        else:
            self.network = Network(observation_spec, 1, dataclasses.replace(layers, recurrent=None))

    def __call__(self, observation: Any, state: Any = (), first: Tensor | None = None) -> Tensor:
        """State values.

        Args:
            observation: [..., obs], not yet normalised.
            state: see `NetworkPolicy`.
            first: see `NetworkPolicy`.

        Returns:
            [...] in units of return.
        """
        features = self._policy.features(observation, state, first)[0] if self._shares else None
        return self.of(features, observation)

    def of(self, features: Any, observation: Any) -> Tensor:
        """State values, where the policy's features are known already.

        Args:
            features: of the policy.
            observation: [..., obs], not yet normalised; what a value with an encoder of its own looks at.

        Returns:
            [...] in units of return.
        """
        return self.network(features if self._shares else self._policy.normalize(observation)).squeeze(-1)


def policy_and_value(
    observation_spec: SpecTree, action_spec: SpecTree, config: Any, *, shares: bool = True
) -> tuple[policies.StochasticPolicy, StateValue]:
    """A stochastic policy for any actions, and what states are worth to it.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment.
        config: with `network`, whose parts are "policy" and "value", and `normalize_observation`.
        shares: see `StateValue`.
    """
    layers, _ = config.network.parts("policy", "value")
    policy = policies.stochastic_policy(observation_spec, action_spec, layers, normalize=config.normalize_observation)
    return policy, StateValue(policy, observation_spec, config.network, shares=shares)


@torch.no_grad()
def advantages(algorithm: Algorithm[Any], batch: Any, value: Tensor) -> dict[str, Any]:
    """Generalised advantages and value targets of an unroll.

    Args:
        algorithm: whose configuration says `gamma`, `gae_lambda` and `standardize_advantage`.
        batch: an unroll [T+1, B].
        value: [T+1, B] of its observations.

    Returns:
        Fields [T, B, ...] of `AdvantageBatch`, and those that `state_of` needs.
    """
    gamma, lambda_ = algorithm.value_of("gamma"), algorithm.value_of("gae_lambda")
    advantage = gae(value, batch.reward, batch.discount, batch.step_type, gamma=gamma, lambda_=lambda_)  # [T, B]
    return {
        "observation": batch.observation[:-1],
        "action": batch.action,
        "advantage": standardize(advantage, batch.valid) if algorithm.config.standardize_advantage else advantage,
        "value": value[:-1],
        "value_target": value[:-1] + advantage,
        "valid": batch.valid,
        **state_fields(batch),
    }


def state_of(batch: Batch) -> tuple[Any, ...]:
    """The hidden state with which sequences begin, and where episodes begin in them: arguments of a policy's methods.

    Args:
        batch: sequences with `step_type` [T, N]; `state` [T, N, ...] is there where the policy has a hidden state.

    Returns:
        `(state, first)`, or `()` for a policy without a hidden state.
    """
    return (batch["state"][0], batch["step_type"] == StepType.FIRST) if "state" in batch else ()


def state_fields(batch: Batch) -> dict[str, Any]:
    """What a minibatch of an unroll needs for `state_of`.

    Args:
        batch: an unroll [T+1, B].

    Returns:
        Fields [T, B, ...]; none for a policy without a hidden state.
    """
    return {"state": batch["state"], "step_type": batch["step_type"][:-1]} if "state" in batch else {}


class _Distribution(nn.Module):
    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation: Any) -> Any:
        return self.policy.distribution(observation)


@final
class FixedPolicy:
    """A stochastic policy as it is now: its distributions have no gradient, and do not change with the policy.

    (Some distributions hold parameters themselves, such as the logarithm of a standard deviation, so detaching what
    `distribution` computes would not be enough.)

    Args:
        policy: a stochastic one.
    """

    def __init__(self, policy: policies.Policy) -> None:
        self._module = _Distribution(policy)
        self._fixed = {name: value.detach().clone() for name, value in self._module.named_parameters()}

    @torch.no_grad()
    def distribution(self, observation: Any) -> Any:
        """What the policy would have said when this object was made.

        Args:
            observation: raw, leaves [..., *observation].
        """
        return functional_call(self._module, self._fixed, (observation,))


# -- learning from stored transitions


class TransitionBatch(Batch):
    """One minibatch; every field is [N, ...]."""

    observation: Any
    action: Any
    next_observation: Any
    reward: Tensor
    """Sum of the rewards up to `next_observation`, discounted."""
    bootstrap: Tensor
    """What the next value counts: gamma to the number of steps; 0 where the episode terminated there."""
    index: Tensor


def n_step_transitions(windows: Any, gamma: float, layout: type[_BatchT] = TransitionBatch) -> _BatchT:
    """Reduces n-step windows to transitions.

    Args:
        windows: `buffers.Windows`.
        gamma: discount per env step.
        layout: of what is returned; fields that it adds to `TransitionBatch` are left to the caller, but for `weight`.
    """
    steps = n_step_targets(windows.reward, windows.discount, windows.step_type, gamma=gamma)
    fields: Mapping[str, Any] = {
        "observation": windows.observation,
        "action": windows.action,
        "next_observation": windows.next_observation,
        "reward": steps.reward,
        "bootstrap": steps.bootstrap,
        "index": windows.index,
    }
    return layout.of({**fields, "weight": windows.weight} if "weight" in windows else fields)


# -- action values


class ValueBatch(TransitionBatch):
    """One minibatch; every field is [N, ...]."""

    weight: Tensor
    """Importance weight, in [0, 1]. Only where rows are drawn by priority."""
    noise: Tensor
    """[N, 3, S] of noisy layers: the online network at `observation`, the target network and the online network at
    `next_observation`. Only where layers are noisy."""


def priorities(config: Any) -> Prioritized | None:
    """How rows are drawn by priority; `None` where all are drawn equally often.

    Args:
        config: with `prioritized`, `priority_alpha` and `priority_beta`.
    """
    return Prioritized(alpha=config.priority_alpha, beta=config.priority_beta) if config.prioritized else None


def q_learner(
    observation_spec: SpecTree,
    action_spec: Any,
    config: Any,
    seeds: RunSeeds,
    returns: ReturnDistribution | None = None,
) -> tuple[policies.ValueGreedyPolicy, CoreModel]:
    """A policy on a new network of action values, which explores by random actions, and the model that trains it.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete.
        config: with `network`, whose only part is "q", `normalize_observation`, `epsilon`, `learning_rate` and
            `max_grad_norm`.
        seeds: of the run.
        returns: how the network describes the distribution of returns; by default it says one value for each action.

    Returns:
        The policy, and a model with the components `q`, trained by Adam, and `target_q`, its copy.

    Raises:
        ConfigError: the action space is not discrete.
    """
    (layers,) = config.network.parts("q")
    with seeded_initialisation(seeds.integer("initialisation")):
        policy = policies.ValueGreedyPolicy.build(
            observation_spec, action_spec, layers, normalize=config.normalize_observation, returns=returns
        )
    policy.exploration = policies.EpsilonGreedy(action_spec.num, config.epsilon)
    adam = OptimizerOption("adam", {"lr": config.learning_rate}, config.max_grad_norm)
    return policy, CoreModel({"q": policy.network, "target_q": copy.deepcopy(policy.network)}, {"q": adam})


def layer_noise(batch: ValueBatch, policy: policies.ValueGreedyPolicy, generator: torch.Generator) -> ValueBatch:
    """Adds the noise of noisy layers, own to every row, if there are any.

    Args:
        batch: transitions.
        policy: whose network may have noisy layers.
        generator: source of the noise.
    """
    if not policy.noise_size:
        return batch
    shape = (len(batch.reward), 3, policy.noise_size)
    return batch.replace(noise=torch.randn(shape, generator=generator))


def layer_noises(batch: ValueBatch) -> tuple[Tensor | None, ...]:
    """The three noises of a minibatch, in the order of `ValueBatch.noise`; each `None` where no layer is noisy.

    Args:
        batch: after `layer_noise`.
    """
    return batch.noise.unbind(1) if "noise" in batch else (None, None, None)


def weighted_mean(loss: Tensor, batch: Batch) -> Tensor:
    """The mean of all rows' losses, each times its importance weight where rows are drawn by priority.

    Args:
        loss: [N].
        batch: the minibatch, with `weight` [N] where rows are drawn by priority.
    """
    return (batch["weight"] * loss).mean() if "weight" in batch else loss.mean()


# -- critics


def critics(
    observation_spec: SpecTree, num_outputs: int, num_critics: int, layers: NetworkConfig, action_size: int = 0
) -> tuple[EnsembleNetwork, EnsembleNetwork]:
    """An ensemble of critics, and another one for targets; `CoreModel.sync` makes them equal.

    Args:
        observation_spec: of the environment.
        num_outputs: numbers that each of them says.
        num_critics: how many there are.
        layers: of each.
        action_size: numbers of the actions that they judge; 0 where they say something about every action.
    """
    online, target = (
        EnsembleNetwork(observation_spec, num_outputs, num_critics, layers, action_size=action_size) for _ in range(2)
    )
    return online, target


# -- soft policies


class SoftBatch(TransitionBatch):
    """Transitions, and the noise that actions are made of."""

    noise: Tensor
    """[N, A] standard normal, for the action at `observation`."""
    next_noise: Tensor
    """[N, A] standard normal, for the action at `next_observation`."""


def action_noise(batch: Batch, generator: torch.Generator, layout: type[_BatchT] = SoftBatch) -> _BatchT:
    """Adds the random part of the actions at both observations.

    Args:
        batch: transitions.
        generator: source of the noise.
        layout: of what is returned.
    """
    both = torch.empty(2, *batch["action"].shape).normal_(generator=generator)
    return layout.of({**dict(batch.items()), "noise": both[0], "next_noise": both[1]})


class Temperature(nn.Module):
    """The weight of the entropy, kept positive by its logarithm.

    Args:
        initial: at the start, greater than 0.
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(float(initial)).log())

    def forward(self) -> Tensor:
        """0-dim, without gradient."""
        return self.log.detach().exp()

    def loss(self, excess: Tensor) -> Tensor:
        """Raises the temperature where entropy is missing. Haarnoja et al. 2018, equation (18), through the logarithm.

        Args:
            excess: [N] target entropy plus log-probability, nats; held fixed.
        """
        return -self.log * excess.detach().mean()


def target_entropy(config: Any, policy: policies.SquashedGaussianPolicy) -> float:
    """The entropy that the temperature aims at, nats: by default minus one for each number of an action.

    Args:
        config: with `target_entropy`.
        policy: whose actions they are.
    """
    return -float(policy.raw_action_spec.size) if config.target_entropy is None else float(config.target_entropy)


def soft_actor_critic(
    observation_spec: SpecTree, action_spec: SpecTree, config: Any, seeds: RunSeeds, num_outputs: int = 1
) -> tuple[policies.SquashedGaussianPolicy, CoreModel, EnsembleNetwork, EnsembleNetwork, Temperature]:
    """The networks of soft actor-critic, and the model that trains them.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: a box.
        config: with `network`, whose parts are "actor" and "critic", `normalize_observation`, `num_critics`,
            `initial_temperature` and what `soft_model` takes.
        seeds: of the run.
        num_outputs: numbers that a critic says about an action.

    Returns:
        Policy, model, critics, target critics and temperature.

    Raises:
        ConfigError: the action space is something else.
    """
    actor, critic = config.network.parts("actor", "critic")
    with seeded_initialisation(seeds.integer("initialisation")):
        policy = policies.SquashedGaussianPolicy.build(
            observation_spec, action_spec, actor, normalize=config.normalize_observation
        )
        size = policy.raw_action_spec.size
        online, target = critics(observation_spec, num_outputs, config.num_critics, critic, size)
        temperature = Temperature(config.initial_temperature)
    return policy, soft_model(config, policy, online, target, temperature), online, target, temperature


def soft_model(
    config: Any, policy: policies.NetworkPolicy, critic: Any, target_critic: Any, temperature: Temperature
) -> CoreModel:
    """A model that trains actor, critics and temperature by Adam; the target critics begin as the critics are.

    Args:
        config: with `learning_rate` and `temperature_learning_rate`.
        policy: whose network is the actor.
        critic: an ensemble.
        target_critic: another, of the same layers.
        temperature: learned at a speed of its own.
    """
    networks = {"actor": policy.network, "critic": critic, "target_critic": target_critic}
    adam = OptimizerOption("adam", {"lr": config.learning_rate})
    slow = OptimizerOption("adam", {"lr": config.temperature_learning_rate})
    options = {"actor": adam, "critic": adam, "temperature": slow}
    model = CoreModel({**networks, "temperature": temperature}, options)
    model.sync("target_critic", source="critic")
    return model


# -- deterministic policies


def deterministic_actor_critic(
    observation_spec: SpecTree, action_spec: SpecTree, config: Any, seeds: RunSeeds, *, num_critics: int
) -> tuple[policies.DeterministicPolicy, CoreModel, Network, EnsembleNetwork, EnsembleNetwork]:
    """The networks of deterministic policy gradients, and the model that trains them by Adam.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: a box.
        config: with `network`, whose parts are "actor" and "critic", `normalize_observation` and `learning_rate`.
        seeds: of the run.
        num_critics: how many there are.

    Returns:
        Policy, model, target actor, critics and target critics.

    Raises:
        ConfigError: the action space is something else.
    """
    actor, critic = config.network.parts("actor", "critic")
    with seeded_initialisation(seeds.integer("initialisation")):
        policy = policies.DeterministicPolicy.build(
            observation_spec, action_spec, actor, normalize=config.normalize_observation
        )
        size = policy.raw_action_spec.size
        target_actor = Network(observation_spec, size, actor)
        online, target = critics(observation_spec, 1, num_critics, critic, size)
    components = {"actor": policy.network, "critic": online}
    adam = OptimizerOption("adam", {"lr": config.learning_rate})
    targets = {"target_actor": target_actor, "target_critic": target}
    model = CoreModel(components | targets, dict.fromkeys(components, adam))
    model.sync("target_actor", source="actor")
    model.sync("target_critic", source="critic")
    return policy, model, target_actor, online, target


def smoothing_noise(batch: Batch, config: Any, generator: torch.Generator, layout: type[_BatchT]) -> _BatchT:
    """Adds the smoothing noise of target actions. Fujimoto et al. 2018, equation (14).

    Args:
        batch: transitions.
        config: with `target_noise_std` and `target_noise_clip`.
        generator: source of the noise.
        layout: of what is returned, with `noise`.
    """
    noise = torch.empty(batch["action"].shape).normal_(std=config.target_noise_std, generator=generator)
    limit = config.target_noise_clip
    return layout.of({**dict(batch.items()), "noise": noise.clamp_(-limit, limit)})


def smoothed_target(algorithm: Any, batch: Any) -> Tensor:
    """The lesser of what two target critics say of the target actor's actions with noise: [N] units of return.

    Args:
        algorithm: with `policy`, `target_actor` and `target_critic`.
        batch: after `smoothing_noise`.
    """
    observation = algorithm.policy.normalize(batch.next_observation)
    action = (algorithm.target_actor(observation).tanh() + batch.noise).clamp_(-1.0, 1.0)
    next_q = algorithm.target_critic(observation, action).squeeze(-1)  # [2, N]
    return td_target(next_q.amin(0), batch.reward, batch.bootstrap)
