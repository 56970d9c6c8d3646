"""What passes between learner and environments: actions are checked on the way in, rows of arrays on the way out.

Both are looked at in whole batches, so that it costs almost nothing.
"""

import logging
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from palaestra.core import EnvError, NonFiniteError, ShapeError, SpecError, TimeStep, numpy_dtype, spec_leaves
from palaestra.core.errors import is_news
from palaestra.core.spec import ACTION_MASK, DiscreteSpec, SpecTree, TensorSpec, dtype_limits
from palaestra.envs.contract.nest import flatten, leaf_dtypes, problem, to_batched, unflatten
from palaestra.envs.contract.rows import Rows, Specs
from palaestra.envs.supervision.faults import Failure

_log = logging.getLogger(__name__)
_tensor = torch.from_numpy
_dot: Any = np.vdot
# Bounds and surplus keys are looked at in every so many steps, unless that is to be strict.
PERIOD = 16
# Larger sets of discrete actions are not kept as scalars.
_MOST_SCALARS = 4096
_T = TypeVar("_T")


class _Leaf(NamedTuple):
    """One array of a batched action."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    low: np.ndarray
    high: np.ndarray


class ActionReader:
    """Reads batched actions into numpy, and refuses those that no environment may see.

    Args:
        specs: of one bare environment.
        batch_size: B.
    """

    def __init__(self, specs: Specs, batch_size: int) -> None:
        self._spec = spec = specs.action
        self._plain = isinstance(spec, TensorSpec)
        # Making a numpy scalar takes longer than finding one, and environments want numpy scalars.
        self._scalars: dict[int, Any] | None = None
        if isinstance(spec, DiscreteSpec) and spec.num <= _MOST_SCALARS:
            kind = numpy_dtype(spec.dtype).type
            self._scalars = {value: kind(value) for value in range(spec.start, spec.start + spec.num)}
        self._given: tuple[Any, list[Any]] = None, []
        self._leaves = [
            _Leaf(path, (batch_size, *leaf.shape), numpy_dtype(leaf.dtype), *tolerant_bounds(leaf))
            for path, leaf in spec_leaves(spec).items()
        ]
        self.masked = self.masked_by(specs.observation)
        """Whether observations say which actions are allowed."""
        self.mask: np.ndarray | None = None
        """What the latest observations allow, bool [B, num]; `None` where all is."""

    def masked_by(self, observation: SpecTree) -> bool:
        """Whether observations say which actions are allowed.

        Args:
            observation: their spec.
        """
        discrete = isinstance(self._spec, DiscreteSpec)
        return discrete and isinstance(observation, dict) and ACTION_MASK in observation

    def checked(self, action: Any, first_id: int, where: Callable[[int], str]) -> list[np.ndarray]:
        """Reads actions that environments may see.

        Args:
            action: as for `read`.
            first_id: number of the environment in lane 0, for messages.
            where: says where in its stream a lane is.

        Raises:
            SpecError: an action is NaN, outside its space, or forbidden by its mask.
        """
        actions, scalars = self.read(action), self._scalars
        if scalars is not None and self.mask is None:
            try:  # a look into the table shows that each is a choice, and gives what its environment takes
                self._given = actions[0], list(map(scalars.__getitem__, actions[0].tolist()))
                return actions
            except KeyError:
                pass
        wrong = self.refused(actions)
        if wrong is not None:
            raise SpecError(f"the action for environment {first_id + wrong[0]} has {wrong[1]}{where(wrong[0])}")
        return actions

    def show(self, time_step: TimeStep) -> None:
        """Takes the masks of the next actions from a time step, where it is `masked`.

        Args:
            time_step: the latest.
        """
        mask = time_step.observation.action_mask.numpy().astype(np.bool_)
        mask[time_step.step_type.numpy() == 2] = True
        self.mask = mask

    def read(self, action: Any) -> list[np.ndarray]:
        """Leaf arrays [B, ...] of a batched action, cast to the spec's dtypes, in memory of their own.

        Args:
            action: tensor, array, or a nest shaped like the spec.

        Raises:
            ShapeError: a shape differs from the spec.
            SpecError: the action does not have the spec's structure, or an integer is needed and one is NaN, a
                fraction, or more than the spec's dtype can hold.
        """
        if self._plain and type(action) is torch.Tensor:
            _, shape, dtype, _, _ = self._leaves[0]
            try:
                array = action.numpy()
                if array.shape == shape and array.dtype == dtype:
                    return [array.copy()]
            except (RuntimeError, TypeError):  # on another device, with a gradient, or of no dtype of numpy's
                pass
        return [_array(given, leaf) for given, leaf in zip(flatten(action, self._spec), self._leaves, strict=True)]

    def zeros(self) -> list[np.ndarray]:
        """Leaf arrays [B, ...] of zeros."""
        return [np.zeros(leaf.shape, leaf.dtype) for leaf in self._leaves]

    def per_lane(self, arrays: list[np.ndarray]) -> Any:
        """One action for every lane, as its bare environment takes it.

        Args:
            arrays: from `read`, with nothing to be refused.
        """
        if self._scalars is not None:
            array, given = self._given
            return given if array is arrays[0] else [self._scalars[value] for value in arrays[0].tolist()]
        if self._plain:
            return arrays[0]
        return [unflatten((array[lane] for array in arrays), self._spec) for lane in range(len(arrays[0]))]

    def refused(self, arrays: list[np.ndarray]) -> tuple[int, str] | None:
        """The first action that no environment may see: NaN, infinite, outside its space, or forbidden by its mask.

        Args:
            arrays: from `read`.

        Returns:
            The lane and what is wrong with its action; `None` if all are well.
        """
        for array, leaf in zip(arrays, self._leaves, strict=True):
            found = outside(array, leaf.low, leaf.high, leaf.path)
            if found is not None:
                return found
        return None if self.mask is None else self._forbidden(arrays[0], self.mask)

    def unfit(self, action: Any, observation: Any) -> str | None:
        """What is wrong with one bare action, for a batch size of 1; `None` if nothing.

        Args:
            action: of a bare environment.
            observation: that it is chosen on, bare; `None` if it is not known.

        Raises:
            ShapeError: see `read`.
            SpecError: see `read`.
        """
        if self.masked and observation is not None:
            self.mask = np.asarray(observation[ACTION_MASK], np.bool_)[None]
        rows = self.read(unflatten((np.asarray(leaf)[None] for leaf in flatten(action, self._spec)), self._spec))
        wrong = self.refused(rows)
        return None if wrong is None else wrong[1]

    def _forbidden(self, action: np.ndarray, mask: np.ndarray) -> tuple[int, str] | None:
        start = self._spec.start
        allowed = mask[np.arange(len(action)), action - start]
        if allowed.all():
            return None
        lane = int(np.flatnonzero(~allowed)[0])
        choices = (np.flatnonzero(mask[lane]) + start).tolist()
        return lane, f"value {action[lane]}, which its action_mask forbids; it allows {choices}"


def require_all(env: Any, env_id: torch.Tensor | None, pending: bool) -> None:
    """Refuses actions for some environments of a batch that is stepped as a whole, and those that come too early.

    Args:
        env: the batch.
        env_id: that the actions are for; `None` for all.
        pending: whether actions sent before have not been received.

    Raises:
        EnvError: they have not.
        SpecError: they are not for all environments in order.
    """
    if env_id is not None and env_id.tolist() != list(range(env.batch_size)):
        raise SpecError(
            f"{type(env).__name__} steps its {env.batch_size} environments together, and was sent actions for "
            f"{env_id.tolist()}; leave env_id out"
        )
    if pending:
        raise EnvError("send was called twice without recv; every send needs its recv")


def taken(sent: _T | None) -> _T:
    """What `send` left for `recv`.

    Raises:
        EnvError: nothing.
    """
    if sent is None:
        raise EnvError("recv was called without send; every recv needs its send")
    return sent


def require_idle(sent: Any, what: str) -> None:
    """Refuses what may not happen between `send` and `recv`.

    Args:
        sent: what `send` left for `recv`, if it did.
        what: is refused.

    Raises:
        EnvError: actions sent have not been received.
    """
    if sent is not None:
        raise EnvError(f"{what} between send and recv; receive first")


def tolerant_bounds(spec: TensorSpec) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest action: finite, with room for the rounding of an action that was scaled to them.

    Args:
        spec: of one array.
    """
    dtype = numpy_dtype(spec.dtype)
    low, high = spec.bounds or map(np.array, dtype_limits(dtype))
    if dtype.kind != "f":
        return low, high
    with np.errstate(invalid="ignore", over="ignore"):
        slack = np.nan_to_num(1e-5 * np.maximum(np.abs(low), np.abs(high)), nan=0.0, posinf=0.0)
        ends, limits = np.stack([low - slack, high + slack]), np.finfo(dtype)
        low, high = ends.clip(limits.min, limits.max).astype(dtype)
    return low, high


