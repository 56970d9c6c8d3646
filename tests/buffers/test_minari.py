"""Tests of `palaestra.buffers.from_minari` and `to_minari`."""

import sys

import gymnasium
import numpy as np
import pytest
import torch

from palaestra.buffers import ReplayBuffer, from_minari, to_minari
from palaestra.core import (
    Batch,
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    MissingExtraError,
    ShapeError,
    TensorSpec,
    tree_leaves,
)
from palaestra.envs.contract.spaces import space_from_spec, spec_from_space
from palaestra.testing.buffers import FIRST, LAST, MID
from tests.buffers.model import filled, step

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


def of_one_episode(spec, action_spec, steps=3):
    """A buffer with an episode of values that the specs' dtypes hold."""
    numbers = np.random.default_rng(0)

    def made(leaf):
        if not isinstance(leaf, TensorSpec):
            items = leaf.items() if isinstance(leaf, dict) else enumerate(leaf)
            return Batch.of({str(key): made(child) for key, child in items})
        return torch.from_numpy(numbers.integers(0, 2, (1, *leaf.shape))).to(leaf.dtype)

    buffer = ReplayBuffer(20, 1, observation_spec=spec, action_spec=action_spec)
    buffer.open(step([FIRST], made(spec)))
    for t in range(steps):
        buffer.append(made(action_spec), step([LAST if t == steps - 1 else MID], made(spec)))
    return buffer


def pixels(*shape, most=255):
    return BoundedSpec(shape, torch.uint8, minimum=np.zeros(shape), maximum=np.full(shape, most))


def written(buffer, name="palaestra/some-v0"):
    """The buffer as a dataset that has the spaces of its specs."""
    specs = {kind: buffer.options[f"{kind}_spec"] for kind in ("observation", "action")}
    return to_minari(buffer, name, **{f"{kind}_space": space_from_spec(spec) for kind, spec in specs.items()})


PICTURES = [(40, 40, 3), (40, 40), (84, 84, 1), (16, 16, 3), (12,), (128,), (84, 84, 4)]


@pytest.mark.parametrize("shape", PICTURES, ids=str)
@pytest.mark.parametrize("acted", [False, True], ids=["observation", "action"])
def test_what_minari_stores_as_jpeg_is_refused_before_anything_is_written(shape, acted, tmp_path):
    specs = ({"x": pixels(*shape)}, DiscreteSpec(num=2))
    buffer = of_one_episode(*(specs[::-1] if acted else specs))
    with pytest.raises(ConfigError, match=r"stores uint8 arrays such as (observation|action)\.x .* as JPEG.* floats"):
        written(buffer)
    assert not (tmp_path / "datasets").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("spec", [pixels(4, 40, 40), pixels(40, 40, 4, most=9), pixels(2, 3, 4, 1), pixels()], ids=str)
def test_other_uint8_arrays_come_back_as_they_were(spec):
    buffer = of_one_episode(spec, DiscreteSpec(num=2))
    loaded = from_minari(written(buffer), **{key: buffer.options[key] for key in ("observation_spec", "action_spec")})
    assert torch.equal(loaded.observation[...], buffer.observation[...])


BOX, DISCRETE = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(3)
NESTS = {
    "tuple": gymnasium.spaces.Tuple((DISCRETE, BOX)),
    "tuple in a dict": gymnasium.spaces.Dict(t=gymnasium.spaces.Tuple((DISCRETE, BOX)), x=BOX),
    "numbered dict": gymnasium.spaces.Dict({"0": DISCRETE, "1": BOX}),
}


def named(spec):
    """A spec whose tuples are dicts of numbers, as buffers have it."""
    if isinstance(spec, TensorSpec):
        return spec
    return {str(key): named(child) for key, child in (spec.items() if isinstance(spec, dict) else enumerate(spec))}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("plain", [False, True], ids=["as the environment", "with dicts for tuples"])
@pytest.mark.parametrize("space", NESTS.values(), ids=NESTS)
def test_tuples_are_tuples_where_the_space_says_so(space, plain):
    """And come back, whether specs have tuples or dicts in their place."""
    spec = spec_from_space(space)
    buffer = of_one_episode(named(spec) if plain else spec, named(spec) if plain else spec)
    own = written(buffer, "palaestra/own-v0")
    given = to_minari(buffer, "palaestra/given-v0", observation_space=space, action_space=space)
    assert given.observation_space == space
    (episode,) = given.iterate_episodes()
    assert type(episode.observations) is (tuple if isinstance(space, gymnasium.spaces.Tuple) else dict)
    for dataset in (own, given):
        for wanted in (spec, named(spec)):
            loaded = from_minari(minari.load_dataset(dataset.id), observation_spec=wanted, action_spec=wanted)
            one, two = buffer[buffer.in_time_order(0)], loaded[loaded.in_time_order(0)]
            for mine, theirs in ((one.observation, two.observation), (one.action[:-1], two.action[:-1])):
                assert all(torch.equal(a, b) for a, b in zip(tree_leaves(mine), tree_leaves(theirs), strict=True))
    with pytest.raises(
        ShapeError, match=r"observation has the parts .*, but its space has \[\]; give the environment's"
    ):
        to_minari(buffer, "palaestra/wrong-v0", observation_space=BOX, action_space=space)


