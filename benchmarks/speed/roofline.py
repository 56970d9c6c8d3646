"""`python -m benchmarks.speed.roofline`: how far each workload is from what its products and environments need.

The matrix products and convolutions of one iteration, acting and learning, are noted as PyTorch makes them, and each is
timed alone for its shapes, on one thread, by MKL and, where that is as exact, by oneDNN, convolutions with channels
first and last: the fastest counts. The environment is stepped alone, without ours around it. What an iteration takes
beyond both is the rest: activations, optimizers, targets, the draw from replay, checks, logs, and calls of Python.
Results: `results/roofline.*`.
"""

import argparse
import contextlib
import functools
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks.record import origin, provenance, publish, table, write_json
from benchmarks.speed import compare, ours
from benchmarks.speed.workloads import WORKLOADS, PongPPOSettings, Workload
from palaestra import Collector
from palaestra.core import POLICY
from palaestra.core.computing import prefer_onednn
from palaestra.envs import create_environment
from palaestra.experiments import make_algorithm
from palaestra.training import SimplePolicyManager

RESULT = Path(__file__).parent / "results" / "roofline.json"
NAMES = tuple(name for name, one in WORKLOADS.items() if one.threads and not one.is_pool)


@dataclass(frozen=True)
class Product:
    """An operation that PyTorch can count the products of, and what it was called with."""

    operation: Any
    arguments: tuple[Any, ...]
    """Shapes stand for tensors."""
    flops: int

    def best_s(self) -> float:
        """Seconds with random numbers, by the faster library."""
        drawn = [torch.randn(value) if isinstance(value, torch.Size) else value for value in self.arguments]
        given = [list(v) if isinstance(v, tuple) else v for v in drawn]
        last = [v.contiguous(memory_format=torch.channels_last) if _is_pictures(v) else v for v in given]
        found = list[float]()
        for wanted in (True, False):
            prefer_onednn(wanted)
            found += [best_s(functools.partial(self.operation, *values)) for values in (given, last)]
        return min(found)


class Products(TorchDispatchMode):
    """Counts every product."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Product] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if func.overloadpacket in flop_registry:
            flops = flop_registry[func.overloadpacket](*args, **kwargs, out_val=made)
            self.counts[Product(func, tuple(map(_hashable, args)), int(flops))] += 1
        return made


def _is_pictures(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 4


def _hashable(value: Any) -> Any:
    return value.shape if isinstance(value, Tensor) else tuple(value) if isinstance(value, list) else value


def best_s(function: Callable[[], Any], least_s: float = 0.02) -> float:
    """The fastest of repeated calls."""
    function()
    began, fastest = time.perf_counter(), float("inf")
    while time.perf_counter() - began < least_s:
        start = time.perf_counter()
        function()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def env_step_s(workload: Workload, steps: int = 2000) -> float:
    """Seconds of a step of the environment alone, under random actions that were drawn before."""
    if isinstance(workload.settings, PongPPOSettings):
        env = gymnasium.wrappers.AtariPreprocessing(gymnasium.make(workload.env, frameskip=1))
    else:
        env = gymnasium.make(workload.env)
    actions = [env.action_space.sample() for _ in range(steps)]
    env.reset(seed=0)
    began = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return (time.perf_counter() - began) / steps


def products_of(name: str) -> dict[Product, float]:
    """Of one iteration of ours."""
    config = ours.configuration(name, compiled=False)
    algorithm = make_algorithm(config)
    settings, rounds = WORKLOADS[name].settings, 6
    manager = SimplePolicyManager({POLICY: algorithm})
    with contextlib.ExitStack() as stack:
        if WORKLOADS[name].is_offline:
            collector = ours.data(algorithm)
            sources = collector.sources
        else:
            collector = Collector.of(stack.enter_context(create_environment(config.env)), algorithm)
            sources = collector.buffers
        collector.unroll(max(settings.unroll_length, getattr(settings, "initial_steps", 0) + settings.minibatch_size))
        manager.update({POLICY: sources[POLICY]})
        collector.unroll(settings.unroll_length)
        with Products() as noted:
            for _ in range(rounds):  # a step of TD3's actor is due in every second one, of CrossQ's in every third
                manager.update({POLICY: sources[POLICY]})
                collector.unroll(settings.unroll_length)
    return {product: count / rounds for product, count in noted.counts.items()}


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
    products_ms = 1e3 * sum(count * one.best_s() for one, count in counts.items())
    flops = sum(one.flops * count for one, count in counts.items())
    env_ms = 0.0 if workload.is_offline else 1e3 * workload.rows_per_iteration * env_step_s(workload)
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
    square = torch.Size([1024, 1024])
    command = f"python -m benchmarks.speed.roofline --rounds {given.rounds} --window {given.window:g}"
    record: dict[str, Any] = {
        **provenance(command),
        "peak_gflops": 2 * 1024**3 / Product(torch.ops.aten.mm.default, (square, square), 0).best_s() / 1e9,
    }
    with tempfile.TemporaryDirectory() as cache:
        plan = compare.Plan(given.rounds, 2.0, given.window, {}, cache)
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
