"""Policies in a plain loop over an environment: `policy(batch, state)`."""

import gymnasium
import numpy as np
import pytest
import torch

from palaestra import DQN, PPO, Batch, DQNConfig, EnvConfig, NetworkConfig, PPOConfig, create_environment
from palaestra.core import ShapeError, StepType, TensorSpec, TimeStep
from palaestra.policies import CategoricalPolicy, load_policy, save_policy
from tests.algorithms.parts import Parts, collected
from tests.policies.test_memory import POLICIES, each, rows

MEMORY = NetworkConfig(hidden_sizes=(8,), recurrent="lstm", recurrent_size=5)


@pytest.mark.parametrize(("kind", "config"), [(DQN, DQNConfig()), (PPO, PPOConfig(network=MEMORY))])
def test_ts_20_the_loop_of_the_document(kind, config):
    """TS-18, TS-20: an episode of a Gymnasium environment, with nothing but the policy; also one with a memory."""
    specs = create_environment(EnvConfig(name="CartPole-v1"))
    policy = kind(specs.observation_spec, specs.action_spec, config).policy
    env = gymnasium.make("CartPole-v1")
    (obs, _), done, state, steps = env.reset(seed=3), False, None, 0
    while not done:
        batch = Batch(obs=[obs])  # the first dimension is batch-size
        answer = policy(batch, state)
        act, state = answer.act[0], answer.state
        obs, _, terminated, truncated, _ = env.step(act)
        done, steps = terminated or truncated, steps + 1
    assert 5 < steps <= 500
    assert bool(state.keys()) is (kind is PPO)


def test_a_loaded_policy_acts_in_the_environment_itself_also_where_an_action_holds_a_tuple(tmp_path):
    """Trained in a batched environment, whose tuples have names."""
    algorithm, _ = collected("ppo", "composite")
    save_policy(algorithm.policy, tmp_path / "policy")
    policy, env = load_policy(tmp_path / "policy"), Parts()
    observation, _ = env.reset(seed=1)
    for _ in range(20):
        action = policy(observation)
        assert env.action_space.contains(action)
        observation, *_ = env.step(action)


@each
def test_ts_18_the_memory_goes_from_call_to_call(make_policy):
    """TS-18: the same actions and memories as `act` gives, which collectors call."""
    policy, state = make_policy(), None
    expected = policy.initial_state(3)
    for t in range(4):
        seen = rows(3) + t
        kinds = torch.full((3,), int(StepType.MID), dtype=torch.int32)
        step = TimeStep(kinds, torch.zeros(3), torch.ones(3), seen)
        chosen = policy.act(step, expected, deterministic=True)
        answer = policy(Batch(observation=seen, rew=np.zeros(3)), state)
        state, expected = answer.state, chosen.state
        assert all(torch.equal(state[key], leaf) for key, leaf in expected.items())
        flat = torch.cat([torch.as_tensor(part).reshape(3, -1).float() for part in _leaves(answer.act)], 1)
        wanted = torch.cat([part.reshape(3, -1).float() for part in _leaves(policy.env_action(chosen.action))], 1)
        assert torch.equal(flat, wanted)


def _leaves(action):
    if isinstance(action, dict | Batch):
        return [leaf for _, child in sorted(action.items()) for leaf in _leaves(child)]
    return [action]


def test_ts_18_a_goal_environments_own_observation_is_no_batch_of_fields():
    """TS-18: its observation has a part called `observation`; both forms are understood."""
    vector = TensorSpec((2,))
    spec = {"observation": vector, "desired_goal": vector}
    policy = CategoricalPolicy.build(spec, POLICIES["categorical"]().action_spec, MEMORY)
    part = Batch(observation=np.ones((3, 2)), desired_goal=np.zeros((3, 2)))
    bare, answer = policy(part), policy(Batch(obs=part))
    assert bare.shape == (3,)
    assert np.array_equal(answer.act, bare)
    both = policy(Batch(obs=part, desired_goal=np.ones((3, 2))))  # some of its parts make no observation
    assert np.array_equal(both.act, bare)


def test_ts_18_a_state_that_does_not_fit_is_refused():
    """TS-18."""
    policy = POLICIES["categorical"]()
    state = policy(Batch(obs=rows(3))).state
    with pytest.raises(ShapeError, match="this policy's for 2 observations"):
        policy(Batch(obs=rows(2)), state)
    with pytest.raises(ShapeError, match=r"give policy\(Batch\(obs=...\), state\)"):
        policy(rows(3), state)
    with pytest.raises(ShapeError, match="this policy's for 3 observations"):
        policy(Batch(obs=rows(3)), ())
