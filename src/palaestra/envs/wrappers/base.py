"""Bases of wrappers: maps of time steps, observations and rewards, and state that outlives an episode."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from palaestra.core import BoundedSpec, ConfigError, EnvError, TensorSpec, TimeStep, did_you_mean, spec_leaves
from palaestra.core.settings import overrides
from palaestra.core.spec import ACTION_MASK
from palaestra.envs.contract.environment import STEPS, EnvironmentWrapper, SingleEnvironment
from palaestra.envs.contract.nest import flatten, like, to_rows, unflatten, unstacked

__all__ = ["ObservationMap", "RewardMap", "StatefulWrapper", "TimeStepMap"]


class TimeStepMap(EnvironmentWrapper):
    """A layer that changes the observation or the reward of every time step.

    `untransformed` of what it returns is the whole time step from before the innermost such layer.
    """

    def begin_episode(self, seed: int) -> TimeStep:
        return self._changed(self.env.begin_episode(seed))

    def advance(self, action: Any) -> TimeStep:
        return self._changed(self.env.advance(action))

    @abstractmethod
    def change(self, time_step: TimeStep) -> TimeStep:
        """The time step that the layer makes of the inner one.

        Args:
            time_step: of the inner layer; not to be changed in place.
        """

    def _changed(self, time_step: TimeStep) -> TimeStep:
        raw = time_step.untransformed
        return self.change(time_step)._replace(untransformed=raw if isinstance(raw, TimeStep) else time_step)


class ObservationMap(TimeStepMap):
    """A layer that changes some leaves of the observation, each by itself.

    Args:
        keys: paths of the leaves to change, as `spec_leaves` names them; by default all that `fits`, but the
            `action_mask`.

    Raises:
        ConfigError: no leaf fits, or there is no leaf of that name.
    """

    def __init__(self, env: SingleEnvironment, keys: Sequence[str] | None = None) -> None:
        super().__init__(env)
        self._inner = env.observation_spec
        leaves = spec_leaves(self._inner)
        name = type(self).__name__
        for key in keys or ():
            if key not in leaves:
                raise ConfigError(f"{name}: the observation has no leaf {key!r}{did_you_mean(key, leaves)}")
            if not self.fits(leaves[key]):
                raise ConfigError(f"{name} cannot change the observation's leaf {key!r}: {leaves[key]}")
        chosen = set(keys or ())
        if keys is None:
            chosen = {path for path, spec in leaves.items() if self.fits(spec) and path.split(".")[0] != ACTION_MASK}
        if not chosen:
            raise ConfigError(f"{name} finds nothing to change in the observation: {leaves}")
        self._paths = [path if path in chosen else None for path in leaves]
        specs = [self.leaf_spec(spec) if path in chosen else spec for path, spec in leaves.items()]
        observation = unflatten(iter(specs), self._inner)
        if overrides(type(self), (*STEPS, "leaf"), ["leaf_spec"]):
            observation = unstacked(observation)
        self.specs = self.specs._replace(observation=observation)

    @property
    def changed_paths(self) -> list[str]:
        """Which leaves are changed."""
        return [path for path in self._paths if path is not None]

    def fits(self, spec: TensorSpec) -> bool:
        """Whether a leaf can be changed; by default, floating-point numbers.

        Args:
            spec: of the inner leaf.
        """
        return is_numeric(spec) and spec.dtype.is_floating_point

    @abstractmethod
    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """The spec of a changed leaf; `stacked=1` where its frames are not those of the steps before any more.

        A class that overrides `leaf` and not this takes that back for all leaves.

        Args:
            spec: of the inner leaf.
        """

    @abstractmethod
    def leaf(self, value: Any, path: str, first: bool) -> Any:
        """The changed leaf.

        Args:
            value: of the inner layer; not to be changed in place.
            path: which leaf; "" where the observation is one array.
            first: whether an episode begins.
        """

    def change(self, time_step: TimeStep) -> TimeStep:
        first = bool(time_step.step_type == 0)
        pairs = zip(self._paths, flatten(time_step.observation, self._inner), strict=True)
        leaves = [leaf if path is None else self.leaf(np.asarray(leaf), path, first) for path, leaf in pairs]
        return time_step._replace(observation=unflatten(iter(leaves), self._inner))

    def change_rows(self, time_step: TimeStep, change: Callable[[Any, str, Any], Any] | None = None) -> TimeStep:
        """The same for a batch; `leaf` is given tensors [B, ...], and bool [B] says where an episode begins.

        Args:
            time_step: rows [B, ...].
            change: instead of `leaf`.
        """
        first, change = time_step.first, change or self.leaf
        pairs = zip(self._paths, flatten(time_step.observation, self._inner), strict=True)
        leaves = [leaf if path is None else change(leaf, path, first) for path, leaf in pairs]
        return time_step._replace(observation=to_rows(iter(leaves), self._inner))


class RewardMap(TimeStepMap):
    """A layer that changes the reward of every env step; that of a FIRST step stays 0."""

    keeps_frames = True

    @abstractmethod
    def map(self, reward: Any) -> Any:
        """The changed reward.

        Args:
            reward: a number, or an array for vector rewards; a tensor of all rows of a batch.
        """

    def change(self, time_step: TimeStep) -> TimeStep:
        if time_step.step_type == 0:
            return time_step
        reward = self.map(time_step.reward)
        return time_step._replace(reward=reward if isinstance(time_step.reward, np.ndarray) else float(reward))

    def change_rows(self, time_step: TimeStep) -> TimeStep:
        """The same for a batch; `map` is given a tensor [B] or [B, k].

        Args:
            time_step: rows [B, ...].
        """
        reward, first = time_step.reward, time_step.first
        changed = torch.as_tensor(self.map(reward)).to(reward)
        return time_step._replace(reward=torch.where(like(first, reward), reward, changed))

    def _bounded(self, minimum: Any, maximum: Any) -> BoundedSpec:
        spec = self.env.reward_spec
        return BoundedSpec(spec.shape, spec.dtype, minimum=np.array(minimum), maximum=np.array(maximum))


class StatefulWrapper(EnvironmentWrapper):
    """A layer that carries something from one episode into the next, and is restored with it when a run is resumed.

    Put it before a map among the base classes: `class Normalize(StatefulWrapper, ObservationMap)`.
    """

    learned: ClassVar[bool] = False
    """Whether what it carries was learned (running statistics): it then stays where `seed` begins a stream anew, and is
    otherwise put back to what it was before the first episode."""
    _untouched: Any = None

    @abstractmethod
    def snapshot(self) -> Any:
        """What the layer carries right now: numbers, text and nests of them that are not changed any more."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Takes over what `snapshot` gave.

        Args:
            snapshot: of an equal layer.
        """

    def carried_state(self) -> dict[str, Any]:
        return self._with_snapshot(self.env.carried_state())

    def _with_snapshot(self, inner: dict[str, Any]) -> dict[str, Any]:
        return {**inner, self._key(inner): self._noted()}

    def _noted(self) -> Any:
        """The snapshot; the first one is kept for `begin_stream`."""
        snapshot = self.snapshot()
        if self._untouched is None:
            self._untouched = [snapshot]
        return snapshot

    def load_carried_state(self, state: dict[str, Any]) -> None:
        """Takes over what `carried_state` gave.

        Args:
            state: of equal layers.

        Raises:
            EnvError: it is of other layers.
        """
        key = self._key(self.env.carried_state())
        if key not in state:
            raise EnvError(
                f"the saved state has nothing for the layer {key}; it has {list(state)}. Resume with the "
                "wrappers of the saved run"
            )
        self.env.load_carried_state(state)
        self._noted()
        self.restore(state[key])

    def begin_stream(self) -> None:
        self.env.begin_stream()
        if self._untouched is not None and not self.learned:
            self.restore(self._untouched[0])

    def _key(self, inner: dict[str, Any]) -> str:
        return f"{len(inner)}:{type(self).__name__}"


class RunningMeanVariance:
    """Running mean and variance of all arrays seen so far, element by element (Welford 1962).

    Args:
        shape: of each array.

    Examples:
        >>> running = RunningMeanVariance(())
        >>> for value in (1.0, 3.0):
        ...     running.update(np.array(value))
        >>> float(running.mean), float(running.variance)
        (2.0, 1.0)
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.count = 0
        self.mean = np.zeros(shape)
        self._square = np.zeros(shape)

    @property
    def variance(self) -> np.ndarray:
        """Population variance; zeros before the first array."""
        return self._square / max(self.count, 1)

    def update(self, value: np.ndarray) -> None:
        """Counts one array.

        Args:
            value: of the shape.
        """
        self.count += 1
        before = value - self.mean
        self.mean = self.mean + before / self.count
        self._square = self._square + before * (value - self.mean)

    def snapshot(self) -> list[Any]:
        """As JSON values."""
        return [self.count, self.mean.tolist(), self._square.tolist()]

    def restore(self, snapshot: list[Any]) -> None:
        """Takes over what `snapshot` gave.

        Args:
            snapshot: of equal shape.
        """
        self.count, mean, square = snapshot
        self.mean, self._square = np.array(mean), np.array(square)


