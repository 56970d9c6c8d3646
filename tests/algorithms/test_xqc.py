"""Tests of XQC, against a plain transcription of its paper's code, and of weights that keep their length."""

import pytest
import torch
from torch.nn.functional import linear, one_hot
from torch.testing import assert_close

from palaestra import NetworkConfig
from palaestra.algorithms import SAC, XQC, RewardScale, SACConfig, XQCConfig
from palaestra.core import ConfigError, NonFiniteError
from palaestra.nn import MLP, CoreModel, EnsembleNetwork, OptimizerOption, UnitLinear
from palaestra.nn.network import mlp_of
from palaestra.testing.algorithms import different, whole_state
from tests.algorithms.parts import collected, environment, first_minibatch
from tests.algorithms.test_crossq import actions


def ready(**settings):
    """An algorithm away from its start, and its next minibatch."""
    algorithm, collector = collected("xqc", "unit-vectors", policy_period=1, **settings)
    for _ in range(3):
        algorithm.update(collector.buffer)
    return algorithm, first_minibatch(algorithm, collector.buffer)


# -- a plain transcription of github.com/danielpalenicek/xqc: networks, update_critic, update_actor, norm_network


def network(state, prefix, member=None):
    """Plain tensors by name, of one network or of a member of an ensemble."""
    found = {name.removeprefix(prefix): value.detach().clone() for name, value in state.items()}
    found = {name: found[name] for name in found if name.startswith("layers.")}
    if member is not None:
        found = {name: value[member] if value.ndim else value for name, value in found.items()}
        found = {name: value.T if name.endswith("weight") else value.squeeze(0) for name, value in found.items()}
        found = {name.replace("norm.norm", "norm").replace("0.norm", "0"): value for name, value in found.items()}
    return {name: value.requires_grad_(value.is_floating_point()) for name, value in found.items()}


def norm(parameters, prefix, x, train):
    mean, variance = parameters[f"{prefix}.mean"].detach(), parameters[f"{prefix}.variance"].detach()
    if train:
        mean, variance = x.mean(0), ((x - x.mean(0)) ** 2).mean(0)
    return (x - mean) / torch.sqrt(variance + 0.001) * parameters[f"{prefix}.gain"] + parameters[f"{prefix}.shift"]


def outputs(parameters, x, train):
    """Normalise, a dense layer without bias, normalise, ReLU, and the last dense layer."""
    x = norm(parameters, "layers.0", x, train)
    x = norm(parameters, "layers.1.norm", linear(x, parameters["layers.1.linear.weight"]), train).relu()
    return linear(x, parameters["layers.2.weight"], parameters["layers.2.bias"])


def projected(probs, reward, bootstrap, cost, atoms):
    """`categorical_td_loss` of the paper's code."""
    count, low, high = len(atoms), atoms[0], atoms[-1]
    values = (reward[:, None] + bootstrap[:, None] * (atoms - cost[:, None])).clamp(low, high)
    b = ((values - low) / ((high - low) / (count - 1))).clamp(0, count - 1)
    lower, upper = b.floor(), b.ceil()
    to_lower, to_upper = probs * (upper + (lower == upper) - b), probs * (b - lower)
    places = one_hot(lower.long(), count), one_hot(upper.long(), count)
    return (to_lower[..., None] * places[0] + to_upper[..., None] * places[1]).sum(1)


def test_losses_and_gradients_are_those_of_a_plain_transcription():
    """Palenicek et al. 2025: both ends in one call, the target network too; the whole distribution of the lesser."""
    algorithm, batch = ready(gamma=0.9, num_atoms=11, min_return=-2.0, max_return=2.0, initial_temperature=0.3)
    state = algorithm.model.state_dict()
    scale = algorithm.reward_scale()
    assert scale > 1
    atoms, alpha = torch.linspace(-2, 2, 11), state["component.temperature.log"].exp()
    actor = network(state, "component.actor.mlp.")
    critics, targets = (
        [network(state, f"component.{name}.", k) for k in range(2)] for name in ("critic", "target_critic")
    )
    with torch.no_grad():
        next_action, next_log_prob = actions(outputs(actor, batch.next_observation, False), batch.next_noise)
        x = torch.cat([batch.observation, batch.next_observation])
        pairs = torch.cat([x, torch.cat([batch.action, next_action])], -1)
        probs = torch.stack([outputs(target, pairs, True).chunk(2)[1].softmax(-1) for target in targets])
        least = (probs @ atoms).argmin(0)
        chosen = torch.stack([probs[k, row] for row, k in enumerate(least)])
        wanted = projected(chosen, batch.reward / scale, batch.bootstrap, alpha * next_log_prob, atoms)
    assert len(set(least.tolist())) == 2
    logs = [outputs(critic, pairs, True).chunk(2)[0].log_softmax(-1) for critic in critics]
    critic_loss = sum(-(wanted * log).sum(-1).mean() for log in logs)
    action, log_prob = actions(outputs(actor, batch.observation, True), batch.noise)
    pairs = torch.cat([batch.observation, action], -1)
    q = torch.stack([outputs(critic, pairs, False).softmax(-1) @ atoms for critic in critics])
    actor_loss = (alpha * log_prob - q.amin(0)).mean()

    gradients = algorithm.gradients(batch)
    assert_close(gradients.metrics["critic"], critic_loss.detach(), rtol=1e-4, atol=1e-5)
    assert_close(gradients.metrics["actor"], actor_loss.detach(), rtol=1e-4, atol=1e-5)
    for name in ("layers.0.gain", "layers.1.linear.weight", "layers.1.norm.shift", "layers.2.weight", "layers.2.bias"):
        (plain,) = torch.autograd.grad(actor_loss, actor[name], retain_graph=True)
        assert_close(gradients.values[f"actor.mlp.{name}"], plain, rtol=1e-3, atol=1e-5)
        mine = gradients.values[f"critic.{name.replace('0.', '0.norm.').replace('1.norm', '1.norm.norm')}"]
        for member, critic in enumerate(critics):
            (plain,) = torch.autograd.grad(critic_loss, critic[name], retain_graph=True)
            assert_close(mine[member].T if "weight" in name else mine[member].squeeze(0), plain, rtol=1e-3, atol=1e-5)


