"""Tests of CrossQ, against a plain transcription of its paper's code, and of batch normalisation in losses."""

import pytest
import torch
from torch.nn.functional import linear
from torch.testing import assert_close

from palaestra.algorithms import ALGORITHMS, CrossQConfig
from palaestra.core import ConfigError, NonFiniteError
from palaestra.nn import NetworkConfig
from palaestra.testing.algorithms import different, whole_state
from tests.algorithms.parts import collected, environment, first_minibatch, make

BATCH_NORM = NetworkConfig(hidden_sizes=(8,), activation="relu", batch_norm=True)


def ready(**settings):
    """An algorithm away from its start, and its next minibatch."""
    algorithm, collector = collected("crossq", "batch-norm", network=BATCH_NORM, policy_period=1, **settings)
    for _ in range(3):
        algorithm.update(collector.buffer)
    return algorithm, first_minibatch(algorithm, collector.buffer)


# -- a plain transcription of github.com/adityab/CrossQ, sbx/crossq: networks, update_critic, update_actor


def layers_of(state, prefix, member=None):
    """Plain tensors (weight, bias, gain, shift, running mean, running variance) of each layer."""
    found = []
    for number in range(2):
        keys = ("weight", "bias", "norm.gain", "norm.shift", "norm.mean", "norm.variance")
        values = [state[f"component.{prefix}layers.{number}.{key}"].detach().clone() for key in keys]
        if member is not None:
            values = [value[member] for value in values]
            values = [values[0].T, *(value.squeeze(0) for value in values[1:])]
        found.append([value.requires_grad_(place < 4) for place, value in enumerate(values)])
    return found


def network(layers, x, train):
    """Normalise, then a dense layer, twice; and the new running averages."""
    new = []
    for number, (weight, bias, gain, shift, running_mean, running_variance) in enumerate(layers):
        mean, variance = running_mean, running_variance
        if train:
            mean, variance = x.mean(0), ((x - x.mean(0)) ** 2).mean(0)
            new += [0.99 * running_mean + 0.01 * mean, 0.99 * running_variance + 0.01 * variance]
        x = linear((x - mean) / torch.sqrt(variance + 0.001) * gain + shift, weight, bias)
        x = x.relu() if number == 0 else x
    return x, new


def actions(outputs, noise):
    """Of a normal distribution pressed into [-1, 1], with their log-probabilities."""
    mean, log_std = outputs.chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    before = mean + normal.stddev * noise
    log_prob = normal.log_prob(before) - torch.log(1 - torch.tanh(before) ** 2)
    return torch.tanh(before), log_prob.sum(-1)


def test_losses_gradients_and_running_averages_are_those_of_a_plain_transcription():
    """Bhatt et al. 2024, figure 3: one call for both ends, the lesser of two as the target, no target network."""
    algorithm, batch = ready(gamma=0.9)
    state = algorithm.model.state_dict()
    actor = layers_of(state, "actor.mlp.")
    critics = [layers_of(state, "critic.", member) for member in range(2)]
    alpha = state["component.temperature.log"].exp().detach()
    with torch.no_grad():
        next_action, next_log_prob = actions(network(actor, batch.next_observation, False)[0], batch.next_noise)
    x = torch.cat([batch.observation, batch.next_observation])
    a = torch.cat([batch.action, next_action])
    outs = [network(critic, torch.cat([x, a], -1), True) for critic in critics]
    (q1, next1), (q2, next2) = (out[:, 0].chunk(2) for out, _ in outs)
    target = (batch.reward + batch.bootstrap * (torch.min(next1, next2) - alpha * next_log_prob)).detach()
    critic_loss = 0.5 * ((target - q1) ** 2).mean() + 0.5 * ((target - q2) ** 2).mean()
    outputs, actor_averages = network(actor, batch.observation, True)
    action, log_prob = actions(outputs, batch.noise)
    pairs = torch.cat([batch.observation, action], -1)
    least = torch.min(*[network(critic, pairs, False)[0][:, 0] for critic in critics])
    actor_loss = (alpha * log_prob - least).mean()

    gradients = algorithm.gradients(batch)
    assert_close(gradients.metrics["critic"], critic_loss.detach(), rtol=1e-4, atol=1e-5)
    assert_close(gradients.metrics["actor"], actor_loss.detach(), rtol=1e-4, atol=1e-5)
    for number in range(2):
        for place, key in enumerate(("weight", "bias", "norm.gain", "norm.shift")):
            (plain,) = torch.autograd.grad(actor_loss, actor[number][place], retain_graph=True)
            assert_close(gradients.values[f"actor.mlp.layers.{number}.{key}"], plain, rtol=1e-3, atol=1e-5)
            for member, critic in enumerate(critics):
                (plain,) = torch.autograd.grad(critic_loss, critic[number][place], retain_graph=True)
                mine = gradients.values[f"critic.layers.{number}.{key}"][member]
                assert_close(mine.T if place == 0 else mine.squeeze(0), plain, rtol=1e-3, atol=1e-5)
    algorithm.apply(gradients)
    state = algorithm.model.state_dict()
    for place, key in enumerate(("0.norm.mean", "0.norm.variance", "1.norm.mean", "1.norm.variance")):
        assert_close(state[f"component.actor.mlp.layers.{key}"], actor_averages[place], rtol=1e-4, atol=1e-5)
        for member, (_, averages) in enumerate(outs):
            assert_close(state[f"component.critic.layers.{key}"][member, 0], averages[place], rtol=1e-4, atol=1e-5)


