"""`Learning`: the learning half of a training iteration, over all policies of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.algorithms import Algorithm, UpdateInfo
from palaestra.core import POLICY, ConfigError, NonFiniteError, Offline, OnPolicy, Replay
from palaestra.rollout import CollectInfo
from palaestra.training.averages import Averages
from palaestra.training.collect import DataCollector
from palaestra.training.faults import SkippedUpdates
from palaestra.training.policy_manager import PolicyManager, SelfPaced, part_name

__all__ = ["Learning"]


class Learning:
    """Decides by each policy's plan when it learns, has the manager do it, and keeps count.

    Args:
        manager: of the policies.
        max_skipped: updates in a row of one policy that may fail for a gradient that is not finite.
        faults: where to keep what such an update was made of; `None` keeps nothing.

    Raises:
        ConfigError: the plans of the policies cannot be followed in one run.
    """

    def __init__(self, manager: PolicyManager, max_skipped: int, faults: Path | None) -> None:
        self.manager = manager
        self._self_paced = isinstance(manager, SelfPaced)
        self.unroll_length = (
            manager.unroll_length if isinstance(manager, SelfPaced) else _unroll_length(manager.algorithms)
        )
        """Time steps from every environment in a training iteration."""
        self._skipped = {
            name: SkippedUpdates(max_skipped, None if faults is None else faults / ("" if name == POLICY else name))
            for name in manager.algorithms
        }
        self._averages = {name: Averages() for name in manager.algorithms}
        self._rows_trained = dict.fromkeys(manager.algorithms, 0)
        self._warm_ups = {
            name: algorithm.plan.learning_starts
            for name, algorithm in manager.algorithms.items()
            if isinstance(algorithm.plan, Replay) and not algorithm.stored_fields
        }
        self._progress = 0.0

    def acts_randomly(self, env_steps: int) -> frozenset[str]:
        """Policies whose initial steps are not over: they have learned nothing yet, and chance explores best.

        Args:
            env_steps: taken so far.
        """
        return frozenset(name for name, end in self._warm_ups.items() if env_steps < end)

    def learn(self, collect: DataCollector, info: CollectInfo, progress: float) -> dict[str, UpdateInfo]:
        """One update of every policy that has the data for it; then schedules move on.

        Args:
            collect: has the data.
            info: of the unroll before.
            progress: of the run, in [0, 1].

        Returns:
            What was learned, by policy.

        Raises:
            NonFiniteError: too many updates of a policy in a row were not finite.
        """
        sources = {
            name: collect.sources[name]
            for name, algorithm in self.manager.algorithms.items()
            if not self._self_paced
            and info.rows_of.get(name, 1)
            and _may_learn(algorithm, collect, info.rows_of.get(name, info.rows))
        }
        for source in sources.values():
            if (follow := getattr(source, "set_progress", None)) is not None:  # a sampler may follow schedules
                follow(progress)
        learned: dict[str, UpdateInfo] = {}
        for name, result in (self.manager.update(sources) if sources or self._self_paced else {}).items():
            if isinstance(result, NonFiniteError):
                self._skipped[name].skip(result, self.manager.algorithms[name], collect.env_steps)
                continue
            self._skipped[name].applied()
            self._averages[name].add(result.records)
            self._rows_trained[name] += result.rows_trained
            learned[name] = result
        self.set_progress(progress)
        return learned

    def set_progress(self, progress: float) -> None:
        """Moves everything that follows a schedule.

        Args:
            progress: of the run, in [0, 1].
        """
        self._progress = progress
        self.manager.set_progress(progress)

    def metrics(self) -> dict[str, float]:
        """For a row of metrics: `learning/...` since the last call, or `learning/<policy>/...` of several policies."""
        algorithms = self.manager.algorithms
        row: dict[str, float] = {
            "policy_version": max(algorithm.policy_version for algorithm in algorithms.values()),
            "gradient_steps": sum(algorithm.num_gradient_steps for algorithm in algorithms.values()),
            "rows_trained": sum(self._rows_trained.values()),
            "updates_skipped": sum(skipped.total for skipped in self._skipped.values()),
        }
        for policy, averages in self._averages.items():
            prefix = part_name("learning", policy, "/")
            row |= {f"{prefix}/{name}": value for name, value in averages.take().items()}
        return row

    def state(self) -> dict[str, Any]:
        """Where learning is, by policy, besides what the manager keeps."""
        return {
            "progress": self._progress,
            "policies": {
                name: {
                    "averages": self._averages[name].state(),
                    "rows_trained": self._rows_trained[name],
                    "skipped": [self._skipped[name].in_a_row, self._skipped[name].total],
                }
                for name in self._averages
            },
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of a run with the same policies.
        """
        for name, saved in state["policies"].items():
            self._averages[name].load_state(saved["averages"])
            self._rows_trained[name] = saved["rows_trained"]
            self._skipped[name].in_a_row, self._skipped[name].total = saved["skipped"]
        self.set_progress(state["progress"])


def _may_learn(algorithm: Algorithm[Any], collect: DataCollector, new_rows: int) -> bool:
    """On-policy, where there are new rows; off-policy, after the initial steps and one window in every lane."""
    plan = algorithm.plan
    if isinstance(plan, OnPolicy):
        return new_rows > 0
    if isinstance(plan, Offline):
        return True
    window = max(plan.n_step, plan.mini_batch_length) * collect.num_lanes
    return collect.env_steps > max(plan.learning_starts, window)


def _unroll_length(algorithms: Mapping[str, Algorithm[Any]]) -> float:
    """That of the on-policy plans, which must agree; else that of the others; none is collected offline."""
    plans = {name: algorithm.plan for name, algorithm in algorithms.items()}
    offline = [name for name, plan in plans.items() if isinstance(plan, Offline)]
    if offline:
        if len(offline) < len(plans):
            raise ConfigError(f"{', '.join(offline)} learns offline, where nothing is collected for the other policies")
        return 0.0
    on_policy = {name: plan.unroll_length for name, plan in plans.items() if isinstance(plan, OnPolicy)}
    lengths = on_policy or {name: plan.unroll_length for name, plan in plans.items() if isinstance(plan, Replay)}
    if len(set(lengths.values())) > 1:
        given = ", ".join(f"{name}: {length:g}" for name, length in lengths.items())
        raise ConfigError(f"all policies of a run learn from the same unrolls, but their unroll_length is {given}")
    return float(next(iter(lengths.values())))
