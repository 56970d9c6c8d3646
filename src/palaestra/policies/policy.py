"""`Policy`: how to act; and `NetworkPolicy`, which does so with one network.

Nothing here knows environments, buffers or how a policy is learned.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, ClassVar, NamedTuple, NoReturn, Self, final

import numpy as np
import torch
from torch import Tensor, nn

from palaestra.core import Batch, ConfigError, RunSeeds, ShapeError, TimeStep, device_of, to_device
from palaestra.core.spec import ACTION_MASK, SpecTree, TensorSpec
from palaestra.nn import EncodedNetwork, MovableModule, NetworkConfig, RecurrentNetwork, begun, call
from palaestra.policies.actions import Head, check_masks, require_mask_spec
from palaestra.policies.exploration import EvalExploration, Exploration
from palaestra.policies.given import as_rows, checked_state, keep_order, leading_shape, observation_field, to_numpy
from palaestra.policies.normalizer import ObservationNormalizer

__all__ = ["NetworkPolicy", "Phase", "Policy", "PolicyStep"]


class Phase(Enum):
    """What actions are for, and what `Policy.training` and `Policy.updating` say then.

    | phase | training | updating | explores |
    |---|---|---|---|
    | COLLECT | True | False | yes |
    | UPDATE | True | True | no |
    | EVAL | False | False | no; in evaluations by `Policy.eval_epsilon` |
    """

    COLLECT = "collect"
    """Gathering experience."""
    EVAL = "eval"
    """Being measured or deployed."""
    UPDATE = "update"
    """Inside an update."""


class PolicyStep(NamedTuple):
    """What a policy decided for B lanes."""

    action: Any
    """[B, ...] as `Policy.raw_action_spec` says; `Policy.env_action` makes the environment's action of it."""
    state: Any = ()
    """The policy's memory after this step, leaves [B, ...]; `()` for a policy without."""
    info: Any = ()
    """What else the policy has to say about its choice; not stored."""


