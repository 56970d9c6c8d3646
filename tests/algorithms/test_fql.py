"""Tests of FQL: against a plain transcription of its paper's code, and flows that lead where the data is."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from palaestra import load_policy, save_policy
from palaestra.algorithms import FQL, FQLConfig
from palaestra.core import Batch, ConfigError, StepType, TimeStep
from palaestra.nn import NetworkConfig
from palaestra.policies import OneStepPolicy, Phase
from tests.algorithms.parts import collected, environment, first_minibatch


def ready(**settings):
    """An algorithm away from its start, and its next minibatch."""
    algorithm, collector = collected("fql", "continuous", **settings)
    for _ in range(3):
        algorithm.update(collector.buffer)
    return algorithm, first_minibatch(algorithm, collector.buffer)


def plain(layers, member, activation):
    """A member of an ensemble as PyTorch's own layers."""
    made: list[nn.Module] = []
    for layer in layers:
        linear = nn.Linear(*layer.weight.shape[1:])
        with torch.no_grad():
            linear.weight.copy_(layer.weight[member].T)
            linear.bias.copy_(layer.bias[member, 0])
        made += [linear, *([] if layer is layers[-1] else [activation])]
    return nn.Sequential(*made)


@pytest.mark.parametrize(("together", "scaled"), [("mean", False), ("least", True)])
def test_losses_and_gradients_are_those_of_a_plain_transcription(together, scaled):
    """github.com/seohongpark/fql, agents/fql.py: critic_loss, actor_loss, compute_flow_actions."""
    network = NetworkConfig(hidden_sizes=(8,), activation="relu")
    algorithm, batch = ready(
        network=network, gamma=0.9, imitation_weight=3.0, next_value=together, normalize_value=scaled, flow_steps=4
    )
    relu = nn.ReLU()
    critics, targets = (
        [plain(one.layers, k, relu) for k in range(2)] for one in (algorithm.critic, algorithm.target_critic)
    )
    flow, actor = plain(algorithm.flow.layers, 0, relu), plain(algorithm.policy.network.layers, 0, relu)
    s, a, s2 = batch.observation, batch.action, batch.next_observation
    with torch.no_grad():
        after = actor(torch.cat([s2, batch.next_noise], -1)).clip(-1, 1)
        next_qs = torch.stack([target(torch.cat([s2, after], -1))[:, 0] for target in targets])
        next_q = next_qs.min(0).values if together == "least" else next_qs.mean(0)
        target_q = batch.reward + batch.bootstrap * next_q
    qs = torch.stack([critic(torch.cat([s, a], -1))[:, 0] for critic in critics])
    critic_loss = ((qs - target_q) ** 2).mean()
    x_t = (1 - batch.time) * batch.start + batch.time * a
    flow_loss = ((flow(torch.cat([s, x_t, batch.time], -1)) - (a - batch.start)) ** 2).mean()
    with torch.no_grad():
        wanted = batch.noise
        for i in range(4):
            wanted = wanted + flow(torch.cat([s, wanted, torch.full((len(s), 1), i / 4)], -1)) / 4
        wanted = wanted.clip(-1, 1)
    made = actor(torch.cat([s, batch.noise], -1))
    clipped = torch.cat([s, made.clip(-1, 1)], -1)
    q = torch.stack([critic(clipped)[:, 0] for critic in critics]).mean(0)
    actor_loss = 3.0 * ((made - wanted) ** 2).mean() - (q / batch.q_scale).mean()
    assert (batch.q_scale[0] == 1) != scaled and (batch.q_scale == batch.q_scale[0]).all()

    gradients = algorithm.gradients(batch)
    for name, loss in (("critic", critic_loss), ("flow", flow_loss), ("actor", actor_loss)):
        assert_close(gradients.metrics[name], loss.detach(), rtol=1e-4, atol=1e-5)
    for name, loss, plain_one in (
        ("flow", flow_loss, flow),
        ("actor", actor_loss, actor),
        ("critic", critic_loss, critics[0]),
    ):
        wanted_gradient = torch.autograd.grad(loss, plain_one[0].weight, retain_graph=True)[0]
        assert_close(gradients.values[f"{name}.layers.0.weight"][0].T, wanted_gradient, rtol=1e-3, atol=1e-5)


