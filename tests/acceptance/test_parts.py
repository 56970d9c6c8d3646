"""Trainer, collector, policy and buffer: each is used without the others."""

import pytest
import torch

from palaestra import DQN, PPO, Collector, DQNConfig, EnvConfig, RunSeeds, Trainer, TrainerConfig, create_environment
from palaestra.algorithms import UpdateInfo
from palaestra.buffers import ReplayBuffer
from palaestra.core import TimeStep
from palaestra.policies import Phase

CARTPOLE = EnvConfig(name="CartPole-v1", num_envs=2)


@pytest.fixture
def env():
    with create_environment(CARTPOLE, seed=0) as env:
        yield env


@pytest.fixture
def algorithm(env):
    config = DQNConfig(mini_batch_size=64, gradient_steps=1, learning_starts=100)
    return DQN(env.observation_spec, env.action_spec, config, RunSeeds(0))


def test_buffer_acting_storing_and_updating_are_documented_calls(env, algorithm):
    """TS-29, TS-01: ReplayBuffer(size), act = policy(batch).act, env.step and store, update(64), with no collector."""
    policy, specs = algorithm.policy, {"observation_spec": env.observation_spec, "action_spec": env.action_spec}
    buffer = ReplayBuffer(10_000, 2, **specs)
    time_step = env.reset()
    buffer.open(time_step)
    for _ in range(100):
        action = policy.act(time_step, phase=Phase.COLLECT).action
        time_step = env.step(policy.env_action(action))
        buffer.append(action, time_step)
    assert len(buffer) == 200
    before = [parameter.clone() for parameter in policy.parameters()]
    update = algorithm.update(buffer)
    assert isinstance(update, UpdateInfo)
    assert (update.gradient_steps, update.rows_trained) == (1, 64)
    assert not all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_a_policy_acts_without_algorithm_and_environment(algorithm):
    """TS-01."""
    observation = torch.zeros(5, 4)
    assert algorithm.policy.act(TimeStep(observation=observation)).action.shape == (5,)


def test_a_collector_collects_without_an_algorithm(env, algorithm):
    """TS-01: with the policy and a buffer, as for evaluation or data sets."""
    specs = {"observation_spec": env.observation_spec, "action_spec": env.action_spec}
    collector = Collector(env, algorithm.policy, ReplayBuffer(1_000, 2, **specs))
    assert collector.collect(n_step=50).env_steps >= 50
    assert len(collector.buffer) >= 50


def test_a_trainer_needs_something_that_collects_and_an_algorithm(env, algorithm):
    """TS-01: it asks for two protocols, and an algorithm alone is one of them."""
    collector = Collector.of(env, algorithm)
    result = Trainer(collector, algorithm, TrainerConfig(total_env_steps=400)).run()
    assert result.status == "done"
    assert algorithm.policy_version > 0


@pytest.mark.parametrize("kind", [PPO, DQN])
def test_ts_27_a_loop_of_ones_own_learns_what_the_trainer_does(kind):
    """TS-27: collect, learn, move the schedules, twelve times; every weight is equal, so the trainer is a wrapper."""
    config = {"unroll_length": 16, "mini_batch_size": 16} | ({"learning_starts": 0} if kind is DQN else {})
    learned = []
    for own in (False, True):
        with create_environment(CARTPOLE, seed=0) as env:
            algorithm = kind(env.observation_spec, env.action_spec, kind.config_class(**config), RunSeeds(0))
            collector = Collector.of(env, algorithm)
            if not own:
                Trainer(collector, algorithm, TrainerConfig(total_env_steps=360)).run()
            while own and collector.env_steps < 360:
                collector.unroll(algorithm.plan.unroll_length)
                algorithm.update(collector.buffer)
                algorithm.set_progress(min(1.0, collector.env_steps / 360))
            learned.append((collector.env_steps, algorithm.policy_version, algorithm.model.state_dict()))
    (steps, version, weights), (own_steps, own_version, own_weights) = learned
    assert steps == own_steps >= 360 and version == own_version >= 11
    assert all(torch.equal(weights[name], own_weights[name]) for name in weights)
