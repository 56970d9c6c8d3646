"""Tests of `ReplayBuffer.save` and `load`: what was damaged or exchanged is named and never used."""

import copy
import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.buffers import MappedFiles, PrioritizedSampler, ReplayBuffer, storage
from palaestra.buffers import replay as replay_module
from palaestra.buffers.saving import without_leftovers
from palaestra.core import Batch, BoundedSpec, CheckpointError, ConfigError, DiscreteSpec, TensorSpec, files
from palaestra.testing.buffers import FIRST, MID, check_contents
from tests.buffers.model import NESTED, filled, generator, make_buffer, nested, replay, step
from tests.core.nests import assert_same


@pytest.mark.parametrize("shape", [(40, 2, 33), (None, 2, 300), (12, 1, 31), (30, 3, 1)], ids=str)
def test_a_saved_buffer_comes_back(tmp_path, shape):
    """TS-08: the pickle round trip, without pickle; also one that grows, and it can be written to."""
    buffer, world = filled(*shape, breaks=True)
    buffer.save(tmp_path / "data")
    loaded = ReplayBuffer.load(tmp_path / "data", sampler=PrioritizedSampler())
    check_contents(loaded, world)
    world.append(loaded)
    check_contents(loaded, world)
    assert isinstance(loaded.sampler, PrioritizedSampler)
    assert {file.name for file in (tmp_path / "data").iterdir()} == {"buffer.json", "manifest.json", "rows.safetensors"}


def test_where_rows_come_from_is_saved_where_it_is_given(tmp_path, monkeypatch):
    """Folders of before say nothing of it, and neither does a buffer that was loaded and saved again."""
    buffer, _ = filled(40, 2, 33)
    buffer.save(tmp_path / "data", origin={"environment": "Pendulum-v1"})
    loaded = ReplayBuffer.load(tmp_path / "data")
    assert loaded.origin == {"environment": "Pendulum-v1"}
    loaded.save(tmp_path / "again")
    assert ReplayBuffer.load(tmp_path / "again").origin == {}
    write = files.write_json
    for name, change in {"before": {}, "wrong": {"origin": 3}}.items():

        def changed(path, value, change=change):
            is_ours = path.name == "buffer.json"
            write(path, {key: value[key] for key in value if key != "origin"} | change if is_ours else value)

        monkeypatch.setattr(files, "write_json", changed)
        buffer.save(tmp_path / name)
    assert ReplayBuffer.load(tmp_path / "before").origin == {}
    with pytest.raises(CheckpointError, match=r"buffer\.json describes no buffer"):
        ReplayBuffer.load(tmp_path / "wrong")


@pytest.mark.parametrize("lengths", [(6, 3, 5, 4), (8, 3, 2, 5), (9, 2, 4, 4)], ids=str)
@pytest.mark.parametrize("capacity", [None, 24])
def test_what_earlier_rows_left_behind_is_no_part_of_what_is_held(capacity, lengths):
    """F33: a buffer that was loaded never held it, and is the same as the one that went on; one other row is seen."""

    def fill(buffer, number, rows):
        for row in range(rows):
            lanes = [lane for lane in range(2) if row < rows - 2 * (lane == number % 2)]
            seen = torch.tensor([1 + 100 * number + row] * len(lanes))
            buffer.append(torch.tensor([1 + row % 4] * len(lanes)), step([MID] * len(lanes), seen), env_id=lanes)

    buffer, loaded = (make_buffer(capacity, 2) for _ in range(2))
    buffer.open(step([FIRST, FIRST]))
    raw = 0
    for number, rows in enumerate(lengths):
        fill(buffer, number, rows)
        if number == 1:
            loaded.load_state_tensors({name: copy.deepcopy(one) for name, one in buffer.state_tensors().items()})
        elif number > 1:
            fill(loaded, number, rows)
            held, same = (one.state_tensors() for one in (buffer, loaded))
            raw += any(not torch.equal(held[name], same[name]) for name in cleaned(held))
            assert all(torch.equal(one, cleaned(same)[name]) for name, one in cleaned(held).items())
            for name in ("field.observation", "field.action"):
                other = {**same, name: same[name].clone()}
                other[name][0, 1] += 1  # the oldest row of a lane
                assert (cleaned(held)[name] != cleaned(other)[name]).sum() == 1
        for one in (buffer, loaded) if number else (buffer,):
            one.clear()
    assert raw


def cleaned(saved):
    """The fields of a saved buffer, without what earlier rows left."""
    return {name: one for name, one in without_leftovers(saved).items() if name.startswith("field.")}


