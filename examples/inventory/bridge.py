"""The bridge from the simulator to agents that learn: what a port sees, does and earns when a vessel calls.

Every port is an agent. It acts when a vessel lies there: it says how much stock it wants, beside the share that a rule
would give it, and as much is put ashore or taken aboard as brings the stock there, as far as that can be done.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from examples.inventory.reading import Reading
from examples.inventory.simulator import Simulator
from examples.inventory.tape import Tape
from palaestra.core import TensorSpec
from palaestra.multiagent import AgentSpec, EnvWrapper


class Ports(EnvWrapper):
    """Ports as agents; for an action, a port earns how many orders less were lost than a rule would have lost.

    What counts is lost anywhere until a vessel calls at the port again. The rule is at work in a second simulator, on
    the same tape, so most of what no decision caused cancels: booms hit both. Which policy is best does not
    depend on that, since nothing that ports do changes what the rule loses.

    Args:
        reading: of the ports, with the rule.
        reward_scale: reward of a container.
    """

    def __init__(self, reading: Reading, *, reward_scale: float = 0.01) -> None:
        super().__init__(reward_eval_delay=40)  # by then the port has been called at again, but for rare delays
        topology = reading.topology
        self.reading, self._reward_scale = reading, reward_scale
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
        self._other = Simulator(topology, tape)
        self._lost: list[list[int]] = [[] for _ in topology.ports]  # [port][call] orders lost so far
        return self._asked_port()

    def run(self, env_action: int) -> Sequence[str]:
        """To the next call.

        Args:
            env_action: containers to put ashore.
        """
        self.simulator.decide(env_action)
        self._other.decide(self.reading.rule(self._other))
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
        """Beside the rule; both simulators are always at the same call."""
        return sum(self.simulator.shortage) - sum(self._other.shortage)
