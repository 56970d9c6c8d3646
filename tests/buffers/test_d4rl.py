"""Tests of `palaestra.buffers.from_d4rl`, and of `d4rl:` on the command line."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.buffers import from_d4rl
from palaestra.core import BoundedSpec, ConfigError, MissingExtraError, Offline, Replay, ShapeError, TensorSpec
from palaestra.experiments import train
from palaestra.testing.buffers import FIRST, LAST, MID
from tests.cli.parts import exit_code

h5py = pytest.importorskip("h5py", reason="the extra `offline`")
SPECS = {
    "observation_spec": TensorSpec((2,)),
    "action_spec": BoundedSpec((1,), minimum=np.array(-2.0), maximum=np.array(2.0)),
}


def arrays(count: int = 9) -> dict[str, Any]:
    """Episodes of 4 (the task ends), 3 (cut off) and 2 transitions (the file ends)."""
    steps = np.arange(count, dtype=np.float32)
    return {
        "observations": np.stack([steps, -steps], 1),
        "actions": steps[:, None] / 8,
        "rewards": 10 * steps,
        "terminals": steps == 3,
        "timeouts": steps == 6,
    }


def written(path: Path, data: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for key, value in data.items():
            file[key] = value
        file["metadata/algorithm"] = "someone"
    return path


def rows_of(buffer: Any) -> list[tuple[Any, ...]]:
    """What can be learned from: observation, action, reward, discount and next observation of every transition."""
    drawn = buffer.draw(Replay(unroll_length=1, mini_batch_size=400), torch.Generator().manual_seed(0))
    columns = drawn.observation[:, 0], drawn.action[:, 0], drawn.reward[1], drawn.discount[1], drawn.next_observation
    parts = [column.reshape(len(drawn.observation), -1)[:, 0].tolist() for column in columns]
    return sorted({tuple(round(value, 4) for value in row) for row in zip(*parts, strict=True)})


def test_transitions_are_those_of_the_file(tmp_path):
    """A cut-off one leads nowhere in it, so it is left out and the one before is where the episode is cut off."""
    buffer = from_d4rl(written(tmp_path / "a.hdf5", arrays()), **SPECS)
    expected = [(i, i / 8, 10.0 * i, 0.0 if i == 3 else 1.0, i if i == 3 else i + 1) for i in (0, 1, 2, 3, 4, 5, 7)]
    assert rows_of(buffer) == expected
    kinds = [buffer[rows].step_type.tolist() for rows in buffer.episodes()]
    assert kinds == [[FIRST, MID, MID, MID, LAST], [FIRST, MID, LAST]]
    assert [buffer[rows].discount[-1].item() for rows in buffer.episodes()] == [0.0, 1.0]


def test_an_episode_that_the_file_has_no_end_of_stays_open(tmp_path):
    """It counted as one of 1 transition and the return 70, which returns to go and starts of episodes came from."""
    buffer = from_d4rl(written(tmp_path / "a.hdf5", arrays()), **SPECS)
    tail = buffer.in_time_order(0)[-2:]
    assert buffer.take("step_type", tail).tolist() == [FIRST, MID]
    assert buffer.unfinished().tolist() == tail[-1:].tolist()
    drawn = buffer.draw(Offline(mini_batch_size=64, mini_batch_length=1 + 1, returns=True), torch.Generator())
    assert drawn.episode_stats[:, 0].tolist() == [2.0, 60.0, 90.0, 75.0, 4.0]  # of 0 + 10 + 20 + 30 and 40 + 50
    ended = arrays() | {"timeouts": np.arange(9) == 8}
    assert len(from_d4rl(written(tmp_path / "b.hdf5", ended), **SPECS).episodes()) == 2  # 8 leads nowhere, 7 is cut off


def test_gaps_are_the_ends_of_a_file_that_has_no_timeouts(tmp_path, caplog):
    data = arrays()
    data["next_observations"] = data["observations"] + [1, -1]
    data["observations"][6:] += 100
    data["next_observations"][6:] += 100
    kinds = {}
    for key in ("timeouts", "none"):
        buffer = from_d4rl(written(tmp_path / f"{key}.hdf5", data), **SPECS)
        kinds[key] = [len(rows) - 1 for rows in buffer.episodes()]
        assert len(rows_of(buffer)) == 9
        data.pop(key, None)
    assert kinds == {"timeouts": [4], "none": [4, 2]}  # with timeouts, a gap before transition 6 is missing data
    assert caplog.text.count("1 times transitions are missing") == 1


def test_next_observations_are_taken_where_the_file_has_them(tmp_path):
    data = arrays()
    data["next_observations"] = data["observations"] + [1, -1]
    for key in ("timeouts", "none"):  # they say as well where an episode was cut off
        found = rows_of(from_d4rl(written(tmp_path / f"{key}.hdf5", data), **SPECS))
        assert [(row[0], row[-1]) for row in found] == [(i, i + 1) for i in range(9)]
        data.pop(key, None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rewards": None}, "needed are observations, actions, rewards, terminals, and timeouts or next_observations"),
        ({"timeouts": None}, r"has observations \(9, 2\), actions \(9, 1\), .*needed are"),
        ({"actions": np.zeros((8, 1))}, r"actions \(8, 1\)"),
        ({key: np.zeros((0, 1)) for key in arrays()}, "one at least"),
        ({"observations": np.zeros((9, 3))}, r"obs have the shape \(7, 3\), but \(7, 2\) is needed"),
    ],
    ids=["lacking", "no ends", "lengths", "empty", "shape"],
)
def test_a_file_that_does_not_fit_is_named(tmp_path, change, words):
    data = {key: value for key, value in (arrays() | change).items() if value is not None}
    with pytest.raises(ShapeError, match=words):
        from_d4rl(written(tmp_path / "a.hdf5", data), **SPECS)


ELSEWHERE = {
    "link to a file": lambda file: h5py.ExternalLink("/none.hdf5", "/rewards"),
    "link": lambda file: h5py.SoftLink("/metadata/rewards"),
    "bytes of a file": lambda file: file.create_dataset("x", (9,), "f4", external=[("/none", 0, 36)]),
    "texts": lambda file: ["a"] * 9,
    "group": lambda file: file["metadata"],
}


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_f12_a_file_reads_no_other(tmp_path, kind):
    with h5py.File(written(tmp_path / "a.hdf5", arrays()), "a") as file:
        del file["rewards"]
        file["rewards"] = ELSEWHERE[kind](file)
    with pytest.raises(ShapeError, match="has rewards that are no array of numbers in the file itself"):
        from_d4rl(tmp_path / "a.hdf5", **SPECS)


def test_f12_a_small_file_takes_no_more_memory_than_was_packed(tmp_path):
    """What was never written is not in the file, and read as zeros."""
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for key, value in arrays().items():
            file.create_dataset(key, (10**9, *value.shape[1:]), value.dtype, chunks=True)
    with pytest.raises(ShapeError, match=r"says that it holds 18,000,000,000 bytes; packed, a file of its size has"):
        from_d4rl(tmp_path / "a.hdf5", **SPECS)


def pendulum(path: Path, count: int = 400) -> Path:
    numbers = np.random.default_rng(0)
    return written(
        path,
        {
            "observations": numbers.uniform(-1, 1, (count, 3)).astype(np.float32),
            "actions": numbers.uniform(-2, 2, (count, 1)).astype(np.float32),
            "rewards": numbers.uniform(-1, 0, count).astype(np.float32),
            "terminals": np.zeros(count, bool),
            "timeouts": np.arange(count) % 50 == 49,
        },
    )


def test_an_offline_run_learns_from_such_a_file(tmp_path):
    settings = {"trainer__total_env_steps": 20, "trainer__eval_episodes": 1, "run__tensorboard": False}
    settings |= {"env__max_episode_steps": 20, "run__directory": str(tmp_path / "run")}
    done = train("td3_bc", "Pendulum-v1", offline__data=f"d4rl:{pendulum(tmp_path / 'a.hdf5')}", **settings)
    assert (done.result.status, done.result.env_steps) == ("done", 20)
    with pytest.raises(ConfigError, match="does not fit the environment: obs have the shape"):
        train("td3_bc", "MountainCarContinuous-v0", offline__data=f"d4rl:{tmp_path / 'a.hdf5'}", **settings)


def test_what_is_no_such_file_is_refused_on_the_command_line(tmp_path, capsys):
    (tmp_path / "text.hdf5").write_text("observations")
    for name, words in (
        ("none.hdf5", "there is no file"),
        ("text.hdf5", "cannot be loaded"),
        (".", "there is no file"),
    ):
        found = exit_code("train", "td3_bc", "Pendulum-v1", "--offline.data", f"d4rl:{tmp_path / name}")
        text = capsys.readouterr().err
        assert found == 2 and words in text and "give the path of an HDF5 file" in text


def test_without_h5py_the_message_says_how_to_get_it(tmp_path, monkeypatch):
    path = written(tmp_path / "a.hdf5", arrays())
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"reading a file of D4RL needs .* pip install 'palaestra\[offline\]'"):
        from_d4rl(path, **SPECS)
