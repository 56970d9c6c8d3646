"""Tests of `palaestra.ops.episode_ends`, and of the table it states in every function of time."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from palaestra.core import ShapeError
from palaestra.ops import VTraceClip, n_step_end, remembered_starts, td_target, valid_starts
from tests.ops.per_step import discounted_returns, gae, lambda_returns, n_step_returns, n_step_targets, vtrace
from tests.ops.trajectories import (
    FIRST,
    GAMMA,
    LAST,
    MID,
    Trajectory,
    columns,
    ignoring_ends,
    lanes,
    random_trajectory,
    startable,
    table,
    termination_as_truncation,
    truncation_as_termination,
)


def off_policy(trajectory: Trajectory) -> Tensor:
    return torch.linspace(-1, 1, trajectory.value[:-1].numel(), dtype=torch.float64).reshape(
        trajectory.value[:-1].shape
    )


def two_step_windows(trajectory: Trajectory) -> Tensor:
    """Two-step targets of every row by the function for replayed windows, padded as at a buffer's write head."""
    reward, discount, value, step_type = (
        torch.cat((x, torch.full_like(x[:1], fill)))
        for x, fill in (
            (trajectory.reward, 0),
            (trajectory.discount, 1),
            (trajectory.value, 0),
            (trajectory.step_type, 0),
        )
    )
    rows = []
    for t in range(len(value) - 2):
        window = n_step_targets(reward[t : t + 3], discount[t : t + 3], step_type[t : t + 3])
        bootstrap = value[t : t + 3].gather(0, window.steps[None]).squeeze(0)
        rows.append(window.reward + window.bootstrap * bootstrap)
    return torch.stack(rows)


FUNCTIONS: dict[str, Callable[[Trajectory], Tensor]] = {
    "gae": lambda x: gae(*x, lambda_=0.8),
    "vtrace target": lambda x: vtrace(*x, off_policy(x), clip=VTraceClip(lambda_=0.8)).target,
    "vtrace advantage": lambda x: vtrace(*x, off_policy(x), clip=VTraceClip(lambda_=0.8)).advantage,
    "lambda_returns": lambda x: lambda_returns(*x, lambda_=0.8),
    "discounted_returns": lambda x: discounted_returns(x.reward, x.discount, x.step_type, x.value),
    "n_step_returns": lambda x: n_step_returns(*x, n=2),
    "n_step_targets": two_step_windows,
}
every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())


def test_valid_starts_follow_the_table():
    """ALF-23, ALF-24, ALF-25, ALF-26: the loss mask is 0 on LAST rows, and on the broken row 7."""
    expected = torch.tensor([1, 1, 0, 1, 1, 0, 1, 0, 1, 1], dtype=torch.bool)
    assert torch.equal(valid_starts(table().step_type).squeeze(-1), expected)


def test_valid_starts_are_those_of_the_sentence():
    step_type = random_trajectory(0, 50, 4).step_type
    expected = columns([[startable(s, t) for t in range(50)] for (s,) in lanes(step_type)]).bool()
    assert torch.equal(valid_starts(step_type), expected)
    assert not torch.equal(step_type[:-1] != LAST, expected)  # the mutant that knows no broken fragments


def test_a_last_row_ends_the_episode_even_if_no_first_row_follows():
    """TS-22: at the write head of a ring the newest row may be LAST and its successor the oldest one, a MID."""
    assert torch.equal(valid_starts(torch.tensor([MID, LAST, MID, MID])), torch.tensor([True, False, True]))
    assert n_step_end(torch.tensor([MID, LAST, MID, MID])[:, None]).tolist() == [1]


def test_a_memory_learns_nothing_behind_a_gap_until_the_next_first_row():
    """A gap is a LAST row that no FIRST follows; one in front of all rows is known by what follows it, too."""
    step_type = torch.tensor(
        [
            [FIRST, MID, LAST, MID],
            [MID, LAST, MID, LAST],
            [LAST, MID, LAST, FIRST],
            [MID, MID, MID, MID],
            [MID, FIRST, MID, LAST],
            [LAST, MID, FIRST, MID],
            [FIRST, MID, MID, MID],
        ]
    )
    expected = [[1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1], [1, 0, 1, 1, 0, 0]]
    assert remembered_starts(step_type).T.int().tolist() == expected
    assert remembered_starts(step_type, 5).T.int().tolist() == [[0] * 5 + row[5:] for row in expected]
    whole = random_trajectory(0, 50, 4).step_type  # without gaps these are the valid starts
    assert torch.equal(remembered_starts(whole), valid_starts(whole))
    assert remembered_starts(whole[:2]).shape == (1, 4)


