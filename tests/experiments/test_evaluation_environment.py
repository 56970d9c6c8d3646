"""Where the environments of evaluations are stepped, seen by runs from outside."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import palaestra
from palaestra.core import ConfigError, RunSeeds, episode_seed
from palaestra.envs import GymEnvironment
from palaestra.envs.wrappers import NormalizeReward
from palaestra.experiments import evaluate_run, find_run, policies_of_run
from tests.cli.parts import exit_code, output

NAME = f"{__name__}:Where"
SMALL = {
    "trainer__total_env_steps": 16,
    "trainer__eval_every_steps": 0,
    "trainer__eval_episodes": 3,
    "algorithm__unroll_length": 4,
    "algorithm__network__hidden_sizes": (4,),
    "run__tensorboard": False,
    "env__num_envs": 2,
}


MADE: list[str] = []  # where environments of this process were made


class Where(gymnasium.Env):
    """Reports where it is stepped, and writes its seeds to a file."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, folder: str) -> None:
        self._folder = folder
        MADE.append("main" if threading.current_thread() is threading.main_thread() else "thread")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        with (Path(self._folder) / f"{os.getpid()}-{threading.get_native_id()}").open("a") as file:
            file.write(f"{seed}\n")
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        main = threading.current_thread() is threading.main_thread()
        return np.zeros(1, np.float32), 0.0, True, False, {"pid": os.getpid(), "main": main}


def run(tmp_path: Path, env: str = NAME, **settings: Any) -> tuple[dict[str, float], list[set[str]]]:
    """The last row of metrics, and the seeds of each thread or process that stepped environments."""
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    settings = {**SMALL, "env__kwargs": {"folder": str(seeds)}, "run__directory": str(tmp_path), **settings}
    done = palaestra.train("ppo", env, **settings)
    rows = (done.directory / "metrics.jsonl").read_text().splitlines()
    return json.loads(rows[-1]), [set(path.read_text().split()) for path in seeds.iterdir()]


@pytest.mark.parametrize("training", ["serial", "process"])
def test_evaluations_of_a_run_are_in_a_thread_or_in_processes_as_it_says(tmp_path, training):
    """ALF-49, ALF-51, ALF-53: one environment in a process or in a thread, whose seeds are not those of training."""
    for kind in ("auto", "thread", "process"):
        folder = tmp_path / kind
        folder.mkdir()
        row, seeds = run(folder, env__vectorization=training, run__eval_vectorization=kind, run__eval_num_envs=1)
        here = row["eval/info/pid@mean"] == os.getpid()
        assert here == (kind != "process")
        assert bool(row["eval/info/main@mean"]) == (kind != "thread")
        assert row["info/main@mean"] == 1 and (row["info/pid@mean"] == os.getpid()) == (training == "serial")
        together = [seed for each in seeds for seed in each]
        assert len(together) == len(set(together))


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_evaluations_of_a_run_share_their_environments(tmp_path, kind):
    """Ten evaluations once started ten processes; each begins its streams anew, so their episodes are equal."""
    MADE.clear()
    _, seeds = run(tmp_path, trainer__eval_every_steps=4, run__eval_vectorization=kind, run__eval_num_envs=1)
    (mine,) = [each for each in seeds if str(episode_seed(RunSeeds(0).integer("evaluation", 0), 0)) in each]
    assert len(mine) == 3
    assert MADE.count("thread") <= 1


def scaled(folder: str) -> NormalizeReward:
    """With a layer of its own, which the settings are not told of."""
    return NormalizeReward(GymEnvironment(Where(folder)))


@pytest.mark.parametrize("kind", ["serial", "thread"])
def test_environments_whose_own_layers_carry_something_over_are_made_anew(tmp_path, kind):
    """As those whose wrappers are in the settings."""
    made = list[int]()
    for name in (NAME, f"{__name__}:scaled"):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        MADE.clear()
        settings = {"run__eval_num_envs": 1, "run__eval_vectorization": kind}
        run(folder, name, trainer__total_env_steps=64, trainer__eval_every_steps=8, **settings)
        made.append(len(MADE))
    assert made[1] - made[0] == 7  # of eight evaluations


def test_environments_that_carry_something_over_are_made_anew(tmp_path):
    """Else the evaluation of a resumed run would not be that of the run that was not interrupted."""
    made = list[int]()
    for wrappers in ((), ("NormalizeReward",)):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        MADE.clear()
        run(
            folder,
            trainer__total_env_steps=64,
            trainer__eval_every_steps=8,
            run__eval_num_envs=1,
            env__wrappers=wrappers,
        )
        made.append(len(MADE))
    assert made[1] - made[0] == 7  # of eight evaluations


