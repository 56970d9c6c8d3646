"""One side of `benchmarks.speed.revisions`: builds a workload in its own checkout, then measures when it is asked to.

It is run by path, with the checkout as working directory and first on the path: `palaestra` and the other files of
`benchmarks` are the checkout's own, so that settings have the names that they have there.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
WARM_UP = {"dqn": 1_000, "sac": 700, "td3": 700}  # iterations, of which the first 500 only collect


def training(name: str, variant: str) -> Callable[[], Any]:
    """One iteration of a trainer: an unroll and what is learned from it."""
    from benchmarks.speed import ours

    return iteration(ours.configuration(name, compiled=variant == "compiled"), WARM_UP.get(name, 5))


def tensor_training(num_envs: int) -> Callable[[], Any]:
    """The same for PPO on an environment that steps all of its CartPoles as tensors."""
    from benchmarks.speed import ours
    from palaestra import EnvConfig

    config = ours.configuration("ppo", compiled=False)
    env = EnvConfig(name="palaestra.envs.tiny:TensorCartPole", num_envs=num_envs, kwargs={"max_episode_steps": 500})
    algorithm = dataclasses.replace(config.algorithm, unroll_length=16, mini_batch_size=num_envs * 4)
    return iteration(dataclasses.replace(config, env=env, algorithm=algorithm), 3)


def iteration(config: Any, warm_up: int) -> Callable[[], Any]:
    """The training iteration of a configuration, after some of them."""
    from palaestra import Collector, RunSeeds, Trainer
    from palaestra.envs import create_environment
    from palaestra.experiments import make_algorithm

    torch.set_flush_denormal(True)  # as `Trainer.run` does
    algorithm = make_algorithm(config)
    lanes = [RunSeeds(0).integer("environments", lane) for lane in range(config.env.num_envs)]
    env = create_environment(config.env, lane_seeds=lanes)
    trainer = Trainer(Collector.of(env, algorithm), algorithm, config.trainer)
    for _ in range(warm_up):
        trainer.train_iter()
    return trainer.train_iter


def buffer(task: str) -> Callable[[], Any]:
    """One call of a task of `benchmarks.speed.buffers`."""
    from benchmarks.speed import buffer_ours

    return buffer_ours.make(task)


def stepping(maker: str, *arguments: Any) -> Callable[[], Any]:
    """A step of environments with random actions, made as `benchmarks.speed.envs` makes them."""
    from benchmarks.speed import envs

    step, _ = getattr(envs, maker)(*arguments)
    number = 0

    def call() -> None:
        nonlocal number
        step(number)
        number += 1

    return call


def call_of(workload: str) -> Callable[[], Any]:
    """What is timed: `train ppo eager`, `buffer sample`, `step serial CartPole-v1 8`, `tensor 1024`."""
    kind, *arguments = workload.split()
    values = [int(argument) if argument.isdigit() else argument for argument in arguments]
    makers: dict[str, Callable[..., Callable[[], Any]]] = {
        "train": training,
        "tensor": tensor_training,
        "buffer": buffer,
        "step": stepping,
    }
    return makers[kind](*values)


def main() -> None:
    workload, clock_name, core = sys.argv[1:]
    if "process" not in workload:
        os.sched_setaffinity(0, {int(core)})
    clock = CLOCKS[clock_name]
    torch.set_num_threads(1)
    call = call_of(workload)
    for _ in range(3):
        call()
    print("ready", flush=True)
    for line in sys.stdin:
        count, began, end = 0, clock(), time.perf_counter() + float(line)
        while time.perf_counter() < end:
            call()
            count += 1
        print(json.dumps(count / (clock() - began)), flush=True)


if __name__ == "__main__":
    main()
