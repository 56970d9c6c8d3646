"""Makers of what roll-out workers act with: each gets its share of a run's environments."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from palaestra.algorithms import Algorithm
from palaestra.core import POLICY, RunSeeds
from palaestra.distributed.config import require_shares
from palaestra.envs import EnvConfig, chaos_of, create_environment
from palaestra.multiagent import MultiAgentCollector, PolicySpec, SelfPlayConfig, create_multi_agent_envs
from palaestra.nn import Precision
from palaestra.policies import Policy, SearchPolicy
from palaestra.rollout import Collector, buffer_for, episode_discount

__all__ = ["ActingParts", "AgentsFactory", "CollectorFactory"]


class ActingParts(NamedTuple):
    """What a roll-out worker acts with."""

    collector: Any
    """A `Collector`, or another that fills `buffers` by `unroll`; its buffers hold fragments only."""
    policies: Mapping[str, Policy]
    """That act, by name."""
    env: Any
    """That they act in."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The environments of a run, shared out over its workers."""

    env: EnvConfig
    num_workers: int
    seed: int = 0

    def __post_init__(self) -> None:
        require_shares(self.env, self.num_workers)

    def share(self, worker: int) -> tuple[EnvConfig, list[int]]:
        """The environments of one worker, with the seeds and variants that they would have in one process.

        Args:
            worker: its number.
        """
        size = self.env.num_envs // self.num_workers
        lanes = range(worker * size, (worker + 1) * size)
        lane_seeds = [RunSeeds(self.seed).integer("environments", lane) for lane in lanes]
        turns = self.env.variants
        turns = tuple(turns[(lanes.start + turn) % len(turns)] for turn in range(len(turns)))
        chaos = chaos_of(self.env.chaos, lanes)
        return dataclasses.replace(self.env, num_envs=size, variants=turns, chaos=chaos), lane_seeds


@dataclass(frozen=True, kw_only=True)
class CollectorFactory(Shares):
    """Makes what the roll-out workers of a run with one policy act with.

    Args:
        env: of the run; its environments are shared out over the workers.
        algorithm: makes the algorithm of the run, with the policy that acts.
        precision: of products in searches, see `Algorithm.set_precision`; other acting is not changed by it.

    Raises:
        ConfigError: the environments cannot be shared out evenly, or would need processes of their own.
    """

    algorithm: Callable[[], Algorithm[Any, Any]]
    precision: Precision = "float32"

    def __call__(self, worker: int) -> ActingParts:
        """The parts of one worker.

        Args:
            worker: its number; its policy has a seed of its own.
        """
        config, lane_seeds = self.share(worker)
        env = create_environment(config, lane_seeds=lane_seeds, first_id=worker * config.num_envs)
        algorithm = self.algorithm()
        if isinstance(algorithm.policy, SearchPolicy):
            algorithm.set_precision(self.precision)
        algorithm.policy.seed(RunSeeds(self.seed).integer("acting", 1 + worker))
        buffer = buffer_for(algorithm, config.num_envs, fragments=True, **env.row_specs)
        collector = Collector(env, algorithm.policy, buffer, gamma=episode_discount(algorithm))
        return ActingParts(collector, {POLICY: algorithm.policy}, env)


@dataclass(frozen=True, kw_only=True)
class AgentsFactory(Shares):
    """Makes what the roll-out workers of a run with many agents act with.

    Args:
        env: of the run; its environments are shared out over the workers.
        actors: makes the policy specs, and the algorithms and rules that act, by policy name.
        self_play: how large a pool of earlier selves each worker keeps; none by default.

    Raises:
        ConfigError: the environments cannot be shared out evenly.
    """

    actors: Callable[[], tuple[Mapping[str, PolicySpec], Mapping[str, Algorithm[Any, Any] | Policy]]]
    self_play: SelfPlayConfig | None = None

    def __call__(self, worker: int) -> ActingParts:
        """The parts of one worker.

        Args:
            worker: its number; its policies have seeds of their own.
        """
        config, lane_seeds = self.share(worker)
        envs = create_multi_agent_envs(config, lane_seeds=lane_seeds, first_id=worker * config.num_envs)
        policy_specs, actors = self.actors()
        collector = MultiAgentCollector(envs, policy_specs, actors, fragments=True, self_play=self.self_play)
        for number, one in enumerate(actors.values()):
            policy = one.policy if isinstance(one, Algorithm) else one
            policy.seed(RunSeeds(self.seed).integer("acting", 1 + worker + self.num_workers * number))
        policies = {name: one.policy for name, one in actors.items() if isinstance(one, Algorithm)}
        return ActingParts(collector, policies, envs)
