"""Every example runs from any directory: its first steps in this process in the fast tests, whole in the slow ones.

Each takes less than a minute; tests/architecture keeps it short.
"""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "examples" / "robots").glob("*.py")])
TIMEOUT_S = 300
BUDGET = re.compile(r"\b(\d+)_000\b")
"""How examples write env steps, the only thousands in them but for warm-ups of 1,000."""
BEGINS = {"dqn_replay": "3_000"}
"""Env steps after which an example has what its end shows, where these are more than a few."""

every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)


@every_example
def test_example_begins(example, tmp_path, monkeypatch):
    """With 1,200 env steps wherever it takes more than 1,000, or with those of `BEGINS`."""
    begins = BEGINS.get(example.stem, "1_200")
    shortened = tmp_path / example.name
    shortened.write_text(
        BUDGET.sub(lambda found: "1_000" if found[1] == "1" else begins, example.read_text(encoding="utf-8")),
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(shortened)])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    runpy.run_path(str(shortened), run_name="__main__")


def test_the_page_of_examples_names_them_all():
    page = (ROOT / "docs/tutorials/examples.md").read_text()
    there = [path for path in (ROOT / "examples").iterdir() if not path.name.startswith("__")]
    found = [path.name + "/" * path.is_dir() for path in there]
    assert sorted(set(re.findall(r"`(\w+(?:\.py|/))`", page))) == sorted(found)


@pytest.mark.slow
@every_example
def test_example(example, tmp_path):
    runs(example, tmp_path)


def runs(script, folder):
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{script.name} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
