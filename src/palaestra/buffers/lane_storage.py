"""The rows of many lanes, one leaf per field: `LaneStorage`; and whether their actions are of one unit."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.leaf import DeviceLeaf, HostLeaf, Leaf, PackedLeaf
from palaestra.buffers.storage import BLOCK_ROWS, BOOKKEEPING, MainMemory, Storage, saved_field
from palaestra.core import Batch, CheckpointError, ConfigError, PackedRows, ShapeError, StepType, TimeStep, as_array
from palaestra.core.spec import SpecTree, TensorSpec, children_of, spec_leaves

__all__ = ["other_actions"]

FIRST, MID, LAST = (int(kind) for kind in StepType)
STEP_FIELDS = ("step_type", "reward", "discount", "observation")
"""What a row keeps of its time step."""
ACTED_FIELDS = ("action", "policy_version", "policy_info")
"""What a row keeps of what was done on it; an open row has none yet."""
EXTRA_FIELDS = ("env_info", "untransformed")
"""Fields that a row keeps besides, where a buffer was made for them."""


class LaneStorage:
    """Preallocated `[rows, lanes, ...]` tensors: a ring of rows for each lane, side by side.

        place      lane 0      lane 1
          0      o5 a5 -> .  o5 a5 -> .    row number = place * lanes + lane
          1      o6 a6 -> .  o6 a6 -> .    newest complete rows
          2      o7 .        o7 .          open rows: their actions are not known yet
          3      o3 a3 -> .  o3 a3 -> .    oldest complete rows, overwritten next
          4      o4 a4 -> .  o4 a4 -> .

    Row t has the time step `o` (with the reward that led to it) and the action `a` taken on it, so a transition is two
    neighbours. This class knows no write positions and no episodes but for the FIRST rows that end stacks of frames.

    Args:
        rows: rows of each lane.
        lanes: number of lanes.
        specs: spec tree of every field by name.
        stacks: whether stacks of frames are stored whole; otherwise only the newest frame of each, and what is read is
            put together from the rows before, up to the FIRST one (field `step_type`).
        compression: of observations that are pictures, where no stacks are stored whole; see `RowOptions`.
        name: of this set of tensors, where they are files.
        storage: where the tensors lie; main memory by default.

    Raises:
        ConfigError: there is no room for them, or no picture to compress.
        MissingExtraError: the codec is not installed.
    """

    def __init__(
        self,
        rows: int,
        lanes: int,
        specs: Mapping[str, SpecTree],
        *,
        name: str = "rows",
        stacks: bool = True,
        compression: str = "none",
        storage: Storage | None = None,
    ) -> None:
        self.lanes, self._name, self._storage = lanes, name, storage or MainMemory()
        self.device = self._storage.device
        """Device of what is read; `None` for main memory."""
        self.specs = dict(specs)
        self._children: dict[str, list[str]] = {}
        self._stacked: dict[str, int] = {}
        self._shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for field, spec in specs.items():
            self._learn_structure(field, spec)
            for path, leaf in spec_leaves(spec, field).items():
                self._stacked[path] = 1 if stacks else leaf.stacked
                self._shapes[path] = leaf.shape if self._stacked[path] == 1 else leaf.shape[1:], leaf.dtype
        if compression not in ("none", "lz4"):
            raise ConfigError(f"compression is {compression!r}; it must be 'none' or 'lz4'")
        packed = compression != "none" and not stacks
        self._packed = {path for path in self._shapes if packed and self._is_picture(path)}
        if packed and not self._packed:
            raise ConfigError(
                "compression is for pictures, uint8 or bool with two dimensions or more, and observations have the "
                f"leaves {[leaf.shape for leaf in spec_leaves(specs['observation']).values()]}; leave it out"
            )
        self.extras = tuple(name for name in EXTRA_FIELDS if name in specs)
        """Fields of a time step that only some runs keep."""
        self.step_fields = (*STEP_FIELDS, *self.extras)
        """What a row keeps of its time step here."""
        self._leaves = self._made(rows)

    def _made(self, rows: int) -> dict[str, Leaf]:
        shapes = {path: ((rows, self.lanes, *shape), dtype) for path, (shape, dtype) in self._shapes.items()}
        storage, packed = self._storage, {path: shapes.pop(path) for path in self._packed}
        # A buffer grows while a policy acts, and what is learned from must not be an inference tensor.
        with torch.inference_mode(False):
            leaves: dict[str, Leaf] = {
                path: HostLeaf(tensor, self._stacked[path], pinned=storage.pinned)
                if storage.device is None or path in BOOKKEEPING
                else DeviceLeaf(tensor, self._stacked[path])
                for path, tensor in storage.allocate(self._name, shapes).items()
            }
            for path, (shape, dtype) in packed.items():
                blocks = storage.allocate_blocks(self._name, path, shape, dtype)
                leaves[path] = PackedLeaf(rows, blocks, self._stacked[path], pinned=storage.pinned)
        leaves = {path: leaves[path] for path in self._shapes}  # in their order
        if "step_type" in leaves:
            written = [leaves.get(name) for name in ("action", *STEP_FIELDS)]
            plain = [leaf for leaf in written if isinstance(leaf, HostLeaf) and leaf.stacked == 1]
            # where each field is one array in main memory, `write_step` compares and writes them at once
            self._arrays = [leaf.array for leaf in plain] if len(plain) == len(written) else None
            self._expected = tuple(part for leaf in plain for part in (leaf.numpy_dtype, leaf.row_shape))
            kinds, versions = leaves["step_type"], leaves["policy_version"]
            assert isinstance(kinds, HostLeaf) and isinstance(versions, HostLeaf)
            self.step_types = kinds.array.reshape(-1)
            """[rows * lanes] of all rows: a view of main memory, on every device."""
            self.policy_versions = versions.array
            """[rows, lanes] ditto."""
        return leaves

    def _is_picture(self, path: str) -> bool:
        shape, dtype = self._shapes[path]
        seen = path.split(".")[0] in ("observation", "untransformed")
        return seen and len(shape) >= 2 and dtype in (torch.uint8, torch.bool)

    @property
    def size_bytes(self) -> int:
        """Memory of all fields."""
        return sum(leaf.nbytes for leaf in self._leaves.values())

    @property
    def block_rows(self) -> int:
        """Rows of a block where some are compressed, else 1."""
        return BLOCK_ROWS if self._packed else 1

    @property
    def tensors(self) -> dict[str, Tensor | PackedRows]:
        """All rows of every leaf by its path: views of them, or compressed as they are."""
        return {path: leaf.saved() for path, leaf in self._leaves.items()}

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Puts rows back at the front.

        Args:
            tensors: by `field.` and path, as `tensors` has them or compressed in another way.

        Raises:
            CheckpointError: one is missing or does not fit.
        """
        for path, leaf in self._leaves.items():
            shape = (leaf.rows, self.lanes, *self._shapes[path][0])
            saved = saved_field(tensors, path, shape, leaf.dtype)
            if len(saved) > leaf.rows:
                raise CheckpointError(
                    f"the saved buffer field {path!r} has {len(saved)} rows, but this one {leaf.rows}"
                )
            leaf.load(saved)

    # -- writing

    def checked(self, name: str, value: Any, *leading: int) -> list[tuple[str, Any]]:
        """The arrays or tensors of a value, each with the path of its leaf.

        Nothing is cast or broadcast: what an assignment would do in silence is refused.

        Args:
            value: a tensor or array; for a nested field a batch, mapping or tuple of them.
            leading: its leading dimensions; none stands for `[lanes]`.

        Raises:
            ShapeError: structure, shape or dtype is not the field's; the message says what was given and is needed.
        """
        leaf = self._leaves.get(name)
        if leaf is None:
            return [pair for path, part in self._parts(name, value) for pair in self.checked(path, part, *leading)]
        given = leaf.given(value)
        shape = (*leading, *leaf.row_shape[1:]) if leading else leaf.row_shape
        if given.shape != shape or given.dtype not in (leaf.numpy_dtype, leaf.dtype):
            _refuse(name, given, leaf.numpy_dtype, shape)
        if leaf.stacked > 1:
            given = given[(*(slice(None),) * (len(leading) or 1), -1)]
        return [(name, given)]

    def checked_step(self, time_step: TimeStep, *leading: int) -> list[tuple[str, Any]]:
        """The fields of a time step that a row keeps, as `checked` gives them.

        Args:
            time_step: of all lanes, or of so many.
            leading: see `checked`.

        Raises:
            ShapeError: see `checked`.
        """
        found = [pair for name in STEP_FIELDS for pair in self.checked(name, getattr(time_step, name), *leading)]
        return [*found, *self._checked_extras(time_step, *leading)] if self.extras else found

    def _checked_extras(self, time_step: TimeStep, *leading: int) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        for name in self.extras:
            value, spec = getattr(time_step, name), self.specs[name]
            if name == "env_info":
                value = _info_row(value, list(spec), leading[0] if leading else self.lanes)
            elif value == ():
                raise ShapeError(
                    "rows are to keep `untransformed`, and a time step has none; make the environment with "
                    "EnvConfig(untransformed=True)"
                )
            else:
                value = Batch.of({key: getattr(value, key) for key in spec})
            found += self.checked(name, value, *leading)
        return found

    def write_step(self, action: Any, row: int, time_step: TimeStep, after: int) -> None:
        """Writes a step of all lanes; if one value is refused, none is written.

        Args:
            action: [lanes, ...].
            row: where it is written.
            time_step: what followed, [lanes, ...].
            after: where its fields are written.

        Raises:
            ShapeError: see `checked`.
        """
        kind, reward, discount, seen = time_step.step_type, time_step.reward, time_step.discount, time_step.observation
        extras = self._checked_extras(time_step) if self.extras else ()
        if self._arrays:
            try:
                if action.__class__ is Tensor:  # as all are then: views of main memory
                    action, kind, reward = action.numpy(), kind.numpy(), reward.numpy()
                    discount, seen = discount.numpy(), seen.numpy()
                given = (action.dtype, action.shape, kind.dtype, kind.shape, reward.dtype, reward.shape)
                given += (discount.dtype, discount.shape, seen.dtype, seen.shape)
            except (AttributeError, TypeError):  # a list, a number, a nest, or what lies on a device
                given = None
            if given == self._expected:
                actions, kinds, rewards, discounts, observations = self._arrays
                actions[row] = action
                kinds[after], rewards[after], discounts[after], observations[after] = kind, reward, discount, seen
                for path, given in extras:
                    self._leaves[path][after] = given
                return
        acted, arrived = self.checked("action", action), self.checked_step(time_step)
        for where, pairs in ((row, acted), (after, arrived)):
            for path, given in pairs:
                self._leaves[path][where] = given

    def write(self, checked: Iterable[tuple[str, Any]], numbers: np.ndarray | slice) -> None:
        """Writes rows of some lanes, or consecutive ones of all.

        Args:
            checked: from `checked`.
            numbers: row numbers `t * lanes + b`, of the shape of the leading dimensions; or a slice of ring positions.
        """
        for path, given in checked:
            self._leaves[path].write(numbers, given)

    def zero(self, names: Iterable[str], numbers: np.ndarray | slice) -> None:
        """Writes zeros.

        Args:
            names: of the fields.
            numbers: row numbers, or a slice of ring positions.
        """
        names = set(names)
        for path, leaf in self._leaves.items():
            if path.split(".")[0] in names:
                leaf.write(numbers, 0)

    def move(self, source: np.ndarray | slice, target: np.ndarray | slice) -> None:
        """Copies rows of every field to other places.

        Args:
            source: row numbers, or a slice of ring positions.
            target: as many.
        """
        for leaf in self._leaves.values():
            leaf.move(source, target)

    def resize(self, rows: int, order: np.ndarray) -> None:
        """Takes new tensors of another length, with rows of the old ones at their front.

        Args:
            rows: of each lane.
            order: [n, lanes] which rows of each lane.
        """
        old, self._leaves = self._leaves, self._made(rows)
        for path, leaf in old.items():
            rows_of = leaf.take(order * self.lanes + np.arange(self.lanes))
            self._leaves[path].write(slice(0, len(order)), self._leaves[path].given(rows_of))

    # -- reading

    def take(self, name: str, index: np.ndarray) -> Any:
        """A copy of one field at flat row numbers.

        Args:
            index: row numbers `t * lanes + b`, of any shape; past the end they start again at the front.

        Returns:
            A tensor of shape `[*index.shape, ...]`, or a `Batch` of them for a nested field.
        """
        if name not in self._leaves:
            return Batch.of({key: self.take(f"{name}.{key}", index) for key in self._children[name]})
        leaf = self._leaves[name]
        return self._handed_out(leaf.take(index) if leaf.stacked == 1 else self._frames(leaf, index, leaf.stacked))

    def take_pair(self, name: str, rows: np.ndarray) -> tuple[Any, Any]:
        """Copies of one field at rows and at their successors; both share the memory of frames that are in both.

        Args:
            rows: [2, N] row numbers, and those of the rows after them.

        Returns:
            What `take` gives for the first, and for the second.
        """
        leaf = self._leaves.get(name)
        if leaf is None:
            pairs = {key: self.take_pair(f"{name}.{key}", rows) for key in self._children[name]}
            first, second = ({key: pair[place] for key, pair in pairs.items()} for place in range(2))
            return Batch.of(first), Batch.of(second)
        if leaf.stacked == 1 or (self.step_types.take(rows[1], mode="wrap") == FIRST).any():
            return self.take(name, rows[0]), self.take(name, rows[1])
        frames = self._handed_out(self._frames(leaf, rows[1], leaf.stacked + 1))
        return frames[:, :-1], frames[:, 1:]

    def _handed_out(self, rows: Tensor) -> Tensor:
        return rows if self.device is None else rows.to(self.device, non_blocking=True)

    def view(self, name: str, rows: slice) -> Any:
        """Consecutive rows of all lanes: a view where they lie together, else a copy.

        Args:
            rows: a slice of ring positions.
        """
        leaf = self._leaves.get(name)
        if leaf is None:
            return Batch.of({key: self.view(f"{name}.{key}", rows) for key in self._children[name]})
        if leaf.stacked > 1 or not isinstance(leaf, HostLeaf | DeviceLeaf):
            return self.take(name, np.arange(rows.start, rows.stop)[:, None] * self.lanes + np.arange(self.lanes))
        found = leaf.tensor[rows]  # bookkeeping is in main memory
        return found if self.device is None else found.to(self.device, non_blocking=True)

    def parts(self, name: str) -> list[str]:
        """Names of the parts of a nested field; none of a plain one."""
        return self._children.get(name, [])

    # -- stacks of frames

    def _frames(self, leaf: Leaf, index: np.ndarray, depth: int) -> Tensor:
        """Frames up to rows: [*index.shape, depth, ...], the newest last, zeros from before the newest episode."""
        back = np.arange(depth - 1, -1, -1)
        index = np.asarray(index)[..., None]
        rows = index - self.lanes * back
        begins = self.step_types.take(rows[..., :0:-1], mode="wrap") == FIRST
        if not begins.any():
            return leaf.take(rows)
        reach = np.where(begins.any(-1, keepdims=True), begins.argmax(-1)[..., None], depth - 1)
        return leaf.take_frames(rows, back > reach)

    def write_stacks(self, name: str, value: Any, chosen: np.ndarray, numbers: np.ndarray) -> None:
        """Writes the older frames of stacks to the rows before.

        Args:
            name: of a field with stacked frames.
            value: `[lanes, stacked, ...]`, or a nest of them.
            chosen: [lanes] which of them.
            numbers: [n, number of chosen] row numbers, oldest first, for the frames before the newest; a leaf with
                shorter stacks has frames for the last of them.
        """
        for path, given in self._stacked_leaves(name, value):
            older = given[chosen, :-1].swapaxes(0, 1)
            self._leaves[path].write(numbers[len(numbers) - len(older) :], older)

    def stacks_agree(self, name: str, value: Any, first: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Whether stacks will be read as they are given.

        Args:
            name: of a field with stacked frames.
            value: `[N, stacked, ...]`, or a nest of them.
            first: [N] whether an episode begins.
            numbers: [N] where they will be written.

        Returns:
            [N] booleans.
        """
        agrees = np.ones(len(numbers), bool)
        for path, given in self._stacked_leaves(name, value):
            leaf = self._leaves[path]
            # at the row before, without its oldest frame
            older = as_array(self._frames(leaf, numbers - self.lanes, leaf.stacked))[:, 1:]
            expected = np.where(first.reshape(-1, *(1,) * (older.ndim - 1)), 0, older)
            agrees &= (given[:, :-1] == expected).reshape(len(numbers), -1).all(1)
        return agrees

    def _stacked_leaves(self, name: str, value: Any) -> list[tuple[str, np.ndarray]]:
        leaf = self._leaves.get(name)
        if leaf is None:
            return [pair for path, part in self._parts(name, value) for pair in self._stacked_leaves(path, part)]
        return [(name, np.asarray(as_array(value)))] if leaf.stacked > 1 else []

    # -- the structure of nested fields

    def _parts(self, name: str, value: Any) -> list[tuple[str, Any]]:
        """The children of a nested value by path, in the order of the spec."""
        children = self._children[name]
        if isinstance(value, tuple):
            value = {str(i): part for i, part in enumerate(value)}
        given = list(value.keys()) if isinstance(value, Batch | Mapping) else type(value).__name__
        if not isinstance(value, Batch | Mapping) or set(value.keys()) != set(children):
            raise ShapeError(f"{name} has the leaves {given}, but the buffer was made for {children}")
        return [(f"{name}.{key}", value[key]) for key in children]

    def _learn_structure(self, path: str, spec: SpecTree) -> None:
        if isinstance(spec, TensorSpec):
            return
        children = children_of(spec)
        self._children[path] = list(children)
        for key, child in children.items():
            self._learn_structure(f"{path}.{key}", child)


def _info_row(info: Any, names: Sequence[str], lanes: int) -> Batch:
    """Entries of `info` as rows keep them: float32 [lanes], 0 where one was not reported."""
    given = info if isinstance(info, Batch) else Batch()
    columns = {name: given.get(name) for name in names}
    return Batch.of(
        {
            name: torch.zeros(lanes) if column is None else torch.nan_to_num(column.to(torch.float32), nan=0.0)
            for name, column in columns.items()
        }
    )


def _refuse(name: str, given: Any, dtype: np.dtype, shape: tuple[int, ...]) -> NoReturn:
    kind = str(given.dtype).removeprefix("torch.")
    raise ShapeError(
        f"{name} is {kind} of shape {tuple(given.shape)}, but the buffer was made for {dtype} of shape {shape}"
    )


def other_actions(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """Why rows cannot be learned from together: equal numbers are other actions; nothing where they are the same.

    A dtype is no unit, and a spec without bounds fits any. Where one side does not say what was executed, actions with
    the spec of what the other side executes are executed ones.

    Args:
        parts: two, by their names in messages: what rows consist of, see `RowOptions`; or of a policy its
            `raw_action_spec` and, as `executed_spec`, its `action_spec`.

    Examples:
        >>> from palaestra.core import BoundedSpec
        >>> torque, sampled = (BoundedSpec((1,), minimum=-end, maximum=end) for end in (2, 1))
        >>> raw, done = ({"action_spec": spec, "executed_spec": torque} for spec in (sampled, torque))
        >>> other_actions({"one": raw, "the other": raw}), other_actions({"one": raw, "the other": done}) > ""
        ('', True)
    """
    kept, told = ([rows.get(name) for rows in parts.values()] for name in ("action_spec", "executed_spec"))
    executed = [told[0] or told[1], told[1] or told[0]]
    raw = [spec is not None and _are_raw(own, spec) for own, spec in zip(kept, executed, strict=True)]
    if raw[0] == raw[1] and _alike(*kept) and (not all(told) or _alike(*told)):
        return ""
    one, other = (
        f"of {name} are {own}" + (f", raw ones of {spec}" if is_raw else ", as executed" if spec else "")
        for name, own, spec, is_raw in zip(parts, kept, executed, raw, strict=True)
    )
    return (
        f"the actions {one}, and those {other}: equal numbers are other actions. Bring them into one unit with "
        "`palaestra.buffers.with_actions(buffer, spec, convert, executed_spec=policy.action_spec)`: raw ones are "
        "executed with spec=policy.action_spec and convert=policy.env_action of the policy that sampled them; executed "
        "ones are raw with spec=policy.raw_action_spec and `palaestra.policies.raw_actions` in `convert`"
    )


def _are_raw(kept: SpecTree, executed: SpecTree) -> bool:
    """Whether actions are kept otherwise than executed; those that are executed in [-1, 1] are the same numbers raw."""

    def same(own: TensorSpec, done: TensorSpec) -> bool:
        low, high = done.bounds or (0, 0)
        as_executed = ((low == -1) & (high == 1)) | ~(
            np.isfinite(low) & np.isfinite(high)
        )  # `ActionRange` leaves these
        return _fit(own, done) and bool(np.all(as_executed) or (own.bounds is None) == (done.bounds is None))

    own, done = spec_leaves(kept), spec_leaves(executed)
    return own.keys() != done.keys() or not all(same(own[path], leaf) for path, leaf in done.items())


def _alike(one: SpecTree, other: SpecTree) -> bool:
    own, others = spec_leaves(one), spec_leaves(other)
    return own.keys() == others.keys() and all(_fit(leaf, others[path]) for path, leaf in own.items())


def _fit(one: TensorSpec, other: TensorSpec) -> bool:
    if one == other or one.shape != other.shape or not (one.dtype.is_floating_point and other.dtype.is_floating_point):
        return one == other
    return one.bounds is None or other.bounds is None or np.allclose(one.bounds, other.bounds)
