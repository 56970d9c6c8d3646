"""What files hold: trees as JSON values and named arrays, safetensors, pieces shared by checkpoints, sealed folders.

Nothing here can run code. Large tensors are cut into segments that are written once and shared by all checkpoints that
hold them: a part of a state says under `segments`, as text, the keys of the pieces in order and how many rows of each
tensor a piece has. A key is given once: what it names never changes again. A sealed folder has a manifest with the
hashes of its files, so damage is found before anything is used.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from palaestra.core.errors import TOLD, CheckpointError, is_news, said
from palaestra.core.nests import join_state, split_state
from palaestra.core.packed import PackedRows, cat_rows
from palaestra.core.reading import opened, parse_json, read_json, require_shallow

__all__ = ["join_state", "load_tensors", "save_tensors", "split_state"]

_SEGMENTS, _ELSEWHERE, _MANIFEST = "segments", "elsewhere", "manifest.json"
_LOCKED_WITHIN_S = 60.0  # unfinished folders are, once they are made


def save_tensors(path: str | Path, tensors: Mapping[str, Any]) -> None:
    """Writes arrays, numbers and text under names, and waits until they are on the disk.

    Args:
        tensors: torch tensors, numpy arrays, packed rows, numbers, booleans, strings or `None` by name.

    Raises:
        TypeError: a value is of none of these kinds (for example an array of objects).
    """
    arrays: dict[str, torch.Tensor] = {}
    kinds: dict[str, Any] = {}
    seen: set[int] = set()
    for name, value in tensors.items():
        if not isinstance(value, np.generic) and (value is None or isinstance(value, str | bool | int | float)):
            kinds[name] = ["value", value]
            continue
        if isinstance(value, PackedRows):
            layout, value = value.apart()
            kinds[name] = ["packed", layout]
        if isinstance(value, np.ndarray | np.generic):
            if value.dtype.kind not in "fiub":
                raise TypeError(f"{name!r} has dtype {value.dtype}; only numbers and booleans can be saved")
            kinds[name] = ["numpy", None]
            value = torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("=")))
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name!r} is a {type(value).__name__}; tensors, arrays, numbers and text can be saved")
        array = value.detach().cpu().contiguous()
        memory = array.untyped_storage().data_ptr()
        arrays[name] = array.clone() if memory in seen else array  # the format wants memory of its own for each name
        seen.add(memory)
    with whole_file(Path(path)) as temporary:
        with open(
            temporary, "ab"
        ) as file:  # says who may read it, by the umask; safetensors would keep it to its owner
            mode = os.fstat(file.fileno()).st_mode
        save_file(arrays, temporary, metadata={"palaestra": json.dumps(kinds)})
        temporary.chmod(mode)
        _flush(temporary)


_ALIGNED = 64  # bytes, as PyTorch's own memory is: elsewhere products of two or three rows have other bits


def load_tensors(path: str | Path) -> dict[str, Any]:
    """What `save_tensors` wrote, with every value of the kind it had.

    Raises:
        CheckpointError: the file is missing, damaged, or not of this format.
    """
    opened(path).close()
    try:
        with safe_open(path, framework="pt") as file:
            kinds = parse_json((file.metadata() or {}).get("palaestra", "{}"))
            found = ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
            loaded: dict[str, Any] = {name: one.clone() if one.data_ptr() % _ALIGNED else one for name, one in found}
        for name, (kind, value) in kinds.items():
            if kind == "packed":
                loaded[name] = PackedRows.joined(value, loaded[name])
            else:
                loaded[name] = loaded[name].numpy() if kind == "numpy" else value
    except (AttributeError, KeyError, OSError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as a safetensors file: {error}") from error
    return loaded


def describe_segments(keys: Sequence[str], rows: Mapping[str, int]) -> str:
    """A part's entry `segments`.

    Args:
        keys: of the pieces, in order.
        rows: of each tensor, by name, in one piece.
    """
    return json.dumps({"keys": list(keys), "rows": dict(rows)})


class Elsewhere(dict[str, Any]):
    """A part whose tensors are held, and whose pieces are written, by another process.

    Args:
        part: the rest of it, with `segments`.
        size_bytes: of the tensors.
        write: begins to write pieces, given their directory and the numbers of those that are new by the names of their
            files; what it returns waits until they are written.
    """

    def __init__(
        self, part: Mapping[str, Any], size_bytes: int, write: Callable[[Path, dict[str, int]], Callable[[], None]]
    ) -> None:
        super().__init__(part)
        self.size_bytes, self.write = size_bytes, write


def write_segments(part: Any, directory: Path, shared: Mapping[str, Path]) -> Any:
    """Writes the pieces of a part, and of those in it; those that a checkpoint before has already are linked.

    Args:
        part: of a state; one without `segments` is left as it is.
        directory: where they go, one file each.
        shared: whole files of the checkpoint before, by name.

    Returns:
        The part without these tensors.
    """
    waits: list[Callable[[], None]] = []
    written = _write_segments(part, directory, shared, waits)
    for wait in waits:
        wait()
    return written


def _write_segments(part: Any, directory: Path, shared: Mapping[str, Path], waits: list[Callable[[], None]]) -> Any:
    if not isinstance(part, Mapping):
        return part
    if _SEGMENTS not in part:
        return {name: _write_segments(value, directory, shared, waits) for name, value in part.items()}
    rows, new = json.loads(part[_SEGMENTS])["rows"], dict[str, int]()
    for number, file in enumerate(_own_files(part)):
        if file in shared:
            link(shared[file], directory / file)
        else:
            new[file] = number
    if isinstance(part, Elsewhere):
        waits.append(part.write(directory, new))
        return {**part, _ELSEWHERE: True}
    for file, number in new.items():
        save_tensors(directory / file, piece_of(part, rows, number))
    return {name: value for name, value in part.items() if name not in rows}


def piece_of(part: Mapping[str, Any], rows: Mapping[str, int], number: int) -> dict[str, Any]:
    """The tensors of one piece.

    Args:
        part: has them whole.
        rows: of each in a piece, by name.
        number: of the piece.
    """
    return {name: part[name][number * n : (number + 1) * n] for name, n in rows.items()}


def segment_files(part: Any) -> list[str]:
    """The names of the files that the pieces of a part, and of those in it, go into; none for one without `segments`.

    Args:
        part: of a state.
    """
    return [file for one in _segmented(part) for file in _own_files(one)]


def _own_files(part: Mapping[str, Any]) -> list[str]:
    return [_segment(key) for key in json.loads(part[_SEGMENTS])["keys"]]


def _segmented(part: Any) -> Iterator[Mapping[str, Any]]:
    """A part that is cut into pieces, or those in it that are."""
    if isinstance(part, Mapping) and _SEGMENTS in part:
        yield part
    elif isinstance(part, Mapping):
        for value in part.values():
            yield from _segmented(value)


def second_copy(file: str) -> str:
    """The name of the second copy of a segment.

    Args:
        file: name of the first.
    """
    return f"copy-of-{file}"


def copy_newest(directory: Path, count: int, shared: Mapping[str, Path]) -> None:
    """Writes second copies of the segments that were written last; those that are there already are linked.

    Args:
        directory: where the segments lie.
        count: how many.
        shared: whole files of the checkpoint before, by name.
    """
    segments = sorted(directory.glob("segment-*"), key=lambda file: file.stat().st_mtime_ns)
    for file in segments[-count:] if count else ():
        copy = directory / second_copy(file.name)
        if copy.name in shared:
            link(shared[copy.name], copy)
            continue
        shutil.copyfile(file, copy)
        _flush(copy)


def unsaved_bytes(part: Any, shared: Mapping[str, Path], copies: int) -> int:
    """Bytes that writing a part of a state will take on the disk, at most.

    Args:
        part: of a state.
        shared: files that are linked and take nothing, by name.
        copies: segments that are written twice.
    """
    size_bytes = sum(tensor.nbytes for tensor in split_state(part)[1].values())
    for one in _segmented(part):
        names = _own_files(one)
        if isinstance(one, Elsewhere):
            size_bytes += one.size_bytes
            segment_bytes = one.size_bytes // max(1, len(names))
        else:
            segment_bytes = sum(one[name][:n].nbytes for name, n in json.loads(one[_SEGMENTS])["rows"].items())
        size_bytes += (min(copies, len(names)) - sum(name in shared for name in names)) * segment_bytes
    return size_bytes


def join_segments(part: Any, directory: Path, damaged: Collection[str] = ()) -> Any:
    """The part that `write_segments` took apart.

    Args:
        part: as it was returned.
        directory: of the checkpoint.
        damaged: names of segments that are not used; their second copies are, where there are any.

    Returns:
        The part. Where pieces are lost, their rows are zeros, and `lost` lists their numbers. What another process
        has written stays apart, with `directory` and `damaged`, for `join_elsewhere` where it is needed.

    Raises:
        CheckpointError: a piece is missing or is none, or all are lost.
    """
    if not isinstance(part, dict):
        return part
    if _SEGMENTS not in part:
        return {name: join_segments(value, directory, damaged) for name, value in part.items()}
    if _ELSEWHERE in part:
        return part | {"directory": str(directory), "damaged": list(damaged)}
    try:
        rows, names, lost = dict(json.loads(part[_SEGMENTS])["rows"]), _own_files(part), []
        pieces: list[dict[str, Any]] = []
        for number, name in enumerate(names):
            use = name if name not in damaged else second_copy(name)
            if name in damaged and (use in damaged or not (directory / use).is_file()):
                lost.append(number)
                pieces.append({})
            else:
                pieces.append(load_tensors(directory / use))
        whole = next((piece for piece in pieces if piece), None)
        if whole is None:
            raise CheckpointError(f"all segments in {directory} are damaged")
        empty = {name: whole[name].new_zeros(n, *whole[name].shape[1:]) for name, n in rows.items()} if lost else {}
        if not pieces[-1]:
            pieces.pop()  # how long it was is not known, and nothing comes after it
        joined = {name: cat_rows([(piece or empty)[name] for piece in pieces]) for name in rows}
        return part | joined | ({"lost": lost} if lost else {})
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"the segments in {directory} do not fit together: {error!r}") from error


def join_elsewhere(part: Mapping[str, Any]) -> Any:
    """A part of `join_segments` with what another process has written.

    Args:
        part: with `directory` and `damaged`.

    Raises:
        CheckpointError: see `join_segments`.
    """
    rest = {name: value for name, value in part.items() if name != _ELSEWHERE}
    return join_segments(rest, Path(part["directory"]), part["damaged"])


def _segment(key: str) -> str:
    if Path(key).name != key:
        raise CheckpointError(f"{key!r} is no name of a segment")
    return f"segment-{key}.safetensors"


def link(source: Path, target: Path) -> None:
    """Gives a file a second name, or makes a copy where there are no links.

    Args:
        source: the file.
        target: its other name.
    """
    try:
        os.link(source, target)
    except OSError:  # this file system has no links
        shutil.copyfile(source, target)


def fingerprint(file: Path) -> dict[str, Any]:
    """Hash and size of a file.

    Args:
        file: its path.
    """
    with opened(file) as stream:
        # not of the path, which another process may have removed by now
        return {"sha256": hashlib.file_digest(stream, "sha256").hexdigest(), "size_bytes": stream.tell()}


@contextlib.contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """A folder among the system's temporary ones that is gone afterwards.

    What a killed process has left, on which nobody holds a lock, goes when the next of its kind is made.

    Args:
        kind: what it is for, a part of its name.
    """
    prefix = f".palaestra-{kind}@{os.uname().nodename}-"  # some locks are known on one machine alone
    _remove_left(Path(tempfile.gettempdir()), prefix)
    folder = Path(tempfile.mkdtemp(prefix=f".new{prefix}"))
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # on file systems without locks nothing is removed, either
            stack.enter_context(_locked(folder))
        folder = folder.rename(folder.with_name(f"{prefix}{uuid.uuid4().hex}"))  # which others look at
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """While entered, `is_news` knows what all processes of a run have said, by empty folders.

    A worker has the variable of the environment as it was when it started (`SupervisedProcess`).
    """
    before = os.environ.get(TOLD)
    with temporary_folder("said") as folder:
        os.environ[TOLD] = str(folder)
        while said:
            is_news(said.pop())
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(TOLD, None)
            else:
                os.environ[TOLD] = before


def _remove_left(parent: Path, prefix: str, before_s: float = float("inf")) -> None:
    """Removes folders that nobody holds a lock on, and that were begun before a time of their file system.

    Others of a name that only begins alike stay: they are the user's, or another machine's.
    """
    for left in parent.glob(f"{prefix}*"):
        if re.fullmatch("[0-9a-f]{32}", left.name.removeprefix(prefix)):
            with contextlib.suppress(OSError), _locked(left):
                if left.stat().st_mtime < before_s:
                    shutil.rmtree(left)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other processes from a folder of this user's.

    Raises:
        OSError: one of them has it, or it is another user's.
    """
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(file).st_uid != os.getuid():
            raise PermissionError(f"{folder} is another user's")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(file)


