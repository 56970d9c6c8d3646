"""Many agents without learning: `evaluate_agents` says what they earn, `check_multi_agent_env` which rules hold."""

import functools
import itertools
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from palaestra import rollout
from palaestra.core import EnvError, NonFiniteError, PalaestraError, RunSeeds, SpecError, StepType
from palaestra.envs import CheckReport, Finding
from palaestra.multiagent.acting import MappedPolicy
from palaestra.multiagent.env import MultiAgentEnv, MultiAgentStep
from palaestra.multiagent.envs import MultiAgentEnvs
from palaestra.multiagent.loading import load_multi_agent_env
from palaestra.multiagent.mapping import AgentsConfig, PolicySpec, require_policies
from palaestra.multiagent.rules import StepCheck, step_digest
from palaestra.policies import Phase, Policy
from palaestra.rollout import Episode, Evaluation

__all__ = ["check_multi_agent_env", "evaluate_agents", "play_multi_agent_envs"]


_Worth: TypeAlias = tuple[float, int, list[int]]
"""Of an agent in an episode: its discounted rewards, how many came late, and its actions when each life began."""


class MultiAgentEpisodes:
    """Turns steps into finished episodes.

    An episode's return is the sum over the agents of policies that are judged (`PolicySpec.judged`), without those that
    another plays, such as a snapshot; its length the steps that were executed. Its `info` has `<agent>/return` and
    `<agent>/length` (actions taken) of every agent that took part, and `<policy>/return`, the mean over the agents of
    each policy, with the numbers that the environment itself reports. Of policies with a discount it also has
    `<policy>/discounted_return`, the mean over their agents of what their actions earned, discounted by the actions
    before each, as action values are: unearned rewards do not count, and lives of an agent that came back are averaged.

    Args:
        num_envs: B.
        discounts: per action, by policy; `None` where one has none.
    """

    def __init__(
        self, num_envs: int, policy_specs: Mapping[str, PolicySpec], discounts: Mapping[str, float | None] = {}
    ) -> None:
        self._policy_specs = policy_specs
        known = {policy: gamma for policy, gamma in discounts.items() if gamma is not None}
        self._discounts = {name: gamma for policy, gamma in known.items() for name in policy_specs[policy].agents}
        self._worths: list[dict[str, _Worth] | None] = [{} for _ in range(num_envs)]
        self._returns: list[dict[str, float]] = [{} for _ in range(num_envs)]
        self._actions: list[dict[str, int]] = [{} for _ in range(num_envs)]
        self._lengths = [-1] * num_envs
        self._finished: list[Episode] = []

    def __len__(self) -> int:
        """Episodes that wait to be taken."""
        return len(self._finished)

    def add(self, env: int, outcome: MultiAgentStep, others: Collection[str] = ()) -> None:
        """Takes what happened.

        Args:
            env: its number.
            outcome: that it has come to.
            others: agents that none of the policies plays in this episode; what they earn is said of them alone.
        """
        returns, actions = self._returns[env], self._actions[env]
        self._lengths[env] += 1
        for name, reward in outcome.rewards().items():
            returns[name] = returns.get(name, 0.0) + reward
            acted = name in outcome.time_steps and outcome.time_steps[name].step_type != StepType.FIRST
            actions[name] = actions.get(name, 0) + acted
        if self._discounts and (worths := self._worths[env]) is not None:
            self._discount(worths, actions, outcome)
        if outcome.over:
            self._finished.append(self._episode(env, outcome.info, others))
            self.abandon(env)

    def _discount(self, worths: dict[str, "_Worth"], actions: Mapping[str, int], outcome: MultiAgentStep) -> None:
        for name, time_step in outcome.time_steps.items():
            if (gamma := self._discounts.get(name)) is None:
                continue
            if time_step.step_type == StepType.FIRST:
                worth, late, starts = worths.get(name, (0.0, 0, []))
                worths[name] = worth, late, [*starts, actions[name]]
            elif reward := float(time_step.reward):
                worth, late, starts = worths[name]
                worths[name] = worth + gamma ** (actions[name] - 1 - starts[-1]) * reward, late, starts
        for name, rewards in outcome.late_rewards.items():  # the k-th belongs to the k-th action, of whichever life
            if (gamma := self._discounts.get(name)) is None:
                continue
            worth, late, starts = worths[name]
            for number, reward in enumerate(rewards, start=late):
                worth += gamma ** (number - max(start for start in starts if start <= number)) * float(reward)
            worths[name] = worth, late + len(rewards), starts

    def _episode(self, env: int, reported: Mapping[str, float], others: Collection[str]) -> Episode:
        returns, actions, worths = self._returns[env], self._actions[env], self._worths[env] or {}
        info = {f"{name}/return": value for name, value in returns.items()}
        info |= {f"{name}/length": float(count) for name, count in actions.items()}
        episode_return = 0.0
        for policy, spec in self._policy_specs.items():
            mine = [returns[name] for name in spec.agents if name in returns and name not in others]
            if mine:
                info[f"{policy}/return"] = sum(mine) / len(mine)
            lives = [worths[name] for name in spec.agents if name in worths and name not in others]
            if lives:
                discounted = sum(worth / len(starts) for worth, _, starts in lives) / len(lives)
                info[f"{policy}/discounted_return"] = discounted
            episode_return += sum(mine) if spec.judged else 0.0
        info |= {name: float(value) for name, value in reported.items()}
        return Episode(episode_return, self._lengths[env], env, info)

    def abandon(self, env: int) -> None:
        """Forgets an environment's running episode.

        Args:
            env: its number.
        """
        self._returns[env], self._actions[env], self._worths[env], self._lengths[env] = {}, {}, {}, -1

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
            "worths": self._worths,
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
        saved = state.get("worths", [None] * len(self._lengths))  # older checkpoints do not know what ran
        self._worths = [None if one is None else {name: tuple(worth) for name, worth in one.items()} for one in saved]
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

    The return of an episode is the sum over the agents that are judged (`PolicySpec.judged`); `Evaluation.parts` has
    the means of what each agent and each policy earned, and of what the environments report. Acting noise comes from
    generators of the evaluation's own, by the lane seed of the first environment.

    Args:
        policies: by name; each acts in `Phase.EVAL`.
        envs: reset at the start.
        deterministic: whether to take the most probable or most valuable actions.
        seeds: lane seeds, one for each environment, whose streams begin anew; equal ones give equal episodes. Without
            them the environments go on where they are.
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
    if seeds:
        envs.seed(seeds)
    noise = int(envs.lane_state()["lane_seed"][0])
    play = play_multi_agent_envs(policies, envs, policy_specs, deterministic=deterministic, generator_seed=noise)
    finished = rollout.first_episodes(play, envs.batch_size, episodes, time_limit_s=time_limit_s)
    deterministic = deterministic and not any(policy.eval_epsilon for policy in policies.values())
    evaluation = rollout.evaluation_of(finished, list(seeds), deterministic=deterministic)
    earned = {name: evaluation.parts[at] for name in policy_specs if (at := f"{name}/return") in evaluation.parts}
    evaluation.policies.update(earned if len(policy_specs) > 1 else {})
    return evaluation


