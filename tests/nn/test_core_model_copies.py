"""Tests of `palaestra.nn.CoreModel`: sharing, synchronising, cloning and saving."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from palaestra.compat import create_algorithm_func
from palaestra.core import (
    CheckpointError,
    ConfigError,
    ShapeError,
    load_tensors,
    save_tensors,
)
from palaestra.nn import CoreModel, OptimizerOption
from tests.nn.models import STATES, MyACModel, ac_model, losses, moved, parameters, storages


def test_sharing_is_passing_the_same_object():
    """PARL-27, PARL-28, PARL-31: a layer gives equal outputs at each call; every user sees an update through one."""
    layer = nn.Linear(4, 2)
    assert torch.equal(layer(STATES), layer(STATES))
    assert not torch.equal(layer(STATES), nn.Linear(4, 2)(STATES))
    first = CoreModel({"shared": layer}, {"shared": OptimizerOption("sgd", {"lr": 0.1})})
    second = CoreModel(
        {"shared": layer, "own": nn.Linear(2, 1)}, {"own": OptimizerOption(), "shared": OptimizerOption()}
    )
    before = second.component["shared"](STATES)
    first.step(first.component["shared"](STATES).sum())
    assert not torch.equal(second.component["shared"](STATES), before)
    assert torch.equal(second.component["shared"](STATES), first.component["shared"](STATES))


def test_no_two_parameters_of_a_model_share_a_name():
    """PARL-28: a name begins with the component's; objects of one class made one after another are told apart by it."""
    parts = {"one": nn.Linear(4, 2), "two": nn.Linear(4, 2)}
    model = CoreModel(parts, {name: OptimizerOption() for name in parts})
    gradients = model.get_gradients(sum(layer(STATES).sum() for layer in parts.values()))
    assert list(gradients) == ["one.weight", "one.bias", "two.weight", "two.bias"]


def test_a_model_that_another_one_froze_says_so():
    layer = nn.Linear(4, 2)
    model = CoreModel({"net": layer}, {"net": OptimizerOption()})
    CoreModel({"target": layer}, {})
    with pytest.raises(ConfigError, match=r"\['net.weight', 'net.bias'\] were frozen after this model was built"):
        model.step(model.component["net"](STATES.requires_grad_()).sum())


def test_sync_copies_everything_to_another_model():
    """PARL-29: outputs differ before and are equal after, without naming a parameter; buffers too."""
    model, other = ac_model(0), ac_model(1)
    model.component["critic"].register_buffer("scale", torch.tensor(3.0))
    other.component["critic"].register_buffer("scale", torch.tensor(1.0))
    assert not torch.equal(model(STATES)[0], other(STATES)[0])
    model.sync_to(other)
    assert torch.equal(model(STATES)[0], other(STATES)[0])
    assert other.component["critic"].scale == 3
    model.step(sum(losses(model)))
    assert not torch.equal(model(STATES)[0], other(STATES)[0])


def test_sync_refuses_itself_other_classes_and_other_structures():
    """PARL-29."""
    model = ac_model()
    with pytest.raises(
        ConfigError, match="a model cannot be synchronised with itself; sharing is passing the same object"
    ):
        model.sync_to(model)
    with pytest.raises(ConfigError, match="MyACModel cannot be synchronised to CoreModel: classes differ"):
        model.sync_to(CoreModel({"q": nn.Linear(1, 1)}))
    with pytest.raises(ShapeError, match=r"the parameters differ: \['component.q.weight'\]"):
        CoreModel({"q": nn.Linear(2, 1)}).sync_to(CoreModel({"q": nn.Linear(3, 1)}))
    with pytest.raises(ShapeError, match=r"the parameters differ: \['bias'\]"):
        CoreModel({"a": nn.Linear(2, 1), "b": nn.Linear(2, 1, bias=False)}).sync("a", source="b")


def test_one_component_is_copied_or_moved_towards_another():
    """TS-12, PARL-14: target networks: target = (1 - tau) target + tau source; counters are copied."""
    model = CoreModel({"q": nn.Linear(3, 2), "target_q": nn.Linear(3, 2)}, {"q": OptimizerOption()})
    for component, count in (("q", 5), ("target_q", 0)):
        model.component[component].register_buffer("count", torch.tensor(count))
    q, target = model.component["q"], model.component["target_q"]
    expected = 0.75 * target.weight.detach() + 0.25 * q.weight.detach()
    model.polyak_update("target_q", source="q", tau=0.25)
    assert_close(target.weight.detach(), expected)
    assert target.count == 5
    assert not target.weight.requires_grad
    model.sync("target_q", source="q")
    assert torch.equal(target.weight, q.weight)
    assert target.weight.data_ptr() != q.weight.data_ptr()


@pytest.mark.parametrize("copier", [CoreModel.clone, copy.deepcopy], ids=["clone", "deepcopy"])
def test_a_clone_is_equal_shares_nothing_and_learns_on_by_itself(copier):
    """PARL-32."""
    model = ac_model()
    model.step(sum(losses(model)))
    twin = copier(model)
    assert type(twin) is MyACModel
    assert not storages(model) & storages(twin)
    for each in (model, twin):
        each.step(sum(losses(each)))
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_tensors().values(), twin.state_tensors().values(), strict=True)
    )
    before = parameters(model)
    twin.step(sum(losses(twin)))
    assert moved(before, model) == set()


def test_a_factory_makes_new_parameters_at_every_call():
    """PARL-30, PARL-32: from bottom to top, and nested: a factory of a pair of algorithms."""

    class Learner:
        def __init__(self, model_func, rate):
            self.model, self.rate = model_func(), rate

    def make_model(size):
        return CoreModel({"net": nn.Linear(size, 1)}, {"net": OptimizerOption()})

    make = create_algorithm_func(make_model, {"size": 3}, Learner, {"rate": 0.5})
    first, second = make(), make()
    assert (first.rate, first.model.component["net"].in_features) == (0.5, 3)
    assert not storages(first.model) & storages(second.model)

    class Pair:
        def __init__(self, model_func):
            self.learners = model_func(), model_func()

    pairs = create_algorithm_func(make, {}, Pair, {})
    seen = [storages(learner.model) for pair in (pairs(), pairs()) for learner in pair.learners]
    assert len(set.union(*seen)) == sum(map(len, seen))


def test_a_saved_model_goes_on_bit_for_bit(tmp_path):
    """F25: parameters, buffers and the optimizers' memory."""
    model = ac_model()
    for _ in range(3):
        model.step(sum(losses(model)))
    save_tensors(tmp_path / "model", model.state_tensors())
    other = ac_model(seed=5)
    other.load_state_tensors(load_tensors(tmp_path / "model"))
    for each in (model, other):
        each.step(sum(losses(each)))
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_tensors().values(), other.state_tensors().values(), strict=True)
    )


def test_a_state_of_another_model_is_refused():
    """F11."""
    state = ac_model().state_tensors()
    with pytest.raises(CheckpointError, match=r"(?s)the saved parameters do not fit this model: .*size mismatch"):
        ac_model().load_state_tensors({**state, "model.component.actor.weight": torch.zeros(1, 1)})
    with pytest.raises(CheckpointError, match="the saved optimizer state does not fit adam"):
        ac_model().load_state_tensors({k: v for k, v in state.items() if "optimizer.actor.exp_avg." not in k})