def lengths(algorithm, component):
    parameters = dict(algorithm.model.component[component].named_parameters())
    return [value.norm(dim=1) for name, value in parameters.items() if name.endswith("weight")]


def test_after_each_step_all_weights_have_length_1_again():
    """`norm_network`: columns of every dense layer, of the last one too; biases and normalisations are free."""
    algorithm, collector = collected("xqc", "unit-vectors", policy_period=1, learning_rate=0.1)
    before = algorithm.critic.layers[1].linear.weight.detach().clone()
    algorithm.update(collector.buffer)
    for length in (*lengths(algorithm, "critic"), *lengths(algorithm, "actor")):
        assert_close(length, torch.ones_like(length))
    assert not torch.allclose(before, algorithm.critic.layers[1].linear.weight, atol=0.05)
    assert algorithm.critic.layers[-1].bias.abs().max() > 0.05
    targets = torch.cat([length.flatten() for length in lengths(algorithm, "target_critic")])
    assert (targets <= 1 + 1e-6).all() and (targets < 1 - 1e-6).any()  # averages of weights are shorter


@pytest.mark.parametrize("kind", ["adam", "sgd", "NAdam"])
@pytest.mark.parametrize("width", [4, 256])
def test_every_optimizer_keeps_lengths_and_turns_weights_as_it_would(kind, width):
    """Fused, in plain operations, of PyTorch; small ones work on one vector."""
    layer = UnitLinear(width, width)
    free = torch.nn.Linear(width, width)
    free.load_state_dict(layer.state_dict())
    option = {"net": OptimizerOption(kind, {"lr": 0.01})}
    models = [CoreModel({"net": one}, option) for one in (layer, free)]
    x = torch.randn(8, width, generator=torch.Generator().manual_seed(1))
    for model in models:
        model.step((model.component["net"](x) ** 2).sum())
    assert_close(layer.weight.norm(dim=1), torch.ones(width))
    assert_close(layer.weight, free.weight / free.weight.norm(dim=1, keepdim=True))
    assert_close(layer.bias, free.bias)


def test_a_gradient_that_is_not_finite_leaves_weights_as_they_were_bit_by_bit():
    """F23."""
    algorithm, batch = ready()
    gradients = algorithm.gradients(batch)
    gradients.values["critic.layers.2.bias"].fill_(torch.nan)
    before = whole_state(algorithm)
    with pytest.raises(NonFiniteError, match="'critic'"):
        algorithm.apply(gradients)
    assert not different(before, whole_state(algorithm))


def test_an_ensemble_of_blocks_is_its_members():
    config = NetworkConfig(hidden_sizes=(6, 5), activation="relu", block="xqc")
    members = [mlp_of(4, (6, 5), 2, config) for _ in range(3)]
    ensemble = EnsembleNetwork(environment("continuous", 1).observation_spec, 2, 3, config, action_size=1)
    with torch.no_grad():
        for k, member in enumerate(members):
            for layer in (1, 2):
                ensemble.layers[layer].linear.weight[k] = member.layers[layer].linear.weight.T
            ensemble.layers[3].weight[k] = member.layers[3].weight.T
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    seen, alone = [], [[] for _ in members]
    together = ensemble(x[:, :3], x[:, 3:], moments=seen)
    assert_close(together, torch.stack([m(x, own) for m, own in zip(members, alone, strict=True)]))
    for number, moment in enumerate(seen):
        assert_close(moment.squeeze(1), torch.stack([own[number] for own in alone]))
    assert_close(ensemble(x[:, :3], x[:, 3:], members=slice(1, 2))[0], members[1](x))


def test_units_start_with_length_1_and_without_bias():
    first = MLP(3, (8,), 2, activation="relu", layers="xqc").layers
    assert_close(first[1].linear.weight.norm(dim=1), torch.ones(8))
    assert first[1].linear.bias is None and not first[2].bias.any()
    assert_close(first[2].weight @ first[2].weight.T, torch.eye(2))