def test_padding_with_first_rows_makes_no_valid_start():
    assert torch.equal(
        valid_starts(torch.tensor([MID, MID, FIRST, FIRST, FIRST])), torch.tensor([True, False, False, False])
    )


def test_one_step_targets_follow_the_table():
    """ALF-22, ALF-23, ALF-24, ALF-25, ALF-26: values 10, 20, ... are bootstrapped from MID and (LAST, 1) only."""
    target = lambda_returns(*table(), lambda_=0.0).squeeze(-1)
    assert target[0].item() == 1 + GAMMA * 20  # MID follows: bootstrap
    assert target[1].item() == 2  # (LAST, 0) follows: no bootstrap
    assert target[3].item() == 3 + GAMMA * 50
    assert target[4].item() == 4 + GAMMA * 60  # (LAST, 1) follows: bootstrap from its final observation
    assert target[6].item() == 5 + GAMMA * 80  # the broken row is still an outcome of the row before it
    assert target[8].item() == 6 + GAMMA * 100
    assert target[9].item() == 7 + GAMMA * 110  # the end of the unroll is no end of the episode
    for row in (2, 5, 7):  # LAST, LAST, broken: their own value is not learned
        assert target[row].item() == table().value[row].item()


def test_full_returns_follow_the_table():
    """ALF-25, ALF-26: two terminated rewards; two truncated rewards and a bootstrap; what follows counts in neither."""
    trajectory = table()
    returns = discounted_returns(trajectory.reward, trajectory.discount, trajectory.step_type, trajectory.value)
    expected = {0: 1 + GAMMA * 2, 3: 3 + GAMMA * 4 + GAMMA**2 * 60, 6: 5 + GAMMA * 80}
    for row, number in expected.items():
        assert returns[row].item() == pytest.approx(number)
    assert returns[8].item() == pytest.approx(6 + GAMMA * 7 + GAMMA**2 * 110)


@every_function
@pytest.mark.parametrize(
    ("mutant", "wrong", "perhaps"),
    [
        (ignoring_ends, {2, 4, 5, 6, 7}, {3}),
        (truncation_as_termination, {3, 4}, set()),
        (termination_as_truncation, {0, 1}, set()),
    ],
)
def test_a_mutant_that_ignores_episode_ends_is_wrong(function, mutant, wrong, perhaps):
    """ALF-25, ALF-26, TS-22: the rows that an end touches differ, and no others, so these tests see every such mutant.

    Rows 0 and 1 lead to the termination, 3 and 4 to the truncation, 6 to the broken row 7; 2, 5 and 7 are not learned.
    Without step types rows 0 and 1 are still right, by their discount, and row 3 is wrong if it looks beyond two steps.
    """
    difference = (function(table()) - function(mutant(table()))).squeeze(-1).abs() > 1e-9
    rows = set(difference.nonzero().squeeze(-1).tolist())
    assert wrong <= rows <= wrong | perhaps


@every_function
@pytest.mark.parametrize("seed", range(3))
def test_later_rewards_and_values_do_not_move_what_is_before_an_episode_boundary(function, seed):
    """TS-14, TS-22: nothing flows across LAST -> FIRST, nor across a broken fragment."""
    trajectory = random_trajectory(seed, 40, 3)
    base = function(trajectory)
    for lane in range(3):
        for first in (trajectory.step_type[:, lane] == FIRST).nonzero().squeeze(-1).tolist():
            later = torch.zeros_like(trajectory.value)
            later[first:, lane] = 1000.0
            moved = function(trajectory._replace(reward=trajectory.reward + later, value=trajectory.value + later))
            assert torch.equal(moved[:first], base[:first]), f"row {first} of lane {lane} leaks"


@every_function
def test_a_row_of_nan_in_another_lane_changes_nothing(function):
    trajectory = random_trajectory(4, 12, 2)
    poisoned = trajectory.value.clone()
    poisoned[:, 1] = torch.nan
    assert torch.equal(function(trajectory._replace(value=poisoned))[:, 0], function(trajectory)[:, 0])


@pytest.mark.parametrize("name", ["gae", "vtrace advantage"])
def test_advantages_are_exactly_zero_where_a_row_may_not_be_learned_from(name):
    """ALF-25, ALF-26: a loss that forgets its mask still learns nothing from LAST rows and broken fragments."""
    trajectory = random_trajectory(5, 60, 4)
    trajectory.value[trajectory.step_type == LAST] *= 1e6
    invalid = ~valid_starts(trajectory.step_type)
    assert invalid.sum() > 20
    assert FUNCTIONS[name](trajectory)[invalid].abs().max().item() == 0.0


