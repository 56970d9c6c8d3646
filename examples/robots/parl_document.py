"""The robot of PARL's design document: `RL` learns every TRAINING_INTERVAL steps, `goal` when a goal is over.

Put right where the document slips: steps are counted, the goal of the last step is remembered, what is stored for the
goal task is the observation that the goal was set on, with the reward summed since, and what is stored for `RL` is the
observation with the goal that the next action is for.
"""

import numpy as np

from palaestra import DQN, DQNConfig, RunSeeds, Trainer, TrainerConfig
from palaestra.algorithms import A2C, A2CConfig
from palaestra.core import DiscreteSpec
from palaestra.envs import load
from palaestra.robots import Agent, ComputationTask, Robot, RobotCollector, task_seeds

TRAINING_INTERVAL, PATIENCE, RADIUS = 20, 25, 0.15
PLACES = np.array([[-0.5, -0.5], [-0.5, 0.5], [0.5, -0.5], [0.5, 0.5]], np.float32)  # goals: the rooms' middles


class DocumentAgent(Agent):
    """`run_one_episode` of the document."""

    def run_one_episode(self) -> None:
        goal_task, rl = self.helpers["goal"], self.helpers["RL"]
        sensors = self.env.reset()
        goal_step, total_reward, step_counts, goal_age = sensors, 0.0, 0, 0
        prev_goal = PLACES[goal_task.predict(goal_step)]
        while not sensors.last:
            seen = {**sensors.observation, "desired_goal": prev_goal}
            sensors = self.env.step(rl.predict(sensors._replace(observation=seen)))
            step_counts, goal_age, total_reward = step_counts + 1, goal_age + 1, total_reward + sensors.reward
            near = float(np.linalg.norm(sensors.observation["observation"] - prev_goal))
            if near < RADIUS or goal_age == PATIENCE or sensors.last:  # achieved or aborted
                goal_step = sensors._replace(reward=total_reward)
                goal_task.store_data(goal_step)
                goal_task.learn()
                if not sensors.last:
                    prev_goal, goal_age, total_reward = PLACES[goal_task.predict(goal_step)], 0, 0.0
            seen = {**sensors.observation, "desired_goal": prev_goal}  # that of the next action
            rl.store_data(sensors._replace(observation=seen, reward=sensors.reward - near))
            if step_counts % TRAINING_INTERVAL == 0:
                rl.learn()


class DocumentRobot(Robot):
    """Both tasks learn when the agent says so."""

    agent_class = DocumentAgent

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        goal = DQN(
            self.observation_spec,
            DiscreteSpec(num=4),
            DQNConfig(unroll_length=1, learning_starts=20),
            task_seeds(seeds, 0),
        )
        rl = A2C(
            self.observation_spec, self.action_spec, A2CConfig(unroll_length=TRAINING_INTERVAL), task_seeds(seeds, 1)
        )
        return {
            "goal": ComputationTask(goal, period_steps=None, learning="agent"),
            "RL": ComputationTask(rl, learning="agent"),
        }


def main() -> None:
    env = load("palaestra.envs.tiny:FourRooms")
    robot = DocumentRobot(env.observation_spec, env.action_spec)
    with RobotCollector(robot, lambda i: load("palaestra.envs.tiny:FourRooms", max_episode_steps=100), 4) as collector:
        Trainer(collector, robot, TrainerConfig(total_env_steps=1_000)).run()
    print({name: (task.predictions, task.algorithm.policy_version) for name, task in robot.tasks.items()})


if __name__ == "__main__":
    main()
