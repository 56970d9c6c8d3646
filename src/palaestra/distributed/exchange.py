"""`Exchange`: ranks that make one gradient step together, each with the gradients of its shards, over gloo."""

import contextlib
import hashlib
import json
import mmap
import os
import socket
import traceback
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch import Tensor

from palaestra.algorithms import GradientAlgorithm, Gradients, StepResult
from palaestra.core import Batch, PalaestraError, shards

__all__ = ["BrokenGroupError", "Exchange", "GroupSeat", "fingerprint", "listening_store"]

_dist: Any = torch.distributed  # what its stubs leave out is used here
_GO, _STOP = "go", "stop"
_TURNS = 2  # parts of a rank's memory: others may still read what it told last when it writes again
_MEETING_S = 5.0  # in which ranks connect that all are there: longer takes one who was lost on its way


class BrokenGroupError(PalaestraError):
    """A rank of a group is gone or silent, so that the others cannot go on with it."""


class GroupSeat(NamedTuple):
    """A rank's place in a group."""

    address: str
    """Of the store where ranks find each other."""
    port: int
    """Likewise."""
    name: str
    """Of the group; no other has it."""
    rank: int
    """0 is the one whose result counts."""
    size: int
    """Ranks in the group."""
    num_shards: int
    """Into how many parts every minibatch is cut, whatever the size."""
    timeout_s: float
    """A rank that keeps the others waiting for longer is given up."""


def _limit(timeout_s: float) -> timedelta:
    """What clocks can count."""
    return timedelta(seconds=min(timeout_s, 1e6))


def listening_store(address: str, timeout_s: float) -> Any:
    """A store in this process, where ranks find each other; it listens at this address alone.

    Args:
        address: of this machine, as the ranks reach it.
        timeout_s: of whoever waits for a key.
    """
    listener = socket.create_server((address, 0), backlog=512)
    port = listener.getsockname()[1]
    return _dist.TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=_limit(timeout_s),
        master_listen_fd=listener.detach(),
    )


def say_whether(store: Any, name: str, complete: bool) -> None:
    """Lets the ranks of a group begin, or tells them that it is not to be.

    Args:
        store: of the driver.
        name: of the group.
        complete: whether all ranks are there.
    """
    store.set(f"{name}/begin", _GO if complete else _STOP)


class _Memory:
    """A file without a name that ranks of one machine map; it is gone with the last of them, however that ended."""

    def __init__(self, path: str = "") -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CLOEXEC) if path else os.memfd_create("palaestra", os.MFD_CLOEXEC)
        self._end = weakref.finalize(self, os.close, self.file)
        self.bytes = torch.empty(0, dtype=torch.uint8)

    def mapped(self, size: int) -> Tensor:
        """All of it, of so many bytes; its owner has made it as large."""
        if size > len(self.bytes):
            self.bytes = torch.frombuffer(mmap.mmap(self.file, size), dtype=torch.uint8)
        return self.bytes

    def grown(self, size: int) -> Tensor:
        """All of it, of so many bytes at least; for its owner."""
        if size > len(self.bytes):
            size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            os.ftruncate(self.file, size)
        return self.mapped(size)

    def close(self) -> None:
        """Closes the file; what is mapped stays."""
        self._end()


