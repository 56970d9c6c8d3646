"""Where a number comes from: command, date, versions, hardware, revision."""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("palaestra", "torch", "numpy", "gymnasium")


def provenance(command: str) -> dict[str, Any]:
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **versions(PACKAGES)},
        "hardware": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "revision": revision(),
    }


def versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "source tree"
    return found


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def revision() -> str | None:
    """The commit that was measured, with `+` where the code differs from it."""
    status = ["status", "--porcelain", "-uno", "--", "src", "benchmarks", ":(exclude,glob)benchmarks/**/results/**"]
    try:
        commit, changes = (
            subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True, timeout=10).stdout
            for args in (["rev-parse", "--short=12", "HEAD"], status)
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.strip() + ("+" if changes else "")


def origin(record: Mapping[str, Any]) -> str:
    """The provenance as lines under a table."""
    hardware = record["hardware"]
    installed = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return (
        f"`{record['command']}` on {record['date'][:10]}; {hardware['cpu']}, {hardware['cores']} cores, "
        f"{hardware['system']}; {installed}; revision {record['revision'] or 'unknown'}."
    )


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def publish(path: Path, text: str, page: str, place: str = "measured") -> None:
    """Writes a result, and, if it is one of those that are committed, puts it into a page of the documentation.

    Args:
        path: of the result.
        text: markdown.
        page: below the root; what stands between `<!-- measured -->` and the next `<!-- end -->` is replaced.
        place: what stands there instead of `measured`, on a page with several results.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    if path.resolve().is_relative_to(ROOT):
        before, after = f"<!-- {place} -->", "<!-- end -->"
        head, _, rest = (ROOT / page).read_text().partition(before)
        (ROOT / page).write_text(f"{head}{before}\n\n{text}\n\n{after}{rest.partition(after)[2]}")
