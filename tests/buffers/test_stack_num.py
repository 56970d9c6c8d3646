"""Tests of `stack_num` of `palaestra.buffers.ReplayBuffer`: stacks of an environment that gives single frames."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra import EnvConfig, create_environment
from palaestra.buffers import MappedFiles, PrioritizedSampler, ReplayBuffer, with_actions
from palaestra.core import Batch, ConfigError, DiscreteSpec, OnPolicy, ShapeError, TensorSpec
from palaestra.testing.buffers import FIRST, LAST, MID, World
from tests.buffers.model import generator, make_buffer, replay, step

SPECS = {"observation_spec": TensorSpec((), torch.int64), "action_spec": DiscreteSpec(num=5)}


def expected(stream, i, count):
    """The serial numbers of a stack, found by walking back from row i."""
    first = i
    while first > max(0, i - count + 1) and stream[first].kind != FIRST and stream[first - 1].kind != LAST:
        first -= 1
    return [stream[max(first, j)].serial for j in range(i - count + 1, i + 1)]


def test_ts_09_the_arrays_of_the_document():
    """TS-09: 16 steps whose episodes end after every fifth, stacks of 4: the first frame is repeated before it."""
    buffer = ReplayBuffer(16, 1, **SPECS, stack_num=4)
    buffer.open(step([FIRST], torch.tensor([0])))
    for i in range(1, 10):
        buffer.append(torch.tensor([0]), step([(FIRST, MID, MID, MID, LAST)[i % 5]], torch.tensor([i])))
    stacks = buffer.observation[0:8].tolist()
    assert stacks[:5] == [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4]]
    assert stacks[5:] == [[5, 5, 5, 5], [5, 5, 5, 6], [5, 5, 6, 7]]
    assert buffer[-1].observation.tolist() == [5, 6, 7, 8]
    assert buffer.reward[0:8].shape == (8,)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lanes=st.integers(1, 3),
    rows=st.integers(1, 12),
    steps=st.integers(1, 60),
    seed=st.integers(0, 99),
    some=st.booleans(),
    count=st.integers(2, 5),
)
def test_ts_09_frames_never_cross_the_beginning_of_an_episode(lanes, rows, steps, seed, some, count):
    """TS-09: over the end of the ring, with lanes apart, in windows, sequences and unrolls."""
    buffer, everything = make_buffer(rows * lanes, lanes, stack_num=count), World(lanes, 10**6, seed, breaks=True)
    everything.open(buffer)
    for t in range(steps):
        everything.append(buffer, [t % lanes] if some and t % 3 == 0 else None)
    for number, lane in enumerate(everything.lanes):
        stream = lane.stream
        found = buffer.observation[buffer.in_time_order(number)].tolist()
        assert found == [expected(stream, i, count) for i in range(len(stream) - len(found), len(stream))]
    place = {row.serial: (lane.stream, i) for lane in everything.lanes for i, row in enumerate(lane.stream)}

    def check(observation):
        for stack in observation.reshape(-1, count).tolist():
            assert stack == expected(*place[stack[-1]], count)

    for n_step, length in ((1, 1), (2, 1), (1, 2)):
        if len(buffer) and rows > 2:
            try:
                drawn = buffer.draw(replay(n_step=n_step, mini_batch_length=length), generator())
            except ShapeError:  # there is no such window yet
                continue
            check(drawn.observation)
            check(drawn.get("next_observation", drawn.observation))
    check(buffer.draw(OnPolicy(unroll_length=1), generator()).observation)


@pytest.mark.parametrize("prioritized", [False, True])
def test_ts_09_only_whole_stacks_are_drawn_where_asked_for(prioritized):
    """TS-09: `sample_avail`."""
    sampler = PrioritizedSampler() if prioritized else None
    buffer, world = make_buffer(60, 1, stack_num=2, sample_avail=True, sampler=sampler), World(1, 10**6, 4, breaks=True)
    world.open(buffer)
    for t in range(120):
        world.append(buffer)
        if t > 70:
            rows, _ = buffer.sample(16, generator(t))
            stacks = rows.observation.tolist()
            assert all(len(set(stack)) == 2 for stack in stacks)
    kept = buffer.observation[buffer.starts(1)].tolist()
    stream = world.lanes[0].stream
    pairs = range(len(stream) - 61, len(stream) - 1)
    whole = [expected(stream, i, 2) for i in pairs if stream[i].kind != LAST and stream[i + 1].kind != FIRST]
    assert kept == [stack for stack in whole if len(set(stack)) == 2]


def test_ts_09_an_environment_without_frame_stack(tmp_path):
    """TS-09: the same stacks as the environment's states, saved and loaded with the buffer."""
    env = create_environment(EnvConfig(name="CartPole-v1", num_envs=2), seed=3)
    buffer = ReplayBuffer(60, 2, observation_spec=env.observation_spec, action_spec=env.action_spec, stack_num=4)
    time_step = env.reset()
    buffer.open(time_step)
    seen = [time_step.observation.clone()]
    for t in range(8):
        action = torch.tensor([t % 2, (t + 1) % 2])
        time_step = env.step(action)
        buffer.append(action, time_step)
        seen.append(time_step.observation.clone())
    assert buffer[-1].observation.shape == (4, 4)
    rows = buffer.in_time_order(1)[3:]
    assert torch.equal(
        buffer.observation[rows], torch.stack([torch.stack(seen)[i - 3 : i + 1, 1] for i in range(3, 9)])
    )
    buffer.save(tmp_path / "saved")
    again = ReplayBuffer.load(tmp_path / "saved")
    assert torch.equal(again.observation[...], buffer.observation[...])
    joined = ReplayBuffer(60, 2, **{**buffer.options, "stack_num": 1})
    joined.update(buffer)
    assert torch.equal(joined.observation[...], buffer.observation[...][:, -1])


