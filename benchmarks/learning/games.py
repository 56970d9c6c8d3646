"""`python -m benchmarks.learning.games RUN ...`: how runs of AlphaZero play against all that an opponent could do.

Tic-tac-toe: every game that any opponent can play against the policy is played out, with either side to begin; it has
to lose none. Connect Four: the policy makes the first move of 100 games against a search of 6 moves that finds every
win and loss within them, and draws among moves that are equal; with as many simulations as in training, and with more.
Policies are the last ones, and draw nothing. Results: `results/games.*`, a part for each game that was measured, and
tables on the page of AlphaZero.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.record import origin, provenance, publish, table, write_json
from palaestra import Policy
from palaestra.core import POLICY, TimeStep, tree_select
from palaestra.envs import ConnectFour, TicTacToe
from palaestra.experiments import find_run, policies_of_run
from palaestra.policies import SearchPolicy

RESULT = Path(__file__).parent / "results" / "games.json"
DEPTH, GAMES, SEED = 6, 100, 7
MORE_SIMULATIONS = (128, 256)
"""Of a move of Connect Four."""
ROWS, COLUMNS = ConnectFour.rows, ConnectFour.columns
_STRIDE = ROWS + 1  # bits of a column: one above the top stays empty, so that lines end there
_BOTTOM = [1 << (column * _STRIDE) for column in range(COLUMNS)]
_TOP = [bottom << (ROWS - 1) for bottom in _BOTTOM]
_CENTRE_FIRST = sorted(range(COLUMNS), key=lambda column: abs(column - COLUMNS // 2))

SIDES = ("first", "second")

Play = Callable[[Any], torch.Tensor]
"""Observations to actions, [B]."""


def best_play(policy: Policy) -> Play:
    """A policy's choices, without chance."""

    def play(observation: Any) -> torch.Tensor:
        step_type = torch.ones(len(observation), dtype=torch.int32)
        chosen = policy.act(TimeStep(step_type=step_type, observation=observation), deterministic=True).action
        return policy.env_action(chosen)

    return play


def plays(policy: Policy, more: Sequence[int]) -> Iterator[tuple[int, Play]]:
    """The best play of a policy that searches, with as many simulations as in training, and with more."""
    assert isinstance(policy, SearchPolicy)
    for simulations in (policy.network.search.num_simulations, *more):
        policy.network.search = policy.network.search._replace(num_simulations=simulations)
        yield simulations, best_play(policy)


class Record(NamedTuple):
    """What came of games."""

    won: int
    drawn: int
    lost: int


def every_game(play: Play, *, first: bool) -> Record:
    """Tic-tac-toe against all that an opponent can do, from every position that comes about once."""
    env, won, drawn, lost = TicTacToe(1), 0, 0, 0
    state, ours = env.fresh(torch.zeros(1, 2)), first
    while len(state["own"]):
        observation = env.observe(state)
        if ours:
            action = play(observation)
        else:
            lanes, action = observation["action_mask"].nonzero().unbind(-1)
            state = {name: leaf[lanes] for name, leaf in state.items()}
        state, reward, over = env.transition(state, action)
        gain = reward[over] if ours else -reward[over]
        won, drawn, lost = won + int((gain > 0).sum()), drawn + int((gain == 0).sum()), lost + int((gain < 0).sum())
        boards = torch.cat([state["own"], state["other"]], -1)[~over].unique(dim=0)
        state, ours = dict(zip(("own", "other"), boards.split(9, -1), strict=True)), not ours
    return Record(won, drawn, lost)


def has_line(stones: int) -> bool:
    """Whether four bits lie in a line."""
    for shift in (1, _STRIDE - 1, _STRIDE, _STRIDE + 1):
        pairs = stones & (stones >> shift)
        if pairs & (pairs >> 2 * shift):
            return True
    return False


def value(own: int, other: int, depth: int, low: int, high: int) -> int:
    """Negamax with alpha and beta: positive for a win of who moves within so many moves, the sooner the larger."""
    taken, best = own | other, -1000
    moves = [column for column in _CENTRE_FIRST if not taken & _TOP[column]]
    if not moves:
        return 0
    for column in moves:
        if has_line(own | ((taken + _BOTTOM[column]) & ~taken & _column(column))):
            return depth
    if depth == 1:
        return 0
    for column in moves:
        stone = (taken + _BOTTOM[column]) & ~taken & _column(column)
        best = max(best, -value(other, own | stone, depth - 1, -high, -low))
        low = max(low, best)
        if low >= high:
            break
    return best