@contextlib.contextmanager
def whole_folder(target: Path, what: str) -> Iterator[Path]:
    """A folder that gets its name when it is whole and on the disk.

    What a killed process has left of others beside it goes, as `temporary_folder` says.

    Args:
        target: its path.
        what: the folder is, for the error.

    Yields:
        A folder of another name in the same directory, to write the files into.

    Raises:
        CheckpointError: it cannot be written (disk full, no permission); nothing is left of it.
    """
    prefix = f".tmp-{os.uname().nodename}-"
    temporary = target.with_name(f"{prefix}{uuid.uuid4().hex}")
    try:
        temporary.mkdir(parents=True)
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                stack.enter_context(_locked(temporary))
            _remove_left(target.parent, prefix, before_s=temporary.stat().st_mtime - _LOCKED_WITHIN_S)
            yield temporary
            _flush(temporary)
            temporary.rename(target)
        _flush(target.parent)
    except OSError as error:
        raise CheckpointError(f"the {what} at {target} cannot be written: {error.__cause__ or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _flush(path: Path) -> None:
    """Waits until a file, or the list of files of a directory, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some mounts cannot flush a directory, and nobody can do more
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file, and waits until it is on the disk.

    Args:
        value: JSON values.

    Raises:
        CheckpointError: they are nested too deep to be read back.
    """
    try:
        require_shallow(value)
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error
    path.write_text(json.dumps(value))
    _flush(path)


@contextlib.contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A file that gets its name when it is whole: a reader, or a process that dies, finds the old one or the new one.

    Args:
        target: its path.

    Yields:
        A path in the same directory, with the same ending, to write to.

    Raises:
        OSError: it cannot be written (disk full, no permission); names it. Nothing is left of it; the old one stays.
    """
    temporary = target.with_name(f".{target.name}")
    try:
        yield temporary
        temporary.replace(target)
    except (OSError, SafetensorError) as error:  # a full disk is the second where tensors are written
        # the first line alone: encoders of films tell their whole story
        raise OSError(f"{target} cannot be written: {str(error).partition(os.linesep)[0]}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def replace_text(path: Path, text: str) -> None:
    """Writes a text file as `whole_file` does.

    Args:
        path: which file.
        text: what it holds from then on.
    """
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Writes `manifest.json` with a hash of its own, and waits until it is on the disk.

    Args:
        directory: where to.
        manifest: JSON values.
    """
    write_json(directory / _MANIFEST, {**manifest, "sha256": _digest(manifest)})


class OtherFormatError(CheckpointError):
    """A folder is whole, but of a format that this version does not read."""


def read_manifest(directory: Path, newest: int) -> dict[str, Any]:
    """What `seal` or `write_manifest` wrote; `check_files` compares the files with it.

    Args:
        directory: where it lies.
        newest: format version that can be read.

    Raises:
        CheckpointError: it is missing or damaged, or lacks `format_version` or `files`.
        OtherFormatError: the format is newer.
    """
    try:
        manifest = read_json(directory / _MANIFEST)
        digest = manifest.pop("sha256")
        manifest["format_version"], manifest["files"] = int(manifest["format_version"]), dict(manifest["files"])
    except (CheckpointError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{directory} has no readable {_MANIFEST}: {error!r}") from error
    if digest != _digest(manifest):
        raise CheckpointError(f"{directory / _MANIFEST} is damaged: its own hash is wrong")
    if (version := manifest["format_version"]) > newest:
        raise OtherFormatError(f"{directory} has format {version}, this version reads {newest}: update palaestra")
    return manifest


def damaged_files(directory: Path, files: Mapping[str, Any]) -> list[str]:
    """The names of files that are missing, or not what their fingerprints say.

    Args:
        directory: where they lie.
        files: fingerprint by name.
    """
    return [name for name, expected in files.items() if not is_whole(directory / name, expected, name)]


def is_whole(file: Path, expected: Any, name: str | None = None, *, read: bool = True) -> bool:
    """Whether a file is what its fingerprint says.

    Args:
        file: its path.
        expected: its fingerprint.
        name: that a manifest gives it; it has to be that of a file in the same folder.
        read: whether to compare the hash; otherwise only the size.
    """
    if (name is not None and Path(name).name != name) or not file.is_file():
        return False
    return fingerprint(file) == expected if read else file.stat().st_size == expected["size_bytes"]


def check_files(directory: Path, files: Mapping[str, Any]) -> None:
    """Compares files with their fingerprints.

    Args:
        directory: where they lie.
        files: fingerprint by name.

    Raises:
        CheckpointError: one is missing or damaged; names it.
    """
    for name in damaged_files(directory, files):
        raise damage(directory / name)


def damage(file: Path) -> CheckpointError:
    """The error that says that a file is missing or damaged.

    Args:
        file: its path.
    """
    return CheckpointError(f"{file} is missing or damaged: its hash is not the one in {_MANIFEST}")


def seal(directory: Path, format_version: int, known: Mapping[str, Any] | None = None, **facts: Any) -> None:
    """Writes `manifest.json` with the hashes of all files of a folder, and waits until it is on the disk.

    Hidden files are left out: a system puts some into folders (`.DS_Store`, `._name`), and takes them away.

    Args:
        directory: complete but for the manifest.
        format_version: of what is in the folder.
        known: fingerprints by name, of files that need not be read again.
        facts: JSON values that the manifest holds too.
    """
    names = sorted(file.name for file in directory.iterdir() if file.name != _MANIFEST and file.name[0] != ".")
    files = {name: (known or {}).get(name) or fingerprint(directory / name) for name in names}
    write_manifest(directory, {"format_version": format_version, **facts, "files": files})


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
