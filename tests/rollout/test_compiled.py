"""Acting and stepping in one graph gives what they give one after another."""

import copy
import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from palaestra import PPO, Collector, PPOConfig, RunSeeds
from palaestra.algorithms import ALGORITHMS
from palaestra.core import BoundedSpec, TensorSpec
from palaestra.envs import TensorEnvironment
from palaestra.envs.tiny import TensorCartPole
from palaestra.nn import NetworkConfig
from palaestra.rollout import compiled

LENGTH = 40


class Drift(TensorEnvironment):
    """A point is pushed, and drifts by `wind`; a box of actions, and a time limit."""

    observation_spec = TensorSpec((1,))
    action_spec = BoundedSpec((1,), minimum=-np.full(1, 2.0), maximum=np.full(1, 2.0))
    reward_spec = TensorSpec(())
    num_random = 1
    wind = 0.0

    def fresh(self, uniform):
        return {"x": uniform[:, 0]}

    def transition(self, state, action):
        x = state["x"] + action[:, 0] + self.wind
        return {"x": x}, -x.abs(), x.abs() > 3

    def observe(self, state):
        return state["x"][:, None].clone()


@pytest.fixture
def uncompiled(monkeypatch):
    """What would be compiled runs as Python: the same calls in the same order, without seconds of compilation.

    Gives the rows that each program was made for.
    """
    programs: list[int] = []

    def made(owner, method, example, checked):
        programs.append(len(example.noise))
        return partial(method, owner)

    monkeypatch.setattr(compiled, "compiled_method", made)
    return programs


def collector(kind=TensorCartPole, algorithm="ppo", **settings):
    env = kind(4, lane_seeds=[1, 2, 3, 4], max_episode_steps=15)
    made = ALGORITHMS[algorithm]
    config = made.config_class(unroll_length=LENGTH, **settings)
    learner = made(env.observation_spec, env.action_spec, config, RunSeeds(7))
    return Collector.of(env, learner), learner


def require_equal_runs(kind, tolerance, **settings):
    (plain, first), (fast, second) = collector(kind, **settings), collector(kind, **settings)
    fast.compile()
    for _ in range(3):
        infos = [one.unroll(LENGTH) for one in (plain, fast)]
        assert infos[0].env_steps == infos[1].env_steps
        assert [episode.length for episode in infos[0].episodes] == [episode.length for episode in infos[1].episodes]
        for name in ("step_type", "reward", "discount", "observation", "action", "policy_info", "policy_version"):
            ours, theirs = (one.buffer.recent(name, LENGTH) for one in (fast, plain))
            if name == "policy_info":
                if not plain.buffer.info_fields:
                    continue
                ours, theirs = ours["log_prob"], theirs["log_prob"]
            torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
        first.update(plain.source)
        second.update(fast.source)


cases = pytest.mark.parametrize(
    ("kind", "algorithm", "settings"),
    [
        (TensorCartPole, "ppo", {}),
        (TensorCartPole, "a2c", {"normalize_observation": True}),
        (TensorCartPole, "pqn", {"epsilon": 0.3}),
        (Drift, "ppo", {"normalize_observation": True}),
        (Drift, "sac", {"normalize_observation": True}),
    ],
)


@cases
def test_rows_and_episodes_are_those_of_separate_steps(kind, algorithm, settings, uncompiled):
    require_equal_runs(kind, 1e-6, algorithm=algorithm, **settings)


@pytest.mark.slow
@cases
def test_the_graph_gives_the_same_up_to_rounding(kind, algorithm, settings, unchecked_shapes):
    require_equal_runs(kind, 1e-4, algorithm=algorithm, **settings)


def test_an_unroll_that_was_paused_and_saved_goes_on_bit_for_bit(uncompiled):
    (whole, _), (cut, first) = collector(), collector()
    for one in (whole, cut):
        one.compile()
        one.unroll(1)  # from now on row by row, between which a pause is heard
    whole.unroll(LENGTH)
    moved, steps = cut.env.transition, iter(range(LENGTH))

    def interrupted(state, action):
        if next(steps) == 11:
            cut.pause()
        return moved(state, action)

    cut.env.transition = interrupted
    cut.unroll(LENGTH)
    assert cut.unfinished and cut.env_steps < whole.env_steps
    again, second = collector()
    again.compile()
    again.unroll(1)
    second.load_state_tensors(first.state_tensors())
    again.buffer.load_state_tensors(cut.buffer.state_tensors())
    again.load_state(cut.state())
    again.unroll(LENGTH)
    assert again.env_steps == whole.env_steps
    ours, theirs = (one.buffer.recent("observation", LENGTH) for one in (again, whole))
    assert torch.equal(ours, theirs)