def test_specs_come_back_with_nests_bounds_memory_and_stacks(tmp_path):
    stack = BoundedSpec((4, 2), torch.uint8, np.zeros((4, 2)), np.full((4, 2), 9), stacked=4)
    options = {
        "observation_spec": {**NESTED, "frames": stack},
        "action_spec": {"move": DiscreteSpec(num=3)},
        "info_spec": {"log_prob": TensorSpec(())},
        "state_spec": {"h": TensorSpec((2,))},
        "reward_spec": TensorSpec((2,)),
        "state_period": 3,
    }
    buffer = ReplayBuffer(30, 2, **options)
    observation = nested([4, 5])
    observation.frames = torch.zeros(2, 4, 2, dtype=torch.uint8)
    buffer.open(step([FIRST, FIRST], observation, torch.zeros(2, 2)))
    buffer.save(tmp_path / "data")
    loaded = ReplayBuffer.load(tmp_path / "data")
    assert (loaded.rows_per_lane, loaded.num_lanes, loaded.state_period) == (15, 2, 3)
    assert loaded.size_bytes == buffer.size_bytes
    assert_same(loaded[np.arange(6, 8)], buffer[np.arange(6, 8)])


@pytest.mark.parametrize("shape", [(40, 2, 33), (40, 2, 12), (None, 2, 300), (12, 1, 31), (30, 3, 1)], ids=str)
@pytest.mark.parametrize("piece", [5, 1000])
def test_a_saved_buffer_is_loaded_into_mapped_files_and_from_them(tmp_path, monkeypatch, shape, piece):
    """A buffer for the same folder goes on with them, and what it saves can be loaded."""
    monkeypatch.setattr(replay_module, "_PIECE", piece)
    buffer, world = filled(*shape, breaks=True)
    buffer.save(tmp_path / "data")
    loaded = ReplayBuffer.load(tmp_path / "data", storage=MappedFiles(tmp_path / "rows"))
    check_contents(loaded, world)
    with pytest.raises(ConfigError, match=rf"mapped files that hold {len(loaded)} rows were given .* a new folder"):
        ReplayBuffer.load(tmp_path / "data", storage=MappedFiles(tmp_path / "rows"))
    capacity = loaded.rows_per_lane * loaded.num_lanes
    assert capacity == (shape[0] or 600)
    for lane in world.lanes:  # what grew does so no more
        lane.capacity = min(lane.capacity, loaded.rows_per_lane)
    world.append(loaded)
    check_contents(make_buffer(capacity, shape[1], storage=MappedFiles(tmp_path / "rows")), world)
    loaded.save(tmp_path / "again")
    check_contents(ReplayBuffer.load(tmp_path / "again"), world)
    check_contents(ReplayBuffer.load(tmp_path / "again", storage=MappedFiles(tmp_path / "other")), world)


def test_what_does_not_fit_into_memory_is_loaded_as_the_error_says(tmp_path, monkeypatch):
    """F21: the way out is one for a loaded buffer too."""
    buffer, world = filled(None, 2, 300)
    buffer.save(tmp_path / "data")
    monkeypatch.setattr(storage, "available_bytes", lambda: 1000)
    with pytest.raises(ConfigError, match=r"main memory has 1e-06 GB .*storage=MappedFiles\(directory\)"):
        ReplayBuffer.load(tmp_path / "data")
    check_contents(ReplayBuffer.load(tmp_path / "data", storage=MappedFiles(tmp_path / "rows")), world)


