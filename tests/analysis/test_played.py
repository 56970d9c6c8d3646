"""Findings from episodes that a policy plays, each with a policy that was broken so."""

import gymnasium
import numpy as np
import pytest
import torch

from palaestra import EnvConfig, RunSeeds
from palaestra.algorithms import ALGORITHMS
from palaestra.analysis.played import play, played_symptoms
from palaestra.envs import NativeVectorEnvironment, create_environment

LOUD = 1e4


class LoudPendulum(gymnasium.ObservationWrapper):
    """Observations are far from 1."""

    def __init__(self) -> None:
        env = gymnasium.make("Pendulum-v1")
        super().__init__(env)
        space = env.observation_space
        self.observation_space = gymnasium.spaces.Box(space.low * LOUD, space.high * LOUD, dtype=np.float32)

    def observation(self, observation):
        return observation * LOUD


class CountingChain(gymnasium.Env):
    """A small number in a box for large ones."""

    observation_space = gymnasium.spaces.Box(0, 10**6, (1,), np.int64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.array([0]), {}

    def step(self, action):
        self.t += 1
        return np.array([self.t]), 1.0, self.t == 20, False, {}


class FullChain(CountingChain):
    observation_space = gymnasium.spaces.Box(0, 20, (1,), np.int64)


class SignedChain(CountingChain):
    """Networks see it from -1 on, and so about 0."""

    observation_space = gymnasium.spaces.Box(-(10**6), 10**6, (1,), np.int64)


class Cents(CountingChain):
    """Numbers of size 0.01 beside ones that are well."""

    observation_space = gymnasium.spaces.Dict(
        far=gymnasium.spaces.Box(-1, 1, (2,), np.float32), near=gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    )

    def _seen(self):
        return {"far": np.full(2, 0.01, np.float32), "near": np.array([self.t % 2], np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        _, *rest = super().step(action)
        return self._seen(), *rest


class FaintPendulum(LoudPendulum):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)

    def observation(self, observation):
        return observation * np.float32(1e-4)


class OneFaintNumber(FaintPendulum):
    """Of no axis."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(-1, 1, (), np.float32)

    def observation(self, observation):
        return super().observation(observation)[0]


class Unbounded(gymnasium.ActionWrapper):
    """Pendulum for actions without bounds, or with lower ones only."""

    def __init__(self, low: float = -np.inf) -> None:
        super().__init__(gymnasium.make("Pendulum-v1"))
        self.action_space = gymnasium.spaces.Box(low, np.inf, (1,), np.float32)

    def action(self, action):
        return np.clip(action, -2, 2)


class MaskedChain(FullChain):
    """Action 1 is never allowed, and at an end none is."""

    observation_space = gymnasium.spaces.Dict(
        at=FullChain.observation_space, action_mask=gymnasium.spaces.MultiBinary(2)
    )

    def reset(self, **options):
        observation, info = super().reset(**options)
        return {"at": observation, "action_mask": np.array([1, 0], np.int8)}, info

    def step(self, action):
        observation, *rest = super().step(action)
        over = rest[1] or rest[2]
        return {"at": observation, "action_mask": np.array([not over, 0], np.int8)}, *rest


def found(algorithm, name, break_it=lambda policy: None, **settings):
    """Names of what an untrained policy shows after `break_it`."""
    with create_environment(EnvConfig(name=name, num_envs=1), lane_seeds=[3]) as env:
        made = ALGORITHMS[algorithm]
        policy = made(env.observation_spec, env.action_spec, made.config_class(**settings), RunSeeds(1)).policy
        with torch.no_grad():
            break_it(policy)
        return {one.name for one in played_symptoms(policy, play(policy, env, episodes=8, gamma=0.9))}


def layers(policy):
    return [module for module in policy.modules() if isinstance(module, torch.nn.Linear)]


def kill_first_layer(policy):
    layers(policy)[0].bias.fill_(-1e6)


def believe_in_riches(policy):
    layers(policy)[-1].bias.fill_(1e4)


def prefer_one(policy):
    layers(policy)[-1].weight.fill_(0.0)
    layers(policy)[-1].bias.copy_(torch.tensor([0.5, 0.0]))


def push_to_the_end(policy):
    layers(policy)[-1].bias.fill_(50.0)


@pytest.mark.parametrize(
    ("name", "algorithm", "env", "break_it"),
    [
        ("dead_units", "dqn", "CartPole-v1", kill_first_layer),
        ("values_too_high", "dqn", "CartPole-v1", believe_in_riches),
        ("one_action", "dqn", "CartPole-v1", prefer_one),
        ("saturated_actions", "td3", "Pendulum-v1", push_to_the_end),
        ("large_observations", "sac", "tests.analysis.test_played:LoudPendulum", lambda policy: None),
        ("small_observations", "sac", "tests.analysis.test_played:FaintPendulum", lambda policy: None),
        ("small_observations", "sac", "tests.analysis.test_played:OneFaintNumber", lambda policy: None),
        ("small_observations", "dqn", "tests.analysis.test_played:CountingChain", lambda policy: None),
        ("small_observations", "dqn", "tests.analysis.test_played:SignedChain", lambda policy: None),
        ("small_observations", "dqn", "tests.analysis.test_played:Cents", lambda policy: None),
    ],
)
def test_what_is_broken_is_found(name, algorithm, env, break_it):
    assert name in found(algorithm, env, break_it)


def test_nothing_is_found_where_nothing_is_broken():
    assert found("sac", "Pendulum-v1") == set()


def test_integers_that_fill_their_bounds_are_not_called_small():
    assert "small_observations" not in found("dqn", "tests.analysis.test_played:FullChain")


def test_what_is_normalised_is_not_called_small():
    faint = "tests.analysis.test_played:FaintPendulum"
    assert "small_observations" not in found("sac", faint, normalize_observation=True)


def test_a_tanh_unit_that_is_always_at_its_end_is_dead():
    assert "dead_units" in found("ppo", "CartPole-v1", kill_first_layer)


def test_hooks_are_gone_after_playing():
    with create_environment(EnvConfig(name="CartPole-v1", num_envs=1), lane_seeds=[3]) as env:
        made = ALGORITHMS["dqn"]
        policy = made(env.observation_spec, env.action_spec, made.config_class(), RunSeeds(1)).policy
        play(policy, env, episodes=1, gamma=0.9)
        assert not any(layer._forward_hooks for layer in layers(policy))


@pytest.mark.parametrize("low", [-np.inf, 0.0])
def test_actions_without_two_bounds_are_not_at_one(low, monkeypatch):
    """A bound that is not there is no distance of infinity that everything is within."""
    monkeypatch.setattr(Unbounded.__init__, "__defaults__", (low,))
    assert "saturated_actions" not in found("ppo", "tests.analysis.test_played:Unbounded")


def test_values_of_forbidden_actions_are_nobodys():
    def believe_in_the_forbidden(policy):
        layers(policy)[-1].bias.copy_(torch.tensor([0.0, 1e4]))

    assert "values_too_high" not in found("dqn", "tests.analysis.test_played:MaskedChain", believe_in_the_forbidden)


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_episodes_end_where_a_pool_begins_the_next_one_within_the_step(mode):
    """Their last rewards count, and the next ones' do not."""
    pool = gymnasium.make_vec("CartPole-v1", 1, "sync", vector_kwargs={"autoreset_mode": mode}, max_episode_steps=3)
    env = NativeVectorEnvironment(pool, lane_seeds=[3])
    made = ALGORITHMS["dqn"]
    policy = made(env.observation_spec, env.action_spec, made.config_class(), RunSeeds(1)).policy
    with torch.no_grad():
        believe_in_riches(policy)
    played = play(policy, env, episodes=2, gamma=1.0)
    last = played.returns[0] - 1
    assert played.returns == pytest.approx([1 + last, 2 + last, 3 + last] * 2, rel=1e-3)
    env.close()


def test_values_of_rewards_that_are_not_played_for_are_not_judged():
    with create_environment(EnvConfig(name="CartPole-v1", num_envs=1), lane_seeds=[3]) as env:
        made = ALGORITHMS["dqn"]
        policy = made(env.observation_spec, env.action_spec, made.config_class(), RunSeeds(1)).policy
        assert play(policy, env, episodes=1, gamma=None).errors == []