def test_a_pause_on_a_cpu_waits_for_the_end_of_the_unroll(uncompiled):
    made, _ = collector()
    made.compile()
    moved, steps = made.env.transition, itertools.count()

    def interrupted(state, action):
        if next(steps) == 11:
            made.pause()
        return moved(state, action)

    made.env.transition = interrupted
    made.unroll(LENGTH)
    assert not made.unfinished and made.env_steps
    made.pause()
    assert made.unroll(LENGTH).env_steps, "a new unroll forgets what stopped the last one"


def test_rows_that_are_fewer_than_those_of_the_first_unroll_follow_one_by_one(uncompiled):
    plain, fast = collector()[0], collector()[0]
    fast.compile()
    for rows in (8, 11, 3):
        assert plain.unroll(rows).env_steps == fast.unroll(rows).env_steps
    assert sorted(uncompiled) == [1, 8]
    assert torch.equal(plain.buffer.recent("observation", 22), fast.buffer.recent("observation", 22))


@pytest.mark.slow
def test_one_row_after_another_compiled(unchecked_shapes):
    """As DQN and SAC unroll; really compiled."""
    plain, fast = collector(algorithm="dqn")[0], collector(algorithm="dqn")[0]
    fast.compile()
    for rows in (1, 1, 3):
        assert plain.unroll(rows).env_steps == fast.unroll(rows).env_steps
    ours, theirs = (one.buffer.recent("observation", 5) for one in (fast, plain))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_an_attribute_that_is_set_counts_from_the_next_unroll_on(uncompiled):
    made, _ = collector(Drift)
    made.compile()
    made.unroll(4)
    made.unroll(4)
    assert uncompiled == [4]
    made.set_env_attr("wind", 100.0)
    made.unroll(4)
    assert uncompiled == [4, 4]  # constants of the old one are gone
    assert (made.buffer.recent("step_type", 4) == 2).any(), "the wind blows every point away"


@pytest.mark.parametrize("recorded", [False, True])
def test_a_number_of_a_policy_that_changes_counts_and_ends_compiled_code(recorded, monkeypatch, caplog):
    """On a GPU, which is pretended, what is recorded holds a compiled step."""
    made, learner = collector()
    policy: Any = learner.policy

    class Leaning(type(policy)):
        lean = 0

        def act_with(self, observation, noise):
            action, described = super().act_with(observation, noise)
            return torch.full_like(action, self.lean), described

    def frozen(owner, method, *_, checked):
        checked([SimpleNamespace(guard_type="CONSTANT_MATCH", name="self.policy.lean")])
        then = copy.copy(owner)
        then.policy = copy.copy(policy)
        return partial(method, then)

    monkeypatch.setattr(compiled, "compiled_method", frozen)
    if recorded:
        monkeypatch.setattr(compiled.CompiledStep, "_records", property(lambda step: step._compiles))
        monkeypatch.setattr(compiled, "checked_method", lambda *given: frozen(*given[:2], checked=given[2]))
        monkeypatch.setattr(compiled, "Recorded", lambda function, given, generator: function)
    policy.__class__ = Leaning
    made.compile()
    for policy.lean in (0, 1, 0):
        made.unroll(4)
        assert (made.buffer.recent("action", 4) == policy.lean).all()
    assert caplog.text.count("policy.lean has changed, which compiled code takes for a constant") == 1


def test_a_policy_with_a_memory_acts_as_before(uncompiled):
    env = TensorCartPole(2, lane_seeds=[1, 2])
    config = PPOConfig(unroll_length=8, mini_batch_length=4, network=NetworkConfig(recurrent="lstm"))
    made = Collector.of(env, PPO(env.observation_spec, env.action_spec, config))
    made.compile()
    assert made.unroll(8).env_steps
    assert not uncompiled
