"""The same training with every port's policy on a host of its own, and with gradient workers that follow experience."""

import time
from collections.abc import Callable
from typing import Any

import torch

from examples.inventory.training import build
from palaestra import PPO, Trainer, TrainerConfig
from palaestra.distributed import DistributedPolicyManager, GradientWorkers, TrainerAllocator
from palaestra.runtime import Runtime
from palaestra.training import PolicyManager, SimplePolicyManager

Weights = dict[str, torch.Tensor]


def learned(
    manage: Callable[[dict[str, PPO]], PolicyManager], *, seed: int = 0, num_envs: int = 4, env_steps: int = 600
) -> tuple[Weights, float]:
    """Trains separate policies for a little while.

    Args:
        manage: makes the manager of the policies.
        seed: of the run.
        num_envs: stepped side by side.
        env_steps: port calls to learn from.

    Returns:
        All weights, and how many seconds it took.
    """
    parts = build("separate", seed, num_envs=num_envs)
    trainer = Trainer(parts.collector, manage(parts.algorithms), TrainerConfig(total_env_steps=env_steps))
    began = time.monotonic()
    with parts.collector.envs:
        trainer.run()
    weights = {
        f"{name}.{key}": value.clone()
        for name, algorithm in trainer.algorithms.items()
        for key, value in algorithm.policy.state_dict().items()
    }
    return weights, time.monotonic() - began


def largest_difference(one: Weights, other: Weights) -> float:
    """Between weights of the same name.

    Args:
        one: all weights of a run.
        other: of another.
    """
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def compare(runtime: Callable[[], Runtime], *, num_workers: int = 6, **settings: Any) -> dict[str, Any]:
    """Trains with the same seed here, on hosts, and on hosts with gradient workers.

    Args:
        runtime: makes the place where hosts live.
        num_workers: gradient workers of the third run.
        settings: of `learned`.

    Returns:
        How far the weights of the second and third run are from the first's; who worked for whom; and the seconds.
    """
    here, here_s = learned(SimplePolicyManager, **settings)
    with runtime() as place:
        hosted, hosted_s = learned(lambda algorithms: DistributedPolicyManager(algorithms, place), **settings)
    allocations = []
    with runtime() as place:

        def on_hosts_with_workers(algorithms: dict[str, PPO]) -> PolicyManager:
            allocator = TrainerAllocator("by-experience", num_workers, list(algorithms), period=4)
            workers = GradientWorkers(algorithms, place, num_workers, allocator=allocator)
            allocations.append(workers.allocation)
            crew.append(workers)
            return DistributedPolicyManager(algorithms, place, gradient_workers=workers)

        crew: list[GradientWorkers] = []
        split, split_s = learned(on_hosts_with_workers, **settings)
        allocations.append(crew[0].allocation)
    return {
        "hosts_difference": largest_difference(here, hosted),
        "workers_difference": largest_difference(here, split),
        "workers_by_policy": {"first": allocations[0], "last": allocations[1]},
        "seconds": {"here": here_s, "hosts": hosted_s, "hosts_and_workers": split_s},
    }
