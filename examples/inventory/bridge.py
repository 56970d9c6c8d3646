"""The bridge from the simulator to agents that learn: what a port sees, does and earns when a vessel calls.

Every port is an agent. It acts when a vessel lies there: it says how much stock it wants, in ticks of its mean orders,
and as much is put ashore or taken aboard as brings the stock there, as far as that can be done.
"""

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
        num_ports, num_vessels = len(topology.ports), len(topology.vessels)
        self.topology = topology
        self.mean = [sum(k.rate for k in topology.trades if k.origin == p) for p in range(num_ports)]
        """[port] containers ordered in a tick, on average."""
        self._stock_scale = 1 / (20 * np.array(self.mean))
        self._origin = np.array([[k.origin == p for p in range(num_ports)] for k in topology.trades], float)
        self._destination = np.array([[k.destination == p for p in range(num_ports)] for k in topology.trades], float)
        rate = np.array([[topology.mean_orders(k, t) for k in range(len(topology.trades))] for t in range(1000)])
        total = np.concatenate([np.zeros((1, num_ports)), np.cumsum(rate @ self._origin, axis=0)])
        self._ahead = (total[AHEAD_TICKS:] - total[:-AHEAD_TICKS]) / AHEAD_TICKS / self.mean - 1  # [tick, port]
        self._ports, self._vessels = np.eye(num_ports).tolist(), np.eye(num_vessels).tolist()
        self.size = 3 + 6 * num_ports + num_ports + num_vessels + num_vessels * (3 + num_ports)
        """Numbers in an observation."""

    def observation(self, simulator: Simulator, port: int) -> np.ndarray:
        """float32 [size]; where no vessel lies in the port, the one that is due next stands for it.

        Args:
            simulator: standing at a call, or at the end.
            port: who looks.
        """
        world, now, call = self.topology, simulator.tick, simulator.call
        due, here = [], None
        for number, vessel in enumerate(world.vessels):
            stop = simulator.stop[number]
            ticks = simulator.sailed[number] + vessel.leg_ticks[stop - 1] - now
            due.append(ticks)
            if vessel.route[stop] == port and (here is None or ticks < due[here]):
                here = number
        if call is not None:
            here = call.vessel
        ship = world.vessels[here or 0]
        goods = np.array(simulator.goods, float)
        aboard = goods.sum(axis=1)
        waiting = np.array(simulator.waiting, float)
        recent = simulator.recent_orders(RECENT_TICKS) @ self._origin / (RECENT_TICKS * np.array(self.mean)) - 1
        vessels: list[float] = []
        for number, vessel in enumerate(world.vessels):
            following = self._ports[vessel.route[simulator.stop[number]]]
            late = 0.1 * due[number] if number != here else 0.0
            vessels += [simulator.empties[number] / vessel.capacity, aboard[number] / vessel.capacity, late, *following]
        room = ship.capacity - aboard[here or 0]
        scale = float(self._stock_scale[port])
        return np.concatenate(
            [
                [scale * simulator.empties[here or 0], scale * room, scale * simulator.stock[port]],
                simulator.stock * self._stock_scale,
                simulator.inland * self._stock_scale,
                (waiting @ self._origin) * self._stock_scale,
                ((waiting + goods.sum(axis=0)) @ self._destination) * self._stock_scale,
                recent,
                self._ahead[now],
                self._ports[port],
                self._vessels[here or 0],
                vessels,
            ],
            dtype=np.float32,
        )

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


class Ports(EnvWrapper):
    """Ports as agents; a port earns, for an action, minus the orders lost anywhere until a vessel calls there again.

    Args:
        topology: the world.
        reward_scale: reward of a lost container, without its minus.
    """

    def __init__(self, topology: Topology = FOUR_PORTS, *, reward_scale: float = 0.01) -> None:
        super().__init__(reward_eval_delay=40)  # by then the port has been called at again, but for rare delays
        self.reading, self._reward_scale = Reading(topology), reward_scale
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
