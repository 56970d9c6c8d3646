"""The solver of Connect Four beside plain search to the end, and the share of best moves."""

import random
import shutil

import numpy as np
import pytest
import torch

from benchmarks.learning import games
from benchmarks.learning.games import has_line
from benchmarks.learning.same_positions import errors
from benchmarks.learning.solved import LEAST_STONES, Share, Solved, board, judged, markdown, played, values

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def position(moves):
    """Stones of who moves next, and all of them; none is over."""
    own = other = 0
    for column in moves:
        stone = ((own | other) + (1 << 7 * column)) & ~(own | other) & (63 << 7 * column)
        own, other = other, own | stone
        assert stone and not has_line(other)
    return own, own | other


def late_positions(count, stones):
    """After random moves none of which wins."""
    draw = random.Random(3)
    while count:
        own = other = 0
        for _ in range(stones):
            cells = [((own | other) + (1 << 7 * column)) & ~(own | other) & (63 << 7 * column) for column in range(7)]
            quiet = [cell for cell in cells if cell and not has_line(own | cell)]
            if not quiet:
                break
            own, other = other, own | draw.choice(quiet)
        else:
            count -= 1
            yield own, own | other


@needs_compiler
def test_the_solver_agrees_with_a_plain_search_to_the_end():
    outcomes = set()
    for own, taken in (*late_positions(8, 34), *late_positions(12, 39)):
        expected = []
        for column in range(7):
            stone = (taken + (1 << 7 * column)) & ~taken & (63 << 7 * column)
            won = bool(stone) and has_line(own | stone)
            left = 42 - bin(taken | stone).count("1")
            after = 0 if not left else -int(np.sign(games.value(own ^ taken, own | stone, left, -1000, 1000)))
            expected.append(-2 if not stone else 1 if won else after)
        assert values((own, taken)) == expected
        outcomes |= set(expected)
    assert outcomes == {-2, -1, 0, 1}


@needs_compiler
def test_three_in_a_row_are_won_or_blocked():
    own, taken = position([3, 3, 2, 2, 1, 6])  # on both sides of the bottom row a fourth stone wins
    assert values((own, taken))[0] == values((own, taken))[4] == 1
    assert max(values(position([3, 6, 2, 6, 1]))) == -1  # the other has them both


@needs_compiler
def test_a_game_gives_one_position_and_a_player_who_knows_all_makes_no_mistake():
    def knowing(observation):
        boards = observation["observation"]
        found = [
            values((games.bits(board[0]), games.bits(board.sum(0)))) if board.sum() >= 20 else None for board in boards
        ]
        first = observation["action_mask"].long().argmax(-1).tolist()
        return torch.tensor([first[i] if value is None else int(np.argmax(value)) for i, value in enumerate(found)])

    positions = played(knowing, 12, seed=1)
    assert len(positions) == 12 and all(bin(taken).count("1") >= LEAST_STONES for _, taken in positions)
    late = Solved([position for position in positions if bin(position[1]).count("1") >= 20])
    everywhere, differing = judged(late, knowing)
    assert everywhere.hits == everywhere.of == len(late.worth) and differing.hits == differing.of
    worst = torch.where(late.worth > -2, late.worth, 9).argmin(1)
    assert judged(late, lambda observation: worst)[1].hits == 0 < differing.of


def test_a_share_has_wilsons_interval_and_seeds_that_are_missing_are_named():
    assert Share(990, 1000).interval == pytest.approx((0.9817, 0.9946), abs=1e-4)
    row = {"algorithm": "alphazero", "seed": 0, "units": 256, "env_steps": 10_000, "seconds": 60, "simulations": 32}
    row |= {"all": [9, 10], "differing": [1, 2]}
    record = {"rows": [row], "command": "x", "date": "2026-01-01", "hardware": {"cpu": "c", "cores": 2, "system": "s"}}
    text = markdown({**record, "versions": {}, "revision": None})
    assert text.count("| not run | not run |") == 3
    assert "90.0% (59.6% to 98.2%) of 10" in text and "| not met |" in text


@needs_compiler
def test_policies_are_compared_in_the_same_positions():
    positions = [*late_positions(6, 30), position([3, 3, 2, 2, 1, 6, 5, 5, 5, 5])]
    assert [(games.bits(stones[0]), games.bits(stones.sum(0))) for stones in map(board, positions)] == positions
    solved = Solved(positions)
    best, worst = solved.worth.argmax(1), torch.where(solved.worth > -2, solved.worth, 2).argmin(1)
    assert not solved.wrong(best).any()
    differ = solved.worth.gather(1, worst.unsqueeze(1)).squeeze(1) < solved.worth.amax(1)
    assert differ.any() and torch.equal(solved.wrong(worst), differ)
    counts = errors(solved, lambda observation: worst)
    assert [of for _, of in counts] == [1, 0, 0, 6] and sum(wrong for wrong, _ in counts) == int(differ.sum())
