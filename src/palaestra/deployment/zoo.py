"""The zoo: trained policies by name, in a folder of this library's repository or at an address that holds the same."""

import http.client
import os
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.core import CheckpointError, ConfigError, did_you_mean, files
from palaestra.core.errors import printable
from palaestra.core.reading import parse_json, read_bytes

__all__ = ["ZooPolicy", "zoo_policies"]

PREFIX = "zoo:"
_VARIABLE, _INDEX, _MANIFEST, _CARD = "PALAESTRA_ZOO", "index.json", "manifest.json", "README.md"
_MOST_BYTES, _TIMEOUT_S = 2**26, 30.0


@dataclass(frozen=True)
class ZooPolicy:
    """A trained policy that can be pulled, and what its receipt says."""

    name: str
    """ALGORITHM/ENVIRONMENT: `palaestra pull zoo:NAME`."""
    environment: str
    """Name of the environment, as `train` takes it."""
    env_steps: int
    """Of its training."""
    return_mean: float
    """Over episodes that are new to it."""
    return_ci95: tuple[float, float]
    """95% interval of that mean over episodes."""
    random_mean: float
    """Mean return of random actions, over as many episodes."""
    elo_ci95: tuple[float, float] | None
    """95% interval of its Elo above random actions, of self-play; there, returns cancel out."""
    size_bytes: int
    """Of all its files."""
    manifest_sha256: str
    """Of `manifest.json`, which has the hash of every other file."""


def zoo_policies() -> list[ZooPolicy]:
    """The policies of the zoo: of `PALAESTRA_ZOO`, a folder or an address; else of the checkout of this library.

    Raises:
        CheckpointError: the zoo cannot be read.
        ConfigError: the library is installed without its repository, and `PALAESTRA_ZOO` is not set.
    """
    place = _place()
    try:
        entries = parse_json(_read(place, _INDEX).decode())["policies"]
        return [_policy(name, entry) for name, entry in entries.items()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{_INDEX} of the zoo {printable(place)} is not what `zoo` writes: {error!r}") from error


def fetch(name: str, folder: Path) -> None:
    """Copies or downloads the files of a policy; whether they are whole is for `check_shared` to say.

    Args:
        name: ALGORITHM/ENVIRONMENT.
        folder: where they are put.

    Raises:
        CheckpointError: a file cannot be read, or the manifest is not the one that the index names.
        ConfigError: the zoo has no such policy.
    """
    known = {one.name: one for one in zoo_policies()}
    if name not in known:
        raise ConfigError(
            f"the zoo has no policy {printable(name)!r}{did_you_mean(name, known)}; `palaestra list policies` has all"
        )
    place = f"{_place()}/{urllib.parse.quote(name)}" if _is_address(_place()) else f"{_place()}/{name}"
    (folder / _MANIFEST).write_bytes(_read(place, _MANIFEST))
    if files.fingerprint(folder / _MANIFEST)["sha256"] != known[name].manifest_sha256:
        raise CheckpointError(f"{_MANIFEST} of {printable(name)} is not the one that the zoo's {_INDEX} names")
    listed: Mapping[str, Any] = files.read_manifest(folder, 1)["files"]
    for file in (*listed, *({_CARD} - set(listed))):
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise CheckpointError(f"{_MANIFEST} of {printable(name)} lists {printable(file)}, which lies elsewhere")
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(_read(place, file))


def _policy(name: str, entry: Mapping[str, Any]) -> ZooPolicy:
    low, high = map(float, entry["return_ci95"])
    elo = entry["elo_ci95"]
    return ZooPolicy(
        printable(str(name)),
        printable(str(entry["environment"])),
        int(entry["env_steps"]),
        float(entry["return_mean"]),
        (low, high),
        float(entry["random_mean"]),
        None if elo is None else (float(elo[0]), float(elo[1])),
        int(entry["size_bytes"]),
        str(entry["manifest_sha256"]),
    )


def _place() -> str:
    if given := os.environ.get(_VARIABLE):
        return given.rstrip("/")
    folder = Path(__file__).resolve().parents[3] / "zoo"
    if (folder / _INDEX).is_file():
        return str(folder)
    raise ConfigError(
        f"no zoo is here: its policies are in the library's repository, not in the installed package. Set {_VARIABLE} "
        f"to a folder or to an address (https://...) that holds the repository's zoo/, with its {_INDEX}"
    )


def _is_address(place: str) -> bool:
    return place.startswith(("https://", "http://"))


def _read(place: str, name: str) -> bytes:
    """A file of the zoo, from a folder or over HTTP."""
    if not _is_address(place):
        return read_bytes(Path(place) / name, _MOST_BYTES)
    address = f"{place}/{urllib.parse.quote(name)}"
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
            data = answer.read(_MOST_BYTES + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise CheckpointError(
            f"{printable(address)} was not read: {printable(str(error))}. Is {_VARIABLE} the address of a folder with "
            f"{_INDEX}, and does that answer?"
        ) from error
    if len(data) > _MOST_BYTES:
        raise CheckpointError(f"{printable(address)} has more than {_MOST_BYTES:,} bytes; no file of a policy has")
    return data
