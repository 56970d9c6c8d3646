"""`AgentsFactory`: what the roll-out workers of a run with many agents act with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.algorithms import Algorithm
from palaestra.core import ConfigError, RunSeeds
from palaestra.distributed.worker import ActingParts
from palaestra.envs import EnvConfig
from palaestra.multiagent import MultiAgentCollector, Role, create_worlds
from palaestra.policies import Policy

__all__ = ["AgentsFactory"]

Actors = Mapping[str, Algorithm[Any] | Policy]


@dataclass(frozen=True)
class AgentsFactory:
    """Makes what the roll-out workers of a run with many agents act with.

    Args:
        env: of the run; its worlds are shared out over the workers.
        actors: makes the roles, and the algorithms and rules that act, by policy name.
        num_workers: how many workers there are.
        seed: of the run.

    Raises:
        ConfigError: the worlds cannot be shared out evenly.
    """

    env: EnvConfig
    actors: Callable[[], tuple[Mapping[str, Role], Actors]]
    num_workers: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.env.num_envs % self.num_workers:
            raise ConfigError(
                f"env.num_envs is {self.env.num_envs}, which {self.num_workers} workers cannot share evenly"
            )

    def __call__(self, worker: int) -> ActingParts:
        """The parts of one worker.

        Args:
            worker: its number. Its worlds have the seeds that they would have in one process; its policies have their
                own.
        """
        seeds, size = RunSeeds(self.seed), self.env.num_envs // self.num_workers
        lanes = range(worker * size, (worker + 1) * size)
        env = dataclasses.replace(self.env, num_envs=size)
        worlds = create_worlds(env, lane_seeds=[seeds.integer("environments", lane) for lane in lanes])
        roles, actors = self.actors()
        collector = MultiAgentCollector(worlds, roles, actors, fragments=True)
        policies: dict[str, Policy] = {}
        for number, (name, one) in enumerate(actors.items()):
            policy = one.policy if isinstance(one, Algorithm) else one
            policy.seed(seeds.integer("acting", 1 + worker + self.num_workers * number))
            if isinstance(one, Algorithm):
                policies[name] = policy
        return ActingParts(collector, policies, worlds)
