"""Folders whose files are known by their hashes: whatever was damaged or exchanged is found before it is used."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.core.errors import CheckpointError

__all__ = ["check_files", "check_seal", "fingerprint", "read_manifest", "seal", "write_manifest"]

_MANIFEST = "manifest.json"


def fingerprint(file: Path) -> dict[str, Any]:
    """Hash and size of a file.

    Args:
        file: its path.
    """
    with file.open("rb") as stream:
        return {"sha256": hashlib.file_digest(stream, "sha256").hexdigest(), "size_bytes": file.stat().st_size}


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Writes `manifest.json` with a hash of its own, and waits until it is on the disk.

    Args:
        directory: where to.
        manifest: JSON values.
    """
    with (directory / _MANIFEST).open("w") as stream:
        json.dump({**manifest, "sha256": _digest(manifest)}, stream)
        stream.flush()
        os.fsync(stream.fileno())


def read_manifest(directory: Path) -> dict[str, Any]:
    """What `write_manifest` wrote.

    Args:
        directory: where it lies.

    Raises:
        CheckpointError: it is missing or damaged, or lacks `format_version` or `files`.
    """
    try:
        manifest = json.loads((directory / _MANIFEST).read_text())
        digest = manifest.pop("sha256")
        manifest["format_version"], manifest["files"] = int(manifest["format_version"]), dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{directory} has no readable {_MANIFEST}: {error!r}") from error
    if digest != _digest(manifest):
        raise CheckpointError(f"{directory / _MANIFEST} is damaged: its own hash is wrong")
    return manifest


def check_files(directory: Path, files: Mapping[str, Any]) -> None:
    """Compares files with their fingerprints.

    Args:
        directory: where they lie.
        files: fingerprint by name.

    Raises:
        CheckpointError: one is missing or damaged; names it.
    """
    for name, expected in files.items():
        file = directory / name
        if Path(name).name != name or not file.is_file() or fingerprint(file) != expected:
            raise CheckpointError(f"{file} is missing or damaged: its hash is not the one in {_MANIFEST}")


def seal(directory: Path, format_version: int) -> None:
    """Writes `manifest.json` with the hashes of all files of a folder, and waits until it is on the disk.

    Args:
        directory: complete but for the manifest.
        format_version: of what is in the folder.
    """
    files = {file.name: fingerprint(file) for file in sorted(directory.iterdir()) if file.name != _MANIFEST}
    write_manifest(directory, {"format_version": format_version, "files": files})


def check_seal(directory: Path, format_version: int) -> None:
    """Compares every file of a folder with its manifest.

    Args:
        directory: what `seal` was called for.
        format_version: the newest one that can be read.

    Raises:
        CheckpointError: the manifest is missing, a file is missing or damaged, or the format is newer; names the file.
    """
    manifest = read_manifest(directory)
    if (version := manifest["format_version"]) > format_version:
        raise CheckpointError(f"{directory} has format {version}, this one reads {format_version}: update palaestra")
    check_files(directory, manifest["files"])


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
