"""Tests of `palaestra.rollout.episodes`."""

import pickle
import sys
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.core import Batch, TimeStep, join_state, split_state
from palaestra.envs.contract.rows import numeric_infos
from palaestra.rollout import Episode, EpisodeTracker

FIRST, MID, LAST = 0, 1, 2
NAN = float("nan")


def tracker_after(
    step_types: list[list[int]], rewards: list[list[float]], infos: list[Any] | None = None, flush_every: int = 1000
) -> list[Episode]:
    """The episodes of lanes given as lists of rows, with `finished` called every so many rows."""
    tracker = EpisodeTracker(len(step_types[0]))
    episodes = []
    for number, (step_type, reward) in enumerate(zip(step_types, rewards, strict=True), start=1):
        info = Batch.of({k: torch.tensor(v) for k, v in infos[number - 1].items()}) if infos else ()
        tracker.add(TimeStep(torch.tensor(step_type), torch.tensor(reward), env_info=info))
        if number % flush_every == 0:
            episodes += tracker.finished()
    return episodes + tracker.finished()


STEP_TYPES = [[FIRST, FIRST], [MID, LAST], [LAST, FIRST], [FIRST, MID], [LAST, LAST]]
REWARDS = [[0.0, 0.0], [1.0, 5.0], [2.0, 0.0], [0.0, 1.0], [4.0, 1.0]]


@pytest.mark.parametrize("flush_every", [1, 2, 3, 1000])
def test_returns_and_lengths_are_sums_over_an_episode(flush_every):
    """TS-26: in the order in which episodes ended, however often one looks."""
    episodes = tracker_after(STEP_TYPES, REWARDS, flush_every=flush_every)
    found = [(e.episode_return, e.length, e.env_id) for e in episodes]
    assert found == [(5.0, 1, 1), (3.0, 2, 0), (4.0, 1, 0), (2.0, 2, 1)]


def test_a_reset_is_not_an_env_step():
    (episode,) = tracker_after([[FIRST], [MID], [LAST]], [[0.0], [0.0], [0.0]])
    assert episode.length == 2


def test_a_reward_of_a_first_row_came_of_no_action():
    (episode,) = tracker_after([[FIRST], [MID], [LAST]], [[5.0], [1.0], [1.0]])
    assert episode.episode_return == 2.0


def test_a_vector_reward_is_added_over_its_elements():
    (episode,) = tracker_after([[FIRST], [LAST]], [[[0.0, 0.0]], [[1.0, 3.0]]])
    assert episode.episode_return == 4.0


@pytest.mark.parametrize("flush_every", [1, 1000])
def test_what_a_broken_fragment_had_gathered_does_not_count(flush_every):
    """DESIGN.md section 4: MID followed by FIRST is a crashed environment; its episode never ended."""
    step_types, rewards = [[FIRST], [MID], [FIRST], [LAST]], [[0.0], [100.0], [0.0], [1.0]]
    infos = [{"x": [0.0]}, {"x": [100.0]}, {"x": [0.0]}, {"x": [7.0]}]
    (episode,) = tracker_after(step_types, rewards, infos, flush_every)
    assert (episode.episode_return, episode.length) == (1.0, 1)
    assert episode.info["x"] == 7.0


@pytest.mark.parametrize("flush_every", [1, 2, 1000])
def test_numeric_infos_are_summed_and_have_a_mean_and_a_maximum(flush_every):
    """ALF-57: `x` is the episode's sum, `x@mean` the mean, `x@max` the maximum; not those of resets, or not finite."""
    step_types = [[FIRST, FIRST], [MID, MID], [MID, LAST], [MID, FIRST], [LAST, MID], [FIRST, LAST]]
    infos = [
        {"speed": [100.0, 100.0]},
        {"speed": [2.0, 30.0]},
        {"speed": [NAN, 10.0]},
        {"speed": [0.0, 100.0]},
        {"speed": [4.0, float("inf")]},
        {"speed": [100.0, 3.0]},
    ]
    episodes = tracker_after(step_types, [[0.0, 0.0]] * 6, infos, flush_every)
    assert [e.info for e in episodes] == [
        {"speed": 40.0, "speed@mean": 20.0, "speed@max": 30.0},
        {"speed": 6.0, "speed@mean": 2.0, "speed@max": 4.0},
        {"speed": 3.0, "speed@mean": 3.0, "speed@max": 3.0},
    ]


def test_an_info_that_appears_later_is_taken_from_then_on():
    infos = [{}, {"late": [4.0]}, {"late": [2.0], "other": [1.0]}]
    (episode,) = tracker_after([[FIRST], [MID], [LAST]], [[0.0], [0.0], [0.0]], infos)
    assert episode.info["late"] == 6.0
    assert episode.info["other"] == 1.0


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_tracker_goes_on_from_a_saved_state(cut):
    """F25: running sums, and rows that nobody has looked at yet."""
    rows = [
        TimeStep(torch.tensor(s), torch.tensor(r), env_info=Batch.of({"x": torch.tensor(r)}))
        for s, r in zip(STEP_TYPES, REWARDS, strict=True)
    ]
    whole, before, after = EpisodeTracker(2), EpisodeTracker(2), EpisodeTracker(2)
    for row in rows:
        whole.add(row)
    for number, row in enumerate(rows[:cut]):
        before.add(row)
        if number == 1:
            found = before.finished()
    found = found if cut > 1 else []
    after.load_state(join_state(*split_state(before.state())))
    for row in rows[cut:]:
        after.add(row)
    assert found + after.finished() == whole.finished()


