"""Tests of `palaestra.nn.CoreModel`."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from palaestra.core import (
    CheckpointError,
    ConfigError,
    DiscreteSpec,
    Linear,
    ShapeError,
    TensorSpec,
    load_tensors,
    save_tensors,
)
from palaestra.nn import CoreModel, OptimizerOption, combine_gradients, create_algorithm_func
from palaestra.policies import CategoricalPolicy


class MyACModel(CoreModel):
    """The document's actor-critic with a shared bottom stack."""

    def forward(self, states, actor=True, critic=True):
        features = self.component["representation"](states)
        return (
            self.component["actor"](features) if actor else None,
            self.component["critic"](features) if critic else None,
        )


OPTIONS = {
    "representation": OptimizerOption(cls="adam", params={"lr": 0.0001}),
    "actor": OptimizerOption(cls="adam", params={"lr": 0.001}),
    "critic": OptimizerOption(cls="rmsprop", params={"lr": 0.0001}),
}
STATES = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def ac_model(seed=0, options=None):
    torch.manual_seed(seed)
    representation_stack = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    actor_head, critic_head = nn.Linear(8, 2), nn.Linear(8, 1)
    return MyACModel(
        {"representation": representation_stack, "actor": actor_head, "critic": critic_head},
        optim_option=OPTIONS if options is None else options,
    )


def losses(model, states=STATES):
    logits, value = model(states)
    return logits.log_softmax(-1)[:, 0].mean(), (value - 1).square().mean()


def parameters(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def moved(before, model):
    """Components whose parameters changed."""
    return {name.split(".")[1] for name, value in model.named_parameters() if not torch.equal(before[name], value)}


def test_the_shared_bottom_snippet_of_maro():
    """MARO-32, MARO-34: components by name, each head on demand; an unrequested head gives `None`."""
    model = ac_model()
    logits, value = model(STATES)
    assert logits.shape == (6, 2)
    assert value.shape == (6, 1)
    assert model(STATES, critic=False)[1] is None
    assert model(STATES, actor=False)[0] is None


def test_each_component_has_its_own_optimizer_and_learning_rate():
    """MARO-35: three optimizers; the first Adam step moves every weight by its learning rate."""
    model = ac_model()
    assert [model.optimizers[name].option.cls for name in OPTIONS] == ["adam", "adam", "rmsprop"]
    assert {name: float(optimizer.learning_rate) for name, optimizer in model.optimizers.items()} == {
        "representation": 0.0001,
        "actor": 0.001,
        "critic": 0.0001,
    }
    before = parameters(model)
    critic_loss, actor_loss = losses(model)[::-1]
    model.step(critic_loss + actor_loss)
    assert moved(before, model) == {"representation", "actor", "critic"}
    steps = {name: (before[name] - value).abs().max().item() for name, value in model.named_parameters()}
    assert steps["component.actor.weight"] == pytest.approx(0.001, rel=1e-3)
    assert steps["component.representation.0.weight"] == pytest.approx(0.0001, rel=1e-3)
    assert steps["component.critic.weight"] == pytest.approx(0.0001 / 0.01**0.5, rel=1e-3)  # RMSprop: g / √(0.01 g²)


def test_a_step_equals_torch_optimizers_side_by_side():
    """MARO-35, MARO-37."""
    model, twin = ac_model(), ac_model()
    references = [
        torch.optim.Adam(twin.component["representation"].parameters(), lr=0.0001),
        torch.optim.Adam(twin.component["actor"].parameters(), lr=0.001),
        torch.optim.RMSprop(twin.component["critic"].parameters(), lr=0.0001),
    ]
    for _ in range(5):
        model.step(sum(losses(model)))
        for reference in references:
            reference.zero_grad()
        sum(losses(twin)).backward()
        for reference in references:
            reference.step()
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(left, right, rtol=1e-5, atol=1e-7)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("option", [{}, {"critic": None}], ids=["missing", "None"])
def test_a_component_without_an_option_is_frozen(option):
    """MARO-35: a missing key, or `None`, is not trainable."""
    options = {name: value for name, value in OPTIONS.items() if name != "critic"} | option
    model = ac_model(options=options)
    before = parameters(model)
    model.step(sum(losses(model)))
    assert moved(before, model) == {"representation", "actor"}
    assert set(model.get_gradients(sum(losses(model)))) == {
        "representation.0.weight",
        "representation.0.bias",
        "actor.weight",
        "actor.bias",
    }


def test_a_model_without_optimizers_says_so():
    """MARO-35: MARO's MissingOptimizer."""
    model = ac_model(options={})
    with pytest.raises(ConfigError, match=r"no optimizer trains any of the components \['representation'"):
        model.step(sum(losses(model)))
    with pytest.raises(ConfigError, match="no optimizer trains 'acter' — did you mean 'actor'"):
        ac_model().get_gradients(sum(losses(ac_model())), ["acter"])


def test_options_must_name_components():
    """F27."""
    with pytest.raises(ConfigError, match=r"optimizers are given for \['criti'\], but the components are \['q'\]"):
        CoreModel({"q": nn.Linear(1, 1)}, {"criti": OptimizerOption()})


def test_a_parameter_has_one_optimizer():
    shared = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="the components 'a' and 'b' both train 'weight'; leave it to one of them"):
        CoreModel({"a": shared, "b": shared}, {"a": OptimizerOption(), "b": OptimizerOption()})
    for names in (("frozen", "trained"), ("trained", "frozen")):
        model = CoreModel(dict.fromkeys(names, shared), {"trained": OptimizerOption()})
        model.step(model.component["frozen"](torch.ones(1, 2)).sum())


