"""The bridge from the simulator to agents that learn: what a port sees, does and earns when a vessel calls.

Every port is an agent. It acts when a vessel lies there: it says how much stock it wants, in ticks of the orders it
expects, and as much is put ashore or taken aboard as brings the stock there, as far as that can be done.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from examples.inventory.rules import Policy
from examples.inventory.simulator import Simulator
from examples.inventory.tape import Tape
from examples.inventory.topology import FOUR_PORTS, Topology
from palaestra.core import TensorSpec
from palaestra.multiagent import AgentSpec, EnvWrapper

MEDIAN_TICKS, SPREAD = 20.0, 0.4
"""A port that chooses a wants a stock for `MEDIAN_TICKS * exp(SPREAD * a)` ticks; a is any number."""
MOST_TICKS = 100.0
"""Nobody wants more."""
TRUST = 0.3
"""How much of what was ordered lately beyond the season's expectation is expected to go on."""
RECENT_TICKS = 8
"""Over which a port sums up recent orders."""
AHEAD_TICKS = 20
"""Over which it sums up what the season lets expect."""


class Reading:
    """What a port reads off the simulator: nothing that has not happened, and no more than the rules read.

    Args:
        topology: the world.
    """

    def __init__(self, topology: Topology) -> None:
        ports, trades, vessels = (len(x) for x in (topology.ports, topology.trades, topology.vessels))
        self.topology = topology
        origin = np.array([[k.origin == p for p in range(ports)] for k in topology.trades], float)
        destination = np.array([[k.destination == p for p in range(ports)] for k in topology.trades], float)
        mean = np.array([k.rate for k in topology.trades]) @ origin
        self.mean: list[float] = mean.tolist()
        """[port] containers ordered in a tick, on average."""
        self._of = [np.flatnonzero(column) for column in origin.T]
        self._scale = 1 / (AHEAD_TICKS * mean)
        ticks = range(topology.num_ticks + AHEAD_TICKS)
        orders = np.array([[topology.mean_orders(k, tick) for k in range(trades)] for tick in ticks]) @ origin
        total = np.cumsum(orders, axis=0)
        self._ahead = (total[AHEAD_TICKS - 1 :] - total[: -AHEAD_TICKS + 1] + orders[: -AHEAD_TICKS + 1]) * self._scale
        self._orders = orders
        capacity = np.array([vessel.capacity for vessel in topology.vessels])
        # Sums over trades as one matrix. Rows: stock and inland by port; waiting and recent orders by trade; empty
        # containers by vessel; goods by vessel and trade. Columns: five numbers of each port, two of each vessel.
        to_port, each = destination * self._scale, np.eye(vessels) / capacity
        blocks: list[list[np.ndarray | None]] = [
            [np.diag(self._scale), None, None, None, None, None, None],
            [None, np.diag(self._scale), None, None, None, None, None],
            [None, None, origin * self._scale, to_port, None, None, None],
            [None, None, None, None, origin / (RECENT_TICKS * mean), None, None],
            [None, None, None, None, None, each, None],
            [None, None, None, np.tile(to_port, (vessels, 1)), None, None, np.repeat(each, trades, axis=0)],
        ]
        heights, widths = (ports, ports, trades, trades, vessels, vessels * trades), (*[ports] * 5, vessels, vessels)
        self._sums = np.block(
            [
                [
                    np.zeros((height, width)) if block is None else block
                    for block, width in zip(row, widths, strict=True)
                ]
                for row, height in zip(blocks, heights, strict=True)
            ]
        )
        self._num_sums = sum(widths)
        self.size = self._num_sums + 2 * ports + 2 * vessels + vessels * ports + 3
        """Numbers in an observation."""

    def observation(self, simulator: Simulator, port: int) -> np.ndarray:
        """float32 [size]; where no vessel lies in the port, the one that is due next stands for it.

        Args:
            simulator: standing at a call, or at the end.
            port: who looks.
        """
        world, now, call, num_ports = self.topology, simulator.tick, simulator.call, len(self.mean)
        seen = np.zeros(self.size, np.float32)
        numbers = [*simulator.stock, *simulator.inland, *simulator.waiting, *simulator.recent_orders(RECENT_TICKS)]
        numbers += simulator.empties
        for goods in simulator.goods:
            numbers += goods
        seen[: self._num_sums] = np.array(numbers) @ self._sums
        seen[self._num_sums : self._num_sums + num_ports] = self._ahead[now]
        place = self._num_sums + num_ports
        seen[place + port] = 1
        place += num_ports
        due = []
        for number, vessel in enumerate(world.vessels):
            stop = simulator.stop[number]
            due.append(simulator.sailed[number] + vessel.leg_ticks[stop - 1] - now)
            seen[place + number * num_ports + vessel.route[stop]] = 1
        place += len(due) * num_ports
        if call is not None:
            here = call.vessel
            due[here] = 0
        else:
            calls = [(ticks, n) for n, ticks in enumerate(due) if world.vessels[n].route[simulator.stop[n]] == port]
            here = min(calls)[1] if calls else 0
        seen[place : place + len(due)] = due
        seen[place : place + len(due)] *= 0.1
        place += len(due)
        seen[place + here] = 1
        room = world.vessels[here].capacity - sum(simulator.goods[here])
        seen[-3:] = (simulator.empties[here], room, simulator.stock[port])
        seen[-3:] *= self._scale[port]
        return seen

    def expected(self, simulator: Simulator, port: int) -> float:
        """Containers that a port expects to be ordered in a tick: by the season, and by what was ordered lately.

        Args:
            simulator: standing at a call.
            port: whose orders.
        """
        now = simulator.tick
        usual = float(self._orders[max(0, now - RECENT_TICKS) : now, port].sum())
        recent = simulator.recent_orders(RECENT_TICKS)[self._of[port]].sum()
        surprise = recent / usual - 1 if now >= RECENT_TICKS else 0.0
        return self.mean[port] * float(self._ahead[now, port]) * (1 + TRUST * surprise)

    def ashore(self, simulator: Simulator, choice: float) -> int:
        """Containers to put ashore at the call that waits, for what its port wants.

        Args:
            simulator: standing at a call.
            choice: how much is wanted, see `MEDIAN_TICKS`.
        """
        call = simulator.call
        assert call is not None
        ticks = min(MOST_TICKS, MEDIAN_TICKS * math.exp(min(SPREAD * choice, 10.0)))
        wanted = round(ticks * self.expected(simulator, call.port))
        return max(-call.most_aboard, min(call.most_ashore, wanted - simulator.stock[call.port]))


