"""Tests of `palaestra.buffers.PrioritizedSampler` and `palaestra.buffers.SumTree`."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.buffers import PrioritizedSampler, SumTree
from palaestra.core import CheckpointError, ConfigError, Linear, NonFiniteError, Prioritized, ShapeError
from palaestra.testing.buffers import FIRST, MID, World, check_windows
from tests.buffers.model import filled, generator, make_buffer, replay, step

bounded = settings(max_examples=60, deadline=None, derandomize=True)


# -- the tree


@bounded
@given(size=st.integers(1, 5000) | st.integers(32_769, 70_000), seed=st.integers(0, 99), writes=st.integers(1, 5))
def test_a_tree_draws_what_a_cumulative_sum_would(size, seed, writes):
    """TS-11: whatever was set, and however often: the n-th part of the total lies in the same leaf."""
    rng = np.random.default_rng(seed)
    tree, leaves = SumTree(size), np.zeros(size)
    for _ in range(writes):
        index = rng.integers(0, size, rng.integers(1, 60))
        value = rng.random(len(index), np.float32) * (rng.random(len(index)) > 0.3)
        tree.set(index, value)
        leaves[index] = value
    assert np.array_equal(tree.leaves, leaves)
    assert tree.total == pytest.approx(leaves.sum())
    if not leaves.any():
        return
    uniform = rng.random(300)
    index, drawn = tree.draw(uniform)
    expected = np.cumsum(leaves).searchsorted(uniform * leaves.sum(), "right")
    assert (index == expected).mean() > 0.99  # rounding may move a draw that falls on an edge
    assert (leaves[index] > 0).all()
    assert np.array_equal(drawn, leaves[index])


def test_a_tree_of_one_leaf_and_of_extreme_sizes_never_draws_an_empty_leaf():
    tree = SumTree(40_000)
    tree.set(np.array([3, 39_999, 20_000]), np.array([1e30, 1e-30, 1e24]))
    uniform = np.array([0.0, np.nextafter(1.0, 0), 0.5, 1 - 1e-16])
    index, size = tree.draw(uniform)
    assert set(index.tolist()) <= {3, 20_000, 39_999}
    assert size.all()


def test_single_precision_favours_no_leaf_of_a_million():
    """TS-11: every place of a block, and every block of a larger one, is drawn as often as its size says."""
    tree, rng = SumTree(1_000_000), np.random.default_rng(0)
    size = rng.random(1_000_000, np.float32)
    tree.fill(size)
    index, _ = tree.draw(rng.random(400_000))
    for width in (1, 32, 1024):
        times = np.bincount(index // width % 32)
        expected = np.bincount(np.arange(1_000_000) // width % 32, size) / size.sum() * len(index)
        assert ((times - expected) ** 2 / expected).sum() < 31 + 5 * np.sqrt(2 * 31)


def test_a_tree_refuses_the_state_of_another():
    with pytest.raises(CheckpointError, match="the saved priorities are 80 bytes, but here are 160"):
        SumTree(20).load_state(SumTree(10).state())


# -- the sampler


def prioritized(capacity=60, lanes=2, steps=44, *, settings=None, **named):
    """A filled buffer that draws by priority, and its model."""
    buffer = make_buffer(capacity, lanes, sampler=PrioritizedSampler(settings or Prioritized(beta=1.0)))
    world = World(lanes, capacity // lanes, **named)
    world.open(buffer)
    for _ in range(steps):
        world.append(buffer)
    return buffer, world


def allowed(world, length=1):
    """Serial numbers of all rows that may be drawn."""
    return {lane.stream[i].serial for lane in world.lanes for i in lane.starts(length)}


@pytest.mark.parametrize("n_step", [1, 3])
def test_new_rows_are_drawn_equally_often(n_step):
    """TS-11, TS-22: none has a priority yet; LAST rows, broken fragments and rows at the write head never come."""
    buffer, world = prioritized(breaks=True)
    drawn = buffer.draw(replay(mini_batch_size=6000, n_step=n_step), generator())
    check_windows(drawn[:50], world, n_step)
    serials, times = np.unique(drawn.observation.numpy(), return_counts=True)
    assert set(serials.tolist()) == allowed(world, n_step)
    expected = 6000 / len(serials)
    assert ((times - expected) ** 2 / expected).sum() < len(serials) + 5 * np.sqrt(2 * len(serials))
    assert torch.equal(drawn.weight, torch.ones(6000))


def test_a_single_number_that_rounding_leads_astray_still_draws_a_leaf():
    """Its rest becomes the whole sum in single precision, and no other number of the draw has a leaf."""
    tree = SumTree(2048)
    tree.set(np.array([5]), 1.0)
    index, size = tree.draw(np.array([1 - 2**-30]))
    assert index.tolist() == [5]
    assert size.tolist() == [1.0]


def test_a_number_that_rounding_leads_behind_the_last_leaf_still_draws_one():
    """The last block is filled up with places that are no leaves."""
    tree = SumTree(100_001)
    tree.fill(np.ones(100_001))
    index, size = tree.draw(np.array([0.5, 1 - 2.0**-32]))
    assert index.max() <= 100_000
    assert size.tolist() == [1.0, 1.0]


@pytest.mark.slow
def test_rows_are_drawn_in_proportion_to_the_power_of_their_priority():
    """TS-11: Schaul et al., equation (1); weights undo it, up to the largest: (N P)^-beta / max."""
    settings = Prioritized(alpha=0.5, beta=0.7)
    buffer, _ = prioritized(20, 1, 12, settings=settings)
    index = buffer.starts(1)
    priority = np.arange(1.0, len(index) + 1)
    buffer.draw(replay(), generator())
    buffer.write_back(torch.from_numpy(index), torch.from_numpy(priority))
    drawn = buffer.draw(replay(mini_batch_size=40_000), generator())
    share = np.array([(drawn.index.numpy() == i).mean() for i in index])
    expected = priority**0.5 / (priority**0.5).sum()
    assert share == pytest.approx(expected, abs=4 * np.sqrt(0.25 / 40_000))
    probability = dict(zip(index.tolist(), expected, strict=True))
    weight = np.array([(len(index) * probability[i]) ** -0.7 for i in drawn.index.tolist()])
    assert drawn.weight.numpy() == pytest.approx(weight / weight.max(), rel=1e-3)
    assert drawn.weight.dtype == torch.float32


def test_high_powers_neither_overflow_nor_leave_rows_out():
    """In single precision 10^8 to the power of 5 is infinite, and 10^-6 to that of 9 is 0."""
    for alpha, priority, expected in ((5.0, [1.0, 1e8, 1.0, 1.0], [1]), (9.0, [0.0] * 4, [0, 1, 2, 3])):
        buffer, _ = prioritized(20, 1, 12, settings=Prioritized(alpha=alpha))
        index = buffer.starts(1)[:4]
        buffer.draw(replay(), generator())
        buffer.write_back(torch.from_numpy(buffer.starts(1)), torch.zeros(len(buffer.starts(1))))
        buffer.write_back(torch.from_numpy(index), torch.tensor(priority))
        drawn = buffer.draw(replay(mini_batch_size=2000), generator())
        assert {index[place] for place in expected} <= set(drawn.index.tolist())
        assert drawn.weight.isfinite().all()
        if alpha == 5:
            assert set(drawn.index.tolist()) == {index[1]}


def test_new_rows_have_the_highest_priority_seen_so_far():
    """TS-11: Schaul et al., algorithm 1 line 6."""
    buffer, world = prioritized(200, 2, 10)
    old = torch.from_numpy(buffer.starts(1))
    buffer.draw(replay(), generator())
    buffer.write_back(old, torch.full((len(old),), 1e-4))
    buffer.write_back(old[:1], torch.tensor([9.0]))
    world.append(buffer)
    new = set(buffer.starts(1).tolist()) - set(old.tolist())
    drawn, times = np.unique(buffer.draw(replay(mini_batch_size=3000), generator()).index, return_counts=True)
    highest = new | {int(old[0])}
    assert set(drawn[times > 300].tolist()) == highest
    counts = times[np.isin(drawn, list(highest))]
    assert counts == pytest.approx(counts.mean(), abs=5 * np.sqrt(counts.mean()))  # all of one priority


def test_small_priorities_stay_when_windows_of_another_length_are_drawn():
    """TS-11: only starts that were never drawn are new."""
    buffer, _ = prioritized(20, 1, 12, settings=Prioritized(alpha=1.0, beta=1.0))
    buffer.draw(replay(), generator())
    index = buffer.starts(1)
    buffer.write_back(torch.from_numpy(index), torch.from_numpy(0.01 * np.arange(1.0, len(index) + 1)))
    starts = buffer.starts(2)
    drawn = buffer.draw(replay(mini_batch_size=20_000, n_step=2), generator())
    place = {start: np.flatnonzero(index == start)[0] for start in starts}
    expected = np.array([place[start] + 1.0 for start in starts])
    share = np.array([(drawn.index.numpy() == start).mean() for start in starts])
    assert share == pytest.approx(expected / expected.sum(), abs=0.02)


@bounded
@given(
    lanes=st.integers(1, 3),
    rows=st.integers(2, 8),
    seed=st.integers(0, 999),
    steps=st.lists(st.sampled_from(["all", "some", "restart", "draw", "draw long", "clear"]), max_size=30),
    complete=st.booleans(),
    fixed=st.booleans(),
)
def test_whatever_is_written_what_can_be_drawn_are_the_valid_starts(lanes, rows, seed, steps, complete, fixed):
    """TS-11, TS-22, TS-24: the tree that follows writes equals one made anew; priorities stay with their rows."""
    options = {"complete_episodes_only": complete}
    buffer = make_buffer(rows * lanes, lanes, sampler=PrioritizedSampler(), **options)
    world, rng = World(lanes, rows, seed, breaks=True), np.random.default_rng(seed)
    buffer.reader.fixed = fixed
    world.open(buffer)
    for action in [*steps, "draw"]:
        some = sorted(rng.choice(lanes, rng.integers(1, lanes + 1), replace=False).tolist())
        if action == "all":
            world.append(buffer)
        elif action == "some":
            world.append(buffer, some)
        elif action == "restart":
            world.open(buffer, some)
        elif action == "clear":
            buffer.clear()
            for lane in world.lanes:
                lane.rows = []
        else:
            length = 2 if action == "draw long" else 1
            try:
                index = buffer.draw(replay(mini_batch_size=8, n_step=length), generator(seed)).index
            except ShapeError:
                assert not any(lane.starts(length) for lane in world.lanes) or complete
                continue
            held = np.flatnonzero(buffer.sampler._tree.leaves)
            assert set(held.tolist()) == set(buffer.starts(length).tolist())
            buffer.write_back(index, torch.from_numpy(rng.random(len(index))))


def test_a_priority_that_comes_back_late_does_not_reach_the_row_that_took_the_place():
    """F20: between a draw and its `write_back` other rows may be written."""
    buffer, world = prioritized(8, 1, 8)
    drawn = buffer.draw(replay(mini_batch_size=64), generator())
    for _ in range(9):
        world.append(buffer)
    buffer.write_back(drawn.index, torch.zeros(64))
    buffer.draw(replay(), generator())
    leaves = buffer.sampler._tree.leaves
    assert set(leaves[leaves > 0].tolist()) == {1.0}


def test_a_priority_lets_no_row_be_drawn_that_cannot_be_learned_from():
    """TS-11: ends of episodes, broken fragments and rows that were overwritten or never written stay out."""
    buffer, _ = prioritized(60, 2, 20, breaks=True)
    buffer.draw(replay(), generator())
    buffer.write_back(torch.arange(60), torch.full((60,), 9.0))
    drawn = buffer.draw(replay(mini_batch_size=2000), generator())
    assert set(drawn.index.tolist()) == set(buffer.starts(1).tolist())


def test_beta_follows_its_schedule():
    """TS-11: MARO's and Tianshou's fixed beta is a schedule here."""
    buffer, _ = prioritized(settings=Prioritized(beta=Linear(0.4, 1.0, 0.5)))
    assert buffer.sampler.beta == 0.4
    buffer.set_progress(0.25)
    assert buffer.sampler.beta == pytest.approx(0.7)
    buffer.set_progress(0.9)
    assert buffer.sampler.beta == 1.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_priorities_that_are_no_priorities_are_refused(value):
    """F23: before they reach the tree."""
    buffer, _ = prioritized()
    index = buffer.draw(replay(), generator()).index
    with pytest.raises(NonFiniteError, match="priorities must be finite and at least 0"):
        buffer.write_back(index[:2], torch.tensor([1.0, value]))
    buffer.draw(replay(), generator())


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="alpha is -1; it must be at least 0"):
        Prioritized(alpha=-1)
    with pytest.raises(ConfigError, match=r"must lie in \[0, 1\]"):
        Prioritized(beta=Linear(0.5, 1.5))
    with pytest.raises(ConfigError, match="burn-in needs sequences"):
        replay(burn_in=4)


def test_nothing_can_be_drawn_or_written_back_too_early():
    buffer = make_buffer(8, 1, sampler=PrioritizedSampler())
    with pytest.raises(ShapeError, match="no row can be learned from yet"):
        buffer.write_back(torch.tensor([0]), torch.tensor([1.0]))
    buffer.open(step([FIRST]))
    with pytest.raises(ShapeError, match="no row can be learned from yet"):
        buffer.draw(replay(), generator())
    buffer.append(torch.tensor([0]), step([FIRST]))
    with pytest.raises(ShapeError, match="episodes end at once"):
        buffer.draw(replay(), generator())
    buffer.append(torch.tensor([0]), step([MID]))
    assert buffer.draw(replay(mini_batch_size=3), generator()).index.tolist() == [1, 1, 1]


def test_a_saved_sampler_goes_on_bit_for_bit():
    """F25: cut between draws, with rows written since; also the sums of the tree are the same."""
    buffer, world = prioritized(60, 2, 40, settings=Prioritized())
    for seed in range(3):
        index = buffer.draw(replay(), generator(seed)).index
        buffer.write_back(index, torch.rand(len(index), generator=generator(seed)))
        world.append(buffer)
    twin = make_buffer(60, 2, sampler=PrioritizedSampler())
    state = {k: v.clone() if hasattr(v, "clone") else v for k, v in buffer.state_tensors().items()}
    twin.load_state_tensors(state)
    for seed in range(3):
        one, two = (b.draw(replay(), generator(seed)) for b in (buffer, twin))
        assert torch.equal(one.index, two.index)
        assert torch.equal(one.weight, two.weight)
        for b in (buffer, twin):
            b.write_back(one.index, one.weight)
    assert torch.equal(buffer.sampler.state()["tree"], twin.sampler.state()["tree"])
    del state["sampler.tree"], state["sampler.highest"]
    with pytest.raises(CheckpointError, match="the saved priorities have no 'highest'"):
        twin.load_state_tensors(state)


def test_after_a_state_that_is_refused_a_sampler_draws_and_is_saved():
    buffer, world = prioritized()
    buffer.draw(replay(), generator())
    state = buffer.sampler.state()
    state.pop("restarts")
    with pytest.raises(CheckpointError, match="the saved priorities have no 'restarts'"):
        buffer.sampler.load_state(state)
    assert buffer.sampler.state().keys() == {"highest", "beta"}
    check_windows(buffer.draw(replay(), generator()), world, 1)


def test_a_draw_and_its_weights_survive_uniform_priorities():
    """alpha 0 is uniform whatever was written back."""
    buffer, _ = filled(40, 2, 20)
    buffer.sampler = PrioritizedSampler(Prioritized(alpha=0.0))
    index = buffer.draw(replay(), generator()).index
    buffer.write_back(index, torch.rand(len(index)))
    assert torch.equal(buffer.draw(replay(), generator()).weight, torch.ones(32))


def test_a_wrong_count_of_rows_or_priorities_is_named():
    """Neither a negative count nor priorities for other rows reach numpy."""
    buffer, _ = prioritized()
    index = buffer.draw(replay(mini_batch_size=8), generator()).index
    with pytest.raises(ShapeError, match=r"priorities of shape \[7\] were given for rows of shape \[8\]"):
        buffer.write_back(index, torch.rand(7))
    buffer.write_back(index[:0], torch.rand(0))  # of a minibatch from which nothing was learned
    with pytest.raises(ShapeError, match=r"sample\(-1\) was asked for; give at least 1 row, or 0 for all"):
        buffer.sample(-1, generator())


def test_priorities_outlive_the_growth_of_a_buffer():
    """TS-11: a buffer without a capacity doubles its room, and each row keeps the priority that was written back."""
    buffer = make_buffer(None, 2, sampler=PrioritizedSampler(Prioritized(alpha=1.0, beta=1.0)))
    world = World(2, 10**6)
    world.open(buffer)
    for _ in range(100):
        world.append(buffer)
    buffer.draw(replay(), generator())
    index = torch.from_numpy(buffer.starts(1))
    buffer.write_back(index, torch.full((len(index),), 0.01))
    for _ in range(50):
        world.append(buffer)
    buffer.write_back(index[:2], torch.tensor([1.0, 3.0]))  # before the next draw
    drawn = buffer.draw(replay(mini_batch_size=20_000), generator()).index
    total = 0.01 * (len(index) - 2) + 1.0 + 3.0 + 1.0 * (len(buffer.starts(1)) - len(index))
    for row, priority in zip(index[:3], (1.0, 3.0, 0.01), strict=True):
        assert (drawn == row).float().mean().item() == pytest.approx(priority / total, abs=0.003)
