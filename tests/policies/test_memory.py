"""Tests of policies with a memory."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from palaestra import Collector, EnvConfig, NetworkConfig, evaluate
from palaestra.core import (
    Batch,
    BoundedSpec,
    DiscreteSpec,
    MultiDiscreteSpec,
    ShapeError,
    StepType,
    TensorSpec,
    TimeStep,
)
from palaestra.policies import CategoricalPolicy, CompositePolicy, GaussianPolicy, Phase, ValueGreedyPolicy
from tests.algorithms.parts import ATTENTION, MEMORY, environment, make

VECTOR = TensorSpec((4,))
CONFIG = NetworkConfig(hidden_sizes=(8,), recurrent="lstm", recurrent_size=5)
BOX = BoundedSpec((2,), minimum=np.zeros(2), maximum=np.ones(2))
POLICIES = {
    "categorical": lambda: CategoricalPolicy.build(VECTOR, DiscreteSpec(num=3), CONFIG, normalize=True),
    "gaussian": lambda: GaussianPolicy.build(VECTOR, BOX, CONFIG),
    "composite": lambda: CompositePolicy.build(VECTOR, {"a": MultiDiscreteSpec(nvec=(2, 3)), "b": BOX}, CONFIG),
    "value-greedy": lambda: ValueGreedyPolicy.build(VECTOR, DiscreteSpec(num=3), CONFIG),
}
each = pytest.mark.parametrize("make_policy", POLICIES.values(), ids=POLICIES.keys())


def step(observation, kinds):
    count = len(observation)
    return TimeStep(torch.tensor(kinds, dtype=torch.int32), torch.zeros(count), torch.ones(count), observation)


def rows(*shape):
    return torch.randn(*shape, 4, generator=torch.Generator().manual_seed(0))


def same(a, b):
    return all(torch.equal(a[key], b[key]) for key, _ in a.items())


@each
def test_acting_starts_anew_where_an_episode_begins(make_policy):
    """DESIGN.md: callers hand the last state back; rows of FIRST begin with the initial one."""
    policy, observation = make_policy(), rows(2)
    used = policy.initial_state(2).map(lambda leaf: leaf + 1.0)
    mixed = policy.act(step(observation, [StepType.FIRST, StepType.MID]), used, deterministic=True)
    fresh = policy.act(step(observation, [StepType.MID] * 2), policy.initial_state(2), deterministic=True)
    going = policy.act(step(observation, [StepType.MID] * 2), used, deterministic=True)
    assert same(mixed.state[:1], fresh.state[:1])
    assert same(mixed.state[1:], going.state[1:])
    assert not same(fresh.state, going.state)


@each
def test_arrays_say_where_an_episode_begins_as_tensors_do(make_policy):
    policy, observation = make_policy(), rows(2)
    used = policy.initial_state(2).map(lambda leaf: leaf + 1.0)
    kinds = np.full(2, StepType.FIRST)
    found = policy.act(TimeStep(kinds, np.zeros(2), np.ones(2), observation), used, deterministic=True)
    assert same(found.state, policy.act(step(observation, kinds), used, deterministic=True).state)
    assert not same(found.state, policy.act(step(observation, [StepType.MID] * 2), used, deterministic=True).state)


def test_a_tuple_of_numbers_in_a_batch_is_seen_and_its_memory_may_be_an_array():
    """Blackjack: the batch has made an array of what its hand, the dealer's and the ace are."""
    policy = CategoricalPolicy.build((TensorSpec(()), TensorSpec(()), TensorSpec(())), DiscreteSpec(num=2), CONFIG)
    first = policy(Batch(obs=(14.0, 10.0, 0.0)))
    again = policy(Batch(obs=(15.0, 10.0, 0.0)), first.state)
    arrays = Batch.of({name: leaf.numpy() for name, leaf in first.state.items()})
    assert same(policy(Batch(obs=(15.0, 10.0, 0.0)), arrays).state, again.state)


@each
def test_states_are_as_their_spec_says(make_policy):
    policy = make_policy()
    state = policy.act(step(rows(3), [1, 1, 1]), policy.initial_state(3)).state
    assert isinstance(state, Batch)
    assert {key: tuple(leaf.shape[1:]) for key, leaf in state.items()} == {
        key: spec.shape for key, spec in policy.state_spec.items()
    }


@each
def test_a_missing_state_is_an_error(make_policy):
    with pytest.raises(ShapeError, match="initial_state"):
        make_policy().act(step(rows(2), [1, 1]))


@each
def test_calling_the_policy_begins_an_episode(make_policy):
    policy = make_policy()
    first = policy.act(step(rows(2), [0, 0]), policy.initial_state(2), phase=Phase.EVAL, deterministic=True)
    expected = policy.env_action(first.action)
    given = policy(rows(2))
    if isinstance(expected, Batch):
        assert all(np.array_equal(given[key], expected[key].numpy()) for key in given)
    else:
        assert np.array_equal(given, expected.numpy())


@pytest.mark.parametrize("network", [MEMORY["network"], ATTENTION], ids=["gru", "attention"])
@pytest.mark.parametrize("name", ["a2c", "impala", "ppo", "reinforce"])
def test_stored_log_probabilities_are_those_of_a_sequence_from_the_stored_state(name, network):
    """The memory that is kept beside a row is the one before it: a sequence from it gives what acting gave."""
    with environment("recurrent") as env:
        algorithm = make(name, env, kind="recurrent", network=network)
        collector = Collector.of(env, algorithm)
        for _ in range(2):
            collector.unroll(11)
            drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
            first = drawn.step_type[:-1] == StepType.FIRST
            assert first.any()
            for start in (0, 4):
                policy = algorithm.policy.distribution(drawn.observation[start:-1], drawn.state[start], first[start:])
                stored = algorithm.policy.behaviour(drawn.observation[:-1], drawn.action, drawn.state, first)
                assert_close(policy.log_prob(drawn.action[start:]), stored.log_prob[start:])
            collector.unroll(5)
            algorithm.update(collector.buffer)


def test_evaluation_carries_the_memory():
    """A network that only remembers: the hidden state decides, so forgetting would give every answer the same."""
    recall = EnvConfig(name="palaestra.envs.tiny:Recall", kwargs={"num_cues": 2, "delay": 2})
    with environment(recall, 4) as env:
        policy = make("ppo", env, kind="recurrent").policy
        assert evaluate(policy, env, episodes=8).episodes == 8
        assert policy.state_spec