@pytest.mark.parametrize("name", ["vtrace target", "lambda_returns", "discounted_returns", "n_step_returns"])
def test_targets_are_the_value_itself_where_a_row_may_not_be_learned_from(name):
    """ALF-25, ALF-26: the error of such a row is 0."""
    trajectory = random_trajectory(6, 60, 4)
    invalid = ~valid_starts(trajectory.step_type)
    assert torch.equal(FUNCTIONS[name](trajectory)[invalid], trajectory.value[:-1][invalid])


def test_a_discount_of_zero_at_every_end_makes_truncation_a_termination():
    """ALF-28, ALF-29: with time in the observation, a caller may give discount 0 at every end; no other switch."""
    trajectory = truncation_as_termination(table())
    returns = discounted_returns(trajectory.reward, trajectory.discount, trajectory.step_type, trajectory.value)
    assert returns[3].item() == pytest.approx(3 + GAMMA * 4)


def test_time_steps_transitions_and_game_over_give_the_same_targets():
    """PARL-06, TS-22, ALF-23..26: one trajectory, three views.

    A transition (x, a, r, x′, terminated) and PARL's rows, whose game_over describes the current row and so is the done
    of the step before, must lead to the targets of the time steps.
    """
    trajectory = random_trajectory(7, 40, 3, breaks=False)
    value, reward, discount, step_type = trajectory
    valid = valid_starts(step_type)
    from_time_steps = lambda_returns(*trajectory, lambda_=0.0)[valid]
    from_transitions = td_target(value[1:][valid], reward[1:][valid], discount[1:][valid])
    done = step_type[1:] == LAST  # of the action at row t
    game_over = torch.cat((step_type[:1] == LAST, done))  # of row t itself
    assert torch.equal(valid, ~game_over[:-1])
    assert_close(from_transitions, from_time_steps)
    # The mutant that reads game_over as gym's done is off by one row.
    assert not torch.equal(valid, ~game_over[1:])


def test_a_fully_observed_value_is_a_fixed_point_on_a_truncated_infinite_task():
    """ALF-26: reward 1 forever is worth 1 / (1 - gamma), and a time limit does not change that."""
    step_type = torch.tensor([FIRST, MID, LAST, FIRST, MID, LAST])[:, None]
    exact = torch.full((6, 1), 1 / (1 - GAMMA), dtype=torch.float64)
    trajectory = Trajectory(exact, torch.ones_like(exact), torch.full_like(exact, GAMMA), step_type)
    for name in ("lambda_returns", "discounted_returns", "n_step_returns", "n_step_targets"):
        assert_close(FUNCTIONS[name](trajectory)[[0, 1, 3, 4]], exact[:4])
        mutant = FUNCTIONS[name](truncation_as_termination(trajectory))
        assert (mutant[[0, 1, 3, 4]] < exact[:4] - 1).all()


@pytest.mark.parametrize(
    ("rows", "k"),
    [
        ([FIRST, MID, MID, MID], 3),  # no end: n
        ([MID, MID, LAST, FIRST], 2),  # the first LAST
        ([MID, LAST, FIRST, LAST], 1),  # and not a later one
        ([MID, MID, MID, LAST], 3),
        ([MID, MID, FIRST, MID], 1),  # the last row before a FIRST
        ([FIRST, MID, MID, FIRST], 2),
        ([LAST, FIRST, MID, MID], 1),  # no valid start
        ([MID, FIRST, MID, MID], 1),
    ],
)
def test_n_step_end_is_the_first_end_in_the_window(rows, k):
    """TS-22: ends inside the window."""
    assert n_step_end(torch.tensor(rows)[:, None]).tolist() == [k]


def test_n_step_end_of_one_step_is_one():
    assert n_step_end(torch.tensor([[MID, MID, LAST], [MID, LAST, FIRST]])).tolist() == [1, 1, 1]


@pytest.mark.usefixtures("unchecked_shapes")
def test_two_time_steps_are_needed():
    for function in (valid_starts, n_step_end):
        with pytest.raises(ShapeError, match=r"step_type has shape \[1, 3\]; at least two time steps \[T\+1, B\]"):
            function(torch.ones(1, 3, dtype=torch.int32))
