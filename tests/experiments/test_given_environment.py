"""An environment that is given to `train` as an object, or as what makes one, where no module has it by name."""

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import palaestra
from palaestra import EnvConfig, create_environment
from palaestra.core import ConfigError
from palaestra.envs import GymEnvironment, TimeLimit
from palaestra.envs.tiny import Chain
from palaestra.multiagent import Meeting
from palaestra.runs.run_directory import RunDirectory

SMALL: dict[str, Any] = {
    "trainer__total_env_steps": 64,
    "trainer__eval_episodes": 2,
    "algorithm__unroll_length": 16,
    "env__num_envs": 2,
}


class Local(gymnasium.Env[Any, Any]):
    """Of Gymnasium, with an argument that no setting has."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: Callable[[], int]) -> None:
        self.length, self.steps = length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.ones(2, np.float32), float(action), self.steps >= self.length(), False, {}


def given() -> dict[str, Any]:
    class Inside(Local):
        def __init__(self) -> None:
            super().__init__(lambda: 5)

    return {
        "object": Local(lambda: 5),
        "lambda": lambda: Local(lambda: 5),
        "partial": functools.partial(Local, lambda: 5),
        "class": Inside,
        "single": TimeLimit(GymEnvironment(Chain()), 20),
        "gym.make": gymnasium.make("CartPole-v1"),
        "agents": Meeting(),
    }


@pytest.mark.parametrize("kind", given())
def test_what_has_no_name_trains_is_evaluated_and_resumed_in_this_process(kind: str, tmp_path: Path) -> None:
    """USERS 3: lambdas, objects, local classes; each lane and each evaluation has one of its own."""
    done = palaestra.train("ppo", given()[kind], run__directory=str(tmp_path), **SMALL)
    assert RunDirectory(done.directory).config.env.name.startswith("__given__:")
    assert "__" not in Path(done.directory).name
    assert kind != "gym.make" or "CartPole_v1" in Path(done.directory).name
    assert done.result.status == "done"
    assert done.result.evaluation is not None
    assert palaestra.evaluate_run(done.directory, episodes=2).return_mean is not None
    assert palaestra.resume(done.directory, trainer__total_env_steps=128).result.env_steps >= 128


def test_each_lane_steps_a_copy_of_an_object() -> None:
    mine = Local(lambda: 5)
    with create_environment(EnvConfig(name=mine, num_envs=2)) as env:  # pyright: ignore[reportArgumentType]
        env.reset()
        rows = [env.step(torch.tensor([0, 1])) for _ in range(6)]
    assert [row.step_type.tolist() for row in rows[3:]] == [[1, 1], [2, 2], [0, 0]]
    assert mine.steps == 0


SAME = Local(lambda: 5)
STEPPED = GymEnvironment(Local(lambda: 5))


def meeting() -> Meeting:
    return MEETING


MEETING = Meeting()


@pytest.mark.parametrize(
    ("make", "num_envs"),
    [
        (lambda: SAME, 2),
        (lambda: SAME, 1),  # by training and by the evaluation
        (lambda: gymnasium.wrappers.TimeLimit(SAME, 3), 2),
        (lambda: STEPPED, 2),
        (meeting, 2),
    ],
    ids=["lanes", "evaluation", "layers", "single", "agents"],
)
def test_what_gives_one_object_to_several_is_refused(make: Any, num_envs: int, tmp_path: Path) -> None:
    """Wrong without a word: each would be in the episodes of the others. A mean of 3.0 was reported."""
    with pytest.raises(ConfigError, match=r"the same (Local|Meeting) as one that is stepped already.*; make a new one"):
        palaestra.train("ppo", make, run__directory=str(tmp_path), **(SMALL | {"env__num_envs": num_envs}))


def test_an_object_that_was_closed_may_be_stepped_again() -> None:
    for _ in range(2):
        with create_environment(EnvConfig(name=lambda: SAME)) as env:  # pyright: ignore[reportArgumentType]
            env.reset()


def test_two_names_of_an_environment_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is for ppo on CartPole-v1, but ppo on __given__:Local"):
        palaestra.train("ppo", Local(lambda: 5), env__name="CartPole-v1", run__directory=str(tmp_path), **SMALL)


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"env__vectorization": "process"},
        {"distributed__runtime": "process", "distributed__num_workers": 2},
        {"run__eval_vectorization": "process"},
        {"trainer__eval_async": True},
    ],
)
def test_a_run_that_makes_environments_in_other_processes_refuses_it(elsewhere: dict[str, Any], tmp_path: Path) -> None:
    setting = next(iter(elsewhere)).replace("__", ".")
    with pytest.raises(ConfigError, match=rf"{setting} makes environments in other processes, and this one was given"):
        palaestra.train("ppo", lambda: Chain(), run__directory=str(tmp_path), **SMALL, **elsewhere)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("layer", "instead"),
    [
        (gymnasium.wrappers.NormalizeObservation, "--algorithm.normalize-observation true"),
        (gymnasium.wrappers.NormalizeReward, "--env.train-wrappers NormalizeReward"),
    ],
)
def test_layers_whose_statistics_no_checkpoint_has_are_refused(layer: Any, instead: str, tmp_path: Path) -> None:
    """Evaluations, and a resumed run, would begin with others; those that are fixed change nothing."""
    settings: dict[str, Any] = SMALL | {"run__directory": str(tmp_path)}
    with pytest.raises(ConfigError, match=rf"has Gymnasium's {layer.__name__} inside, whose .*take it off.*{instead}"):
        palaestra.train("ppo", layer(gymnasium.make("Pendulum-v1")), **settings)
    with pytest.raises(ConfigError, match=f"has Gymnasium's {layer.__name__} inside"):  # below others
        palaestra.train("ppo", gymnasium.wrappers.ClipAction(layer(gymnasium.make("Pendulum-v1"))), **settings)
    assert not list(tmp_path.iterdir())
    fixed = layer(gymnasium.make("Pendulum-v1"))
    fixed.update_running_mean = False
    assert palaestra.train("ppo", fixed, **settings).result.status == "done"


@pytest.mark.parametrize("limit", [0, 201])
def test_a_time_limit_that_one_inside_would_forestall_is_refused(limit: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = SMALL | {"run__directory": str(tmp_path), "env__max_episode_steps": limit}
    with pytest.raises(ConfigError, match=rf"max_episode_steps is {limit}, but .* has a time limit of 200 inside"):
        palaestra.train("ppo", gymnasium.make("Pendulum-v1"), **settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("inside", "limit"), [(200, 7), (200, 200), (-1, 300), (-1, 0)])
def test_a_time_limit_that_holds_is_taken(inside: int, limit: int) -> None:
    made: Any = gymnasium.make("Pendulum-v1", max_episode_steps=inside)
    with create_environment(EnvConfig(name=made, max_episode_steps=limit)) as env:
        kinds = [env.reset().step_type.item()]
        while kinds[-1] != 2 and len(kinds) < 310:
            kinds.append(env.step(torch.zeros(1, 1)).step_type.item())
    assert kinds.index(2) == limit if limit else 2 not in kinds


def test_several_seeds_refuse_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gives as an object, is not there in the processes in which seeds train"):
        palaestra.train("ppo", lambda: Chain(), seeds=2, run__directory=str(tmp_path), **SMALL)


@pytest.mark.slow
def test_another_process_says_that_it_has_not_got_it(tmp_path: Path) -> None:
    done = palaestra.train("ppo", Local(lambda: 5), run__directory=str(tmp_path), **SMALL)
    command = [sys.executable, "-m", "palaestra", "resume", str(done.directory), "--until", "128"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert "is an object that was given to a program from Python, and this is another process; put what makes" in (
        " ".join(said.stderr.split())
    )


def test_what_cannot_be_copied_or_is_a_batch_is_refused(tmp_path: Path) -> None:
    class Open(Local):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("a socket cannot be copied")

    with pytest.raises(ConfigError, match=r"cannot be copied \(a socket cannot be copied\); give a function"):
        palaestra.train("ppo", Open(lambda: 5), run__directory=str(tmp_path), **SMALL)
    with pytest.raises(ConfigError, match=r"a batch of environments; .* with env\.vectorization=native"):
        palaestra.train("ppo", gymnasium.make_vec("CartPole-v1"), run__directory=str(tmp_path), **SMALL)
