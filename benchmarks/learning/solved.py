"""`python -m benchmarks.learning.solved RUN ...`: the share of moves in Connect Four that an exact solver calls best.

A policy plays against itself, from 0 to 6 random moves on, as in training. One position is drawn of each of 1,000
games, among those with at least 10 stones, so that positions are independent; with fewer stones, solving takes too
long. A move is the best if it keeps the outcome: a won position stays won, a drawn one is not lost. Positions in which
moves differ are counted apart too, for in others nothing can go wrong. Policies are the last ones, and draw nothing.
They play with as many simulations as in training; in the same positions they are asked with more, too.
Seeds are trained, in less than two hours of one core each, by `palaestra train alphazero palaestra.envs:ConnectFour
--compile --run.precision bf16 --algorithm.network.encoder palaestra.nn:WideBoardNetwork --algorithm.gradient-steps 200
--algorithm.network.hidden-sizes 256 256 --algorithm.learning-rate "linear(0.001, 0)" --trainer.total-env-steps 5000000
--run.seed SEED`; rows of 128 units by the preset and `--trainer.total-env-steps 7000000`.
Results: `results/solved.*`. The solver is `connect_four.c`, for which a C compiler is needed.
"""

import argparse
import ctypes
import functools
import hashlib
import json
import math
import operator
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.learning.games import ROWS, Play, bits, plays
from benchmarks.record import origin, provenance, table, write_json
from palaestra.core import POLICY, Batch, tree_select
from palaestra.envs import ConnectFour
from palaestra.experiments import find_run, policies_of_run

RESULTS = Path(__file__).parent / "results"
SOURCE = Path(__file__).with_name("connect_four.c")
POSITIONS, RANDOM_MOVES, LEAST_STONES, SEEDS, BAR = 1000, 6, 10, 3, 0.99
STEPS, UNITS = 5_000_000, 256
MORE_SIMULATIONS = (128, 1024)
Position = tuple[int, int]
"""Stones of who moves, and all stones, as bits."""


