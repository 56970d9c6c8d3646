"""Tests of `palaestra.buffers.ReplayBuffer` with stacks of frames: stored once, put together when they are read."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.buffers import PrioritizedSampler, ReplayBuffer
from palaestra.core import Batch, BoundedSpec, DiscreteSpec, OnPolicy, ShapeError, SpecError, TensorSpec, TimeStep
from palaestra.testing.buffers import FIRST, LAST, MID
from tests.buffers.model import generator, replay

PIXELS = BoundedSpec((4, 2, 2), torch.uint8, np.full((4, 2, 2), 0), np.full((4, 2, 2), 255), stacked=4)


class Camera:
    """Lanes whose frames are numbers; stacks are made as environment wrappers do, and kept by serial number."""

    def __init__(self, lanes, seed, stacked=4):
        self.rng, self.lanes, self.stacked = np.random.default_rng(seed), lanes, stacked
        self.kinds, self.serial = np.full(lanes, LAST), 0
        self.stacks = np.zeros((lanes, stacked), np.int64)
        self.seen = {}

    def step(self, which=None, *, restart=False):
        lanes = np.arange(self.lanes) if which is None else np.array(which)
        for lane in lanes:
            self.serial += 1
            begins = restart or self.kinds[lane] == LAST or self.rng.random() < 0.05
            self.kinds[lane] = FIRST if begins else LAST if self.rng.random() < 0.2 else MID
            older = [0] * (self.stacked - 1) if begins else self.stacks[lane][1:]
            self.stacks[lane] = [*older, self.serial]
            self.seen[self.serial] = self.stacks[lane].tolist()
        serials = torch.from_numpy(self.stacks[lanes].copy())
        return TimeStep(
            step_type=torch.from_numpy(self.kinds[lanes].astype(np.int32)),
            reward=torch.zeros(len(lanes)),
            discount=torch.ones(len(lanes)),
            observation=Batch(
                stack=serials, pair=serials[:, -2:] if self.stacked > 2 else serials, plain=serials[:, -1]
            ),
        )


def spec(stacked=4):
    whole = TensorSpec((stacked,), torch.int64, stacked=stacked)
    return {"stack": whole, "pair": TensorSpec((2,), torch.int64, stacked=2), "plain": TensorSpec((), torch.int64)}


def check(camera, observation):
    """Every stack is the one the environment gave."""
    expected = [camera.seen[serial] for serial in observation.plain.flatten().tolist()]
    assert observation.stack.reshape(len(expected), -1).tolist() == expected
    assert observation.pair.reshape(len(expected), -1).tolist() == [stack[-2:] for stack in expected]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lanes=st.integers(1, 3),
    rows=st.integers(1, 12),
    seed=st.integers(0, 99),
    writes=st.lists(st.sampled_from(["all", "some", "restart", "clear", "reload", "extend"]), max_size=40),
)
def test_stacks_come_out_as_they_went_in(lanes, rows, seed, writes):
    """TS-09, F25: through wrap-around, restarts, forgetting, saving and moving; never across an episode's start."""
    camera = Camera(lanes, seed)
    options = {"observation_spec": spec(), "action_spec": DiscreteSpec(num=2)}
    buffer = ReplayBuffer(rows * lanes, lanes, **options)
    buffer.open(camera.step(restart=True))
    for write in ["all", *writes, "all"]:
        some = sorted(camera.rng.choice(lanes, camera.rng.integers(1, lanes + 1), replace=False).tolist())
        which = some if write == "some" else None
        if write in ("all", "some"):
            action = torch.zeros(lanes if which is None else len(which), dtype=torch.int64)
            buffer.append(action, camera.step(which), env_id=which)
        elif write == "restart":
            buffer.open(camera.step(some, restart=True), some)
        elif write == "clear":
            buffer.clear()
        elif write == "reload":
            state, buffer = buffer.state_tensors(), ReplayBuffer(rows * lanes, lanes, **options)
            buffer.load_state_tensors(state)
        elif buffer.positions.lockstep:  # what is left of the streams goes on in another buffer
            other = ReplayBuffer(rows * lanes, lanes, **options)
            other.update(buffer)
            buffer = other
        for lane in range(lanes):
            check(camera, buffer[buffer.in_time_order(lane)].observation)
    for n_step in (1, 2):
        try:
            drawn = buffer.draw(replay(mini_batch_size=16, n_step=n_step), generator(seed))
        except ValueError:
            continue
        check(camera, drawn.observation)
        check(camera, drawn.next_observation)
    check(
        camera,
        buffer.newest(1).observation if buffer.positions.counts.min() else buffer[buffer.unfinished()].observation,
    )


@pytest.mark.parametrize("rows", [6, 30])
def test_a_stream_that_begins_in_mid_episode_behind_another_brings_its_frames(rows):
    """A fragment was dropped, or another buffer's rows are added: what lies before are another stream's frames."""
    camera = Camera(2, 3)
    options = {"observation_spec": spec(), "action_spec": DiscreteSpec(num=2)}
    buffer = ReplayBuffer(2 * rows, 2, **options)
    buffer.open(camera.step(restart=True))
    for lost in (False, True, False, True):
        for _ in range(5):
            step = camera.step()
            if not lost:
                buffer.append(torch.zeros(2, dtype=torch.int64), step)
        if lost:
            buffer.end_streams()
            buffer.open(camera.step())
    added = ReplayBuffer(2 * rows, 2, **options)
    for _ in range(2):
        added.update(buffer)
    for one in (buffer, added):
        drawn = one.draw(replay(mini_batch_size=64), generator())
        check(camera, drawn.observation)
        check(camera, drawn.next_observation)