def test_episodes_that_were_found_when_an_unroll_began_wait_for_its_end(monkeypatch):
    """F25: as on a GPU, which learns from the rows until then; a signal may cut the unroll, and the run goes on."""
    before, after = EpisodeTracker(2), EpisodeTracker(2)
    monkeypatch.setattr("palaestra.rollout.episodes._MANY_ROWS", len(STEP_TYPES))
    for tracker in (before, after):
        tracker.extend(torch.tensor(REWARDS), torch.tensor(STEP_TYPES))
    expected = after.finished()
    monkeypatch.setattr(before, "_arrived", "then")
    assert before.reported() == []
    monkeypatch.setattr(before, "finished", before._finished)
    before.begin()
    monkeypatch.undo()
    after.load_state(join_state(*split_state(before.state())))
    assert after.reported() == expected and expected
    assert after.finished() == []


def test_an_episode_without_end_takes_no_more_and_more_memory():
    """F31: its rows are added up as they come, with what its environment reports."""
    tracker, sizes = EpisodeTracker(2), []
    for number in range(4096):
        step_type = torch.full((2,), MID if number else FIRST, dtype=torch.int32)
        tracker.add(TimeStep(step_type, torch.ones(2), env_info=Batch.of({"x": torch.ones(2)})))
        assert tracker.reported() == []
        if number in (63, 4095):
            sizes.append(len(pickle.dumps(tracker.state())))
    assert sizes[1] < 1.1 * sizes[0]


def test_an_entry_that_names_its_own_summary_has_only_that_one():
    """ALF-57: `@step` and `@mean` are the mean, `@max` the maximum."""
    infos = [
        {},
        {"a@step": [9.0], "b@max": [1.0], "c@mean": [4.0]},
        {"a@step": [1.0], "b@max": [7.0], "c@mean": [NAN]},
    ]
    (episode,) = tracker_after([[FIRST], [MID], [LAST]], [[0.0], [0.0], [0.0]], infos)
    assert episode.info == {"a@step": 5.0, "b@max": 7.0, "c@mean": 4.0}


@pytest.mark.parametrize("flush_every", [1, 2, 3, 1000])
def test_discounted_returns_count_from_each_episodes_own_first_step(flush_every):
    """Gamma to the number of env steps before; an episode may go on over several looks."""
    tracker, episodes = EpisodeTracker(2, gamma=0.5), []
    for number, (kinds, rewards) in enumerate(zip(STEP_TYPES, REWARDS, strict=True), start=1):
        tracker.add(TimeStep(torch.tensor(kinds), torch.tensor(rewards)))
        if number % flush_every == 0:
            episodes += tracker.finished()
    episodes += tracker.finished()
    assert [e.discounted_return for e in episodes] == [5.0, 1.0 + 0.5 * 2.0, 4.0, 1.0 + 0.5 * 1.0]


@pytest.mark.parametrize("flush_every", [1, 2, 1000])
def test_rows_of_some_environments_leave_the_others_where_they_are(flush_every):
    """TS-24: first-n-ready environments report in any order; each lane's episode is its own."""
    rows = [
        ([0, 1], [FIRST, FIRST], [0.0, 0.0]),
        ([1], [MID], [1.0]),
        ([1], [LAST], [2.0]),
        ([0], [MID], [10.0]),
        ([1], [FIRST], [0.0]),
        ([0], [FIRST], [0.0]),  # broken off
        ([0, 1], [LAST, LAST], [5.0, 7.0]),
    ]
    tracker, episodes = EpisodeTracker(2), []
    for number, (lanes, kinds, rewards) in enumerate(rows, start=1):
        info = Batch.of({"x": torch.tensor(rewards)})
        tracker.add(TimeStep(torch.tensor(kinds), torch.tensor(rewards), env_info=info), np.array(lanes))
        if number % flush_every == 0:
            episodes += tracker.finished()
    episodes += tracker.finished()
    found = sorted((e.env_id, e.episode_return, e.length, e.info["x"]) for e in episodes)
    assert found == [(0, 5.0, 1, 5.0), (1, 3.0, 2, 3.0), (1, 7.0, 1, 7.0)]


def test_an_abandoned_episode_counts_for_nothing_in_later_ones():
    """And those that had ended before are reported, also after a checkpoint."""
    tracker, again = EpisodeTracker(1), EpisodeTracker(1)
    for step_type, reward in ([FIRST, 0.0], [MID, 5.0], [LAST, 7.0], [FIRST, 0.0], [MID, 9.0]):
        tracker.add(TimeStep(torch.tensor([step_type]), torch.tensor([reward])))
    tracker.abandon()
    again.load_state(join_state(*split_state(tracker.state())))
    for step_type, reward in ([FIRST, 0.0], [LAST, 1.0]):
        again.add(TimeStep(torch.tensor([step_type]), torch.tensor([reward])))
    assert [(episode.episode_return, episode.length) for episode in again.finished()] == [(12.0, 2), (1.0, 1)]


def test_what_is_no_number_is_left_out_of_infos():
    """A span of time is one of NumPy's numbers, and ended runs."""
    info = {"elapsed": np.timedelta64(3, "s"), "phase": np.complex64(1j), "cost": np.float32(0.5), "won": np.True_}
    assert numeric_infos([info]) == {0: {"cost": 0.5, "won": 1.0}}


def test_whole_numbers_that_no_float_can_hold_are_the_largest_ones():
    found = numeric_infos([{"score": 10**400, "cost": -(10**400), "lives": 3}])
    assert found == {0: {"score": sys.float_info.max, "cost": -sys.float_info.max, "lives": 3.0}}
