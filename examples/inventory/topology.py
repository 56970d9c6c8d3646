"""Who trades with whom, which vessels sail where, and what is random about it.

The 4-port topology below is imbalanced on purpose: Aster and Borel export far more than they import, so the containers
that carry their goods pile up empty at Cinder and Dune and have to be brought back, against the clock and in vessels
that carry goods first.
"""

import math
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Port:
    """Where containers are filled, emptied and shipped."""

    name: str
    empty_containers: int
    """In stock at tick 0."""
    return_ticks: tuple[int, int]
    """Shortest and longest time from unloading a full container until it is back, empty."""


@dataclass(frozen=True)
class Trade:
    """Orders for containers from one port to another."""

    origin: int
    destination: int
    rate: float
    """Mean number of containers ordered in a tick, over a season and over booms."""
    season: float = 0.0
    """Amplitude of the seasonal wave, as a share of the rate, in [0, 1)."""
    phase: float = 0.0
    """Of the wave, in [0, 1): where in the season tick 0 lies."""


@dataclass(frozen=True)
class Vessel:
    """Sails its route round and round."""

    name: str
    route: tuple[int, ...]
    """Ports in order; after the last comes the first."""
    leg_ticks: tuple[int, ...]
    """Planned sailing time from each port of the route to the next."""
    capacity: int
    first_call: int
    """Tick of the first call, at the first port of the route, without delay."""


@dataclass(frozen=True)
class Topology:
    """Everything about the environment that is known; `Tape` holds what is not."""

    ports: tuple[Port, ...]
    trades: tuple[Trade, ...]
    vessels: tuple[Vessel, ...]
    num_ticks: int = 300
    season_ticks: int = 100
    boom_factor: float = 3.0
    """In an export boom all trades of a port order so many times as much as outside."""
    boom_ticks: float = 20.0
    """Mean length of a boom."""
    calm_ticks: float = 50.0
    """Mean length of the time between two booms."""
    delays: tuple[int, ...] = (0, 0, 0, 1, 2, 3, 6)
    """Ticks that a leg takes longer than planned; each is equally likely."""

    @property
    def num_containers(self) -> int:
        """Containers in the environment; none is ever made or lost."""
        return sum(port.empty_containers for port in self.ports)

    @property
    def mean_delay(self) -> float:
        """Expected delay of a leg, in ticks."""
        return sum(self.delays) / len(self.delays)

    @cached_property
    def calm_rate(self) -> float:
        """Rate outside booms, as a share of the mean rate."""
        boom = self.boom_ticks / (self.boom_ticks + self.calm_ticks)
        return 1 / (1 - boom + boom * self.boom_factor)

    def mean_orders(self, trade: int, tick: int) -> float:
        """Expected containers of a trade in a tick, if nothing is known about booms.

        Args:
            trade: its number.
            tick: when.
        """
        k = self.trades[trade]
        return k.rate * (1 + k.season * math.sin(2 * math.pi * (tick / self.season_ticks + k.phase)))

    @cached_property
    def carried(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """[vessel][port] the trades that the vessel takes aboard there."""
        return tuple(
            tuple(
                tuple(
                    number
                    for number, trade in enumerate(self.trades)
                    if trade.origin == port and port in vessel.route and trade.destination in vessel.route
                )
                for port in range(len(self.ports))
            )
            for vessel in self.vessels
        )


FOUR_PORTS = Topology(
    ports=(
        Port("Aster", 1600, (2, 5)),
        Port("Borel", 900, (2, 5)),
        Port("Cinder", 1050, (3, 8)),
        Port("Dune", 650, (3, 8)),
    ),
    trades=(
        Trade(0, 2, 28.0, season=0.5, phase=0.0),
        Trade(0, 3, 14.0, season=0.5, phase=0.0),
        Trade(1, 2, 15.0, season=0.5, phase=0.5),
        Trade(1, 3, 8.0, season=0.5, phase=0.5),
        Trade(2, 0, 10.0, season=0.3, phase=0.25),
        Trade(2, 1, 6.0, season=0.3, phase=0.25),
        Trade(3, 0, 5.0, season=0.3, phase=0.75),
        Trade(3, 1, 5.0, season=0.3, phase=0.75),
    ),
    vessels=(
        Vessel("Ring 1", (0, 1, 2, 3), (3, 7, 3, 8), capacity=620, first_call=0),
        Vessel("Ring 2", (1, 2, 3, 0), (7, 3, 8, 3), capacity=620, first_call=4),
        Vessel("Ring 3", (2, 3, 0, 1), (3, 8, 3, 7), capacity=620, first_call=2),
        Vessel("Shuttle", (0, 2), (6, 6), capacity=260, first_call=3),
        Vessel("Feeder", (1, 3), (5, 5), capacity=160, first_call=1),
    ),
)
"""Two exporters, two importers; a ring of three vessels, a shuttle and a feeder."""
