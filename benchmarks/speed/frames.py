"""`python -m benchmarks.speed.frames`: 10^6 frames of Atari in memory, compressed and as they are; memory, draws, DQN.

Frames are of real play: a few thousand steps of three games with random actions, three of four of which repeat the one
before. They are played again and again until the buffer is full; a block never knows of an equal one.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.numbers import ratios, spread
from benchmarks.record import origin, provenance, table, versions, write_json

RESULTS = Path(__file__).parent / "results"
GAMES, LANES, STEPS, ROWS = ("Pong", "Breakout", "MsPacman"), 4, 4000, 1_000_000
BATCH, N_STEP = 32, 3
KINDS = ("none", "lz4")
BARS = {"memory": 1.0, "training": 0.95, "draws": 5.0}
"""GB at most; ratios at least."""


def play(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Frames [T, B, 84, 84] and step types [T, B] of all games, lane beside lane."""
    import torch

    from palaestra.envs import EnvConfig, create_environment

    frames, kinds = [], []
    for number, game in enumerate(GAMES):
        generator = torch.Generator().manual_seed(number)
        env = create_environment(EnvConfig(name=f"ALE/{game}-v5", num_envs=LANES), lane_seeds=[*range(LANES)])
        spec: Any = env.action_spec
        step, action = env.reset(), torch.zeros(LANES, dtype=torch.int64)
        seen = np.empty((steps, LANES, 84, 84), np.uint8), np.empty((steps, LANES), np.int32)
        for t in range(steps):
            seen[0][t], seen[1][t] = step.observation[:, -1].numpy(), step.step_type.numpy()
            other = torch.randint(spec.num, (LANES,), generator=generator)
            action = torch.where(torch.rand(LANES, generator=generator) < 0.75, action, other)
            step = env.step(action)
        frames.append(seen[0])
        kinds.append(seen[1])
    return np.concatenate(frames, 1), np.concatenate(kinds, 1)


