"""Tests of `palaestra.algorithms.rebrac`: against a plain transcription of the paper, and what the data says next."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from palaestra import ReplayBuffer, RunSeeds
from palaestra.algorithms import ReBRAC, ReBRACConfig
from palaestra.core import BoundedSpec, StepType, TensorSpec, TimeStep
from palaestra.nn import NetworkConfig

FIRST, MID, LAST = (int(kind) for kind in StepType)
GAMMA, ACTOR, CRITIC = 0.9, 0.3, 0.2
SMALL = NetworkConfig(hidden_sizes=(8,), activation="relu", layer_norm=True)


def made(**settings):
    box = BoundedSpec((2,), minimum=-np.ones(2), maximum=np.ones(2))
    config = ReBRACConfig(
        network=SMALL, gamma=GAMMA, actor_penalty=ACTOR, critic_penalty=CRITIC, **{"mini_batch_size": 64, **settings}
    )
    return ReBRAC(TensorSpec((3,)), box, config, RunSeeds(1))


def data():
    """One episode that terminates after three steps, one that a time limit cuts after two, and another beginning."""
    torch.manual_seed(0)
    rows = [(FIRST, 1.0), (MID, 1.0), (MID, 1.0), (LAST, 0.0), (FIRST, 1.0), (MID, 1.0), (LAST, 1.0), (FIRST, 1.0)]
    buffer = ReplayBuffer(
        20, 1, observation_spec=TensorSpec((3,)), action_spec=BoundedSpec((2,), minimum=-np.ones(2), maximum=np.ones(2))
    )
    for number, (kind, discount) in enumerate([*rows, (MID, 1.0)]):
        step = TimeStep(
            step_type=torch.tensor([kind], dtype=torch.int32),
            reward=torch.tensor([0.0 if kind == FIRST else float(number)]),
            discount=torch.tensor([discount]),
            observation=torch.randn(1, 3),
        )
        if number:
            buffer.append(torch.rand(1, 2) * 2 - 1, step)
        else:
            buffer.open(step)
    return buffer


@pytest.fixture
def batch():
    algorithm = made(policy_period=1)
    buffer = data()
    found = algorithm.preprocess(buffer.draw(algorithm.plan, torch.Generator().manual_seed(0)), buffer)
    return algorithm, algorithm.noise(found, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("size", [1.0, 30.0], ids=["inside", "at the bounds"])
def test_both_losses_are_those_of_the_paper(batch, size):
    """Equations (2) and (3), row by row; smoothed actions are cut at the bounds (Fujimoto et al. 2018, (14))."""
    algorithm, rows = batch
    with torch.no_grad():
        for parameter in algorithm.target_actor.parameters():
            parameter *= size
    losses = algorithm.losses(rows)
    critic, actor, size = 0.0, 0.0, rows.valid.numel()
    for n in range(size):
        one = {name: value[:, n] for name, value in rows.items()}
        action = (algorithm.target_actor(one["next_observation"]).tanh() + one["noise"]).clamp(-1, 1)
        value = algorithm.target_critic(one["next_observation"], action).min()
        if one["has_next"]:
            value = value - CRITIC * ((action - one["next_action"]) ** 2).sum()
        target = one["reward"] + one["bootstrap"] * value
        for q in algorithm.critic(one["observation"], one["action"]):
            critic += (q.squeeze() - target.squeeze()) ** 2 / size
        chosen = algorithm.policy.action(one["observation"])
        q = algorithm.critic(one["observation"], chosen).min() / rows.q_scale[0, 0]
        actor += (ACTOR * ((chosen - one["action"]) ** 2).sum() - q) / size
    assert_close(losses.terms["critic"], critic.detach(), rtol=1e-5, atol=1e-5)
    assert_close(losses.terms["actor"], actor.detach(), rtol=1e-5, atol=1e-5)


def test_the_critics_are_held_to_an_action_only_where_the_data_has_one(batch):
    """Not behind an end; an episode that a time limit cut goes on in value, one that terminated does not."""
    _, rows = batch
    ends = {
        (float(r), float(h), round(float(b), 6))
        for r, h, b in zip(rows.reward[0], rows.has_next[0], rows.bootstrap[0], strict=True)
    }
    assert ends == {(1.0, 1.0, GAMMA), (2.0, 1.0, GAMMA), (3.0, 0.0, 0.0), (5.0, 1.0, GAMMA), (6.0, 0.0, GAMMA)}
    assert rows.valid.all()


def test_the_critics_alone_are_normalised():
    algorithm = made()
    names = [name for name, _ in algorithm.model.named_parameters()]
    assert any("critic" in name and "gain" in name for name in names)
    assert not any("actor" in name and "gain" in name for name in names)


def test_targets_follow_when_the_actor_learns():
    """Every `policy_period` steps, not in each."""
    algorithm, buffer = made(policy_period=2, mini_batch_size=8), data()
    moved = []
    for _ in range(4):
        before = [p.clone() for p in (*algorithm.target_critic.parameters(), *algorithm.target_actor.parameters())]
        actor = [p.clone() for p in algorithm.policy.network.parameters()]
        algorithm.update(buffer)
        after = [*algorithm.target_critic.parameters(), *algorithm.target_actor.parameters()]
        pairs = [zip(before, after, strict=True), zip(actor, algorithm.policy.network.parameters(), strict=True)]
        moved.append([any(not torch.equal(a, b) for a, b in pair) for pair in pairs])
    assert moved == [[False, False], [True, True]] * 2


def test_penalties_of_0_leave_the_targets_of_td3():
    algorithm = made()
    buffer = data()
    found = algorithm.preprocess(buffer.draw(algorithm.plan, torch.Generator()), buffer)
    rows = algorithm.noise(found, torch.Generator())
    far = rows.replace(next_action=rows.next_action + 0.5)
    assert algorithm.losses(rows).terms["critic"] != algorithm.losses(far).terms["critic"]
    free = ReBRAC(
        algorithm.policy.observation_spec, algorithm.policy.action_spec, ReBRACConfig(network=SMALL, critic_penalty=0.0)
    )
    assert free.losses(rows).terms["critic"] == free.losses(far).terms["critic"]
