"""Layouts in which a buffer hands out what is drawn, and data of elsewhere as it takes them."""

import functools
import io
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from palaestra.buffers.lane_storage import FIRST, LAST
from palaestra.core import Batch, ShapeError, SpecTree, TensorSpec, TimeStep, as_array, import_extra, numpy_dtype

__all__ = ["RowIndex", "RowNumbers", "Unroll", "Windows", "row_index"]

_log = logging.getLogger(__name__)
OVER_TIME = ("step_type", "reward", "discount", "env_info", "untransformed", "actions")
"""Fields of `Windows` that are [n+1, N, ...]."""


class Unroll(Batch):
    """Sequences in time order: T steps with an action each, and the step after them to bootstrap from.

    There are more fields where they apply: `state`, the policy's hidden state before a row, `[T, B, ...]` in an unroll
    and `[1, N, ...]` in sampled sequences, so that `state[0]` belongs before the first row; `index` `[N]` of a
    sequence's first row, for `write_back`; `weight` `[N]` float32, by which a loss is multiplied where rows were
    drawn by priority; `env_info` and `untransformed` `[T+1, B, ...]` where rows keep them; and for a plan that wants
    returns `return_to_go` `[N]` of the first row, NaN where an end of its episode is not there, `time` `[N]`, how
    many steps of its episode came before, and `episode_stats` `[5, N]`, the same in every column: how many complete
    episodes the buffer has, their least, greatest and mean return, and the most steps of one; zeros without any.
    """

    step_type: Tensor
    """[T+1, B] int32."""
    reward: Tensor
    """[T+1, B] float32; row t is the reward of the action in row t - 1."""
    discount: Tensor
    """[T+1, B] float32 continuation."""
    observation: Any
    """[T+1, B, ...]."""
    action: Any
    """[T, B, ...], as the policy sampled it."""
    policy_info: Batch
    """[T, B, ...], what the policy's `behaviour` computed."""
    policy_version: Tensor
    """[T, B] int32, the version that acted."""
    valid: Tensor
    """[T, B] float32, 1 where the row may be learned from."""


class Windows(Batch):
    """Flat rows for n-step learning: N starts, each with the rewards that follow it.

    Rows that were drawn by priority have a field `weight`, `[N]` float32, by which a loss is multiplied. Where rows
    keep them, `env_info` and `untransformed` are `[n+1, N, ...]`, as `reward`. Where a plan asks for them, `actions`
    are `[n, N, ...]`, of no meaning behind an end.
    """

    observation: Any
    """[N, ...]."""
    action: Any
    """[N, ...]."""
    next_observation: Any
    """[N, ...] at the row to bootstrap from: n steps later, or where the episode ended. Stacks of frames that are one
    step apart share the memory of the frames that are in both; copy before you write to one of them."""
    reward: Tensor
    """[n+1, N] of the rows from the start on; row 0 belongs to the time before."""
    discount: Tensor
    """[n+1, N] continuation."""
    step_type: Tensor
    """[n+1, N]."""
    policy_info: Batch
    """[N, ...]."""
    index: Tensor
    """[N] int64, the start's row in the buffer, for `write_back`."""


def warn_of_resets(ends: int) -> None:
    """Warns of episodes that are followed by their own last observation; of none it says nothing.

    Args:
        ends: how many.
    """
    if ends:
        _log.warning(
            "after %s ends of episodes the next row begins with the observation that ended it; a vector environment "
            "that resets itself gives such rows, whose action it ignored: leave out the row after each end",
            ends,
        )


FLAG = TensorSpec((), torch.bool)
"""Of `terminated` and `truncated`."""


def _refuse_modulo(self: Any, *others: Any) -> Any:
    raise TypeError(
        "row numbers were taken modulo something, as in buffer[(i + 2) % len(buffer)]; that would be another row, "
        "for the ring has places besides the rows that it holds, and its lanes lie side by side. Write "
        "buffer.following(i, 2), which stops at the end of an episode; np.asarray(i) is a plain array"
    )


