"""What algorithms share: functions and small objects, from the settings of a constructor to targets and noise."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from palaestra import policies
from palaestra.algorithms.algorithm import AlgorithmConfig
from palaestra.core import Batch, ConfigError, RunSeeds, SpecTree, StepType
from palaestra.core.errors import require_kind
from palaestra.nn import EncoderOption, Network, NetworkConfig, handed_over
from palaestra.ops import (
    Moments,
    gae,
    mean_of,
    merge,
    moments_of,
    n_step_end,
    n_step_targets,
    standardize,
    td_target,
    valid_starts,
    variance,
)

__all__ = [
    "AdvantageBatch",
    "FixedPolicy",
    "Remembered",
    "ReturnScale",
    "Seen",
    "SequenceBatch",
    "SoftBatch",
    "StateValue",
    "Temperature",
    "TransitionBatch",
    "ValueBatch",
]

_ConfigT = TypeVar("_ConfigT", bound=AlgorithmConfig)
_BatchT = TypeVar("_BatchT", bound=Batch)


# -- settings


def settings(
    kind: type[_ConfigT], config: _ConfigT | None, seeds: RunSeeds | None, network: EncoderOption
) -> tuple[_ConfigT, RunSeeds]:
    """What an algorithm is made of: the first line of its constructor.

    Args:
        kind: the algorithm's configuration, with a field `network`.
        config: hyperparameters; those of `kind` by default.
        seeds: of the run; seed 0 by default.
        network: the user's encoder, or a mapping with one for each part; goes into `config.network.encoder`. A module
            is not copied.

    Raises:
        ConfigError: settings of another algorithm, or something else than seeds.
    """
    config, seeds = kind() if config is None else config, RunSeeds(0) if seeds is None else seeds
    require_kind(config, kind, "an algorithm, as config,", f"a {kind.__name__}(...)")
    require_kind(seeds, RunSeeds, "an algorithm, as seeds,", "a RunSeeds(...)")
    if network is not None:
        own: Any = {"network": dataclasses.replace(config.network, encoder=handed_over(network))}  # pyright: ignore
        config = dataclasses.replace(config, **own)
    return config, seeds


def by_parameter(optimizer: Any, vector: Tensor) -> dict[str, Tensor]:
    """The parts of a vector by the names of the parameters that they belong to, as `CoreModel.apply_gradients` wants.

    Args:
        optimizer: of one component.
        vector: [P], all of its parameters, flattened and one after another.
    """
    numbers = vector.split([parameter.numel() for parameter in optimizer.parameters])
    shapes = [parameter.shape for parameter in optimizer.parameters]
    return {name: part.view(shape) for name, part, shape in zip(optimizer.names, numbers, shapes, strict=True)}


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

    Where the policy encodes its observations (pictures, own encoders, recurrent cells), the value looks at the same
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


@torch.no_grad()
def advantages(
    algorithm: Any, batch: Any, layout: type[_BatchT] = AdvantageBatch, unit: Tensor | None = None
) -> _BatchT:
    """Adds generalised advantages and value targets to an unroll.

    Args:
        algorithm: has `value`; its configuration says `gamma`, `gae_lambda` and `standardize_advantage`.
        batch: an unroll [T+1, B].
        layout: of what is returned.
        unit: returns that the number 1 of `value` stands for; `None` is 1. Advantages are in units of return, values
            and their targets in those of `value`.

    Returns:
        Fields [T, B, ...] of `AdvantageBatch`, those that `state_of` needs, and `log_prob` where it is stored.
    """
    value = algorithm.value(batch.observation, *state_of(batch))  # [T+1, B]
    value = value if unit is None else value * unit
    gamma, lambda_ = algorithm.value_of("gamma"), algorithm.value_of("gae_lambda")
    advantage = gae(value, batch.reward, batch.discount, batch.step_type, gamma=gamma, lambda_=lambda_)  # [T, B]
    target = value[:-1] + advantage
    fields = {
        "observation": batch.observation[:-1],
        "action": batch.action,
        "advantage": standardize(advantage, batch.valid) if algorithm.config.standardize_advantage else advantage,
        "value": value[:-1] if unit is None else value[:-1] / unit,
        "value_target": target if unit is None else target / unit,
        "valid": batch.valid,
        **state_fields(batch),
    }
    if "log_prob" in algorithm.stored_fields:
        fields["log_prob"] = batch.policy_info.log_prob
    return layout.of(fields)


class RunningMoments(nn.Module):
    """Moments of all numbers so far, as buffers."""

    count: Tensor
    mean: Tensor
    m2: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("count", "mean", "m2"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    @property
    def moments(self) -> Moments:
        """What they are now."""
        return Moments(self.count, self.mean, self.m2)

    @torch.no_grad()
    def merge(self, numbers: Tensor) -> None:
        """Takes numbers into account from now on.

        Args:
            numbers: [N].
        """
        for name, value in merge(self.moments, moments_of(numbers))._asdict().items():
            getattr(self, name).copy_(value)


class ReturnScale(RunningMoments):
    """The standard deviation of all returns so far: the unit of a value that learns returns of about 1."""

    def forward(self) -> Tensor:
        """0-dim, greater than 0; 1 before the first returns."""
        return torch.where(self.count > 0, (variance(self.moments) + 1e-8).sqrt(), 1.0).float()


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


def member_transitions(windows: Any, gamma: float) -> TransitionBatch:
    """Reduces n-step windows of a team to transitions, the reward of every member by itself.

    Args:
        windows: `buffers.Windows`, rewards [n+1, N, G].
        gamma: discount per env step.

    Returns:
        Fields [N, ...]; rewards and bootstraps are [N, G].
    """
    members = windows.reward.shape
    discount, step_type = (
        field.unsqueeze(-1).expand(members).flatten(1) for field in (windows.discount, windows.step_type)
    )
    flat = windows.replace(reward=windows.reward.flatten(1), discount=discount, step_type=step_type)
    found = n_step_transitions(flat, gamma)
    reward, bootstrap = (field.unflatten(0, members[1:]) for field in (found.reward, found.bootstrap))
    ends = n_step_end(windows.step_type)
    last = windows.step_type.gather(0, ends[None])[0] == StepType.LAST
    # `alive` of the team's last row says who was cut off; the others have ended
    return found.replace(
        reward=reward, bootstrap=torch.where(last.unsqueeze(-1), bootstrap * found.next_observation.alive, bootstrap)
    )


def kept_besides(drawn: Batch, gamma: float) -> dict[str, Any]:
    """What rows keep beside observation and reward, with one entry for each action, as losses find it.

    Args:
        drawn: an unroll or sequences `[T+1, B]`, or n-step windows; with `env_info` or `untransformed`, or neither.
        gamma: discount per env step, for the rewards of windows.

    Returns:
        `env_info`, what the environment reported when it had executed the action; `untransformed`, with the
        `observation` it was chosen on, the `reward` and the `next_observation`, all from before wrappers changed them.
    """
    found: dict[str, Any] = {}
    rows: Any = drawn
    windows = "next_observation" in drawn
    if "env_info" in drawn:
        found["env_info"] = rows.env_info[1] if windows else rows.env_info[1:]
    if "untransformed" in drawn:
        seen, reward = rows.untransformed.observation, rows.untransformed.reward
        if windows:
            ends, numbers = n_step_end(rows.step_type), torch.arange(reward.shape[1], device=reward.device)
            steps = (column.view(*column.shape, *[1] * (reward.ndim - 2)) for column in (rows.discount, rows.step_type))
            reward = n_step_targets(reward, *(column.expand_as(reward) for column in steps), gamma=gamma).reward
            raw = {"observation": seen[0], "reward": reward, "next_observation": seen[ends, numbers]}
        else:
            raw = {"observation": seen[:-1], "reward": reward[1:], "next_observation": seen[1:]}
        found["untransformed"] = Batch.of(raw)
    return found


# -- learning from stored sequences, with a memory


class SequenceBatch(Batch):
    """One minibatch of sequences, burn-in included; the noise of transitions is [L, N, A] here."""

    observation: Any
    """[L+1, N, ...]."""
    step_type: Tensor
    """[L+1, N]."""
    action: Any
    """[L, N, A]."""
    reward: Tensor
    """[L, N] for the action of the row."""
    bootstrap: Tensor
    """[L, N] what the next row's value counts: gamma; 0 where the episode terminated there."""
    state: Any
    """[1, N, ...] the memory before row 0, as it was stored."""
    valid: Tensor
    """[L, N] 0 in the burn-in and at ends of episodes."""
    index: Tensor
    """[N]."""


