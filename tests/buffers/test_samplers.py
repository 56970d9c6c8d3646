"""Tests of the samplers of `palaestra.buffers` other than uniform and prioritized, and of a user's own."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.buffers import (
    BalancedSampler,
    DeviceMemory,
    EpisodeSampler,
    PrioritizedSampler,
    Sampler,
    WholeSampler,
    sampler_of,
)
from palaestra.buffers.reader import StreamReader
from palaestra.core import Batch, ConfigError, Offline, Prioritized, ShapeError, TensorSpec
from palaestra.ops import n_step_targets
from palaestra.testing.buffers import FIRST, LAST, MID, World, check_unroll, check_windows
from tests.buffers.model import filled, generator, make_buffer, replay, step

bounded = settings(max_examples=40, deadline=None, derandomize=True)
SAMPLERS = {
    "whole": WholeSampler,
    "episodes": EpisodeSampler,
    "balanced": BalancedSampler,
    "prioritized": PrioritizedSampler,
}


def sampled(sampler, capacity=80, lanes=2, steps=70, storage=None, **named):
    buffer = make_buffer(capacity, lanes, sampler=sampler, storage=storage)
    world = World(lanes, capacity // lanes, **named)
    world.open(buffer)
    for _ in range(steps):
        world.append(buffer)
    return buffer, world


@pytest.mark.slow
@bounded
@given(
    name=st.sampled_from(sorted(SAMPLERS)),
    lanes=st.integers(1, 3),
    rows=st.integers(4, 40),
    steps=st.integers(1, 90),
    seed=st.integers(0, 99),
    n_step=st.integers(1, 3),
    on_device=st.booleans(),
)
def test_what_goes_in_comes_out_of_every_sampler(name, lanes, rows, steps, seed, n_step, on_device):
    """TS-08, TS-22, MARO-43: episodes shorter and longer than the ring, through wrap-around, with broken fragments."""
    storage = DeviceMemory("cpu") if on_device else None
    buffer, world = sampled(SAMPLERS[name](), rows * lanes, lanes, 0, storage, seed=seed, breaks=True)
    for i in range(steps):
        world.append(buffer, [i % lanes] if i % 5 == 4 else None)
        if i % 7 == 0:
            plans = (replay(mini_batch_size=9, n_step=n_step), replay(mini_batch_size=9, mini_batch_length=n_step + 1))
            for plan, length in zip(plans, (n_step, n_step + 1), strict=True):
                try:
                    drawn = buffer.draw(plan, generator(seed))
                except ShapeError:
                    assert name == "episodes" or not any(lane.starts(length) for lane in world.lanes)
                    continue
                if plan.mini_batch_length == 1:
                    check_windows(drawn, world, n_step)
                else:
                    starts = [world.find(serial) for serial in drawn.observation[0].tolist()]
                    assert all(start in lane.starts(length) for lane, start in starts)
                    check_unroll(drawn, starts, one_episode=True)


def test_a_pass_visits_every_row_once_and_the_next_in_another_order():
    """ALF-08: epochs over data that stay; a draw may lie across the end of a pass."""
    buffer, _ = sampled(WholeSampler())
    starts = buffer.starts(1)
    plan = Offline(mini_batch_size=7)
    drawn = np.concatenate([buffer.draw(plan, generator(i)).index for i in range(2 * len(starts) // 7 + 1)])
    first, second = drawn[: len(starts)], drawn[len(starts) : 2 * len(starts)]
    assert sorted(first) == sorted(second) == sorted(starts)
    assert first.tolist() != second.tolist() != sorted(starts)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("n_step", [2, 3, 9])
def test_ts_22_the_last_rows_of_an_ended_episode_are_drawn_from_fixed_data(name, n_step):
    """TS-22: no n rows will ever follow them; while rows are written they wait. One episode of 4 steps a lane."""
    buffer = make_buffer(60, 2, sampler=SAMPLERS[name]())
    buffer.open(step([FIRST, FIRST], torch.tensor([0, 10])))
    for t, kind in enumerate([MID, MID, MID, LAST], start=1):
        reward = torch.tensor([float(t), 10.0 + t])
        buffer.append(torch.tensor([0, 0]), step([kind, kind], torch.tensor([t, 10 + t]), reward))
    drawn = buffer.draw(Offline(mini_batch_size=200, n_step=n_step), generator())
    assert set(drawn.observation.tolist()) == {0, 1, 2, 3, 10, 11, 12, 13}
    targets = n_step_targets(drawn.reward, drawn.discount, drawn.step_type, gamma=1.0)
    for start, total, following in zip(drawn.observation, targets.reward, drawn.next_observation, strict=True):
        end = min(int(start) % 10 + n_step, 4)
        assert int(following) == int(start) // 10 * 10 + end
        assert total == sum(int(start) // 10 * 10 + t for t in range(int(start) % 10 + 1, end + 1))
    sequences = buffer.draw(Offline(mini_batch_size=200, mini_batch_length=n_step), generator())
    assert set(sequences.observation[0].tolist()) == {0, 1, 2, 3, 10, 11, 12, 13}
    assert (sequences.valid.sum(0) == (4 - sequences.observation[0] % 10).clamp(max=n_step)).all()
    if n_step < 9 and name != "episodes":
        online = buffer.draw(replay(mini_batch_size=200, n_step=n_step), generator())
        assert set((online.observation % 10).tolist()) == set(range(4 - n_step + 1))


def test_priorities_of_a_plan_need_the_sampler_of_the_plan():
    """F27: a buffer that was loaded, or whose sampler was forgotten, would draw all rows alike without a word."""
    plan, (buffer, _) = replay(mini_batch_size=2, prioritized=Prioritized()), sampled(None)
    with pytest.raises(ConfigError, match=r"draws all rows alike; .* buffer\.sampler = sampler_of\(plan\)"):
        buffer.draw(plan, generator())
    buffer.sampler = sampler_of(plan)
    assert buffer.draw(plan, generator()).weight is not None


def test_with_a_stride_every_row_is_in_one_sequence():
    """ALF-08: shuffled, with time order inside."""
    buffer, world = sampled(WholeSampler(stride=5), 80, 2, 36)
    count = sum(1 for age in buffer.reader.ages(buffer.starts(5)).tolist() if age % 5 == 0)
    drawn = buffer.draw(Offline(mini_batch_size=count, mini_batch_length=5), generator())
    serials = drawn.observation[:-1][drawn.valid > 0].tolist()
    assert len(serials) == len(set(serials))
    inside = drawn.observation[:-1].unique()
    assert 5 * (count - 2) < len(inside) <= 5 * count  # the last sequence of a lane may be shorter
    check_unroll(drawn, [world.find(serial) for serial in drawn.observation[0].tolist()], one_episode=True)
    with pytest.raises(ConfigError, match="stride=0"):
        WholeSampler(stride=0)


def test_a_stride_that_meets_no_row_is_refused():
    """One-step episodes: every second row is an end, which nothing can be learned from."""
    buffer = make_buffer(8, 1, sampler=WholeSampler(2))
    buffer.open(step([FIRST]))
    for t in range(9):
        buffer.append(torch.tensor([0]), step([LAST if t % 2 == 0 else FIRST]))
    with pytest.raises(ShapeError, match="no row is a multiple of stride=2 rows from the oldest"):
        buffer.draw(replay(mini_batch_size=2), generator())


def test_a_pass_begins_anew_when_rows_are_written_and_is_saved():
    """F25."""
    buffer, world = sampled(WholeSampler(), 400, 2, 40)
    buffer.draw(replay(mini_batch_size=20), generator())
    twin = make_buffer(400, 2, sampler=WholeSampler())
    twin.load_state_tensors(buffer.state_tensors())
    assert torch.equal(*(b.draw(replay(mini_batch_size=50), generator(1)).index for b in (buffer, twin)))
    world.append(buffer)
    new = int(buffer.starts(1)[-1])
    assert new in buffer.draw(replay(mini_batch_size=len(buffer.starts(1))), generator()).index


def test_only_complete_episodes_are_drawn():
    """TS-24: from FIRST to LAST, neither running nor partly overwritten."""
    buffer, world = sampled(EpisodeSampler(), 60, 2, 70, breaks=True)
    expected = set()
    for lane in world.lanes:
        episode = None
        for row in lane.stream:
            episode = [row.serial] if row.kind == 0 else episode and [*episode, row.serial]
            if row.kind == LAST and episode:
                expected |= set(episode[:-1])
    drawn = buffer.draw(replay(mini_batch_size=2000), generator())
    assert set(drawn.observation.tolist()) == expected
    with pytest.raises(ShapeError, match="no episode lies in the buffer from its first to its last step"):
        sampled(EpisodeSampler(), 60, 2, 1)[0].draw(replay(), generator())


def test_a_sequence_that_begins_at_the_end_of_an_episode_needs_the_next_one_to_be_complete():
    """As may be where only some rows have a hidden state."""
    buffer = make_buffer(60, 1, state_spec={"h": TensorSpec(())}, state_period=10, sampler=EpisodeSampler())
    buffer.open(step([FIRST]))
    for t in range(1, 17):
        kind = {10: LAST, 11: FIRST}.get(t, MID)
        buffer.append(torch.tensor([0]), step([kind]), state=Batch(h=torch.zeros(1)))
    assert buffer.starts(4).tolist() == [0, 10]
    drawn = buffer.draw(replay(mini_batch_size=50, mini_batch_length=4), generator())
    assert set(drawn.index.tolist()) == {0}


def test_ends_come_as_often_as_they_are_asked_for():
    buffer, _ = sampled(BalancedSampler(0.75))
    drawn = buffer.draw(replay(mini_batch_size=4000), generator())
    ends = drawn.step_type[1] == LAST
    assert ends.float().mean() == pytest.approx(0.75, abs=0.03)
    for group, chosen in (("ends", ends), ("others", ~ends)):
        starts = buffer.starts(1)
        all_of_it = starts[buffer.reader.ends_with_next(starts) == (group == "ends")]
        assert set(drawn.index[chosen].tolist()) == set(all_of_it.tolist())
    with pytest.raises(ConfigError, match=r"share=1.5.*\[0, 1\]"):
        BalancedSampler(1.5)


def test_a_draw_that_balances_takes_two_numbers_for_each_row():
    """What else is drawn from the same generator depends on it."""
    buffer, _ = sampled(BalancedSampler())
    drawn, beside = generator(), generator()
    buffer.draw(replay(mini_batch_size=7), drawn)
    torch.rand(2, 7, generator=beside, dtype=torch.float64)
    assert torch.equal(drawn.get_state(), beside.get_state())


def test_rows_to_spare_are_drawn_so_that_few_draws_look_twice(monkeypatch):
    """A quarter more than are asked for, and eight: about every fifth row of this world cannot be learned from."""
    buffer, _ = filled(4000, 2, 1500)
    looked, may_begin = [], StreamReader.may_begin
    monkeypatch.setattr(StreamReader, "may_begin", lambda self, *at: looked.append(len(at[0])) or may_begin(self, *at))
    assert len(buffer.draw(replay(mini_batch_size=1000), generator()).index) == 1000
    assert looked[0] == 1258
    assert sum(looked) < 1300


def test_a_sampler_of_your_own_is_ten_lines():
    """MARO-43: registered by handing it over; its rows are drawn with everything that a draw does."""

    class Newest(Sampler):
        """The rows that were written last."""

        def starts(self, buffer, count, length, generator):
            newest_first = np.argsort(-buffer.field("observation")[buffer.starts(length)].numpy())
            return buffer.starts(length)[newest_first[:count]]

    buffer, world = sampled(Newest())
    drawn = buffer.draw(replay(mini_batch_size=5, n_step=2), generator())
    check_windows(drawn, world, 2)
    possible = sorted((lane.stream[i].serial for lane in world.lanes for i in lane.starts(2)), reverse=True)
    assert drawn.observation.tolist() == possible[:5]
    buffer.write_back(drawn.index, torch.zeros(5))
    buffer.set_progress(0.5)


def test_drawing_does_not_change_what_is_stored():
    for name, left in itertools.product(sorted(SAMPLERS), (False, True)):
        buffer, world = sampled(SAMPLERS[name]())
        plan = replay(n_step=2) if left else replay(mini_batch_length=2)
        drawn = buffer.draw(plan, generator())
        for leaf in drawn.values():
            if isinstance(leaf, torch.Tensor):
                leaf.zero_()
        again = buffer.newest(30)
        check_unroll(again, [(lane, len(lane.rows) - 30) for lane in world.lanes])


def test_priorities_are_settings_of_the_plan():
    """MARO-43: a plan's plain values become the sampler."""
    buffer, _ = filled(40, 2, 10)
    assert "weight" not in buffer.draw(replay(), generator())
    assert replay(prioritized=Prioritized(alpha=0.3)).prioritized.alpha == 0.3
