"""Flipped bits in pieces of a replay buffer that checkpoints share (F11)."""

import json
import logging
from pathlib import Path

import pytest

import palaestra
from palaestra.buffers import PrioritizedSampler, saving
from palaestra.core import CheckpointError
from palaestra.testing.buffers import LAST, World
from palaestra.training import CheckpointStore
from tests.buffers.model import generator, make_buffer, replay
from tests.faults.parts import differences, run_contents
from tests.faults.test_resume import DQN, SMALL

LANES, ROWS = 2, 64


@pytest.fixture(autouse=True)
def many_segments(monkeypatch):
    """Of tiny buffers."""
    monkeypatch.setattr(saving, "_SMALLEST", 1)
    monkeypatch.setattr(saving, "_SEGMENTS", 8)


def saved(folder: Path, *, steps: int, checkpoints: int = 3, copies: int = 0):
    """A buffer, its model, and checkpoints of it, one row apart."""
    buffer, world = make_buffer(ROWS * LANES, LANES), World(LANES, ROWS)
    store = CheckpointStore(folder, copies=copies)
    world.open(buffer)
    for _ in range(steps):
        world.append(buffer)
    for number in range(1, checkpoints + 1):
        world.append(buffer)
        store.save(number, {"buffer": buffer.state_tensors()})
    return buffer, world, store


def flip(file: Path) -> None:
    """One bit, in the middle of the numbers."""
    content = bytearray(file.read_bytes())
    content[-8] ^= 4
    file.write_bytes(content)


def segments(path: Path) -> list[Path]:
    """The first copies in a checkpoint, in the order of the ring."""
    return sorted(path.glob("segment-*"), key=lambda file: int(file.name.split("-")[2]))


def flip_everywhere(store: CheckpointStore, number: int) -> None:
    """In one piece of every checkpoint; those that share a file share the bit."""
    for file in {(file := segments(path)[number]).stat().st_ino: file for path in store.steps()}.values():
        flip(file)


def transitions(world: World) -> set[tuple[int, int | None, float, int]]:
    """What can be learned from."""
    found = set()
    for lane in world.lanes:
        for i in lane.starts(1):
            row, after = lane.stream[i], lane.stream[i + 1]
            found.add((row.serial, row.action, after.reward, after.serial))
    return found


def drawable(buffer) -> set[tuple[int, int | None, float, int]]:
    """What a buffer can hand out, every transition once."""
    windows = buffer.windows(buffer.starts(1), 1)
    columns = (windows.observation, windows.action, windows.reward[1], windows.next_observation)
    return set(zip(*(column.tolist() for column in columns), strict=True))


def test_a_damaged_segment_is_noticed_when_it_is_shared_and_written_again(tmp_path, caplog):
    """D3: within four saves every shared segment was read; what memory holds takes the place of the damaged one."""
    buffer, world, store = saved(tmp_path, steps=40)
    flip(segments(store.steps()[-1])[1])
    for number in range(10, 14):
        world.append(buffer)
        path = store.save(number, {"buffer": buffer.state_tensors()})
    assert "is damaged, and is written again from memory" in caplog.text
    _, state = store.load(path)
    assert differences(buffer.state_tensors(), state["buffer"]) == []


def test_a_truncated_segment_is_noticed_at_once(tmp_path, caplog):
    """D3: sizes are compared in every save."""
    buffer, world, store = saved(tmp_path, steps=40)
    file = segments(store.steps()[-1])[2]
    file.write_bytes(file.read_bytes()[:-1])
    world.append(buffer)
    store.load(store.save(10, {"buffer": buffer.state_tensors()}))
    assert file.name in caplog.text


def test_the_newest_segments_have_a_second_copy(tmp_path, caplog):
    """D3: a bit of one of them costs nothing at all; copies are shared by checkpoints like everything else."""
    buffer, _, store = saved(tmp_path, steps=40, copies=3)
    path = store.steps()[-1]
    copies = sorted(path.glob("copy-of-segment-*"))
    assert len(copies) == 3
    assert any(copy.stat().st_nlink > 1 for copy in copies)
    for copy in copies:
        flip(path / copy.name.removeprefix("copy-of-"))
    assert differences(buffer.state_tensors(), store.load_newest()[1]["buffer"]) == []
    assert "its second copy is used" in caplog.text
    flip(copies[0])
    with pytest.raises(CheckpointError, match=r"segment-.* is missing or damaged"):
        store.load(path)


@pytest.mark.parametrize("steps", [40, 150], ids=["filling", "wrapped"])
@pytest.mark.parametrize("number", [0, 1, 3, 4])
def test_a_buffer_is_rebuilt_without_a_segment_that_no_checkpoint_has(tmp_path, caplog, steps, number):
    """D3: every transition that is left is a real one, wherever the hole is, and also after more rows were written."""
    _, world, store = saved(tmp_path, steps=steps)
    flip_everywhere(store, number)
    damaged = store.steps()
    for path in damaged:
        with pytest.raises(CheckpointError, match=r"segment-.* is missing or damaged"):
            store.load(path)
    with caplog.at_level(logging.WARNING):
        step, state = store.load_newest()
    assert step == 3
    assert "no checkpoint is whole, so" in caplog.text
    assert store.steps() == damaged, "they can be used again"
    again = make_buffer(ROWS * LANES, LANES, sampler=PrioritizedSampler())
    again.load_state_tensors(state["buffer"] | {f"sampler.{k}": v for k, v in again.sampler.state().items()})
    assert "rows of a replay buffer held is lost" in caplog.text
    real = transitions(world)
    left = drawable(again)
    assert left < real
    assert len(left) > 0.6 * len(real)
    for _ in range(2 * ROWS):
        world.append(again)
        assert drawable(again) <= transitions(world)
    drawn = again.draw(replay(mini_batch_size=64), generator())
    assert (drawn.step_type[0] != LAST).all()


def test_an_older_checkpoint_without_the_damaged_byte_comes_first(tmp_path):
    """D3: a bit costs the checkpoints that hold it, and no other; these are put aside."""
    _, _, store = saved(tmp_path, steps=40)
    newest = segments(store.steps()[-1])
    flip(next(file for file in newest if file.stat().st_nlink == 1))
    assert store.load_newest()[0] == 2
    assert [path.name for path in tmp_path.glob("*.corrupt")] == ["step_0000000003.corrupt"]


def test_a_run_goes_on_where_every_checkpoint_shares_the_damage(tmp_path, caplog):
    """D3: DQN, resumed; it says what is lost, and that it is not the run that it would have been."""
    settings = DQN | SMALL | {"trainer__total_env_steps": 240, "trainer__copied_segments": 0}
    settings |= {"run__directory": str(tmp_path), "run__tensorboard": False}
    done = palaestra.train("dqn", "CartPole-v1", run__name="run", **settings)
    flip_everywhere(CheckpointStore(done.directory / "checkpoints"), 0)
    again = palaestra.resume(done.directory, trainer__total_env_steps=300)
    assert again.result.status == "done"
    info = json.loads((done.directory / "run.json").read_text())
    assert info["resume"] == "statistical"
    assert info["resume_reasons"] == ["without rows of a replay buffer that were damaged"]
    assert "no checkpoint is whole" in caplog.text
    assert run_contents(done.directory)["step"] >= 300
