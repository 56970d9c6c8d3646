"""Tests of `palaestra.buffers.from_minari` and `to_minari`."""

import sys

import gymnasium
import numpy as np
import pytest
import torch

from palaestra.buffers import ReplayBuffer, from_minari, to_minari
from palaestra.core import Batch, DiscreteSpec, MissingExtraError, ShapeError, TensorSpec
from tests.buffers.model import FIRST, LAST, MID, filled, step

SPACES = {
    "observation_space": gymnasium.spaces.Dict(
        {
            "x": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32),
            "n": gymnasium.spaces.Box(0, 9, (1,), np.int64),
        }
    ),
    "action_space": gymnasium.spaces.Discrete(3),
}
SPECS = {
    "observation_spec": {"x": TensorSpec((2,)), "n": TensorSpec((1,), torch.int64)},
    "action_spec": DiscreteSpec(num=3),
}
minari = pytest.importorskip("minari", reason="the extra `offline`")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Datasets go where the test looks."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


def collected():
    """Two lanes with terminated and truncated episodes, one of them still running."""
    buffer = ReplayBuffer(60, 2, **SPECS)
    serial = 0

    def arrived(kinds, discount):
        nonlocal serial
        serial += 1
        x = torch.tensor([[serial, 0.5], [serial, 1.5]])
        n = torch.full((2, 1), serial % 10)
        return step(kinds, Batch(x=x, n=n), torch.tensor([float(serial), -serial]), torch.tensor(discount))

    buffer.open(arrived([FIRST, FIRST], [1.0, 1.0]))
    kinds = [(MID, MID), (LAST, MID), (FIRST, LAST), (MID, FIRST), (LAST, MID), (FIRST, MID)]
    discounts = [(1.0, 1.0), (0.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0)]
    for i, (kind, discount) in enumerate(zip(kinds, discounts, strict=True)):
        buffer.append(torch.tensor([i % 3, (i + 1) % 3]), arrived(list(kind), list(discount)))
    return buffer


@pytest.mark.filterwarnings("ignore")
def test_episodes_go_to_minari_and_come_back():
    """Both directions: observations of nests, actions, rewards, and how each episode ended."""
    buffer = collected()
    dataset = to_minari(buffer, "palaestra/test-v0", **SPACES, author="test")
    assert (dataset.total_episodes, dataset.total_steps) == (3, 7)
    ends = [(bool(e.terminations[-1]), bool(e.truncations[-1])) for e in dataset.iterate_episodes()]
    assert sorted(ends) == [(False, True), (False, True), (True, False)]
    for loaded in (from_minari("palaestra/test-v0", **SPECS), from_minari(dataset, **SPECS)):
        mine, theirs = buffer.episodes(), loaded.episodes()
        assert len(mine) == len(theirs) == 3
        for rows, again in zip(mine, theirs, strict=True):
            one, two = buffer[rows], loaded[again]
            assert torch.equal(one.observation.x, two.observation.x)
            assert torch.equal(one.observation.n, two.observation.n)
            assert torch.equal(one.action[:-1], two.action[:-1])
            assert torch.equal(one.reward[1:], two.reward[1:])
            assert two.reward[0] == 0  # nothing was done for it
            assert torch.equal(one.discount, two.discount)
            assert torch.equal(one.step_type, two.step_type)


@pytest.mark.parametrize("terminated", [False, True])
def test_only_the_last_step_of_an_episode_says_how_it_ended(terminated):
    class Episode:
        observations, actions, rewards = np.zeros((5, 4)), np.zeros(4), np.arange(1.0, 5.0)
        terminations, truncations = np.zeros(4, bool), np.zeros(4, bool)

    class Dataset:
        id, total_steps, total_episodes = "x", 4, 1

        def iterate_episodes(self):
            return [Episode()]

    (Episode.terminations if terminated else Episode.truncations)[-1] = True
    loaded = from_minari(Dataset(), observation_spec=TensorSpec((4,)), action_spec=SPECS["action_spec"])
    (rows,) = loaded.episodes()
    assert loaded[rows].step_type.tolist() == [FIRST, MID, MID, MID, LAST]
    assert loaded[rows].reward.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert loaded[rows].discount.tolist() == [1.0, 1.0, 1.0, 1.0, 0.0 if terminated else 1.0]


def test_data_that_does_not_fit_is_named():
    buffer = collected()

    class Episode:
        observations = np.zeros((3, 4))
        actions, rewards = np.zeros(2), np.zeros(2)
        terminations = truncations = np.zeros(2, bool)

    class Dataset:
        id, total_steps, total_episodes = "x", 2, 1

        def iterate_episodes(self):
            return [Episode()]

    spec = TensorSpec((5,))
    with pytest.raises(
        ShapeError, match=r"observations of the dataset have the shape \(3, 4\), but \(3, 5\) is needed"
    ):
        from_minari(Dataset(), observation_spec=spec, action_spec=SPECS["action_spec"])
    with pytest.raises(ShapeError, match="observations of the dataset do not have the parts of"):
        from_minari(Dataset(), **SPECS)
    broken = from_minari(Dataset(), observation_spec=TensorSpec((4,)), action_spec=SPECS["action_spec"])
    assert broken.episodes() == []  # it neither terminated nor was truncated
    assert broken.observation[0].dtype == torch.float32
    Dataset.total_steps = 0
    with pytest.raises(ShapeError, match="the dataset x has no rows"):
        from_minari(Dataset(), **SPECS)
    with pytest.raises(ShapeError, match="no episode lies in the buffer"):
        to_minari(filled(20, 1, 1)[0], "palaestra/none-v0", **SPACES)
    assert len(buffer) == 12


def test_without_the_extra_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(
        MissingExtraError, match=r"reading a Minari dataset needs .* pip install 'palaestra\[offline\]'"
    ):
        from_minari("x", **SPECS)
