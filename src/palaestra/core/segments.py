"""Large tensors in pieces that are written once and shared by all checkpoints that hold them.

A part of a state says under `segments` how its tensors are cut, as text: the keys of the pieces in order, and how many
rows of each tensor a piece has. A key is given once: what it names never changes again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from palaestra.core.errors import CheckpointError
from palaestra.core.state import split_state
from palaestra.core.storage import load_tensors, save_tensors

__all__ = ["describe_segments", "join_segments", "unsaved_bytes", "write_segments"]

_NAME = "segments"


def describe_segments(keys: Sequence[str], rows: Mapping[str, int]) -> str:
    """What a part says under `segments`.

    Args:
        keys: of the pieces, in order.
        rows: of each tensor, by name, in one piece.
    """
    return json.dumps({"keys": list(keys), "rows": dict(rows)})


def write_segments(part: Any, directory: Path, previous: Path | None) -> tuple[Any, set[str]]:
    """Writes the pieces of a part; those that a checkpoint before has already are linked.

    Args:
        part: of a state; one without `segments` is left as it is.
        directory: where they go, one file each.
        previous: folder of the checkpoint before.

    Returns:
        The part without these tensors, and the names of the files that were linked.
    """
    if not isinstance(part, Mapping) or _NAME not in part:
        return part, set()
    described = json.loads(part[_NAME])
    linked: set[str] = set()
    for number, key in enumerate(described["keys"]):
        file = _file(key)
        if previous is not None and (previous / file).is_file():
            _link(previous / file, directory / file)
            linked.add(file)
            continue
        pieces = {name: part[name][number * n : (number + 1) * n] for name, n in described["rows"].items()}
        save_tensors(directory / file, pieces)
    return {name: value for name, value in part.items() if name not in described["rows"]}, linked


def unsaved_bytes(part: Any, previous: Path | None) -> int:
    """What writing a part of a state will take on the disk.

    Args:
        part: of a state.
        previous: folder of the checkpoint before, whose pieces are linked and take nothing.
    """
    size_bytes = sum(tensor.nbytes for tensor in split_state(part)[1].values())
    if not isinstance(part, Mapping) or _NAME not in part or previous is None:
        return size_bytes
    described = json.loads(part[_NAME])
    linked = sum((previous / _file(key)).is_file() for key in described["keys"])
    return size_bytes - linked * sum(part[name][:n].nbytes for name, n in described["rows"].items())


def join_segments(part: Any, directory: Path) -> Any:
    """The part that `write_segments` took apart.

    Args:
        part: as it was returned.
        directory: of the checkpoint.

    Raises:
        CheckpointError: a piece is missing or is none.
    """
    if not isinstance(part, dict) or _NAME not in part:
        return part
    try:
        described = json.loads(part[_NAME])
        keys, names = list(described["keys"]), list(described["rows"])
        pieces = [load_tensors(directory / _file(key)) for key in keys]
        return part | {name: torch.cat([piece[name] for piece in pieces]) for name in names}
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"the segments in {directory} do not fit together: {error!r}") from error


def _file(key: str) -> str:
    if Path(key).name != key:
        raise CheckpointError(f"{key!r} is no name of a segment")
    return f"segment-{key}.safetensors"


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # this file system has no links
        shutil.copyfile(source, target)
