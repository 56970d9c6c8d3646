"""A robot of two tasks finds its way through four rooms: a goal task says where to, a control task goes there.

Every ten steps, or as soon as the point is where it was sent, the goal task (DQN) chooses one of eight directions; the
control task (SAC) moves to the place that lies there. Both learn from what they missed as if they had aimed at it.

palaestra train examples.robots.hierarchical:FourRoomsRobot palaestra.envs.tiny:FourRooms --env.max-episode-steps 200
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from palaestra import DQN, AlgorithmConfig, DQNConfig, Linear, NetworkConfig, RunSeeds, Trainer, TrainerConfig
from palaestra.algorithms import SAC, SACConfig
from palaestra.buffers import HindsightSampler
from palaestra.core import DiscreteSpec, StepType, TimeStep
from palaestra.envs import load
from palaestra.envs.worlds.tabular import reached
from palaestra.robots import Agent, ComputationTask, Robot, RobotCollector, task_seeds

DIRECTIONS = np.array([(1, 0), (0.7, 0.7), (0, 1), (-0.7, 0.7), (-1, 0), (-0.7, -0.7), (0, -1), (0.7, -0.7)])
RADIUS = 0.1


@dataclass(frozen=True, kw_only=True)
class FourRoomsConfig(AlgorithmConfig):
    """Settings of `FourRoomsRobot`."""

    goal_steps: int = 10
    """Env steps for which a subgoal is pursued, unless it is reached before."""
    distance: float = 0.4
    """How far away subgoals are."""
    learning_rate: float = 1e-3
    """Step size of both tasks."""
    epsilon: float = 0.3
    """Share of subgoals chosen at random, at the beginning."""
    gamma: float = 0.95
    """Discount, of each task by its own clock."""


class FourRoomsAgent(Agent):
    """Plain control flow: choose a subgoal, go there, look what came of it."""

    def run_one_episode(self) -> None:
        goal, control = self.helpers["goal"], self.helpers["control"]
        step = self.env.reset()
        since = step  # as the goal task sees it: the reward since its last choice
        while not step.last:
            place = step.observation["observation"]
            subgoal = np.clip(place + self.config.distance * DIRECTIONS[goal.predict(since)], -0.95, 0.95)
            subgoal = subgoal.astype(np.float32)
            task_step, earned = self.towards(step, subgoal, StepType.FIRST), 0.0
            while not task_step.last:
                step = self.env.step(control.predict(task_step))
                earned += step.reward
                there = reached(step.observation["observation"], subgoal, RADIUS) > 0
                over = there or step.last or goal.due
                task_step = self.towards(step, subgoal, StepType.LAST if over else StepType.MID, there)
                control.store_data(task_step)
            since = step._replace(reward=earned)
            goal.store_data(since)

    def towards(self, step: TimeStep, subgoal: np.ndarray, kind: StepType, there: bool = False) -> TimeStep:
        """A step as the control task sees it: its episode is the way to one subgoal."""
        observation = {**step.observation, "desired_goal": subgoal}
        return TimeStep(int(kind), there - 1.0, float(not there), observation)


class FourRoomsRobot(Robot):
    """From the bottom up: models in algorithms, algorithms in tasks."""

    config_class = FourRoomsConfig
    agent_class = FourRoomsAgent

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        config = self.config
        shared: dict[str, Any] = {
            "learning_rate": config.learning_rate,
            "gamma": config.gamma,
            "network": NetworkConfig(hidden_sizes=(64, 64), activation="relu"),
            "mini_batch_size": 128,
        }
        chance = {"learning_starts": 100, "epsilon": Linear(config.epsilon, 0.05)}
        choice = DQNConfig(**shared, **chance, unroll_length=1, gradient_steps=4)
        moving = SACConfig(**shared, unroll_length=4, gradient_steps=2, initial_temperature=0.1)
        goal = DQN(self.observation_spec, DiscreteSpec(num=len(DIRECTIONS)), choice, task_seeds(seeds, 0))
        control = SAC(self.observation_spec, self.action_spec, moving, task_seeds(seeds, 1))
        far, close = HindsightSampler(near, terminated=near), HindsightSampler(cost, terminated=near)
        return {
            "goal": ComputationTask(goal, period_steps=config.goal_steps, sampler=far),
            "control": ComputationTask(control, sampler=close),
        }


def near(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
    """1 where a goal is reached: what the goal task is paid, and where both tasks' episodes end."""
    return reached(achieved, desired, RADIUS)


def cost(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
    """What the control task is paid: every step on the way costs 1."""
    return near(achieved, desired, info) - 1


def main() -> None:
    env = load("palaestra.envs.tiny:FourRooms")
    robot = FourRoomsRobot(env.observation_spec, env.action_spec, seeds=RunSeeds(0))
    with RobotCollector(robot, four_rooms, num_agents=2) as collector:
        Trainer(collector, robot, TrainerConfig(total_env_steps=1_500)).run()  # 16,000 are for learning
        for name, task in robot.tasks.items():
            print(f"{name:8} {task.predictions:6,} predictions {task.algorithm.num_gradient_steps:6,} gradient steps")


def four_rooms(number: int) -> Any:
    return load("palaestra.envs.tiny:FourRooms", env_id=number, max_episode_steps=200)


if __name__ == "__main__":
    main()
