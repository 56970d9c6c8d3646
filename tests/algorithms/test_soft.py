"""Tests of SAC, REDQ, quantile SAC, discrete SAC and CQL: targets, temperature, subsets, quantiles, gaps."""

import math

import pytest
import torch
from torch.testing import assert_close

from palaestra.algorithms import ALGORITHMS, DiscreteSACConfig
from palaestra.core import ConfigError, DiscreteSpec, NonFiniteError, TensorSpec
from tests.algorithms.parts import collected
from tests.algorithms.replayed import LINEAR, ROWS, constant, made, prepared

MID, LAST = 1, 2


@pytest.mark.parametrize(("discount", "kind", "bootstraps"), [(1.0, MID, True), (1.0, LAST, True), (0.0, LAST, False)])
def test_the_target_is_the_lesser_value_minus_the_temperature_times_the_log_probability(discount, kind, bootstraps):
    """Haarnoja et al., equations (3), (5); ALF-26, ALF-28."""
    algorithm = made("sac", gamma=0.9, initial_temperature=0.5)
    constant(algorithm.target_critic, [3.0, 5.0])
    constant(algorithm.critic, 0.0)
    batch = prepared(algorithm, 2.0, discount, kind)
    _, log_prob = algorithm.policy.distribution(batch.next_observation).at(batch.next_noise)
    target = 2.0 + (0.9 * (3.0 - 0.5 * log_prob) if bootstraps else torch.zeros(ROWS))
    assert algorithm.losses(batch).terms["critic"].item() == pytest.approx(target.square().mean().item(), rel=1e-5)


@pytest.mark.parametrize("term", ["actor", "critic", "temperature"])
def test_one_term_that_is_not_finite_leaves_every_component_as_it_was(term, monkeypatch):
    """F23: parameters, target networks and optimizers, bit for bit."""
    algorithm, collector = collected("sac", "continuous")
    algorithm.update(collector.buffer)
    version, original = algorithm.policy_version, algorithm.losses

    def losses(batch):
        stated = original(batch)
        return stated._replace(terms={**stated.terms, term: stated.terms[term] * torch.nan})

    monkeypatch.setattr(algorithm, "losses", losses)
    before = {name: tensor.clone() for name, tensor in algorithm.model.state_tensors().items()}
    with pytest.raises(NonFiniteError, match=f"the gradient of '{term}' is not finite"):
        algorithm.update(collector.buffer)
    assert all(torch.equal(before[name], tensor) for name, tensor in algorithm.model.state_tensors().items())
    assert algorithm.policy_version == version


@pytest.mark.parametrize("name", ["sac", "redq", "quantile_sac", "cql"])
def test_each_term_trains_its_own_component(name):
    """A SAC actor term must not leak into the critic, nor into the temperature."""
    algorithm = made(name, **({"policy_period": 1} if name == "redq" else {}))
    batch = prepared(algorithm, 1.0, 1.0)
    terms = algorithm.losses(batch).terms
    assert terms.keys() == {"actor", "critic", "temperature"}
    together = algorithm.gradients(batch).values
    for term in terms:
        alone = algorithm.model.get_gradients(algorithm.losses(batch).terms[term], [term])
        for key, gradient in alone.items():
            assert_close(together[key], gradient)


@pytest.mark.parametrize(("target_entropy", "rises"), [(100.0, True), (-100.0, False)])
def test_the_temperature_rises_where_entropy_is_missing(target_entropy, rises):
    """Equation (18)."""
    algorithm, collector = collected("sac", "continuous", target_entropy=target_entropy)
    before = float(algorithm.temperature())
    algorithm.update(collector.buffer)
    assert (float(algorithm.temperature()) > before) == rises


def test_a_temperature_with_learning_rate_zero_stays():
    algorithm, collector = collected("sac", "continuous", temperature_learning_rate=0.0, initial_temperature=0.2)
    algorithm.update(collector.buffer)
    assert float(algorithm.temperature()) == pytest.approx(0.2)


# -- REDQ


def test_every_gradient_step_asks_its_own_random_subset_of_critics():
    """Chen et al., algorithm 1, line 8: M distinct critics, drawn before the batch is split."""
    algorithm = made("redq", num_critics=10, subset_size=2, gradient_steps=40)
    rows = prepared(algorithm, 0.0, 1.0).subset
    assert rows.shape == (40 * ROWS, 2)
    assert (rows[:, 0] != rows[:, 1]).all()
    by_step = rows.reshape(40, ROWS, 2)
    assert (by_step == by_step[:, :1]).all()
    assert len(rows.unique()) == 10


def test_the_target_is_the_least_of_the_subset_and_the_actor_follows_the_mean_of_all():
    """Lines 9 and 12."""
    algorithm = made("redq", num_critics=3, subset_size=2, policy_period=1, initial_temperature=1e-9, gamma=1.0)
    constant(algorithm.target_critic, [1.0, 2.0, 3.0])
    constant(algorithm.critic, [4.0, 5.0, 9.0])
    batch = prepared(algorithm, 0.0, 1.0)
    batch = batch.replace(subset=torch.tensor([[2, 1]] * ROWS))
    losses = algorithm.losses(batch)
    assert losses.terms["critic"].item() == pytest.approx(0.5 * (2**2 + 3**2 + 7**2), rel=1e-5)
    assert losses.terms["actor"].item() == pytest.approx(-6.0, rel=1e-5)


def test_one_critic_has_no_spread():
    algorithm = made("redq", num_critics=1, subset_size=1)
    assert algorithm.losses(prepared(algorithm, 0.0, 1.0)[:ROWS]).metrics["q_std"].item() == 0.0


