"""What a port reads off the simulator: nothing that has not happened, and no more than the rules may read."""

import functools
import math
from itertools import chain

import numpy as np

from examples.inventory.simulator import Simulator
from examples.inventory.topology import Topology

MEDIAN_TICKS, SPREAD = 20.0, 0.4
"""A port that chooses a wants a stock for `MEDIAN_TICKS * exp(SPREAD * a)` ticks; a is any number."""
MOST_TICKS = 100.0
"""Nobody wants more."""
RECENT_TICKS = 8
"""Over which a port sums up recent orders."""
TRUST = 0.3
"""How much of what was ordered lately beyond the season's expectation is expected to go on."""
AHEAD_TICKS = 20
"""Over which it averages what the season lets expect."""
NEVER_TICKS = 60.0
"""Stands for the planned time to a port that a vessel does not call at."""


class Reading:
    """Observations and expectations of ports.

    Args:
        topology: the world.
    """

    def __init__(self, topology: Topology) -> None:
        ports, trades, vessels = (len(x) for x in (topology.ports, topology.trades, topology.vessels))
        self.topology = topology
        self._origin = np.array([[k.origin == p for p in range(ports)] for k in topology.trades], float)
        destination = np.array([[k.destination == p for p in range(ports)] for k in topology.trades], float)
        scale = 1 / (AHEAD_TICKS * (np.array([k.rate for k in topology.trades]) @ self._origin))
        ticks = range(-RECENT_TICKS, topology.num_ticks + AHEAD_TICKS)
        season = np.array([[topology.mean_orders(k, tick) for k in range(trades)] for tick in ticks]) @ self._origin
        total = np.concatenate([np.zeros((1, ports)), np.cumsum(season, axis=0)])  # total[t]: before tick t - RECENT
        now = np.arange(topology.num_ticks + 1) + RECENT_TICKS
        self._usual = total[now] - total[now - RECENT_TICKS]  # [tick, port]
        self._ahead = (total[np.minimum(now + AHEAD_TICKS, len(season))] - total[now]) / AHEAD_TICKS  # [tick, port]
        # Sums over trades as one matrix. Rows: stock and inland by port, waiting by trade, empty containers by vessel,
        # goods by vessel and trade. Columns: four numbers of each port, two of each vessel.
        capacity = np.array([vessel.capacity for vessel in topology.vessels])
        to_port, each = destination * scale, np.eye(vessels) / capacity
        own, none = np.diag(scale), np.zeros
        self._sums = np.block(
            [
                [own, none((ports, 3 * ports + 2 * vessels))],
                [none((ports, ports)), own, none((ports, 2 * ports + 2 * vessels))],
                [none((trades, 2 * ports)), self._origin * scale, to_port, none((trades, 2 * vessels))],
                [none((vessels, 4 * ports)), each, none((vessels, vessels))],
                [
                    none((vessels * trades, 3 * ports)),
                    np.tile(to_port, (vessels, 1)),
                    none((vessels * trades, vessels)),
                    np.repeat(each, trades, axis=0),
                ],
            ]
        )
        self._scale = scale.tolist()
        self._round_trip, self._later = self._planned_times()
        self._ports, self._vessels = np.eye(ports).tolist(), np.eye(vessels).tolist()
        self.size = self._sums.shape[1] + 3 * ports + vessels * (ports + 1) + 7
        """Numbers in an observation."""

    def _planned_times(self) -> tuple[list[float], list[list[list[float]]]]:
        """Planned ticks of a vessel's round trip, and [vessel][stop][port] from its call at a stop to one at a port."""
        round_trips, later, ports = [], [], range(len(self.topology.ports))
        for vessel in self.topology.vessels:
            legs = [leg + self.topology.mean_delay for leg in vessel.leg_ticks]
            round_trips.append(sum(legs))
            times = [[NEVER_TICKS for _ in ports] for _ in legs]
            for stop, row in enumerate(times):
                passed = 0.0
                for further in range(len(legs)):
                    row[vessel.route[(stop + further) % len(legs)]] = passed
                    passed += legs[(stop + further) % len(legs)]
            later.append(times)
        return round_trips, later

    def expected(self, simulator: Simulator) -> np.ndarray:
        """Containers expected to be ordered in a tick, [port]: by the season, and by what was ordered lately.

        Args:
            simulator: standing at a call, or at the end.
        """
        now = simulator.tick
        if now < RECENT_TICKS:
            return self._ahead[now]
        surprise = simulator.recent_orders(RECENT_TICKS) @ self._origin / self._usual[now] - 1
        return self._ahead[now] * (1 + TRUST * surprise)

    def observation(self, simulator: Simulator, port: int) -> np.ndarray:
        """float32 [size]; where no vessel lies in the port, the one that is due next stands for it.

        Args:
            simulator: standing at a call, or at the end.
            port: who looks.
        """
        world, now, call = self.topology, simulator.tick, simulator.call
        due: list[list[float]] = []  # [vessel][port] planned ticks until it calls there
        for number, vessel in enumerate(world.vessels):
            stop = simulator.stop[number]
            first = max(0, simulator.sailed[number] + vessel.leg_ticks[stop - 1] - now)
            lying = call is not None and call.vessel == number
            due.append([0.05 * (time if lying else first + time) for time in self._later[number][stop]])
        here = call.vessel if call is not None else min(range(len(due)), key=lambda number: due[number][port])
        due[here][port] = 0.05 * self._round_trip[here]
        expected = self.expected(simulator).tolist()
        ahead = [max(1.0, one) * MEDIAN_TICKS for one in expected]
        stock, empties = simulator.stock, simulator.empties[here]
        room = world.vessels[here].capacity - sum(simulator.goods[here])
        least = stock[port] - min(stock[port], room - empties)
        held = [*stock, *simulator.inland, *simulator.waiting, *simulator.empties, *chain(*simulator.goods)]
        return np.concatenate(
            [
                np.array(held, float) @ self._sums,
                [one * AHEAD_TICKS * scale for one, scale in zip(expected, self._scale, strict=True)],
                [math.log((one + 10) / wanted) for one, wanted in zip(stock, ahead, strict=True)],
                self._ports[port],
                self._vessels[here],
                list(chain(*due)),
                [
                    math.log((stock[port] + 10) / ahead[port]),
                    math.log((stock[port] + empties + 10) / ahead[port]),
                    math.log((least + 10) / ahead[port]),
                    empties / ahead[port],
                    room / ahead[port],
                    min(row[port] for row in due),
                    expected[port] * AHEAD_TICKS * self._scale[port],
                ],
            ],
            dtype=np.float32,
        )

    def ashore(self, simulator: Simulator, choice: float) -> int:
        """Containers to put ashore at the call that waits, for what its port wants.

        Args:
            simulator: standing at a call.
            choice: how much is wanted, see `MEDIAN_TICKS`.
        """
        call = simulator.call
        assert call is not None
        ticks = min(MOST_TICKS, MEDIAN_TICKS * math.exp(min(SPREAD * choice, 10.0)))
        wanted = round(ticks * float(self.expected(simulator)[call.port]))
        return max(-call.most_aboard, min(call.most_ashore, wanted - simulator.stock[call.port]))


reading_of = functools.cache(Reading)
"""One for each topology: all worlds read alike."""