def clipped(value: Any, minimum: Any, maximum: Any) -> Any:
    """A number, array or tensor within bounds.

    Args:
        value: any.
        minimum: its lower bound.
        maximum: its upper bound.
    """
    return value.clamp(minimum, maximum) if isinstance(value, torch.Tensor) else np.clip(value, minimum, maximum)


def square_root(value: Any) -> Any:
    """Correctly rounded; on a CPU, torch's own of float64 differs in the last bit for some numbers.

    Args:
        value: a number, an array or a tensor of float64.
    """
    if not isinstance(value, torch.Tensor):
        return np.sqrt(value)
    return torch.from_numpy(np.sqrt(value.numpy())) if value.device.type == "cpu" else value.sqrt()


def is_numeric(spec: TensorSpec) -> bool:
    """Whether a leaf holds numbers, not categories or bits.

    Args:
        spec: of the leaf.
    """
    return type(spec) in (TensorSpec, BoundedSpec)


def as_first(time_step: TimeStep, first: TimeStep) -> TimeStep:
    """A time step as the first of an episode: nothing was earned yet, and no action taken.

    Args:
        time_step: what the agent is to see first.
        first: the FIRST step of the inner layer.
    """
    raw = time_step.untransformed
    return time_step._replace(
        step_type=0,
        discount=1.0,
        reward=first.reward,
        prev_action=first.prev_action,
        untransformed=as_first(raw, first.untransformed) if isinstance(raw, TimeStep) else (),
    )
