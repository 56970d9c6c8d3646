"""The command line in this process."""

import re
from pathlib import Path

import pytest

from palaestra.cli import main

CHAIN = ("palaestra.envs.tiny:Chain", "--env.max-episode-steps", "6", "--env.num-envs", "2")
SHORT = ("--trainer.total-env-steps", "48", "--trainer.eval-episodes", "2", "--run.no-tensorboard")


def exit_code(*arguments: str) -> int:
    """What the process would end with."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def output(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, with runs of blanks as one."""
    captured = capsys.readouterr()
    return re.sub(r"[ \t]+", " ", captured.out + captured.err)


def train(*options: str, name: str = "run") -> Path:
    """Trains a small run below the current folder."""
    sizes = ("--algorithm.unroll-length", "8", "--algorithm.network.hidden-sizes", "8")
    assert exit_code("train", "ppo", *CHAIN, *SHORT, *sizes, "--run.name", name, *options) == 0
    return Path("runs") / name
