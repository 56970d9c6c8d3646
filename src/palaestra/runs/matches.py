"""Games of policies against each other: `play_match`, Elo of self-play, and who plays the best policy so far."""

import dataclasses
import functools
import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from palaestra.core import CheckpointError, ConfigError, RunSeeds
from palaestra.core.reading import read_json
from palaestra.envs import EnvConfig
from palaestra.multiagent import MultiAgentStep, PolicySpec, create_multi_agent_envs, match_score, play_multi_agent_envs
from palaestra.multiagent.rules import step_digest
from palaestra.ops import elo_ratings
from palaestra.policies import Policy, load_policy
from palaestra.rollout import Evaluation, NoEpisodeError, evaluation_of, first_episodes
from palaestra.runs.records import read_evaluations
from palaestra.training import policy_folder

__all__ = ["KeptPolicies", "Opponents", "Player", "RunningPool", "play_match", "rated", "says_nothing"]

_log = logging.getLogger(__name__)

_LANES = 16  # environments of a match, side by side
_GAMES, _GAMES_S = 20, 20.0  # of random actions, which show whether agents oppose each other


class Opponents(NamedTuple):
    """Whom an evaluation lets the policies play against besides."""

    pool: Callable[[], Mapping[int, list[Tensor]]] = dict
    """Weights of the snapshots of self-play, by version."""
    kept: Callable[[], tuple[Mapping[str, Policy], float, int | None]] = functools.partial(tuple, ({}, math.nan, None))
    """The policies of the best evaluation before, by name, its mean return, and the env steps of it where known."""


@dataclass(frozen=True)
class Player:
    """Policies that play together against others."""

    policy_specs: Mapping[str, PolicySpec]
    """By policy name; no teams."""
    policies: Mapping[str, Policy]
    """By name."""

    @classmethod
    def at_random(cls, policy_specs: Mapping[str, PolicySpec]) -> "Player":
        """A player of random actions."""
        return cls(policy_specs, {name: spec.random_policy() for name, spec in policy_specs.items()})


class Match(NamedTuple):
    """Games of two players."""

    won: float
    """Games that the first has won, a draw counted half."""
    different: int
    """Games that say something: those of a side that were all the same, action by action, are one."""


class _Games:
    """The different games among those that have ended, by all actions, and what came of them.

    Args:
        agents: of the environments.
    """

    def __init__(self, agents: Mapping[str, Any]) -> None:
        self.found = set[int]()
        self._agents, self._running = agents, dict[int, int]()

    def __call__(self, env: int, actions: Mapping[str, Any], outcome: MultiAgentStep) -> None:
        done = repr(sorted(actions.items()))
        self._running[env] = hash((self._running.get(env), done, step_digest(outcome, self._agents)))
        if outcome.over:
            self.found.add(self._running.pop(env))


