"""Robots learn: what one task, many agents and batched inference bring to the tiny environments."""

import pytest

from palaestra import Trainer, TrainerConfig
from palaestra.robots import evaluate_robot
from tests.robots.parts import OneTaskConfig, OneTaskRobot, collector_of, env_maker, robot_of

CHAIN = "palaestra.envs.tiny:Chain"
SETTINGS = {
    "dqn": {"learning_starts": 100, "mini_batch_size": 32, "unroll_length": 1, "gamma": 0.9, "target_period": 50},
    "ppo": {"unroll_length": 32, "mini_batch_size": 32, "gamma": 0.9, "learning_rate": 3e-3},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_four_agents_learn_to_go_right(name):
    """Chance gets to the end of the chain in few of its episodes; the best policy in all of them."""
    make = env_maker(CHAIN, limit=12, num_states=6)
    robot = robot_of(OneTaskRobot, make, OneTaskConfig(name=name, settings=tuple(SETTINGS[name].items())))
    with collector_of(robot, make, 4) as collector:
        Trainer(collector, robot, TrainerConfig(total_env_steps=4_000)).run()
        policies = {"policy": robot.tasks["policy"].algorithm.policy}
        assert evaluate_robot(collector.evaluated_by, policies, episodes=8).return_mean == 1.0
