"""PettingZoo environments as environments, and environments as PettingZoo environments."""

import warnings

import numpy as np
import pettingzoo
import pytest

from palaestra.core import ConfigError, EnvError, StepType
from palaestra.multiagent import (
    AECAdapter,
    Meeting,
    MultiAgentEnv,
    MultiAgentEnvs,
    ParallelAdapter,
    aec_env,
    from_pettingzoo,
    load_pettingzoo,
    parallel_env,
)
from tests.multiagent.parts import RandomWorld, Shop

with warnings.catch_warnings():  # its tests import environments in a way that it warns of
    warnings.simplefilter("ignore")
    from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test


def play(env: MultiAgentEnv, seed: int, steps: int = 200) -> list[dict[str, tuple]]:
    """What everybody is told while acting at random, through the checks of the contract."""
    rng = np.random.default_rng(seed)
    told = []
    with MultiAgentEnvs([lambda: env], lane_seeds=[seed]) as envs:
        (outcome,) = envs.reset()
        for _ in range(steps):
            told.append({name: (int(s.step_type), float(s.reward)) for name, s in outcome.time_steps.items()})
            actions = {}
            for name, step in outcome.time_steps.items():
                if step.step_type != StepType.LAST:
                    mask = step.observation["action_mask"] if isinstance(step.observation, dict) else None
                    count = env.agents[name].action.num
                    actions[name] = int(rng.choice(np.arange(count) if mask is None else np.flatnonzero(mask)))
            (outcome,) = envs.step([actions])
    return told


@pytest.mark.parametrize("make", [Meeting, Shop, RandomWorld])
def test_pettingzoo_accepts_an_environment_as_an_aec_env(make):
    """USERS need 5: PettingZoo's own test of environments whose agents act one after another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        api_test(aec_env(make()), num_cycles=100)


def test_pettingzoo_accepts_an_environment_as_a_parallel_env():
    """USERS need 5: its own test of environments whose agents act together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel_api_test(parallel_env(Meeting()), num_cycles=100)


def test_pettingzoo_finds_that_a_seed_determines_an_episode():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed_test(lambda: aec_env(Meeting()), num_cycles=20)
        parallel_seed_test(lambda: parallel_env(Meeting()), num_cycles=20)


def test_a_parallel_env_becomes_a_environment():
    env = load_pettingzoo("pettingzoo:classic/rps_v2", max_cycles=3)
    assert isinstance(env, ParallelAdapter)
    told = play(env, seed=1, steps=8)
    assert [step["player_0"][0] for step in told] == [0, 1, 1, 2, 0, 1, 1, 2]
    assert all(step["player_0"][1] == -step["player_1"][1] for step in told)


def test_an_aec_env_becomes_a_environment_whose_agents_take_turns():
    """USERS need 5: masks are honoured, the loser gets the reward of the winner's move with its own LAST."""
    env = from_pettingzoo(pettingzoo.make("aec", "classic/tictactoe-v3"))
    assert isinstance(env, AECAdapter)
    told = play(env, seed=3)
    assert all(len(step) == 1 or all(kind == 2 for kind, _ in step.values()) for step in told)
    ends = [step for step in told if any(kind == 2 for kind, _ in step.values())]
    assert len(ends) > 10
    assert all(set(step) == {"player_1", "player_2"} for step in ends)
    assert {round(sum(reward for _, reward in step.values())) for step in ends} == {0}
    assert any(reward == -1 for step in ends for _, reward in step.values())


def test_a_environment_survives_the_way_to_pettingzoo_and_back():
    """The same seed and actions give the same time steps, whichever way they go."""
    there = Meeting()
    back = from_pettingzoo(parallel_env(Meeting()))
    assert dict(back.agents) == dict(there.agents)
    first = back.begin_episode(7)
    seed = int(np.random.default_rng(7).integers(2**31))
    expected = there.begin_episode(seed)
    for _ in range(5):
        for name in there.agents:
            assert first.time_steps[name].step_type == expected.time_steps[name].step_type
            assert np.array_equal(
                first.time_steps[name].observation["own"], expected.time_steps[name].observation["own"]
            )
        first, expected = (env.advance(dict.fromkeys(there.agents, 1)) for env in (back, there))


def test_agents_that_wait_are_refused_where_all_must_act():
    env = parallel_env(Shop())
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"'painter'.* wait while others act, .* use aec_env"):
        env.step(dict.fromkeys(env.agents, 0))


def test_names_that_mean_nothing_are_refused_with_an_example():
    with pytest.raises(ConfigError, match="did you mean 'classic/rps-v2'"):
        load_pettingzoo("pettingzoo:classic/rpss-v2")
    with pytest.raises(ConfigError, match="a ParallelEnv or an AECEnv is needed"):
        from_pettingzoo(object())
    assert isinstance(from_pettingzoo(pettingzoo.make("parallel", "classic/rps-v2")), ParallelAdapter)
