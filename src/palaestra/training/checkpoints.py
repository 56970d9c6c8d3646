"""Checkpoints that survive whatever stops a run: written to a temporary folder, hashed, then renamed."""

import errno
import functools
import hashlib
import logging
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from palaestra.buffers import MixtureSource, ReplayBuffer
from palaestra.core import Batch, CheckpointError, ConfigError, RunLostError, files
from palaestra.core.reading import read_json
from palaestra.rollout import OfflineFirst
from palaestra.training.parts import DataCollector

__all__ = ["FORMAT_VERSION", "CheckpointStore"]

FORMAT_VERSION = 1
"""Version of the checkpoint format; it rises when older code could not read a newer checkpoint."""

_ASIDE = ".tmp-"
_MOST_BYTES = 1 << 30  # of values that are no tensors: parsed they take some times as much memory
_READ_EVERY = 4  # saves after which a shared segment is read again; its size is compared each time

_log = logging.getLogger(__name__)


def step_of(path: Path) -> int:
    """The env steps that a checkpoint's directory is named by."""
    return int(path.name.removeprefix("step_"))


class CheckpointStore:
    """The checkpoints of one run, `step_<env steps>/` each.

    A checkpoint is written to a temporary directory: one safetensors file per part, `state.json`, and last
    `manifest.json` with the hash and size of every file. All are flushed to the disk before the directory is renamed to
    its final name, and only then are older ones deleted. So a crash at any moment leaves the previous one valid.
    Pieces of a replay buffer that have not changed since the checkpoint before are links to its files. Before they are
    shared, sizes are compared, and a quarter of them is read and hashed in turn; a damaged one is written again.

    Args:
        directory: made where it is missing.
        keep: how many to keep, at least 2.
        copies: so many segments, those that were written last, are kept in a second file.
        run_id: of the run; checkpoints of another one are refused. Without one, nothing is said about it.
    """

    def __init__(self, directory: str | Path, *, keep: int = 3, copies: int = 2, run_id: str = "") -> None:
        self.directory = Path(directory)
        self.keep, self.copies, self.run_id = max(2, keep), copies, run_id
        self._saves, self._there = 0, self.directory.is_dir()
        self.require_there: Callable[[], None] = lambda: None
        """Called before each save; raises `RunLostError` where the directory is not the run's any more."""

    def save(self, step: int, state: Mapping[str, Any], *, replace: bool = False) -> Path:
        """Writes one checkpoint; one that exists already for this step is left as it is.

        Args:
            step: env steps so far.
            state: a nest of JSON values, tensors and arrays for each part of the run.
            replace: whether one that exists gives way to this one.

        Returns:
            The checkpoint's directory.

        Raises:
            CheckpointError: it cannot be written (disk full, no permission), or not be read again for its size; older
                checkpoints are untouched. Where there is clearly no room, nothing is begun.
            RunLostError: the directory was there, and is gone, or another has its name.
        """
        self.require_there()
        if self._there and not self.directory.is_dir():
            raise RunLostError(f"{self.directory} is gone: it was deleted, moved or unmounted while the run went on")
        target = self.directory / f"step_{step:010d}"
        if target.exists() and not replace:
            return target
        self._bring_back()
        for leftover in self.directory.glob(".tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self._write(target, step, state)
        self._saves, self._there = self._saves + 1, True
        for old in self.steps()[: -self.keep]:
            with suppress(OSError):  # in one step, for whoever reads it
                shutil.rmtree(old.rename(old.with_name(f".tmp-old-{old.name}")), ignore_errors=True)
        return target

    def _write(self, target: Path, step: int, state: Mapping[str, Any]) -> None:
        known = self._shared(name for part in state.values() for name in files.segment_files(part))
        shared = {name: path for name, (path, _) in known.items()}
        with ExitStack() as at_the_end, files.whole_folder(target, "checkpoint") as temporary:
            needed = sum(files.unsaved_bytes(part, shared, self.copies) for part in state.values())
            _require_room(temporary, needed)
            values: dict[str, Any] = {}
            for name, whole in state.items():
                values[name], tensors = files.split_state(files.write_segments(whole, temporary, shared))
                if tensors:
                    files.save_tensors(temporary / f"{name}.safetensors", tensors)
            files.copy_newest(temporary, self.copies, shared)
            files.write_json(temporary / "state.json", values)
            if (size_bytes := (temporary / "state.json").stat().st_size) > _MOST_BYTES:
                largest = max(values, key=lambda name: len(repr(values[name])))
                raise CheckpointError(
                    f"the checkpoint at {target} could not be read again: its values that are no tensors have "
                    f"{size_bytes:,} bytes, most of them in {largest!r}, and at most {_MOST_BYTES:,} are read; give "
                    "what is large there as tensors or arrays, or keep less of it"
                )
            whose = {"run": self.run_id} if self.run_id else {}
            prints = {name: fingerprint for name, (_, fingerprint) in known.items()}
            files.seal(temporary, FORMAT_VERSION, prints, step=step, **whose)
            at_the_end.enter_context(_aside(target))

    def steps(self) -> list[Path]:
        """The checkpoints' directories, oldest first, valid or not."""
        found = self.directory.glob("step_*")
        return sorted((path for path in found if path.name.removeprefix("step_").isdigit()), key=step_of)

    @property
    def never_saved(self) -> bool:
        """Whether no checkpoint was ever finished: there is none, and none that was damaged and put aside."""
        return not any(self.directory.glob("*step_*"))

    def _bring_back(self) -> None:
        """A run that was killed while one checkpoint took the place of another may have left both without the name."""
        for aside in self.directory.glob(f"{_ASIDE}step_*"):
            target = self.directory / aside.name.removeprefix(_ASIDE)
            if not target.exists():
                aside.rename(target)

    def load_newest(self, *, rename: bool = True) -> tuple[int, dict[str, Any]]:
        """The newest checkpoint whose hashes are right; damaged ones are renamed to `*.corrupt` on the way.

        One of another format or run, or under another name, is an error and stays as it is. Where none is whole, the
        newest that lacks nothing except pieces of replay buffers is given without them: `lost` in these parts has
        their numbers.

        Args:
            rename: whether to rename damaged ones, if that is possible; what only reads leaves them as they are.

        Returns:
            Its step and its state.

        Raises:
            CheckpointError: there is no valid one; training never starts from scratch silently.
        """
        while True:
            before = self.steps()
            try:
                return self._newest(rename)
            except CheckpointError:
                there = {*self.steps(), *self.directory.glob("step_*.corrupt")}
                if all(path in there or path.with_name(f"{path.name}.corrupt") in there for path in before):
                    raise  # else the run that writes them has removed what was being read

    def _newest(self, rename: bool) -> tuple[int, dict[str, Any]]:
        if rename:
            self._bring_back()
        problems: list[str] = []
        without: list[tuple[Path, _SegmentsLostError]] = []
        for path in reversed(self.steps()):
            try:
                loaded = self.load(path)
            except (files.OtherFormatError, _MisplacedError):
                raise
            except _SegmentsLostError as error:
                without.append((path, error))
                problems.append(str(error))
            except CheckpointError as error:
                problems.append(str(error))
                if path.exists():  # no other process has removed it meanwhile, for there are newer ones
                    _pass_over(path, error, rename=rename)
            else:
                for damaged, error in without:
                    _pass_over(damaged, error, rename=rename)
                return loaded
        for path, error in without:
            with suppress(CheckpointError):
                loaded = self.load(path, without_lost=True)
                _log.warning("no checkpoint is whole, so %s is used without what is lost: %s", path, error)
                return loaded
        raise CheckpointError(f"no valid checkpoint in {self.directory}: {'; '.join(problems) or 'there is none'}")

    def load(self, path: Path, *, without_lost: bool = False) -> tuple[int, dict[str, Any]]:
        """One checkpoint, after checking every hash.

        Args:
            path: its directory.
            without_lost: whether to go without damaged pieces of replay buffers; `lost` in a part has their numbers.

        Returns:
            Its step and its state.

        Raises:
            CheckpointError: a file is missing or damaged, the format is newer than this version of the library, or
                it is a checkpoint of another run, or of another step than its name says.
        """
        step, entries, run = _manifest(path)
        self._require_place(path, step, run)
        damaged = files.damaged_files(path, entries)
        lost = _lost(path, damaged, entries)
        if lost and not without_lost:
            raise _SegmentsLostError(str(files.damage(path / lost[0])))
        try:
            values = read_json(path / "state.json", _MOST_BYTES) if "state.json" in entries else None
            if not isinstance(values, dict):
                raise TypeError("a JSON object is needed")
        except (CheckpointError, TypeError) as error:
            raise CheckpointError(f"{path} has no readable state.json: {error!r}") from error
        state: dict[str, Any] = {}
        for name, value in values.items():
            tensors = files.load_tensors(path / file) if (file := f"{name}.safetensors") in entries else {}
            state[name] = files.join_segments(files.join_state(value, tensors), path, damaged)
        return step, state

    def take_over(self, other: "CheckpointStore", up_to: int) -> None:
        """Copies the checkpoints of another run, which from now on are this run's; files that they share are shared.

        Args:
            other: has them.
            up_to: their steps; damaged ones are left out.
        """
        copies: dict[tuple[int, int], Path] = {}
        for path in other.steps():
            try:
                manifest = files.read_manifest(path, FORMAT_VERSION)
            except CheckpointError:
                continue
            if manifest.get("step", -1) <= up_to:
                copy = self.directory / path.name
                copy.mkdir(parents=True)
                for name in manifest["files"]:
                    if Path(name).name == name and (path / name).is_file():
                        state = (path / name).stat()
                        shared = state.st_nlink > 1  # some disks give all files one number
                        first = copies.setdefault((state.st_dev, state.st_ino), copy / name) if shared else copy / name
                        if first == copy / name:
                            shutil.copyfile(path / name, first)
                        else:
                            files.link(first, copy / name)
                files.write_manifest(copy, {**manifest, "run": self.run_id})

    def _require_place(self, path: Path, step: int, run: str) -> None:
        """Refuses a whole checkpoint that is not where it belongs."""
        named = path.name.removeprefix("step_").removesuffix(".corrupt")
        if named.isdigit() and int(named) != step:
            raise _MisplacedError(
                f"{path} holds env step {step:,}, so its name was changed; rename it to step_{step:010d}"
            )
        if self.run_id and run != self.run_id:
            raise _MisplacedError(
                f"{path} is a checkpoint of another run ({run[:12] or 'without a name'}; this run is "
                f"{self.run_id[:12]}); move it away, and this run goes on from its own"
            )

    def _shared(self, names: Iterable[str]) -> dict[str, tuple[Path, Any]]:
        """Path and fingerprint of files that the newest readable checkpoint has already, and that are whole."""
        previous, known = self._previous()
        shared: dict[str, tuple[Path, Any]] = {}
        if previous is None:
            return shared
        wanted = [name for segment in names for name in (segment, files.second_copy(segment)) if name in known]
        for number, name in enumerate(wanted):
            read = (number + self._saves) % _READ_EVERY == 0
            if files.is_whole(previous / name, known[name], read=read):
                shared[name] = previous / name, known[name]
            else:
                _log.warning(
                    "%s is damaged, and is written again from memory; older checkpoints have the damaged one: look at "
                    "the disk", previous / name,
                )  # fmt: skip
        return shared

    def _previous(self) -> tuple[Path | None, dict[str, Any]]:
        """The newest checkpoint whose manifest can be read, and the fingerprints of its files."""
        for path in reversed(self.steps()):
            with suppress(CheckpointError):
                return path, _manifest(path)[1]
        return None, {}


def _manifest(path: Path) -> tuple[int, dict[str, Any], str]:
    """The step and the fingerprints of the files of a checkpoint, and the id of its run."""
    manifest = files.read_manifest(path, FORMAT_VERSION)
    if (version := manifest["format_version"]) < FORMAT_VERSION:  # format 1 is the first; code for older ones goes here
        raise files.OtherFormatError(
            f"{path} has format {version}, which was never released; this version reads {FORMAT_VERSION}"
        )
    return int(manifest.get("step", -1)), manifest["files"], str(manifest.get("run", ""))


class _MisplacedError(CheckpointError):
    """A checkpoint is whole, and belongs to another run or under another name."""


class _SegmentsLostError(CheckpointError):
    """Nothing is missing or damaged in a checkpoint except pieces of replay buffers."""


def _lost(path: Path, damaged: Sequence[str], entries: Mapping[str, Any]) -> list[str]:
    """The segments of which no copy is whole; any other damage is an error."""
    lost: list[str] = []
    for name in damaged:
        copy = files.second_copy(name)
        if copy in entries and copy not in damaged:
            _log.warning("%s; its second copy is used", files.damage(path / name))
        elif name.startswith("segment-"):
            lost.append(name)
        elif not name.startswith(files.second_copy("segment-")):
            raise files.damage(path / name)
    return lost


def _pass_over(path: Path, error: CheckpointError, *, rename: bool) -> None:
    """Says that an older checkpoint is tried, and renames the damaged one where that is possible."""
    now = ""
    if rename:
        corrupt = path.with_name(f"{path.name}.corrupt")
        try:
            shutil.rmtree(corrupt, ignore_errors=True)
            path.rename(corrupt)
            now = f"it is now {corrupt.name} and "
        except OSError as refused:
            now = f"it cannot be renamed ({refused}) and "
    _log.warning("%s; %san older checkpoint is tried", error, now)


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
        algorithms: that learn, of which some may imitate data, or a teacher, whose weights are told apart, too.
    """

    def __init__(self, collect: DataCollector, algorithms: Collection[Any] = ()) -> None:
        self._collect, self._identity = collect, functools.cache(_identity)
        self._imitated = [getattr(getattr(one, "bonus", None), "data", None) for one in algorithms]
        self._teachers = [_weights(one.teacher) for one in algorithms if getattr(one, "teacher", None) is not None]

    def state(self) -> list[dict[str, Any]]:
        """Of each loaded buffer and each teacher; nothing where there is none."""
        data = [{"data": self._identity(buffer), "sampler": buffer.sampler.state()} for buffer in self._buffers()]
        return [*data, *({"teacher": sha256} for sha256 in self._teachers)]

    def load_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Puts back what `state` gave.

        Args:
            states: of the run that was saved.

        Raises:
            ConfigError: these are not the data, or the teacher, that the run learned from.
        """
        for saved, given in zip((one["teacher"] for one in states if "teacher" in one), self._teachers, strict=False):
            if saved != given:
                raise ConfigError(
                    f"the run learned from a teacher of which the weights, or the text of the function, had the hash "
                    f"{saved[:12]}, and it is now {given[:12]}; a run resumes with the teacher that it began with: "
                    "give a copy of a policy that is trained on"
                )
        states = [one for one in states if "data" in one]
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
        first = self._collect.loaded.values() if isinstance(self._collect, OfflineFirst) else ()
        sources = [
            buffer
            for source in (*first, *self._collect.sources.values(), *self._imitated)
            for buffer in (source.buffers if isinstance(source, MixtureSource) else [source])
        ]
        found = {id(buffer): buffer for buffer in sources if isinstance(buffer, ReplayBuffer)}
        return [buffer for key, buffer in found.items() if key not in own]


def _identity(buffer: ReplayBuffer) -> dict[str, Any]:
    """Number of rows, and a hash of everything but the observations."""
    digest = hashlib.sha256()
    for lane in range(buffer.num_lanes):
        rows = buffer.in_time_order(lane)
        for name in ("step_type", "reward", "discount", "action"):
            for leaf in _leaves(buffer.take(name, rows[:-1] if name == "action" else rows)):
                digest.update(leaf.cpu().contiguous().numpy().tobytes())
    return {"rows": len(buffer), "sha256": digest.hexdigest()}


def _weights(policy: Any) -> str:
    """A hash of a policy's weights and statistics; of a rule, of what it says."""
    digest = hashlib.sha256(getattr(policy, "source", "").encode())
    for name, tensor in sorted(policy.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _leaves(value: Any) -> list[Any]:
    return [leaf for part in value.values() for leaf in _leaves(part)] if isinstance(value, Batch) else [value]


@contextmanager
def _aside(target: Path) -> Iterator[None]:
    """Lays a checkpoint aside while another, which is whole, gets its name; it comes back if that fails."""
    if not target.exists():
        yield
        return
    aside = target.with_name(_ASIDE + target.name)
    target.rename(aside)
    try:
        yield
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)
