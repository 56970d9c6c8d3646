"""How deep the library is: calls from the command line to learning, and how a configuration travels."""

import inspect
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from palaestra import ExperimentConfig, preset
from palaestra.algorithms import PPO
from palaestra.cli import main
from palaestra.experiments.build import make_learner
from tests.architecture.source import ROOT

OWN = str(ROOT / "src/palaestra")
SMALL = ("--trainer.total-env-steps", "256", "--trainer.eval-episodes", "1", "--run.no-tensorboard")


def calls() -> list[str]:
    """The library's functions on the stack, the outermost first."""
    frames = [frame for frame in inspect.stack(context=0)[1:] if frame.filename.startswith(OWN)]
    return [f"{Path(frame.filename).relative_to(OWN)}:{frame.function}" for frame in reversed(frames)]


@pytest.fixture
def stacks(tmp_path, monkeypatch):
    """The calls down to `Algorithm.update` and down to autograd, of a small run from the command line."""
    found: dict[str, list[str]] = {}
    update, grad = PPO.update, torch.autograd.grad

    def watched_update(self: Any, source: Any) -> Any:
        found.setdefault("update", [*calls(), "update"])
        return update(self, source)

    def watched_grad(*arguments: Any, **options: Any) -> Any:
        found.setdefault("grad", [*calls(), "torch.autograd.grad"])
        return grad(*arguments, **options)

    monkeypatch.setattr(PPO, "update", watched_update)
    monkeypatch.setattr(torch.autograd, "grad", watched_grad)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        main(["train", "ppo", "CartPole-v1", *SMALL])
    return found


def test_seven_calls_lead_from_the_command_line_to_the_update(stacks):
    assert len(stacks["update"]) <= 7, "\n".join(stacks["update"])


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
