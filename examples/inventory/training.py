"""Ports that learn: PPO through the many-agent collector and the one trainer, with shared or separate policies."""

import functools
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from examples.inventory.bridge import Ports
from examples.inventory.reading import Reading
from examples.inventory.rules import Shares
from examples.inventory.simulator import Simulator
from examples.inventory.tape import Tape
from examples.inventory.topology import FOUR_PORTS, Topology
from palaestra import PPO, Evaluation, Linear, NetworkConfig, PPOConfig, RunSeeds, TimeStep, Trainer, TrainerConfig
from palaestra.multiagent import MultiAgentCollector, MultiAgentEnvs, PolicySpec, assign_policies
from palaestra.policies import Phase, Policy
from palaestra.training import Callback, Evaluated, SimplePolicyManager

NUM_WORLDS = 64
TUNED = Path(__file__).parent / "results" / "tune.json"
ENV_STEPS = 200_000
SETTINGS = PPOConfig(
    unroll_length=144,
    num_epochs=8,
    mini_batch_size=256,
    gamma=0.85,
    gae_lambda=0.95,
    learning_rate=Linear(1e-3, 0.0),
    entropy_cost=0.0,
    network=NetworkConfig(hidden_sizes=(64, 64)),
)
"""Of every policy."""


def mapping(kind: str, topology: Topology = FOUR_PORTS) -> dict[str, str]:
    """From ports to policies.

    Args:
        kind: `shared`, one policy for all; or `separate`, one for each.
        topology: the environment.
    """
    if kind == "shared":
        return {"*": "ports"}
    return {port.name: port.name.lower() for port in topology.ports}


def reading(topology: Topology = FOUR_PORTS) -> Reading:
    """What ports see, beside the sharing rule as it was tuned.

    Args:
        topology: the environment.
    """
    return Reading(topology, Shares(**json.loads(TUNED.read_text())["rules"]["shares"]))


def lost_with(
    policies: Mapping[str, Policy], policy_specs: Mapping[str, PolicySpec], seeds: Iterable[int], reading: Reading
) -> list[float]:
    """Lost orders as a share of all orders, by episode, when policies take their most probable choices.

    Args:
        policies: by name.
        policy_specs: which policy acts for which ports.
        seeds: of the episodes.
        reading: of the ports.
    """
    topology = reading.topology
    policy_of = [
        next(name for name, spec in policy_specs.items() if port.name in spec.agents) for port in topology.ports
    ]
    simulators = [Simulator(topology, Tape.draw(topology, seed)) for seed in seeds]
    waiting = simulators
    while waiting := [simulator for simulator in waiting if simulator.call is not None]:
        calling: dict[str, list[Simulator]] = {}
        for simulator in waiting:
            calling.setdefault(policy_of[simulator.call.port], []).append(simulator)
        for name, members in calling.items():
            seen = [reading.observation(simulator, simulator.call.port) for simulator in members]
            time_step = TimeStep(observation=torch.from_numpy(np.stack(seen)))
            choices = policies[name].act(time_step, phase=Phase.EVAL, deterministic=True).action.tolist()
            for simulator, choice in zip(members, choices, strict=True):
                simulator.decide(reading.ashore(simulator, choice[0]))
    return [sum(simulator.shortage) / sum(simulator.ordered) for simulator in simulators]


class Parts(NamedTuple):
    """What a run of training is put together from."""

    collector: MultiAgentCollector
    policy_specs: dict[str, PolicySpec]
    algorithms: dict[str, PPO]


def build(kind: str, seed: int, *, num_envs: int = NUM_WORLDS) -> Parts:
    """MultiAgentEnvs, and a PPO for each policy.

    Args:
        kind: of the mapping, see `mapping`.
        seed: of the run.
        num_envs: stepped side by side.
    """
    lane_seeds = [RunSeeds(seed).integer("environments", lane) for lane in range(num_envs)]
    envs = MultiAgentEnvs([functools.partial(Ports, reading())] * num_envs, lane_seeds=lane_seeds)
    policy_specs = assign_policies(envs.agents, mapping(kind))
    algorithms = {
        name: PPO(spec.observation_spec, spec.action_spec, SETTINGS, RunSeeds(1000 * seed + number))
        for number, (name, spec) in enumerate(policy_specs.items())
    }
    return Parts(MultiAgentCollector(envs, policy_specs, algorithms), policy_specs, algorithms)


class Curve(Callback):
    """Keeps how much was lost at every evaluation."""

    def __init__(self, title: str) -> None:
        self.points: list[dict[str, float]] = []
        self._title = title

    def evaluated(self, trainer: Trainer, result: Evaluated) -> None:
        """Adds a point.

        Args:
            trainer: of the run.
            result: of the evaluation.
        """
        lost = -result.evaluation.return_mean
        self.points.append({"env_steps": result.env_steps, "share_lost": lost})
        print(f"{self._title}: {result.env_steps:>9,} calls  {lost:6.2%} lost", flush=True)


def train(kind: str, seed: int, *, held_out: Sequence[int], env_steps: int = ENV_STEPS) -> dict[str, Any]:
    """Trains ports and measures them; the policies of the last update count, none is chosen.

    Args:
        kind: of the mapping, see `mapping`.
        seed: of the run.
        held_out: episodes that the curve and the result are measured on.
        env_steps: port calls to learn from, over all environments.

    Returns:
        The curve and the result, and how long it took.
    """
    torch.set_num_threads(1)  # networks this small are slower with more
    seen, parts = reading(), build(kind, seed)
    policies = {name: algorithm.policy for name, algorithm in parts.algorithms.items()}

    def evaluate(_: Any) -> Evaluation:
        lost = lost_with(policies, parts.policy_specs, held_out, seen)
        mean, std = -float(np.mean(lost)), float(np.std(lost, ddof=1))
        half, returns = 1.96 * std / math.sqrt(len(lost)), [-share for share in lost]
        return Evaluation(mean, std, (mean - half, mean + half), 0.0, len(lost), list(held_out), True, returns)

    curve = Curve(f"{kind}, seed {seed}")
    trainer = Trainer(
        parts.collector,
        SimplePolicyManager(parts.algorithms),
        TrainerConfig(total_env_steps=env_steps),
        evaluate=evaluate,
        callbacks=[curve],
    )
    wall, cpu = time.monotonic(), time.process_time()
    with parts.collector.envs:
        result = trainer.run()
    assert result.evaluation is not None
    return {
        "seed": seed,
        "curve": curve.points,
        "share_lost": [-value for value in result.evaluation.returns],
        "train_s": result.train_s,
        "wall_s": time.monotonic() - wall,
        "cpu_s": time.process_time() - cpu,
    }