def play_match(
    first: Player,
    second: Player,
    env: EnvConfig,
    *,
    games: int,
    seed: int,
    deterministic: bool = False,
    time_limit_s: float | None = None,
) -> Match:
    """How many games one player wins against another; a draw is half a game.

    The players take every other agent, and change sides for the second half of the games, which begin as the first half
    does. Who earns more on average over its agents has won.

    Args:
        first: whose wins are counted.
        second: the other one.
        env: of both.
        games: an even number.
        seed: of the environments, and of what is drawn from policies, which differs from side to side.
        deterministic: whether to take the most probable or most valuable actions.
        time_limit_s: for each half of the games; those that have not ended then are draws, with a warning.
    """
    count = min(_LANES, games // 2)
    lanes = [RunSeeds(seed).integer("evaluation", lane) for lane in range(count)]
    won, different = 0.0, 0
    with create_multi_agent_envs(env.for_evaluation(count), lane_seeds=lanes) as envs:
        order = list(envs.agents)
    for side in (0, 1):
        mine = set(order[side::2])
        specs: dict[str, PolicySpec] = {}
        policies: dict[str, Policy] = {}
        for name, player, agents in (("first", first, mine), ("second", second, set(order) - mine)):
            for policy, spec in player.policy_specs.items():
                if members := tuple(agent for agent in spec.agents if agent in agents):
                    key = f"{name}_{policy}"
                    specs[key] = dataclasses.replace(spec, policy=key, agents=members)
                    policies[key] = player.policies[policy]
        with create_multi_agent_envs(env.for_evaluation(count), lane_seeds=lanes) as envs:
            games_seen = _Games(envs.agents)
            noise: dict[str, Any] = {"generator_seed": RunSeeds(seed).integer("acting", side), "watch": games_seen}
            play = play_multi_agent_envs(policies, envs, specs, deterministic=deterministic, **noise)
            try:
                ended = first_episodes(play, count, games // 2, time_limit_s=time_limit_s)
            except NoEpisodeError as error:
                _log.warning("games against each other count as draws: %s", error)
                ended = []
            won += (games // 2 - len(ended)) / 2
            different += 1 if len(games_seen.found) == 1 else games // 2
            for episode in ended:
                earned = {name: episode.info[f"{name}/return"] for name in order if f"{name}/return" in episode.info}
                own = [value for name, value in earned.items() if name in mine]
                others = [value for name, value in earned.items() if name not in mine]
                won += match_score(sum(own) / max(1, len(own)), sum(others) / max(1, len(others)))
    return Match(won, different)


def rated(
    player: Player, snapshots: Sequence[Player], env: EnvConfig, games: int, seed: int, time_limit_s: float | None
) -> dict[str, float]:
    """Elo of a player, from as many games against each opponent: above random actions, and above its snapshots."""
    games += games % 2
    opponents = [Player.at_random(player.policy_specs), *snapshots]
    own = [RunSeeds(seed).integer("evaluation", number) for number in range(len(opponents))]
    rules: dict[str, Any] = {"games": games, "time_limit_s": time_limit_s}
    made = [play_match(player, one, env, seed=seed, **rules) for one, seed in zip(opponents, own, strict=True)]
    won, number = (np.array(numbers) for numbers in zip(*made, strict=True))
    scores, played = np.zeros((2, 1 + len(made), 1 + len(made)))
    scores[0, 1:], scores[1:, 0] = won / games * number, (1 - won / games) * number
    played[0, 1:] = played[1:, 0] = number
    found = {"elo": elo_ratings(scores, played, zero=[1])[0]}
    if snapshots:
        found["pool_elo"] = elo_ratings(scores, played, zero=range(2, len(played)))[0]
    return {
        f"{name}{end}": value
        for name, elo in found.items()
        for end, value in (("", elo.value), ("_low", elo.low), ("_high", elo.high))
    }


@dataclass(frozen=True)
class KeptPolicies:
    """The policies of a run's best evaluation, as they are when asked; another process is sent what they are then.

    Args:
        path: of the run.
        names: of the policies that learn.
    """

    path: Path
    names: tuple[str, ...]

    def __call__(self) -> tuple[dict[str, Policy], float, int | None]:
        """By name, their mean return, and the env steps of their evaluation; nothing before there are any."""
        kept, means, at = dict[str, Policy](), [None], None
        try:
            info = read_json(self.path / "run.json")
            means = [info.get("best_return")]  # of sessions before, or of a fork, what it has taken along
            for env_steps, result in read_evaluations(self.path):
                if result.get("best") and result.get("resumes") == info.get("resumes"):
                    means, at = [*means, result["return_mean"]], env_steps
            kept |= {name: load_policy(policy_folder(self.path / "policy", name)) for name in self.names}
        except (CheckpointError, ConfigError):  # an encoder without a name, say: only the code of the run can make it
            kept = {}
        return kept, math.nan if means[-1] is None else means[-1], at

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (tuple, self())


@dataclass(frozen=True)
class RunningPool:
    """The pool of a run that is going on, as it is when asked; another process is sent what it is then.

    Args:
        collector: of the run.
    """

    collector: Any

    def __call__(self) -> dict[int, list[Tensor]]:
        """Weights by policy version."""
        return self.collector.opponents()

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (dict, self())


def says_nothing(evaluation: Evaluation, policy_specs: Mapping[str, PolicySpec], before: Callable[[], float]) -> bool:
    """Whether all agents are judged, none is of a team, and together they earn in every episode what they did before.

    Args:
        before: gives the mean return of the best evaluation until now; called only where that can decide.
    """
    returns = evaluation.returns
    # two that are both as close to a third may be twice as far from each other
    return _may_oppose(policy_specs) and _same(returns, returns[0], 3e-9) and _same(returns, before(), 1e-9)


def are_opposed(policy_specs: Mapping[str, PolicySpec], env: EnvConfig, seed: int) -> bool:
    """Whether one agent wins what others lose, as far as games of random actions show it.

    All are judged, what they earn together is the same in every game, and what one of them earns is not. Games that do
    not end in time show nothing.

    Args:
        env: of the agents.
        seed: of the environments.
    """
    if not _may_oppose(policy_specs):
        return False
    lanes, chance = [RunSeeds(seed).integer("evaluation", 0)], Player.at_random(policy_specs).policies
    with create_multi_agent_envs(env.for_evaluation(1), lane_seeds=lanes) as envs, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of those that have not ended
        play = play_multi_agent_envs(chance, envs, policy_specs, deterministic=False, generator_seed=seed)
        try:
            games = first_episodes(play, 1, _GAMES, time_limit_s=_GAMES_S)
        except NoEpisodeError:
            return False
    together = evaluation_of(games, lanes, deterministic=False)
    names = [f"{name}/return" for spec in policy_specs.values() for name in spec.agents]
    earned = [[game.info.get(name, 0.0) for game in games] for name in names]
    differs = any(not _same(returns, returns[0], 1e-6) for returns in earned)
    return differs and says_nothing(together, policy_specs, lambda: together.return_mean)


def _may_oppose(policy_specs: Mapping[str, PolicySpec]) -> bool:
    """Whether there are several agents, all judged, and none is of a team."""
    specs = policy_specs.values()
    return sum(len(spec.agents) for spec in specs) > 1 and all(spec.judged and not spec.team for spec in specs)


def _same(returns: Sequence[float], value: float, tolerance: float) -> bool:
    return all(math.isclose(one, value, rel_tol=tolerance, abs_tol=tolerance / 1000) for one in returns)
