"""Checkpoints that survive whatever stops a run: written to a temporary folder, hashed, then renamed."""

import errno
import functools
import hashlib
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.buffers import MixtureSource, ReplayBuffer
from palaestra.core import files
from palaestra.core.batch import Batch
from palaestra.core.errors import CheckpointError, ConfigError
from palaestra.training.parts import DataCollector

__all__ = ["FORMAT_VERSION", "CheckpointStore"]

FORMAT_VERSION = 1
"""Version of the checkpoint format; it rises when older code could not read a newer checkpoint."""

_log = logging.getLogger(__name__)


class CheckpointStore:
    """The checkpoints of one run, `step_<env steps>/` each.

    A checkpoint is written to a temporary directory: one safetensors file per part, `state.json`, and last
    `manifest.json` with the hash and size of every file. All are flushed to the disk before the directory is renamed to
    its final name, and only then are older ones deleted. So a crash at any moment leaves the previous one valid.
    Pieces of a replay buffer that have not changed since the checkpoint before are links to its files.

    Args:
        directory: made where it is missing.
        keep: how many to keep, at least 2.
    """

    def __init__(self, directory: str | Path, *, keep: int = 3) -> None:
        self.directory = Path(directory)
        self.keep = max(2, keep)

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Writes one checkpoint; one that exists already for this step is left as it is.

        Args:
            step: env steps so far.
            state: a nest of JSON values, tensors and arrays for each part of the run.

        Returns:
            The checkpoint's directory.

        Raises:
            CheckpointError: it cannot be written (disk full, no permission); older checkpoints are untouched. Where
                there is clearly no room, nothing is begun.
        """
        target = self.directory / f"step_{step:010d}"
        if target.exists():
            return target
        for leftover in self.directory.glob(".tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        previous, known = self._previous()
        with files.whole_folder(target, "checkpoint") as temporary:
            _require_room(temporary, sum(files.unsaved_bytes(part, previous) for part in state.values()))
            values: dict[str, Any] = {}
            linked: set[str] = set()
            for name, whole in state.items():
                part, already_there = files.write_segments(whole, temporary, previous)
                linked |= already_there
                values[name], tensors = files.split_state(part)
                if tensors:
                    files.save_tensors(temporary / f"{name}.safetensors", tensors)
            files.write_json(temporary / "state.json", values)
            files.seal(temporary, FORMAT_VERSION, {name: known[name] for name in linked}, step=step)
        for old in self.steps()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def steps(self) -> list[Path]:
        """The checkpoints' directories, oldest first, valid or not."""
        return sorted(p for p in self.directory.glob("step_*") if p.name.removeprefix("step_").isdigit())

    @property
    def never_saved(self) -> bool:
        """Whether no checkpoint was ever finished: there is none, and none that was damaged and put aside."""
        return not any(self.directory.glob("step_*"))

    def load_newest(self) -> tuple[int, dict[str, Any]]:
        """The newest checkpoint whose hashes are right; damaged ones are renamed to `*.corrupt` on the way.

        One of another format is an error and stays as it is.

        Returns:
            Its step and its state.

        Raises:
            CheckpointError: there is no valid one; training never starts from scratch silently.
        """
        damage: list[str] = []
        for path in reversed(self.steps()):
            try:
                return self.load(path)
            except files.OtherFormatError:
                raise
            except CheckpointError as error:
                damage.append(str(error))
                corrupt = path.with_name(f"{path.name}.corrupt")
                shutil.rmtree(corrupt, ignore_errors=True)
                path.rename(corrupt)
                _log.warning("%s; it is now %s and an older checkpoint is tried", error, corrupt.name)
        found = "; ".join(damage) or "there is none"
        raise CheckpointError(f"no valid checkpoint in {self.directory}: {found}")

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        """One checkpoint, after checking every hash.

        Args:
            path: its directory.

        Returns:
            Its step and its state.

        Raises:
            CheckpointError: a file is missing or damaged, or the format is newer than this version of the library.
        """
        step, entries = _manifest(path)
        files.check_files(path, entries)
        try:
            values = json.loads((path / "state.json").read_text()) if "state.json" in entries else None
            if not isinstance(values, dict):
                raise TypeError("a JSON object is needed")
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{path} has no readable state.json: {error!r}") from error
        state: dict[str, Any] = {}
        for name, value in values.items():
            tensors = files.load_tensors(path / file) if (file := f"{name}.safetensors") in entries else {}
            state[name] = files.join_segments(files.join_state(value, tensors), path)
        return step, state

    def _previous(self) -> tuple[Path | None, dict[str, Any]]:
        """The newest checkpoint whose manifest can be read, and the fingerprints of its files."""
        for path in reversed(self.steps()):
            try:
                return path, _manifest(path)[1]
            except CheckpointError:
                continue
        return None, {}