@pytest.mark.parametrize("capacity", [30, None])
def test_stacks_memories_and_infos_come_back_in_mapped_files(tmp_path, capacity):
    stack = BoundedSpec((3, 2), torch.uint8, np.zeros((3, 2)), np.full((3, 2), 255), stacked=3)
    infos = {"info_spec": {"log_prob": TensorSpec(())}, "state_spec": {"h": TensorSpec((2,))}}
    buffer = ReplayBuffer(capacity, 2, observation_spec=stack, action_spec=DiscreteSpec(num=3), **infos)
    frames = torch.zeros(2, 3, 2, dtype=torch.uint8)
    buffer.open(step([FIRST, FIRST], frames))
    for t in range(25):
        frames = torch.cat([frames[:, 1:], torch.full((2, 1, 2), t + 1, dtype=torch.uint8)], 1)
        buffer.append(torch.tensor([t % 3, 0]), step([MID, MID], frames), state=Batch(h=torch.full((2, 2), float(t))))
        buffer.write_info(Batch(log_prob=torch.full((1, 2), float(t))), 1)
    buffer.save(tmp_path / "data")
    loaded = ReplayBuffer.load(tmp_path / "data", storage=MappedFiles(tmp_path / "rows"))
    assert len(loaded) == len(buffer)
    assert_same(loaded.newest(len(buffer) // 2), buffer.newest(len(buffer) // 2))


def test_memories_that_only_some_rows_have_stay_where_they_are(tmp_path):
    some = {"state_spec": {"h": TensorSpec((2,))}, "state_period": 3}
    buffer = ReplayBuffer(30, 2, observation_spec=TensorSpec(()), action_spec=DiscreteSpec(num=3), **some)
    buffer.save(tmp_path / "data")
    with pytest.raises(ConfigError, match="with one row in 3, and these cannot move to or from mapped files"):
        ReplayBuffer.load(tmp_path / "data", storage=MappedFiles(tmp_path / "rows"))


def test_a_folder_is_never_overwritten(tmp_path):
    buffer, _ = filled(12, 1, 3)
    buffer.save(tmp_path / "data")
    with pytest.raises(ConfigError, match="data exists already; give another name or delete it"):
        buffer.save(tmp_path / "data")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        buffer.save(tmp_path / "file" / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a saved buffer, which no test changes."""
    directory = tmp_path_factory.mktemp("saved") / "data"
    filled(40, 2, 33)[0].save(directory)
    return directory


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), kind=st.sampled_from(["flip", "cut", "gone"]))
def test_bit_flips_and_truncation_are_found_and_named(saved, tmp_path_factory, data, kind):
    """F11: any bit of any file, any length."""
    copy = tmp_path_factory.mktemp("copy") / "data"
    shutil.copytree(saved, copy)
    file = copy / data.draw(st.sampled_from(["buffer.json", "manifest.json", "rows.safetensors"]))
    content = bytearray(file.read_bytes())
    if kind == "gone":
        file.unlink()
    elif kind == "cut":
        file.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(content)
    try:
        found = json.loads(file.read_text()) if kind == "flip" and file.name == "manifest.json" else None
    except ValueError:
        found = None
    if found is not None and found == json.loads((saved / "manifest.json").read_text()):
        return  # a bit of white space
    with pytest.raises(CheckpointError, match=r"(buffer.json|manifest.json|rows.safetensors)|no readable manifest"):
        ReplayBuffer.load(copy)


class Canary:
    """Whoever unpickles it leaves a trace."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("slot", ["buffer.json", "manifest.json", "rows.safetensors"])
@pytest.mark.parametrize("resealed", [False, True])
def test_a_pickle_in_any_slot_is_refused_and_never_run(saved, tmp_path, slot, resealed):
    """F12: also where the manifest was made to fit."""
    shutil.copytree(saved, tmp_path / "data")
    trace = tmp_path / "trace"
    (tmp_path / "data" / slot).write_bytes(pickle.dumps(Canary(trace)))
    if resealed and slot != "manifest.json":
        from palaestra.core.files import seal

        seal(tmp_path / "data", 1)
    with pytest.raises(CheckpointError, match=slot.replace(".", r"\.")):
        ReplayBuffer.load(tmp_path / "data")
    assert not trace.exists()
    pickle.loads((tmp_path / "data" / slot).read_bytes()).close()
    assert trace.exists()  # the canary sings where it is let out


def test_a_path_out_of_the_folder_and_a_newer_format_are_refused(saved, tmp_path):
    """F12, F13."""
    from palaestra.core import files

    for change, message in (
        ({"files": {"../x": {}}}, "missing or damaged"),
        ({"format_version": 9}, "has format 9, this version reads 1: update"),
    ):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        shutil.copytree(saved, tmp_path / "data")
        manifest = json.loads((saved / "manifest.json").read_text()) | change
        del manifest["sha256"]
        (tmp_path / "data" / "manifest.json").write_text(json.dumps(manifest | {"sha256": files._digest(manifest)}))
        with pytest.raises(CheckpointError, match=message):
            ReplayBuffer.load(tmp_path / "data")
    assert ReplayBuffer.load(saved).draw(replay(), generator()).index.shape == (32,)


def test_a_loaded_buffer_is_data_that_stay(tmp_path):
    """TS-22: the last rows of an ended episode are drawn with n steps, too."""
    buffer, world = filled(60, 2, 25)
    buffer.save(tmp_path / "data")
    loaded = ReplayBuffer.load(tmp_path / "data")
    serials = loaded.take("observation", loaded.starts(4)).tolist()
    assert sorted(serials) == sorted(lane.stream[i].serial for lane in world.lanes for i in lane.starts(4, fixed=True))
    assert len(serials) > len(buffer.starts(4))


def test_data_that_an_update_had_used_stay_when_more_is_written(tmp_path):
    buffer, world = filled(40, 2, 10)
    buffer.writer.used = True
    buffer.save(tmp_path / "data")
    loaded = ReplayBuffer.load(tmp_path / "data")
    world.append(loaded)
    assert len(loaded) == 22


def test_what_is_loaded_into_a_buffer_that_was_saved_is_saved_as_it_is():
    """A roll-back: checkpoints link pieces whose keys are those of the one before."""
    buffer, _ = filled(40, 2, 12, seed=1)
    other, _ = filled(40, 2, 12, seed=2)
    shorter, _ = filled(40, 2, 5, seed=3)
    before = buffer.state_tensors()["segments"]
    for source in (other, shorter):
        buffer.load_state_tensors(source.state_tensors())
        found = buffer.state_tensors()
        assert found["segments"] != before
        assert torch.equal(found["field.reward"], source.state_tensors()["field.reward"])


def test_lanes_that_were_filled_one_by_one_are_drawn_from_alike_after_a_restart():
    """F25: equal random numbers mean the same rows."""
    buffer, _ = filled(40, 2, 1)
    for lane in (0, 1):
        for _ in range(8):
            buffer.append(torch.tensor([1]), step([MID], torch.tensor([lane])), env_id=[lane])
    twin = make_buffer(40, 2)
    twin.load_state_tensors(buffer.state_tensors())
    one, two = (source.draw(replay(), generator(4)) for source in (buffer, twin))
    assert torch.equal(one.index, two.index)
