"""A few of the random kills of `tests.faults.campaign`; docs/reliability/campaign.md has the result of many."""

import json
import subprocess
import sys

import pytest

from tests.faults.campaign import HOW, drawn
from tests.faults.parts import ROOT, child_environment


def test_trials_are_drawn_from_all_that_there_is():
    cases, plans = zip(*(drawn(0, trial) for trial in range(200)), strict=True)
    assert {(case.algorithm, case.env) for case in cases} == {
        *(("ppo", env) for env in ("CartPole-v1", "HalfCheetah-v5")),
        *(("dqn", "CartPole-v1"), ("sac", "HalfCheetah-v5")),
    }
    assert {case.kind for case in cases} == {"serial", "thread", "process", "ray"}
    assert {1, 16} <= {case.lanes for case in cases} <= set(range(1, 17))
    assert {one.how for plan in plans for one in plan} == set(HOW)
    assert {one.whom for plan in plans for one in plan} == {"main", "group", "worker"}
    assert drawn(0, 7) == drawn(0, 7) != drawn(1, 7)


@pytest.mark.fault
@pytest.mark.slow
def test_runs_that_are_struck_at_random_equal_those_that_are_not(tmp_path):
    """F9, F16, F22, F25, F31: to the last bit, and nothing of them is left; threads and processes."""
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("the campaign needs namespaces of its own, which this user may not have")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tests.faults.campaign", "--first", "6", "--trials", "6", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, env=child_environment(), timeout=570, check=False)
    *trials, sums = (json.loads(line) for line in out.read_text().splitlines())
    assert [trial["wrong"] for trial in trials] == [[]] * 6
    assert sums["equal"] == sums["trials"] == 6
    assert sums["disturbances"] >= 6