def test_adam_and_the_delay_are_those_of_the_paper():
    """The paper's code: beta1 is 0.5; actor and temperature move, with their averages, at every third step."""
    algorithm, collector = collected("crossq", "batch-norm", network=BATCH_NORM, policy_period=3, gradient_steps=1)
    moved = []
    for _ in range(6):
        before = {key: tensor.clone() for key, tensor in algorithm.model.state_dict().items()}
        algorithm.update(collector.buffer)
        changed = [key for key, tensor in algorithm.model.state_dict().items() if not torch.equal(tensor, before[key])]
        moved.append({key.split(".")[1] for key in changed})
        assert "component.critic.layers.1.norm.variance" in changed
    assert moved == [{"critic"}, {"critic"}, {"critic", "actor", "temperature"}] * 2
    optimizers = algorithm.model.optimizers
    assert optimizers["actor"].option.params["betas"] == optimizers["critic"].option.params["betas"] == (0.5, 0.999)
    assert int(algorithm.model.component["actor"].get_submodule("mlp.layers.0.norm").steps) == 2
    assert CrossQConfig().policy_period == 3 and CrossQConfig().network.batch_norm


def test_acting_reads_running_averages_and_one_row_at_a_time():
    """An action does not depend on which other environments there are."""
    algorithm, batch = ready()
    policy = algorithm.policy
    together = policy.distribution(batch.observation).mean
    apart = torch.cat([policy.distribution(batch.observation[i : i + 1]).mean for i in range(len(batch.observation))])
    assert_close(together, apart)


def test_it_learns_without_batch_normalisation_too():
    """For comparison: then rows do not mix, and gradients may be put together from parts."""
    algorithm, collector = collected("crossq", "continuous", policy_period=1)
    assert not algorithm.mixes_rows
    assert algorithm.gradients(first_minibatch(algorithm, collector.buffer)).moments == {"critic": [], "actor": []}
    algorithm.update(collector.buffer)


# -- the contract


def test_a_gradient_that_is_not_finite_leaves_running_averages_as_they_were(monkeypatch):
    """F23."""
    algorithm, batch = ready()
    gradients = algorithm.gradients(batch)
    gradients.values["critic.layers.0.bias"].fill_(torch.nan)
    before = whole_state(algorithm)
    with pytest.raises(NonFiniteError, match="'critic'"):
        algorithm.apply(gradients)
    assert not different(before, whole_state(algorithm))


@pytest.mark.parametrize("name", ["sac", "evolution_strategies"])
def test_algorithms_that_do_not_learn_with_batch_normalisation_say_so(name):
    with (
        environment("continuous", 1) as env,
        pytest.raises(ConfigError, match=r"leave out network\.batch_norm, or the network.block that has it"),
    ):
        make(name, env, network=BATCH_NORM)
    assert {one for one, kind in ALGORITHMS.items() if kind.batch_norm} == {"crossq", "flash_sac", "xqc"}


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
def test_a_compiled_step_moves_running_averages_as_an_eager_one_does():
    results = []
    for compiled in (False, True):
        algorithm, collector = collected("crossq", "batch-norm", network=BATCH_NORM, policy_period=3)
        if compiled:
            torch.compiler.reset()
            algorithm.compile()
        for _ in range(4):
            algorithm.update(collector.buffer)
        results.append(algorithm.model.state_dict())
    assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
