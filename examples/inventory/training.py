"""Ports that learn: PPO through the many-agent collector and the one trainer, with shared or separate policies."""

import functools
import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.inventory.bridge import Ports
from examples.inventory.reading import reading_of
from examples.inventory.rules import Levels
from examples.inventory.simulator import Simulator
from examples.inventory.tape import Tape
from examples.inventory.topology import FOUR_PORTS, Topology
from palaestra import PPO, Evaluation, Linear, NetworkConfig, PPOConfig, RunSeeds, TimeStep, Trainer, TrainerConfig
from palaestra.multiagent import MultiAgentCollector, Role, Worlds, assign_roles
from palaestra.policies import Phase, Policy
from palaestra.training import Callback, SimplePolicyManager

NUM_WORLDS = 64
RULE = Levels(**json.loads((Path(__file__).parent / "results" / "tune.json").read_text())["rules"]["levels"])
ENV_STEPS = 300_000
SETTINGS = PPOConfig(
    unroll_length=36,
    num_updates=4,
    mini_batch_size=512,
    gamma=0.9,
    gae_lambda=0.95,
    learning_rate=Linear(2e-3, 0.0),
    entropy_cost=0.003,
    network=NetworkConfig(hidden_sizes=(64, 64)),
)
"""Of every policy."""


def mapping(kind: str, topology: Topology = FOUR_PORTS) -> dict[str, str]:
    """From ports to policies.

    Args:
        kind: `shared`, one policy for all; or `separate`, one for each.
        topology: the world.
    """
    if kind == "shared":
        return {"*": "ports"}
    return {port.name: port.name.lower() for port in topology.ports}


def lost_with(
    policies: Mapping[str, Policy], roles: Mapping[str, Role], seeds: Iterable[int], topology: Topology = FOUR_PORTS
) -> list[float]:
    """Lost orders as a share of all orders, by episode, when policies take their most probable choices.

    Args:
        policies: by name.
        roles: which policy acts for which ports.
        seeds: of the episodes.
        topology: the world.
    """
    reading = reading_of(topology)
    policy_of = [next(name for name, role in roles.items() if port.name in role.agents) for port in topology.ports]
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


def train(kind: str, seed: int, *, held_out: Iterable[int], env_steps: int = ENV_STEPS) -> dict[str, Any]:
    """Trains ports and measures them; the policies of the last update count, none is chosen.

    Args:
        kind: of the mapping, see `mapping`.
        seed: of the run.
        held_out: episodes that the curve and the result are measured on.
        env_steps: port calls to learn from, over all worlds.

    Returns:
        The curve and the result, and how long it took.
    """
    torch.set_num_threads(1)  # networks this small are slower with more
    worlds = Worlds(
        [functools.partial(Ports, rule=RULE)] * NUM_WORLDS,
        lane_seeds=[RunSeeds(seed).integer("environments", i) for i in range(NUM_WORLDS)],
    )
    roles = assign_roles(worlds.agents, mapping(kind))
    algorithms = {
        name: PPO(role.observation_spec, role.action_spec, SETTINGS, RunSeeds(1000 * seed + number))
        for number, (name, role) in enumerate(roles.items())
    }
    policies, seeds = {name: algorithm.policy for name, algorithm in algorithms.items()}, list(held_out)

    def evaluate(_: Any) -> Evaluation:
        lost = lost_with(policies, roles, seeds)
        mean, std = -float(np.mean(lost)), float(np.std(lost, ddof=1))
        half = 1.96 * std / math.sqrt(len(lost))
        return Evaluation(
            mean, std, (mean - half, mean + half), 0.0, len(lost), seeds, True, [-share for share in lost]
        )

    curve: list[dict[str, float]] = []

    class Curve(Callback):
        def evaluated(self, trainer: Trainer, result: Any) -> None:
            curve.append({"env_steps": result.env_steps, "share_lost": -result.evaluation.return_mean})
            print(f"seed {seed}: {result.env_steps:>9,} calls  {-result.evaluation.return_mean:6.2%} lost", flush=True)

    collector = MultiAgentCollector(worlds, roles, algorithms)
    trainer = Trainer(
        collector,
        SimplePolicyManager(algorithms),
        TrainerConfig(total_env_steps=env_steps),
        evaluate=evaluate,
        callbacks=[Curve()],
    )
    wall, cpu = time.monotonic(), time.process_time()
    with worlds:
        result = trainer.run()
    return {
        "seed": seed,
        "curve": curve,
        "share_lost": [-value for value in result.evaluation.returns] if result.evaluation else [],
        "train_s": result.train_s,
        "wall_s": time.monotonic() - wall,
        "cpu_s": time.process_time() - cpu,
    }
