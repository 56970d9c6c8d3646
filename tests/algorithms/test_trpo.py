"""Tests of `palaestra.algorithms.trpo` and `palaestra.algorithms.trust_region`."""

import pytest
import torch
from torch.testing import assert_close

from palaestra.algorithms import TRPO, FixedPolicy, TRPOConfig
from palaestra.core import Batch, ConfigError, DiscreteSpec, NonFiniteError, TensorSpec
from palaestra.nn import NetworkConfig
from palaestra.policies import stochastic_policy
from tests.algorithms.parts import collected, environment, make

DELTA = 0.01


def softmax_policy(**settings):
    """Three actions whose logits are three biases, starting at zero; the observation is constant and adds nothing."""
    config = TRPOConfig(network=NetworkConfig(hidden_sizes=()), target_kl=DELTA, damping=0.0, **settings)
    algorithm = TRPO(TensorSpec((1,)), DiscreteSpec(num=3), config)
    with torch.no_grad():
        for parameter in algorithm.policy.parameters():
            parameter.zero_()
    return algorithm


@pytest.mark.parametrize("part", ["policy", "mean"])
def test_another_optimizer_would_leave_the_trust_region(part):
    """Of the policy, or of one of its layers."""
    with environment("continuous") as env, pytest.raises(ConfigError, match=rf"leave out algorithm.optimizers.{part}"):
        make("trpo", env, optimizers={part: "adam"})
    assert softmax_policy(optimizers={"value": "sgd"})


def batch(action, advantage):
    count = len(action)
    return Batch.of(
        {
            "observation": torch.zeros(count, 1, 1),
            "action": torch.tensor(action)[:, None],
            "log_prob": torch.full((count, 1), 1 / 3).log(),
            "advantage": torch.tensor(advantage)[:, None],
            "value": torch.zeros(count, 1),
            "value_target": torch.zeros(count, 1),
            "valid": torch.ones(count, 1),
        }
    )


def improved(algorithm, rows):
    """Metrics of the one step on hand-made rows that an update makes on those that it draws."""
    return algorithm._improve(rows)


def test_the_step_is_that_of_a_dense_solution_with_damping():
    """(F + 0.5 I)^-1 g by the whole Hessian of KL(old, new), cut to the trust region; in the direction that gains."""
    algorithm, _ = collected("trpo", "discrete", damping=0.5, num_conjugate_steps=40, target_kl=1e-4)
    generator = torch.Generator().manual_seed(0)
    rows = batch([0, 1, 2, 0, 1, 0], torch.randn(6, generator=generator).tolist())
    seen = torch.randn(6, 1, *algorithm.policy.observation_spec.shape, generator=generator)
    policy, parameters = algorithm.policy, list(algorithm.policy.network.parameters())
    start = torch.nn.utils.parameters_to_vector(parameters).detach()
    rows = rows.replace(observation=seen, log_prob=policy.distribution(seen).log_prob(rows.action).detach())
    names = [name for name, _ in policy.network.named_parameters()]

    def logits(vector):
        parts = vector.split([parameter.numel() for parameter in parameters])
        named = {n: part.view_as(p) for n, part, p in zip(names, parts, parameters, strict=True)}
        return torch.func.functional_call(policy.network, named, (policy.features(seen)[0],)).log_softmax(-1)

    old = logits(start).detach()
    gain = lambda x: (logits(x).gather(-1, rows.action[..., None])[..., 0] * rows.advantage).mean()  # noqa: E731
    kl = lambda x: (old.exp() * (old - logits(x))).sum(-1).mean()  # noqa: E731
    gradient = torch.autograd.functional.jacobian(gain, start)
    damped = torch.autograd.functional.hessian(kl, start) + 0.5 * torch.eye(len(start))
    direction = torch.linalg.solve(damped, gradient)
    longest = (2 * 1e-4 / (direction @ damped @ direction)).sqrt() * direction
    assert improved(algorithm, rows)["step_share"] == 1
    moved = torch.nn.utils.parameters_to_vector(parameters).detach() - start
    assert_close(moved, longest, rtol=1e-2, atol=1e-6)


def test_the_step_is_the_natural_gradient_of_the_longest_allowed_length():
    """Equation (14): at uniform probabilities the Fisher matrix of the logits is (I - 1/3) / 3, so F⁺g is 3g."""
    algorithm = softmax_policy(num_conjugate_steps=3)
    data = batch([0, 1, 2], [2.0, -1.0, -1.0])
    gradient = torch.tensor([2.0, -1.0, -1.0]) / 3  # of the mean over rows of (one-hot - 1/3) A
    direction = 3 * gradient
    longest = (2 * DELTA / (direction @ gradient)).sqrt() * direction
    metrics = improved(algorithm, data)
    bias = dict(algorithm.policy.network.named_parameters())["mlp.layers.0.bias"].detach()
    share = float(metrics["step_share"])
    assert share in (pytest.approx(1.0), pytest.approx(0.8))  # the true divergence is not quite the quadratic one
    assert_close(bias, share * longest, rtol=1e-3, atol=1e-5)
    assert_close(metrics["gradient_norm/policy"], gradient.norm())


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_the_new_policy_is_better_and_within_the_trust_region(kind):
    """Section 6: the divergence from the policy before the update is measured, not only predicted."""
    algorithm, collector = collected("trpo", kind, target_kl=DELTA, unroll_length=12)
    for _ in range(4):
        drawn = collector.buffer.newest(12)
        observation = drawn.observation
        before = FixedPolicy(algorithm.policy).distribution(observation)
        info = algorithm.update(collector.buffer)
        first = info.records[0]
        divergence = before.kl(algorithm.policy.distribution(observation)).mean()
        assert first["step_share"] > 0
        assert first["surrogate_gain"] > 0
        assert 0 < first["kl"] <= DELTA
        assert 0 < divergence < 3 * DELTA  # here over all rows, ends of episodes too
        collector.unroll(12)


