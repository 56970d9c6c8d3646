"""`SelfPlay`: frozen snapshots of a policy that play against it, and who of them plays in which episode."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from palaestra.core import RunSeeds
from palaestra.multiagent.acting import MappedPolicy
from palaestra.multiagent.env import MultiAgentStep
from palaestra.multiagent.mapping import PolicySpec, SelfPlayConfig
from palaestra.policies import Phase, Policy
from palaestra.training.async_evaluation import copied

__all__ = ["SelfPlay", "match_score", "saved_pool", "snapshot_of", "with_opponents"]


class SelfPlay:
    """A pool of snapshots, each of which acts where it is seated; a policy is seated anew in every episode.

    What is drawn depends on the seed and number of the episode alone. Snapshots draw their actions as evaluations
    do, by generators of their own.

    Args:
        config: how large the pool is, and how it is drawn from.
        policy: that learns.
        policy_spec: for whom it acts.
        lane_seeds: of the environments.
        delayed: whether rewards come late.
    """

    def __init__(
        self,
        config: SelfPlayConfig,
        policy: Policy,
        policy_spec: PolicySpec,
        lane_seeds: Sequence[int],
        *,
        delayed: bool,
    ) -> None:
        self._config, self._policy, self._spec, self._delayed = config, policy, policy_spec, delayed
        self._num_envs, self._seed = len(lane_seeds), int(lane_seeds[0])
        self._snapshots: dict[int, MappedPolicy] = {}
        self._pool: list[int] = []
        self.seats: list[dict[str, int]] = [{} for _ in lane_seeds]
        """Of each environment's running episode: the agents that snapshots play, with the versions of these."""
        self._returns: list[dict[str, float]] = [{} for _ in lane_seeds]

    @property
    def weights(self) -> dict[int, list[Tensor]]:
        """Of the snapshots in the pool, oldest first, by policy version: the values of `state_dict`, in order."""
        return {version: list(self._snapshots[version].policy.state_dict().values()) for version in self._pool}

    @property
    def policies(self) -> list[Policy]:
        """The snapshots that act."""
        return [one.policy for one in self._snapshots.values()]

    def grow(self) -> None:
        """Adds a snapshot of the policy, if it is time for one; the oldest goes where there are too many.

        It acts on in episodes that it has begun.
        """
        version = self._policy.version
        if self._pool and version < self._pool[-1] + self._config.snapshot_period:
            return
        self._snapshots[version] = self._frozen(version)
        self._pool = [*self._pool, version][-self._config.pool_size :]
        used = {*self._pool, *(version for seats in self.seats for version in seats.values())}
        self._snapshots = {version: one for version, one in self._snapshots.items() if version in used}

    def adopt(self, pool: Mapping[int, Sequence[Tensor]]) -> None:
        """Goes on with the pool of another; episodes begin anew.

        Args:
            pool: from its `weights`.
        """
        self._pool, self._snapshots = sorted(pool), {version: self._frozen(version) for version in pool}
        for version, weights in pool.items():
            load_weights(self._snapshots[version].policy, weights)

    def _frozen(self, version: int) -> MappedPolicy:
        policy = snapshot_of(self._policy)
        policy.version = version
        policy.seed(RunSeeds(self._seed).integer("acting", version))
        return MappedPolicy(policy, self._spec, self._num_envs, delayed=self._delayed)

    def seat(self, env: int, lane_seed: int, episode: int) -> None:
        """Draws who plays which agent in an episode that begins.

        Args:
            env: its environment.
            lane_seed: of the environment.
            episode: its number.
        """
        rng = np.random.default_rng((int(lane_seed), int(episode), 1))
        self.forget(env)
        if rng.random() < self._config.newest_probability:
            return
        agents = self._spec.agents
        learner, opponents = rng.integers(len(agents)), rng.integers(len(self._pool), size=len(agents))
        self.seats[env] = {name: self._pool[opponents[slot]] for slot, name in enumerate(agents) if slot != learner}

    def forget(self, env: int) -> None:
        """Forgets the episode of an environment, which is over or broke off.

        Args:
            env: its number.
        """
        for snapshot in self._snapshots.values():
            snapshot.forget(env)
        self.seats[env], self._returns[env] = {}, {}

    def take(self, env: int, outcome: MultiAgentStep) -> tuple[MultiAgentStep, dict[str, float]]:
        """Gives snapshots the steps of the agents that they play.

        Args:
            env: number of the environment.
            outcome: what has happened in it.

        Returns:
            The steps of the agents that the policy plays itself. At the end of an episode with snapshots, numbers about
            it: `self_play/score`, the share of opponents that earned less, ties counted half, and `self_play/age`, how
            many versions older they are on average.
        """
        seats = self.seats[env]
        if not seats:
            return outcome, {}
        for version in set(seats.values()):
            mine = {name for name, one in seats.items() if one == version}
            self._snapshots[version].take(env, _of(outcome, mine))
        returns, rewards = self._returns[env], outcome.rewards()
        for name in self._spec.agents:
            returns[name] = returns.get(name, 0.0) + rewards.get(name, 0.0)
        return _of(outcome, set(self._spec.agents) - set(seats)), self._result(env) if outcome.over else {}

    def _result(self, env: int) -> dict[str, float]:
        seats, returns = self.seats[env], self._returns[env]
        (own,) = (returns[name] for name in self._spec.agents if name not in seats)
        score = float(np.mean([match_score(own, returns[name]) for name in seats]))
        age = float(np.mean([self._policy.version - version for version in seats.values()]))
        return {"self_play/score": score, "self_play/age": age}

    def act(self, actions: list[dict[str, Any]]) -> None:
        """Adds the actions of all snapshots.

        Args:
            actions: of every environment, by agent.
        """
        for snapshot in self._snapshots.values():
            snapshot.act(Phase.EVAL, actions=actions)

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """Snapshots with their weights, generators and running episodes, and who is seated where."""
        return {
            "pool": list(self._pool),
            "seats": [dict(seats) for seats in self.seats],
            "returns": [dict(returns) for returns in self._returns],
            "snapshots": {
                str(version): {
                    "weights": list(one.policy.state_dict().values()),
                    "generator": one.policy.generator.get_state(),
                    "actor": one.state_dict(),
                }
                for version, one in self._snapshots.items()
            },
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on where another was.

        Args:
            state: from `state`, of as many environments with the same policy.
        """
        self._pool = [int(version) for version in state["pool"]]
        self.seats = [{name: int(version) for name, version in seats.items()} for seats in state["seats"]]
        self._returns = [dict(returns) for returns in state["returns"]]
        self._snapshots = {}
        for version, saved in state["snapshots"].items():
            snapshot = self._snapshots[int(version)] = self._frozen(int(version))
            load_weights(snapshot.policy, saved["weights"])
            snapshot.policy.generator.set_state(saved["generator"])
            snapshot.load_state_dict(saved["actor"], ())


def saved_pool(collect: Mapping[str, Any]) -> dict[int, list[Tensor]]:
    """`SelfPlay.weights` as they are in a checkpoint; with workers those of the first that has any.

    Args:
        collect: the state of a collector, or of one that has workers.
    """
    positions = collect.get("workers", {}).values()  # of a worker that was busy only its lanes are known
    workers = [position["collector"] for position in positions if position and "collector" in position]
    saved: Any = next((one["self_play"] for one in (collect, *workers) if "self_play" in one), {"pool": ()})
    return {int(version): saved["snapshots"][str(version)]["weights"] for version in saved["pool"]}


def with_opponents(positions: Sequence[Any], collect: Mapping[str, Any]) -> list[Any]:
    """Positions which all have a pool of self-play: where none is in them, that of the checkpoint.

    Args:
        positions: of workers.
        collect: the state of collection, in the checkpoint.
    """
    pool = saved_pool(collect)
    return [
        one if not pool or (one and "collector" in one) else {"lanes": None, **(one or {}), "opponents": pool}
        for one in positions
    ]


def snapshot_of(policy: Policy, weights: Sequence[Tensor] | None = None) -> Policy:
    """A copy of a policy that does not learn or explore.

    Args:
        policy: as it is now.
        weights: others, in the order of its `state_dict`.
    """
    snapshot = copied(policy).requires_grad_(False)
    if weights is not None:
        load_weights(snapshot, weights)
    return snapshot


def load_weights(policy: Policy, weights: Sequence[Tensor]) -> None:
    """Takes over the values of a `state_dict`.

    Args:
        policy: that gets them.
        weights: in order.
    """
    policy.load_state_dict(dict(zip(policy.state_dict().keys(), weights, strict=True)))


def match_score(own: float, other: float) -> float:
    """1 for a win, a half for a draw (equal but for rounding), 0 for a loss.

    Args:
        own: return.
        other: return of the opponent.
    """
    return 0.5 if math.isclose(own, other, rel_tol=1e-9, abs_tol=1e-12) else float(own > other)


def _of(outcome: MultiAgentStep, names: set[str]) -> MultiAgentStep:
    """Steps of some agents."""
    steps = {name: step for name, step in outcome.time_steps.items() if name in names}
    late = {name: rewards for name, rewards in outcome.late_rewards.items() if name in names}
    return outcome._replace(time_steps=steps, late_rewards=late)