@pytest.mark.parametrize(
    ("given", "dtype", "fits"),
    [
        (np.array([[0.5], [1.0]]), torch.uint8, False),
        (np.array([[2.0], [1.0]]), torch.uint8, True),
        (np.array([[-1], [1]]), torch.uint8, False),
        (np.array([[300], [1]]), torch.uint8, False),
        (np.array([[np.nan], [1.0]]), torch.int64, False),
        (np.array([[2], [1]]), torch.bool, False),
        (np.array([[1], [2**24 + 1]]), torch.float32, False),
        (np.array([[1], [2]], np.int32), torch.int64, True),
        (np.array([[0.1], [1e300]]), torch.float64, True),
        (np.array([[0.1], [np.nan]]), torch.float32, "have the value nan in row 1"),
    ],
)
def test_values_that_a_spec_cannot_hold_are_refused(given, dtype, fits):
    class Episode:
        observations, actions, rewards = given, np.zeros(1), np.ones(1)
        terminations = truncations = np.ones(1, bool)

    class Dataset:
        id, total_steps, total_episodes = "x", 1, 1

        def iterate_episodes(self):
            return [Episode()]

    specs = {"observation_spec": TensorSpec((1,), dtype), "action_spec": DiscreteSpec(num=3)}
    if fits is True:
        held = from_minari(Dataset(), **specs)
        assert (
            torch.equal(held.observation[held.in_time_order(0)], torch.from_numpy(given).to(dtype)) or given[0] == 0.1
        )
    else:
        wanted = str(dtype).removeprefix("torch.")
        said = fits or f"are {given.dtype}, but {wanted} is needed, .* convert them"
        with pytest.raises(ShapeError, match=f"observations of the dataset {said}"):
            from_minari(Dataset(), **specs)
    Episode.observations, Episode.rewards = np.zeros((2, 1)), np.array([np.inf])
    with pytest.raises(ShapeError, match="rewards of the dataset have the value inf in row 0"):
        from_minari(Dataset(), **specs)
    Episode.actions, Episode.rewards = np.array([1.9]), np.ones(1)
    with pytest.raises(ShapeError, match="actions of the dataset are float64, but int64 is needed"):
        from_minari(Dataset(), **specs)


def as_minari_writes(shape, most=255):
    """A dataset of four pictures that `to_minari` would not write, and the pictures."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    ramp = np.linspace(40, 200, int(np.prod(shape)), dtype=np.uint8).reshape(shape)  # which JPEG keeps about as it is
    seen = np.stack([ramp + 10 * number for number in range(4)])
    ends = {"terminations": [False, False, True], "truncations": [False] * 3}
    episode = EpisodeBuffer(id=0, observations=seen, actions=np.zeros(3, int), rewards=[0.0] * 3, **ends)
    space = gymnasium.spaces.Box(0, most, shape, np.uint8)
    minari.create_dataset_from_buffers("jpeg/some-v0", [episode], observation_space=space, action_space=DISCRETE)
    return seen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("shape", "most"), [((40, 36, 3), 254), ((40, 40), 254), ((40, 40, 3), 255)], ids=str)
def test_pictures_that_minari_gives_back_as_jpeg_are_decoded(shape, most, caplog):
    """Those of fewer values come as bytes of another length each: `the shape (4,), but (4, 40, 36, 3) is needed`."""
    seen = as_minari_writes(shape, most)
    loaded = from_minari("jpeg/some-v0", observation_spec=pixels(*shape), action_spec=SPECS["action_spec"])
    found = loaded.observation[loaded.in_time_order(0)].numpy()
    assert found.shape == (4, *shape) and np.abs(found.astype(int) - seen).mean() < 8
    assert (caplog.text.count("lie there as JPEG") == 1) == (most == 254)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("shape", "wanted", "words"),
    [
        ((36, 36, 3), (3, 36, 36), r"lie there as pictures of the shape \(36, 36, 3\), but \(3, 36, 36\) is needed"),
        ((40, 36), (36, 40), r"pictures of the shape \(40, 36\), but \(36, 40\)"),
        ((7, 7, 3), (3, 7, 7), r"pictures of the shape \(7, 7, 3\), but \(3, 7, 7\)"),
        ((7, 7, 3), (7, 7, 3), r"of these vectors or small pictures of shape \(7, 7, 3\) beyond use"),
        ((31, 40, 3), (31, 40, 3), "small pictures"),
        ((40, 31), (40, 31, 1), "small pictures"),
        ((40, 40), (40, 40, 1), None),
        ((32, 32, 3), (32, 32, 3), None),
    ],
    ids=str,
)
def test_pictures_of_another_layout_and_codes_are_refused(shape, wanted, words):
    """Of (7, 7, 3) as (3, 7, 7) the pixels were anywhere; MiniGrid's codes of (7, 7, 3) others after JPEG."""
    seen = as_minari_writes(shape, 254)
    given = {"observation_spec": pixels(*wanted), "action_spec": SPECS["action_spec"]}
    if words is None:
        found = from_minari("jpeg/some-v0", **given).observation[...].numpy().astype(int)
        assert np.abs(found[:3] - seen[:3].reshape(3, *wanted)).mean() < 8
    else:
        with pytest.raises(ShapeError, match=words):
            from_minari("jpeg/some-v0", **given)


@pytest.mark.filterwarnings("ignore")
def test_vectors_that_minari_stored_as_jpeg_are_said_to_be_lost():
    as_minari_writes((128,))
    with pytest.raises(
        ShapeError, match=r"observations of the dataset lie there as JPEG, .*record them as another dtype"
    ):
        from_minari("jpeg/some-v0", observation_spec=pixels(128), action_spec=SPECS["action_spec"])
