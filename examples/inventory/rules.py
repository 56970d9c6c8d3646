"""Policies without learning. A policy is a function of a simulator that stands at a call; it returns how many empty
containers to put ashore (negative: to take aboard), and looks at nothing that has not happened yet.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from examples.inventory.forecast import forecast_of
from examples.inventory.simulator import Simulator
from examples.inventory.tape import Tape
from examples.inventory.topology import Topology

Policy = Callable[[Simulator], int]


def none(simulator: Simulator) -> int:
    """Moves no empty container."""
    return 0


@dataclass
class Random:
    """Any possible number, each equally likely."""

    seed: int = 0

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def __call__(self, simulator: Simulator) -> int:
        """Containers to put ashore."""
        call = simulator.call
        assert call is not None
        return int(self._rng.integers(-call.most_aboard, call.most_ashore + 1))


@dataclass(frozen=True)
class Levels:
    """The (s, S) rule of inventory theory, for both directions.

    A port with less than `low` is filled up to `low`; one with more than `high` gives what is above.
    """

    low: Sequence[float]
    """s, [port]."""
    high: Sequence[float]
    """S, [port]; at least `low`."""

    def __call__(self, simulator: Simulator) -> int:
        """Containers to put ashore."""
        call = simulator.call
        assert call is not None
        stock = simulator.stock[call.port]
        if stock < self.low[call.port]:
            return min(call.most_ashore, round(self.low[call.port]) - stock)
        return -min(call.most_aboard, max(0, stock - round(self.high[call.port])))


@dataclass(frozen=True)
class Greedy:
    """Each port takes what it expects to lack in the ticks to come, and gives away the rest."""

    cover_ticks: int = 15
    """How far it looks ahead."""

    def __call__(self, simulator: Simulator) -> int:
        """Containers to put ashore."""
        call, env = simulator.call, simulator.topology
        assert call is not None
        ahead = range(simulator.tick, simulator.tick + self.cover_ticks)
        leaving = [k for k, trade in enumerate(env.trades) if trade.origin == call.port]
        lacking = sum(env.mean_orders(k, tick) for k in leaving for tick in ahead) - simulator.inland[call.port]
        return int(np.clip(round(lacking) - simulator.stock[call.port], -call.most_aboard, call.most_ashore))


@dataclass(frozen=True)
class Shares:
    """Every port wants its share of all empty containers there are, in proportion to its weighted expected orders."""

    weights: Sequence[float]
    """[port] what an expected order counts."""
    part: float = 0.8
    """Of the empty containers in stock and aboard, how much is shared out."""
    trust: float = 0.5
    """How much of what was ordered lately beyond the season's expectation is expected to last."""

    def wanted(self, simulator: Simulator) -> np.ndarray:
        """Stock that each port wants, [port].

        Args:
            simulator: standing at a call, or at the end.
        """
        weight = forecast_of(simulator.topology).orders(simulator, self.trust) * self.weights
        return self.part * (sum(simulator.stock) + sum(simulator.empties)) / weight.sum() * weight

    def __call__(self, simulator: Simulator) -> int:
        """Containers to put ashore."""
        call = simulator.call
        assert call is not None
        wanted = round(float(self.wanted(simulator)[call.port]))
        return max(-call.most_aboard, min(call.most_ashore, wanted - simulator.stock[call.port]))


def shortage(policy: Policy, topology: Topology, seed: int) -> tuple[int, int]:
    """Lost orders and all orders of an episode, in containers.

    Args:
        policy: decides at every call.
        topology: the environment.
        seed: of the episode.
    """
    simulator = Simulator(topology, Tape.draw(topology, seed))
    while simulator.call is not None:
        simulator.decide(policy(simulator))
    return sum(simulator.shortage), sum(simulator.ordered)
