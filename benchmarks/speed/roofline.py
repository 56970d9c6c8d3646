"""`python -m benchmarks.speed.roofline`: how far each workload is from what its matrix products and environments need.

The products of one iteration, acting and learning, are noted as PyTorch makes them, and each of their shapes is timed
alone, on one thread: no faster program makes the same products in the same precision. The environment is stepped alone,
without ours around it. What an iteration takes beyond both is the rest: activations, optimizers, targets, the draw from
replay, checks, logs, and calls of Python. Results: `results/roofline.*`.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.record import origin, provenance, publish, table, write_json
from benchmarks.speed import compare, ours
from benchmarks.speed.workloads import WORKLOADS, Workload
from palaestra import Collector
from palaestra.core import POLICY
from palaestra.envs import create_environment
from palaestra.experiments import make_algorithm
from palaestra.training import SimplePolicyManager

RESULT = Path(__file__).parent / "results" / "roofline.json"
NAMES = ("ppo", "ppo_cheetah", "dqn", "sac", "td3")
Shape = tuple[int, int, int, int]


class Products(TorchDispatchMode):
    """Notes the shape of every matrix product: batch, rows, inner, columns."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Shape] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            first, second = args[-2:] if len(args) >= 2 else (args[0], args[1])
            batch = first.shape[0] if first.ndim == 3 else 1
            self.counts[batch, first.shape[-2], first.shape[-1], second.shape[-1]] += 1
        return func(*args, **(kwargs or {}))


def best_s(function: Callable[[], Any], least_s: float = 0.02) -> float:
    """The fastest of repeated calls."""
    function()
    began, fastest = time.perf_counter(), float("inf")
    while time.perf_counter() - began < least_s:
        start = time.perf_counter()
        function()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def product_s(shape: Shape) -> float:
    """Seconds of one product alone."""
    batch, rows, inner, columns = shape
    a, b = torch.randn(batch, rows, inner), torch.randn(batch, inner, columns)
    out = torch.empty(batch, rows, columns)
    return best_s(lambda: torch.bmm(a, b, out=out)) if batch > 1 else best_s(lambda: torch.mm(a[0], b[0], out=out[0]))


def env_step_s(name: str, steps: int = 2000) -> float:
    """Seconds of a step of the environment alone, under random actions that were drawn before."""
    env = gymnasium.make(name)
    actions = [env.action_space.sample() for _ in range(steps)]
    env.reset(seed=0)
    began = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return (time.perf_counter() - began) / steps


def products_of(name: str) -> Counter[Shape]:
    """Of one iteration of ours."""
    config = ours.configuration(name, compiled=False)
    algorithm = make_algorithm(config)
    settings, rounds = WORKLOADS[name].settings, 4
    with create_environment(config.env) as env:
        collector = Collector.of(env, algorithm)
        manager = SimplePolicyManager({POLICY: algorithm})
        collector.unroll(max(settings.unroll_length, getattr(settings, "initial_steps", 0) + settings.minibatch_size))
        manager.update({POLICY: collector.buffers[POLICY]})
        collector.unroll(settings.unroll_length)
        with Products() as noted:
            for _ in range(rounds):  # a step of TD3's actor is due in every other one
                manager.update({POLICY: collector.buffers[POLICY]})
                collector.unroll(settings.unroll_length)
    return Counter({shape: count / rounds for shape, count in noted.counts.items()})  # pyright: ignore


def measured(name: str, workload: Workload, plan: compare.Plan) -> dict[str, float]:
    """Milliseconds of an iteration, by variant."""
    found = {}
    for variant in ("eager", "compiled"):
        speeds = [compare.run_once(name, variant, plan)["env_steps_per_s"] for _ in range(plan.rounds)]
        found[variant] = 1e3 * workload.rows_per_iteration / statistics.median(speeds)
    return found


def line_of(name: str, plan: compare.Plan) -> dict[str, Any]:
    workload = WORKLOADS[name]
    counts = products_of(name)
    products_ms = 1e3 * sum(count * product_s(shape) for shape, count in counts.items())
    flops = sum(2 * batch * rows * inner * columns * n for (batch, rows, inner, columns), n in counts.items())
    env_ms = 1e3 * workload.rows_per_iteration * env_step_s(workload.env)
    return {
        "name": name,
        "env_ms": env_ms,
        "products_ms": products_ms,
        "gflops": flops / products_ms / 1e6,
        "flops": flops,
        "ms": measured(name, workload, plan),
    }


def text_of(record: dict[str, Any]) -> str:
    rows = []
    for line in record["rows"]:
        floor = line["env_ms"] + line["products_ms"]
        cells = [line["name"], f"{line['env_ms']:.2f}", f"{line['products_ms']:.2f} ({line['gflops']:.0f} GFLOP/s)"]
        for variant in ("eager", "compiled"):
            cells.append(f"{line['ms'][variant]:.2f} ({line['ms'][variant] / floor:.1f}x)")
        rows.append([*cells, f"{line['ms']['compiled'] - floor:.2f}"])
    header = ["workload", "environment", "products", "eager (of the floor)", "compiled", "the rest, compiled"]
    peak = f"A product of 1024 x 1024 x 1024 runs at {record['peak_gflops']:.0f} GFLOP/s. Milliseconds of an iteration:"
    return "\n\n".join([peak, table(header, rows), origin(record)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.roofline", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES, help=", ".join(NAMES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=4.0, help="seconds measured in each run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    command = f"python -m benchmarks.speed.roofline --rounds {given.rounds} --window {given.window:g}"
    record: dict[str, Any] = {
        **provenance(command),
        "peak_gflops": 2 * 1024**3 / product_s((1, 1024, 1024, 1024)) / 1e9,
    }
    with tempfile.TemporaryDirectory() as cache:
        plan = compare.Plan(given.rounds, 2.0, given.window, Path(), None, cache)
        record["rows"] = []
        for name in given.names:
            record["rows"].append(line_of(name, plan))
            print(json.dumps(record["rows"][-1]), flush=True)
    write_json(RESULT, record)
    text = text_of(record)
    publish(RESULT.with_suffix(".md"), text, "docs/concepts/speed.md", "roofline")
    print(text)


if __name__ == "__main__":
    main()