def outside(array: np.ndarray, low: np.ndarray, high: np.ndarray, path: str = "") -> tuple[int, str] | None:
    """The first action that is NaN or outside its bounds.

    Args:
        array: [B, ...].
        low: the smallest action.
        high: the largest.
        path: of the leaf, for the message.

    Returns:
        The lane and what is wrong with its action; `None` if all are well.
    """
    inside = (array >= low) & (array <= high)  # false for NaN
    return None if inside.all() else _first(~inside, array, low, high, path)


def _first(bad: np.ndarray, array: np.ndarray, low: Any, high: Any, path: str) -> tuple[int, str]:
    place = tuple(np.argwhere(bad)[0].tolist())
    lowest, highest = (np.broadcast_to(bound, array.shape[1:])[place[1:]] for bound in (low, high))
    where = (f" at {path!r}" if path else "") + (f" at index {list(place[1:])}" if place[1:] else "")
    kind = "a number" if np.asarray(low).dtype.kind == "f" else "an integer"
    return place[0], f"value {array[place]}{where}, expected {kind} in [{lowest}, {highest}]"


def _array(given: Any, expected: _Leaf) -> np.ndarray:
    path, shape, dtype, low, high = expected
    array = np.asarray(given.numpy(force=True) if isinstance(given, torch.Tensor) else given)
    if array.shape != shape:
        where = f" at {path!r}" if path else ""
        raise ShapeError(f"the action{where} has shape {array.shape}, expected {shape}")
    if array.dtype == dtype:
        return array.copy()
    if dtype.kind not in "iub" or array.dtype.kind not in "iuf":
        return array.astype(dtype)
    with np.errstate(invalid="ignore"):
        cast = array.astype(dtype)
    changed = cast != array
    if changed.any():
        lane, wrong = _first(changed, array, low, high, path)
        raise SpecError(f"the action for environment {lane} has {wrong}")
    return cast


