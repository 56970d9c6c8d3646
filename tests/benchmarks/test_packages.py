"""The table of packages: the page says what the results say, and rows that were not run say so."""

import json
import shlex
import sys

import psutil

from benchmarks.packages import PAGE, RESULTS, ROOT, known, markdown, ran
from palaestra.cli.environments import families


def test_the_page_has_the_results():
    results = json.loads((RESULTS / "packages.json").read_text())
    assert markdown(known(), results) in (ROOT / PAGE).read_text()
    assert len(known()) >= 60 and not results.keys() - known().keys()
    for name, found in results.items():
        assert found["version"] == str(known()[name]["version"]), f"{name} has another version by now: run it again"


def test_what_env_create_says_to_try_next_was_tried():
    results = json.loads((RESULTS / "packages.json").read_text())
    rows = {shlex.join([facts["env"], *facts.get("options", ())]): name for name, facts in known().items()}
    for family, facts in families().items():
        if not facts["try"].startswith("vector:my_robots"):  # of a file of one's own
            assert results[rows[facts["try"]]]["train"] == "yes", family


def test_a_row_that_was_not_run_says_so():
    facts = {"toy": {"version": 1.0, "env": "toy:Toy-v0", "family": "jax", "note": "tiny"}}
    assert "| toy | 1.0 | `toy:Toy-v0` |  | not run |  |  | `palaestra venv create jax`; tiny |" in markdown(facts, {})
    found = {"version": "1.0", "install": "yes", "mib": 3, "check": "27 rules: 0 broken", "train": "yes"}
    assert "| 3 | yes | 27 rules: 0 broken | yes |" in markdown(facts, {"toy": found})


def test_programs_that_a_package_leaves_behind_are_ended_and_not_waited_for(tmp_path, wait_until):
    sleeper = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']).pid"
    done = ran([sys.executable, "-c", f"import subprocess, sys; print({sleeper}); sys.exit(3)"], tmp_path, 60.0)
    assert done.returncode == 3
    left = int(done.stdout)
    wait_until(lambda: not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE)
    done = ran([sys.executable, "-c", f"import subprocess, sys, time; {sleeper}; time.sleep(99)"], tmp_path, 1.0)
    assert (done.returncode, done.stderr) == (124, "not done in 1 s")
