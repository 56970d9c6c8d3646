"""A process killed while it writes a checkpoint leaves the one before (F9)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.parts import TIMEOUT_S, child_environment


def killed(*arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.killed", *arguments],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_kill_at_any_point_of_the_protocol_leaves_a_valid_checkpoint(tmp_path):
    """F9: the new one counts from its rename on, the older one before; nothing is damaged, leftovers are cleaned."""
    results = killed("points", str(tmp_path / "checkpoints"))
    assert not results[-1]["killed"]
    kills = results[:-1]
    for result in kills:
        assert result["right"] is True, result
        assert result["newest"] in (result["acknowledged"], result["acknowledged"] + 1), result
        assert result["corrupt"] == result["uncleaned"] == 0, result
    events = [result["event"].split()[0] for result in kills]
    assert {"os.mkdir", "half", "before", "after", "open", "os.rename", "os.remove", "os.rmdir"} <= set(events)
    at_rename = next(n for n, result in enumerate(kills) if result["event"].startswith("os.rename .tmp-"))
    assert all(result["newest"] == result["acknowledged"] for result in kills[: at_rename + 1])
    assert all(result["newest"] == result["acknowledged"] + 1 for result in kills[at_rename + 1 :])
    assert any(result["left"] for result in kills)


def check_random_kills(folder: Path, count: int, seed: int) -> None:
    results = killed("random", str(folder), str(count), str(seed))
    assert len(results) == count
    for result in results:
        assert result["right"] is True, result
        assert result["acknowledged"] <= result["newest"] <= result["acknowledged"] + 1, result
        assert result["corrupt"] == result["uncleaned"] == 0, result


@pytest.mark.fault
def test_kills_at_random_times_leave_a_valid_checkpoint(tmp_path):
    """F9: whatever was acknowledged is there, or something newer."""
    check_random_kills(tmp_path / "checkpoints", 20, seed=0)


@pytest.mark.fault
def test_two_hundred_kills_at_random_times_leave_a_valid_checkpoint(tmp_path):
    """F9: 200 times."""
    check_random_kills(tmp_path / "checkpoints", 200, seed=1)