class Seen(NamedTuple):
    """What actor and critics look at: normalised observations, or what a memory makes of them; [N, ...]."""

    batch: Any
    """Transitions of the rows that count."""
    now: Any
    """Where actions were taken; gradients of the critics' loss train the memory through it."""
    fixed: Any
    """The same without gradient, for the actor's loss."""
    after: Any
    """Behind the actions, without gradient."""
    target_after: Any
    """The same through the target memory."""


@final
class Remembered:
    """The memory that actor and critics of an off-policy algorithm share, and its target; nothing without a memory.

    The critics' loss alone trains it (Yarats et al. 2021, https://arxiv.org/abs/1910.01741, section 4.3, for an encoder
    of pictures). Sequences begin with the hidden state as it was stored, and burn in (Kapturowski et al. 2019, section
    3, https://openreview.net/forum?id=r1lyTjAqYX).

    Args:
        policy: whose network may have a memory.
        config: of the algorithm.

    Raises:
        ConfigError: a setting does not go together with a memory.
    """

    def __init__(self, policy: policies.NetworkPolicy, config: Any) -> None:
        self._policy, self._burn_in = policy, config.burn_in
        self.components: dict[str, nn.Module] = {}
        """Parts of the model: the memory with its encoder, and its target."""
        self.trains: dict[str, tuple[str, ...]] = {}
        """Which components the loss terms train, where that is not the one of their name."""
        self.follows: dict[str, str] = {}
        """The target memory, as `Targets` takes it."""
        network: Any = policy.network
        self.head: nn.Module = network.head if policy.state_spec else network
        """The actor apart from its memory."""
        if not policy.state_spec:
            return
        if config.n_step > 1 or config.mini_batch_length < 2 or config.network.has_separate_encoders:
            raise ConfigError(
                f"a memory was asked for with n_step={config.n_step}, mini_batch_length={config.mini_batch_length} and "
                f"network.encoder={config.network.encoder!r}; it needs n_step=1, sequences of at least 2 steps, and "
                "one encoder for actor and critic, which share the memory"
            )
        self._target: Any = copy.deepcopy(network)
        target = {"target_memory": nn.ModuleList((self._target.encoder, self._target.memory))}
        self.components = {"memory": nn.ModuleList((network.encoder, network.memory)), **target}
        self.trains, self.follows = {"critic": ("critic", "memory")}, {"target_memory": "memory"}

    def prepared(self, batch: Any, gamma: Any) -> Any:
        """What `preprocess` makes of a draw: transitions, or sequences for a memory.

        Args:
            batch: what the source drew.
            gamma: discount per env step.
        """
        if not self.components:
            return n_step_transitions(batch, gamma)
        fields = {name: batch[name] for name in ("observation", "step_type", "action", "state", "index")}
        valid = valid_starts(batch.step_type, self._burn_in).to(torch.float32)  # of later episodes, too
        fields |= {"reward": batch.reward[1:], "bootstrap": gamma * batch.discount[1:], "valid": valid}
        return SequenceBatch.of(fields)

    def seen(self, batch: Any) -> Seen:
        """What actor and critics look at in a minibatch.

        Args:
            batch: of `prepared`, with noise.
        """
        observation = self._policy.normalize(batch.observation)
        if not self.components:
            after = self._policy.normalize(batch.next_observation)
            return Seen(batch, observation, observation, after, after)
        online = self._run(self._policy.network, observation, batch)
        with torch.no_grad():
            target = self._run(self._target, observation, batch)
        b = self._burn_in
        keep = batch.valid[b:].bool()
        acted = {name: leaf[b:][keep] for name, leaf in batch.items() if name in _ACTED}
        now, after = online[:-1][keep], online.detach()[1:][keep]
        return Seen(Batch.of(acted), now, now.detach(), after, target[1:][keep])

    def _run(self, network: Any, observation: Any, batch: Any) -> Tensor:
        """[L+1-b, N, H] what the memory makes of the rows after the burn-in, through which no gradient goes."""
        b, (state, first) = self._burn_in, state_of(batch)
        if b:
            with torch.no_grad():
                _, state = network.remember(observation[:b], state, first[:b])
        return network.remember(observation[b:], state, first[b:])[0]