def test_a_subset_larger_than_the_ensemble_is_refused():
    with pytest.raises(ConfigError, match="subset_size is 3 of 2 critics"):
        made("redq", num_critics=2, subset_size=3)


# -- quantiles


def test_the_highest_quantiles_are_left_out_of_the_target():
    """Kuznetsov et al., equations (6) and (7): of 1, 2, 3, 10 and 1, 2, 3, 10 the two tens go."""
    algorithm = made("quantile_sac", num_critics=2, num_quantiles=4, num_dropped=1, initial_temperature=1e-9, gamma=1.0)
    with torch.no_grad():
        for network, values in ((algorithm.target_critic, [1.0, 2.0, 3.0, 10.0]), (algorithm.critic, [2.0] * 4)):
            network.layers[0].weight.zero_()
            network.layers[0].bias.copy_(torch.tensor(values).expand(2, 1, 4))
    critic = algorithm.losses(prepared(algorithm, 0.0, 1.0)).terms["critic"].item()
    # errors of -1, 0, 1 with a huber loss of 0.5 each at both ends; fractions have the mean 0.5
    assert critic == pytest.approx((0.5 * 0.5 + 0.5 * 0.5) / 3, rel=1e-5)


def test_losses_of_quantiles_are_those_of_a_plain_transcription():
    """Kuznetsov et al., equations (6) to (9), row by row, with a temperature and critics that differ."""
    algorithm = made("quantile_sac", num_critics=2, num_quantiles=4, num_dropped=1, initial_temperature=0.5, gamma=0.9)
    batch = prepared(algorithm, 2.0, 1.0)
    now, after = (algorithm.policy.distribution(x) for x in (batch.observation, batch.next_observation))
    (action, log_prob), (next_action, next_log_prob) = now.at(batch.noise), after.at(batch.next_noise)
    believed, wanted, chosen = (
        network(seen, acted).detach()  # [2, N, 4]
        for network, seen, acted in (
            (algorithm.critic, batch.observation, batch.action),
            (algorithm.target_critic, batch.next_observation, next_action),
            (algorithm.critic, batch.observation, action),
        )
    )
    critic, actor = [], []
    for n in range(ROWS):
        kept = sorted(wanted[:, n].flatten().tolist())[:-2]
        for member in range(2):
            for place, quantile in enumerate(believed[member, n].tolist()):
                for value in kept:
                    error = 2.0 + 0.9 * (value - 0.5 * next_log_prob[n].item()) - quantile
                    size = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
                    critic.append(abs((place + 0.5) / 4 - (error < 0)) * size)
        actor.append(0.5 * log_prob[n].item() - chosen[:, n].mean().item())
    terms = algorithm.losses(batch).terms
    assert terms["critic"].item() == pytest.approx(sum(critic) / len(critic), rel=1e-4)
    assert terms["actor"].item() == pytest.approx(sum(actor) / len(actor), rel=1e-4)


def test_at_least_one_quantile_has_to_be_left():
    with pytest.raises(ConfigError, match="num_dropped is 4 of 4 quantiles"):
        made("quantile_sac", num_quantiles=4, num_dropped=4)


# -- discrete actions


def test_discrete_sac_takes_expectations_over_all_actions():
    """Christodoulou, equations (10) and (12), for a uniform policy over four actions worth 1, 2, 3, 4."""
    config = DiscreteSACConfig(network=LINEAR, initial_temperature=0.5, gamma=0.5)
    algorithm = ALGORITHMS["discrete_sac"](TensorSpec((2,)), DiscreteSpec(num=4), config)
    components = algorithm.model.component
    constant(components["actor"], 0.0)
    with torch.no_grad():
        for name in ("critic", "target_critic"):
            components[name].layers[0].weight.zero_()
            components[name].layers[0].bias.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(2, 1, 4))
    batch = prepared(algorithm, 1.0, 1.0)
    losses = algorithm.losses(batch.replace(action=torch.tensor([3] * ROWS)))
    soft_value = 2.5 + 0.5 * math.log(4)
    assert losses.terms["actor"].item() == pytest.approx(-soft_value, rel=1e-5)
    assert losses.terms["critic"].item() == pytest.approx((4 - (1 + 0.5 * soft_value)) ** 2, rel=1e-4)


# -- conservative


def test_the_conservative_gap_is_the_log_integral_of_the_values_minus_that_of_the_data():
    """Kumar et al., equation (4) and appendix F: equal values leave log of the box, log 2, a critic."""
    algorithm = made("cql", num_actions=400, conservative_cost=0.0)
    constant(algorithm.critic, [3.0, -1.0])
    gap = algorithm.losses(prepared(algorithm, 0.0, 1.0)).metrics["gap"].item()
    assert gap == pytest.approx(2 * math.log(2), abs=0.1)


def test_the_actor_follows_the_lesser_value_and_the_temperature_the_entropy_that_is_missing():
    """Haarnoja et al. 2018, equations (9) and (18), where the two critics disagree row by row."""
    algorithm = made("sac", initial_temperature=0.5, target_entropy=-0.7)
    batch = prepared(algorithm, 1.0, 1.0)
    action, log_prob = algorithm.policy.distribution(batch.observation).at(batch.noise)
    values = algorithm.critic(batch.observation, action).squeeze(-1)
    least = values.min(0).values
    assert not torch.allclose(least, values.mean(0))
    terms = algorithm.losses(batch).terms
    assert_close(terms["actor"], (0.5 * log_prob - least).mean())
    (gradient,) = algorithm.model.get_gradients(terms["temperature"], ["temperature"]).values()
    assert gradient.item() == pytest.approx(0.7 - log_prob.mean().item(), rel=1e-4)  # by log alpha
