"""Gives every rule its best parameters, on the tuning seeds: learning should not be compared with a straw man."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from examples.inventory.planning import RollingPlan
from examples.inventory.rules import Greedy, Levels, Policy, Shares, shortage
from examples.inventory.seeds import TUNING
from examples.inventory.topology import Topology


def share_lost(policy: Policy, topology: Topology, seeds: Iterable[int]) -> list[float]:
    """Lost orders as a share of all orders, by episode.

    Args:
        policy: decides at every call.
        topology: the environment.
        seeds: of the episodes.
    """
    return [lost / ordered for lost, ordered in (shortage(policy, topology, seed) for seed in seeds)]


def cross_entropy(
    topology: Topology, make: Callable[[np.ndarray], Policy], mean: np.ndarray, deviation: np.ndarray
) -> np.ndarray:
    """Parameters of a rule by the cross-entropy method: sample 20, keep the best quarter, sample around it; 20 times.

    Args:
        topology: the environment.
        make: the rule from its parameters.
        mean: where to begin.
        deviation: how far around it to look.
    """
    rng, least = np.random.default_rng(0), deviation / 60
    for _ in range(20):
        samples = np.maximum(0, rng.normal(mean, deviation, (20, len(mean))))
        lost = [np.mean(share_lost(make(sample), topology, TUNING)) for sample in samples]
        best = samples[np.argsort(lost)[:5]]
        mean, deviation = best.mean(axis=0), best.std(axis=0) + least
    return mean


def tuned_levels(topology: Topology) -> Levels:
    """The (s, S) rule's levels."""

    def levels(values: np.ndarray) -> Levels:
        low, high = np.split(values, 2)
        return Levels(low.round().tolist(), np.maximum(low, high).round().tolist())

    size = 2 * len(topology.ports)
    return levels(cross_entropy(topology, levels, np.full(size, 500.0), np.full(size, 300.0)))


def tuned_shares(topology: Topology) -> Shares:
    """The weights of the sharing rule, what it shares out, and its trust in booms."""

    def shares(values: np.ndarray) -> Shares:
        *weights, part, trust = values.round(3).tolist()
        return Shares(weights, part, trust)

    ports = len(topology.ports)
    start, around = [1.0] * ports + [0.8, 0.5], [0.5] * ports + [0.2, 0.3]
    return shares(cross_entropy(topology, shares, np.array(start), np.array(around)))


def tuned_greedy(topology: Topology) -> Greedy:
    """The greedy rule's look-ahead, of all from 2 to 40 ticks."""
    return min(map(Greedy, range(2, 41, 2)), key=lambda rule: np.mean(share_lost(rule, topology, TUNING)))


CHOICES: dict[str, tuple[Any, ...]] = {
    "cover_cost": (0.01, 0.05),
    "cover_ticks": (10.0, 20.0, 30.0),
    "trust": (0.0, 1.0),
    "horizon": (20, 45),
}
"""Of the rolling plan, around its defaults, where a coarser search ended; tried one after another, the best is kept."""


def tuned_plan(topology: Topology) -> RollingPlan:
    """The rolling plan's parameters, one coordinate after another."""
    best = RollingPlan()
    lowest = np.mean(share_lost(best, topology, TUNING))
    for name, values in CHOICES.items():
        start = best
        for value in values:
            plan = dataclasses.replace(start, **{name: value})
            lost = np.mean(share_lost(plan, topology, TUNING))
            print(f"  {name}={value}: {lost:.2%} lost", flush=True)
            if lost < lowest:
                best, lowest = plan, lost
    return best
