"""`TeamLearner`: runs with many agents, each of which acts by one of several policies."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from palaestra.algorithms import Algorithm
from palaestra.buffers import ReplayBuffer
from palaestra.config.config import ExperimentConfig, algorithm_class, config_from_mapping, on_cpu
from palaestra.core import ConfigError, RunSeeds, did_you_mean, import_object, refuses
from palaestra.distributed import AgentsFactory
from palaestra.envs import EnvConfig
from palaestra.multiagent import MultiAgentCollector, PolicySpec, evaluate_agents, play_multi_agent_envs, snapshot_of
from palaestra.multiagent.envs import MultiAgentEnvs, create_multi_agent_envs, refuse_whole_episodes
from palaestra.policies import Policy, PopulationPolicy, RandomPolicy, RulePolicy
from palaestra.rollout import Evaluation, returns_of_variants
from palaestra.runs import learner, making
from palaestra.runs.data import LIBRARIES, load_for, mixed
from palaestra.runs.datasets import DataSummary, agents_folder, collect_agents
from palaestra.runs.learner import Evaluate, PolicyLearner, Scene
from palaestra.runs.matches import Opponents, Player, are_opposed, play_match, rated, says_nothing

__all__ = ["TeamLearner"]


class TeamLearner(PolicyLearner):
    """The policies of all agents of a run: algorithms, and rules that do not learn."""

    @cached_property
    def _made(self) -> tuple[Mapping[str, PolicySpec], dict[str, Algorithm[Any, Any] | Policy]]:
        making.require_parts(self.config)
        return _make_agents(self.config)

    @property
    def policy_specs(self) -> Mapping[str, PolicySpec]:
        """By policy name."""
        return self._made[0]

    @property
    def actors(self) -> dict[str, Algorithm[Any, Any] | Policy]:
        """What learns, and rules that do not, by policy name."""
        return self._made[1]

    @property
    def algorithms(self) -> dict[str, Algorithm[Any, Any]]:
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
        setting = "trainer.episodes_per_iteration"
        refuse_whole_episodes(self.config.trainer.episodes_per_iteration, setting, self.config.env.name)
        self.refuse_hindsight(f"{self.config.env.name} has many agents, and hindsight is for one policy")
        for name, one in self.algorithms.items():
            if one.policy.reads_reward or isinstance(one.policy, PopulationPolicy):
                raise ConfigError(
                    f"{type(one).__name__} is for one agent, and {name!r} is the policy of one of many: it would have "
                    "to be told rewards, or to act in every environment in every step; choose another algorithm"
                )

    @refuses(ConfigError)
    def require_new(self) -> Iterator[str]:
        super().require_new()
        for name, one in self.algorithms.items():
            if getattr(one.config, "alternating", False):
                yield (
                    f"alternating says that the next row is another player's, and the rows of {name!r} are an agent's "
                    "own, of which the next one comes after the others have moved; give --algorithm.no-alternating"
                )

    def require_ranking(self) -> None:
        env, pool, names = self.config.env, self.config.agents.self_play.pool_size, [*self.policy_specs]
        if not pool and not are_opposed(self.policy_specs, env, self.config.run.seed):
            return
        why = f"the agents of {env.name} together earn the same in every game, for one wins what others lose, and all "
        why += f"are judged ({', '.join(names)})"
        if pool:
            why = f"agents.self_play.pool_size is {pool}, and a policy that plays itself is as good as it wins"
        (*_, last), several = self.algorithms, len(names) > 1
        way = f"name one policy whose agents are judged, such as --agents.judged {last}, or " if several else ""
        raise ConfigError(
            f"{why}, so that returns do not say which trial is better; {way}train a run with each setting, and compare "
            "them by matches: palaestra rate RUN RUN"
        )

    def load_data(self, *, new: bool = False) -> dict[str, ReplayBuffer]:
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
            folder = None if data is None else str(agents_folder(data, name))
            called = f"{type(one).__name__} of the policy {name!r}"
            shape = self.policy_specs[name].reward_spec.shape
            buffer = load_for(one, self.config, folder, called, shape, new=new)
            if buffer is not None:
                found[name] = buffer
        return found

    def buffers(self, *, fragments: bool = False) -> dict[str, ReplayBuffer]:
        with self.environments() as envs:
            return self._collector(envs, fragments=fragments).buffers

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
        collector = self._collector(env, self_play=self.config.agents.self_play)
        for name, loaded in data.items():
            collector.sources[name] = mixed(self.config, collector.buffers[name], loaded)
        return collector

    def _collector(self, envs: MultiAgentEnvs, **how: Any) -> MultiAgentCollector:
        how["compression"] = self.config.buffer.compression
        return MultiAgentCollector(envs, self.policy_specs, self.actors, **how)

    def evaluation(self) -> Evaluate:
        rules = {name: one for name, one in self.actors.items() if isinstance(one, Policy)}
        return functools.partial(_evaluate, self.config, Player(self.policy_specs, rules))

    def evaluate_chance(self, *, episodes: int, seed: int) -> Evaluation:
        learned = {name: spec for name, spec in self.policy_specs.items() if name in self.algorithms}  # rules stay
        chance = {name: spec.random_policy() for name, spec in learned.items()}
        return self.evaluation()(chance, episodes=episodes, seed=seed, deterministic=False)

    def play(self, policies: Mapping[str, Policy], *, episodes: int, seed: int, window: bool) -> Iterator[Scene]:
        foreign = self.config.env.name.startswith(("pettingzoo:", "agents/"))
        drawn = {"render_mode": "rgb_array"} if foreign else {}
        env = self.config.env.for_evaluation(1, **drawn)
        number, step = 1, 0
        with create_multi_agent_envs(env, lane_seeds=[RunSeeds(seed).integer("evaluation", 1000)]) as envs:
            fps = learner.frames_per_second(envs)
            for ended in play_multi_agent_envs(policies, envs, self.policy_specs):
                lines = [f"the end, return {episode.episode_return:.4g}" for episode in ended]
                returns = [episode.episode_return for episode in ended]
                yield Scene(envs.render(), [f"episode {number}, step {step}", *lines], returns, fps)
                number, step = number + len(ended), 0 if ended else step + 1
                if number > episodes:
                    return

    def record(
        self, policies: Mapping[str, Policy], env: EnvConfig, directory: str | Path, *, steps: int, **options: Any
    ) -> DataSummary:
        return collect_agents(self.policy_specs, policies, env, directory, steps=steps, **options)


def _evaluate(
    config: ExperimentConfig,
    rules: "Player",
    policies: Mapping[str, Policy],
    *,
    episodes: int,
    seed: int,
    opponents: Opponents | None = None,
    keep: bool = False,
    **options: Any,
) -> Evaluation:
    count, policy_specs = learner.evaluation_count(config, episodes), rules.policy_specs
    actors, opponents = {**rules.policies, **policies}, opponents or Opponents()
    with learner.borrowed(config, seed, count, _evaluation_envs, keep=keep) as (envs, lanes):
        evaluation = evaluate_agents(actors, envs, policy_specs, episodes=episodes, **options)
    evaluation.seeds.extend(lanes)
    limit_s, plays_itself = config.trainer.eval_time_limit_s, bool(config.agents.self_play.pool_size)
    kept = functools.cache(opponents.kept)  # which reads all of the run's evaluations
    if (plays_itself or says_nothing(evaluation, policy_specs, lambda: kept()[1])) and (best := kept()[0]):
        games, player = 2 * math.ceil(episodes / 2), Player(policy_specs, actors)
        rival = Player(policy_specs, {**rules.policies, **best})
        match = play_match(player, rival, config.env, games=games, seed=seed, time_limit_s=limit_s)
        evaluation = dataclasses.replace(evaluation, against_best=match.won / games, rival_at=kept()[2])
    evaluation.parts.update(returns_of_variants(evaluation, len(config.env.variants)))
    if plays_itself:
        ((name, policy),) = actors.items()
        snapshots = [
            Player(policy_specs, {name: snapshot_of(policy, weights)}) for weights in opponents.pool().values()
        ]
        evaluation.parts.update(rated(Player(policy_specs, actors), snapshots, config.env, episodes, seed, limit_s))
    return evaluation


def _evaluation_envs(config: ExperimentConfig, seed: int, num_envs: int) -> tuple[MultiAgentEnvs, list[int]]:
    lanes = [RunSeeds(seed).integer("evaluation", lane) for lane in range(num_envs)]
    return create_multi_agent_envs(config.env.for_evaluation(num_envs), lane_seeds=lanes), lanes


def _make_agents(config: ExperimentConfig) -> tuple[Mapping[str, PolicySpec], dict[str, Algorithm[Any, Any] | Policy]]:
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
    actors: dict[str, Algorithm[Any, Any] | Policy] = {}
    seeds = RunSeeds(config.run.seed)
    for number, name in enumerate(names):
        (kind, settings), spec = chosen[name], policy_specs[name]
        own = RunSeeds(seeds.integer("initialisation", number)) if number else seeds
        if isinstance(kind, str):
            specs, policy = (
                (spec.observation_spec, spec.action_spec),
                f"the policy {name!r} of {', '.join(spec.agents)}",
            )
            actors[name] = making.made_of(config, kind, settings, specs, own, policy=policy, place=name)
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


def _make_in_worker(config: ExperimentConfig) -> tuple[Mapping[str, PolicySpec], dict[str, Any]]:
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
