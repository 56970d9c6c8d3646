"""Tests of what teams learn: from whose reward, and of which value."""

import numpy as np
import pytest
import torch
from torch import nn

from palaestra import NetworkConfig
from palaestra.algorithms import ALGORITHMS, RewardConfig
from palaestra.core import Batch, BoundedSpec, ConfigError, MultiDiscreteSpec, TensorSpec
from palaestra.policies import central_view
from palaestra.policies.team import TeamNetwork
from tests.algorithms.parts import collected, environment, first_minibatch


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
@pytest.mark.parametrize("double", [False, True])
def test_vdn_adds_the_members_values(double):
    """Sunehag et al. 2017, equation (2), against rewards and the target networks' sum of the best actions."""
    algorithm, collector = collected("qmix", "team", mixing="sum", double=double, gamma=0.9)
    for parameter in algorithm.target.parameters():  # which then prefers other actions
        parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    batch, policy = first_minibatch(algorithm, collector.buffer), algorithm.policy
    error = 0.0
    for n in range(len(batch.action)):
        row, after = batch.observation[n : n + 1], batch.next_observation[n : n + 1]
        now, then = (
            policy.q_values(row)[0],
            algorithm.target["members"](policy.normalize(after))[0].unflatten(0, (3, -1)),
        )
        choosing = policy.q_values(after)[0] if double else then
        chosen = choosing.masked_fill(policy.masks(after)[0] == 0, -torch.inf).argmax(-1)
        value = sum(now[g, batch.action[n, g]] * row.alive[0, g] for g in range(3))
        best = sum(then[g, chosen[g]] for g in range(3) if after.alive[0, g])
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


def test_coma_judges_an_action_by_what_the_others_would_have_been_worth():
    """Foerster et al. 2018, equations (4) and (5), member by member; the baseline has no gradient of its own."""
    algorithm, collector = collected("coma", "team", num_epochs=1, entropy_cost=0.5)
    batch = first_minibatch(algorithm, collector.buffer)
    policy = algorithm.policy.distribution(batch.observation)
    log_prob, acts = policy.log_prob(batch.action), batch.observation.alive
    seen = algorithm.policy.normalize(batch.observation)
    total = torch.zeros(())
    for g in range(3):
        worth = []
        for action in range(4):  # the critic is not told what the member itself did
            joint = batch.action.clone()
            joint[..., g] = action
            worth.append(algorithm.critic(seen, joint)[..., g, :].detach())
        for other in worth:
            torch.testing.assert_close(other, worth[0])
        own = worth[0].gather(-1, batch.action[..., g : g + 1]).squeeze(-1)
        advantage = own - (policy.probs[..., g, :].detach() * worth[0]).sum(-1)
        entropy = -(policy.probs[..., g, :] * policy.probs[..., g, :].clamp(min=1e-30).log()).sum(-1)
        total = total - ((advantage * log_prob[..., g] + 0.5 * entropy) * acts[..., g] * batch.valid).sum()
    term = algorithm.losses(batch).terms["actor"]
    torch.testing.assert_close(term, total / (3 * batch.valid.sum()))
    parameters = list(algorithm.policy.network.parameters())
    ours, expected = (torch.autograd.grad(loss, parameters) for loss in (term, total / (3 * batch.valid.sum())))
    torch.testing.assert_close(ours, expected)


def test_mappo_is_ppo_for_the_members_that_act():
    """Yu et al. 2022: means over the whole team, in which those that do not act have nothing."""
    algorithm, collector = collected("mappo", "team", entropy_cost=0.3, value_cost=0.5, clip=0.2)
    batch = first_minibatch(algorithm, collector.buffer)
    batch = batch.replace(
        log_prob=batch.log_prob + 0.3 * torch.randn(batch.log_prob.shape, generator=torch.Generator())
    )
    policy, total = algorithm.policy.distribution(batch.observation), torch.zeros(())
    log_prob, acts = policy.log_prob(batch.action), batch.observation.alive.bool()
    error = (algorithm.value(batch.observation) - batch.value_target) ** 2
    rows = [n for n in range(len(batch.valid)) if batch.valid[n]]
    assert not acts[rows].all()
    for n in rows:
        total = total + 0.5 * error[n]
        for g in range(3):
            if acts[n, g]:
                ratio, gain = (log_prob[n, g] - batch.log_prob[n, g]).exp(), batch.advantage[n]
                probs = policy.probs[n, g]
                entropy = -(probs[probs > 0] * probs[probs > 0].log()).sum()
                total = total - (torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain) + 0.3 * entropy) / 3
    torch.testing.assert_close(algorithm.losses(batch).terms["mappo"], total / len(rows))


def test_comas_critic_learns_lambda_returns_of_the_target_critic():
    """Algorithm 1, row by row from the end: what follows an end of an episode counts nothing."""
    algorithm, collector = collected("coma", "team", gamma=0.9, trace_decay=0.7)
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    ends = unroll.step_type[1:] == 2
    assert (ends & (unroll.discount[1:] == 0)).any()
    target = algorithm.preprocess(unroll, collector.buffer).target
    seen = algorithm.policy.normalize(unroll.observation[:-1])
    values = algorithm.target_critic(seen, unroll.action).gather(-1, unroll.action.unsqueeze(-1)).squeeze(-1)
    reward, discount, valid = unroll.reward.mean(-1), unroll.discount, unroll.valid.bool()
    checked = 0
    for t in range(len(target)):
        for b in range(target.shape[1]):
            if not valid[t, b]:
                continue
            if ends[t, b] and discount[t + 1, b] == 0:
                expected = reward[t + 1, b].expand(3)
            elif t + 1 < len(target) and valid[t + 1, b]:
                expected = reward[t + 1, b] + 0.9 * (0.3 * values[t + 1, b] + 0.7 * target[t + 1, b])
            else:  # bootstraps from a joint action that was drawn
                continue
            torch.testing.assert_close(target[t, b], expected)
            checked += 1
    assert checked > 10


