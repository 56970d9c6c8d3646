"""Kills inside each window of a command's life; docs/reliability/campaign.md has the result of many."""

import json
import subprocess
import sys

import pytest

from benchmarks import kills
from tests.faults.parts import ROOT, child_environment


def test_trials_take_turns_in_the_windows():
    trials = [kills.drawn(trial) for trial in range(560)]
    counts = {window.name: sum(one.name == window.name for one, _ in trials) for window in kills.WINDOWS}
    assert len(counts) == len(kills.WINDOWS)
    assert list(counts.values()) == [20] * kills.FIRST + [10] * (len(kills.WINDOWS) - kills.FIRST)
    assert {one.how for _, plan in trials for one in plan} == {"KILL", "TERM", "INT", kills.FULL}
    assert kills.drawn(7) == kills.drawn(7)


def test_an_empty_window_and_a_trial_that_did_not_hold_are_seen():
    """The mutant: strikes are counted, not trials."""
    one = {"window": "unroll", "struck": {"KILL": 2}, "wrong": [], "revision": "a"}
    said = kills.summary([one, {**one, "struck": {}, "wrong": ["a weight"]}])
    assert "| unroll | 2 | KILL 2 | 1 |" in said
    assert "| update | 0 | none | 0 |" in said
    assert "| **all** | **2** | **2** | **1** |" in said


def test_a_window_says_how_a_struck_command_may_end():
    windows = {window.name: window for window in kills.WINDOWS}
    assert windows["unroll"].may_end("TERM") == {143, -15}
    assert windows["a learner"].may_end("KILL") == {3}
    assert windows["a worker"].may_end("KILL") == set()  # the run replaces it


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("window", ["unroll", "saving a replay", "environments"])
def test_f36_what_is_struck_in_a_window_ends_equal(window, tmp_path):
    """F9, F16, F22, F25: to the last bit, and nothing is left."""
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("the campaign needs namespaces of its own, which this user may not have")
    count = str(2 * kills.FIRST)
    command = [sys.executable, "-m", "benchmarks.kills", "--window", window, "--count", count]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "none")],
        cwd=ROOT,
        env=child_environment(),
        timeout=570,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    trials = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [trial["wrong"] for trial in trials] == [[], []]
    assert sum(sum(trial["struck"].values()) for trial in trials) >= 1