def test_gradients_are_named_and_leave_the_model_alone():
    """MARO-38: name → gradient, equal to autograd's."""
    model, twin = ac_model(), ac_model()
    before = parameters(model)
    gradients = model.get_gradients(sum(losses(model)))
    sum(losses(twin)).backward()
    expected = {name.removeprefix("component."): value.grad for name, value in twin.named_parameters()}
    assert gradients.keys() == expected.keys()
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)
    assert moved(before, model) == set()


def test_a_term_touches_the_named_components_alone():
    """PARL-10: an actor's term leaves the critic without gradient, also where the graph goes through it."""
    model = ac_model()
    actor_loss, critic_loss = losses(model)
    gradients = model.get_gradients(actor_loss + critic_loss, ["actor"], retain_graph=True)
    assert {name.split(".")[0] for name in gradients} == {"actor"}
    unused = model.get_gradients(critic_loss, ["actor", "critic"])
    assert {name.split(".")[0] for name in unused} == {"critic"}


def test_applying_one_gradient_is_a_step():
    """MARO-37, MARO-39: apply([g]) equals step, bit for bit; and the norm before clipping comes back."""
    model, twin = ac_model(), ac_model()
    model.step(sum(losses(model)))
    gradients = twin.get_gradients(sum(losses(twin)))
    norms = twin.apply_gradients([gradients])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    actor = torch.cat([gradients["actor.weight"].flatten(), gradients["actor.bias"]])
    assert norms.keys() == {"representation", "actor", "critic"}
    assert norms["actor"].item() == pytest.approx(actor.norm().item(), rel=1e-5)


def test_gradients_of_several_sources_are_averaged():
    """MARO-39: the document's snippet; apply([g0, g1]) equals one step on the mean of the losses."""
    ac_model_0, ac_model_1, model, twin = (ac_model() for _ in range(4))
    other_states = STATES.flip(0) * 2
    grad_dict_list = []
    grad_dict_list.append(ac_model_0.get_gradients(sum(losses(ac_model_0))))
    grad_dict_list.append(ac_model_1.get_gradients(sum(losses(ac_model_1, other_states))))
    model.apply_gradients(grad_dict_list)
    twin.step((sum(losses(twin)) + sum(losses(twin, other_states))) / 2)
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(left, right, rtol=1e-5, atol=1e-7)