class RowNumbers(np.ndarray):
    """Row numbers of a buffer: an array whose sums are `MovedNumbers`."""

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, out: Any = (), **named: Any) -> Any:
        if ufunc is np.remainder and any(isinstance(one, MovedNumbers) for one in given):
            _refuse_modulo(self)
        named |= {"out": tuple(map(np.asarray, out))} if out else {}
        found = getattr(ufunc, method)(
            *(np.asarray(one) if isinstance(one, RowNumbers) else one for one in given), **named
        )
        return found.view(MovedNumbers) if ufunc in (np.add, np.subtract) and np.ndim(found) else found


class MovedNumbers(RowNumbers):
    """Row numbers and something added: other rows, which only `following` finds. No buffer takes them."""


class _Index(Tensor):
    __torch_function__: Any = nn.Parameter.__torch_function__  # operations give plain tensors, but for sums

    def add(self, other: Any, **named: Any) -> Tensor:
        return torch.add(self, other, **named).as_subclass(MovedIndex)

    def sub(self, other: Any, **named: Any) -> Tensor:
        return torch.sub(self, other, **named).as_subclass(MovedIndex)

    __add__ = __radd__ = __iadd__ = add
    __sub__ = __isub__ = sub

    def __deepcopy__(self, memo: Any) -> Any:
        return self.as_subclass(Tensor).clone().as_subclass(type(self))


class MovedIndex(_Index):
    """The same as a tensor."""

    __mod__: Any = _refuse_modulo
    remainder: Any = _refuse_modulo


