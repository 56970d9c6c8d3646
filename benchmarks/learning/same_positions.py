"""`python -m benchmarks.learning.same_positions RUN ...`: policies of Connect Four in the same solved positions.

`solved` judges each policy in positions of its own games, so that two of its shares are of different positions. Here
all policies are asked about the same ones, half of them from games of each of the first two runs, so that settings can
be compared on a seed for tuning. Of each policy: how often the best move of its network alone is best, the mean
distance of the network's value to the true outcome, and the errors of searches by the number of stones on the board.
Solving takes about two minutes. Results: `results/same_positions.*`.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import torch

from benchmarks.learning.games import Play, plays
from benchmarks.learning.solved import LEAST_STONES, RESULTS, Solved, played, policy_of
from benchmarks.record import origin, provenance, table, write_json
from palaestra.envs import ConnectFour
from palaestra.nn import allowed_logits

POSITIONS, SEED, TEACHERS, SIMULATIONS = 4000, 700, 2, (128,)
STAGES = (LEAST_STONES, 14, 18, 24, ConnectFour.rows * ConnectFour.columns + 1)
"""Numbers of stones that begin a part of the game."""


def errors(solved: Solved, play: Play) -> list[tuple[int, int]]:
    """Wrong moves, and all, in each part of the game."""
    wrong, stones = solved.wrong(play(solved.observation)), solved.stones
    parts = [(stones >= low) & (stones < high) for low, high in itertools.pairwise(STAGES)]
    return [(int(wrong[part].sum()), int(part.sum())) for part in parts]


def measured(run: str, solved: Solved) -> list[dict[str, Any]]:
    """A run's rows."""
    policy, facts = policy_of(run)
    network: Any = policy.network
    said = network.predict(solved.observation)
    logits = allowed_logits(said.logits, solved.observation["action_mask"])
    distance = (network.values(said.atoms) - solved.worth.amax(1)).abs().mean()
    facts |= {"network_wrong": int(solved.wrong(logits.argmax(-1)).sum()), "value_distance": float(distance)}
    found = plays(policy, SIMULATIONS)
    return [{**facts, "run": run, "simulations": count, "errors": errors(solved, play)} for count, play in found]


def markdown(record: dict[str, Any]) -> str:
    """The table."""
    stages = [f"{low} to {high - 1} stones" for low, high in itertools.pairwise(STAGES)]
    heads = ["run", "seed", "env steps", "minutes", "network alone", "value", "simulations", "wrong", *stages]
    rows = []
    for row in record["rows"]:
        every = record["positions"]
        network, wrong = row["network_wrong"] / every, sum(count for count, _ in row["errors"]) / every
        first = [Path(row["run"]).name, str(row["seed"]), f"{row['env_steps']:,}", f"{row['seconds'] / 60:.0f}"]
        parts = [f"{count / max(1, of):.1%}" for count, of in row["errors"]]
        numbers = [f"{network:.1%}", f"{row['value_distance']:.2f}", str(row["simulations"]), f"{wrong:.1%}"]
        rows.append([*first, *numbers, *parts])
    return f"{table(heads, rows)}\n\n{record['positions']:,} positions. {origin(record)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.same_positions", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="of palaestra.envs:ConnectFour")
    parser.add_argument("--positions", type=int, default=POSITIONS, help="of as many games; default %(default)s")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where same_positions.json and .md are written")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    teachers, positions = arguments.runs[:TEACHERS], []
    with torch.inference_mode():
        for number, run in enumerate(teachers):
            _, play = next(plays(policy_of(run)[0], ()))
            positions += played(play, arguments.positions // len(teachers), SEED + number)
        solved = Solved(positions)
        rows = [row for run in arguments.runs for row in measured(run, solved)]
    command = "python -m benchmarks.learning.same_positions RUN ..."
    record = {**provenance(command), "positions": len(positions), "rows": rows}
    write_json(arguments.results / "same_positions.json", record)
    text = markdown(record)
    (arguments.results / "same_positions.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