def test_masac_is_the_equations_for_every_member():
    """Lowe et al. 2017, (5) and (6), with the soft values of Haarnoja et al. 2018, (5), (6), (9) and (18)."""
    algorithm, collector = collected("masac", "team-continuous", gamma=0.9)
    batch = first_minibatch(algorithm, collector.buffer)
    view, after = central_view(batch.observation), central_view(batch.next_observation)
    policy, alpha, members = algorithm.policy, algorithm.temperature(), 3
    action, log_prob = policy.distribution(batch.observation).at(batch.noise.unflatten(-1, (members, 2)))
    following, next_log_prob = policy.distribution(batch.next_observation).at(batch.next_noise.unflatten(-1, (3, 2)))
    errors, costs, excess = [], [], []
    for g in range(members):
        own = slice(2 * g, 2 * g + 2)
        soft = algorithm.target_critic(after, following.flatten(-2))[own].amin(0).squeeze(-1)
        soft = soft - alpha * next_log_prob[:, g] * batch.next_observation.alive[:, g]
        target = (batch.reward[:, g] + batch.bootstrap[:, g] * soft).detach()
        for q in algorithm.critic(view, batch.action)[own].squeeze(-1):
            errors.append((q - target).square().mean() / (2 * members))
        mixed = batch.action.unflatten(-1, (members, 2)).clone()
        mixed[:, g] = action[:, g]
        least = algorithm.critic(view, mixed.flatten(-2))[own].amin(0).squeeze(-1)
        acts = batch.observation.alive[:, g]
        costs.append(((alpha * log_prob[:, g] - least) * acts).mean() / members)
        excess.append(((log_prob[:, g] - 2) * acts).mean().detach() / members)
    found = algorithm.losses(batch)
    terms, alive = found.terms, batch.observation.alive.bool()
    assert 0 < int(alive.sum()) < alive.numel()
    surprise = [-float(one) for one, acts in zip(log_prob.detach().flatten(), alive.flatten(), strict=True) if acts]
    assert float(found.metrics["entropy"].detach()) == pytest.approx(sum(surprise) / len(surprise), rel=1e-4)
    torch.testing.assert_close(terms["critic"], torch.stack(errors).sum())
    torch.testing.assert_close(terms["actor"], torch.stack(costs).sum())
    torch.testing.assert_close(terms["temperature"], -algorithm.temperature.log * torch.stack(excess).sum())


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


def test_comas_critic_sees_what_the_others_do_behind_a_normaliser():
    """Who is alive stays 0 or 1: all alive, it would be normalised to 0, and with it every action."""
    algorithm, collector = collected("coma", "team", normalize_observation=True)
    algorithm.update(collector.buffer)
    collector.unroll(12)
    batch = first_minibatch(algorithm, collector.buffer)
    values = []
    for step in (0, 1):
        action = batch.action.clone()
        action[..., 1:] = (action[..., 1:] + step) % 4
        values.append(algorithm.losses(batch.replace(action=action)).metrics["q_mean"])
    own = [
        algorithm.critic(algorithm.policy.normalize(batch.observation), (batch.action + shift) % 4) for shift in (0, 1)
    ]
    alive = batch.observation.alive.sum(-1) == 3
    assert alive.any()
    assert ((own[0] - own[1]).abs().amax(-1)[alive] > 1e-6).all()
    assert values[0] != values[1]


def test_what_coma_draws_depends_on_its_policy_alone():
    """A callback that looks at an unroll changes nothing."""
    algorithm, collector = collected("coma", "team")
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    first, second = (algorithm.preprocess(unroll, collector.buffer).target for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_comas_actors_step_with_the_last_pass_of_an_update():
    """Also after an update that was cut off, or with another number of passes than before."""
    algorithm, collector = collected("coma", "team", num_epochs=3)
    algorithm.num_gradient_steps = 4
    records = algorithm.update(collector.buffer).records
    assert ["policy_gradient" in record for record in records] == [False, False, True]


def test_coma_draws_what_a_shorter_lane_has_not_done():
    """Its returns bootstrap from joint actions of the policy, not from those of the row before."""
    algorithm, collector = collected("coma", "team")
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    lane = unroll.valid[:, 0].clone()
    lane[-3:] = 0  # as if it had ended three rows before the others
    short = unroll.replace(valid=torch.cat((lane[:, None], unroll.valid[:, 1:]), 1))
    given = []
    algorithm.target_critic.register_forward_pre_hook(lambda module, inputs: given.append(inputs[1]))
    for version in range(8):
        algorithm.policy.version = version
        algorithm.preprocess(short, collector.buffer)
    drawn = torch.stack(given)[:, :-1]
    changes = (drawn != drawn[0]).flatten(3).any(-1).any(0)  # [T, B]
    assert changes[-3:, 0].all() and not changes[short.valid > 0].any()


@pytest.mark.parametrize("name", ["coma", "mappo", "qmix"])
def test_a_team_has_no_weights_of_rewards(name):
    kind = ALGORITHMS[name]
    config = kind.config_class(rewards=RewardConfig(weights=(1.0, 1.0, 1.0)))
    with environment("team") as env:
        algorithm, reward_spec = kind(env.observation_spec, env.action_spec, config), env.reward_spec
    with pytest.raises(ConfigError, match="learns for a team"):
        algorithm.require_reward(reward_spec)
