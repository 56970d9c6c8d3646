"""Tests of `Callback.stepped` and `episode_ended`: the hooks for every env step and every episode."""

import pytest
import torch

import palaestra
from palaestra.core import ConfigError, StepType, TimeStep
from palaestra.rollout import Episode
from palaestra.testing.algorithms import different, parameters
from tests.multiagent.parts import Shop
from tests.training.parts import Hooks, Recorder, trainer


@pytest.mark.parametrize("compiled", [False, True])
def test_a_callback_is_called_after_each_env_step_with_its_rows(compiled):
    """What it is shown adds up to the env steps; all that a run does is as without it."""
    seen: list[TimeStep] = []
    hooks = Hooks(stepped=lambda trainer, time_step: seen.append(time_step))
    made, plain = trainer("ppo", total=60, callbacks=[hooks]), trainer("ppo", total=60)
    if compiled:
        made.collector.compile(object())  # would fail if it were called
    made.run()
    plain.run()
    rows = torch.stack([time_step.step_type for time_step in seen])
    assert int((rows != StepType.FIRST).sum()) == made.collector.env_steps
    assert all(time_step.reward.shape == (3,) for time_step in seen)
    assert not different(parameters(made.algorithm), parameters(plain.algorithm))


def test_a_callback_may_end_a_run_in_an_env_step():
    made = trainer("ppo", total=600, callbacks=[Hooks(stepped=lambda trainer, time_step: trainer.stop("seen enough"))])
    assert made.run().reason == "seen enough"
    assert made.collector.env_steps < 600


def test_env_steps_that_are_made_elsewhere_are_refused_by_name():
    made = trainer("ppo", callbacks=[Hooks(stepped=lambda trainer, time_step: None)])
    made.collector = RowsOfOthers()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigError, match="Hooks has a hook stepped, but RowsOfOthers makes no env steps"):
        made.run()


class RowsOfOthers:
    """What a run collects with whose workers are in other processes, as far as its start asks."""

    unfinished = False


def test_a_callback_is_called_once_for_each_episode_with_what_it_reported():
    told, recorder = [], Recorder()
    hooks = Hooks(episode_ended=lambda trainer, episode: told.append(episode))
    trainer("ppo", total=200, callbacks=[hooks], loggers=[recorder]).run()
    assert told and told == recorder.ended


def test_the_tracker_of_a_simulator_arrives_with_its_episode(tmp_path):
    """MARO-18: `tracker`, where a run's callbacks can use it."""
    told: list[Episode] = []
    done = palaestra.train(
        "ppo",
        Shop,
        callbacks=[Hooks(episode_ended=lambda trainer, episode: told.append(episode))],
        run__directory=str(tmp_path),
        trainer__total_env_steps=40,
        trainer__eval_episodes=0,
        algorithm__unroll_length=20,
        env__num_envs=1,
    )
    assert [episode.info["ticks"] for episode in told] == [11] * (done.result.env_steps // 11)
