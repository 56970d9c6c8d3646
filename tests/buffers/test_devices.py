"""Tests of buffers whose rows lie on a device: `palaestra.buffers.DeviceMemory`, and pinned main memory."""

import numpy as np
import pytest
import torch

from palaestra.buffers import (
    DeviceMemory,
    HindsightSampler,
    MainMemory,
    MixtureSource,
    PrioritizedSampler,
    ReplayBuffer,
    WholeSampler,
    storage,
)
from palaestra.buffers.lane_storage import HostLeaf
from palaestra.core import (
    Batch,
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    OnPolicy,
    Replay,
    ShapeError,
    TensorSpec,
    TimeStep,
    device_of,
    load_tensors,
    save_tensors,
    to_device,
)
from tests.devices import pretend_device

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch with CUDA")
LANES = 2
OBSERVATION = {
    "achieved_goal": TensorSpec((1,)),
    "desired_goal": TensorSpec((1,)),
    "observation": TensorSpec((3, 2), stacked=3),
}
STATE = {"h": TensorSpec((2,))}


def make(storage=None, capacity=24, sampler=None, state_period=1):
    return ReplayBuffer(
        capacity,
        LANES,
        observation_spec=OBSERVATION,
        action_spec=BoundedSpec((2,), minimum=np.array(-1), maximum=np.array(1)),
        info_spec={"log_prob": TensorSpec(())},
        state_spec=STATE,
        state_period=state_period,
        storage=storage,
        sampler=sampler,
    )


def fill(*buffers, steps=19, near=lambda x: x):
    """The same stream into each; episodes of five steps, stacks of three frames, some rows of one lane only."""
    random, frames = torch.Generator().manual_seed(0), torch.zeros(LANES, 3, 2)

    def arrival(kind):
        nonlocal frames
        older = torch.zeros(LANES, 2, 2) if kind == 0 else frames[:, 1:]
        frames = torch.cat([older, torch.rand(LANES, 1, 2, generator=random)], 1)
        return TimeStep(
            step_type=torch.full((LANES,), kind, dtype=torch.int32),
            reward=torch.rand(LANES, generator=random),
            discount=torch.full((LANES,), float(kind != 2)),
            observation=Batch(
                achieved_goal=torch.rand(LANES, 1, generator=random),
                desired_goal=torch.rand(LANES, 1, generator=random),
                observation=frames.clone(),
            ),
        )

    first = arrival(0)
    for buffer in buffers:
        buffer.open(near(first))
    for number in range(1, steps + 1):
        kind = (0, 1, 1, 1, 2)[number % 5]
        step, action = arrival(kind), torch.rand(LANES, 2, generator=random)
        state = Batch(h=torch.rand(LANES, 2, generator=random))
        for buffer in buffers:
            buffer.append(near(action), near(step), policy_version=number, state=near(state))
            if buffer.rows_per_lane:
                buffer.write_info(near(Batch(log_prob=torch.full((1, LANES), float(number)))), 1)


def generator():
    return torch.Generator().manual_seed(7)


def check_same(there, here):
    """Equal draws, all of it on the device of the buffer; then equal priorities and equal contents."""
    for plan in (
        Replay(unroll_length=1, mini_batch_size=32, n_step=2),
        Replay(unroll_length=1, mini_batch_size=8, mini_batch_length=3),
        OnPolicy(unroll_length=1, clear=False, capacity=24),
    ):
        drawn, expected = there.draw(plan, generator()), here.draw(plan, generator())
        assert {leaf.device for _, leaf in leaves(drawn)} == {there.device}
        check_equal(drawn, expected)
        if "index" in drawn:
            priority = torch.arange(len(expected.index)).float()
            there.write_back(drawn.index, priority.to(there.device))
            here.write_back(expected.index, priority)
    rows = here.in_time_order(0)
    check_equal(there[rows], here[rows])
    check_equal(there.newest(4), here.newest(4))
    assert there.next(torch.from_numpy(rows).to(there.device)).tolist() == here.next(rows).tolist()


def leaves(batch, path=""):
    for key, value in batch.items():
        yield from leaves(value, f"{path}{key}.") if isinstance(value, Batch) else [(path + key, value)]


def check_equal(drawn, expected):
    drawn, expected = dict(leaves(to_device(drawn, "cpu"))), dict(leaves(expected))
    assert drawn.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(drawn[name], expected[name])] == []


SAMPLERS = {"uniform": lambda: None, "prioritized": PrioritizedSampler, "whole": WholeSampler}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("capacity", [24, 60])
def test_rows_on_a_device_are_those_in_main_memory(sampler, capacity, tmp_path):
    """ALF-05: nests, stacks of frames, memories and infos, through wrap-around and a checkpoint in both directions."""
    with pretend_device() as device:
        there = make(DeviceMemory(device), capacity, sampler())
        here = make(None, capacity, sampler())
        fill(there, here)
        assert there.device.type == device
        assert there._streams.storage.tensors["observation.observation"].device.type == device
        check_same(there, here)
        for source, target in (
            (there, make(None, capacity, sampler())),
            (here, make(there.options["storage"], capacity, sampler())),
        ):
            save_tensors(tmp_path / "saved", source.state_tensors())
            target.load_state_tensors(load_tensors(tmp_path / "saved"))
            check_same(target, here)


@pytest.mark.slow
def test_an_unroll_on_a_device_grows_and_is_handed_out_without_a_copy():
    with pretend_device() as device:
        there, here = make(DeviceMemory(device), None), make(None, None)
        fill(there, here, steps=150)
        check_equal(there.newest(150), here.newest(150))
        for buffer in (there, here):
            buffer.clear()
            fill(buffer, steps=3)
        check_equal(there.newest(3), here.newest(3))