def batched_time_step(
    rows: Rows, prev_action: Any, env_id: torch.Tensor, info: Any, observation_spec: SpecTree
) -> TimeStep:
    """A time step of tensors that share the rows' memory.

    Args:
        rows: that are not written to any more.
        prev_action: a tensor or a `Batch`.
        env_id: [B].
        info: a `Batch` of numeric entries, or `()`.
        observation_spec: of one bare environment.
    """
    step_type, reward, discount, arrays = rows
    plain = isinstance(observation_spec, TensorSpec)
    observation = _tensor(arrays[0]) if plain else to_batched(arrays, observation_spec)
    # a NamedTuple's own constructor takes twice as long
    fields = (_tensor(step_type), _tensor(reward), _tensor(discount), observation, prev_action, env_id, (), info)
    return tuple.__new__(TimeStep, fields)


class Boundary:
    """Looks at the observations and rewards of some lanes.

    Args:
        observation_spec: of one bare environment.
        rewards: how many numbers the rewards of all lanes are.
        size: how many lanes.
        strict: whether an observation outside its bounds is a failure, and looked for in every step.
        first: number of the first lane's environment, for messages.

    Attributes:
        period: `out_of_place` is to be asked in every so many steps.
    """

    def __init__(self, observation_spec: SpecTree, rewards: int, size: int, *, strict: bool, first: int) -> None:
        self._spec, self._strict, self._first = observation_spec, strict, first
        self._leaves = list(spec_leaves(observation_spec).items())
        self._nested = not isinstance(observation_spec, TensorSpec)
        dtypes = leaf_dtypes(observation_spec)
        # x * 0 is NaN where x is NaN or infinite, and 0 elsewhere: one dot product finds
        # them, and cannot overflow (`vdot`, unlike `dot`, does not warn)
        self._floats = [
            (number, np.zeros(size * leaf.size, dtype))
            for number, ((_, leaf), dtype) in enumerate(zip(self._leaves, dtypes, strict=True))
            if dtype.kind == "f"
        ]
        self._single = self._floats[0][1] if len(self._leaves) == len(self._floats) == 1 else None
        self._no_reward = np.zeros(rewards, np.float32)
        self._bounds = [(number, *leaf.bounds) for number, (_, leaf) in enumerate(self._leaves) if leaf.bounds]
        looked_at = self._nested or bool(self._bounds)
        self.period = (1 if strict else PERIOD) if looked_at else sys.maxsize
        self._told: set[int] = set()

    def finite(self, arrays: Sequence[np.ndarray], reward: np.ndarray) -> bool:
        """Whether no observation or reward is NaN or infinite.

        Args:
            arrays: contiguous [B, ...], one for every leaf.
            reward: [B] or [B, k].
        """
        if self._single is not None:
            return _dot(arrays[0], self._single) == 0.0 and _dot(reward, self._no_reward) == 0.0
        for leaf, zeros in self._floats:
            if _dot(arrays[leaf], zeros) != 0.0:
                return False
        return _dot(reward, self._no_reward) == 0.0

    def require(self, rows: Rows, step: int, where: Callable[[int], str], *, whole: bool = False) -> None:
        """Refuses what a simulator of all lanes emitted, where networks cannot use it.

        Args:
            rows: of all lanes.
            step: their number; see `period`.
            where: says where in its stream a lane is.
            whole: whether all that was emitted are integers.

        Raises:
            NonFiniteError: an observation or reward is NaN or infinite.
            SpecError: an observation is outside its bounds, and the boundary is strict.
        """
        if step % self.period == 0:
            for lane, _, what, advice in self.out_of_place(rows.observation):
                raise SpecError(f"environment {lane} {what}: {advice}")
        if not whole and not self.finite(rows.observation, rows.reward):
            self.require_finite(rows, where, range(len(rows.reward)))

    def require_finite(self, rows: Rows, where: Callable[[int], str], lanes: Sequence[int]) -> None:
        """As `require`, of some lanes, and of nothing but NaN and infinity.

        Args:
            rows: of those lanes.
            where: says where in its stream a lane is.
            lanes: the number of each.
        """
        for row, _, what, advice in self.not_finite(rows.observation, rows.reward):
            raise NonFiniteError(f"environment {lanes[row]} {what}{where(lanes[row])}: {advice}")

    def not_finite(
        self, arrays: Sequence[np.ndarray], reward: np.ndarray, known: Collection[int] = ()
    ) -> list[Failure]:
        """The lanes that emitted NaN or infinity.

        Args:
            arrays: as for `finite`.
            reward: as for `finite`.
            known: lanes that have failed already.
        """
        found: dict[int, Failure] = {}
        names = [f"observation.{path}" if path else "observation" for path, _ in self._leaves]
        for name, array in zip([*names, "reward"], [*arrays, reward], strict=True):
            if array.dtype.kind != "f":
                continue
            for place in np.argwhere(~np.isfinite(array)).tolist():
                lane, element = place[0], place[1:] or ""
                what = f"emitted {name}{element} = {array[tuple(place)]}"
                advice = "look at the environment, or clip what it emits"
                found.setdefault(lane, Failure(lane, "non-finite", what, advice))
        return [failure for lane, failure in found.items() if lane not in known]

    def out_of_place(self, arrays: Sequence[np.ndarray], seen: Sequence[Any] = ()) -> list[Failure]:
        """The lanes with keys that are not in the spec, or with values outside their bounds.

        Values outside are logged once, and are failures only where the boundary is strict.

        Args:
            arrays: as for `finite`.
            seen: the observations of all lanes as the environments gave them, if they are to be checked for keys.
        """
        found: list[Failure] = []
        if self._nested:
            for lane, observation in enumerate(seen):
                wrong = problem(observation, self._spec)
                if wrong:
                    found.append(Failure(lane, "malformed", "emitted another observation", f"it has {wrong}"))
        for leaf, low, high in self._bounds:
            outside = (arrays[leaf] < low) | (arrays[leaf] > high)
            if outside.any():
                found += self._outside(leaf, arrays[leaf], outside, low, high)
        return found

    def _outside(self, leaf: int, array: np.ndarray, outside: np.ndarray, low: Any, high: Any) -> list[Failure]:
        name = "observation" + (f".{self._leaves[leaf][0]}" if self._leaves[leaf][0] else "")
        places = np.argwhere(outside).tolist()
        texts: dict[int, str] = {}
        for place in places:
            index = tuple(place[1:])
            low_, high_ = (np.broadcast_to(bound, array.shape[1:])[index] for bound in (low, high))
            texts.setdefault(place[0], f"{name}{place[1:] or ''} = {array[tuple(place)]} outside [{low_}, {high_}]")
        if self._strict:
            advice = "correct the observation space, or clip the observation"
            return [Failure(lane, "malformed", f"emitted {text}", advice) for lane, text in texts.items()]
        if leaf not in self._told:
            self._told.add(leaf)
            first = min(texts)
            if not is_news(f"{name} is outside"):  # an environment of an evaluation, say
                return []
            _log.warning(
                "environment %d emitted %s (%d of %d values of %s in this step are outside). Networks "
                "get it as it is; correct the space, clip it, or make it an error with strict=True. Said once",
                self._first + first, texts[first], len(places), array.size, name,
            )  # fmt: skip
        return []
