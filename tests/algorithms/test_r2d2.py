"""Tests of `palaestra.algorithms.r2d2`."""

import dataclasses

import pytest
import torch
from torch.testing import assert_close

from palaestra.algorithms import DQN, R2D2, R2D2Config
from palaestra.core import ConfigError, DiscreteSpec, StepType, TensorSpec
from palaestra.nn import NetworkConfig
from palaestra.policies import Phase
from tests.algorithms.parts import collected


def prepared(algorithm, collector):
    with algorithm.policy.in_phase(Phase.UPDATE):
        return algorithm.preprocess(collector.buffer.draw(algorithm.plan, torch.Generator().manual_seed(0)), None)


def test_the_loss_is_the_one_of_a_loop_over_rows():
    """Equations of section 2.3 by hand: stored memory, double Q-learning, n steps, no burn-in counted."""
    algorithm, collector = collected("r2d2", "recurrent", n_step=2, gamma=0.9, gradient_steps=1, mini_batch_length=7)
    for parameter in algorithm.model.component["target_q"].parameters():
        parameter.data.mul_(1.3)
    batch = prepared(algorithm, collector)
    online, target = algorithm.policy.network, algorithm.model.component["target_q"]
    errors = []
    for n in range(batch.reward.shape[1]):
        kinds, gamma = batch.step_type[:, n].tolist(), algorithm.config.gamma
        values, target_values = [], []
        states = [batch.state[0, n : n + 1]] * 2
        for t, kind in enumerate(kinds):
            if kind == StepType.FIRST:
                states = [online.initial_state(1)] * 2
            row = batch.observation[t, n : n + 1]
            q, first = online(row, states[0])
            q_target, second = target(row, states[1])
            states = [first, second]
            values.append(q[0])
            target_values.append(q_target[0])
        for t in range(algorithm.config.burn_in, len(kinds) - 1):
            if kinds[t] == StepType.LAST:
                continue
            goal, weight = 0.0, 1.0
            end = min(t + 2, len(kinds) - 1)
            for u in range(t + 1, end + 1):
                goal, weight = goal + weight * batch.reward[u, n], weight * gamma * batch.discount[u, n]
                if kinds[u] == StepType.LAST:
                    end = u
                    break
            goal = goal + weight * target_values[end][values[end].argmax()]
            errors.append(values[t][batch.action[t, n]] - goal)
    expected = torch.nn.functional.huber_loss(torch.stack(errors), torch.zeros(len(errors)))
    assert_close(algorithm.losses(batch).terms["q"], expected)


def test_the_burn_in_brings_the_memory_up_to_date_and_gets_no_gradient():
    algorithm, collector = collected("r2d2", "recurrent", burn_in=3)
    batch = prepared(algorithm, collector)
    assert not batch.valid[:3].any()
    before = algorithm.losses(batch).terms["q"]
    changed = batch.replace(observation=torch.cat((batch.observation[:3] + 1.0, batch.observation[3:])))
    same = (batch.step_type[1:4] == StepType.FIRST).any(0)
    assert not same.all()  # some memories reach beyond the burn-in
    assert not torch.equal(algorithm.losses(changed).terms["q"], before)
    observation = batch.observation.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(algorithm.losses(batch.replace(observation=observation)).terms["q"], observation)
    assert not gradient[:3].any()
    assert gradient[3:].any()


def test_the_priority_of_a_sequence_mixes_its_largest_and_its_mean_error():
    """Section 2.3 with η = 0.9; rows that do not count add nothing."""
    algorithm, collector = collected("r2d2", "recurrent", prioritized=True)
    batch = prepared(algorithm, collector)
    priority = algorithm.losses(batch).priority
    valid, weight = batch.valid[algorithm.config.burn_in :], torch.ones_like(batch.weight)
    size = torch.zeros_like(valid)  # |TD error| of each step: with a small δ Huber's loss is δ (|error| - δ / 2)
    delta, error = 1e-4, dataclasses.replace(algorithm.config, huber_delta=1e-4)
    algorithm.config = error
    for t, n in valid.nonzero().tolist():
        only = torch.zeros_like(batch.valid)
        only[algorithm.config.burn_in + t, n] = 1
        size[t, n] = algorithm.losses(batch.replace(valid=only, weight=weight)).terms["q"].detach() / delta + delta / 2
    expected = 0.9 * size.amax(0) + 0.1 * size.sum(0) / valid.sum(0).clamp(min=1)
    assert_close(priority, expected, rtol=1e-3, atol=1e-5)
    nothing = batch.replace(valid=torch.zeros_like(batch.valid))
    assert not algorithm.losses(nothing).priority.any()
    info = algorithm.update(collector.buffer)
    assert info.gradient_steps == algorithm.config.gradient_steps


def test_a_network_without_memory_is_refused_by_name():
    spec, action = TensorSpec((3,)), DiscreteSpec(num=2)
    with pytest.raises(ConfigError, match=r"needs a memory \(lstm, gru, attention, own\).*else use DQN"):
        R2D2(spec, action, R2D2Config(network=NetworkConfig()))
    with pytest.raises(ConfigError, match="sequences of at least 2 steps"):
        R2D2(spec, action, R2D2Config(mini_batch_length=1, burn_in=0))
    config = dataclasses.replace(DQN.config_class(), network=NetworkConfig(recurrent="gru"))
    with pytest.raises(ConfigError, match="learns no policy with a hidden state"):
        DQN(spec, action, config)