class Share(NamedTuple):
    """How many of a kind there are, of how many."""

    hits: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, 95%."""
        z, share = 1.96, self.hits / self.of
        middle, scale = share + z * z / (2 * self.of), 1 + z * z / self.of
        half = z * math.sqrt(share * (1 - share) / self.of + z * z / (4 * self.of**2))
        return (middle - half) / scale, min(1.0, (middle + half) / scale)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.hits / self.of:.1%} ({low:.1%} to {high:.1%}) of {self.of:,}"


@functools.cache
def solver() -> ctypes.CDLL:
    """Compiles it once for all processes.

    Raises:
        SystemExit: there is no C compiler.
    """
    name = f"palaestra_connect_four_{os.getuid()}_{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}.so"
    library = Path(tempfile.gettempdir()) / name
    if not library.exists():
        built = library.with_suffix(f".{os.getpid()}")
        command = [os.environ.get("CC", "cc"), "-O3", "-shared", "-fPIC", "-o", str(built), str(SOURCE)]
        try:
            subprocess.run(command, check=True)
        except OSError as error:
            raise SystemExit(f"the solver needs a C compiler, and {command[0]!r} cannot be run: {error}") from error
        built.rename(library)
    return ctypes.CDLL(str(library))


def values(position: Position) -> list[int]:
    """What each column is worth for who moves: 1 wins, 0 is a draw, -1 loses, -2 is full."""
    found = (ctypes.c_byte * ConnectFour.columns)()
    solver().values(ctypes.c_uint64(position[0]), ctypes.c_uint64(position[1]), found)
    return list(found)


def board(position: Position) -> Tensor:
    """The observation [2, rows, columns] of who moves."""
    own, both = position
    stones = torch.zeros(2, ConnectFour.rows, ConnectFour.columns)
    for column in range(ConnectFour.columns):
        for row in range(ROWS):
            cell = 1 << (column * (ROWS + 1) + row)
            stones[0, row, column], stones[1, row, column] = bool(own & cell), bool(both & ~own & cell)
    return stones


class Solved:
    """Positions with what each of their moves is worth."""

    def __init__(self, positions: Sequence[Position]) -> None:
        self.worth = torch.tensor([values(position) for position in positions])
        """[N, columns]: 1 wins, 0 is a draw, -1 loses, -2 is full."""
        boards = torch.stack([board(position) for position in positions])
        self.stones = boards.sum((1, 2, 3))
        self.observation = Batch.of({"observation": boards, "action_mask": self.worth > -2})

    def wrong(self, moves: Tensor) -> Tensor:
        """[N] whether moves lose what could have been kept."""
        return self.worth.gather(1, moves.unsqueeze(1)).squeeze(1) < self.worth.amax(1)


def played(play: Play, positions: int, seed: int) -> list[Position]:
    """One position of each game that a policy plays against itself and that lasts long enough."""
    games = 2 * positions
    env = ConnectFour(games, lane_seeds=list(range(seed * games, (seed + 1) * games)), random_moves=RANDOM_MOVES)
    seen: list[list[torch.Tensor]] = [[] for _ in range(games)]
    step, over = env.reset(), torch.zeros(games, dtype=torch.bool)
    while not over.all():
        running = (~over).nonzero().squeeze(-1)
        action = torch.zeros(games, dtype=torch.int64)
        action[running] = play(tree_select(step.observation, running))
        for lane in running.tolist():
            if (stones := step.observation["observation"][lane]).sum() >= LEAST_STONES:
                seen[lane].append(stones.clone())
        step = env.step(action)
        over = over | step.last
    generator = np.random.default_rng(seed)
    drawn = [boards[generator.integers(len(boards))] for boards in seen if boards]
    return [(bits(stones[0]), bits(stones.sum(0))) for stones in drawn[:positions]]


def judged(solved: Solved, play: Play) -> tuple[Share, Share]:
    """How many moves are the best: of all, and of those in positions whose moves differ."""
    right = ~solved.wrong(play(solved.observation))
    differ = (solved.worth.amax(1, keepdim=True) > solved.worth).logical_and(solved.worth > -2).any(1)
    return Share(int(right.sum()), len(right)), Share(int(right[differ].sum()), int(differ.sum()))


def policy_of(run: str) -> tuple[Any, dict[str, Any]]:
    """The last policy of a run, and facts about it."""
    directory = find_run(run)
    config = directory.config
    if config.env.name.rpartition(":")[2] != "ConnectFour":
        raise SystemExit(f"{run} is of {config.env.name}; only runs of palaestra.envs:ConnectFour can be solved")
    policy = policies_of_run(directory, "last")[1][POLICY].eval()
    trained = json.loads((directory.path / "metrics.jsonl").read_text().splitlines()[-1])
    facts = {"algorithm": config.algorithm_name, "seed": config.run.seed, "env_steps": trained["env_steps"]}
    facts |= {"units": config.algorithm.network.hidden_sizes[-1], "gradient_steps": trained["gradient_steps"]}
    return policy, {**facts, "seconds": trained["time/train_s"]}


def measured(run: str, positions: int) -> Iterator[dict[str, Any]]:
    """A run's rows."""
    policy, facts = policy_of(run)
    _, play = next(plays(policy, ()))
    began = time.process_time()
    solved = Solved(played(play, positions, facts["seed"]))
    print(f"{run}: {positions:,} positions after {time.process_time() - began:.0f} s", flush=True)
    for simulations, play in plays(policy, MORE_SIMULATIONS):
        everywhere, differing = judged(solved, play)
        yield {**facts, "simulations": simulations, "all": list(everywhere), "differing": list(differing)}


def markdown(record: dict[str, Any]) -> str:
    """The table."""
    rows = [
        [
            row["algorithm"],
            str(row["seed"]),
            str(row["units"]),
            f"{row['env_steps']:,}",
            f"{row['seconds'] / 60:.0f}",
            str(row["simulations"]),
            str(Share(*row["all"])),
            str(Share(*row["differing"])),
            "met" if Share(*row["all"]).hits >= BAR * row["all"][1] else "not met",
        ]
        for row in record["rows"]
    ]
    long = len({row["seed"] for row in record["rows"] if row["env_steps"] >= STEPS and row["units"] == UNITS})
    rows += [["alphazero", "any", str(UNITS), f"{STEPS:,}", "", "any", "not run", "not run", ""]] * (SEEDS - long)
    heads = ["algorithm", "seed", "units", "env steps", "minutes", "simulations", "best moves", "where moves differ"]
    heads.append(f"at least {BAR:.0%}")
    return f"{table(heads, rows)}\n\n{origin(record)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.solved", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="of palaestra.envs:ConnectFour")
    parser.add_argument("--positions", type=int, default=POSITIONS, help="of as many games; default %(default)s")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where solved.json and solved.md are written")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        rows = [row for run in arguments.runs for row in measured(run, arguments.positions)]
    file = arguments.results / "solved.json"
    former = json.loads(file.read_text())["rows"] if file.exists() else []
    names = operator.itemgetter("algorithm", "seed", "units", "env_steps", "simulations")
    kept = [row for row in former if names(row) not in map(names, rows)]
    record = {**provenance("python -m benchmarks.learning.solved RUN ..."), "rows": [*kept, *rows]}
    write_json(file, record)
    text = markdown(record)
    file.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
