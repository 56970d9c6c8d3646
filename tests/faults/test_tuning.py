"""`palaestra tune` killed in the middle of a trial, and continued."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.experiments.parts import CHAIN
from tests.faults.parts import COMMAND, child_environment, command

pytestmark = pytest.mark.fault

VERB = ("tune", "ppo", CHAIN, "--output", "study", "--trials", "3", "--seeds", "1", "--top", "1", "--fresh-seeds", "2")
SETTINGS = ("--env.max-episode-steps", "6", "--trainer.total-env-steps", "20000", "--run.no-tensorboard")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_search_goes_on_with_the_trials_that_were_running(jobs, tmp_path, wait_until):
    verb = (*VERB, "--jobs", str(jobs))
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *verb, *SETTINGS], cwd=tmp_path, env=child_environment(), start_new_session=True
    )
    metrics = tmp_path / "study/runs/trial_1/seed_0/metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, 120, what="the second trial learns")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    command(*verb, *SETTINGS, "--json", folder=tmp_path)
    summary = json.loads((tmp_path / "study/summary.json").read_text())
    assert summary["complete"] == 3 and not summary["failed"]
    assert sorted(path.name for path in (tmp_path / "study/runs").glob("trial_*")) == ["trial_0", "trial_1", "trial_2"]
    assert "resume" in json.loads((tmp_path / "study/runs/trial_1/seed_0/run.json").read_text())
