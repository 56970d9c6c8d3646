"""`palaestra venv create`: a Python environment for packages that cannot be installed beside others."""

import importlib.metadata
import itertools
import re
import shlex
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.config.values import read_yaml
from palaestra.core import ConfigError, did_you_mean
from palaestra.core.reading import read_json, read_text


@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions:
    """Options of `palaestra venv create`."""

    folder: str | None = None
    """Where to make it; by default a new folder `venv-FAMILY` here. One that is there already is gone on with."""
    dry_run: bool = False
    """Print what would be installed, and do nothing."""


def create(names: list[str], options: EnvironmentOptions) -> int:
    """Makes a Python environment with this library and one family of packages, in the versions they were run with.

    Returns:
        0, or the exit code of pip.

    Raises:
        ConfigError: there is no such family, two of them exclude each other, or no environment can be made there.
    """
    known = families()
    for name in names:
        if name not in known:
            listed = "".join(f"\n  {family:<12}{facts['is']}" for family, facts in known.items())
            raise ConfigError(f"there is no family {name!r}{did_you_mean(name, known)}; there are{listed}")
    packages = compatible({name: known[name]["packages"] for name in names})
    folder = Path(options.folder or f"venv-{'-'.join(names)}")
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    install = [str(python), "-m", "pip", "install", *library(), *packages]
    print(f"installs    {shlex.join(install[3:])}\nto          {folder}", flush=True)
    if options.dry_run:
        return 0
    if folder.exists() and not (folder / "pyvenv.cfg").is_file():
        raise ConfigError(f"{folder} is there and is no Python environment; name another with --folder")
    try:
        if not (folder / "pyvenv.cfg").is_file() or not python.exists():
            venv.create(folder, with_pip=True)
        code = subprocess.run(install, check=False).returncode
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"no Python environment can be made in {folder}: {error}") from error
    command = python.with_name("palaestra")
    again = f"pip ended with {code}; the same command goes on from here"
    print(again if code else f"next        {command} check-env {known[names[0]]['try']}")
    return code


def families() -> dict[str, dict[str, Any]]:
    """What is known of each family, by its name."""
    return read_yaml(read_text(Path(__file__).with_name("families.yaml")))


def compatible(packages: dict[str, list[str]]) -> list[str]:
    """All packages of several families.

    Args:
        packages: with their versions, by family.

    Raises:
        ConfigError: two ask for different versions of one package.
    """
    for (first, ours), (second, theirs) in itertools.combinations(packages.items(), 2):
        other = dict(_pinned(theirs))
        for package, version in _pinned(ours):
            if other.get(package, version) != version:
                raise ConfigError(
                    f"{first} and {second} exclude each other: {first} was run with {package} {version}, {second} with "
                    f"{other[package]}; make an environment for each"
                )
    return list(dict.fromkeys(itertools.chain(*packages.values())))


def _pinned(packages: Sequence[str]) -> list[tuple[str, str]]:
    parts = [package.partition("==") for package in packages]
    return [(re.sub(r"\[.*\]", "", name), version) for name, _, version in parts]


def library() -> list[str]:
    """How pip installs this library as it is here, beside the torch that it has here."""
    found = importlib.metadata.distribution("palaestra")
    files = [str(file.locate()) for file in found.files or () if file.name == "direct_url.json"]
    origin = read_json(files[0]) if files else {}
    if origin.get("url", "").startswith("file:"):
        editable = origin.get("dir_info", {}).get("editable", False)
        here = ["-e" if editable else "", origin["url"].removeprefix("file://") if editable else origin["url"]]
    else:
        here = [f"palaestra=={found.version}"]
    torch = importlib.metadata.version("torch").partition("+")[0]  # another one may bring gigabytes
    return [*filter(None, here), f"torch=={torch}"]