def filled(compression: str, frames: np.ndarray, kinds: np.ndarray, rows: int) -> Any:
    """A full buffer."""
    import torch

    from palaestra.buffers import ReplayBuffer
    from palaestra.core import DiscreteSpec, TensorSpec, TimeStep

    lanes = frames.shape[1]
    specs: Any = {
        "observation_spec": TensorSpec((4, 84, 84), torch.uint8, stacked=4),
        "action_spec": DiscreteSpec(num=6),
        "compression": compression,
    }
    buffer = ReplayBuffer(rows, lanes, **specs)
    stack, zeros = torch.zeros(lanes, 4, 84, 84, dtype=torch.uint8), torch.zeros(lanes)
    actions = torch.zeros(lanes, dtype=torch.int64)
    first = torch.zeros(lanes, dtype=torch.int32)
    for t in range(rows // lanes + 1):
        at = t % len(frames)
        stack[:, -1] = torch.from_numpy(frames[at])
        kind = torch.from_numpy(kinds[at])
        step = TimeStep(step_type=kind if t else first, reward=zeros, discount=zeros + 1, observation=stack)
        if t == 0:
            buffer.open(step)
        else:
            buffer.append(actions, step)
    return buffer


def resident() -> float:
    """GB of this process in memory."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e9


def rate(call: Callable[[], Any], seconds: float) -> float:
    """Calls in a second of processor time."""
    count, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < seconds:
        call()
        count += 1
    return count / spent


def memory_and_draws(steps: int, rows: int, rounds: int) -> dict[str, Any]:
    """Of both kinds, in one process, so that draws are measured in turns."""
    import torch

    from palaestra.core import Replay

    torch.set_num_threads(1)
    played = play(steps)
    print(f"{played[0].shape[0] * played[0].shape[1]:,} frames were played", flush=True)
    plan = Replay(unroll_length=1, mini_batch_size=BATCH, n_step=N_STEP)
    buffers, took, write = {}, {}, {}
    for kind in reversed(KINDS):
        before, begin = resident(), time.process_time()
        buffers[kind] = filled(kind, *played, rows)
        write[kind] = len(buffers[kind]) / (time.process_time() - begin)
        took[kind] = resident() - before
        print(f"{kind}: {took[kind]:.3f} GB, {write[kind]:,.0f} rows written a second", flush=True)
    generator = torch.Generator().manual_seed(0)
    index = buffers["none"].starts(N_STEP)[::7919][:256]
    both = [buffer.reader.windows(index, N_STEP) for buffer in buffers.values()]
    assert torch.equal(both[0].observation, both[1].observation)
    draws: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds + 1):
        for kind, buffer in buffers.items():
            found = rate(lambda: buffer.draw(plan, generator), 0.5)  # noqa: B023
            if number:
                draws[kind].append(found)
    return {"memory_gb": took, "rows_written": write, "draws": draws, "rows": rows, "distinct": played[1].size}


def training(updates: int, rounds: int) -> dict[str, Any]:
    """Updates of DQN with what it plays between them, a second of processor time; in turns."""
    import torch

    from palaestra import DQN, Collector, EnvConfig, create_environment
    from palaestra.config import preset

    torch.set_num_threads(1)
    config: Any = preset("dqn", "ALE/Breakout-v5").algorithm
    sides = {}
    for kind in KINDS:
        env = create_environment(EnvConfig(name="ALE/Breakout-v5", num_envs=8), lane_seeds=[*range(8)])
        algorithm = DQN(env.observation_spec, env.action_spec, config)
        collector = Collector.of(env, algorithm, compression=kind)
        collector.collect(n_step=8 * 400)
        sides[kind] = algorithm, collector
    speeds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds + 1):
        for kind, (algorithm, collector) in sides.items():
            done, begin = algorithm.num_gradient_steps, time.process_time()
            while algorithm.num_gradient_steps < done + updates:
                collector.collect(n_step=8)
                algorithm.update(collector.buffer)
            if number:
                speeds[kind].append((algorithm.num_gradient_steps - done) / (time.process_time() - begin))
    return {"training": speeds}


def alone(target: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """What a process of its own measures."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(target, *given).result()


def evaluate(found: dict[str, Any]) -> dict[str, Any]:
    draws, speeds = found["draws"], found["training"]
    used = spread(speeds["none"]).median
    values = {
        "memory": found["memory_gb"]["lz4"],
        "training": spread(ratios(speeds["lz4"], speeds["none"])).median,
        "draws": spread(draws["lz4"]).median / used,
    }
    met = {name: value <= BARS[name] if name == "memory" else value >= BARS[name] for name, value in values.items()}
    return {**values, "ratio_of_draws": spread(ratios(draws["lz4"], draws["none"]))._asdict(), "met": met}


def markdown(record: dict[str, Any]) -> str:
    found, summary = record["found"], record["summary"]
    bars = {name: f"{BARS[name]:g} ({'met' if met else '**missed**'})" for name, met in summary["met"].items()}

    def row(title: str, values: dict[str, Any], form: str, ratio: float, bar: str) -> list[str]:
        shown = [spread(values[k]).median if isinstance(values[k], list) else values[k] for k in KINDS]
        return [title, *(format(value, form) for value in shown), f"{ratio:.2f}", bar]

    memory, write, draws, speeds = (found[name] for name in ("memory_gb", "rows_written", "draws", "training"))
    lines = [
        row("resident memory, GB", memory, ".2f", memory["lz4"] / memory["none"], f"at most {bars['memory']}"),
        row("rows written a second", write, ",.0f", write["lz4"] / write["none"], ""),
        row("draws of 32 a second", draws, ",.0f", summary["ratio_of_draws"]["median"], ""),
        row("DQN's gradient steps a second", speeds, ".1f", summary["training"], f"at least {bars['training']}"),
        ["draws for each that DQN uses", "", f"{summary['draws']:.0f}", "", f"at least {bars['draws']}"],
    ]
    return "\n\n".join(
        [
            "## Frames in memory",
            table(["", "`none`", "`lz4`", "ratio", "bar"], lines),
            f"{found['rows']:,} frames of 84 x 84 of {', '.join(GAMES)}, a third each; stacks of 4, n-step {N_STEP}. "
            f"{found['distinct']:,} of them are distinct, of random play; they are played again until the buffer is "
            "full. Rates are per second of processor time, in turns in one process; memory is what a process has more "
            "in memory when its buffer is full. Stable-Baselines3's memory-saving buffer has 28 GB, by arithmetic.",
            f"{origin(record)} cramjam {record['codec']['cramjam']}.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.frames", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="frames in the buffer")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each game in each of four lanes")
    parser.add_argument("--rounds", type=int, default=7, help="of draws and of training, each in turns")
    parser.add_argument("--updates", type=int, default=40, help="gradient steps of a round of training")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where frames.json and frames.md are written")
    given = parser.parse_args()
    options = f"--rows {given.rows} --steps {given.steps} --rounds {given.rounds} --updates {given.updates}"
    record = {**provenance(f"python -m benchmarks.speed.frames {options}"), "codec": versions(("cramjam", "ale-py"))}
    found = alone(memory_and_draws, given.steps, given.rows, given.rounds)
    found |= alone(training, given.updates, given.rounds)
    record |= {"found": found, "summary": evaluate(found)}
    write_json(given.results / "frames.json", record)
    (given.results / "frames.md").write_text(markdown(record) + "\n")
    print(markdown(record))


if __name__ == "__main__":
    main()