def test_values_are_scaled_by_their_mean_size_over_the_data_of_an_update():
    algorithm, collector = collected("fql", "continuous", normalize_value=True)
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator().manual_seed(0))
    batch = algorithm.preprocess(drawn, collector.buffer)
    values = algorithm.critic(batch.observation, batch.action)
    assert_close(batch.q_scale, (values.abs().mean() + 1e-6).expand(len(batch.reward)).detach())


def test_a_flow_leads_to_both_of_two_actions_and_the_policy_to_the_better_one():
    """The data does -0.8 or 0.8, whatever is seen; 0.8 is worth more. Their mean, 0, is never done."""
    network = NetworkConfig(hidden_sizes=(32, 32), activation="relu")
    with environment("continuous", 1) as env:
        algorithm = FQL(
            env.observation_spec, env.action_spec, FQLConfig(network=network, learning_rate=3e-3, imitation_weight=0.1)
        )
    generator = torch.Generator().manual_seed(1)
    seen = torch.rand(256, 3, generator=generator)
    side = (torch.rand(256, 1, generator=generator) < 0.5).float() * 2 - 1
    rows = {
        "observation": seen,
        "action": 0.8 * side.expand(256, 2),
        "next_observation": seen,
        "reward": side[:, 0],
        "bootstrap": torch.zeros(256),
        "done": torch.ones(256, 2),
        "q_scale": torch.ones(256),
    }
    for _ in range(200):
        algorithm.apply(algorithm.gradients(algorithm.noise(Batch.of(rows), generator)))
    noise = torch.randn(256, 2, generator=generator)
    flowed = algorithm.flowed(seen, noise)[:, 0]
    assert 0.3 < (flowed > 0.5).float().mean() < 0.7 and 0.3 < (flowed < -0.5).float().mean() < 0.7
    chosen = algorithm.policy.act(TimeStep(observation=seen), phase=Phase.COLLECT).action
    assert (chosen > 0.5).float().mean() > 0.9


def test_a_saved_policy_is_the_one_that_was_saved_and_its_noise_is_0_where_it_is_deterministic(tmp_path):
    algorithm, _ = ready()
    save_policy(algorithm.policy, tmp_path)
    loaded = load_policy(tmp_path)
    assert isinstance(loaded, OneStepPolicy)
    seen = torch.randn(5, 3, generator=torch.Generator().manual_seed(2))
    step = TimeStep(observation=seen)
    fixed = loaded.act(step, deterministic=True).action
    assert_close(fixed, algorithm.policy.made_of(seen, torch.zeros(5, 2)).clamp(-1, 1))
    assert not torch.equal(loaded.act(step).action, loaded.act(step).action)