def test_ts_09_stacks_of_stacks_are_refused():
    """TS-09, F27."""
    stacked = {**SPECS, "observation_spec": TensorSpec((4,), torch.int64, stacked=4)}
    for capacity, specs, count in ((None, SPECS, 4), (8, stacked, 4), (8, SPECS, 0)):
        with pytest.raises(ConfigError, match="stack_num is"):
            ReplayBuffer(capacity, 1, **specs, stack_num=count)


def test_a_fragment_that_is_longer_than_the_ring_brings_the_frames_of_its_oldest_stacks():
    buffer, kinds = ReplayBuffer(4, 1, **SPECS, stack_num=3), [FIRST] + 10 * [MID]
    fields = {
        "step_type": torch.tensor(kinds, dtype=torch.int32)[:, None],
        "reward": torch.zeros(11, 1),
        "discount": torch.ones(11, 1),
        "observation": torch.arange(11)[:, None],
        "action": torch.zeros(10, 1, dtype=torch.int64),
    }
    buffer.extend(Batch.of(fields))
    assert buffer.observation[buffer.in_time_order(0)[:-1]].tolist() == [[t - 2, t - 1, t] for t in range(6, 10)]


def overwritten(lanes=2, **options):
    """Lanes of four rows whose episodes began in rows that are overwritten; of the second one, only just."""
    buffer = ReplayBuffer(4 * lanes, lanes, **SPECS, stack_num=3, **options)
    buffer.open(step([FIRST] * lanes, torch.arange(lanes) * 100))
    for t in range(1, 9):
        kinds = [MID if lane == 0 or t not in (2, 3) else (LAST, FIRST)[t - 2] for lane in range(lanes)]
        buffer.append(torch.zeros(lanes, dtype=torch.int64), step(kinds, torch.arange(lanes) * 100 + t))
    return buffer


def shown(buffer, lane=0):
    return buffer.observation[buffer.in_time_order(lane)].tolist()