def _column(column: int) -> int:
    return ((1 << ROWS) - 1) << (column * _STRIDE)


def solver(seed: int, depth: int = DEPTH) -> Play:
    """Draws among the moves that are best within so many moves."""
    generator, known = np.random.default_rng(seed), dict[tuple[int, int], list[int]]()

    def best(own: int, other: int) -> list[int]:
        taken, values = own | other, dict[int, int]()
        for column in range(COLUMNS):
            if not taken & _TOP[column]:
                stone = (taken + _BOTTOM[column]) & ~taken & _column(column)
                wins = has_line(own | stone)
                values[column] = depth if wins else -value(other, own | stone, depth - 1, -1000, 1000)
        return [column for column, found in values.items() if found == max(values.values())]

    def play(observation: Any) -> torch.Tensor:
        actions: list[int] = []
        for board, mask in zip(observation["observation"], observation["action_mask"], strict=True):
            own, other = (bits(stones) for stones in board)
            if not mask.any():
                actions.append(0)
                continue
            if (own, other) not in known:
                known[own, other] = best(own, other)
            actions.append(int(generator.choice(known[own, other])))
        return torch.tensor(actions)

    return play


def bits(stones: torch.Tensor) -> int:
    return sum(1 << (int(column) * _STRIDE + int(row)) for row, column in stones.nonzero())


def match(first: Play, second: Play, games: int) -> Record:
    """Games of Connect Four."""
    env = ConnectFour(games, lane_seeds=list(range(games)))
    step, gain, over, first_moves = env.reset(), torch.zeros(games), torch.zeros(games, dtype=torch.bool), True
    while not over.all():
        running = (~over).nonzero().squeeze(-1)
        action = torch.zeros(games, dtype=torch.int64)
        action[running] = (first if first_moves else second)(tree_select(step.observation, running))
        step = env.step(action)
        ended = (step.last & ~over).nonzero().squeeze(-1)
        gain[ended] = step.reward[ended] if first_moves else -step.reward[ended]
        over[ended], first_moves = True, not first_moves
    return Record(int((gain > 0).sum()), int((gain == 0).sum()), int((gain < 0).sum()))


def measured(run: Path) -> Iterator[dict[str, Any]]:
    """One run's rows."""
    directory = find_run(str(run))
    policy = policies_of_run(directory, "last")[1][POLICY].eval()
    trained = json.loads((directory.path / "metrics.jsonl").read_text().splitlines()[-1])
    facts = {"seed": directory.config.run.seed, "env_steps": trained["env_steps"], "seconds": trained["time/train_s"]}
    game = directory.config.env.name.rpartition(":")[2]
    for simulations, play in plays(policy, () if game == "TicTacToe" else MORE_SIMULATIONS):
        if game == "TicTacToe":
            found = {"first": every_game(play, first=True), "second": every_game(play, first=False)}
        else:
            found = {"first": match(play, solver(SEED), GAMES), "second": match(solver(SEED), play, GAMES)}
            won, drawn, lost = found["second"]
            found["second"] = Record(lost, drawn, won)
        records = {name: list(record) for name, record in found.items()}
        yield {"game": game, **facts, "simulations": simulations, **records}


def markdown(part: dict[str, Any]) -> str:
    """The table of one game."""
    heads = ["game", "seed", "env steps", "minutes", "simulations", *(f"{side}: won, drawn, lost" for side in SIDES)]
    rows = [
        [
            row["game"],
            str(row["seed"]),
            f"{row['env_steps']:,}",
            f"{row['seconds'] / 60:.0f}",
            str(row["simulations"]),
            *(", ".join(f"{count:,}" for count in row[side]) for side in SIDES),
        ]
        for row in part["rows"]
    ]
    return f"{table(heads, rows)}\n\n{origin(part)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.games", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="of alphazero")
    torch.set_num_threads(1)
    record: dict[str, Any] = json.loads(RESULT.read_text())
    with torch.inference_mode():
        rows = [row for run in parser.parse_args().runs for row in measured(run)]
    for game in dict.fromkeys(row["game"] for row in rows):
        mine = [row for row in rows if row["game"] == game]
        record[game] = {**provenance("python -m benchmarks.learning.games RUN ..."), "rows": mine}
    write_json(RESULT, record)
    text = "\n\n".join(map(markdown, record.values()))
    publish(RESULT.with_suffix(".md"), text, "docs/algorithms/alphazero.md")
    print(text)


if __name__ == "__main__":
    main()