def test_a_buffer_on_a_device_is_saved_and_appended_to_others_as_any(tmp_path):
    with pretend_device() as device:
        there, here = make(DeviceMemory(device), 60), make(None, 60)
        fill(there, here)
        there.save(tmp_path / "saved")
        loaded = ReplayBuffer.load(tmp_path / "saved")
        assert loaded.device == torch.device("cpu")
        loaded.reader.fixed = False  # as the other one
        check_same(loaded, here)
        for source, target in ((there, make(None, 60)), (here, make(DeviceMemory(device), 60))):
            target.update(source)
            check_equal(target.newest(19), here.newest(19))


@pytest.mark.parametrize("kind", ["main", "device"])
def test_rows_that_come_from_a_device_are_stored_wherever_the_rows_are(kind):
    """A `TensorEnvironment` on a GPU, say."""
    with pretend_device() as device:
        there, here = make(DeviceMemory(device) if kind == "device" else None), make()
        fill(there, near=lambda nest: to_device(nest, device))
        fill(here)
        check_equal(there.newest(10), here.newest(10))


def test_hindsight_and_mixtures_draw_from_devices():
    def reward(achieved, desired, info):
        return -np.abs(achieved - desired)[..., 0]

    plan = Replay(unroll_length=1, mini_batch_size=20)
    with pretend_device() as device:
        there, here = (
            make(storage, sampler=HindsightSampler(reward, terminated=lambda a, d, info: a[..., 0] > 0.9))
            for storage in (DeviceMemory(device), None)
        )
        fill(there, here)
        check_equal(there.draw(plan, generator()), here.draw(plan, generator()))
        mixture = MixtureSource([(there, 0.5), (here, 0.5)])
        drawn = mixture.draw(plan, generator())
        assert device_of(drawn) == device_of(drawn.weight if "weight" in drawn else drawn.index) == there.device
        check_equal(drawn, MixtureSource([(here, 0.5), (here, 0.5)]).draw(plan, generator()))
        mixture.write_back(drawn.index, drawn.reward[0])


def test_what_would_be_cast_is_refused_on_a_device_too():
    with pretend_device() as device:
        buffer = make(DeviceMemory(device))
        fill(buffer)
        with pytest.raises(ShapeError, match=r"policy_info.log_prob is float64 of shape \(1, 2\), but the buffer was"):
            buffer.write_info(Batch(log_prob=torch.zeros(1, LANES, dtype=torch.float64)), 1)


def test_a_buffer_that_does_not_fit_on_its_device_is_refused(monkeypatch):
    """F21: with the numbers of that device, and the ways out."""
    monkeypatch.setattr(storage, "free_bytes", lambda device: 10**9)
    with pytest.raises(ConfigError, match=r"needs 5.65 GB .*but cpu has 1 GB.*rows in main memory"):
        ReplayBuffer(
            200_000,
            2,
            observation_spec=BoundedSpec((4, 84, 84), torch.uint8, np.array(0), np.array(255)),
            action_spec=DiscreteSpec(num=6),
            storage=DeviceMemory("cpu"),
        )


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"DeviceMemory is 'cuda:77', but this process can compute on cpu"):
        DeviceMemory("cuda:77")


def test_the_free_memory_of_a_gpu_counts_what_torch_would_give_back(monkeypatch):
    """F21."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 200)
    monkeypatch.setattr(storage, "available_bytes", lambda: 70)
    assert storage.free_bytes(torch.device("cuda", 0)) == 1300
    assert storage.free_bytes(torch.device("cpu")) == 70


# -- pinned memory


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_pinned_memory_needs_cuda():
    with pytest.raises(ConfigError, match=r"MainMemory\(pinned=True\) is for copies to a GPU.*leave `pinned` out"):
        MainMemory(pinned=True)


def test_what_is_drawn_from_pinned_memory_lies_in_pinned_memory(monkeypatch):
    """Every copy of rows is asked for pinned; without a GPU the asking is all that can be seen."""
    asked, make_empty = [], torch.empty

    def empty(*shape, pin_memory=False, **named):
        asked.extend([pin_memory] * pin_memory)
        return make_empty(*shape, **named)

    rows = torch.arange(12).reshape(6, 2)
    monkeypatch.setattr(torch, "empty", empty)
    leaf, plain = HostLeaf(rows, pinned=True), HostLeaf(rows)
    index = np.array([[1, 13], [3, 0]])
    assert leaf.take(index).tolist() == plain.take(index).tolist() == [[1, 1], [3, 0]]
    assert (
        leaf.take_frames(index, index > 2).tolist() == plain.take_frames(index, index > 2).tolist() == [[1, 0], [0, 0]]
    )
    assert asked == [True, True]


@needs_cuda
def test_pinned_rows_come_out_as_they_went_in():
    there, here = make(MainMemory(pinned=True)), make()
    fill(there, here)
    check_same(there, here)
    drawn = there.draw(Replay(unroll_length=1, mini_batch_size=8), generator())
    assert drawn.reward.is_pinned()
    assert there._streams.storage.tensors["reward"].is_pinned()


@needs_cuda
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_rows_on_a_gpu_are_those_in_main_memory(sampler):
    there, here = make(DeviceMemory("cuda"), 24, sampler()), make(None, 24, sampler())
    fill(there, here)
    check_same(there, here)
