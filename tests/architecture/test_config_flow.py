"""How a configuration travels through the files that make what learns."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from palaestra import ExperimentConfig, preset
from palaestra.runs.build import make_learner
from tests.architecture.source import ROOT

OWN = str(ROOT / "src/palaestra")


def returns_of_config(run: Any) -> list[str]:
    """The files into which a configuration is passed again after it had left them."""
    files: list[str] = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(OWN):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if not any(isinstance(frame.f_locals.get(name), ExperimentConfig) for name in names):
            return
        file = str(Path(code.co_filename).relative_to(OWN))
        if file != "experiments/config.py" and (not files or files[-1] != file):
            files.append(file)

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return [file for number, file in enumerate(files) if file in files[:number]]


@pytest.mark.parametrize("env", ["CartPole-v1", "palaestra.multiagent:Meeting"])
def test_a_configuration_moves_forward_on_its_way_to_what_learns(env):
    config = preset("ppo", env)
    returns = returns_of_config(lambda: make_learner(config))
    assert len(returns) <= 2, returns