def _manifest(path: Path) -> tuple[int, dict[str, Any]]:
    """The step and the fingerprints of the files of a checkpoint."""
    manifest = files.read_manifest(path, FORMAT_VERSION)
    if (version := manifest["format_version"]) < FORMAT_VERSION:  # format 1 is the first; code for older ones goes here
        raise files.OtherFormatError(
            f"{path} has format {version}, which was never released; this version reads {FORMAT_VERSION}"
        )
    return int(manifest.get("step", -1)), manifest["files"]


def _require_room(directory: Path, needed: int) -> None:
    """Refuses to begin what cannot fit: better than half a checkpoint on a disk that is then full for everybody."""
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise OSError(
            errno.ENOSPC,
            f"No space left on device: it needs {needed / 2**20:,.1f} MiB and {free / 2**20:,.1f} are free",
        )


class LoadedData:
    """Loaded buffers are no part of checkpoints: these have what tells the data apart, and where sampling from it is.

    Args:
        collect: of the trainer: `OfflineData`, or a collector whose source may be a mixture.
    """

    def __init__(self, collect: DataCollector) -> None:
        self._collect, self._identity = collect, functools.cache(_identity)

    def state(self) -> list[dict[str, Any]]:
        """Of each loaded buffer; nothing where there is none."""
        return [{"data": self._identity(buffer), "sampler": buffer.sampler.state()} for buffer in self._buffers()]

    def load_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Puts back what `state` gave.

        Args:
            states: of the run that was saved.

        Raises:
            ConfigError: these are not the data that the run learned from.
        """
        buffers = self._buffers()
        if len(buffers) != len(states):
            raise ConfigError(
                f"the run learned from {len(states)} loaded data set(s), and now there are {len(buffers)}; "
                "a run resumes with the data that it began with"
            )
        for buffer, state in zip(buffers, states, strict=True):
            saved, given = state["data"], self._identity(buffer)
            if saved != given:
                raise ConfigError(
                    f"the run learned from {saved['rows']:,} loaded rows ({saved['sha256'][:12]}), but the data now "
                    f"has {given['rows']:,} ({given['sha256'][:12]}); a run resumes with the data that it began with"
                )
            buffer.sampler.load_state(state["sampler"])

    def _buffers(self) -> list[ReplayBuffer]:
        own = {id(buffer) for buffer in self._collect.buffers.values()}
        sources = [
            buffer
            for source in self._collect.sources.values()
            for buffer in (source.buffers if isinstance(source, MixtureSource) else [source])
        ]
        return [buffer for buffer in sources if isinstance(buffer, ReplayBuffer) and id(buffer) not in own]


def _identity(buffer: ReplayBuffer) -> dict[str, Any]:
    """How many rows there are, and a hash of everything but the observations."""
    digest = hashlib.sha256()
    for lane in range(buffer.num_lanes):
        rows = buffer.in_time_order(lane)
        for name in ("step_type", "reward", "discount", "action"):
            for leaf in _leaves(buffer.take(name, rows[:-1] if name == "action" else rows)):
                digest.update(leaf.contiguous().numpy().tobytes())
    return {"rows": len(buffer), "sha256": digest.hexdigest()}


def _leaves(value: Any) -> list[Any]:
    return [leaf for part in value.values() for leaf in _leaves(part)] if isinstance(value, Batch) else [value]