@pytest.mark.parametrize(
    ("training", "kind", "made"),
    [
        ("serial", "process", []),
        ("process", "process", []),
        ("serial", "thread", []),
        ("process", "thread", ["thread"]),
        ("process", "auto", []),
    ],
)
def test_a_run_without_evaluations_has_no_environment_for_them(tmp_path, monkeypatch, capsys, training, kind, made):
    """ALF-52, ALF-54: from the command line; a thread only where training has its environments in processes alone."""
    monkeypatch.chdir(tmp_path)
    MADE.clear()
    (tmp_path / "seeds").mkdir()
    settings = ("--env.kwargs", "folder", str(tmp_path / "seeds"), "--env.vectorization", training)
    settings += ("--run.eval-vectorization", kind, "--trainer.eval-episodes", "0", "--env.num-envs", "2")
    settings += ("--trainer.total-env-steps", "16", "--algorithm.unroll-length", "4", "--run.no-tensorboard")
    assert exit_code("train", "ppo", NAME, *settings, "--run.name", "it") == 0, output(capsys)
    assert [where for where in MADE if where == "thread"] == made
    lanes = {str(RunSeeds(0).integer("evaluation", lane)) for lane in range(4)}
    seeds = [set(path.read_text().split()) for path in (tmp_path / "seeds").iterdir()]
    assert seeds and not any(lanes & each for each in seeds)
    if training == "process":  # nothing was stepped in this one
        assert not list((tmp_path / "seeds").glob(f"{os.getpid()}-*"))
    assert not list(Path("runs/it/evals").iterdir())
    assert "eval/return_mean" not in json.loads(Path("runs/it/metrics.jsonl").read_text().splitlines()[-1])
    assert exit_code("report", "runs/it") == 0, output(capsys)
    assert exit_code("eval", "runs/it", "--episodes", "1") != 0
    assert "has not been evaluated yet, so it has no best policy; `eval`, `play` and `export` take" in output(capsys)
    assert exit_code("eval", "runs/it", "--episodes", "1", "--which", "last") == 0, output(capsys)


@pytest.mark.parametrize("kind", ["auto", "serial"])
def test_a_batch_with_threads_is_evaluated_and_played_one_by_one(tmp_path, monkeypatch, kind):
    """Threads are of the batch alone; what steps otherwise was refused for having them."""
    mujoco = pytest.importorskip("gymnasium.envs.mujoco", reason="needs MuJoCo")
    pytest.importorskip("mujoco.batch", reason="needs MuJoCo 3.17 or later")
    batch = {"env__vectorization": "batch", "env__num_threads": 2, "run__eval_vectorization": kind}
    small = SMALL | {"env__max_episode_steps": 5, "run__directory": str(tmp_path)}
    done = palaestra.train("ppo", "InvertedPendulum-v5", **small | batch)
    assert done.result.status == "done"
    assert evaluate_run(done.directory, episodes=2).episodes == 2
    monkeypatch.setattr(mujoco.MujocoEnv, "render", lambda _: np.zeros((4, 4, 3), np.uint8))  # no screen is needed
    learner, policies = policies_of_run(find_run(done.directory))
    scenes = list(learner.play(policies, episodes=1, seed=0, window=False))
    assert 1 <= len(scenes) <= 6


def test_what_only_evaluations_have_is_refused_without_them():
    """ALF-52."""
    for settings in ({"stop_at_return": 5.0}, {"eval_at_steps": (10,)}, {"eval_async": True}, {"eval_every_s": 1.0}):
        with pytest.raises(ConfigError, match=r"but trainer.eval_episodes is 0, so that nothing is evaluated"):
            palaestra.TrainerConfig(eval_episodes=0, **settings)


def test_what_cannot_be_evaluated_there_is_refused_before_the_run_starts(tmp_path):
    """ALF-51, ALF-53."""
    there = {**SMALL, "run__directory": str(tmp_path), "run__eval_vectorization": "thread"}
    two = ({"kwargs": {"folder": str(tmp_path)}},) * 2
    with pytest.raises(ConfigError, match=r"2 env.variants to evaluate; use 'process'"):
        palaestra.train("ppo", NAME, env__variants=two, **there)
    with pytest.raises(ConfigError, match="many agents are evaluated in this process; leave it out"):
        palaestra.train("ppo", "palaestra.multiagent:Meeting", **there)
    with pytest.raises(ConfigError, match="it must be auto, serial, thread or process"):
        palaestra.RunConfig(eval_vectorization="threads")  # pyright: ignore[reportArgumentType]


def test_an_evaluation_goes_on_where_training_would_drop_an_environment():
    """A dropped one would never end its share of the episodes."""
    config = palaestra.EnvConfig(name="CartPole-v1", on_fault="drop")
    assert config.for_evaluation(3).on_fault == "restart"
    assert palaestra.EnvConfig(name="CartPole-v1").for_evaluation(3).on_fault == "raise"
