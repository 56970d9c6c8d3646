"""`python -m benchmarks.speed.tensors --peer-python P --purejaxrl CHECKOUT`: PPO on tensor CartPoles, beside PureJaxRL.

The peer is a repository: https://github.com/luchris429/purejaxrl, with jax, flax, optax, distrax and gymnax 0.0.9 in an
environment of its own. Both sides run on one core, in turns, each in a fresh process: networks of two
layers of 64 units, 4 passes, 4 minibatches, Adam. The peer's whole training is one program; ours is the `Trainer`.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.numbers import ratios, spread
from benchmarks.record import origin, provenance, publish, table, write_json
from benchmarks.speed.compare import pinned

RESULTS = Path(__file__).parent / "results"
SHAPES = {(4, 128): 0.6, (8, 128): 0.75, (2048, 32): 1.5}
"""Environments and steps of an iteration, and the least ratio of compiled training to the peer."""
SIDES = ("eager", "compiled", "peer")


def trainer_of(num_envs: int, num_steps: int, *, compiled: bool, device: str = "cpu") -> Any:
    """A `Trainer` of PPO on tensor CartPoles."""
    from benchmarks.speed import ours
    from palaestra import Collector, EnvConfig, RunSeeds, Trainer
    from palaestra.envs import create_environment
    from palaestra.experiments import make_algorithm

    config = ours.configuration("ppo", compiled=compiled)
    kwargs = {"max_episode_steps": 500, "device": device}
    env = EnvConfig(name="palaestra.envs.tiny:TensorCartPole", num_envs=num_envs, kwargs=kwargs)
    shape = {"unroll_length": num_steps, "mini_batch_size": num_envs * num_steps // 4, "num_epochs": 4}
    config = dataclasses.replace(config, env=env, algorithm=dataclasses.replace(config.algorithm, **shape))
    algorithm = make_algorithm(config).to(device)
    lanes = [RunSeeds(0).integer("environments", lane) for lane in range(num_envs)]
    collector = Collector.of(create_environment(config.env, lane_seeds=lanes), algorithm)
    if compiled:
        collector.compile()
    return Trainer(collector, algorithm, config.trainer)


def measured(num_envs: int, num_steps: int, window_s: float, *, compiled: bool) -> dict[str, Any]:
    """Env steps a second of the trainer's iterations, and seconds until the first was over."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as `Trainer.run` does
    trainer = trainer_of(num_envs, num_steps, compiled=compiled)
    collector = trainer.collector
    began = time.perf_counter()
    trainer.train_iter()
    first_s = time.perf_counter() - began
    for _ in range(5):
        trainer.train_iter()
    steps, began = collector.env_steps, time.perf_counter()
    while time.perf_counter() - began < window_s:
        trainer.train_iter()
    speed = (collector.env_steps - steps) / (time.perf_counter() - began)
    return {"env_steps_per_s": speed, "first_s": first_s}


def run_once(side: str, shape: tuple[int, int], arguments: argparse.Namespace) -> dict[str, Any]:
    numbers = [*map(str, shape), str(arguments.window)]
    if side == "peer":
        script = Path(__file__).with_name("peer_purejaxrl.py")
        command = [str(arguments.peer_python), str(script), str(arguments.purejaxrl), *numbers]
    else:
        command = [sys.executable, "-m", "benchmarks.speed.tensors", "--child", side, *numbers]
    result = pinned(command)
    print(f"{shape[0]} x {shape[1]}  {side:<8}  {result['env_steps_per_s']:,.0f} env steps/s", flush=True)
    return result


def markdown(record: dict[str, Any]) -> str:
    rows = []
    for name, runs in record["runs"].items():
        num_envs, num_steps = map(int, name.split(" x "))
        speeds = {side: [run["env_steps_per_s"] for run in runs[side]] for side in SIDES}
        for side in SIDES:
            speed, ratio = spread(speeds[side]), spread(ratios(speeds[side], speeds["peer"]))
            least = SHAPES[num_envs, num_steps] if side == "compiled" else None
            first = spread([run["first_s"] for run in runs[side]])
            bar = "" if least is None else f"{least} ({'met' if ratio.median >= least else '**not met**'})"
            numbers = [f"{speed.median:,.0f}", f"{speed.low:,.0f} to {speed.high:,.0f}", f"{ratio.median:.2f}", bar]
            rows.append([name, side, *numbers, f"{first.low:.1f} to {first.high:.1f}"])
    header = [
        "environments x steps",
        "",
        "env steps/s",
        "min to max",
        "of the peer",
        "bar",
        "first iteration, s",
    ]
    title = "PPO on tensor CartPoles, 4 passes, 4 minibatches, one core, beside PureJaxRL:"
    return "\n\n".join([title, table(header, rows), f"{origin(record)} Peer: PureJaxRL, jax {record['jax']}."])


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        side, num_envs, num_steps, window_s = sys.argv[2:]
        print(json.dumps(measured(int(num_envs), int(num_steps), float(window_s), compiled=side == "compiled")))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.tensors", description=__doc__)
    parser.add_argument("--purejaxrl", type=Path, required=True, help="a checkout of the peer")
    parser.add_argument("--peer-python", type=Path, required=True, help="the interpreter of its environment")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=6.0, help="seconds measured in each run")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    names = {f"{num_envs} x {num_steps}": (num_envs, num_steps) for num_envs, num_steps in SHAPES}
    runs: dict[str, dict[str, list[Any]]] = {name: {side: [] for side in SIDES} for name in names}
    for _ in range(arguments.rounds):
        for name, shape in names.items():
            for side in SIDES:
                runs[name][side].append(run_once(side, shape, arguments))
    command = f"python -m benchmarks.speed.tensors --rounds {arguments.rounds} --window {arguments.window:g}"
    jax = next(iter(runs.values()))["peer"][0]["version"]
    record = {**provenance(command), "jax": jax, "runs": runs}
    write_json(arguments.results / "tensors.json", record)
    text = markdown(record)
    publish(arguments.results / "tensors.md", text, "docs/concepts/speed.md", "tensors")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
