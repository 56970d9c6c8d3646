"""Tests of `palaestra.policies.artefact`."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from palaestra.core import (
    BoundedSpec,
    CheckpointError,
    ConfigError,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    TensorSpec,
    save_tensors,
)
from palaestra.nn import NetworkConfig
from palaestra.policies import (
    CategoricalPolicy,
    CompositePolicy,
    EpsilonGreedy,
    GaussianPolicy,
    Phase,
    RandomPolicy,
    ValueGreedyPolicy,
    artefact,
    load_policy,
    save_policy,
)

SPEC = {"x": TensorSpec((4,)), "pose": (TensorSpec((2,), torch.float64), DiscreteSpec(num=3, start=1))}
BOX = BoundedSpec((2,), minimum=np.array([-1.0, 0.0]), maximum=np.array([1.0, 4.0]))
SMALL = NetworkConfig(hidden_sizes=(8, 4), activation="relu")
POLICIES = {
    "categorical": lambda: CategoricalPolicy.build(SPEC, DiscreteSpec(num=3, start=2), SMALL, normalize=True),
    "composite": lambda: CompositePolicy.build(
        SPEC, {"box": (BOX,), "gear": MultiDiscreteSpec(nvec=(2, 3)), "lamps": MultiBinarySpec((2, 2))}, SMALL
    ),
    "recurrent": lambda: CategoricalPolicy.build(
        SPEC, DiscreteSpec(num=3), NetworkConfig(hidden_sizes=(8,), recurrent="lstm", recurrent_size=5)
    ),
    "gaussian": lambda: GaussianPolicy.build(SPEC, BOX, dataclasses.replace(SMALL, initial_log_std=-1.5)),
    "value-greedy": lambda: ValueGreedyPolicy.build(
        SPEC,
        DiscreteSpec(num=3),
        NetworkConfig(hidden_sizes=(8,), dueling=True),
        normalize=True,
        exploration=EpsilonGreedy(3, 1.0),
    ),
}


def observation(count=20):
    draw = np.random.default_rng(0).normal
    return {"x": draw(size=(count, 4)), "pose": (draw(size=(count, 2)), np.full(count, 2))}


def trained(make):
    policy = make()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(3.0)
    if policy.normalizer is not None:
        policy.normalizer.merge(policy.normalizer.moments._replace(count=torch.tensor(5.0).double()))
    return policy


@pytest.fixture
def saved(tmp_path):
    save_policy(POLICIES["categorical"](), tmp_path)
    return tmp_path


@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES.keys())
def test_a_loaded_policy_acts_alike(make, tmp_path):
    policy = trained(make)
    save_policy(policy, tmp_path / "new" / "policy")
    generator = torch.random.get_rng_state()
    loaded = load_policy(tmp_path / "new" / "policy")
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert type(loaded) is type(policy)
    assert loaded.phase is Phase.EVAL
    assert (loaded.observation_spec, loaded.action_spec) == (policy.observation_spec, policy.action_spec)
    np.testing.assert_equal(loaded(observation()), policy(observation()))
    for each in (policy, loaded):
        each.seed(1)
    sampled = [each(observation(), deterministic=False) for each in (policy, loaded)]
    np.testing.assert_equal(*sampled)


def test_the_clip_of_a_normaliser_survives(tmp_path):
    policy = POLICIES["categorical"]()
    policy.normalizer.clip = 3.0
    save_policy(policy, tmp_path)
    assert load_policy(tmp_path).normalizer.clip == 3.0


def test_an_artefact_is_replaced_and_is_two_files(saved):
    save_policy(POLICIES["gaussian"](), saved)
    assert sorted(path.name for path in saved.iterdir()) == ["policy.json", "weights.safetensors"]
    assert isinstance(load_policy(saved), GaussianPolicy)


@pytest.mark.parametrize("again", ["fails", "dies", "succeeds"])
def test_a_save_after_one_that_was_killed_loses_nothing(again, saved, monkeypatch):
    """The only description of the weights that were there was its scratch file, which it deleted when it failed."""
    new, newer, replace = POLICIES["gaussian"](), POLICIES["composite"](), Path.replace

    def killed(path, target):
        if path.name == "policy.json.tmp":
            raise KeyboardInterrupt
        return replace(path, target)

    def killed_earlier(path, target):  # with its own description written
        if path.name == "weights.safetensors.tmp":
            raise KeyboardInterrupt
        return replace(path, target)

    def full(path, tensors):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_policy(new, saved)
    monkeypatch.setattr(Path, "replace", replace if again != "dies" else killed_earlier)
    assert isinstance(load_policy(saved), GaussianPolicy)
    if again == "succeeds":
        save_policy(newer, saved)
        assert isinstance(load_policy(saved), CompositePolicy)
        return
    if again == "fails":
        monkeypatch.setattr(artefact, "save_tensors", full)
    with pytest.raises((OSError, KeyboardInterrupt)):
        save_policy(newer, saved)
    assert isinstance(load_policy(saved), GaussianPolicy)


def test_a_policy_with_a_network_of_its_own_is_refused(tmp_path):
    policy = CategoricalPolicy(nn.Linear(4, 2), TensorSpec((4,)), DiscreteSpec(num=2))
    with pytest.raises(ConfigError, match="CategoricalPolicy was not made by `build`"):
        save_policy(policy, tmp_path)
    with pytest.raises(ConfigError, match="RandomPolicy was not made by `build`"):
        save_policy(RandomPolicy(TensorSpec((4,)), DiscreteSpec(num=2)), tmp_path)


def test_the_directory_above_is_told_which_one_was_meant(tmp_path):
    save_policy(POLICIES["categorical"](), tmp_path / "policy")
    with pytest.raises(CheckpointError, match=r"there is no policy.json in .*; did you mean .*/policy\? Give the dir"):
        load_policy(tmp_path)


def rewrite(directory, **changes):
    path = directory / "policy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", ["policy.json", "weights.safetensors"])
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(CheckpointError, match=f"there is no {name} in .*; give the directory that save_policy wrote"):
        load_policy(saved)


def test_an_unknown_format_says_what_to_do(saved):
    rewrite(saved, format=99)
    with pytest.raises(CheckpointError, match="has the format 99; this version reads format 1: load it with"):
        load_policy(saved)


def test_an_unknown_class_is_named_and_a_class_of_ones_own_can_be_given(saved):
    rewrite(saved, policy="CategoricalPolicyy")
    with pytest.raises(ConfigError, match=r"'CategoricalPolicyy' — did you mean 'CategoricalPolicy'.*classes="):
        load_policy(saved)
    mine = type("CategoricalPolicyy", (CategoricalPolicy,), {})
    assert type(load_policy(saved, classes=[mine])) is mine


def test_text_that_is_no_json_is_refused(saved):
    (saved / "policy.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read: it is no JSON"):
        load_policy(saved)


@pytest.mark.parametrize(
    "changes",
    [{"network": {"hidden_sizes": [8], "depth": 3}}, {"network": None}, {"observation_spec": {}}, {"normalizer": {}}],
    ids=["unknown key", "no network", "no spec", "no clip"],
)
def test_a_description_that_cannot_be_built_is_refused(saved, changes):
    rewrite(saved, **changes)
    with pytest.raises(CheckpointError, match="does not describe a CategoricalPolicy"):
        load_policy(saved)


def test_weights_of_another_artefact_are_noticed(saved, tmp_path):
    save_policy(POLICIES["categorical"](), tmp_path / "other")
    (tmp_path / "other" / "weights.safetensors").replace(saved / "weights.safetensors")
    with pytest.raises(CheckpointError, match=r"is not the file that policy\.json was written with"):
        load_policy(saved)


def test_damaged_weights_are_refused(saved):
    (saved / "weights.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="cannot be read as a safetensors file"):
        load_policy(saved)


def test_weights_that_do_not_fit_are_refused(saved):
    network = json.loads((saved / "policy.json").read_text())["network"]
    rewrite(saved, network=network | {"hidden_sizes": [9]})
    with pytest.raises(CheckpointError, match="do not fit CategoricalPolicy"):
        load_policy(saved)


@pytest.mark.parametrize("sizes", [[-5, 8], [10**6, 10**6], [10**9]])
def test_layers_out_of_all_proportion_are_refused_before_memory_is_asked_for(saved, sizes):
    network = json.loads((saved / "policy.json").read_text())["network"]
    rewrite(saved, network=network | {"hidden_sizes": sizes})
    with pytest.raises(CheckpointError, match=r"does not describe a CategoricalPolicy .*(at least 1|far more than)"):
        load_policy(saved)


class Brightness(nn.Module):
    """Few weights for however large a picture."""

    def __init__(self, observation_spec) -> None:
        super().__init__()
        self.layer = nn.Linear(observation_spec.shape[0], 3)

    def forward(self, observation):
        return self.layer(observation.float().mean((2, 3)))


def test_a_small_network_for_large_pictures_is_made_again(tmp_path):
    """Two zero rows of the observation, which the encoder is called with, were more than its weights allowed."""
    film = TensorSpec((3, 1080, 1920), torch.uint8)
    network = NetworkConfig(hidden_sizes=(8,), encoder=Brightness)
    save_policy(CategoricalPolicy.build(film, DiscreteSpec(num=2), network), tmp_path)
    assert load_policy(tmp_path).observation_spec == film


@pytest.mark.parametrize("shape", [[3, 2**20, 2**10], [2**40, 4]])
def test_observations_out_of_all_proportion_are_refused_before_memory_is_asked_for(shape, tmp_path):
    network = NetworkConfig(hidden_sizes=(8,), encoder=Brightness)
    save_policy(CategoricalPolicy.build(TensorSpec((3, 4, 4)), DiscreteSpec(num=2), network), tmp_path)
    spec = json.loads((tmp_path / "policy.json").read_text())["observation_spec"]
    rewrite(tmp_path, observation_spec=spec | {"shape": shape})
    with pytest.raises(CheckpointError, match=r"does not describe a Categ.* far more than its weights and obs"):
        load_policy(tmp_path)


def test_no_weight_file_can_run_code(saved):
    # safetensors holds numbers only: an object is refused when it is written
    with pytest.raises(TypeError, match="dtype object"):
        save_tensors(saved / "weights.safetensors", {"x": np.array([print], dtype=object)})


class Own(nn.Module):
    """An encoder that an artefact names."""

    def __init__(self, observation_spec) -> None:
        super().__init__()
        self.layer = nn.Linear(observation_spec.size, 3)

    def forward(self, observation):
        return self.layer(observation)


def make_own(observation_spec) -> Own:
    return Own(observation_spec)


def make_untold(observation_spec) -> "OnlyForCheckers":
    return Own(observation_spec)


def make_something(observation_spec):
    return Own(observation_spec)


ROW = TensorSpec((4,))
NAMED = Own(ROW)
NAMES = ("Own", "make_own", "make_untold", "NAMED")


def saved_with(encoder, directory):
    policy = CategoricalPolicy.build(ROW, DiscreteSpec(num=2), NetworkConfig(encoder=encoder))
    save_policy(policy, directory)
    return policy


@pytest.mark.parametrize("encoder", [Own, make_own, *(f"{__name__}:{name}" for name in NAMES)])
def test_an_encoder_with_a_name_is_made_again(encoder, tmp_path):
    policy = saved_with(encoder, tmp_path)
    x = np.random.default_rng(0).normal(size=(50, 4))
    loaded = load_policy(tmp_path)
    assert (loaded(x) == policy.eval()(x)).all()
    assert loaded.network_config.encoder == (encoder if isinstance(encoder, str) else f"{__name__}:{encoder.__name__}")


@pytest.mark.parametrize("encoder", [lambda spec: Own(spec), Own(ROW)])
def test_an_encoder_without_a_name_has_to_be_given(encoder, tmp_path):
    policy = saved_with(encoder, tmp_path)
    with pytest.raises(ConfigError, match=r"without a name .*(Own|lambda).* load_policy\(directory, network=\.\.\.\)"):
        load_policy(tmp_path)
    x = np.random.default_rng(0).normal(size=(50, 4))
    assert (load_policy(tmp_path, network=Own)(x) == policy.eval()(x)).all()


def test_a_file_makes_nothing_be_called_that_makes_no_module(tmp_path):
    saved_with(make_something, tmp_path)
    with pytest.raises(ConfigError, match=r"does not say that it makes a module.*load_policy\(directory, network="):
        load_policy(tmp_path)
    assert load_policy(tmp_path, network=make_something)([0.0] * 4) in (0, 1)


def test_an_encoder_that_is_gone_or_was_never_there_is_said(tmp_path):
    saved_with(Own, tmp_path / "own")
    description = tmp_path / "own" / "policy.json"
    description.write_text(description.read_text().replace(":Own", ":Owm"))
    with pytest.raises(ConfigError, match=r"names the encoder '.*:Owm': .*did you mean 'Own'.*network=\.\.\."):
        load_policy(tmp_path / "own")
    saved_with(None, tmp_path / "ours")
    assert "encoder" not in json.loads((tmp_path / "ours" / "policy.json").read_text())["network"]
    with pytest.raises(ConfigError, match="has no encoder of your own; leave out network="):
        load_policy(tmp_path / "ours", network=Own)
