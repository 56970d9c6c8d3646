"""Whether a run directory may have the code imported that its configuration names."""

import hmac
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.core import CheckpointError, ConfigError
from palaestra.core.errors import printable, refuses
from palaestra.core.importing import code_of, strange_code, trust_own, trusts
from palaestra.core.reading import read_bytes, read_json
from palaestra.envs.suites import envpool, jax
from palaestra.multiagent import loading

_KEY_SIZE = 32
_INSTEAD = "If you know where the run comes from, give --trust, or call palaestra.core.trust(directory)"
_ENVS = (envpool.PREFIX, jax.PREFIX, loading.PREFIX)
_LIBRARIES = {"env.name": _ENVS, "env.variants.name": _ENVS, "offline.data": ("minari:", "d4rl:")}
"""What a setting begins with where it names something of a library's, and no code."""


@refuses(ConfigError)
def require_trust(config: Mapping[str, Any], directory: Path) -> Iterator[str]:
    """Refuses a run whose configuration names code that is neither this library's nor its reader's (`is_trusted`).

    A run that this user made on this machine is trusted, but for code in it, as long as its configuration is the one
    that was written.

    Args:
        config: what `config.yaml` holds.

    Raises:
        ConfigError: it names such code; the message says what would be imported, and from where.
    """
    if own := _signed(directory):
        trust_own(directory)
    names = [*strange_code(config, directory, plain=_LIBRARIES)]
    if not (own or trusts(directory)) and (reaches := [*_reaches(config)]):
        yield (
            f"the run {directory} was not made by you on this machine, and would write files of its choice or connect "
            f"elsewhere: {'; '.join(reaches)}. {_INSTEAD}"
        )
    if not names:
        return
    listed = "; ".join(f"{path} = {name!r} ({code_of(name)})" for path, name in names)
    if own:
        yield (
            f"the run {directory} names code that lies in a run, where others may have put it: {listed}. Move the code "
            "elsewhere, or give --trust, or call palaestra.core.trust(directory)"
        )
    yield (
        f"the run {directory} was not made by you on this machine, and names code that is neither part of "
        f"palaestra nor in the working directory: {listed}. Opening the run would import and run it. {_INSTEAD}"
    )


@refuses(ConfigError)
def require_plain(directory: Path, members: Sequence[Path] = ()) -> Iterator[str]:
    """Refuses a folder with pipes, devices or links in it: through these, files elsewhere would be read and written.

    A run of this user may have links: they may lead to a larger disk, and services leave some.

    Args:
        directory: of a run; or of a group, of which what lies beside its runs is looked at.
        members: the runs of a group, which is this user's if they are.

    Raises:
        ConfigError: names the first one.
    """
    folders, own = [directory], trusts(directory) or all(map(_signed, members or [directory]))
    for folder in folders:
        try:
            entries = [*os.scandir(folder)]
        except OSError:
            continue  # a run that goes on removes folders, and what cannot be read is missed where it is needed
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders += [] if members else [Path(entry.path)]
            elif entry.is_symlink() and not own:
                yield (
                    f"{printable(entry.path)} is a link, through which a stranger's run could reach your files. "
                    f"{_INSTEAD}"
                )
            elif (path := Path(entry.path)).exists() and not (path.is_file() or path.is_dir()):
                yield f"{printable(entry.path)} is a pipe or a device; a run has files alone: remove it"


def _reaches(data: Any, path: str = "") -> Iterator[str]:
    """Settings that write files or open connections."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _reaches(value, f"{path}.{key}".lstrip("."))
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _reaches(value, path)
    elif isinstance(data, str) and ("RecordVideo" in data or re.split(r"\.|__", path) == ["distributed", "address"]):
        yield f"{path} = {data!r}"


def require_services(loggers: Sequence[str], directory: Path) -> None:
    """Refuses to go on with the run of another where it would tell services of it, with its reader's account.

    Args:
        loggers: `run.loggers`.
        directory: of the run.

    Raises:
        ConfigError: it would.
    """
    if loggers and not (trusts(directory) or _signed(directory)):
        raise ConfigError(
            f"the run {directory} was not made by you on this machine, and would connect with your account to "
            f"{', '.join(loggers)}; leave that out (--override run.loggers=[]). {_INSTEAD}"
        )


def sign(config: bytes) -> str | None:
    """What shows that this user wrote a run's `config.yaml`: its digest under a key that stays on this machine.

    Args:
        config: what the file holds.

    Returns:
        The digest, or `None` where the key can be neither read nor written.
    """
    try:
        key = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "palaestra/key"
        if not key.exists() or key.stat().st_size != _KEY_SIZE:  # a full disk may have left an empty one
            key.parent.mkdir(parents=True, exist_ok=True)
            (fresh := key.with_name(f"key.{secrets.token_hex(8)}")).touch(mode=0o600)
            try:
                fresh.write_bytes(secrets.token_bytes(_KEY_SIZE))
                if key.exists() and key.stat().st_size != _KEY_SIZE:
                    key.unlink()
                try:
                    os.link(fresh, key)
                except OSError:  # another process was first, and its key is the one; or there are no links here
                    if not key.exists():
                        fresh.replace(key)
            finally:
                fresh.unlink(missing_ok=True)
        secret = read_bytes(key)
        if len(secret) != _KEY_SIZE:
            return None
        return hmac.new(secret, config, "sha256").hexdigest()
    except (OSError, RuntimeError, CheckpointError):
        return None  # no home: such runs are trusted when told to


def config_with_record(directory: Path, name: str) -> tuple[bytes, list[Any]]:
    """`config.yaml`, and what `run.json` says of it at the same moment, whatever another process writes meanwhile.

    Args:
        name: of the entry.

    Returns:
        What the file holds, and the entry of it; while it is being replaced that of the file before as well.

    Raises:
        CheckpointError: one of the files is missing or damaged.
    """
    while True:
        data, info = read_bytes(directory / "config.yaml"), read_json(directory / "run.json")
        if read_bytes(directory / "config.yaml") == data:
            break
    try:
        return data, [info.get(name), *(one[name] for one in info.get("config_before", ()))]
    except (AttributeError, TypeError, KeyError) as error:
        raise CheckpointError(f"{directory / 'run.json'} is damaged: {error!r}") from error


def _signed(directory: Path) -> bool:
    try:
        config, given = config_with_record(directory, "signature")
    except CheckpointError:
        return False
    mine = sign(config)
    texts = [one.encode() for one in given if isinstance(one, str)]
    return mine is not None and any(hmac.compare_digest(text, mine.encode()) for text in texts)
