"""What can be expected of orders: the season, and what was ordered lately."""

import functools

import numpy as np

from examples.inventory.simulator import Simulator
from examples.inventory.topology import Topology

RECENT_TICKS = 8
"""Over which recent orders are summed up."""
AHEAD_TICKS = 20
"""Over which the season is averaged."""


class Forecast:
    """Expected orders of ports.

    Args:
        topology: the environment.
    """

    def __init__(self, topology: Topology) -> None:
        ports, trades = range(len(topology.ports)), range(len(topology.trades))
        self.origin = np.array([[k.origin == p for p in ports] for k in topology.trades], float)
        """[trade, port] 1 where the trade begins in the port."""
        ticks = range(-RECENT_TICKS, topology.num_ticks + AHEAD_TICKS)
        season = np.array([[topology.mean_orders(k, tick) for k in trades] for tick in ticks]) @ self.origin
        before = np.concatenate([np.zeros((1, len(ports))), np.cumsum(season, axis=0)])
        now = np.arange(topology.num_ticks + 1) + RECENT_TICKS
        self._usual = before[now] - before[now - RECENT_TICKS]  # [tick, port] in the ticks just gone by
        self._ahead = (before[np.minimum(now + AHEAD_TICKS, len(season))] - before[now]) / AHEAD_TICKS  # [tick, port]

    def orders(self, simulator: Simulator, trust: float) -> np.ndarray:
        """Containers expected to be ordered in a tick, [port].

        Args:
            simulator: standing at a call, or at the end.
            trust: how much of what was ordered lately beyond the season's expectation is expected to last.
        """
        now = simulator.tick
        if now < RECENT_TICKS:
            return self._ahead[now]
        surprise = simulator.recent_orders(RECENT_TICKS) @ self.origin / self._usual[now] - 1
        return self._ahead[now] * (1 + trust * surprise)


forecast_of = functools.cache(Forecast)
"""One for each topology."""
