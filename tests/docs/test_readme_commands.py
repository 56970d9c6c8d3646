"""Every command of the README is run as it is typed, with numbers that make it short."""

import importlib.util
import re
import shutil

import pytest

from tests.docs.test_code_blocks import ROOT
from tests.faults.parts import command

SHORT = "--trainer.total-env-steps 400 --trainer.eval-episodes 2 --run.no-tensorboard"
TRIALS = "--trials 2 --seeds 1 --top 1 --fresh-seeds 2 --fresh-episodes 2 --trainer.total-env-steps 1500"
MODULE = """
import gymnasium.envs.classic_control
from tests.robots.test_robot import Plain as MyRobot
class MyEnvironment(gymnasium.envs.classic_control.CartPoleEnv): pass
"""
# What stands for a name in the README, what is added, and what has to be printed.
COMMANDS = {
    "train ppo CartPole-v1": ({}, SHORT, "evaluation"),
    "train ppo CartPole-v1 --seeds 5": ({}, SHORT, "mean of 5 of 5 seeds"),
    "train ppo palaestra.envs.tiny:TensorCartPole --seeds 64 --run.together": (
        {},
        f"{SHORT} --env.max-episode-steps 20 --algorithm.unroll-length 16",
        "64 of 64 seeds",
    ),
    "train ppo palaestra.envs:Go1Joystick": ({}, "--dry-run", "env steps"),
    "train dagger Pendulum-v1 --algorithm.teacher RUN": ({"RUN": "others/pendulum"}, SHORT, "evaluation"),
    "train sac Pendulum-v1 --algorithm.bonus.kind gail --offline.data demo": (
        {},
        f"{SHORT} --algorithm.learning-starts 200",
        "evaluation",
    ),
    "train ppo jax:gymnax:CartPole-v1": ({}, SHORT, "evaluation"),
    "data collect random Pendulum-v1 demo --steps 10000": ({"demo": "new", "10000": "400"}, "", "400 steps"),
    "train cql Pendulum-v1 --offline.data demo": ({}, SHORT.replace("400", "5"), "5 / 5 updates"),
    "data evaluate RUN demo": ({"RUN": "others/pendulum"}, "--updates 10 --members 2", "discounted by"),
    "train ppo CartPole-v1 --runtime process --num-workers 2": ({}, SHORT, "evaluation"),
    "train ppo pettingzoo:classic/tictactoe-v3 --agents.self-play.pool-size 10": ({}, SHORT, "evaluation"),
    "rate RUN RUN@last": ({"RUN": "others/game", "RUN@last": "others/game@last"}, "--json", "elo"),
    "train my_package:MyRobot Pendulum-v1": ({"Pendulum-v1": "CartPole-v1"}, SHORT, "evaluation"),
    "train ppo ALE/Pong-v5 --device cuda": ({"cuda": "cpu"}, "--dry-run", "env steps"),
    "resume last": ({}, "--until 800", "resumed at"),
    "verify --run last": ({}, "", "iterations"),
    "eval last --episodes 100": ({"100": "4"}, "", "4 episodes"),
    "play last": ({}, "--episodes 1", "play.mp4"),
    "export last": ({}, "", "policy.onnx"),
    "pull zoo:ppo/CartPole-v1": ({}, "", "shared/ppo_CartPole-v1"),
    "share last": ({}, "", "shared/first"),
    "train --from": ({"train": "train ppo CartPole-v1", "--from": "--from first"}, SHORT, "evaluation"),
    "diagnose last": ({}, "", "runs/first: nothing found"),
    "tune dqn CartPole-v1": ({}, TRIALS, "winner's curse"),
    "stats ours=last theirs=logs": ({}, "--env CartPole-v1", "theirs"),
    "plot last": ({}, "", "env steps"),
    "report last": ({}, "", "report.html"),
    "compare A B": ({"A": "first", "B": "others/other"}, "", "first"),
    "list algorithms": ({}, "", "ppo"),
    "show-code ppo": ({}, "", "class PPO"),
    "bench CartPole-v1": ({}, "--duration-s 0.05 --repetitions 1", "env steps/s"),
    "check-env my_package:MyEnvironment": ({}, "", "rules"),
    "doctor": ({}, "", "python"),
}
ELSEWHERE = {
    "serve last": "tests/acceptance/test_first_day.py",
    "venv create robotics": "tests/cli/test_environments.py",
}
NEEDS = {
    "jax:gymnax": "gymnax",
    "Go1Joystick": "mujoco",
    "ALE/": "ale_py",
    "pettingzoo:": "pettingzoo",
    "rate ": "pettingzoo",
    "tune ": "optuna",
    "play ": "imageio",
    "export ": "onnx",
}


def named():
    """The commands of the README's fences and table; those after the first of a row leave out `palaestra`."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`palaestra .*?) \| ", text, re.MULTILINE)
    typed = [one for row in rows for one in re.findall(r"`([^`]+)`", row)]
    typed += re.findall(r"^palaestra .*$", text, re.MULTILINE)
    return [one.removeprefix("palaestra ").partition(" #")[0].strip() for one in typed]


def test_all_commands_are_tried():
    assert set(named()) == {*COMMANDS, *ELSEWHERE}
    for typed, file in ELSEWHERE.items():
        assert f'"{typed.split()[0]}"' in (ROOT / file).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with what the commands name: runs, data, logs, a module."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "my_package.py").write_text(MODULE)
    shutil.copytree(ROOT / "tests/analysis/logs/sb3", folder / "logs")
    short, others = SHORT.split(), ("--run.directory", "others")  # so that `last` is one
    command("data", "collect", "random", "Pendulum-v1", "demo", "--steps", "600", folder=folder)
    command("train", "ppo", "Pendulum-v1", *short, *others, "--run.name", "pendulum", folder=folder)
    if importlib.util.find_spec("pettingzoo"):
        game = ("pettingzoo:classic/tictactoe-v3", "--agents.self-play.pool-size", "2")
        command("train", "ppo", *game, *short, *others, "--run.name", "game", folder=folder)
    for options in (
        ("--run.name", "other", *others),
        ("--run.name", "first", "--trainer.checkpoint-every-steps", "100"),
    ):
        command("train", "ppo", "CartPole-v1", *short, *options, folder=folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("typed", COMMANDS)
def test_a_command_does_what_it_says(typed, made, tmp_path):
    for part, package in NEEDS.items():
        if part in typed:
            pytest.importorskip(package)
    stands_for, added, said = COMMANDS[typed]
    words = " ".join(stands_for.get(word, word) for word in typed.split()).split() + added.split()
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    text = command(*words, folder=tmp_path)
    assert said in " ".join(text.split()), text