class Exchange:
    """One rank's end of a group, which makes gradient steps.

    Every rank computes the gradients of its own shards, tells them to all, and adds those of all shards in the order of
    the shards. So all apply the same sum, and it is the same for any number of ranks. Where the group breaks, rank 0
    computes what is missing, and all that follows, itself: computing changes nothing, so a step that was interrupted
    is simply made again. `GradientWorkers.settle` says so.

    Args:
        seat: of this rank.
    """

    def __init__(self, seat: GroupSeat) -> None:
        self.seat = seat
        """Of this rank."""
        self.error: BrokenGroupError | None = None
        """Why the group is broken; `None` while it is whole."""
        self._group: Any = None
        self._rows = torch.empty(seat.size, 0, dtype=torch.uint8)  # what ranks tell, kept from step to step
        self._memories: list[list[_Memory]] = []  # of each rank, where all are on one machine
        self._turn = 0

    def connect(self) -> None:
        """Finds the other ranks, unless that has happened; waits until the driver says that all are there.

        Raises:
            BrokenGroupError: they are not to be found, on a rank other than 0.
        """
        seat = self.seat
        if self._group is not None or self.error is not None or seat.size == 1:
            return
        limit, meeting = _limit(seat.timeout_s), _limit(min(seat.timeout_s, _MEETING_S))
        try:
            store = _dist.TCPStore(seat.address, seat.port, is_master=False, wait_for_workers=False, timeout=limit)
            if store.get(f"{seat.name}/begin").decode() != _GO:
                raise RuntimeError("another rank did not come")
            store.set_timeout(meeting)
            options = _dist.ProcessGroupGloo._Options()
            options._timeout = meeting
            options._devices = [_dist.ProcessGroupGloo.create_device(hostname=_own_address(seat))]
            self._group = _dist.ProcessGroupGloo(_dist.PrefixStore(seat.name, store), seat.rank, seat.size, options)
            self._group.set_timeout(limit)
            self._share_memory()
        except RuntimeError as error:
            self._broken(error)

    def close(self) -> None:
        """Leaves the group; ranks that wait for this one are told at once."""
        self._group = None
        for memory in (one for memories in self._memories for one in memories):
            memory.close()
        self._memories = []

    def _share_memory(self) -> None:
        """Maps what the other ranks write, if all are on this machine; otherwise what they tell is sent."""
        here, mine, found = _machine(), list[_Memory](), list[list[_Memory]]()
        with contextlib.suppress(OSError, AttributeError):  # no such files here, or not for this process
            mine = [_Memory() for _ in range(_TURNS)]
        told = self._of_all([here if mine else 0, os.getpid(), *([one.file for one in mine] or [0] * _TURNS)])
        with contextlib.suppress(OSError):
            for rank, (machine, process, *files) in enumerate(told):
                if not machine or machine != here:
                    break
                theirs = [_Memory(f"/proc/{process}/fd/{file}") for file in files] if rank != self.seat.rank else mine
                found.append(theirs)
        if min(self._of_all([len(found)]))[0] == self.seat.size:  # none has left before all have opened its
            self._memories = found

    def _of_all(self, numbers: Sequence[int]) -> list[list[int]]:
        """What every rank says, as many whole numbers each; a `RuntimeError` where one is gone."""
        if self._group is None:
            raise RuntimeError("it was left")
        said = torch.empty(self.seat.size, len(numbers), dtype=torch.int64)
        self._group._allgather_base(said, torch.tensor([numbers])).wait(_limit(self.seat.timeout_s))
        return said.tolist()

    def step(self, algorithm: GradientAlgorithm[Any, Any], minibatch: Batch) -> StepResult:
        """One gradient step.

        Args:
            minibatch: the same on every rank.

        Raises:
            NonFiniteError: the gradient is NaN or infinite.
            BrokenGroupError: the group broke, on a rank other than 0.
        """
        parts = shards(minibatch, algorithm.plan, self.seat.num_shards)
        gathered = None
        if self.seat.size > 1 and self.error is None:
            mine = [algorithm.gradients(part) for part in parts[_share(len(parts), self.seat.rank, self.seat.size)]]
            gathered = self._gathered(mine)
        if gathered is None:
            gathered = [_plain(algorithm.gradients(part)) for part in parts]
        return algorithm.apply_shards([algorithm.on_device(part) for part in gathered])

    def by_lanes(self, function: Callable[[Any], Tensor], unroll: Any) -> Tensor:
        """What a function says of an unroll; each rank computes it of some lanes, in the same parts for any size.

        Args:
            function: of any lanes of the unroll [T, b], to [T, b].
            unroll: [T, B], the same on every rank.

        Raises:
            BrokenGroupError: the group broke, on a rank other than 0.
        """
        lanes = unroll.reward.shape[1]
        count = min(lanes, self.seat.num_shards)
        if count == 1:
            return function(unroll)
        cuts = [slice(number * lanes // count, (number + 1) * lanes // count) for number in range(count)]
        parts, found = [unroll[:, cut] for cut in cuts], None
        if self.seat.size > 1 and self.error is None:
            mine = [function(part) for part in parts[_share(count, self.seat.rank, self.seat.size)]]
            found = self._gathered([Gradients({"": one}, 0, {}, None) for one in mine])
        if found is None:
            return torch.cat([function(part) for part in parts], dim=1)
        return torch.cat([one.values[""] for one in found], dim=1).to(unroll.reward.device)

    def _gathered(self, mine: Sequence[Gradients]) -> list[Gradients] | None:
        """The gradients of all shards; `None` on rank 0 of a group that broke."""
        tensors, rest = _packed(mine)
        try:
            sizes, rows = self._told(tensors, rest)
        except RuntimeError as error:
            self._broken(error)
            return None
        parts = [
            part for row, (first, _) in zip(rows, sizes, strict=True) for part in _unpacked(row[:first], row[first:])
        ]
        if len(parts) == 1:  # not summed, so that an optimizer may write to it, and others read it
            parts = [parts[0]._replace(values={name: value.clone() for name, value in parts[0].values.items()})]
        return parts

    def _told(self, tensors: Sequence[Tensor], rest: Tensor) -> tuple[list[list[int]], list[Tensor]]:
        """How many bytes every rank tells of tensors and of the rest, and these; a `RuntimeError` where one is gone."""
        rank, sizes = self.seat.rank, [sum(map(len, tensors)), len(rest)]
        if not self._memories:
            told = self._of_all(sizes)
            return told, self._sent([*tensors, rest], [sum(one) for one in told])
        self._turn = (self._turn + 1) % _TURNS
        mine = self._memories[rank][self._turn].grown(sum(sizes))
        torch.cat([*tensors, rest], out=mine[: sum(sizes)])
        told = self._of_all([*sizes, len(mine)])  # all have written; and read what was told the turn before
        each = [one[self._turn] for one in self._memories]
        rows = [memory.mapped(size)[: a + b] for memory, (a, b, size) in zip(each, told, strict=True)]
        return [[a, b] for a, b, _ in told], rows

    def _sent(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """What every rank tells, so many bytes each, over the network."""
        group, limit, rank, size = self._group, _limit(self.seat.timeout_s), self.seat.rank, self.seat.size
        rows = self._rows_of(sizes)
        torch.cat([*parts], out=rows[rank])
        others = [other for other in range(size) if other != rank]  # a gather of gloo takes twice as long
        arriving = [group.recv([rows[other]], other, 0) for other in others]
        leaving = [group.send([rows[rank]], other, 0) for other in others]
        for one in (*arriving, *leaving):
            one.wait(limit)
        return rows

    def _rows_of(self, sizes: Sequence[int]) -> list[Tensor]:
        """Memory for what every rank tells, so many bytes each; that of the step before, if it is enough."""
        if max(sizes) > self._rows.shape[1]:
            self._rows = torch.empty(len(sizes), -(-max(sizes) // 8) * 8, dtype=torch.uint8)  # begin at whole numbers
        return [row[:size] for row, size in zip(self._rows, sizes, strict=True)]

    def _broken(self, error: Exception) -> None:
        traceback.clear_frames(error.__traceback__)  # they keep connections open, whose end tells ranks not beside
        self.close()
        self.error = BrokenGroupError(f"rank {self.seat.rank} of {self.seat.size} lost the others: {error}")
        if self.seat.rank:
            raise self.error from error


def exchange_for(exchanges: dict[str, Exchange], policy: str, seat: GroupSeat) -> Exchange:
    """A policy's end of the group that a seat is in; that of another group, or of one that broke, is closed.

    Args:
        exchanges: by policy, that are kept from update to update.
        policy: name of it.
        seat: in its group.
    """
    kept = exchanges.get(policy)
    if kept is not None and (kept.seat != seat or kept.error is not None):
        exchanges.pop(policy).close()
    return exchanges.setdefault(policy, Exchange(seat))


def _machine() -> int:
    """A number of this machine since it started, and of the processes that see each other; 0 without such files."""
    try:
        said = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return 0
    return int.from_bytes(hashlib.sha256(said.encode()).digest()[:7])


def _own_address(seat: GroupSeat) -> str:
    """Of this machine, as seen from where the store is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((seat.address, seat.port))  # sends nothing
        return probe.getsockname()[0]


def _share(count: int, rank: int, size: int) -> slice:
    """Which of so many shards a rank computes: a run of them, so that all together are in order."""
    return slice(rank * count // size, (rank + 1) * count // size)


def _plain(gradients: Gradients) -> Gradients:
    """Laid out as those that come from another rank, on which the order of sums may depend."""
    return gradients._replace(values={name: value.contiguous() for name, value in gradients.values.items()})


def _packed(parts: Sequence[Gradients]) -> tuple[list[Tensor], Tensor]:
    """All tensors one behind the other, and what they are, both as bytes; nothing that could run as code."""
    leaves, told = [], []
    for part in parts:
        priority = {} if part.priority is None else {"": part.priority.detach()}
        groups = [part.values, part.metrics, priority]
        told.append([int(part.num_valid), *([_layout(name, leaf) for name, leaf in one.items()] for one in groups)])
        leaves += [leaf.detach().cpu().reshape(-1).view(torch.uint8) for one in groups for leaf in one.values()]
    return leaves, torch.frombuffer(bytearray(json.dumps(told).encode()), dtype=torch.uint8)


def _layout(name: str, leaf: Tensor) -> tuple[str, str, list[int]]:
    return name, str(leaf.dtype).removeprefix("torch."), list(leaf.shape)


def _unpacked(data: Tensor, told: Tensor) -> list[Gradients]:
    """Gradients in the memory of the message; metrics and priorities are kept for longer and have their own."""
    parts, begin = [], 0
    for num_valid, *layouts in json.loads(told.numpy().tobytes()):
        groups: list[dict[str, Tensor]] = [{}, {}, {}]
        for group, layout in zip(groups, layouts, strict=True):
            for name, kind, shape in layout:
                dtype: torch.dtype = getattr(torch, kind)
                leaf = data[begin : begin + torch.Size(shape).numel() * dtype.itemsize]
                own = group is not groups[0] or begin % dtype.itemsize
                group[name] = (leaf.clone() if own else leaf).view(dtype).reshape(shape)
                begin += len(leaf)
        parts.append(Gradients(groups[0], num_valid, groups[1], groups[2].get("")))
    return parts


def fingerprint(algorithm: GradientAlgorithm[Any, Any]) -> int:
    """A number that tells states of an algorithm apart: made of every bit of its weights, and of its counters.

    Args:
        algorithm: whose.
    """
    total = algorithm.policy_version * 1_000_003 + algorithm.num_gradient_steps
    for value in algorithm.model.state_dict().values():
        bits = value.detach().reshape(-1)
        bits = bits.view(torch.int32) if bits.element_size() % 4 == 0 else bits.view(torch.uint8)
        total = (total * 31 + int(bits.sum())) % (1 << 61)
    return total