def test_stacks_one_step_apart_share_the_frames_they_have_in_common():
    camera = Camera(2, 0)
    buffer = ReplayBuffer(40, 2, observation_spec=spec(), action_spec=DiscreteSpec(num=2))
    buffer.open(camera.step(restart=True))
    for _ in range(20):
        buffer.append(torch.zeros(2, dtype=torch.int64), camera.step())
    drawn = buffer.draw(replay(mini_batch_size=16), generator())
    shared = drawn.observation.stack[:, 1:], drawn.next_observation.stack[:, :-1]
    assert shared[0].data_ptr() == shared[1].data_ptr() and shared[0].untyped_storage().nbytes() == 16 * 5 * 8
    # rows that end an episode are no starts, but whoever reads windows there gets what the environment showed
    rows = buffer.reader.complete()
    ends = rows[~buffer.reader.is_start(rows)]
    assert len(ends)
    check(camera, buffer.reader.windows(ends, 1).observation)
    check(camera, buffer.reader.windows(ends, 1).next_observation)


def test_frames_are_stored_once_and_stay_bytes():
    """TS-09 `save_only_last_obs`: uint8 until the network, a quarter of the bytes and no next observation."""
    options = {"action_spec": DiscreteSpec(num=2)}
    buffer = ReplayBuffer(1000, 1, observation_spec=PIXELS, **options)
    plain = BoundedSpec((4, 2, 2), torch.uint8, PIXELS.minimum, PIXELS.maximum)
    whole = ReplayBuffer(1000, 1, observation_spec=plain, **options)
    assert whole.size_bytes - buffer.size_bytes == 1001 * 16 - 1004 * 4 - 3 * 24
    frame = torch.zeros(1, 4, 2, 2, dtype=torch.uint8)
    frame[:, 3] = 7
    buffer.open(TimeStep(torch.tensor([0], dtype=torch.int32), torch.zeros(1), torch.ones(1), frame))
    after = torch.cat([frame[:, 1:], torch.full((1, 1, 2, 2), 9, dtype=torch.uint8)], 1)
    buffer.append(
        torch.tensor([1]), TimeStep(torch.tensor([1], dtype=torch.int32), torch.ones(1), torch.ones(1), after)
    )
    drawn = buffer.draw(replay(mini_batch_size=2), generator())
    assert drawn.next_observation.dtype == torch.uint8
    assert torch.equal(drawn.next_observation, after.repeat(2, 1, 1, 1))
    assert torch.equal(drawn.observation, frame.repeat(2, 1, 1, 1))


def test_a_million_transitions_of_frames_need_a_seventh():
    """Requirement of the issue: against a buffer that stores observation and next observation as stacks of 4."""
    frame = 84 * 84
    stored = frame + sum((4, 4, 4, 8, 4))  # step type, reward, discount, action, version
    assert (2 * 4 * frame + 8 + 4 + 1 + 1) / stored > 7
    spec_of = BoundedSpec((4, 84, 84), torch.uint8, np.array(0), np.array(255), stacked=4)
    small = ReplayBuffer(100, 1, observation_spec=spec_of, action_spec=DiscreteSpec(num=6))
    assert small.size_bytes == 104 * stored


def test_an_unroll_of_stacks_is_a_view():
    """A buffer that grows for an unroll keeps whole stacks: nothing is put together for on-policy learning."""
    camera = Camera(2, 0)
    buffer = ReplayBuffer(None, 2, observation_spec=spec(), action_spec=DiscreteSpec(num=2))
    buffer.open(camera.step(restart=True))
    for _ in range(20):
        buffer.append(torch.zeros(2, dtype=torch.int64), camera.step())
    unroll = buffer.draw(OnPolicy(unroll_length=20), generator())
    check(camera, unroll.observation)
    storage = buffer.state_tensors()["field.observation.stack"].untyped_storage().data_ptr()
    assert unroll.observation.stack.untyped_storage().data_ptr() == storage


def test_stacks_that_could_not_be_made_again_are_refused():
    """TS-09: repeated frames in front of an episode, or a stream with a gap, would come back as something else."""
    camera = Camera(1, 0)
    buffer = ReplayBuffer(8, 1, observation_spec=spec(), action_spec=DiscreteSpec(num=2))
    padded = camera.step(restart=True)
    padded.observation.stack[:] = padded.observation.stack[:, -1:]
    with pytest.raises(ShapeError, match="at a first step not zeros; leave `stacked` out of the spec"):
        buffer.open(padded)
    with pytest.raises(SpecError, match="was given stacked=4 and shape"):
        TensorSpec((3,), stacked=4)


def test_rows_kept_for_their_frames_alone_are_not_drawn_by_priority():
    """TS-09, TS-11: their own stacks are overwritten; drawn were up to three rows that the buffer held no more."""
    camera = Camera(1, 3)
    sampler = PrioritizedSampler()
    buffer = ReplayBuffer(12, 1, observation_spec=spec(), action_spec=DiscreteSpec(num=2), sampler=sampler)
    buffer.open(camera.step(restart=True))
    for t in range(60):
        buffer.append(torch.zeros(1, dtype=torch.int64), camera.step())
        if t > 4:
            drawn = buffer.draw(replay(mini_batch_size=64), generator(t))
            assert set(drawn.index.tolist()) <= set(buffer.reader.complete().tolist())
            check(camera, drawn.observation)