class RowIndex(_Index):
    """Row numbers as a tensor, the `index` of what is drawn; what is made of them is plain, but for sums."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)


def given_rows(index: Any) -> np.ndarray:
    """Row numbers that a user gives, as an array.

    Args:
        index: of any kind that a buffer takes.

    Raises:
        TypeError: they are sums of row numbers and something.
    """
    if isinstance(index, MovedNumbers | MovedIndex):
        raise TypeError(
            "something was added to row numbers, as in buffer[i + 1]; those are rows of other lanes, of other episodes "
            "or none, for lanes lie side by side in a ring. Write buffer.following(i, 1), or buffer.prev(i), which "
            "stay in their episode; np.asarray(i) is a plain array"
        )
    return np.asarray(as_array(index))


def row_index(rows: np.ndarray | Tensor) -> Tensor:
    """Row numbers as the `index` of a batch.

    Args:
        rows: [N] int64; a tensor that is of another kind already stays what it is.
    """
    index = torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows
    return index.as_subclass(RowIndex) if type(index) is Tensor else index


def numbers_like(given: Any, rows: np.ndarray) -> Any:
    """Row numbers as what was given: a tensor, an array or a number.

    Args:
        given: of the kind that is wanted.
        rows: [N] row numbers, or one.
    """
    if isinstance(given, Tensor):
        return row_index(np.asarray(rows)).to(given.device)
    return rows.view(RowNumbers) if isinstance(given, np.ndarray) else int(rows)


@functools.cache
def offsets(steps: int, lanes: int) -> np.ndarray:
    """[steps + 1, 1] from a row number to those of the rows after it; past the end of the ring, `take` wraps.

    Args:
        steps: so many rows.
        lanes: of the buffer.
    """
    found = lanes * np.arange(steps + 1)[:, None]
    found.flags.writeable = False
    return found


def all_valid(kinds: np.ndarray) -> np.ndarray:
    """[n, N] whether all rows up to here are valid starts: `ops.valid_starts`, accumulated.

    Args:
        kinds: [n+1, N] step types.
    """
    return np.logical_and.accumulate((kinds[:-1] != LAST) & (kinds[1:] != FIRST), axis=0)


def lane_step(kind: int, reward: Tensor, discount: float, observation: Any) -> TimeStep:
    """A time step of one lane.

    Args:
        kind: its step type.
        reward: [1, ...].
        discount: 0 where the episode terminated, else 1.
        observation: leaves [1, ...].
    """
    return TimeStep(torch.tensor([kind], dtype=torch.int32), reward, torch.tensor([float(discount)]), observation)


def cast_rows(name: str, value: Any, spec: SpecTree, rows: int | None = None, *, finite: bool = True) -> Any:
    """Data `[rows, ...]` as `[rows, 1, ...]` of a spec's structure and dtypes; without `rows` one row, as `[1, ...]`.

    Args:
        name: of the data, for messages.
        value: arrays, tensors or lists in the structure of the spec; of a dict also a list of rows, each a dict.
        spec: without leading dimensions.
        rows: how many there must be; `None` for one without a leading dimension.
        finite: whether NaN and infinity are refused, which nothing could be learned from.

    Raises:
        ShapeError: parts are missing, a shape is another one, a number is not finite, or the dtype cannot hold the
            values: floats may be rounded to shorter floats, and no value is changed otherwise.
    """
    if not isinstance(spec, TensorSpec):
        items = spec.items() if isinstance(spec, dict) else enumerate(spec)
        try:
            parts = value if isinstance(value, Mapping | Batch) else {str(i): part for i, part in enumerate(value)}
            if rows and parts is not value and isinstance(spec, dict) and all(_has(row, spec) for row in value):
                parts = {key: [row[key] for row in value] for key in spec}
            one = functools.partial(cast_rows, rows=rows, finite=finite)
            cast = {str(key): one(f"{name}.{key}", parts[str(key)], child) for key, child in items}
            return Batch.of(cast)
        except (KeyError, IndexError, TypeError):
            raise ShapeError(f"{name} do not have the parts of {spec}") from None
    array, leading = np.asarray(as_array(value)), () if rows is None else (rows,)
    if array.shape != (*leading, *spec.shape) and array.shape and all(map(_is_jpeg, array)):
        array = _pictures(name, array, spec.shape)
    if array.shape != (*leading, *spec.shape):
        raise ShapeError(f"{name} have the shape {array.shape}, but {(*leading, *spec.shape)} is needed")
    dtype, numeric = numpy_dtype(spec.dtype), array.dtype.kind in "biuf"
    with np.errstate(invalid="ignore", over="ignore"):  # NaN as an integer, or what is looked at below
        cast = array.astype(dtype) if numeric else array
    rounded = array.dtype.kind == dtype.kind == "f"
    if not (rounded or (numeric and (np.can_cast(array.dtype, dtype) or np.array_equal(cast, array)))):
        raise ShapeError(
            f"{name} are {array.dtype}, but {dtype} is needed, which cannot hold their values; give data of this "
            "environment, or convert them first"
        )
    if finite and dtype.kind == "f" and (bad := ~np.isfinite(cast)).any():
        row = f" in row {np.argwhere(bad)[0][0]}" if leading else ""
        raise ShapeError(f"{name} have the value {array[bad][0]}{row}; give numbers that {dtype} holds, or none")
    low, high = (cast, cast) if dtype.kind == "f" or spec.bounds is None else spec.bounds
    if (bad := (cast < low) | (cast > high)).any():
        raise ShapeError(f"{name} have the value {cast[bad][0]}, which is none of {spec}")
    return torch.from_numpy(cast).unsqueeze(len(leading))  # [rows, 1, ...] or [1, ...]


def _has(row: Any, spec: Mapping[str, SpecTree]) -> bool:
    return isinstance(row, Mapping) and spec.keys() <= row.keys()


def _is_jpeg(row: Any) -> bool:
    return isinstance(row, np.ndarray) and row.dtype == np.uint8 and row[:2].tobytes() == b"\xff\xd8"


def _pictures(name: str, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Pictures of the JPEG files that Minari made of them."""
    image = import_extra("PIL.Image", "offline", "reading pictures of a Minari dataset")
    pictures = [np.asarray(image.open(io.BytesIO(row.tobytes()))) for row in rows]
    if len(shape) > 1 and (odd := [one.shape for one in pictures if (*one.shape, 1)[:3] != (*shape, 1)[:3]]):
        raise ShapeError(f"{name} lie there as pictures of the shape {odd[0]}, but {shape} is needed")
    if len(shape) < 2 or min(shape[:2]) < 32:  # which Minari 0.5.3 takes for codes, such as MiniGrid's, when it reads
        raise ShapeError(
            f"{name} lie there as JPEG, as which Minari stores all of uint8, and that has changed the numbers of these "
            f"vectors or small pictures of shape {shape} beyond use; record them as another dtype"
        )
    _log.warning("%s lie there as JPEG, as which Minari stores all of uint8; that changed them a little", name)
    return np.stack(pictures).reshape(len(rows), *shape)
