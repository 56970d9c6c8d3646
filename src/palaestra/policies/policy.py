"""`Policy`: how to act."""

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Self, final

import numpy as np
import torch
from torch import Tensor

from palaestra.core import Batch, NonFiniteError, RunSeeds, ShapeError, TimeStep, device_of, to_device
from palaestra.core.spec import ACTION_MASK, SpecTree, TensorSpec, first_leaf, numpy_dtype
from palaestra.core.tree import tree_map, tree_paths
from palaestra.nn import MovableModule
from palaestra.policies.actions import check_masks, children_of, require_mask_spec
from palaestra.policies.exploration import Exploration
from palaestra.policies.normalizer import ObservationNormalizer

__all__ = ["Phase", "Policy", "PolicyStep"]


def leading_shape(observation: Any, spec: SpecTree) -> tuple[int, ...]:
    """The leading dimensions of a nest, read off its first leaf.

    Args:
        observation: of any kind that a policy can be called with.
        spec: of one observation.

    Raises:
        ShapeError: it lacks a part, or holds no numbers.
    """
    keys, leaf_spec = first_leaf(spec)
    leaf, path = observation, ".".join(keys)
    for key in keys:
        leaf = _child(leaf, key, path)
    shape = tuple(np.shape(_array(leaf, leaf_spec, path) if isinstance(leaf, list | tuple) else leaf))
    return shape[: len(shape) - len(leaf_spec.shape)]


def _child(node: Any, key: str, path: str) -> Any:
    try:
        if isinstance(node, tuple | list) or (isinstance(node, dict) and key not in node):
            return node[int(key)]
        return node[key]
    except (KeyError, IndexError, TypeError, ValueError):
        raise ShapeError(f"the observation is a {type(node).__name__} without the entry {path!r} of its spec") from None


def _named(path: str) -> str:
    return f"the observation{f' {path!r}' if path else ''}"


def _array(value: Any, spec: TensorSpec, path: str) -> Tensor | np.ndarray:
    if isinstance(value, Tensor):
        return value
    try:
        array = np.array(value)
    except ValueError as error:
        raise ShapeError(f"{_named(path)} is ragged: {error}; numbers of shape {spec.shape} are needed") from None
    if array.dtype.kind not in "biuf":
        raise ShapeError(f"{_named(path)} is {value!r}; numbers of shape {spec.shape} are needed")
    return array


def as_rows(value: Any, spec: SpecTree, device: torch.device, leading: tuple[int, ...], path: str = "") -> Any:
    """A nest as tensors and batches of leading shape [N].

    Args:
        value: of any kind that a policy can be called with.
        spec: of one observation.
        device: where the tensors are to be.
        leading: dimensions that become N.
        path: of the nest, for messages.

    Raises:
        ShapeError: it does not fit the spec, or holds no numbers.
        NonFiniteError: an element is NaN or infinite, or beyond the numbers of the spec's type.
    """
    if not isinstance(spec, TensorSpec):
        paths = {key: (child, f"{path}.{key}" if path else key) for key, child in children_of(spec).items()}
        return Batch.of(
            {
                key: as_rows(_child(value, key, inner), child, device, leading, inner)
                for key, (child, inner) in paths.items()
            }
        )
    name, array = _named(path), _array(value, spec, path)
    array = array if isinstance(array, Tensor) else torch.as_tensor(array)
    if tuple(array.shape) != (*leading, *spec.shape):
        raise ShapeError(
            f"{name} has shape {tuple(array.shape)}; its spec needs "
            f"{(*leading, *spec.shape)}, with or without leading dimensions, the same for every entry"
        )
    rows = array.to(device, spec.dtype)
    if spec.dtype.is_floating_point:
        if not rows.isfinite().all():
            raise NonFiniteError(f"{name} is {array.tolist()}; a policy needs finite numbers")
        return rows.reshape((math.prod(leading), *spec.shape))
    given, found, allowed = array.numpy(force=True), rows.numpy(force=True), ""  # numpy compares all types
    fits = found == given
    if spec.bounds is not None:
        low, high = spec.bounds
        fits, allowed = fits & (found >= low) & (found <= high), f" from {low.tolist()} to {high.tolist()}"
    if not fits.all():
        raise ShapeError(f"{name} is {given.tolist()}; its spec needs whole numbers{allowed} as {spec.dtype}")
    return rows.reshape((math.prod(leading), *spec.shape))


def to_numpy(action: Any, spec: SpecTree, leading: tuple[int, ...]) -> Any:
    """Actions as their spec says, in numpy.

    Args:
        action: leaves [N, ...].
        spec: of one action.
        leading: dimensions that N stands for.
    """
    if isinstance(spec, dict):
        return {key: to_numpy(action[str(key)], child, leading) for key, child in spec.items()}
    if isinstance(spec, tuple):
        return tuple(to_numpy(action[str(index)], child, leading) for index, child in enumerate(spec))
    array = action.detach().cpu().numpy().astype(numpy_dtype(spec.dtype), copy=False)
    return array.reshape((*leading, *spec.shape))[()]