COPIES = {
    "load": lambda buffer, folder: ReplayBuffer.load(folder / "saved"),
    "load into mapped files": lambda buffer, folder: ReplayBuffer.load(
        folder / "saved", storage=MappedFiles(folder / "mapped")
    ),
    "with_actions": lambda buffer, folder: with_actions(buffer, SPECS["action_spec"], lambda action: action),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_have_the_stacks_that_reach_into_overwritten_rows(copied, tmp_path):
    buffer = overwritten()
    buffer.save(tmp_path / "saved")
    assert shown(buffer)[:2] == [[2, 3, 4], [3, 4, 5]]
    assert shown(buffer, 1)[:2] == [[103, 103, 104], [103, 104, 105]]
    made = copied(buffer, tmp_path)
    assert [shown(made, lane) for lane in range(2)] == [shown(buffer, lane) for lane in range(2)]
    assert sorted(made.observation[made.starts(1)].tolist()) == shown(buffer)[:-1] + shown(buffer, 1)[:-1]


def test_out_of_mapped_files_too(tmp_path):
    buffer = overwritten(storage=MappedFiles(tmp_path / "mapped"))
    buffer.save(tmp_path / "saved")
    loaded = ReplayBuffer.load(tmp_path / "saved")
    assert [shown(loaded, lane) for lane in range(2)] == [shown(buffer, lane) for lane in range(2)]


@pytest.mark.parametrize("storage", [False, True], ids=["memory", "mapped"])
def test_an_update_takes_the_frames_of_overwritten_rows_along(storage, tmp_path):
    """A lane without rows holds what the other one holds; behind other rows, no draw begins with a cut stack."""
    buffer = overwritten()
    where = {"storage": MappedFiles(tmp_path / "mapped")} if storage else {}
    made = ReplayBuffer(100, 2, **SPECS, stack_num=3, **where)
    made.update(buffer)
    assert [shown(made, lane) for lane in range(2)] == [shown(buffer, lane) for lane in range(2)]
    made.update(buffer)
    right = [shown(buffer, lane)[:-1] for lane in range(2)]
    begins = made.observation[made.starts(1)].tolist()
    assert [stack for stack in begins if stack[-1] < 100] == 2 * right[0]
    assert [stack for stack in begins if stack[-1] >= 100] == right[1] + [[103, 103, 103]] + right[1]
    made.sampler = PrioritizedSampler()
    for drawn in (made.draw(replay(mini_batch_size=200), generator()), made.sample(200, generator())[0]):
        assert {*map(tuple, drawn.observation.tolist())} == {*map(tuple, begins)}


def test_single_frames_of_stacks_are_appended_as_they_are_held():
    """Where the buffer that takes them makes no stacks, overwritten rows do not come along."""
    buffer, made = overwritten(), ReplayBuffer(100, 2, **SPECS)
    made.update(buffer)
    assert made.observation[...].tolist() == [4, 5, 6, 7, 104, 105, 106, 107]
    assert made.positions.lockstep


def test_a_stream_that_begins_in_the_middle_of_an_episode_is_drawn_from_its_first_whole_stack_on():
    buffer = ReplayBuffer(20, 1, **SPECS, stack_num=3)
    buffer.open(step([MID], torch.tensor([0])))
    for t, kind in enumerate([MID, MID, MID, LAST, FIRST, MID], start=1):
        buffer.append(torch.tensor([0]), step([kind], torch.tensor([t])))
    assert buffer.observation[buffer.starts(1)].tolist() == [[0, 1, 2], [1, 2, 3], [5, 5, 5]]


@pytest.mark.parametrize("rows", [1, 2, 5, 9, 25])
def test_a_cleared_buffer_goes_on_with_its_open_rows(rows):
    """TS-09: stacks have no frames of what was forgotten."""
    buffer, everything = make_buffer(40, 2, stack_num=3), World(2, 10**6, 5)
    everything.open(buffer)
    for _ in range(rows):
        everything.append(buffer)
    buffer.clear()
    assert len(buffer) == 0
    for _ in range(3):
        everything.append(buffer)
    for number, lane in enumerate(everything.lanes):
        found = buffer.observation[buffer.in_time_order(number)].tolist()
        assert found == [expected(lane.stream[rows:], i, 3) for i in range(4)]


@pytest.mark.parametrize("steps", [5, 23, 40])
def test_mapped_files_draw_the_same_rows_when_they_are_opened_again(tmp_path, steps):
    """The oldest rows too, whose stacks reach into rows that are overwritten next."""
    made = {**SPECS, "stack_num": 3, "storage": MappedFiles(tmp_path / "rows")}
    before = ReplayBuffer(20, 2, **made)
    before.open(step([FIRST, FIRST]))
    for number in range(steps):
        observation = torch.tensor([number, 100 + number])
        before.append(torch.zeros(2, dtype=torch.int64), step([MID, MID], observation=observation))
    after = ReplayBuffer(20, 2, **made)
    rows = before.starts(1)
    assert sorted(after.starts(1).tolist()) == sorted(rows.tolist())
    assert torch.equal(after.take("observation", rows), before.take("observation", rows))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copy_knows_which_streams_were_ended(copied):
    """Stacks of frames of a stream that goes on after `end_streams` are stored again, in a copy too."""
    spec = TensorSpec((2, 1), torch.uint8, stacked=2)
    buffer = ReplayBuffer(8, 1, observation_spec=spec, action_spec=DiscreteSpec(num=2))
    action = torch.zeros(1, dtype=torch.int64)

    def at(kind, *frames):
        return step([kind], observation=torch.tensor(frames, dtype=torch.uint8).reshape(1, 2, 1))

    buffer.open(at(FIRST, 0, 1))
    buffer.append(action, at(MID, 1, 2))
    buffer.end_streams()
    for one in (buffer, copied(buffer)):
        one.open(at(MID, 6, 7))  # another stream, which is cut from a longer one
        one.append(action, at(MID, 7, 8))
        assert one.newest(1).observation.flatten().tolist() == [6, 7, 7, 8]
