"""Tests of `palaestra.compat.layouts`: one trajectory, four ways to write it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.core import (
    Batch,
    Experiences,
    ShapeError,
    StepType,
    TimeStep,
    Transitions,
    done_of,
    experiences_from_rows,
    game_over_of,
    rows_from_experiences,
    rows_from_transitions,
    transitions_from_rows,
)
from tests.core.nests import assert_same

FIRST, MID, LAST = (int(kind) for kind in StepType)
bounded = settings(max_examples=25, deadline=None, derandomize=True)


def stream(kinds, seed=0, *, nested=False, torch_leaves=False):
    """Rows with odd numbers in them; `kinds` is a list of (step type, discount)."""
    step_type = np.array([kind for kind, _ in kinds], np.int32)
    discount = np.array([d for _, d in kinds], np.float32)
    rng = np.random.default_rng(seed)
    began = step_type == FIRST
    reward = np.where(began, 0, rng.standard_normal(len(kinds))).astype(np.float32)
    action = np.where(began[:, None], 0, rng.integers(0, 9, (len(kinds), 2)))
    observation = rng.standard_normal((len(kinds), 3)).astype(np.float32)
    observation[0, 0] = np.nan
    rows = Batch(
        step_type=step_type,
        reward=reward,
        discount=discount,
        observation={"camera": observation, "n": np.arange(len(kinds))} if nested else observation,
        prev_action=action,
    )
    return TimeStep(**(rows.to_torch() if torch_leaves else rows).__dict__)


def episode(length, end):
    """FIRST, MID ... and an end: "terminated", "truncated" or "broken" (no end at all)."""
    last = {"terminated": [(LAST, 0)], "truncated": [(LAST, 1)], "broken": [(MID, 1)]}[end]
    return [(FIRST, 1), *[(MID, 1)] * (length - 1), *last]


THREE = [*episode(2, "terminated"), *episode(1, "truncated"), *episode(3, "broken")]
SEEDS = st.integers(0, 9)
EPISODES = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["terminated", "truncated"])), min_size=1, max_size=5)


def as_batch(rows):
    fields = ("step_type", "reward", "discount", "observation", "prev_action")
    return Batch({name: getattr(rows, name) for name in fields})


def test_the_reward_moves_from_the_step_it_arrives_with_to_its_action():
    """ALF-15, ALF-17, PARL-05: written out for one short episode."""
    rows = TimeStep(
        step_type=np.array([FIRST, MID, LAST], np.int32),
        reward=np.array([0, 10, 20], np.float32),
        discount=np.array([1, 1, 0], np.float32),
        observation=np.array([100, 101, 102]),
        prev_action=np.array([0, 7, 8]),
    )
    transitions = transitions_from_rows(rows)
    assert transitions.observation.tolist() == [100, 101]
    assert transitions.action.tolist() == [7, 8]
    assert transitions.reward.tolist() == [10, 20]
    assert transitions.terminated.tolist() == [False, True]
    assert transitions.truncated.tolist() == [False, False]
    assert transitions.next_observation.tolist() == [101, 102]
    experiences = experiences_from_rows(rows)
    assert experiences.inputs.tolist() == [100, 101, 102]
    assert experiences.actions.tolist() == [7, 8, 0]
    assert experiences.rewards.tolist() == [10, 20, 0]
    assert experiences.game_over.tolist() == [0, 0, 1]


@pytest.mark.parametrize("kind", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_game_over_speaks_of_the_current_step_and_done_of_the_action(kind):
    """PARL-06: game_over[t] = done[t - 1], and 0 at FIRST."""
    step_type = kind([kind_ for kind_, _ in THREE])
    done, game_over = done_of(step_type).tolist(), game_over_of(step_type).tolist()
    assert done == [False, True, False, True, False, False, False, False]
    assert game_over == [0, 0, 1, 0, 1, 0, 0, 0, 0]
    assert all(isinstance(x, int) for x in game_over)
    assert game_over[1:] == [int(x) for x in done]
    assert all(over == 0 for over, kind_ in zip(game_over, step_type.tolist(), strict=True) if kind_ == FIRST)


@bounded
@given(episodes=EPISODES, tail=st.integers(0, 3), nested=st.booleans(), torch_leaves=st.booleans(), seed=SEEDS)
def test_every_view_leads_back_to_the_same_bits(episodes, tail, nested, torch_leaves, seed):
    """PARL-05, PARL-06: numpy and torch, plain and nested observations, with an unfinished episode at the end."""
    kinds = [row for length, end in episodes for row in episode(length, end)]
    rows = stream(kinds + (episode(tail, "broken") if tail else []), seed, nested=nested, torch_leaves=torch_leaves)
    transitions, experiences = transitions_from_rows(rows), experiences_from_rows(rows)
    assert_same(as_batch(rows_from_transitions(transitions)), as_batch(rows))
    assert_same(as_batch(rows_from_experiences(experiences)), as_batch(rows))
    assert_same(transitions_from_rows(rows_from_experiences(experiences)), transitions)
    assert isinstance(transitions, Transitions)
    assert isinstance(experiences, Experiences)


def test_a_broken_stream_is_found_where_observations_do_not_connect():
    """PARL-05: a data set that does not mark its time limits gives fragments, not one endless episode."""
    kinds = [*episode(2, "broken"), *episode(3, "terminated"), *episode(1, "broken")]
    rows = stream(kinds)
    transitions = transitions_from_rows(rows)
    assert len(transitions) == 6
    assert_same(as_batch(rows_from_transitions(transitions)), as_batch(rows))
    mutant = transitions.replace(next_observation=np.roll(transitions.observation, -1, axis=0))
    assert (rows_from_transitions(mutant).step_type == FIRST).sum() == 2


def test_done_alone_turns_every_end_into_a_termination():
    """ALF-28, ALF-40: what the old four-tuple cannot say is lost, so converters ask for `truncated`."""
    rows = stream([*episode(2, "truncated"), *episode(2, "terminated")])
    transitions = transitions_from_rows(rows)
    done = done_of(rows.step_type)[[0, 1, 3, 4]]
    assert (transitions.terminated | transitions.truncated).tolist() == done.tolist()
    known = transitions.replace(terminated=done & ~transitions.truncated)
    assert_same(as_batch(rows_from_transitions(known)), as_batch(rows))
    unknown = transitions.replace(terminated=done, truncated=done & False)
    assert rows_from_transitions(unknown).discount.tolist() == [1, 1, 0, 1, 1, 0]
    assert rows.discount.tolist() == [1, 1, 1, 1, 1, 0]


def test_game_over_alone_turns_every_end_into_a_termination():
    """PARL-06: which is why `Experiences` carries the discount beside PARL's five fields."""
    experiences = experiences_from_rows(stream([*episode(1, "truncated"), *episode(1, "terminated")]))
    names = ["inputs", "states", "actions", "rewards", "game_over", "discount"]
    assert list(experiences.keys()) == names
    assert experiences.discount.tolist() == [1, 1, 1, 0]


def test_vector_rewards_keep_their_shape():
    rows = stream(episode(3, "terminated"))
    rows = rows._replace(reward=np.stack([rows.reward, 2 * rows.reward], -1))
    transitions = transitions_from_rows(rows)
    assert transitions.reward.shape == (3, 2)
    assert_same(as_batch(rows_from_transitions(transitions)), as_batch(rows))


def test_rows_need_a_transition():
    transitions = transitions_from_rows(stream(episode(1, "terminated")))
    with pytest.raises(ShapeError, match="no transitions were given"):
        rows_from_transitions(transitions[:0])
    flags = transitions.replace(terminated=np.array([1]), truncated=np.array([0]))
    assert rows_from_transitions(flags).discount.tolist() == [1, 0]