def test_shards_are_weighted_by_their_rows():
    """MARO-30: unequal shards, weighted, give the gradient of the whole; the plain mean does not."""
    model = ac_model()
    parts = [model.get_gradients(sum(losses(model, rows))) for rows in (STATES[:1], STATES[1:])]
    whole = model.get_gradients(sum(losses(model)))
    weighted, plain = combine_gradients(parts, [1, 5]), combine_gradients(parts)
    for name, gradient in whole.items():
        assert_close(weighted[name], gradient, rtol=1e-5, atol=1e-6)
    assert any((plain[name] - gradient).abs().max() > 1e-3 for name, gradient in whole.items())
    assert all((value == 0).all() for value in combine_gradients(parts, [0, 0]).values())


def test_a_source_without_a_component_counts_as_zero():
    """MARO-39: TD3's delayed actor: what no source covers keeps its optimizer's memory as it is."""
    model = ac_model()
    critic = model.get_gradients(losses(model)[1], ["critic"])
    actor = model.get_gradients(losses(model)[0], ["actor"])
    combined = combine_gradients([critic, actor])
    assert_close(combined["critic.weight"], critic["critic.weight"] / 2)
    before = parameters(model)
    assert model.apply_gradients([critic]).keys() == {"critic"}
    assert moved(before, model) == {"critic"}
    assert float(model.optimizers["actor"].steps) == 0
    partial = {"actor.weight": actor["actor.weight"]}
    model.apply_gradients([partial])
    assert moved(before, model) == {"critic", "actor"}


def test_gradients_that_do_not_fit_are_refused():
    """MARO-39: nothing is dropped in silence."""
    model = ac_model()
    gradients = model.get_gradients(sum(losses(model)))
    with pytest.raises(ShapeError, match=r"the gradients \['acter.weight'\] belong to no trained parameter"):
        model.apply_gradients([{**gradients, "acter.weight": torch.zeros(1)}])
    with pytest.raises(ShapeError, match="2 gradients and 1 weights were given; one weight each is needed"):
        model.apply_gradients([gradients, gradients], [1.0])
    with pytest.raises(ShapeError, match="no gradients were given"):
        model.apply_gradients([])


def test_applied_gradients_are_not_changed():
    """A worker may keep what it sent: clipping works on a copy."""
    options = {name: OptimizerOption("sgd", {"lr": 0.1}, max_grad_norm=1e-3) for name in OPTIONS}
    for kind in (options, {name: OptimizerOption("adam", {}, 1e-3) for name in OPTIONS}):
        model = ac_model(options=kind)
        gradients = model.get_gradients(sum(losses(model)))
        kept = {name: value.clone() for name, value in gradients.items()}
        model.apply_gradients([gradients])
        assert all(torch.equal(gradients[name], kept[name]) for name in kept)


def test_learning_rates_follow_their_schedules():
    """MARO-35: a schedule per component."""
    model = ac_model(options={**OPTIONS, "actor": OptimizerOption("adam", {"lr": Linear(0.01, 0.0)})})
    model.set_progress(0.75)
    assert float(model.optimizers["actor"].learning_rate) == pytest.approx(0.0025)
    assert float(model.optimizers["critic"].learning_rate) == 0.0001


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


def same_state(model, other):
    """Whether parameters and optimizer memory are bit-equal."""
    states = zip(model.state_tensors().values(), other.state_tensors().values(), strict=True)
    return all(torch.equal(left, right) for left, right in states)


def storages(model):
    tensors = [*model.state_tensors().values(), *(o.learning_rate for o in model.optimizers.values())]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


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


def test_get_action_is_a_view_of_the_policy():
    """MARO-36: stochastic actions and their log-probabilities for a batch of states."""
    policy = CategoricalPolicy.build(TensorSpec((4,)), DiscreteSpec(num=3))
    ac_model = CoreModel({"policy": policy.network}, {"policy": OptimizerOption()})
    with pytest.raises(ConfigError, match="no policy acts with this model; call attach_policy"):
        ac_model.get_action(STATES)
    ac_model.attach_policy(policy)
    action, log_p = ac_model.get_action(STATES)
    assert action.shape == log_p.shape == (6,)
    assert_close(log_p, policy.distribution(STATES).log_prob(action))
    assert "policy" not in dict(ac_model.named_children())
    assert ac_model.clone().optimizers.keys() == {"policy"}


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