_ACTED = ("action", "reward", "bootstrap", "noise", "next_noise", "env_info", "untransformed")


def replay_plan(config: Any) -> Any:
    """The data that off-policy settings ask for: rows, or for a memory sequences of as many rows together.

    Args:
        config: with `network`, `mini_batch_size`, `mini_batch_length` and `burn_in`.
    """
    if config.network.recurrent is None:
        return config.plan_with(mini_batch_length=1, burn_in=0)
    size = max(1, config.mini_batch_size // config.mini_batch_length)
    return config.plan_with(mini_batch_size=size, mini_batch_length=max(2, config.mini_batch_length))


# -- action values


class ValueBatch(TransitionBatch):
    """One minibatch; every field is [N, ...]."""

    weight: Tensor
    """Importance weight, in [0, 1]. Only where rows are drawn by priority."""
    noise: Tensor
    """[N, 3, S] of noisy layers: the online network at `observation`, the target network and the online network at
    `next_observation`. Only where layers are noisy."""


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
    return batch.noise.unbind(1) if "noise" in vars(batch) else (None, None, None)


def weighted_mean(loss: Tensor, batch: Batch) -> Tensor:
    """The mean of all rows' losses, each times its importance weight where rows are drawn by priority.

    Args:
        loss: [N].
        batch: the minibatch, with `weight` [N] where rows are drawn by priority.
    """
    return (batch["weight"] * loss).mean() if "weight" in vars(batch) else loss.mean()


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
        return -self.log * mean_of(excess.detach())


@torch.no_grad()
def soft_target(algorithm: Any, batch: SoftBatch, members: Any = None, seen: Seen | None = None) -> Tensor:
    """What the target critics say that actions were worth, entropy included. Haarnoja et al. 2018, equations (3), (6).

    Args:
        algorithm: has the policy, `target_critic` and `temperature`.
        batch: the minibatch.
        members: critics that are asked; all by default.
        seen: what actor and critics look at, where that is known already; its batch is `batch`.

    Returns:
        [N] units of return.
    """
    policy = algorithm.policy
    after = policy.normalize(batch.next_observation) if seen is None else seen.after
    looked_at = after if seen is None else seen.target_after
    action, log_prob = policy.distribution_of(policy.head(after)).at(batch.next_noise)
    q = algorithm.target_critic(looked_at, action, members=members).amin(0).squeeze(-1)  # [N]
    return td_target(q - algorithm.temperature() * log_prob, batch.reward, batch.bootstrap)


# -- deterministic policies


@torch.no_grad()
def deterministic_target(algorithm: Any, batch: Any, seen: Seen | None = None) -> Tensor:
    """What the target networks say that actions were worth, the next one smoothed by noise where there is any.

    Args:
        algorithm: has the policy, `target_actor` and `target_critic`.
        batch: the minibatch; `noise` [N, A] in raw units smooths, see `smoothing_noise`.
        seen: what actor and critics look at, where that is known already; its batch is `batch`.

    Returns:
        [N] units of return.
    """
    observation = algorithm.policy.normalize(batch.next_observation) if seen is None else seen.target_after
    action = algorithm.target_actor(observation).tanh()
    if "noise" in vars(batch):
        action = (action + batch["noise"]).clamp_(-1.0, 1.0)
    next_q = algorithm.target_critic(observation, action).squeeze(-1)  # [K, N]
    return td_target(next_q.amin(0), batch.reward, batch.bootstrap)


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
