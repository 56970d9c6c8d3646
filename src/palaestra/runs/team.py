"""`TeamLearner`: runs with many agents, each of which acts by one of several policies."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.algorithms import Algorithm
from palaestra.buffers import ReplayBuffer
from palaestra.config.config import ExperimentConfig, algorithm_class, config_from_mapping, on_cpu
from palaestra.core import ConfigError, RunSeeds, did_you_mean, import_object
from palaestra.distributed import AgentsFactory
from palaestra.envs import EnvConfig
from palaestra.multiagent import (
    MultiAgentCollector,
    PolicySpec,
    evaluate_agents,
    match_score,
    play_multi_agent_envs,
    snapshot_of,
)
from palaestra.multiagent.envs import MultiAgentEnvs, create_multi_agent_envs
from palaestra.ops import elo_ratings
from palaestra.policies import Policy, RandomPolicy, RulePolicy
from palaestra.rollout import Evaluation, NoEpisodeError, first_episodes, returns_of_variants
from palaestra.runs import learner, making
from palaestra.runs.data import LIBRARIES, DataSummary, collect_agents, load_for, mixed
from palaestra.runs.learner import Evaluate, PolicyLearner, Scene

__all__ = ["Player", "RunningPool", "TeamLearner", "play_match"]

_log = logging.getLogger(__name__)

_LANES = 16  # environments of a match, side by side


class TeamLearner(PolicyLearner):
    """The policies of all agents of a run: algorithms, and rules that do not learn."""

    @cached_property
    def _made(self) -> tuple[Mapping[str, PolicySpec], dict[str, Algorithm[Any] | Policy]]:
        making.require_parts(self.config)
        return _make_agents(self.config)

    @property
    def policy_specs(self) -> Mapping[str, PolicySpec]:
        """By policy name."""
        return self._made[0]

    @property
    def actors(self) -> dict[str, Algorithm[Any] | Policy]:
        """What learns, and rules that do not, by policy name."""
        return self._made[1]

    @property
    def algorithms(self) -> dict[str, Algorithm[Any]]:
        return {name: one for name, one in self.actors.items() if isinstance(one, Algorithm)}

    @property
    def policies(self) -> dict[str, Policy]:
        return {name: one.policy if isinstance(one, Algorithm) else one for name, one in self.actors.items()}

    @property
    def num_agents(self) -> dict[str, int]:
        return {name: len(self.policy_specs[name].agents) for name in self.algorithms}

    def require(self) -> None:
        super().require()
        self.config.agents.self_play.require(self.policy_specs)
        making.refuse_eval_vectorization(self.config, "many agents are")
        if (number := self.config.trainer.episodes_per_iteration) is not None:
            raise ConfigError(
                f"trainer.episodes_per_iteration is {number}, but {self.config.env.name} has many agents, whose "
                "environments are stepped by time steps; leave it out"
            )
        self.refuse_hindsight(f"{self.config.env.name} has many agents, and hindsight is for one policy")

    def load_data(self) -> dict[str, ReplayBuffer]:
        data = self.config.offline.data
        if data is not None and data.startswith((*LIBRARIES,)):
            raise ConfigError(
                f"offline.data is {data!r}, but such a dataset is of one agent and {self.config.env.name} has many; "
                f"give a folder with one for each policy ({', '.join(self.algorithms)}), as `palaestra data collect` "
                "writes it"
            )
        if self.config.offline.updates:
            raise ConfigError(
                f"offline.updates is {self.config.offline.updates}, but {self.config.env.name} has many agents, and "
                "updates on data before the first step are for one; leave it out"
            )
        found: dict[str, ReplayBuffer] = {}
        for name, one in self.algorithms.items():
            if one.plan.data == "offline" and not self.offline:
                raise ConfigError(
                    f"{name} learns from data alone, for which nothing is collected, but other policies collect"
                )
            folder = None if data is None else str(Path(data) / name)
            called = f"{type(one).__name__} of the policy {name!r}"
            buffer = load_for(one, self.config, folder, called, self.policy_specs[name].reward_spec.shape)
            if buffer is not None:
                found[name] = buffer
        return found

    def buffers(self, *, fragments: bool = False) -> dict[str, ReplayBuffer]:
        with self.environments() as envs:
            return MultiAgentCollector(envs, self.policy_specs, self.actors, fragments=fragments).buffers

    def workers(self) -> Any:
        config = on_cpu(self.config)
        run = dataclasses.replace(config.run, loggers=(), callbacks=())
        make = functools.partial(_make_in_worker, dataclasses.replace(config, run=run))
        number, seed = config.distributed.num_workers, config.run.seed
        settings = config.agents.self_play
        return AgentsFactory(env=config.env, actors=make, num_workers=number, seed=seed, self_play=settings)

    def environments(self) -> MultiAgentEnvs:
        return create_multi_agent_envs(self.config.env, seed=self.config.run.seed)

    def collector(self, env: MultiAgentEnvs, data: Mapping[str, ReplayBuffer]) -> MultiAgentCollector:
        collector = MultiAgentCollector(env, self.policy_specs, self.actors, self_play=self.config.agents.self_play)
        for name, loaded in data.items():
            collector.sources[name] = mixed(self.config, collector.buffers[name], loaded)
        return collector

    def evaluation(self) -> Evaluate:
        rules = {name: one for name, one in self.actors.items() if isinstance(one, Policy)}
        return functools.partial(_evaluate, self.config, Player(self.policy_specs, rules))

    def evaluate_chance(self, *, episodes: int, seed: int) -> Evaluation:
        specs = self.policy_specs
        chance = {name: RandomPolicy(spec.observation_spec, spec.action_spec) for name, spec in specs.items()}
        return self.evaluation()(chance, episodes=episodes, seed=seed, deterministic=False)

    def play(self, policies: Mapping[str, Policy], *, episodes: int, seed: int, window: bool) -> Iterator[Scene]:
        foreign = self.config.env.name.startswith(("pettingzoo:", "agents/"))
        drawn = {"render_mode": "rgb_array"} if foreign else {}
        env = self.config.env.for_evaluation(1, **drawn)
        number, step = 1, 0
        with create_multi_agent_envs(env, lane_seeds=[RunSeeds(seed).integer("evaluation", 1000)]) as envs:
            for ended in play_multi_agent_envs(policies, envs, self.policy_specs):
                lines = [f"the end, return {episode.episode_return:.4g}" for episode in ended]
                returns = [episode.episode_return for episode in ended]
                yield Scene(envs.render(), [f"episode {number}, step {step}", *lines], returns)
                number, step = number + len(ended), 0 if ended else step + 1
                if number > episodes:
                    return

    def record(
        self, policies: Mapping[str, Policy], env: EnvConfig, directory: str | Path, *, steps: int, seed: int
    ) -> DataSummary:
        return collect_agents(self.policy_specs, policies, env, directory, steps=steps, seed=seed)


def _evaluate(
    config: ExperimentConfig,
    rules: "Player",
    policies: Mapping[str, Policy],
    *,
    episodes: int,
    seed: int,
    pool: Callable[[], Mapping[int, list[Tensor]]] = dict,
    keep: bool = False,
    **options: Any,
) -> Evaluation:
    count, policy_specs = learner.evaluation_count(config, episodes), rules.policy_specs
    actors = {**rules.policies, **policies}
    with learner.borrowed(config, seed, count, _evaluation_envs, keep=keep) as (envs, lanes):
        evaluation = evaluate_agents(actors, envs, policy_specs, episodes=episodes, **options)
    evaluation.seeds.extend(lanes)
    evaluation.parts.update(returns_of_variants(evaluation, len(config.env.variants)))
    if config.agents.self_play.pool_size:
        ((name, policy),) = actors.items()
        snapshots = [Player(policy_specs, {name: snapshot_of(policy, weights)}) for weights in pool().values()]
        limit_s = config.trainer.eval_time_limit_s
        evaluation.parts.update(_rated(Player(policy_specs, actors), snapshots, config.env, episodes, seed, limit_s))
    return evaluation


def _evaluation_envs(config: ExperimentConfig, seed: int, num_envs: int) -> tuple[MultiAgentEnvs, list[int]]:
    lanes = [RunSeeds(seed).integer("evaluation", lane) for lane in range(num_envs)]
    return create_multi_agent_envs(config.env.for_evaluation(num_envs), lane_seeds=lanes), lanes


@dataclass(frozen=True)
class Player:
    """Policies that play together against others."""

    policy_specs: Mapping[str, PolicySpec]
    """By policy name; no teams."""
    policies: Mapping[str, Policy]
    """By name."""

    @classmethod
    def at_random(cls, policy_specs: Mapping[str, PolicySpec]) -> "Player":
        """A player of random actions.

        Args:
            policy_specs: by policy name.
        """
        chance = {name: RandomPolicy(one.observation_spec, one.action_spec) for name, one in policy_specs.items()}
        return cls(policy_specs, chance)


def play_match(
    first: Player,
    second: Player,
    env: EnvConfig,
    *,
    games: int,
    seed: int,
    deterministic: bool = False,
    time_limit_s: float | None = None,
) -> float:
    """How many games one player wins against another; a draw is half a game.

    The players take every other agent, and change sides for the second half of the games, which begin as the first half
    does. Who earns more on average over its agents has won.

    Args:
        first: whose wins are counted.
        second: the other one.
        env: of both.
        games: an even number.
        seed: of the environments.
        deterministic: whether to take the most probable or most valuable actions.
        time_limit_s: for each half of the games; those that have not ended then are draws, with a warning.
    """
    count = min(_LANES, games // 2)
    lanes = [RunSeeds(seed).integer("evaluation", lane) for lane in range(count)]
    won = 0.0
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
            play = play_multi_agent_envs(policies, envs, specs, deterministic=deterministic)
            try:
                ended = first_episodes(play, count, games // 2, time_limit_s=time_limit_s)
            except NoEpisodeError as error:
                _log.warning("games against each other count as draws: %s", error)
                ended = []
            won += (games // 2 - len(ended)) / 2
            for episode in ended:
                earned = {name: episode.info[f"{name}/return"] for name in order if f"{name}/return" in episode.info}
                own = [value for name, value in earned.items() if name in mine]
                others = [value for name, value in earned.items() if name not in mine]
                won += match_score(sum(own) / max(1, len(own)), sum(others) / max(1, len(others)))
    return won


def _rated(
    player: Player, snapshots: Sequence[Player], env: EnvConfig, games: int, seed: int, time_limit_s: float | None
) -> dict[str, float]:
    """Elo of a player, from as many games against each opponent: above random actions, and above its snapshots."""
    games += games % 2
    opponents = [Player.at_random(player.policy_specs), *snapshots]
    won = [play_match(player, one, env, games=games, seed=seed, time_limit_s=time_limit_s) for one in opponents]
    scores, played = np.zeros((2, 1 + len(won), 1 + len(won)))
    scores[0, 1:], scores[1:, 0] = won, games - np.array(won)
    played[0, 1:] = played[1:, 0] = games
    found = {"elo": elo_ratings(scores, played, zero=[1])[0]}
    if snapshots:
        found["pool_elo"] = elo_ratings(scores, played, zero=range(2, len(played)))[0]
    return {
        f"{name}{end}": value
        for name, elo in found.items()
        for end, value in (("", elo.value), ("_low", elo.low), ("_high", elo.high))
    }


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


def _make_agents(config: ExperimentConfig) -> tuple[Mapping[str, PolicySpec], dict[str, Algorithm[Any] | Policy]]:
    """The specs of all policies, and what acts by them.

    Raises:
        ConfigError: the mapping does not fit the agents, or an algorithm does not fit its spec.
    """
    count = max(1, len(config.env.variants))
    with create_multi_agent_envs(dataclasses.replace(config.env, num_envs=count)) as envs:
        agents, state_spec = envs.agents, envs.state_spec
    names = list(dict.fromkeys(config.agents.mapping_for(agents).values()))
    if unknown := sorted(set(config.agents.policies) - set(names)):
        raise ConfigError(f"agents.policies names {', '.join(unknown)}, but the policies are {', '.join(names)}")
    chosen = {name: _chosen(config, name) for name in names}
    teams = [name for name, (kind, _) in chosen.items() if isinstance(kind, str) and algorithm_class(kind).team]
    policy_specs = config.agents.policy_specs(agents, teams=teams, state_spec=state_spec)
    actors: dict[str, Algorithm[Any] | Policy] = {}
    seeds = RunSeeds(config.run.seed)
    for number, name in enumerate(names):
        (kind, settings), spec = chosen[name], policy_specs[name]
        own = RunSeeds(seeds.integer("initialisation", number)) if number else seeds
        if isinstance(kind, str):
            specs, policy = (
                (spec.observation_spec, spec.action_spec),
                f"the policy {name!r} of {', '.join(spec.agents)}",
            )
            actors[name] = making.made_of(config, kind, settings, specs, own, policy=policy)
        else:
            rule: Policy = kind(spec.observation_spec, spec.action_spec)
            rule.seed(own.integer("acting"))
            actors[name] = rule
    learning = [name for name, actor in actors.items() if isinstance(actor, Algorithm)]
    if not learning:
        raise ConfigError(f"none of the policies {', '.join(names)} learns; leave one out of agents.policies")
    judged = config.agents.judged or learning
    if unknown := [name for name in judged if name not in actors]:
        raise ConfigError(
            f"agents.judged names {unknown[0]!r}, but the policies are {', '.join(names)}"
            f"{did_you_mean(unknown[0], names)}"
        )
    return {name: dataclasses.replace(spec, judged=name in judged) for name, spec in policy_specs.items()}, actors


def _make_in_worker(config: ExperimentConfig) -> tuple[Mapping[str, PolicySpec], dict[str, Algorithm[Any] | Policy]]:
    """`_make_agents` with as many threads as the worker has."""
    run = dataclasses.replace(config.run, num_threads=torch.get_num_threads())
    return _make_agents(dataclasses.replace(config, run=run))


def _chosen(config: ExperimentConfig, name: str) -> tuple[Any, Any]:
    """An algorithm's name and settings; or what makes a rule from specs, and nothing."""
    given = config.agents.policies.get(name)
    if given is None:
        return config.algorithm_name, config.algorithm
    settings = dict(given) if isinstance(given, Mapping) else {"algorithm": given}
    kind = str(settings.pop("algorithm", config.algorithm_name))
    rule = RandomPolicy if kind == "random" else _rule(kind)
    if rule is not None:
        if settings:
            raise ConfigError(
                f"agents.policies.{name} is the rule {kind}, which has no settings: {', '.join(settings)}"
            )
        return rule, None
    base = config.algorithm if kind == config.algorithm_name else None
    try:
        return kind, config_from_mapping(algorithm_class(kind).config_class, settings, base=base)
    except ConfigError as error:
        raise ConfigError(f"agents.policies.{name}: {error}") from error


def _rule(name: str) -> Callable[[Any, Any], Policy] | None:
    """What makes the policy of a user's function; `None` where the name is an algorithm's."""
    found = import_object(name) if ":" in name else None
    if found is None or (isinstance(found, type) and issubclass(found, Algorithm)):
        return None
    return lambda observation_spec, action_spec: RulePolicy(found, observation_spec, action_spec)
