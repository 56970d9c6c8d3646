"""Gives every rule its best parameters, on the tuning seeds: learning should not be compared with a straw man."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from examples.inventory.planning import RollingPlan
from examples.inventory.rules import Greedy, Levels, Policy, shortage
from examples.inventory.seeds import TUNING
from examples.inventory.topology import Topology


def share_lost(policy: Policy, topology: Topology, seeds: Iterable[int]) -> list[float]:
    """Lost orders as a share of all orders, by episode.

    Args:
        policy: decides at every call.
        topology: the world.
        seeds: of the episodes.
    """
    return [lost / ordered for lost, ordered in (shortage(policy, topology, seed) for seed in seeds)]


def tuned_levels(topology: Topology, *, generations: int = 20, population: int = 20, seed: int = 0) -> Levels:
    """The (s, S) rule's levels by the cross-entropy method: sample, keep the best quarter, sample around them.

    Args:
        topology: the world.
        generations: how often.
        population: samples in each.
        seed: of the samples.
    """
    rng, ports = np.random.default_rng(seed), len(topology.ports)
    mean, deviation = np.full(2 * ports, 500.0), np.full(2 * ports, 300.0)
    for _ in range(generations):
        samples = np.maximum(0, rng.normal(mean, deviation, (population, 2 * ports)))
        samples[:, ports:] = np.maximum(samples[:, ports:], samples[:, :ports])
        lost = [np.mean(share_lost(_levels(sample), topology, TUNING)) for sample in samples]
        best = samples[np.argsort(lost)[: population // 4]]
        mean, deviation = best.mean(axis=0), best.std(axis=0) + 5
    return _levels(mean)


def _levels(values: np.ndarray) -> Levels:
    low, high = np.split(values, 2)
    return Levels(low.round().tolist(), high.round().tolist())


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