reading_of = functools.cache(Reading)
"""One for each topology: all worlds read alike."""


class Ports(EnvWrapper):
    """Ports as agents; for an action, a port earns how many orders less were lost than a rule would have lost.

    What counts is lost anywhere until a vessel calls at the port again. The rule is at work in a second simulator, on
    the same tape, so most of what is nobody's merit or fault cancels: booms hit both. Which policy is best does not
    depend on the rule, since nothing that ports do changes what it loses.

    Args:
        topology: the world.
        rule: decides in the second simulator; `None` has none, and ports earn minus what is lost.
        reward_scale: reward of a container.
    """

    def __init__(
        self, topology: Topology = FOUR_PORTS, *, rule: Policy | None = None, reward_scale: float = 0.01
    ) -> None:
        super().__init__(reward_eval_delay=40)  # by then the port has been called at again, but for rare delays
        self.reading, self._rule, self._reward_scale = reading_of(topology), rule, reward_scale
        self._names = [port.name for port in topology.ports]
        spec = AgentSpec(TensorSpec((self.reading.size,)), TensorSpec((1,)))
        self._agents = dict.fromkeys(self._names, spec)

    @property
    def agents(self) -> Mapping[str, AgentSpec]:
        """The ports, by name."""
        return self._agents

    def start(self, seed: int) -> Sequence[str]:
        """Begins an episode.

        Args:
            seed: of its tape.
        """
        topology = self.reading.topology
        tape = Tape.draw(topology, seed)
        self.simulator = Simulator(topology, tape)
        self._other = None if self._rule is None else Simulator(topology, tape)
        self._lost: list[list[int]] = [[] for _ in topology.ports]  # [port][call] orders lost so far
        return self._asked_port()

    def run(self, env_action: int) -> Sequence[str]:
        """To the next call.

        Args:
            env_action: containers to put ashore.
        """
        self.simulator.decide(env_action)
        if self._other is not None and self._rule is not None:
            self._other.decide(self._rule(self._other))
        return self._asked_port()

    def get_state(self, agent: str) -> np.ndarray:
        """What a port sees.

        Args:
            agent: its name.
        """
        return self.reading.observation(self.simulator, self._names.index(agent))

    def to_env_action(self, actions: Mapping[str, Any]) -> int:
        """Containers to put ashore.

        Args:
            actions: of the one port where a vessel lies.
        """
        (choice,) = actions.values()
        return self.reading.ashore(self.simulator, float(choice[0]))

    def get_transition_info(self) -> tuple[int, int]:
        """Which port acts, and which of its calls this is."""
        assert self.simulator.call is not None
        port = self.simulator.call.port
        return port, len(self._lost[port]) - 1

    def get_reward(self, actions: Mapping[str, Any], tick: int, info: tuple[int, int]) -> Mapping[str, float]:
        """For the orders lost from this call to the port's next, or to now.

        Args:
            actions: of one port.
            tick: of the call.
            info: from `get_transition_info`.
        """
        port, number = info
        lost = self._lost[port]
        until = lost[number + 1] if number + 1 < len(lost) else self._lost_so_far()
        return {self._names[port]: -self._reward_scale * (until - lost[number])}

    def post_step(self) -> None:
        """Keeps the share of orders lost so far, which is reported with the episode."""
        self.tracker["share_lost"] = sum(self.simulator.shortage) / max(1, sum(self.simulator.ordered))

    def _asked_port(self) -> list[str]:
        self.tick = self.simulator.tick
        call = self.simulator.call
        if call is None:
            return []
        self._lost[call.port].append(self._lost_so_far())
        return [self._names[call.port]]

    def _lost_so_far(self) -> int:
        """Beside the rule, if there is one; both simulators are always at the same call."""
        return sum(self.simulator.shortage) - (0 if self._other is None else sum(self._other.shortage))
