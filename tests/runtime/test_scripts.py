"""What a script defines itself is found by its workers; where it cannot be, the error says what to do."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("scripts.py")
RAY = pytest.param(
    "ray",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'palaestra[ray]'"
    ),
)


def run(folder, *arguments, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False, **options
    )


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["process", RAY])
def test_workers_find_what_the_script_defines(runtime, tmp_path):
    """MARO-01: an environment, a factory, lambdas and closures in `__main__`, on processes and on Ray."""
    done = run(tmp_path, str(SCRIPT), runtime)
    assert done.stdout.split()[-4:] == ["heard", "closure!", "closure!!", "done"], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["process", RAY])
def test_a_script_that_is_no_file_is_told_to_become_a_module(runtime, tmp_path):
    """F27: typed at a prompt, in a notebook, or piped."""
    done = run(tmp_path, "-", runtime, input=SCRIPT.read_text())
    assert done.returncode == 1
    assert "Move it into a module that can be imported wherever workers live" in done.stderr
