"""Whole updates by hand: losses transcribed in plain torch, differentiated, clipped and stepped by Adam."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from tests.algorithms.parts import collected

CONTINUES, FIRST, LAST = 1, 0, 2


def adam_step(module: nn.Module, loss: Tensor, lr: float, limit: float | None) -> dict[str, Tensor]:
    """The parameters after the first step of Adam, from empty moments."""
    named = dict(module.named_parameters())
    grads = dict(zip(named, torch.autograd.grad(loss, list(named.values()), allow_unused=True), strict=True))
    grads = {name: torch.zeros_like(named[name]) if grad is None else grad for name, grad in grads.items()}
    norm = math.sqrt(sum(float(grad.square().sum()) for grad in grads.values()))
    scale = 1.0 if limit is None or norm <= limit else limit / (norm + 1e-6)
    return {
        name: named[name].detach() - lr * scale * grad / (scale * grad.abs() + 1e-8) for name, grad in grads.items()
    }


def require_equal(module: nn.Module, expected: dict[str, Tensor], before: dict[str, Tensor]) -> None:
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-4, atol=2e-6, msg=name)
    assert any(not torch.equal(parameter, before[name]) for name, parameter in module.named_parameters())


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def learn(algorithm: Any, batch: Any) -> None:
    """One gradient step on a minibatch that is ready."""
    algorithm.apply(algorithm.gradients(batch))


def test_reinforce():
    algorithm, collector = collected("reinforce", "discrete", gamma=0.8, learning_rate=1e-2)
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    network = copy.deepcopy(algorithm.policy.network)
    steps, lanes = unroll.action.shape
    returns, rows = {}, []
    for lane in range(lanes):
        total, known = 0.0, False
        for t in reversed(range(steps)):
            if unroll.step_type[t + 1, lane] == FIRST:  # row t is the end of an episode: no action was taken there
                total, known = 0.0, True
                continue
            if unroll.step_type[t + 1, lane] == LAST:
                total, known = 0.0, True
            total = float(unroll.reward[t + 1, lane]) + 0.8 * total
            if known and unroll.step_type[t, lane] != LAST:
                returns[t, lane] = total
                rows.append((t, lane))
    mean = sum(returns.values()) / len(returns)
    std = math.sqrt(sum((value - mean) ** 2 for value in returns.values()) / len(returns))
    logp = log_softmax(network(unroll.observation[:-1]), -1)
    loss = -sum(
        logp[t, lane, unroll.action[t, lane]] * ((returns[t, lane] - mean) / (std + 1e-8)) for t, lane in rows
    ) / len(rows)
    expected, before = adam_step(network, loss, 1e-2, None), weights(network)
    algorithm.update(collector.buffer)
    require_equal(algorithm.policy.network, expected, before)


def test_behaviour_cloning():
    algorithm, collector = collected("behaviour_cloning", "discrete", learning_rate=1e-2)
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator().manual_seed(0))
    batch = algorithm.preprocess(drawn, collector.buffer)
    network = copy.deepcopy(algorithm.policy.network)
    logp = log_softmax(network(batch.observation), -1)
    loss = -sum(logp[row, action] for row, action in enumerate(batch.action.tolist())) / len(logp)
    expected, before = adam_step(network, loss, 1e-2, None), weights(network)
    learn(algorithm, batch)
    require_equal(algorithm.policy.network, expected, before)


def test_sarsa():
    gamma, decay, epsilon = 0.9, 0.7, 0.3
    settings = {"gamma": gamma, "trace_decay": decay, "epsilon": epsilon, "learning_rate": 1e-2, "huber_delta": 0.2}
    algorithm, collector = collected("sarsa", "discrete", **settings)
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    unroll = unroll.replace(discount=torch.ones_like(unroll.discount))  # cut off: what follows is expected
    network = copy.deepcopy(algorithm.policy.network)
    q = network(unroll.observation)
    steps, lanes = unroll.action.shape
    losses = []
    for lane in range(lanes):

        def value(t: int, lane: int = lane) -> float:
            row = q[t, lane].tolist()
            if t == steps or unroll.step_type[t, lane] == LAST:  # no action was taken there
                return epsilon * sum(row) / len(row) + (1 - epsilon) * max(row)
            return row[unroll.action[t, lane]]

        target = value(steps)
        for t in reversed(range(steps)):
            if unroll.step_type[t, lane] == LAST:
                target = value(t)
                continue
            after = (1 - decay) * value(t + 1) + decay * target
            target = float(unroll.reward[t + 1, lane]) + gamma * float(unroll.discount[t + 1, lane]) * after
            error = (q[t, lane, unroll.action[t, lane]] - target).abs()
            losses.append(error.square() / 2 if error <= 0.2 else 0.2 * (error - 0.1))
    limit = algorithm.config.max_grad_norm
    expected = adam_step(network, torch.stack(losses).mean(), 1e-2, limit)
    before = weights(network)
    drawn = algorithm.preprocess(unroll, collector.buffer)
    learn(algorithm, drawn)
    require_equal(algorithm.policy.network, expected, before)


def test_rainbow():
    """Projection atom by atom, double Q-learning with the noise of each network, and importance weights."""
    low, high, atoms, gamma = -1.0, 1.0, 7, 0.9
    settings = {"min_return": low, "max_return": high, "num_atoms": atoms, "gamma": gamma, "learning_rate": 1e-2}
    algorithm, collector = collected("rainbow", "discrete", **settings)
    component: Any = algorithm.model.component
    with torch.no_grad():
        for parameter in component["target_q"].parameters():
            parameter.mul_(1.5)
    generator = torch.Generator().manual_seed(0)
    drawn = collector.buffer.draw(algorithm.plan, generator)
    batch = algorithm.noise(algorithm.preprocess(drawn, collector.buffer), generator)
    batch = batch.replace(weight=torch.linspace(0.2, 1.0, len(batch.reward)))
    online = copy.deepcopy(component["q"])
    noises = batch.noise.unbind(1) if "noise" in batch else (None,) * 3
    support = [low + (high - low) * i / (atoms - 1) for i in range(atoms)]
    width = (high - low) / (atoms - 1)
    now = log_softmax(online.outputs(batch.observation, noises[0]), -1)
    with torch.no_grad():
        target = component["target_q"].outputs(batch.next_observation, noises[1]).softmax(-1)
        chooser = online.outputs(batch.next_observation, noises[2]).softmax(-1)
    losses = []
    for row in range(len(batch.reward)):
        values = [sum(p * z for p, z in zip(probs.tolist(), support, strict=True)) for probs in chooser[row]]
        best = max(range(len(values)), key=values.__getitem__)
        projected = [0.0] * atoms
        for z, p in zip(support, target[row, best].tolist(), strict=True):
            moved = min(high, max(low, float(batch.reward[row]) + float(batch.bootstrap[row]) * z))
            for i, at in enumerate(support):
                projected[i] += p * max(0.0, 1 - abs(moved - at) / width)
        losses.append(-batch.weight[row] * (torch.tensor(projected) * now[row, batch.action[row]]).sum())
    expected = adam_step(online, torch.stack(losses).mean(), 1e-2, algorithm.config.max_grad_norm)
    before = weights(online)
    learn(algorithm, batch)
    require_equal(component["q"], expected, before)


def test_evolution_strategies():
    settings = {"noise_std": 0.2, "learning_rate": 1e-2, "weight_decay": 0.0}
    algorithm, collector = collected("evolution_strategies", "discrete", **settings)
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    steps, lanes = unroll.action.shape
    scores = []
    for lane in range(lanes):  # the mean return of the episodes that the unroll holds
        finished, running = [], 0.0
        for t in range(1, steps + 1):
            if unroll.step_type[t, lane] == FIRST:
                running = 0.0
                continue
            running += float(unroll.reward[t, lane])
            if unroll.step_type[t, lane] == LAST:
                finished.append(running)
                running = 0.0
        scores.append((finished, running))
    assert all(finished for finished, _ in scores)
    means = torch.tensor([sum(finished) / len(finished) for finished, _ in scores])
    ranks = torch.tensor([float((means < one).sum() + ((means == one).sum() - 1) / 2) for one in means])
    utility = ranks / (lanes - 1) - 0.5
    seeds = unroll.policy_info.seed[-1].tolist()
    before = weights(algorithm.policy.network)
    size = sum(value.numel() for value in before.values())
    ascent = torch.zeros(size)
    for lane, seed in enumerate(seeds):
        noise = torch.randn(size, generator=torch.Generator().manual_seed(int(abs(seed))))
        ascent += float(utility[lane]) * noise * (1.0 if seed > 0 else -1.0) / (lanes * 0.2)
    start, expected = 0, {}
    for name, value in before.items():
        grad = -ascent[start : start + value.numel()].view_as(value)
        expected[name] = value - 1e-2 * grad / (grad.abs() + 1e-8)
        start += value.numel()
    algorithm.update(collector.buffer)
    require_equal(algorithm.policy.network, expected, before)


def test_the_actor_of_cql():
    """Soft actor-critic's: entropy by the density of tanh of a normal draw, and the least of the critics."""
    algorithm, collector = collected("cql", "continuous", learning_rate=1e-2, initial_temperature=0.3)
    generator = torch.Generator().manual_seed(0)
    drawn = collector.buffer.draw(algorithm.plan, generator)
    batch = algorithm.noise(algorithm.preprocess(drawn, collector.buffer), generator)
    component: Any = algorithm.model.component
    actor, critic = copy.deepcopy(component["actor"]), copy.deepcopy(component["critic"])
    mean, log_std = actor(batch.observation).chunk(2, -1)
    log_std = log_std.clamp(-20, 2)
    raw = mean + log_std.exp() * batch.noise
    log_prob = (-batch.noise.square() / 2 - log_std - math.log(2 * math.pi) / 2 - (1 - raw.tanh().square()).log()).sum(
        -1
    )
    q = critic(batch.observation, raw.tanh()).squeeze(-1)
    loss = (0.3 * log_prob - torch.minimum(q[0], q[1])).mean()
    expected, before = adam_step(actor, loss, 1e-2, None), weights(actor)
    learn(algorithm, batch)
    require_equal(component["actor"], expected, before)


@pytest.mark.parametrize("sign", [-1.0])
def test_a_sign_would_be_noticed(sign):
    """The mutant of all of these: the step of a loss that is turned round."""
    algorithm, collector = collected("behaviour_cloning", "discrete", learning_rate=1e-2)
    network, losses = copy.deepcopy(algorithm.policy.network), algorithm.losses
    algorithm.losses = lambda batch: losses(batch)._replace(
        terms={name: sign * term for name, term in losses(batch).terms.items()}
    )
    batch = algorithm.preprocess(collector.buffer.draw(algorithm.plan, torch.Generator()), collector.buffer)
    loss = -log_softmax(network(batch.observation), -1).gather(-1, batch.action[:, None]).mean()
    learn(algorithm, batch)
    with pytest.raises(AssertionError):
        require_equal(algorithm.policy.network, adam_step(network, loss, 1e-2, None), weights(network))
