"""Tests of what teams learn: from whose reward, and of which value."""

import numpy as np
import pytest
import torch
from torch import nn

from palaestra import NetworkConfig
from palaestra.core import Batch, BoundedSpec, MultiDiscreteSpec, TensorSpec
from palaestra.policies import central_view
from palaestra.policies.team import TeamNetwork
from tests.algorithms.parts import collected, first_minibatch


def test_a_team_is_paid_the_mean_of_its_members():
    """MAPPO: which member earned a reward makes no difference; in which environment does."""
    algorithm, collector = collected("mappo", "team")
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    pay = torch.rand(unroll.reward.shape, generator=torch.Generator().manual_seed(1))

    def advantage(reward):
        return algorithm.preprocess(unroll.replace(reward=reward), collector.buffer).advantage

    torch.testing.assert_close(advantage(pay), advantage(pay[..., [1, 2, 0]]))
    assert not torch.allclose(advantage(pay), advantage(pay.roll(1, 1)), atol=1e-3)


@torch.no_grad()
def test_the_mixer_is_the_equation():
    """Rashid et al. 2018, equation (5) and figure 2: two layers whose weights, all positive, follow from the state."""
    algorithm, collector = collected("qmix", "team")
    batch = first_minibatch(algorithm, collector.buffer)
    mixer, view = algorithm.mixer, central_view(batch.observation)
    q = torch.randn(len(batch.action), 3, generator=torch.Generator().manual_seed(1))
    first, bias = mixer.first_weight(view).abs(), mixer.first_bias(view)
    second, last = mixer.second_weight(view).abs(), mixer.second_bias(view)
    units = bias.shape[-1]
    for row, total in enumerate(mixer(q, view).tolist()):
        hidden = [sum(q[row, g] * first[row, g * units + m] for g in range(3)) + bias[row, m] for m in range(units)]
        mixed = sum(torch.nn.functional.elu(value) * second[row, m] for m, value in enumerate(hidden))
        assert total == pytest.approx(float(mixed + last[row, 0]), rel=1e-4, abs=1e-5)


@torch.no_grad()
def test_vdn_adds_the_members_values():
    """Sunehag et al. 2017, equation (2), against rewards and the target networks' sum of the best actions."""
    algorithm, collector = collected("qmix", "team", mixing="sum", double=False, gamma=0.9)
    batch, policy = first_minibatch(algorithm, collector.buffer), algorithm.policy
    error = 0.0
    for n in range(len(batch.action)):
        row, after = batch.observation[n : n + 1], batch.next_observation[n : n + 1]
        now, then = (
            policy.q_values(row)[0],
            algorithm.target["members"](policy.normalize(after))[0].unflatten(0, (3, -1)),
        )
        allowed = then if policy.masks(after) is None else then.masked_fill(policy.masks(after)[0] == 0, -torch.inf)
        value = sum(now[g, batch.action[n, g]] * row.alive[0, g] for g in range(3))
        best = sum(allowed[g].max() for g in range(3) if after.alive[0, g])
        error += float(value - batch.reward[n] - batch.bootstrap[n] * best) ** 2 / len(batch.action)
    assert algorithm.losses(batch).terms["qmix"].item() == pytest.approx(error, rel=1e-4)


def test_each_member_is_judged_by_its_own_critic_with_the_others_as_they_acted():
    """Lowe et al. 2017, equation (5); members that do not act are not judged."""
    algorithm, collector = collected("maddpg", "team-continuous")
    batch = first_minibatch(algorithm, collector.buffer)
    terms = algorithm.losses(batch).terms
    view, members = central_view(batch.observation), algorithm.num_agents
    proposed = algorithm.policy.action(batch.observation).unflatten(-1, (members, -1))
    gain = torch.zeros(())
    for g in range(members):
        mixed = batch.action.unflatten(-1, (members, -1)).clone()
        mixed[:, g] = proposed[:, g]
        gain = gain + (algorithm.critic(view, mixed.flatten(-2))[g].squeeze(-1) * batch.observation.alive[:, g]).sum()
    torch.testing.assert_close(terms["actor"], -gain / (members * len(batch.action)))


def test_a_team_may_have_one_member_that_sees_a_choice():
    """What a member sees is described by the team's first, which is there in every team."""
    spec = {"observation": MultiDiscreteSpec(nvec=(5,)), "alive": TensorSpec((1,))}
    network = TeamNetwork(spec, 1, 2)
    seen = Batch(observation=torch.tensor([[4], [0]]), alive=torch.ones(2, 1))
    assert network(seen).shape == (2, 2)


def test_an_encoder_of_your_own_is_told_what_one_member_sees():
    """Without the team's dimension; with the bounds."""
    seen = []
    members = BoundedSpec((3, 2), minimum=np.full((3, 2), -1.0), maximum=np.full((3, 2), 4.0))
    spec = {"observation": members, "alive": TensorSpec((3,))}

    def encoder(spec):
        seen.append(spec)
        return nn.Linear(2, 2)

    TeamNetwork(spec, 3, 2, NetworkConfig(encoder=encoder))
    (told,) = seen
    assert told.shape == (2,)
    assert (told.minimum.tolist(), told.maximum.tolist()) == ([-1.0, -1.0], [4.0, 4.0])
