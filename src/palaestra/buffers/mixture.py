"""`MixtureSource`: several buffers as one source, each with its share of every minibatch."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.drawn import OVER_TIME, row_index
from palaestra.buffers.lane_storage import other_actions
from palaestra.buffers.replay import KeepsBuffer, ReplayBuffer, buffer_of
from palaestra.core import Batch, ConfigError, ShapeError, TensorSpec, spec_layout, to_device, tree_map
from palaestra.core.plan import OnPolicy, Plan, Replay

__all__ = ["MixtureSource"]

_SPECS = dict.fromkeys(("observation_spec", "action_spec", "reward_spec"), TensorSpec(()))
_BESIDES = ("env_info", "untransformed")  # kept where the environment is asked to; of the first buffer, if it has them


@final
class MixtureSource:
    """Draws every minibatch from several buffers: own experience beside a data set, for example.

    Args:
        parts: the buffers, or memories, and their shares; shares are numbers above 0 that need not add up to 1.

    Raises:
        ConfigError: there is no buffer, or a share is not above 0.
        ShapeError: observations, actions or rewards of the buffers differ in their parts, shapes or dtypes; or actions
            are raw in one and executed ones in another, or of other bounds.

    Examples:
        >>> from palaestra.core import DiscreteSpec, TensorSpec
        >>> spec = {"observation_spec": TensorSpec((3,)), "action_spec": DiscreteSpec(num=2)}
        >>> online, demonstrations = ReplayBuffer(1000, 2, **spec), ReplayBuffer(500, 1, **spec)
        >>> MixtureSource([(online, 0.75), (demonstrations, 0.25)]).rows(32)
        [24, 8]
    """

    def __init__(self, parts: Sequence[tuple[ReplayBuffer | KeepsBuffer, float]]) -> None:
        self.buffers = [buffer_of(source) for source, _ in parts]
        shares = [share for _, share in parts]
        if not parts or not all(0 < share < float("inf") for share in shares):
            raise ConfigError(f"MixtureSource got the shares {shares}; give at least one, all above 0")
        self.shares = [share / sum(shares) for share in shares]
        """Share of each buffer, in (0, 1]."""
        for number, buffer in enumerate(self.buffers):
            self._require_same_rows(number, buffer)

    def __len__(self) -> int:
        """Complete rows over all buffers."""
        return sum(len(buffer) for buffer in self.buffers)

    def starts(self, length: int) -> np.ndarray:
        """All rows that draws may begin with, numbered as `index` is.

        Args:
            length: so many rows must follow.

        Raises:
            ShapeError: a buffer has none.
        """
        parts = zip(self.buffers, self._firsts(), strict=True)
        return np.concatenate([buffer.starts(length) + first for buffer, first in parts])

    def _require_same_rows(self, number: int, buffer: ReplayBuffer) -> None:
        for name, default in (*_SPECS.items(), ("info_spec", {}), ("stack_num", 1)):
            first, other = (each.options.get(name) or default for each in (self.buffers[0], buffer))
            if name in _SPECS:
                first, other = spec_layout(first), spec_layout(other)
            if first != other:
                raise ShapeError(
                    f"the buffers of a mixture need equal rows, but the {name} of buffer 0 is {first} and "
                    f"that of buffer {number} is {other}"
                )
        parts = {"buffer 0": self.buffers[0].options, f"buffer {number}": buffer.options}
        if number and (said := other_actions(parts)):
            raise ShapeError(said)
        for name in _BESIDES:
            if (spec := self.buffers[0].options.get(f"{name}_spec")) is not None:
                other = buffer.options.get(f"{name}_spec")
                if other is None or spec_layout(other) != spec_layout(spec):
                    raise ShapeError(
                        f"rows of buffer 0 keep {name}, and those of buffer {number} do not, or other parts of it; "
                        "collect the data with the same env.info and env.untransformed, or leave these out"
                    )

    def rows(self, mini_batch_size: int) -> list[int]:
        """How many rows, or sequences, of a minibatch each buffer gives.

        Args:
            mini_batch_size: rows in a minibatch.

        Raises:
            ConfigError: a buffer would give none.
        """
        ends = np.rint(np.cumsum(self.shares) * mini_batch_size).astype(int)
        rows = np.diff(ends, prepend=0).tolist()
        if not all(rows):
            raise ConfigError(
                f"the shares {self.shares} of a minibatch of {mini_batch_size} are {rows} rows; "
                "give a larger minibatch or leave the buffer out"
            )
        return rows

    def draw(self, plan: Plan, generator: torch.Generator) -> Batch:
        """The data of one update; each of its minibatches has the shares.

        Args:
            plan: a replay or offline plan.
            generator: source of the sampled rows.

        Returns:
            What the buffers give, on the device of the first. `index` counts on from buffer to buffer; where some have
            `weight` it is (N P)^-β of each, over the largest of all, and N P is 1 of those drawn evenly.

        Raises:
            ConfigError: the plan is on-policy.
            ShapeError: a buffer has nothing to draw, or the buffers' fields differ.
        """
        if isinstance(plan, OnPolicy):
            raise ConfigError("an on-policy plan learns from one buffer's unroll; a mixture is drawn from")
        if isinstance(plan, Replay) and plan.num_epochs is not None:
            raise ConfigError(f"the plan has num_epochs={plan.num_epochs}, but a mixture is drawn from; leave it out")
        sizes = self.rows(plan.mini_batch_size)
        drawn: list[Batch] = []
        for size, buffer, first in zip(sizes, self.buffers, self._firsts(), strict=True):
            part = buffer.draw(replace(plan, mini_batch_size=size), generator)
            if buffer.device != self.buffers[0].device:
                part = to_device(part, self.buffers[0].device)
            drawn.append(part.replace(index=part.index + first))
        if any("weight" in part for part in drawn):
            largest = [buffer.sampler.largest_weight() for buffer in self.buffers]
            for part, own in zip(drawn, largest, strict=True):
                weight = part.get("weight", torch.ones(len(part.index), device=part.index.device))
                part.__dict__["weight"] = weight * (own / max(largest))  # of the whole draw the largest is 1
        names = [set(part.keys()) for part in drawn]
        if any(other - set(_BESIDES) != names[0] - set(_BESIDES) for other in names):
            raise ShapeError(f"the buffers of a mixture have different fields: {[sorted(other) for other in names]}")
        fields: dict[str, Any] = {}
        for name in drawn[0].keys():  # noqa: SIM118
            dim = int(name in OVER_TIME or plan.mini_batch_length > 1)
            join = functools.partial(_interleaved, sizes=sizes, groups=plan.gradient_steps, dim=dim)
            fields[name] = tree_map(join, *(part[name] for part in drawn))
        fields["index"] = row_index(fields["index"])
        return type(drawn[0]).of(fields)

    def write_back(self, indices: Tensor, priority: Tensor) -> None:
        """Gives priorities to the buffers that the rows came from.

        Args:
            indices: the batch's `index` field.
            priority: non-negative, one for each.

        Raises:
            NonFiniteError: a priority is NaN, infinite or negative.
        """
        firsts = self._firsts()
        indices, priority = indices.cpu(), priority.cpu()
        owner = np.searchsorted(firsts, indices.numpy(), side="right") - 1
        for number, (buffer, first) in enumerate(zip(self.buffers, firsts, strict=True)):
            mine = torch.from_numpy(owner == number)
            if mine.any():
                buffer.write_back(indices[mine] - first, priority[mine])

    def set_progress(self, progress: float) -> None:
        """Moves the schedules of all buffers to a point of the run, in [0, 1]."""
        for buffer in self.buffers:
            buffer.set_progress(progress)

    def _firsts(self) -> list[int]:
        """The number that each buffer's row 0 has here."""
        sizes = [buffer.positions.ring_size * buffer.num_lanes for buffer in self.buffers]
        return [0, *np.cumsum(sizes)[:-1].tolist()]


def _interleaved(*parts: Tensor, sizes: Sequence[int], groups: int, dim: int) -> Tensor:
    """Rows of all parts, so that each of equal consecutive groups has so many of each."""
    along = min(dim, parts[0].ndim - 1)
    split = [part.unflatten(along, (groups, size)) for part, size in zip(parts, sizes, strict=True)]
    return torch.cat(split, along + 1).flatten(along, along + 1)