@pytest.mark.parametrize("block", [None, "simba2"])
def test_the_divergence_that_is_reported_is_that_of_the_step_that_is_taken(block):
    """Also where a step brings weights back to their length, which the line search has to do, too."""
    network = NetworkConfig(hidden_sizes=(8,), activation="relu", block=block)
    algorithm, collector = collected("trpo", "continuous", network=network, target_kl=0.2, unroll_length=12)
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
    observation, valid = drawn.observation[:-1], drawn.valid.bool()
    before = FixedPolicy(algorithm.policy).distribution(observation)
    first = algorithm.update(collector.buffer).records[0]
    assert first["step_share"] > 0
    divergence = before.kl(algorithm.policy.distribution(observation))[valid].mean()
    assert_close(first["kl"], divergence.detach(), rtol=1e-3, atol=1e-6)


def test_a_step_that_improves_nothing_is_not_taken():
    """With advantages of 0 there is no direction; the mutant that takes the last step tried would move."""
    algorithm = softmax_policy()
    metrics = improved(algorithm, batch([0, 1], [0.0, 0.0]))
    assert float(metrics["step_share"]) == 0.0
    assert not any(parameter.any() for parameter in algorithm.policy.parameters())


def test_the_line_search_shortens_steps_that_leave_the_region():
    """A quadratic model far from the truth: the Fisher matrix of the policy is tiny where it is almost certain."""
    algorithm = softmax_policy(num_conjugate_steps=3)
    with torch.no_grad():
        dict(algorithm.policy.network.named_parameters())["mlp.layers.0.bias"].copy_(torch.tensor([6.0, 0.0, 0.0]))
    old = algorithm.policy.distribution(torch.zeros(1, 1, 1))
    data = batch([0, 1], [-1.0, 1.0])
    data = data.replace(log_prob=old.log_prob(torch.tensor([[0]])).expand(2, 1).detach().clone())
    metrics = improved(algorithm, data)
    assert float(metrics["step_share"]) < 1.0
    assert float(metrics["kl"]) <= DELTA


def test_only_the_value_network_is_trained_by_adam():
    algorithm, collector = collected("trpo", "discrete", num_epochs=3, mini_batch_size=10)
    info = algorithm.update(collector.buffer)
    assert int(algorithm.model.optimizers["policy"].steps) <= 1
    assert int(algorithm.model.optimizers["value"].steps) == info.gradient_steps - 1 == 12


def test_a_gradient_that_is_not_finite_raises():
    """F23: before anything is applied; the error holds what the step was computed from."""
    algorithm, bad = softmax_policy(), batch([0, 1], [torch.nan, 1.0])
    with pytest.raises(NonFiniteError, match="the gradient of 'policy' is not finite after 0 gradient steps") as caught:
        improved(algorithm, bad)
    assert caught.value.batch is bad
    assert not any(parameter.any() for parameter in algorithm.policy.parameters())
    bad = batch([0, 1], [0.0, 1.0]).replace(value_target=torch.full((2, 1), torch.inf))
    with pytest.raises(NonFiniteError, match="the gradient of 'value'") as caught:
        algorithm._fit_value(bad)
    assert caught.value.batch is bad


def test_rows_that_do_not_count_move_nothing():
    algorithm, collector = collected("trpo", "discrete")
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())

    class Ends:
        def draw(self, plan, generator):
            return unroll.replace(valid=torch.zeros_like(unroll.valid))

    before = [parameter.clone() for parameter in algorithm.model.parameters()]
    assert algorithm.update(Ends()).gradient_steps == 0
    assert all(map(torch.equal, before, algorithm.model.parameters()))


def test_a_fixed_distribution_does_not_follow_the_policy():
    """A mutant that only detaches would share the Gaussian's log σ, and the divergence would miss its change."""
    policy = stochastic_policy(TensorSpec((2,)), TensorSpec((1,)), NetworkConfig(hidden_sizes=()))
    observation = torch.zeros(5, 2)
    fixed, shared = FixedPolicy(policy).distribution(observation), policy.distribution(observation)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    new = policy.distribution(observation)
    assert_close(fixed.kl(new), torch.full((5,), 1.0 + (torch.e**-2 - 1) / 2 + 0.5 * torch.e**-2), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(shared.kl(new), fixed.kl(new))
    assert not fixed.log_prob(torch.zeros(5, 1)).requires_grad
