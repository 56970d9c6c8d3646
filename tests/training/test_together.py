"""Tests of populations: `algorithms.together`, `rollout.together`, `training.together`."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from palaestra import DQN, PPO, Collector, Linear, NetworkConfig, RunSeeds, Trainer, TrainerConfig
from palaestra.algorithms import A2C, PQN, SAC, TD3, Together
from palaestra.core import BoundedSpec, ConfigError
from palaestra.envs import TensorEnvironment
from palaestra.envs.tiny import TensorCartPole
from palaestra.rollout import UnrollTogether
from palaestra.training import Callback, Member, run_together
from tests.faults.parts import child_environment

ROOT = Path(__file__).resolve().parents[2]
LANES = 4
SMALL = {"network": NetworkConfig(hidden_sizes=(8,))}
CLOCK = [0.0]


class Hooked(PPO):
    """Changes what its losses could read."""

    def after_update(self, batch):
        self.beta = 0.5


class Push(TensorEnvironment):
    """A point that forces keep near 0."""

    num_random = 2
    observation_spec = BoundedSpec((2,), minimum=np.full(2, -9, np.float32), maximum=np.full(2, 9, np.float32))
    action_spec = BoundedSpec((1,), minimum=np.full(1, -1, np.float32), maximum=np.full(1, 1, np.float32))

    def fresh(self, uniform):
        return {"x": uniform[:, 0] * 2 - 1, "v": uniform[:, 1] * 0.2}

    def transition(self, state, action):
        v = state["v"] * 0.9 + 0.1 * action[:, 0]
        x = state["x"] + v
        return {"x": x, "v": v}, -x.abs(), x.abs() > 1.5

    def observe(self, state):
        return torch.stack([state["x"], state["v"]], -1)


def trainer(kind, env_kind, seed, together, **settings):
    """Of one member, or of a run alone."""
    lanes = [RunSeeds(seed).integer("environments", lane) for lane in range(LANES)]
    env = env_kind(LANES, lane_seeds=lanes, max_episode_steps=12)
    algorithm = kind(env.observation_spec, env.action_spec, kind.config_class(**SMALL, **settings), RunSeeds(seed))
    learner = Member({"policy": algorithm}) if together else algorithm
    return Trainer(Collector.of(env, algorithm), learner, TrainerConfig(total_env_steps=90))


def population(trainers, *, compiles=False):
    env = trainers[0].collector.env
    together = Together([one.algorithm for one in trainers])
    if compiles:
        together.compile()
    whole = type(env)(LANES * len(trainers), max_episode_steps=12)
    return together, UnrollTogether(together, [one.collector for one in trainers], whole, compiles=compiles)


def require_equal(alone, member, tolerance=2e-5):
    """Weights, what optimizers remember and running statistics up to rounding; streams and counts exactly."""
    mine, theirs = member.algorithm.state_tensors(), alone.algorithm.state_tensors()
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            torch.testing.assert_close(mine[name], value, rtol=tolerance, atol=tolerance)
        elif isinstance(value, torch.Tensor):
            assert torch.equal(mine[name], value), name
        else:
            assert mine[name] == value, name
    assert member.collector.env_steps == alone.collector.env_steps
    rows = [one.collector.buffer.recent("action", 4) for one in (alone, member)]
    torch.testing.assert_close(*rows, rtol=tolerance, atol=tolerance)


class Slow(Callback):
    """Something that a member does by itself."""

    def iteration_ended(self, trainer, updates):
        CLOCK[0] += 0.5


class SlowPole(TensorCartPole):
    def transition(self, state, action):
        CLOCK[0] += 0.25
        return super().transition(state, action)


@pytest.fixture
def clock(monkeypatch):
    """Only what is slow takes time."""
    monkeypatch.setattr("palaestra.training.console.time", SimpleNamespace(perf_counter=lambda: CLOCK[0]))


def test_what_is_done_together_is_of_each(clock):
    members = [trainer(A2C, SlowPole, seed, True) for seed in (0, 1, 2)]
    made, began = population(members), CLOCK[0]
    run_together(members, *made)
    assert [one.time.train_s for one in members] == pytest.approx([CLOCK[0] - began] * 3)
    assert max(one.time.seconds["waiting"] for one in members) < CLOCK[0] - began


def test_what_one_does_by_itself_is_no_learning_of_the_others(clock):
    members = [trainer(A2C, TensorCartPole, seed, True) for seed in (0, 1, 2)]
    for one in members:
        one.callbacks.append(Slow())
    run_together(members, *population(members))
    for one in members:
        iterations = one.algorithm.num_gradient_steps
        assert one.time.seconds["waiting"] >= 3 * 0.5 * (iterations - 1) > 0
        assert one.time.train_s == pytest.approx(0.0)


REPLAY = {"learning_starts": 40, "mini_batch_size": 16}
CASES = {
    "ppo": (PPO, TensorCartPole, {"unroll_length": 8, "mini_batch_size": 16, "num_epochs": 2}),
    "ppo with statistics, on a box": (
        PPO,
        Push,
        {"unroll_length": 8, "mini_batch_size": 16, "normalize_observation": True, "normalize_return": True},
    ),
    "a2c": (A2C, TensorCartPole, {}),
    "pqn": (PQN, TensorCartPole, {"unroll_length": 8, "mini_batch_size": 16}),
    "dqn": (DQN, TensorCartPole, REPLAY),
    "sac": (SAC, Push, REPLAY),
    "td3": (TD3, Push, REPLAY),
}


@pytest.mark.parametrize("case", CASES)
def test_each_member_ends_as_it_would_alone(case):
    """Also where members begin to learn in different iterations, and take another loss term, or a move, in each."""
    kind, env, settings = CASES[case]
    seeds = (0, 1, 5)
    alone = [trainer(kind, env, seed, False, **settings) for seed in seeds]
    for one in alone:
        one.run()
    members = [trainer(kind, env, seed, True, **settings) for seed in seeds]
    ends = run_together(members, *population(members))
    assert [end.status for end in ends] == ["done"] * 3
    for one, member in zip(alone, members, strict=True):
        require_equal(one, member)
        assert member.algorithm.num_gradient_steps == one.algorithm.num_gradient_steps > 0


def test_numbers_may_differ_and_follow_schedules():
    """Learning rate, discount, entropy cost and clip range, of each member its own."""
    fixed = {"unroll_length": 8, "mini_batch_size": 16, "num_epochs": 2}
    numbers = [
        {"learning_rate": 1e-3, "gamma": 0.9, "entropy_cost": 0.0, "clip": 0.1},
        {"learning_rate": Linear(1e-2, 0.0), "gamma": 0.99, "entropy_cost": 0.02, "clip": Linear(0.3, 0.1)},
    ]
    alone = [trainer(PPO, TensorCartPole, 2, False, **fixed, **one) for one in numbers]
    for one in alone:
        one.run()
    members = [trainer(PPO, TensorCartPole, 2, True, **fixed, **one) for one in numbers]
    run_together(members, *population(members))
    for one, member in zip(alone, members, strict=True):
        require_equal(one, member)
    weights = [dict(one.algorithm.model.named_parameters()) for one in members]
    assert any(not torch.allclose(weights[0][name], weights[1][name], atol=1e-3) for name in weights[0])


def compiled_members():
    """Unrolls and gradient steps in one graph each."""
    kind, env, settings = CASES["ppo"]
    alone, members = ([trainer(kind, env, seed, kept, **settings) for seed in (0, 3)] for kept in (False, True))
    for one in alone:
        one.run()
    run_together(members, *population(members, compiles=True))
    for one, member in zip(alone, members, strict=True):
        require_equal(one, member, 1e-4)


@pytest.mark.slow
def test_compiled_members_end_as_they_would_alone():
    """In a process of their own: code whose types are checked while it runs cannot be traced with other weights."""
    call = "from tests.training.test_together import compiled_members; compiled_members()"
    subprocess.run([sys.executable, "-c", call], check=True, cwd=ROOT, env=os.environ | child_environment())


def test_a_member_whose_gradient_is_not_finite_stays_as_it_is_and_the_others_learn():
    members = [trainer(PPO, TensorCartPole, seed, True, unroll_length=8, mini_batch_size=16) for seed in (0, 1)]
    together, _ = population(members)
    for one in members:
        one.collector.unroll(8)
    broken = members[0].collector.buffer
    before = {name: value.clone() for name, value in members[0].algorithm.model.state_tensors().items()}
    draw = broken.draw

    def drawn(*given):
        batch = draw(*given)
        return batch.replace(reward=batch.reward * torch.nan)

    broken.draw = drawn
    with warnings.catch_warnings():
        made = together.update({place: one.collector.source for place, one in enumerate(members)})
    assert "not finite" in str(made[0]) and made[0].batch["advantage"].isnan().any()
    assert made[1].gradient_steps == 8  # 32 rows in minibatches of 16, four times
    after = members[0].algorithm.model.state_tensors()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        (PPO, {"target_kl": 0.1}, "algorithm.target_kl"),
        (PPO, {"recompute_advantage": True}, "algorithm.recompute_advantage"),
        (PPO, {"network": NetworkConfig(recurrent="lstm")}, "algorithm.network.recurrent"),
        (Hooked, {}, "Hooked with an after_update of your own"),
    ],
)
def test_what_cannot_be_had_side_by_side_is_refused_by_name(kind, settings, named):
    env = TensorCartPole(2)
    config = kind.config_class(**settings)
    with pytest.raises(ConfigError, match=named):
        Together([kind(env.observation_spec, env.action_spec, config, RunSeeds(seed)) for seed in (0, 1)])


def test_members_differ_in_numbers_only():
    env = TensorCartPole(2)
    configs = [PPO.config_class(num_epochs=epochs) for epochs in (1, 2)]
    with pytest.raises(ConfigError, match=r"algorithm.num_epochs \(1 and others\)"):
        Together([PPO(env.observation_spec, env.action_spec, config) for config in configs])


@pytest.mark.parametrize("period", [1, 2])
def test_what_members_report_is_what_they_would_alone(period):
    """The mean over the gradient steps of an update, where some have more terms than others: one record each."""
    settings = {"learning_starts": 8, "mini_batch_size": 8, "unroll_length": 4, "gradient_steps": 5}
    settings |= {"policy_period": period}
    alone, members = ([trainer(TD3, Push, seed, kept, **settings) for seed in (0, 1)] for kept in (False, True))
    together, _ = population(members)
    for one in (*alone, *members):
        one.collector.unroll(4)
    infos = together.update({place: one.collector.source for place, one in enumerate(members)})
    for one, info in zip(alone, infos.values(), strict=True):
        expected = one.algorithm.update(one.collector.source)
        assert not isinstance(info, Exception)
        assert len(info.records) == 1
        assert (info.gradient_steps, info.rows_trained) == (5, expected.rows_trained)
        assert info.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-5)