def test_a_chunk_is_valued_by_the_rewards_of_its_steps_and_what_comes_behind_them():
    """Li et al. 2025, section 4, and the flow's loss; actions behind an end are left out."""
    network = NetworkConfig(hidden_sizes=(8,), activation="relu")
    algorithm, collector = collected("fql", "continuous", network=network, gamma=0.9, action_chunk=3)
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator().manual_seed(0))
    assert drawn.actions.shape == (3, len(drawn.action), 2)
    assert torch.equal(drawn.actions[0], drawn.action)
    batch = algorithm.noise(algorithm.preprocess(drawn, collector.buffer), torch.Generator().manual_seed(1))
    cut = 0
    for i in range(len(batch.reward)):
        total, action, done, factor = 0.0, [], [], 1.0
        for k in range(3):
            ended = drawn.step_type[k, i] == StepType.LAST
            cut += int(ended)
            if ended:
                break
            action += drawn.actions[k, i].tolist()
            done += [1.0, 1.0]
            total += factor * float(drawn.reward[k + 1, i])
            factor *= 0.9 * float(drawn.discount[k + 1, i])
        rest = [0.0] * (6 - len(action))
        assert_close(batch.action[i], torch.tensor(action + rest))
        assert batch.done[i].tolist() == done + rest
        assert float(batch.reward[i]) == pytest.approx(total, rel=1e-4, abs=1e-5)
        assert float(batch.bootstrap[i]) == pytest.approx(factor, rel=1e-5)
    assert cut
    relu = nn.ReLU()
    critics, targets = (
        [plain(one.layers, k, relu) for k in range(2)] for one in (algorithm.critic, algorithm.target_critic)
    )
    flow, actor = plain(algorithm.flow.layers, 0, relu), plain(algorithm.policy.network.layers, 0, relu)
    s, a, s2 = batch.observation, batch.action, batch.next_observation
    with torch.no_grad():
        after = torch.cat([s2, actor(torch.cat([s2, batch.next_noise], -1)).clip(-1, 1)], -1)
        target_q = batch.reward + batch.bootstrap * torch.stack([one(after)[:, 0] for one in targets]).mean(0)
        qs = torch.stack([critic(torch.cat([s, a], -1))[:, 0] for critic in critics])
        x_t = (1 - batch.time) * batch.start + batch.time * a
        velocity = flow(torch.cat([s, x_t, batch.time], -1))
    terms = algorithm.losses(batch).terms
    assert_close(terms["critic"], ((qs - target_q) ** 2).mean(), rtol=1e-4, atol=1e-5)
    assert_close(terms["flow"], (((velocity - (a - batch.start)) ** 2) * batch.done).mean(), rtol=1e-4, atol=1e-5)


def test_a_chunk_is_done_whatever_is_seen_and_begins_anew_with_an_episode(tmp_path):
    algorithm, _ = ready(action_chunk=3)
    save_policy(algorithm.policy, tmp_path)
    policy = load_policy(tmp_path)
    seen = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(3))
    chunks = [algorithm.policy.made_of(one, torch.zeros(2, 6)).clamp(-1, 1).detach() for one in seen]
    state, kinds = policy.initial_state(2), torch.full((6, 2), int(StepType.MID))
    kinds[0], kinds[4, 1] = StepType.FIRST, StepType.FIRST  # the second lane's episode begins again
    acted = []
    for one, kind in zip(seen, kinds, strict=True):
        step = policy.act(TimeStep(observation=one, step_type=kind), state, deterministic=True)
        state = step.state
        acted.append(step.action)
    wanted = [chunks[0][:, :2], chunks[0][:, 2:4], chunks[0][:, 4:], chunks[3][:, :2]]
    for one, other in zip(acted, wanted, strict=False):
        assert_close(one, other)
    assert_close(acted[4], torch.stack([chunks[3][0, 2:4], chunks[4][1, :2]]))
    assert_close(acted[5], torch.stack([chunks[3][0, 4:], chunks[4][1, 2:4]]))


def test_a_chunk_says_how_many_rewards_are_summed():
    with pytest.raises(ConfigError, match=r"action_chunk=4 and n_step=2 .* leave n_step at 1"):
        _ = FQLConfig(action_chunk=4, n_step=2).plan


def test_numbers_are_those_of_the_papers_code():
    config = FQLConfig()
    assert (config.learning_rate, config.mini_batch_size, config.tau, config.gamma) == (3e-4, 256, 0.005, 0.99)
    assert (config.imitation_weight, config.flow_steps, config.next_value) == (10.0, 10, "mean")
    with environment("continuous", 1) as env:
        names = [name for name, _ in FQL(env.observation_spec, env.action_spec).model.named_parameters()]
    assert any("critic" in name and "gain" in name for name in names)
    assert not any(("flow" in name or "actor" in name) and "gain" in name for name in names)
