"""Where a new run goes: a directory of its own name, which is none of a group's."""

import logging
import os
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from palaestra.config.config import ExperimentConfig
from palaestra.core import CheckpointError, ConfigError
from palaestra.core.files import whole_folder
from palaestra.core.importing import GIVEN

_log = logging.getLogger(__name__)


def beside_group(folder: Path) -> Path:
    """The folder; where it is that of a group, the one that it lies in.

    Args:
        folder: that a new run is asked for in.
    """
    if not (folder / "group.json").is_file():
        return folder
    return Path(os.path.relpath(folder.resolve().parent)) if folder.name in ("", "..") else folder.parent


@contextmanager
def new_folder(config: ExperimentConfig, suffix: str) -> Iterator[tuple[Path, Path]]:
    """A directory that did not exist: `run.name`, or date, algorithm, environment and a suffix.

    Args:
        suffix: the last part of the name.

    Yields:
        Its path, and a folder to fill, which gets that path when it is whole.

    Raises:
        CheckpointError: it cannot be written; nothing is left of it.
        ConfigError: the name is taken, or nothing can be written there.
    """
    target = _claimed(config, suffix)
    try:
        with whole_folder(target, "run") as unfinished:
            yield target, unfinished
    except BaseException as error:
        with suppress(OSError):  # it holds nothing yet, or it is somebody else's by now
            target.rmdir()
        if isinstance(error, CheckpointError) and target.is_dir():  # who was given the same name was quicker
            _refuse_taken(target)
        raise


@contextmanager
def claimed_folder(target: Path, what: str) -> Iterator[Path]:
    """An empty folder of this name; or, where the name has been taken, of the next free one, `data_2` say.

    For what took long to make, and would be lost if it were refused. A folder that stays empty goes.

    Args:
        target: its path.
        what: goes into it, for the warning and the error.

    Yields:
        The folder, to be filled, or replaced by a `whole_folder`.

    Raises:
        CheckpointError: it cannot be made.
    """
    folder, number = target, 1
    while True:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            number += 1
            folder = target.with_name(f"{target.name}_{number}")
        except OSError as error:
            raise CheckpointError(f"the {what} at {target} cannot be written: {error}") from error
    if folder != target:
        _log.warning("%s has come to exist meanwhile; the %s is in %s", target, what, folder)
    try:
        yield folder
    finally:
        with suppress(OSError):  # it is filled
            folder.rmdir()


def _refuse_taken(path: Path) -> NoReturn:
    is_run = (path / "config.yaml").is_file() or (path / "group.json").is_file()
    instead = f", or continue it with `palaestra resume {shlex.quote(str(path))}`" if is_run else ""
    raise ConfigError(f"the run directory {path} exists already; choose another name{instead}") from None


def _claimed(config: ExperimentConfig, suffix: str) -> Path:
    """An empty directory; of a name that was given it may be one that a killed process has left."""
    root = Path(config.run.directory)
    env = config.env.name.removeprefix(f"{GIVEN}:")
    names = [re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") for name in (config.algorithm_name, env)]
    stem = config.run.name or "_".join([time.strftime("%Y-%m-%d_%H-%M-%S"), *names, suffix])
    path, number = root / stem, 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if config.run.name and path.is_dir() and not any(path.iterdir()):
                return path
            if config.run.name:
                _refuse_taken(path)
            number += 1
            path = root / f"{stem}_{number}"
        except OSError as error:
            raise ConfigError(f"the run directory {path} cannot be made: {error}") from error
