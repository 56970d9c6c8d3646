"""Where in their streams the environments of this process are, kept in a file that outlives a crash.

A crash leaves the stacks of the threads and nothing else. So every batch writes how many steps it has begun into a file
that is mapped into memory, which costs as much as writing into an array; and the line of `lane_calls` in which a stack
is says which lane it was.
"""

import contextlib
import functools
import logging
import mmap
import re
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from palaestra.core import episode_seed
from palaestra.core.reading import read_bytes

_log = logging.getLogger(__name__)
_CELLS = 1 << 17  # int64; a batch takes one, and three for each lane
_SHIFT = 40
_FILE = "<lanes>"
_LINE = rf'File "{_FILE}", line (\d+)'
_MOST_LANES = 1024

Calls = Callable[[Sequence[Callable[[Any], Any]], Sequence[Any], Callable[[Any], None]], None]


class Place:
    """The running episodes of a batch, as they can be read after a crash: of a run, whose file there is; else in vain.

    Args:
        num_lanes: B.

    Attributes:
        steps: element 0 is to become `base` plus the number of steps begun, whenever one begins.
        base: names the batch.
        cells: from element 1 on, three for each lane: its seed, the number of its episode, and after how many steps of
            the batch that began.
    """

    def __init__(self, num_lanes: int) -> None:
        self.cells, first = _claim(1 + 3 * num_lanes)
        self.cells[0] = num_lanes
        self.steps = self.cells[:1] if first is None else _kept.cells[:1]
        self.base = (first or 0) << _SHIFT
        if first is not None:
            weakref.finalize(self, _kept.free[1 + 3 * num_lanes].append, first)


class _Kept:
    """The file of this process, and which of its cells are taken."""

    def __init__(self, cells: memoryview | None = None) -> None:
        self.cells: Any = cells
        self.used = 1
        self.free: defaultdict[int, list[int]] = defaultdict(list)


_kept = _Kept()


@contextlib.contextmanager
def places_kept(path: Path) -> Iterator[None]:
    """While entered, batches that are made write where they are into a file, which is deleted at the end.

    Args:
        path: of the file; what an earlier process left there is gone then.
    """
    global _kept
    before = _kept
    try:
        with path.open("wb+") as file:
            file.write(bytes(8 * _CELLS))  # not a hole: on a full disk, writing into one would kill the process
            file.flush()
            _kept = _Kept(memoryview(mmap.mmap(file.fileno(), 8 * _CELLS)).cast("q"))  # unmapped with its last batch
    except OSError as error:
        _log.warning(
            "a crash of an environment will be recorded without its place: %s cannot be kept (%s)", path, error
        )
    try:
        yield
    finally:
        _kept = before
        path.unlink(missing_ok=True)


def place_of(path: Path, stacks: str) -> dict[str, Any]:
    """Where the environment was in which a process crashed: `env_id`, `episode`, `seed` and `step`.

    Args:
        path: given to `places_kept` by that process.
        stacks: of its threads, as `faulthandler` writes them.

    Returns:
        Nothing where it did not crash in a step, or the file is not there.
    """
    crashed = stacks[stacks.find("Current thread") :].split("\n\n")[0]
    line = re.search(_LINE, crashed) or re.search(_LINE, stacks)  # who was ended from outside was in another thread
    if line is None or not path.is_file() or path.is_symlink() or path.stat().st_size != 8 * _CELLS:
        return {}
    cells = memoryview(read_bytes(path)).cast("q")
    (first, steps), lane = divmod(cells[0], 1 << _SHIFT), int(line[1]) - 2
    if not 0 < first < _CELLS or not 0 <= lane < min(cells[first], (_CELLS - first - 1) // 3):
        return {}
    lane_seed, episode, begins = cells[first + 1 + 3 * lane : first + 4 + 3 * lane]
    seed = episode_seed(lane_seed, episode) if episode >= 0 else None
    return {"env_id": lane, "episode": episode, "seed": seed, "step": steps - begins}


@functools.cache
def lane_calls(num_lanes: int) -> Calls | None:
    """A function that calls one step after the other, `add(steps[lane](actions[lane]))`, each in a line of its own.

    It is as fast as `map`, and a stack shows in which lane it is, also one that a crash leaves.

    Args:
        num_lanes: how many; beyond 1,024 there is no such function.
    """
    if num_lanes > _MOST_LANES:
        return None
    lines = ["def lanes(steps, actions, add):", *(f"  add(steps[{n}](actions[{n}]))" for n in range(num_lanes))]
    made: dict[str, Any] = {"__name__": __name__}
    exec(compile("\n".join(lines), _FILE, "exec"), made)
    return made["lanes"]


def _claim(size: int) -> tuple[Any, int | None]:
    """Cells for a batch, and the number of the first; `None` where nobody will read them."""
    if _kept.free[size]:
        first = _kept.free[size].pop()
    elif _kept.cells is not None and _kept.used + size <= _CELLS:
        first, _kept.used = _kept.used, _kept.used + size
    else:
        return memoryview(bytearray(8 * size)).cast("q"), None
    return _kept.cells[first : first + size], first