def play_multi_agent_envs(
    policies: Mapping[str, Policy],
    envs: MultiAgentEnvs,
    policy_specs: Mapping[str, PolicySpec],
    *,
    deterministic: bool = True,
    generator_seed: int = 0,
    watch: Callable[[int, Mapping[str, Any], MultiAgentStep], None] | None = None,
) -> Generator[list[Episode]]:
    """Steps environments without end, by policies that do not learn; look at the environments between the steps.

    Args:
        envs: reset at the start.
        deterministic: whether to take the most probable or most valuable actions.
        generator_seed: of the policies' noise where they sample.
        watch: is told each step: the number of the environment, the actions, and what came of them.

    Yields:
        The episodes that ended with each step, after the first.

    Raises:
        ConfigError: the policies do not fit their specs.
    """
    require_policies(policy_specs, policies)
    record = MultiAgentEpisodes(envs.batch_size, policy_specs)
    seeds, own = RunSeeds(generator_seed), enumerate(policies.values())
    noise = rollout.evaluation_noise({policy: seeds.integer("acting", number) for number, policy in own})
    with noise, torch.inference_mode():
        try:
            for outcomes in _steps(policies, envs, policy_specs, deterministic, watch):
                for env in envs.restarted:
                    record.abandon(env)
                for env, outcome in enumerate(outcomes):
                    record.add(env, outcome)
                yield record.finished()
        finally:
            envs.interrupted = True


def _steps(
    policies: Mapping[str, Policy],
    envs: MultiAgentEnvs,
    policy_specs: Mapping[str, PolicySpec],
    deterministic: bool,
    watch: Callable[[int, Mapping[str, Any], MultiAgentStep], None] | None = None,
) -> Generator[list[MultiAgentStep]]:
    """Steps environments without end."""
    count = envs.batch_size
    mapped_policies = [MappedPolicy(policies[name], spec, count, delayed=False) for name, spec in policy_specs.items()]
    sees_all = any(spec.state_spec is not None for spec in policy_specs.values())
    envs.reads_state |= sees_all
    outcomes, actions = envs.reset(), [dict[str, Any]() for _ in range(count)]
    while True:
        if watch is not None:
            for env, outcome in enumerate(outcomes):
                watch(env, actions[env], outcome)
        yield outcomes
        states = envs.global_state() if sees_all else [None] * count
        actions = [dict[str, Any]() for _ in outcomes]
        for mapped in mapped_policies:
            for env, outcome in enumerate(outcomes):
                mapped.take(env, outcome, states[env])
            mapped.act(Phase.EVAL, deterministic=deterministic, actions=actions)
        outcomes = envs.step(actions)
        for env in envs.restarted:
            for mapped in mapped_policies:
                mapped.forget(env)


