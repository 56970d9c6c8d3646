"""The bridge from the simulator to agents that learn: what a port sees, does and earns when a vessel calls.

Every port is an agent. It acts when a vessel lies there: it says how much stock it wants, in ticks of its mean orders,
and as much is put ashore or taken aboard as brings the stock there, as far as that can be done.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from examples.inventory.simulator import Simulator
from examples.inventory.tape import Tape
from examples.inventory.topology import FOUR_PORTS, Topology
from palaestra.core import DiscreteSpec, TensorSpec
from palaestra.multiagent import AgentSpec, EnvWrapper

COVER_TICKS = (0, 2, 4, 6, 8, 10, 13, 16, 19, 22, 26, 30, 35, 40, 50, 60)
"""What a port can want."""
RECENT_TICKS = 6
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
        self._scale = 1 / (AHEAD_TICKS * mean)
        ticks = range(topology.num_ticks + AHEAD_TICKS)
        orders = np.array([[topology.mean_orders(k, tick) for k in range(trades)] for tick in ticks]) @ origin
        total = np.cumsum(orders, axis=0)
        self._ahead = (total[AHEAD_TICKS - 1 :] - total[: -AHEAD_TICKS + 1] + orders[: -AHEAD_TICKS + 1]) * self._scale
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
                [np.zeros((height, width)) if block is None else block for block, width in zip(row, widths, strict=True)]
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

    def ashore(self, simulator: Simulator, choice: int) -> int:
        """Containers to put ashore at the call that waits, for what its port wants.

        Args:
            simulator: standing at a call.
            choice: index in `COVER_TICKS`.
        """
        call = simulator.call
        assert call is not None
        wanted = round(COVER_TICKS[choice] * self.mean[call.port])
        return max(-call.most_aboard, min(call.most_ashore, wanted - simulator.stock[call.port]))


reading_of = functools.cache(Reading)
"""One for each topology: all worlds read alike."""


class Ports(EnvWrapper):
    """Ports as agents; a port earns, for an action, minus the orders lost anywhere until a vessel calls there again.

    Args:
        topology: the world.
        reward_scale: reward of a lost container, without its minus.
    """

    def __init__(self, topology: Topology = FOUR_PORTS, *, reward_scale: float = 0.01) -> None:
        super().__init__(reward_eval_delay=40)  # by then the port has been called at again, but for rare delays
        self.reading, self._reward_scale = reading_of(topology), reward_scale
        self._names = [port.name for port in topology.ports]
        spec = AgentSpec(TensorSpec((self.reading.size,)), DiscreteSpec(num=len(COVER_TICKS)))
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
        self.simulator = Simulator(topology, Tape.draw(topology, seed))
        self._lost: list[list[int]] = [[] for _ in topology.ports]  # [port][call] orders lost so far
        return self._asked_port()

    def run(self, env_action: int) -> Sequence[str]:
        """To the next call.

        Args:
            env_action: containers to put ashore.
        """
        self.simulator.decide(env_action)
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
        return self.reading.ashore(self.simulator, int(choice))

    def get_transition_info(self) -> tuple[int, int]:
        """Which port acts, and which of its calls this is."""
        assert self.simulator.call is not None
        port = self.simulator.call.port
        return port, len(self._lost[port]) - 1

    def get_reward(self, actions: Mapping[str, Any], tick: int, info: tuple[int, int]) -> Mapping[str, float]:
        """Minus the orders lost from this call to the port's next, or to now.

        Args:
            actions: of one port.
            tick: of the call.
            info: from `get_transition_info`.
        """
        port, number = info
        lost = self._lost[port]
        until = lost[number + 1] if number + 1 < len(lost) else sum(self.simulator.shortage)
        return {self._names[port]: -self._reward_scale * (until - lost[number])}

    def post_step(self) -> None:
        """Keeps the share of orders lost so far, which is reported with the episode."""
        self.tracker["share_lost"] = sum(self.simulator.shortage) / max(1, sum(self.simulator.ordered))

    def _asked_port(self) -> list[str]:
        self.tick = self.simulator.tick
        call = self.simulator.call
        if call is None:
            return []
        self._lost[call.port].append(sum(self.simulator.shortage))
        return [self._names[call.port]]
