"""The container-repositioning simulator: goods need empty containers where they are made, and leave them elsewhere.

Time is a calendar of events. Within a tick they happen in this order:

1. containers that had been unloaded come back empty,
2. vessels that arrive unload what is for the port and load what is waiting there for ports of their route; goods go
   first, so empty containers are put ashore where they are in the way. Then somebody decides how many empty containers
   to put ashore or to take aboard (the one decision there is), and the vessel sails,
3. orders come in. An order takes empty containers from the stock of its port; what the stock lacks is lost: shortage.

The simulator stands still at each call until it is told the decision.
"""

from typing import NamedTuple

import numpy as np

from examples.inventory.tape import Tape
from examples.inventory.topology import Topology


class Call(NamedTuple):
    """A vessel lies in a port and waits for a decision."""

    tick: int
    vessel: int
    port: int
    most_ashore: int
    """Empty containers aboard."""
    most_aboard: int
    """Empty containers that can be taken aboard: as many as there are, and as fit beside the goods."""


class Simulator:
    """One episode.

    Args:
        topology: the environment.
        tape: what chance decides.

    Examples:
        >>> from examples.inventory.topology import FOUR_PORTS
        >>> simulator = Simulator(FOUR_PORTS, Tape.draw(FOUR_PORTS, seed=0))
        >>> while simulator.call is not None:
        ...     simulator.decide(0)
        >>> simulator.tick, sum(simulator.shortage) > 0, simulator.num_containers()
        (300, True, 4200)
    """

    def __init__(self, topology: Topology, tape: Tape) -> None:
        num_ports, num_trades, num_vessels = len(topology.ports), len(topology.trades), len(topology.vessels)
        self.topology = topology
        self.tick = 0
        """Now."""
        self.stock = [port.empty_containers for port in topology.ports]
        """[port] empty containers, ready to be filled or shipped."""
        self.inland = [0] * num_ports
        """[port] containers that were unloaded and are not yet back."""
        self.waiting = [0] * num_trades
        """[trade] full containers at the origin, waiting for a vessel."""
        self.goods = [[0] * num_trades for _ in range(num_vessels)]
        """[vessel][trade] full containers aboard."""
        self.empties = [0] * num_vessels
        """[vessel] empty containers aboard."""
        self.ordered = [0] * num_trades
        """[trade] containers ordered so far."""
        self.shortage = [0] * num_trades
        """[trade] orders lost so far, in containers."""
        self.stop = [0] * num_vessels
        """[vessel] index in its route of the call it is at or sails to."""
        self.sailed = [vessel.first_call - vessel.leg_ticks[-1] for vessel in topology.vessels]
        """[vessel] tick at which it left the port before; planned arrival is that plus the leg's time."""
        self.unloadings: list[list[tuple[int, int]]] = [[] for _ in topology.ports]
        """[port] (tick, containers) of what was unloaded, oldest first; some of it is back already."""
        self.call: Call | None = None
        """The call that waits for a decision; `None` when the episode is over."""
        self._orders: list[list[int]] = tape.orders.tolist()
        self._delays: list[list[int]] = tape.delays.tolist()
        self._return_ticks: list[list[int]] = tape.returns.tolist()
        self._ordered_before = np.concatenate([np.zeros((1, num_trades), np.int64), tape.orders.cumsum(axis=0)])
        self._returning: list[list[tuple[int, int]]] = [[] for _ in range(topology.num_ticks)]
        self._arriving: list[list[int]] = [[] for _ in range(topology.num_ticks)]
        self._num_calls = [0] * num_vessels
        for number, vessel in enumerate(topology.vessels):
            self._arriving[vessel.first_call].append(number)
        self._docking = iter(self._arriving[0])
        self._run()

    def decide(self, ashore: int) -> None:
        """Answers the call and runs to the next one.

        Args:
            ashore: empty containers to put ashore; taken aboard if negative.

        Raises:
            ValueError: there is no call, or not so many containers, or no room for them.
        """
        call = self.call
        if call is None:
            raise ValueError("the episode is over: no vessel waits for a decision; make a new Simulator")
        if not -call.most_aboard <= ashore <= call.most_ashore:
            raise ValueError(
                f"{ashore} empty containers cannot go ashore at tick {call.tick}: "
                f"between {-call.most_aboard} and {call.most_ashore} can (negative: taken aboard)"
            )
        self.stock[call.port] += ashore
        self.empties[call.vessel] -= ashore
        self._sail(call.vessel)
        self._run()

    def recent_orders(self, num_ticks: int) -> np.ndarray:
        """Orders of each trade, int64 [trade], in the ticks just gone by; fewer at the beginning of the episode.

        Args:
            num_ticks: how many ticks to look back.
        """
        return self._ordered_before[self.tick] - self._ordered_before[max(0, self.tick - num_ticks)]

    def num_containers(self) -> int:
        """All containers, wherever they are."""
        aboard = sum(self.empties) + sum(map(sum, self.goods))
        return sum(self.stock) + sum(self.inland) + sum(self.waiting) + aboard

    def _run(self) -> None:
        """To the next call, or to the end."""
        num_ticks, trades, stock = self.topology.num_ticks, self.topology.trades, self.stock
        while True:
            for vessel in self._docking:
                self.call = self._dock(vessel)
                return
            for number, quantity in enumerate(self._orders[self.tick]):
                if quantity:
                    origin = trades[number].origin
                    filled = quantity if quantity <= stock[origin] else stock[origin]
                    stock[origin] -= filled
                    self.waiting[number] += filled
                    self.ordered[number] += quantity
                    self.shortage[number] += quantity - filled
            self.tick += 1
            if self.tick == num_ticks:
                self.call = None
                return
            for port, quantity in self._returning[self.tick]:
                self.inland[port] -= quantity
                stock[port] += quantity
            self._docking = iter(self._arriving[self.tick])

    def _dock(self, vessel: int) -> Call:
        ship = self.topology.vessels[vessel]
        port, goods = ship.route[self.stop[vessel]], self.goods[vessel]
        unloaded = 0
        for number, trade in enumerate(self.topology.trades):
            if trade.destination == port and goods[number]:
                unloaded += goods[number]
                goods[number] = 0
        if unloaded:
            self.inland[port] += unloaded
            self.unloadings[port].append((self.tick, unloaded))
            back = self.tick + self._return_ticks[port][self.tick]
            if back < self.topology.num_ticks:
                self._returning[back].append((port, unloaded))
        room = ship.capacity - sum(goods)
        carried = self.topology.carried[vessel][port]
        wanted = sum([self.waiting[number] for number in carried])
        for number in carried:
            waiting = self.waiting[number]
            loaded = waiting if wanted <= room else waiting * room // wanted
            self.waiting[number] -= loaded
            goods[number] += loaded
        room = ship.capacity - sum(goods)
        if self.empties[vessel] > room:
            self.stock[port] += self.empties[vessel] - room
            self.empties[vessel] = room
        return Call(self.tick, vessel, port, self.empties[vessel], min(self.stock[port], room - self.empties[vessel]))

    def _sail(self, vessel: int) -> None:
        ship, stop = self.topology.vessels[vessel], self.stop[vessel]
        arrival = self.tick + ship.leg_ticks[stop] + self._delays[vessel][self._num_calls[vessel]]
        self._num_calls[vessel] += 1
        self.stop[vessel] = (stop + 1) % len(ship.route)
        self.sailed[vessel] = self.tick
        if arrival < self.topology.num_ticks:
            self._arriving[arrival].append(vessel)
