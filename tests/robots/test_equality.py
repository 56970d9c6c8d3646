"""A robot of one task learns what the `Trainer` learns: there is one update path."""

import dataclasses

import pytest
import torch

from palaestra import Collector, EnvConfig, Trainer, TrainerConfig, create_environment
from palaestra.algorithms import ALGORITHMS
from palaestra.core import RunSeeds
from tests.robots.parts import QUICK, OneTaskConfig, OneTaskRobot, collector_of, env_maker, robot_of

ENDLESS = "palaestra.envs.tiny:Endless"
SMALL = {"mini_batch_size": 8, "learning_starts": 16, "capacity": 500}
SETTINGS = {
    "dqn": {**SMALL, "unroll_length": 2},
    "a2c": {"unroll_length": 5},
    "ppo": {"unroll_length": 10, "mini_batch_size": 20, "num_epochs": 2},
}


def trained_by_trainer(name, num_envs, env_steps, seed=3):
    kind = ALGORITHMS[name]
    config = EnvConfig(name=ENDLESS, num_envs=num_envs, kwargs={"random": True, "size": 3})
    with create_environment(config, seed=seed) as env:
        settings = kind.config_class(**SETTINGS[name])
        algorithm = kind(env.observation_spec, env.action_spec, settings, RunSeeds(seed))
        Trainer(Collector.of(env, algorithm), algorithm, TrainerConfig(total_env_steps=env_steps)).run()
    return algorithm


def trained_by_robot(name, num_agents, env_steps, seed=3):
    make_env = env_maker(ENDLESS, random=True, size=3)
    robot = robot_of(OneTaskRobot, make_env, OneTaskConfig(name=name, settings=tuple(SETTINGS[name].items())), seed)
    quick = dataclasses.replace(QUICK, steps_per_iteration=SETTINGS[name]["unroll_length"])  # when schedules move
    with collector_of(robot, make_env, num_agents, seed=seed, config=quick) as collector:
        Trainer(collector, robot, TrainerConfig(total_env_steps=env_steps)).run()
    return robot.tasks["policy"].algorithm


@pytest.mark.parametrize(("name", "num_agents"), [("dqn", 1), ("a2c", 1), ("a2c", 4)])
def test_the_weights_are_those_of_the_trainer_bit_by_bit(name, num_agents):
    """PARL-13, PARL-19: the same environments, seeds and plan; one agent, and four that are batched."""
    by_trainer, by_robot = (f(name, num_agents, 40 * num_agents) for f in (trained_by_trainer, trained_by_robot))
    assert by_robot.num_gradient_steps == by_trainer.num_gradient_steps > 4
    assert by_robot.policy_version == by_trainer.policy_version
    mine, theirs = by_robot.model.state_dict(), by_trainer.model.state_dict()
    assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


def test_the_weights_are_those_of_the_trainer_where_log_probabilities_are_stored():
    """PPO computes them with each choice here, and for the whole unroll there: equal to rounding."""
    by_trainer, by_robot = (f("ppo", 4, 160) for f in (trained_by_trainer, trained_by_robot))
    assert by_robot.num_gradient_steps == by_trainer.num_gradient_steps > 4
    mine, theirs = by_robot.model.state_dict(), by_trainer.model.state_dict()
    for key in theirs:
        torch.testing.assert_close(mine[key], theirs[key], atol=1e-5, rtol=1e-4)


def test_agents_that_replay_make_the_updates_of_a_vector_environment():
    """Four agents make the rows and the number of updates of four environments; which rows are drawn may differ."""
    by_trainer, by_robot = (f("dqn", 4, 160) for f in (trained_by_trainer, trained_by_robot))
    assert by_robot.num_gradient_steps == by_trainer.num_gradient_steps == 18