def check_multi_agent_env(
    env: str | Callable[[], MultiAgentEnv],
    *,
    steps: int = 500,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> CheckReport:
    """Plays with random actions that the masks allow and compares what is emitted with the contract of environments.

    Args:
        env: a name as `load_multi_agent_env` takes it, or a class or function that makes one.
        steps: steps of each of the runs that are compared.
        progress: called in every step of these runs: three times `steps`, or four times where the first two differ.

    Returns:
        Findings, each with what was expected, what came and what to do.

    Examples:
        >>> from palaestra.multiagent import Meeting
        >>> check_multi_agent_env(Meeting, steps=30).ok
        True
    """
    name = env if isinstance(env, str) else getattr(env, "__name__", repr(env))
    make = functools.partial(load_multi_agent_env, env) if isinstance(env, str) else env
    rule = "The environment can be made, and keeps the rules of steps"
    try:
        digests, idle, ends, state, outside = _play_at_random(make, steps, seed, progress)
        beside = _play_at_random(make, steps, seed, progress, beside=True)[0]
        again = beside if beside == digests else _play_at_random(make, steps, seed, progress)[0]
        findings = [Finding(rule)]
    except (SpecError, NonFiniteError, EnvError) as error:
        needed = "see `MultiAgentEnv` and `MultiAgentStep`"
        return CheckReport(name, [Finding(rule, str(error), needed, "see the message")])
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        fix = "see the message" if isinstance(error, PalaestraError) else "let it be made without arguments"
        return CheckReport(name, [Finding(rule, got, "a MultiAgentEnv", fix)])
    seeded = "take all randomness from the seed that an episode begins with"
    apart = next((step for step, pair in enumerate(zip(digests, again, strict=True)) if pair[0] != pair[1]), None)
    differs = "" if apart is None else f"step {apart} differs"
    findings.append(Finding("Equal seeds and actions give equal steps", differs, fix=seeded))
    disturbed = "other steps where one of another seed is stepped in turn with it" if again != beside else ""
    apart_fix = f"{seeded}, not from a global generator, and keep state in the instance, not in its class"
    rule, seen = "Two environments do not disturb each other", apart is None
    findings.append(Finding(rule, disturbed if seen else "", "the steps that it gives alone", apart_fix, seen=seen))
    fix = "correct the observation space, or clip the observation"
    findings.append(Finding("Observations are in their spaces", outside, "what the spec says", fix))
    findings.append(_replays(make, state, seeded))
    ended = "" if ends else f"none of {steps} steps was the last of an episode"
    findings.append(Finding("Episodes end", ended, fix="give it a time limit", level="warning"))
    never = idle and f"{idle} never did"
    findings.append(Finding("Every agent acts", never, fix="leave out those that never act", level="warning"))
    return CheckReport(name, findings)


def _play_at_random(
    make: Callable[[], MultiAgentEnv], steps: int, seed: int, progress: Callable[[], None], *, beside: bool = False
) -> tuple[list[str], str, int, dict[str, Any], str]:
    """Plays alone, or in turn with another environment of another seed.

    Returns:
        Digests of all steps, agents that never acted, how many episodes ended, the state at the end, and the first
        observation outside its space.
    """
    digests: list[str] = []
    ends, outside = 0, ""
    with MultiAgentEnvs([make], lane_seeds=[seed]) as envs, MultiAgentEnvs([make], lane_seeds=[seed + 1]) as other:
        idle, check = set(envs.agents), StepCheck(envs.agents, envs.delayed)
        play, others = _random_steps(envs, seed), _random_steps(other, seed + 1)
        with torch.inference_mode():
            for (outcome,) in itertools.islice(play, steps + 1):
                if beside:
                    next(others)
                for _ in range(1 + beside if digests else 0):  # the first shows how episodes begin
                    progress()
                digests.append(step_digest(outcome, envs.agents))
                outside = outside or check.outside(outcome)
                idle -= set(outcome.time_steps)
                ends += outcome.over
        return digests, ", ".join(sorted(idle)), ends, envs.state_dict(), outside


def _random_steps(envs: MultiAgentEnvs, seed: int) -> Generator[list[MultiAgentStep]]:
    policy_specs = AgentsConfig(sharing="separate").policy_specs(envs.agents, teams=(), state_spec=None)
    policies = {name: spec.random_policy() for name, spec in policy_specs.items()}
    for number, policy in enumerate(policies.values()):
        policy.seed(seed + number)
    return _steps(policies, envs, policy_specs, deterministic=False)


def _replays(make: Callable[[], MultiAgentEnv], state: dict[str, Any], fix: str) -> Finding:
    rule = "A running episode can be replayed, so that a run is resumed exactly"
    with MultiAgentEnvs([make], lane_seeds=[0]) as envs:
        try:
            envs.load_state_dict(state)
        except PalaestraError as error:
            return Finding(rule, str(error), "what was shown before", fix)
    return Finding(rule)
