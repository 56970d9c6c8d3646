"""What a port reads off the simulator: nothing that has not happened, and no more than the rules may read."""

import math
from itertools import chain

import numpy as np

from examples.inventory.forecast import forecast_of
from examples.inventory.rules import Shares
from examples.inventory.simulator import Simulator
from examples.inventory.topology import Topology

SPREAD = 0.3
"""A port that chooses a wants `exp(SPREAD * a)` times what the rule gives it; a is any number."""
MOST = 5.0
"""No port wants more than so many times its share."""
STOCK_TICKS = 20
"""Stocks are seen in mean orders of so many ticks."""
NEVER_TICKS = 60.0
"""Stands for the planned time to a port that a vessel does not call at."""


class Reading:
    """Observations and expectations of ports.

    Args:
        topology: the environment.
        rule: what a port wants is told beside its share by this rule.
    """

    def __init__(self, topology: Topology, rule: Shares) -> None:
        ports, trades, vessels = (len(x) for x in (topology.ports, topology.trades, topology.vessels))
        self.topology, self.rule = topology, rule
        self._origin = np.array([[k.origin == p for p in range(ports)] for k in topology.trades], float)
        destination = np.array([[k.destination == p for p in range(ports)] for k in topology.trades], float)
        scale = 1 / (STOCK_TICKS * (np.array([k.rate for k in topology.trades]) @ self._origin))
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

    def observation(self, simulator: Simulator, port: int) -> np.ndarray:
        """float32 [size]; where no vessel lies in the port, the one that is due next stands for it.

        Args:
            simulator: standing at a call, or at the end.
            port: who looks.
        """
        env, now, call = self.topology, simulator.tick, simulator.call
        due: list[list[float]] = []  # [vessel][port] planned ticks until it calls there
        for number, vessel in enumerate(env.vessels):
            stop = simulator.stop[number]
            first = max(0, simulator.sailed[number] + vessel.leg_ticks[stop - 1] - now)
            lying = call is not None and call.vessel == number
            due.append([0.05 * (time if lying else first + time) for time in self._later[number][stop]])
        here = call.vessel if call is not None else min(range(len(due)), key=lambda number: due[number][port])
        due[here][port] = 0.05 * self._round_trip[here]
        expected = forecast_of(env).orders(simulator, self.rule.trust).tolist()
        wanted = (self.rule.wanted(simulator) + 10).tolist()
        stock, empties = simulator.stock, simulator.empties[here]
        room = env.vessels[here].capacity - sum(simulator.goods[here])
        least = stock[port] - min(stock[port], room - empties)
        held = [*stock, *simulator.inland, *simulator.waiting, *simulator.empties, *chain(*simulator.goods)]
        return np.concatenate(
            [
                np.array(held, float) @ self._sums,
                [one * STOCK_TICKS * scale for one, scale in zip(expected, self._scale, strict=True)],
                [math.log((one + 10) / share) for one, share in zip(stock, wanted, strict=True)],
                self._ports[port],
                self._vessels[here],
                list(chain(*due)),
                [
                    math.log((stock[port] + 10) / wanted[port]),
                    math.log((stock[port] + empties + 10) / wanted[port]),
                    math.log((least + 10) / wanted[port]),
                    empties / wanted[port],
                    room / wanted[port],
                    min(row[port] for row in due),
                    (sum(stock) + sum(simulator.empties)) / 2 / self.topology.num_containers,
                ],
            ],
            dtype=np.float32,
        )

    def ashore(self, simulator: Simulator, choice: float) -> int:
        """Containers to put ashore at the call that waits, for what its port wants; for 0, what the rule would.

        Args:
            simulator: standing at a call.
            choice: how much is wanted, see `SPREAD`.
        """
        call = simulator.call
        assert call is not None
        share = float(self.rule.wanted(simulator)[call.port])
        wanted = round(share * min(MOST, math.exp(min(SPREAD * choice, 10.0))))
        return max(-call.most_aboard, min(call.most_ashore, wanted - simulator.stock[call.port]))
