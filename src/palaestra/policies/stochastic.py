"""Policies that draw actions from distributions: one choice, a box, or any nest of them."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from palaestra.core import Batch, BoundedSpec, DiscreteSpec, ShapeError, SpecTree, TensorSpec
from palaestra.core.settings import overrides
from palaestra.nn import NetworkConfig, RecurrentNetwork, StepEncoder, require_memory, with_shared_features
from palaestra.nn.network import CompositeNetwork, GaussianNetwork, Network
from palaestra.ops import Categorical, DiagonalGaussian
from palaestra.policies.actions import (
    BoxHead,
    ChoiceHead,
    Head,
    head_of,
    raw_actions,
    require_continuous,
    require_discrete,
)
from palaestra.policies.policy import NetworkPolicy, PolicyStep

__all__ = [
    "CategoricalPolicy",
    "CompositePolicy",
    "GaussianPolicy",
    "ReturnConditionedPolicy",
    "StochasticPolicy",
    "stochastic_policy",
]


class StochasticPolicy(NetworkPolicy):
    """A policy that draws its actions from a distribution; a subclass says from which in `distribution_of`."""

    behaviour_fields = ("log_prob",)

    @abstractmethod
    def distribution_of(self, outputs: Any, mask: Any = None) -> Any:
        """The distribution over raw actions, an object of `palaestra.ops` or one with its methods.

        Args:
            outputs: of the network.
            mask: which actions are allowed; `None` is all.
        """

    def distribution(self, observation: Any, state: Any = (), first: Tensor | None = None) -> Any:
        """The distribution over raw actions, with gradients.

        Args:
            observation: raw, leaves [..., *observation].
            state: see `NetworkPolicy`.
            first: see `NetworkPolicy`.

        Returns:
            Over [...] actions.

        Raises:
            ShapeError: the policy has a memory and was given none.
        """
        return self.distribution_of(self._outputs(observation, state, first), self.action_mask(observation))

    def sample(self, observation: Any) -> tuple[Any, Tensor]:
        distribution = self.distribution(observation, self._initial_state(len(observation)))
        action = distribution.sample(self.generator)
        return action, distribution.log_prob(action)

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        features, state = self.features(observation, state)
        mask = self.action_mask(observation) if self.is_masked else None
        distribution = self.distribution_of(self.head(features), mask)
        action = distribution.mode() if deterministic else distribution.sample(self.generator)
        explored = action if self.exploration is None else self._explored(action, explore, mask, observation)
        return PolicyStep(explored, state)

    def acting_noise(self, observation: Any) -> Callable[[], Tensor] | None:
        if overrides(type(self), ["choose"], ["act_with"]) or self.state_spec or self.exploration is not None:
            return None
        draw = getattr(self.distribution(observation), "noise", None)
        return None if draw is None else partial(draw, self.generator)

    def act_with(self, observation: Any, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        distribution = self.distribution(observation)
        action = distribution.sample_from(noise)
        return action, {"log_prob": distribution.log_prob(action)}

    def describe(self, observation: Any, action: Any, state: Any, first: Tensor | None) -> Batch:
        if first is None:
            return Batch.of({"log_prob": self.distribution(observation, state).log_prob(action)})
        # every row has its own memory, so that rows of any lanes and times are one batch
        rows, count = first.shape, first.ndim
        observation, action, state = (_flat(nest, count) for nest in (observation, action, state))
        log_prob = self.distribution(observation, self.begun(state, first.reshape(-1))).log_prob(action)
        return Batch.of({"log_prob": log_prob.reshape(rows)})


def _flat(nest: Any, count: int) -> Any:
    """The first axes as one."""
    return nest.flatten(0, count - 1) if isinstance(nest, Tensor) else nest.map(lambda leaf: leaf.flatten(0, count - 1))


@final
class CategoricalPolicy(StochasticPolicy):
    """Draws an action with probabilities in proportion to exp(logits) among the allowed ones.

    Args:
        network: observation [..., *observation] -> logits [..., A], or a `RecurrentNetwork` with such a head.
        observation_spec: what an observation looks like; a dict's key `action_mask` says which actions are allowed.
        action_spec: a `DiscreteSpec` of A actions.
        normalizer: applied to every observation.
        exploration: changes actions in `Phase.COLLECT`; on-policy algorithms want none.

    Raises:
        ConfigError: the action space is not discrete; the message says what fits it.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> policy = CategoricalPolicy.build(TensorSpec((4,)), DiscreteSpec(num=2))
        >>> policy([[0.0, 0.0, 0.0, 0.0]]).shape
        (1,)
    """

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head:
        return ChoiceHead(require_discrete(cls.__name__, action_spec))

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        """A network that starts close to uniform."""
        num_actions = require_discrete(cls.__name__, action_spec).num
        return with_shared_features(
            observation_spec, config, lambda spec, config: Network(spec, num_actions, config, out_gain=0.01)
        )

    def distribution_of(self, outputs: Tensor, mask: Tensor | None = None) -> Categorical:
        return Categorical(outputs, mask)


@final
class GaussianPolicy(StochasticPolicy):
    """Draws an action from a normal distribution with independent dimensions.

    Raw actions, which `act` returns and losses see, are unbounded: 0 is the middle of a bounded dimension and ±1 its
    ends. `env_action` rescales and clips them. Dimensions without two finite bounds are not rescaled.

    Args:
        network: observation [..., *observation] -> (mean [..., A], log σ [..., A] or [A]), or a
            `RecurrentNetwork` with such a head.
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: a floating-point tensor with A elements, bounded or not.
        normalizer: applied to every observation.
        exploration: noise added in `Phase.COLLECT`; on-policy algorithms want none.

    Raises:
        ConfigError: the action space is not continuous; the message says what fits it.

    Examples:
        >>> import numpy as np
        >>> from palaestra.core import BoundedSpec
        >>> policy = GaussianPolicy.build(TensorSpec((4,)), BoundedSpec((2,), minimum=np.zeros(2), maximum=np.ones(2)))
        >>> policy([0.0, 0.0, 0.0, 0.0])  # the mean starts near 0: the middle
        array([0.5, 0.5], dtype=float32)
    """

    learns_log_std = True

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head:
        return BoxHead(require_continuous(cls.__name__, action_spec))

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        """A `GaussianNetwork` whose mean starts close to 0."""
        action_size = require_continuous(cls.__name__, action_spec).size
        return with_shared_features(
            observation_spec, config, lambda spec, config: GaussianNetwork(spec, action_size, config)
        )

    def distribution_of(self, outputs: tuple[Tensor, Tensor], mask: Any = None) -> DiagonalGaussian:
        mean, log_std = outputs
        return DiagonalGaussian(mean, log_std)


@final
class CompositePolicy(StochasticPolicy):
    """Draws every part of an action from a distribution of its own, all of them told by one network.

    | spec | distribution | numbers of the network |
    |---|---|---|
    | discrete | categorical | one for each action |
    | multi-discrete | independent categoricals | one for each action of each choice |
    | multi-binary | independent switches | one for each |
    | box of floats | normal, as `GaussianPolicy` does it | a mean for each element, and a log σ |
    | dict, tuple | independent parts | those of the parts, in order |

    Log-probabilities and entropies are sums over the parts. Raw actions are nests of `Batch`, discrete parts counted
    from 0 and boxes unscaled; `env_action` gives what the environment executes.

    Args:
        network: observation [..., *observation] -> (numbers [..., D], log σ [S] or `None`), or a `RecurrentNetwork`
            with such a head.
        observation_spec: what an observation looks like; a dict's key `action_mask` says which actions are allowed: a
            mask for a single part (the choices of a multi-discrete one after another), or a nest of masks for some or
            all of the discrete parts.
        action_spec: of any kind in the table.
        normalizer: applied to every observation.
        exploration: changes actions in `Phase.COLLECT`; on-policy algorithms want none.

    Raises:
        ConfigError: a leaf of the action space is of no kind in the table, or the mask does not fit.

    Examples:
        >>> from palaestra.core import DiscreteSpec, TensorSpec
        >>> spec = {"gear": DiscreteSpec(num=3), "wheel": TensorSpec((2,))}
        >>> sorted(CompositePolicy.build(TensorSpec((4,)), spec)([0.0, 0.0, 0.0, 0.0]))
        ['gear', 'wheel']
    """

    learns_log_std = True

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head:
        return head_of(action_spec)

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        """A network that starts close to uniform, and boxes close to their middle."""
        action = head_of(action_spec)
        return with_shared_features(
            observation_spec, config, lambda spec, config: CompositeNetwork(spec, action.size, action.num_std, config)
        )

    def distribution_of(self, outputs: tuple[Tensor, Tensor | None], mask: Any = None) -> Any:
        numbers, log_std = outputs
        assert self._action_head is not None
        return self._action_head.distribution(numbers, log_std, mask)


@final
class ReturnConditionedPolicy(NetworkPolicy):
    """Draws actions as `CompositePolicy` does, asking at every step for the return that is still to come.

    At the beginning of an episode that is `target_return`, and more where it explores, if its algorithm says so; each
    reward lowers it. The network sees it beside the observation, the number of the step and the action before, and its
    memory has seen those of the steps before. The memory of a lane is the network's, with `earned`, the rewards so far;
    `time`, the steps so far; and `prev_action`, as the network sees it.

    Args:
        network: a `RecurrentNetwork` with a `StepEncoder`: made by `build`.
        observation_spec: what an observation looks like; see `CompositePolicy` for the key `action_mask`.
        action_spec: of any kind that `CompositePolicy` takes.
        normalizer: of observations alone; returns and time have scales of their own.
        exploration: none; the policy is drawn from.

    Raises:
        ConfigError: a leaf of the action space is of no kind that fits, or the network is asked for without a memory.

    Examples:
        >>> config = NetworkConfig(recurrent="attention", recurrent_size=8, attention_window=4)
        >>> policy = ReturnConditionedPolicy.build(TensorSpec((4,)), DiscreteSpec(num=2), config)
        >>> policy.target_return = 100.0
        >>> policy([0.0, 0.0, 0.0, 0.0]).shape
        ()
    """

    learns_log_std = True
    reads_reward = True
    network: RecurrentNetwork  # pyright: ignore[reportIncompatibleVariableOverride]

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head:
        return head_of(action_spec)

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        """A network with a memory that starts close to uniform, and boxes close to their middle."""
        action = head_of(action_spec)
        encoder = StepEncoder(observation_spec, action.raw_spec, config)
        return RecurrentNetwork(
            observation_spec,
            config,
            lambda spec, config: CompositeNetwork(spec, action.size, action.num_std, config),
            encoder,
        )

    @property
    def encoder(self) -> StepEncoder:
        """What the network sees of a step."""
        encoder: Any = self.network.encoder
        return encoder

    @property
    def target_return(self) -> float:
        """The return to ask for, in units of the rewards; an algorithm's policy has it after the first update."""
        return float(self.encoder.target_return)

    @target_return.setter
    def target_return(self, value: float) -> None:
        self.encoder.target_return.fill_(value)

    @property
    def state_spec(self) -> Any:
        own = {"prev_action": TensorSpec((self.encoder.action.out_size,))}
        return {**self.network.state_spec, "earned": TensorSpec(()), "time": TensorSpec(()), **own}

    @property
    def stored_state_spec(self) -> Any:
        return ()  # sequences are learned from an empty memory on

    def _initial_state(self, batch_size: int) -> Any:
        zeros = {name: spec.zeros(batch_size).to(self.device) for name, spec in self.state_spec.items()}
        return Batch.of(zeros | dict(self.network.initial_state(batch_size).items()))

    def rewarded(self, state: Any, reward: Any) -> Any:
        if isinstance(reward, tuple):
            raise ShapeError(
                "this policy asks for what is left of its target return, and was told no reward: hand over whole time "
                "steps, or policy(Batch(obs=..., rew=...), state)"
            )
        earned = state["earned"]
        return state.replace(earned=earned + torch.as_tensor(reward, dtype=earned.dtype, device=earned.device))

    def following(self, step: Batch, state: Any, first: Tensor | None = None) -> tuple[Any, Batch]:
        """The distribution over raw actions, with gradients.

        Args:
            step: what `StepEncoder` takes, the observation raw; leaves [T, B, ...], or [B, ...] without `first`.
            state: the memory of the network before row 0.
            first: [T, B] bool, where episodes begin.

        Returns:
            Over [T, B] actions, or [B]; and the memory of the network after the last row.
        """
        seen = step.replace(observation=self.seen_normalized(step["observation"]))
        (numbers, log_std), memory = self.network(seen, state, first)
        assert self._action_head is not None
        return self._action_head.distribution(numbers, log_std, self.action_mask(step["observation"])), memory

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        require_memory(state)
        encoder, earned, time = self.encoder, state["earned"], state["time"]
        asked = encoder.target_return + encoder.exploration_gain if explore else encoder.target_return
        to_go = (asked - earned) / encoder.return_scale
        step = {"observation": observation, "return_to_go": to_go, "time": time / encoder.time_scale}
        distribution, memory = self.following(Batch.of(step | {"prev_action": state["prev_action"]}), state)
        action = distribution.mode() if deterministic else distribution.sample(self.generator)
        action = self._explored(action, explore, self.action_mask(observation))
        return PolicyStep(action, memory.replace(earned=earned, time=time + 1, prev_action=self.encoded(action)))

    def acted(self, step: PolicyStep, action: Any) -> PolicyStep:
        return PolicyStep(action, step.state.replace(prev_action=self.encoded(action)))

    def encoded(self, action: Any) -> Tensor:
        """Raw actions as the network sees those before it: as they were executed.

        Args:
            action: [..., *action] raw.

        Returns:
            [..., A].
        """
        return self.encoder.action(raw_actions(self.env_action(action), self.action_spec, self.raw_action_spec))


def stochastic_policy(
    observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig, *, normalize: bool = False
) -> StochasticPolicy:
    """A categorical policy for one discrete choice, a Gaussian one for a box, a composite one for everything else.

    Args:
        config: of its network.
        normalize: whether observations are normalised by running statistics.

    Raises:
        ConfigError: a leaf of the action space is neither discrete nor a tensor of floats.
    """
    kind = {DiscreteSpec: CategoricalPolicy, TensorSpec: GaussianPolicy, BoundedSpec: GaussianPolicy}
    policy = kind.get(type(action_spec), CompositePolicy)
    return policy.build(observation_spec, action_spec, config, normalize=normalize)
