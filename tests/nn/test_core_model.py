"""Tests of `palaestra.nn.CoreModel`: components, optimizers and gradients."""

import re

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
)
from palaestra.nn import CoreModel, EnsembleNetwork, OptimizerOption, combine_gradients
from palaestra.nn import optimizer as optimizer_module
from palaestra.policies import CategoricalPolicy
from tests.nn.models import OPTIONS, STATES, ac_model, losses, moved, parameters


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
    assert {name: round(float(optimizer.learning_rate), 9) for name, optimizer in model.optimizers.items()} == {
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


@pytest.mark.parametrize("name", ["forward", "values", "a.b", ""])
def test_a_component_cannot_be_called_as_modules_call_their_own(name):
    with pytest.raises(ConfigError, match="a component cannot have such a name"):
        CoreModel({name: nn.Linear(2, 2)}, {})


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


def test_parameters_that_the_user_froze_stay_frozen():
    """A pretrained layer in a trained component: no gradient, no optimizer, no change."""
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    network[0].requires_grad_(False)
    model = CoreModel({"q": network}, {"q": OptimizerOption("adam", {"weight_decay": 0.1})})
    before = parameters(model)
    model.step(network(torch.ones(1, 2)).sum())
    assert [parameter.requires_grad for parameter in network.parameters()] == [False, False, True, True]
    assert model.optimizers["q"].names == ("q.1.weight", "q.1.bias")
    changed = [name for name, value in parameters(model).items() if not torch.equal(before[name], value)]
    assert changed == ["component.q.1.weight", "component.q.1.bias"]


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


def test_a_step_along_a_vector_is_that_of_its_parts_as_gradients():
    model, twin = ac_model(), ac_model()
    gradients = {name: value for name, value in model.get_gradients(sum(losses(model))).items() if "actor" in name}
    vector = torch.cat([value.flatten() for value in gradients.values()])
    model.apply_gradients([gradients])
    assert twin.apply_vector("actor", vector).keys() == {"actor"}
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


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


@pytest.mark.parametrize("way", ["vectors", "one by one", "compiled"])
@pytest.mark.parametrize("poisoned", ["representation", "actor", "critic"])
def test_where_one_gradient_is_not_finite_no_component_changes(poisoned, way, monkeypatch):
    """F23: neither parameters nor what optimizers remember, whichever component comes first."""
    if way == "one by one":
        monkeypatch.setattr(optimizer_module, "_SMALL", 0)
    model = ac_model()
    apply = model.apply_gradients
    if way == "compiled":
        torch.compiler.reset()
        apply = torch.compile(model.apply_gradients, fullgraph=True, dynamic=False, backend="eager")
    gradients = model.get_gradients(sum(losses(model)))
    apply([gradients])
    before = {name: tensor.clone() for name, tensor in model.state_tensors().items()}
    bad = {name: value * torch.nan if name.startswith(poisoned) else value for name, value in gradients.items()}
    norms = apply([bad])
    assert [name for name, norm in norms.items() if not norm.isfinite()] == [poisoned]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_tensors().items())
    apply([gradients])
    assert all(optimizer.steps == 2 for optimizer in model.optimizers.values())


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
    assert float(model.optimizers["critic"].learning_rate) == pytest.approx(0.0001)


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


def test_checkpoints_with_the_old_names_of_an_ensembles_layers_load():
    model = CoreModel({"critic": EnsembleNetwork(TensorSpec((3,)), 1, 2)}, {"critic": OptimizerOption()})
    saved = {name: tensor + 1 for name, tensor in model.state_tensors().items()}
    old = {re.sub(r"layers\.(\d)\.weight", r"weights.\1", name): tensor for name, tensor in saved.items()}
    old = {re.sub(r"layers\.(\d)\.bias", r"biases.\1", name): tensor for name, tensor in old.items()}
    assert "optimizer.critic.exp_avg.critic.weights.0" in old
    model.load_state_tensors(old)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_tensors().items())


def test_a_checkpoint_without_a_network_that_is_new_is_refused_by_its_name():
    """MuZero had no slow copy of its network: random targets would be learned from."""
    old = CoreModel({"network": nn.Linear(2, 2)}, {})
    new = CoreModel({"network": nn.Linear(2, 2), "rest": nn.Identity(), "target_network": nn.Linear(2, 2)}, {})
    with pytest.raises(CheckpointError, match=r"made this checkpoint, without target_network, so that learning cannot"):
        new.load_state_tensors(old.state_tensors())


class Scaled(CoreModel):
    """Has a parameter beside its components."""

    def __init__(self, scale: float) -> None:
        super().__init__({"network": nn.Linear(2, 2)}, {})
        self.scale = nn.Parameter(torch.tensor(scale))


def test_parameters_beside_components_are_put_back():
    model = Scaled(1.0)
    model.load_state_tensors(Scaled(2.0).state_tensors())
    assert model.scale.item() == 2.0
