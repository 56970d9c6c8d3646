"""Whether a run directory may have the code imported that its configuration names."""

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from palaestra.core import ConfigError, trust
from palaestra.core.importing import code_of, is_trusted
from palaestra.envs.suites import envpool
from palaestra.multiagent import pettingzoo

__all__ = []

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_KEY_SIZE = 32
_LIBRARIES = (envpool.PREFIX, pettingzoo.PREFIX, "minari:")


def require_trust(config: Mapping[str, Any], directory: Path) -> None:
    """Refuses a run whose configuration names code that is neither this library's nor its reader's (`is_trusted`).

    A run that this user made on this machine is trusted as long as its configuration is the one that was written.

    Args:
        config: what `config.yaml` holds.
        directory: of the run.

    Raises:
        ConfigError: it names such code; the message says what would be imported, and from where.
    """
    names = [(path, name) for path, name in _names(config) if not is_trusted(name, directory)]
    if names and _signed(directory):
        trust(directory)
    elif names:
        strange = "; ".join(f"{path} = {name!r} ({code_of(name)})" for path, name in names)
        raise ConfigError(
            f"the run {directory} was not made by you on this machine, and names code that is neither part of "
            f"palaestra nor in the working directory: {strange}. Opening the run would import and run it. If you know "
            "where the run comes from, give --trust, or call palaestra.core.trust(directory)"
        )


def sign(directory: Path) -> str | None:
    """What shows that this user wrote a run's `config.yaml`: its digest under a key that stays on this machine.

    Args:
        directory: of the run.

    Returns:
        The digest, or `None` where the key can be neither read nor written.
    """
    key = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "palaestra/key"
    try:
        if not key.exists() or key.stat().st_size != _KEY_SIZE:  # a full disk may have left an empty one
            key.parent.mkdir(parents=True, exist_ok=True)
            key.touch(mode=0o600)
            key.write_bytes(secrets.token_bytes(_KEY_SIZE))
        secret = key.read_bytes()
        if len(secret) != _KEY_SIZE:
            return None
        return hmac.new(secret, (directory / "config.yaml").read_bytes(), hashlib.sha256).hexdigest()
    except OSError:
        return None  # no home: such runs are trusted when told to


def _signed(directory: Path) -> bool:
    try:
        given = json.loads((directory / "run.json").read_text())["signature"]
    except (OSError, ValueError, TypeError, KeyError):
        return False
    mine = sign(directory)
    return mine is not None and isinstance(given, str) and hmac.compare_digest(given.encode(), mine.encode())


def _names(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Where the data name code, and which; in arguments too, for what is made may import what it is given."""
    if isinstance(data, str) and not data.startswith(_LIBRARIES):
        yield from ((path, name) for name in _NAME.findall(data))
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from _names(value, f"{path}.{key}".lstrip("."))
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _names(value, path)
