"""Buffers as folders: one safetensors file, one JSON file, and a manifest with their hashes."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from palaestra.buffers.streams import RowOptions
from palaestra.core import (
    CheckpointError,
    ConfigError,
    SpecError,
    check_seal,
    load_tensors,
    save_tensors,
    seal,
    spec_from_json,
    spec_to_json,
)

__all__ = ["read_buffer", "write_buffer"]

_FORMAT_VERSION = 1
_SPECS = ("observation_spec", "action_spec", "info_spec", "reward_spec", "state_spec")


def write_buffer(directory: Path, shape: Mapping[str, Any], options: RowOptions, tensors: Mapping[str, Any]) -> None:
    """Writes a folder aside and gives it its name when it is whole and on the disk.

    Args:
        directory: must not exist yet.
        shape: capacity and lanes.
        options: what a row consists of.
        tensors: what the buffer holds.

    Raises:
        ConfigError: the folder exists.
        CheckpointError: it cannot be written; nothing is left of it.
    """
    if directory.exists():
        raise ConfigError(f"{directory} exists already; give another name or delete it")
    temporary = directory.with_name(f".tmp-{uuid.uuid4().hex}")
    described = {
        **shape,
        "state_period": options.get("state_period", 1),
        "complete_episodes_only": options.get("complete_episodes_only", False),
        "specs": {name: spec_to_json(_plain(options[name])) for name in _SPECS if options.get(name) is not None},
    }
    try:
        temporary.mkdir(parents=True)
        save_tensors(temporary / "rows.safetensors", tensors)
        with (temporary / "buffer.json").open("w") as file:
            json.dump(described, file)
            file.flush()
            os.fsync(file.fileno())
        seal(temporary, _FORMAT_VERSION)
        temporary.rename(directory)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(f"the buffer at {directory} cannot be written: {error}") from error


def read_buffer(directory: Path) -> tuple[dict[str, Any], RowOptions, dict[str, Any]]:
    """What `write_buffer` wrote, after comparing every hash.

    Args:
        directory: its folder.

    Returns:
        Capacity and lanes, what a row consists of, and what the buffer held.

    Raises:
        CheckpointError: a file is missing, damaged, of another kind or of a newer format; the message names it.
    """
    check_seal(directory, _FORMAT_VERSION)
    try:
        described = json.loads((directory / "buffer.json").read_text())
        options: dict[str, Any] = {name: spec_from_json(spec) for name, spec in described["specs"].items()}
        options |= {name: described[name] for name in ("state_period", "complete_episodes_only")}
        shape = {name: described[name] for name in ("capacity", "num_lanes")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SpecError) as error:
        raise CheckpointError(f"{directory / 'buffer.json'} describes no buffer: {error!r}") from error
    return shape, RowOptions(**options), load_tensors(directory / "rows.safetensors")


def _plain(spec: Any) -> Any:
    return dict(spec) if isinstance(spec, Mapping) else spec