class Policy(MovableModule, ABC):
    """How to act: observations in, actions out.

    A policy owns the generator that its choices draw from, the normaliser of its observations and its exploration, so
    evaluation, export and serving cannot forget them. Observations are handed over raw, as environments emit them.

    A caller need not know where the parameters are: observations and hidden states go there, and the answer comes back
    to where the observations were.

    A subclass defines `choose`, `describe` where it has `behaviour_fields`, and `initial_state` and `state_spec` where
    it has a memory.

    `.train()` means `Phase.COLLECT`, `.eval()` means `Phase.EVAL`; `in_phase` enters any phase for a while.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: what the environment's action looks like.
        normalizer: applied to every observation; `None` leaves them as they are.
        exploration: changes actions in `Phase.COLLECT`; `None` leaves them as they are.

    Raises:
        ConfigError: the observation's `action_mask` does not fit the actions.
    """

    behaviour_fields: tuple[str, ...] = ()
    """What `behaviour` returns."""

    reads_reward: ClassVar[bool] = False
    """Whether it has to be told the reward of each step while it acts: `rewarded` takes it into the memory."""

    one_value: ClassVar[bool] = False
    """Of a team: whether its members have one value together, which after a cut is that of whoever acts next."""

    normalizer: ObservationNormalizer | None
    unseen: tuple[ObservationNormalizer, ...]
    """Of what the policy does not see of a whole observation, and values may."""
    whole_spec: SpecTree
    """What a whole observation looks like, as an environment emits it: `observation_spec`, and maybe other keys."""
    exploration: Exploration | None
    generator: torch.Generator
    """The source of every random choice in acting, on the parameters' device."""
    version: int
    """Updates that went into the weights; rows carry the version that acted."""
    wrappers: tuple[str, ...] = ()
    """Wrappers of the environment in which it learned, the innermost first, see `EnvConfig.policy_wrappers`: its
    observations and actions, and the rewards that it reads, are those outside of them."""

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        *,
        normalizer: ObservationNormalizer | None = None,
        exploration: Exploration | None = None,
    ) -> None:
        super().__init__()
        require_mask_spec(observation_spec, action_spec)
        self.observation_spec = self.whole_spec = observation_spec
        self.action_spec = action_spec
        self.normalizer = normalizer
        self.unseen: tuple[ObservationNormalizer, ...] = ()  # not saved with the policy: part of an algorithm's model
        self.exploration = exploration
        self.generator = torch.Generator()
        self.version = 0
        self.in_evaluations = EvalExploration()
        """What takes the place of `exploration` there."""
        self._elsewhere: torch.device | None = None  # where the parameters are, unless it is the CPU
        self._phase = Phase.COLLECT
        self.is_masked = isinstance(observation_spec, dict) and ACTION_MASK in observation_spec
        """Whether observations say which actions are allowed."""
        keep_order(self)

    # -- acting

    @final
    def act(
        self, time_step: TimeStep, state: Any = (), *, phase: Phase | None = None, deterministic: bool = False
    ) -> PolicyStep:
        """Chooses an action for every lane, without gradients.

        Args:
            time_step: leaves [B, ...]; only its observation and step type are read, and by a policy that `reads_reward`
                its reward.
            state: the policy's memory from the step before, at first `initial_state(B)`; rows where an episode begins
                start from the initial state whatever is given.
            phase: what the actions are for; `None` is the phase that the policy is in.
            deterministic: take the most probable or most valuable action, whatever the phase.

        Returns:
            Actions, the new state and info.

        Raises:
            SpecError: an action mask allows nothing although the episode has not ended.
        """
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.act(time_step, state, phase=phase, deterministic=deterministic)
        if self.is_masked:
            check_masks(time_step.observation[ACTION_MASK], self.action_spec, time_step.last)
        observation, device = time_step.observation, self._elsewhere
        if type(state) is not tuple:
            state = self.begun(self.rewarded(state, time_step.reward), time_step.first)
        explore = not deterministic and (phase or self._phase) is Phase.COLLECT
        explore = explore or (self.exploration is not None and self.exploration.evaluates)
        if device is None:
            return self.choose(observation, state, explore, deterministic)
        step = self.choose(to_device(observation, device), to_device(state, device), explore, deterministic)
        return to_device(step, device_of(observation))

    @final
    def predict(self, *given: Any, **options: Any) -> NoReturn:
        """The word of other libraries for calling a policy: refused with a message that has the call.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("predict is a word of other libraries; the action for an observation is policy(observation)")

    @abstractmethod
    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        """Chooses actions: what a subclass defines. `act` calls it, without gradients.

        Args:
            observation: raw, leaves [B, ...].
            state: the policy's memory, in its initial state where an episode begins; `()` for a policy without.
            explore: whether `exploration` applies.
            deterministic: whether to take the most probable or most valuable action.
        """

    @property
    def state_spec(self) -> Any:
        """What the memory of one lane looks like: a dict of `TensorSpec`; `()` for a policy without."""
        return ()

    @property
    def stored_state_spec(self) -> Any:
        """What of the memory is stored with rows, for sequences to begin from: by default all; `()` for none."""
        return self.state_spec

    def initial_state(self, batch_size: int) -> Any:
        """The memory before the first step of an episode: a `Batch` with the keys of `state_spec`; `()` without one.

        Args:
            batch_size: B, the number of lanes.

        Returns:
            Leaves [B, ...] on the CPU.
        """
        return ()

    @final
    def behaviour(self, observation: Any, action: Any, state: Any = (), first: Tensor | None = None) -> Batch:
        """What a buffer keeps about how actions were chosen, computed in one pass with the acting weights.

        Args:
            observation: raw, leaves [..., *observation].
            action: [..., *action], as `act` returned them.
            state: of a policy with memory: the one with which each action was chosen, leaves [..., *state].
            first: [...] bool, where episodes begin; needed where there is a state.

        Returns:
            The fields that `behaviour_fields` names, each [...].
        """
        device = self._elsewhere
        if device is None:
            return self.describe(observation, action, state, first)
        given = to_device((observation, action, state, first), device)
        return to_device(self.describe(*given), device_of(observation))

    def describe(self, observation: Any, action: Any, state: Any, first: Tensor | None) -> Batch:
        """The fields of `behaviour`: what a subclass defines that has any.

        Args:
            observation: see `behaviour`.
            action: see `behaviour`.
            state: see `behaviour`.
            first: see `behaviour`.
        """
        return Batch()

    @property
    def behaviour_spec(self) -> dict[str, TensorSpec]:
        """What each of the `behaviour_fields` looks like; one number by default."""
        return {name: TensorSpec(()) for name in self.behaviour_fields}

    # -- actions

    @property
    def raw_action_spec(self) -> SpecTree:
        """What `act` returns and buffers store; differs from `action_spec` where `env_action` changes anything."""
        return self.action_spec

    def env_action(self, action: Any) -> Any:
        """What the environment executes.

        Args:
            action: [..., *action], as `act` returned them.

        Returns:
            Actions as `action_spec` says, same leading dimensions.
        """
        return action

    def acted(self, step: PolicyStep, action: Any) -> PolicyStep:
        """What `act` would have returned, had it chosen another action; a state that holds actions holds this one.

        Args:
            step: from `act`.
            action: [B, *action] raw.
        """
        return step._replace(action=action)

    @property
    def eval_epsilon(self) -> float:
        """The probability of a random action in evaluations; 0 unless it was set, as a callback may in each of them.

        Raises:
            ConfigError: it is set for a policy that does not explore epsilon-greedily.
        """
        return self.in_evaluations.epsilon

    @eval_epsilon.setter
    def eval_epsilon(self, epsilon: float) -> None:
        self.in_evaluations = EvalExploration.of(self, epsilon)

    # -- observations

    def seen_of(self, spec: SpecTree) -> SpecTree:
        """What the policy would see of observations: those of its keys, where they have all of these and others.

        Args:
            spec: of observations, of an environment or of data.
        """
        seen = self.observation_spec
        part = isinstance(spec, dict) and isinstance(seen, dict) and seen.keys() < spec.keys()
        return {key: spec[key] for key in seen} if part else spec

    def normalize(self, observation: Any) -> Any:
        """The observation as networks see it.

        Args:
            observation: raw, leaves [..., *observation].

        Returns:
            The same structure; the observation itself where there is no normaliser.
        """
        return functools.reduce(lambda seen, one: one(seen), self.unseen, self.seen_normalized(observation))

    def seen_normalized(self, observation: Any) -> Any:
        """What the policy sees as its networks see it, without what critics see besides.

        Args:
            observation: raw, leaves [..., *observation].
        """
        return observation if self.normalizer is None else self.normalizer(observation)

    def action_mask(self, observation: Any) -> Any:
        """Which actions are allowed.

        Args:
            observation: leaves [..., *observation].

        Returns:
            [..., A] bool or 0/1, or a `Batch` of such masks for an action with several parts; `None` where the
            observation spec has no key `action_mask`.
        """
        return observation[ACTION_MASK] if self.is_masked else None

    # -- for users

    @final
    def forward(self, observation: Any, state: Any = None, *, deterministic: bool = True) -> Any:
        """The environment's action for observations, outside any training.

        Args:
            observation: numpy arrays, tensors or numbers as the observation spec says, in dicts, tuples or a `Batch`;
                bare or with leading dimensions. Or a `Batch` that has such an observation as its field `obs` or
                `observation`, beside others; then the answer is a `Batch` too.
            state: the memory that the call before gave, for such a `Batch`; `None` where an episode begins. A policy
                that `reads_reward` then needs the field `rew` as well.
            deterministic: whether to take the most probable or most valuable action, else to sample the policy.

        Returns:
            numpy array as the action spec says, with the same leading dimensions; or a `Batch` of it, `act`, and of the
            memory after this step, `state` (empty for a policy without).

        Raises:
            ShapeError: the observation or the state does not fit, or a state came with an observation alone.
        """
        field = observation_field(observation, self.observation_spec)
        if field is None and state is not None:
            raise ShapeError("a state was given with an observation alone; give policy(Batch(obs=...), state)")
        seen = observation if field is None else observation[field]
        parts = () if isinstance(self.observation_spec, TensorSpec) else self.observation_spec
        if field is not None and isinstance(seen, np.ndarray) and parts and seen.shape[:1] == (len(parts),):
            seen = tuple(seen)  # a `Batch` made an array of a tuple of numbers
        leading = leading_shape(seen, self.observation_spec)
        count = int(np.prod(leading, dtype=np.int64))
        memory = self.initial_state(count) if state is None else checked_state(state, self.initial_state(count), count)
        reward: Any = torch.zeros(count) if state is None else observation.get("rew", ())
        step = TimeStep(reward=reward, observation=as_rows(seen, self.observation_spec, self.device, leading))
        with self.in_phase(Phase.EVAL):  # dropout and batch statistics are of training
            chosen = self.act(step, memory, phase=Phase.EVAL, deterministic=deterministic)
        action = to_numpy(self.env_action(chosen.action), self.action_spec, leading)
        kept = Batch() if type(chosen.state) is tuple else chosen.state
        return action if field is None else Batch(act=action, state=kept)

    def begun(self, state: Any, first: Any) -> Any:
        """The state with the initial one in rows where an episode begins.

        Args:
            state: leaves [B, ...].
            first: [B] bool, where an episode begins.
        """
        if isinstance(first, np.ndarray):
            first = torch.as_tensor(first)
        if not isinstance(first, Tensor) or not first.any():
            return state

        initial = self.initial_state(len(first))
        if self._elsewhere is not None:  # these may come from another device than the state
            first, initial = to_device((first, initial), device_of(state))
        return begun(state, initial, first)

    def rewarded(self, state: Any, reward: Any) -> Any:
        """The memory after a reward: what a subclass defines that `reads_reward`; by default it is as it was.

        Args:
            state: leaves [B, ...].
            reward: [B] of the action before; that of a FIRST row does not matter.
        """
        return state

    # -- phases

    @property
    def phase(self) -> Phase:
        """The phase that the policy is in."""
        return self._phase

    @property
    def updating(self) -> bool:
        """Whether an update is running."""
        return self._phase is Phase.UPDATE

    def in_phase(self, phase: Phase) -> AbstractContextManager[Self]:
        """Enters a phase, and goes back to the one before whatever happens.

        Args:
            phase: the one to enter.
        """
        return _InPhase(self, phase)

    def train(self, mode: bool = True) -> Self:
        """Enters `Phase.COLLECT`, or `Phase.EVAL`.

        Args:
            mode: whether to collect.
        """
        self._phase = Phase.COLLECT if mode else Phase.EVAL
        return super().train(mode)

    def _enter(self, phase: Phase) -> None:
        if self.training != (phase is not Phase.EVAL):
            super().train(phase is not Phase.EVAL)
        object.__setattr__(self, "_phase", phase)  # nn.Module's own way is slow, and this happens twice an update

    # -- randomness, and where it comes from

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self._elsewhere or torch.device("cpu")

    def seed(self, seed: int) -> None:
        """Starts the acting noise anew.

        Args:
            seed: any 64-bit integer.
        """
        self.generator.manual_seed(seed)

    def draw_from(self, generator: torch.Generator) -> None:
        """Takes another generator for all choices. A policy without parameters acts where its generator is.

        Args:
            generator: on the device of the parameters, where there are any.
        """
        self.generator = generator
        self._elsewhere = None if generator.device.type == "cpu" else generator.device

    def load_generator_state(self, state: Tensor) -> None:
        """Goes on with the choices of a saved generator.

        One of another kind of device has a state of another size, which means nothing here: choices then begin anew, by
        the policy's seed and version.

        Args:
            state: from `generator.get_state()`.
        """
        if state.shape == self.generator.get_state().shape:
            self.generator.set_state(state)
        else:
            self.seed(RunSeeds(self.generator.initial_seed()).integer("acting", self.version))

    def moved(self) -> None:
        """Follows the parameters to another device with the generator."""
        tensor = next(iter(self.state_dict().values()), None)
        if tensor is not None and tensor.device != self.generator.device:
            self.draw_from(torch.Generator(tensor.device).manual_seed(self.generator.initial_seed()))


class _InPhase:
    """What `Policy.in_phase` returns: every update enters one, and a generator would take several times as long."""

    __slots__ = ("_before", "_phase", "_policy")

    def __init__(self, policy: Any, phase: Phase) -> None:
        self._policy, self._phase, self._before = policy, phase, policy.phase

    def __enter__(self) -> Any:
        self._policy._enter(self._phase)
        return self._policy

    def __exit__(self, *error: object) -> None:
        self._policy._enter(self._before)


class NetworkPolicy(Policy):
    """A policy that is one network, with or without a memory.

    Where a method takes `state` and `first`, a policy without memory needs neither. One with memory evaluates whole
    sequences: observations [T, B, ...], the state before row 0, and `first` [T, B] where episodes begin; without
    `first` it takes one row of every lane, [B, ...].

    Args:
        network: what turns a normalised observation into whatever the policy chooses from; a `RecurrentNetwork` gives
            the policy a memory.
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: what the environment's action looks like.
        normalizer: applied to every observation; `None` leaves them as they are.
        exploration: changes actions in `Phase.COLLECT`; `None` leaves them as they are.
    """

    learns_log_std: ClassVar[bool] = False
    """Whether the network has a log σ of its own, that `NetworkConfig.initial_log_std` starts."""

    network: nn.Module

    def __init__(
        self,
        network: nn.Module,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        normalizer: ObservationNormalizer | None = None,
        exploration: Exploration | None = None,
    ) -> None:
        head = self.action_head(observation_spec, action_spec)
        super().__init__(observation_spec, action_spec, normalizer=normalizer, exploration=exploration)
        self._action_head = head
        self.network = network
        self.noise_size: int = getattr(network, "noise_size", 0)
        """Random numbers with which noisy layers of the network explore, for every lane."""
        self.network_config: NetworkConfig | None = None  # known where `build` made the network
        self._remembers = isinstance(network, RecurrentNetwork)
        self.splits = isinstance(network, RecurrentNetwork | EncodedNetwork)
        """Whether `features` are more than the observation: a code of it, or the output of recurrent cells."""
        self.build_options: dict[str, Any] = {}  # what else `build` was given that shapes the network, as JSON values

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head | None:
        """What raw actions look like, and what the environment executes of them; `None` where both are the same.

        Args:
            observation_spec: what an observation looks like, without leading dimensions.
            action_spec: what the environment's action looks like.

        Raises:
            ConfigError: the policy cannot act there; the message names the space, and the policies that fit it.
        """
        return None

    @classmethod
    @abstractmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        """A fresh network of the kind that this policy needs.

        Args:
            observation_spec: what an observation looks like, without leading dimensions.
            action_spec: what the environment's action looks like.
            config: the network's layers.

        Raises:
            ConfigError: the action space or the config does not fit.
        """

    @classmethod
    def build(
        cls,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: NetworkConfig | None = None,
        *,
        normalize: bool = False,
        exploration: Exploration | None = None,
        **options: Any,
    ) -> Self:
        """A policy with a fresh network; a policy made so can be saved as an artefact.

        Args:
            observation_spec: what a whole observation looks like; the policy has that of the keys that it sees.
            action_spec: what the environment's action looks like.
            config: the network's layers, and what it sees.
            normalize: whether observations are normalised by running statistics.
            exploration: changes actions in `Phase.COLLECT`.
            options: what else the policy's `network_for` takes, as JSON values.

        Raises:
            ConfigError: the action space or the config does not fit.
        """
        config = config or NetworkConfig()
        if config.initial_log_std and not cls.learns_log_std:
            raise ConfigError(
                f"initial_log_std={config.initial_log_std} starts a standard deviation that is learned apart, and "
                f"{cls.__name__} has none: leave it at 0, or use one with a normal policy, such as PPO on a box"
            )
        seen, inner = config.seen(observation_spec), config.of_seen()
        network = cls.network_for(seen, action_spec, inner, **options)
        normalizer = ObservationNormalizer(seen) if normalize else None
        policy = cls(network, seen, action_spec, normalizer=normalizer)
        policy.exploration, policy.network_config, policy.build_options = exploration, inner, options
        policy.whole_spec = observation_spec
        if normalize and isinstance(observation_spec, dict) and isinstance(seen, dict):
            rest = {key: child for key, child in observation_spec.items() if key not in seen}
            policy.unseen = ObservationNormalizer.for_any(rest)
        return policy

    # -- memory

    @property
    def state_spec(self) -> Any:
        return self.network.state_spec if self._remembers else ()

    def initial_state(self, batch_size: int) -> Any:
        state = self._initial_state(batch_size)
        return state if self._elsewhere is None else to_device(state, "cpu")

    def _initial_state(self, batch_size: int) -> Any:
        """Device of the network."""
        network: Any = self.network
        return network.initial_state(batch_size) if self._remembers else ()

    # -- features: what the network's head sees, so that value functions can look at the same

    @property
    def feature_spec(self) -> SpecTree:
        """What `features` returns: the whole observation's spec, or that of its code or the memory's output."""
        network: Any = self.network
        if self.splits and network.has_head:
            raise ConfigError(
                "the policy's network has_head, so that it has no features for a value to look at; give each part a "
                "network of its own, network={'policy': ..., 'value': ...}, or one without a head"
            )
        return network.feature_spec if self.splits else self.whole_spec

    def features(self, observation: Any, state: Any = (), first: Tensor | None = None) -> tuple[Any, Any]:
        """The normalised observation; where it holds pictures its code, or what the memory makes of it.

        Args:
            observation: raw, leaves [..., *observation].
            state: see the class.
            first: see the class.

        Returns:
            Features as `feature_spec` says, with the leading dimensions of the observation; and the new state.

        Raises:
            ShapeError: the policy has a memory and was given none.
        """
        normalizer = self.normalizer  # what `normalize` does, without the call in every step
        if normalizer is not None:
            observation = normalizer(observation)
        if not self.splits:
            return observation, state
        network: Any = self.network
        return network.remember(observation, state, first) if self._remembers else (network.encoder(observation), state)

    def head(self, features: Any, *noise: Tensor) -> Any:
        """What the network says about features: logits, values, whatever the policy chooses from.

        Args:
            features: from `features`.
            noise: of networks that take some.
        """
        if not noise:
            return call(self.network, "head", features) if self.splits else call(self, "network", features)
        network: Any = self.network
        return (network.head if self.splits else network)(features, *noise)

    def _outputs(self, observation: Any, state: Any = (), first: Tensor | None = None) -> Any:
        """What the network says about raw observations."""
        return self.head(self.features(observation, state, first)[0])

    # -- acting inside a compiled graph, which draws no random numbers itself

    def acting_noise(self, observation: Any) -> Callable[[], Tensor] | None:
        """What draws the random numbers of one step of acting, those that `choose` draws in `Phase.COLLECT`.

        Args:
            observation: [B, ...] of which the noise has the size.

        Returns:
            Gives a tensor for `act_with`; `None` where this policy cannot act so, or a subclass has its own `choose`.
        """
        return None

    def act_with(self, observation: Any, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """What `choose` does in `Phase.COLLECT`, with random numbers drawn before; of policies with `acting_noise`.

        Args:
            observation: raw, [B, ...].
            noise: from `acting_noise`.

        Returns:
            Raw actions [B, ...], and the fields of `behaviour`, [B].
        """
        raise NotImplementedError(f"{type(self).__name__} has no acting_noise")

    # -- actions

    @property
    def raw_action_spec(self) -> Any:
        return self.action_spec if self._action_head is None else self._action_head.raw_spec

    def env_action(self, action: Any) -> Any:
        head = self._action_head
        return action if head is None or head.executes_raw else head.env_action(action)

    def _explored(self, action: Any, explore: bool, mask: Any = None, observation: Any = None) -> Any:
        """The action after `exploration`, where there is one and it applies."""
        if not explore or self.exploration is None:
            return action
        if self.exploration.guide is not None:
            return self.exploration.guide(observation, action, self.generator)
        return self.exploration(action, generator=self.generator, mask=mask)

    def sample(self, observation: Any) -> tuple[Any, Tensor]:
        """Actions and their log-probabilities, with gradients: `CoreModel.get_action` shows them.

        By default the deterministic choice, of log-probability 0; policies that draw their actions override it.

        Args:
            observation: raw, leaves [..., *observation]; a memory starts anew.

        Returns:
            Actions [..., *action], log-probabilities [...] in nats.
        """
        action = self.choose(observation, self._initial_state(len(observation)), False, True).action
        return action, torch.zeros(leading_shape(action, self.raw_action_spec), device=self.device)