# -- the scale of rewards


def test_the_scale_brings_returns_of_rewards_that_keep_coming_to_half_of_the_outermost_atom():
    """2 √(mean r²) / ((1 − γ) m), a running mean of minibatches."""
    scale = RewardScale(5.0)
    assert scale() == 1
    scale.merge(torch.tensor([3.0, 4.0]), 0.9)
    assert scale().item() == pytest.approx(2 * (25 / 2) ** 0.5 * 10 / 5)
    scale.merge(torch.tensor([0.0, 0.0]), 0.9)
    assert scale().item() == pytest.approx(2 * (25 / 4) ** 0.5 * 10 / 5)
    scale.merge(torch.tensor([5.0]), 1.0)
    assert scale().item() == pytest.approx(2 * (25 / 2) ** 0.5 * 1000 / 5)
    scale.count.fill_(10_000)
    scale.merge(torch.tensor([0.0]), 0.9)
    assert scale().item() == pytest.approx(2 * (25 / 2 * 0.999) ** 0.5 * 10 / 5), "a thousand minibatches count"


@pytest.mark.parametrize(("name", "kind"), [("xqc", "unit-vectors"), ("flash_sac", "inverted-blocks")])
def test_sums_of_several_rewards_count_with_the_discount_of_what_follows_them(name, kind):
    """gamma ** 3 behind three rewards."""
    algorithm, collector = collected(name, kind, n_step=3, gamma=0.9)
    algorithm.update(collector.buffer)
    bound = algorithm.reward_scale.mean_square.sqrt().item() / (1 - 0.9**3)
    assert algorithm.reward_scale().item() == pytest.approx(2 * bound / algorithm.config.max_return, rel=1e-4)


def test_scaled_returns_stay_below_half_of_the_outermost_atom():
    rewards = torch.randn(5000, generator=torch.Generator().manual_seed(2)).cumsum(0).sin() + 0.5
    returns, squares = torch.zeros(1), list[torch.Tensor]()
    for reward in rewards:
        returns = reward + 0.9 * returns
        squares.append(returns**2)
    scale = RewardScale(5.0)
    scale.merge(rewards, 0.9)
    assert 0.5 < torch.stack(squares).mean().sqrt() / scale() <= 2.5


def test_what_was_learned_does_not_depend_on_the_unit_of_rewards():
    """But for the first update, before which there is no scale."""
    losses = []
    for factor in (1.0, 1000.0):
        algorithm, collector = collected("xqc", "unit-vectors")
        batch = first_minibatch(algorithm, collector.buffer)
        batch = batch.replace(reward=batch.reward * factor)
        algorithm.after_update(batch)
        losses.append(algorithm.losses(batch).terms["critic"])
    assert_close(losses[0], losses[1])


# -- numbers, and the contract


def test_numbers_are_those_of_the_papers_code_but_for_larger_steps():
    """conf/agent/base_agent.yaml; steps as the module says."""
    config = XQCConfig()
    assert config.policy_period == 3 and (config.learning_rate, config.tau) == (1e-3, 0.05)
    assert (config.num_atoms, config.min_return, config.max_return) == (101, -5.0, 5.0)
    with environment("continuous", 1) as env:
        algorithm = XQC(env.observation_spec, env.action_spec)
        assert algorithm.target_entropy == -1.0 and float(algorithm.temperature()) == pytest.approx(1e-2)
        with pytest.raises(ConfigError, match=r"num_atoms is 1, from min_return=-5\.0"):
            XQC(env.observation_spec, env.action_spec, XQCConfig(num_atoms=1))


def test_algorithms_that_do_not_learn_with_batch_normalisation_refuse_the_block():
    with environment("continuous", 1) as env, pytest.raises(ConfigError, match="does not learn with batch norm"):
        SAC(env.observation_spec, env.action_spec, SACConfig(network=NetworkConfig(block="xqc")))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
def test_a_compiled_step_learns_what_an_eager_one_does():
    results = []
    for compiled in (False, True):
        algorithm, collector = collected("xqc", "unit-vectors", policy_period=3)
        if compiled:
            torch.compiler.reset()
            algorithm.compile()
        for _ in range(4):
            algorithm.update(collector.buffer)
        results.append({name: value.clone() for name, value in algorithm.model.state_dict().items() if counts(name)})
    assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def counts(name):
    """Not the shift of inputs, which the next normalisation takes away with its mean: Adam makes steps of roundings."""
    return not name.endswith(("layers.0.shift", "layers.0.norm.shift", "layers.1.norm.mean", "layers.1.norm.norm.mean"))


def test_rewards_of_0_leave_the_scale_as_it_is():
    """It would shrink to nothing, and the first reward would lie beyond all atoms."""
    scale = RewardScale(5.0)
    for _ in range(3):
        scale.merge(torch.zeros(8), 0.99)
    assert float(scale()) == 1.0
    scale.merge(torch.ones(8), 0.99)
    assert float(scale()) > 1.0
