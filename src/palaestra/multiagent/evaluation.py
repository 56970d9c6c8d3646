"""What agents and policies earn: `MultiAgentEpisodes`, and `evaluate_agents`, which runs episodes without learning."""

import dataclasses
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch

from palaestra.multiagent.acting import MappedPolicy
from palaestra.multiagent.env import MultiAgentStep
from palaestra.multiagent.envs import MultiAgentEnvs
from palaestra.multiagent.mapping import PolicySpec, require_policies
from palaestra.policies import Phase, Policy
from palaestra.rollout import Episode, Evaluation, evaluation_noise, evaluation_of, first_episodes

__all__ = ["evaluate_agents", "play_multi_agent_envs"]


class MultiAgentEpisodes:
    """Turns steps into finished episodes.

    An episode's return is the sum over all agents, its length the steps that were executed. Its `info` has
    `<agent>/return` and `<agent>/length` (actions taken) of every agent that took part, and `<policy>/return`, the mean
    over the agents of each policy, with the numbers that the environment itself reports.

    Args:
        num_envs: B.
        policy_specs: by policy name.
    """

    def __init__(self, num_envs: int, policy_specs: Mapping[str, PolicySpec]) -> None:
        self._policy_specs = policy_specs
        self._returns: list[dict[str, float]] = [{} for _ in range(num_envs)]
        self._actions: list[dict[str, int]] = [{} for _ in range(num_envs)]
        self._lengths = [-1] * num_envs
        self._finished: list[Episode] = []

    def __len__(self) -> int:
        """Episodes that wait to be taken."""
        return len(self._finished)

    def add(self, env: int, outcome: MultiAgentStep) -> None:
        """Takes what happened.

        Args:
            env: its number.
            outcome: that it has come to.
        """
        returns, actions = self._returns[env], self._actions[env]
        self._lengths[env] += 1
        for name, time_step in outcome.time_steps.items():
            returns[name] = returns.get(name, 0.0) + float(time_step.reward)
            actions[name] = actions.get(name, -1) + 1 if time_step.step_type else actions.get(name, 0)
        for name, rewards in outcome.late_rewards.items():
            returns[name] = returns.get(name, 0.0) + float(sum(rewards))
        if outcome.over:
            self._finished.append(self._episode(env, outcome.info))
            self.abandon(env)

    def _episode(self, env: int, reported: Mapping[str, float]) -> Episode:
        returns, actions = self._returns[env], self._actions[env]
        info = {f"{name}/return": value for name, value in returns.items()}
        info |= {f"{name}/length": float(count) for name, count in actions.items()}
        for policy, spec in self._policy_specs.items():
            mine = [returns[name] for name in spec.agents if name in returns]
            if mine:
                info[f"{policy}/return"] = sum(mine) / len(mine)
        info |= {name: float(value) for name, value in reported.items()}
        return Episode(sum(returns.values()), self._lengths[env], env, info)

    def abandon(self, env: int) -> None:
        """Forgets an environment's running episode.

        Args:
            env: its number.
        """
        self._returns[env], self._actions[env], self._lengths[env] = {}, {}, -1

    def finished(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def state(self) -> dict[str, Any]:
        """Running episodes, and those not taken yet, as JSON values."""
        return {
            "returns": self._returns,
            "actions": self._actions,
            "lengths": self._lengths,
            "finished": [list(episode[:4]) for episode in self._finished],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of as many environments.
        """
        self._returns = [dict(returns) for returns in state["returns"]]
        self._actions = [dict(actions) for actions in state["actions"]]
        self._lengths = list(state["lengths"])
        self._finished = [Episode(*values) for values in state["finished"]]


def evaluate_agents(
    policies: Mapping[str, Policy],
    envs: MultiAgentEnvs,
    policy_specs: Mapping[str, PolicySpec],
    *,
    episodes: int = 20,
    deterministic: bool = True,
    seeds: Sequence[int] = (),
    time_limit_s: float | None = None,
) -> Evaluation:
    """Runs exactly so many episodes, shared out evenly over the environments, so that short ones are not preferred.

    The return of an episode is the sum over its agents; `Evaluation.parts` has the means of what each agent and each
    policy earned, and of what the environments report. Acting noise comes from generators of the evaluation's own.

    Args:
        policies: by name; each acts in `Phase.EVAL`.
        envs: reset at the start.
        policy_specs: by policy name.
        episodes: how many.
        deterministic: whether to take the most probable or most valuable actions.
        seeds: the lane seeds that `envs` were made with, for the record.
        time_limit_s: stop after so many seconds with the episodes that have ended, and a warning.

    Raises:
        ConfigError: the policies do not fit their specs, or no episode ended within the time limit.

    Examples:
        >>> from palaestra.multiagent import Meeting, assign_policies
        >>> from palaestra.policies import RandomPolicy
        >>> envs = MultiAgentEnvs([Meeting], lane_seeds=[0])
        >>> policy_specs = assign_policies(envs.agents, {"*": "walkers"})
        >>> policy = RandomPolicy(policy_specs["walkers"].observation_spec, policy_specs["walkers"].action_spec)
        >>> result = evaluate_agents({"walkers": policy}, envs, policy_specs, episodes=3)
        >>> abs(result.return_mean - 3 * result.parts["walkers/return"]) < 1e-6
        True
    """
    play = play_multi_agent_envs(policies, envs, policy_specs, deterministic=deterministic)
    finished = first_episodes(play, envs.batch_size, episodes, time_limit_s=time_limit_s)
    return dataclasses.replace(
        evaluation_of(finished, list(seeds), deterministic=deterministic), parts=_means(finished)
    )


def play_multi_agent_envs(
    policies: Mapping[str, Policy],
    envs: MultiAgentEnvs,
    policy_specs: Mapping[str, PolicySpec],
    *,
    deterministic: bool = True,
) -> Generator[list[Episode]]:
    """Steps environments without end, by policies that do not learn; look at the environments between the steps.

    Args:
        policies: by name.
        envs: reset at the start.
        policy_specs: by policy name.
        deterministic: whether to take the most probable or most valuable actions.

    Yields:
        The episodes that ended with each step, after the first.

    Raises:
        ConfigError: the policies do not fit their specs.
    """
    require_policies(policy_specs, policies)
    record = MultiAgentEpisodes(envs.batch_size, policy_specs)
    mapped_policies = [
        MappedPolicy(policies[name], spec, envs.batch_size, delayed=False) for name, spec in policy_specs.items()
    ]
    with evaluation_noise({policy: number for number, policy in enumerate(policies.values())}), torch.inference_mode():
        try:
            outcomes = envs.reset()
            while True:
                states: list[Any] = [None] * envs.batch_size
                if any(spec.state_spec is not None for spec in policy_specs.values()):
                    states = envs.global_state()
                for env, outcome in enumerate(outcomes):
                    record.add(env, outcome)
                    for mapped in mapped_policies:
                        mapped.take(env, outcome, states[env])
                yield record.finished()
                actions: list[dict[str, Any]] = [{} for _ in outcomes]
                for mapped in mapped_policies:
                    mapped.act(Phase.EVAL, deterministic=deterministic, actions=actions)
                outcomes = envs.step(actions)
                for env in envs.restarted:
                    record.abandon(env)
                    for mapped in mapped_policies:
                        mapped.forget(env)
        finally:
            envs.interrupted = True


def _means(episodes: Sequence[Episode]) -> dict[str, float]:
    columns: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.info.items():
            columns.setdefault(name, []).append(value)
    return {name: math.fsum(values) / len(values) for name, values in columns.items()}