class Phase(Enum):
    """What actions are for, and what `Policy.training` and `Policy.updating` say then.

    | phase | training | updating | explores |
    |---|---|---|---|
    | COLLECT | True | False | yes |
    | UPDATE | True | True | no |
    | EVAL | False | False | no |
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
    exploration: Exploration | None
    generator: torch.Generator
    """The source of every random choice in acting, on the parameters' device."""
    version: int
    """Updates that went into the weights; rows carry the version that acted."""

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
        self.observation_spec = observation_spec
        self.action_spec = action_spec
        self.normalizer = normalizer
        self.exploration = exploration
        self.generator = torch.Generator()
        self.version = 0
        self._elsewhere: torch.device | None = None  # where the parameters are, unless it is the CPU
        self._phase = Phase.COLLECT
        self._masked = isinstance(observation_spec, dict) and ACTION_MASK in observation_spec

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
        if self._masked:
            check_masks(time_step.observation[ACTION_MASK], self.action_spec, time_step.last)
        observation, device = time_step.observation, self._elsewhere
        if type(state) is not tuple:
            state = self.begun(self.rewarded(state, time_step.reward), time_step.first)
        explore = not deterministic and (phase or self._phase) is Phase.COLLECT
        if device is None:
            return self.choose(observation, state, explore, deterministic)
        step = self.choose(to_device(observation, device), to_device(state, device), explore, deterministic)
        return to_device(step, device_of(observation))

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

    # -- observations

    def normalize(self, observation: Any) -> Any:
        """The observation as networks see it.

        Args:
            observation: raw, leaves [..., *observation].

        Returns:
            The same structure; the observation itself where there is no normaliser.
        """
        normalizer = self.normalizer
        return observation if normalizer is None else normalizer(observation)

    def action_mask(self, observation: Any) -> Any:
        """Which actions are allowed.

        Args:
            observation: leaves [..., *observation].

        Returns:
            [..., A] bool or 0/1, or a `Batch` of such masks for an action with several parts; `None` where the
            observation spec has no key `action_mask`.
        """
        return observation[ACTION_MASK] if self._masked else None

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
        field = self._observation_field(observation)
        if field is None and state is not None:
            raise ShapeError("a state was given with an observation alone; give policy(Batch(obs=...), state)")
        seen = observation if field is None else observation[field]
        parts = () if isinstance(self.observation_spec, TensorSpec) else self.observation_spec
        if field is not None and isinstance(seen, np.ndarray) and parts and seen.shape[:1] == (len(parts),):
            seen = tuple(seen)  # a `Batch` made an array of a tuple of numbers
        leading = leading_shape(seen, self.observation_spec)
        rows = as_rows(seen, self.observation_spec, self.device, leading)
        count = int(np.prod(leading, dtype=np.int64))
        memory = self.initial_state(count) if state is None else self._checked_state(state, count)
        reward: Any = torch.zeros(count) if state is None else observation.get("rew", ())
        step = TimeStep(reward=reward, observation=rows)
        with self.in_phase(Phase.EVAL):  # dropout and batch statistics are of training
            chosen = self.act(step, memory, phase=Phase.EVAL, deterministic=deterministic)
        action = to_numpy(self.env_action(chosen.action), self.action_spec, leading)
        return (
            action
            if field is None
            else Batch(act=action, state=Batch() if type(chosen.state) is tuple else chosen.state)
        )

    def _observation_field(self, given: Any) -> str | None:
        """Which field of a batch is the observation; `None` where what was given is one itself."""
        spec = self.observation_spec
        if not isinstance(given, Batch) or (isinstance(spec, dict) and all(key in given for key in spec)):
            return None
        return next((name for name in ("obs", "observation") if name in given), None)

    def _checked_state(self, state: Any, count: int) -> Any:
        """The state, if it is that of so many lanes of this policy."""
        shapes = [
            {path: tuple(np.shape(leaf)) for path, leaf in tree_paths(tree).items()}
            for tree in (state, self.initial_state(count))
        ]
        if shapes[0] != shapes[1]:
            raise ShapeError(
                f"the state has leaves of shape {shapes[0]}, and this policy's for {count} observations have "
                f"{shapes[1]}; give what the call before answered as `state`, or None where an episode begins"
            )
        return tree_map(torch.as_tensor, state) if shapes[0] else ()

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

        def begin(old: Tensor, initial: Tensor) -> Tensor:
            return torch.where(first.reshape(-1, *(1,) * (old.ndim - 1)), initial, old)

        initial = self.initial_state(len(first))
        if self._elsewhere is not None:  # these may come from another device than the state
            first, initial = to_device((first, initial), device_of(state))
        return state.map(begin, initial)

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
        """Where the parameters are."""
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
