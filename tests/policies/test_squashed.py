"""Tests of the policies whose raw actions lie in [-1, 1]: squashed Gaussian, deterministic, population."""

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution
from torch.testing import assert_close

from palaestra.core import BoundedSpec, ConfigError, DiscreteSpec, ShapeError, TensorSpec, TimeStep
from palaestra.nn import NetworkConfig
from palaestra.policies import (
    DeterministicPolicy,
    GaussianNoise,
    Phase,
    PopulationPolicy,
    SquashedGaussianPolicy,
    load_policy,
    save_policy,
)

BOX = BoundedSpec((2,), minimum=np.array([0.0, -3.0]), maximum=np.array([1.0, 5.0]))
SPEC = TensorSpec((3,))
KINDS = [SquashedGaussianPolicy, DeterministicPolicy, PopulationPolicy]
every_kind = pytest.mark.parametrize("kind", KINDS)
OBSERVATION = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
STEP = TimeStep(observation=OBSERVATION)


@every_kind
def test_raw_actions_are_mapped_onto_the_box(kind):
    policy = kind.build(SPEC, BOX)
    raw = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]])
    assert_close(policy.env_action(raw), torch.tensor([[0.0, -3.0], [0.5, 1.0], [1.0, 5.0]]))
    assert policy.raw_action_spec.shape == (2,)


@every_kind
def test_actions_have_the_shape_and_bounds_of_their_space(kind):
    spec = BoundedSpec((2, 2), minimum=np.full((2, 2), -0.1), maximum=np.full((2, 2), 0.3))
    policy = kind.build(SPEC, spec)
    for deterministic in (False, True):
        action = policy(OBSERVATION.numpy(), deterministic=deterministic)
        assert action.shape == (400, 2, 2)
        assert action.min() >= np.float32(-0.1)
        assert action.max() <= np.float32(0.3)


@every_kind
@pytest.mark.parametrize("spec", [TensorSpec((2,)), BoundedSpec((2,), minimum=np.zeros(2))])
def test_a_space_without_finite_bounds_is_refused(kind, spec):
    with pytest.raises(ConfigError, match="two finite bounds"):
        kind.build(SPEC, spec)


@pytest.mark.parametrize("method", ["choose", "_action", "action"])
def test_compiled_collection_does_not_pass_by_the_choice_of_a_subclass(method):
    own = {method: lambda self, *given: getattr(DeterministicPolicy, method)(self, *given)}
    mixed = type("Mixed", (type("Mixin", (), own), DeterministicPolicy), {})
    both = type("Both", (DeterministicPolicy,), own | {"act_with": DeterministicPolicy.act_with})
    policies = [kind.build(SPEC, BOX, exploration=GaussianNoise(0.1)) for kind in (DeterministicPolicy, mixed, both)]
    assert [policy.acting_noise(OBSERVATION) is None for policy in policies] == [False, True, False]


def test_the_best_action_of_the_squashed_gaussian_is_its_squashed_mean():
    policy = SquashedGaussianPolicy.build(SPEC, BOX)
    mean, _ = policy.network(OBSERVATION).chunk(2, -1)
    assert_close(policy.act(STEP, deterministic=True).action, mean.tanh())


def test_sample_gives_actions_and_their_log_probabilities():
    """MARO-36: the density of tanh of a normal variable, as torch has it."""
    policy = SquashedGaussianPolicy.build(SPEC, BOX).double()
    observation = OBSERVATION.double()
    action, log_prob = policy.sample(observation)
    mean, log_std = policy.network(observation).chunk(2, -1)
    density = TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), [TanhTransform()])
    inside = action.abs().amax(-1) < 0.999  # outside, the inverse of tanh there has lost digits
    assert inside.sum() > 100
    assert_close(log_prob[inside], density.log_prob(action)[inside])
    assert action.std() > 0.3  # drawn


def test_the_log_standard_deviation_is_clipped_as_in_the_paper():
    outputs = torch.tensor([[0.0, 0.0, 0.0, -30.0, -3.0, 30.0]])
    policy = SquashedGaussianPolicy.build(SPEC, BoundedSpec((3,), minimum=-np.ones(3), maximum=np.ones(3)))
    assert policy.distribution_of(outputs).log_std.tolist() == [[-20.0, -3.0, 2.0]]


def test_noise_is_added_to_the_deterministic_action_while_collecting_only():
    policy = DeterministicPolicy.build(
        SPEC, BOX, NetworkConfig(hidden_sizes=()), exploration=GaussianNoise(0.3, minimum=-1.0, maximum=1.0)
    )
    plain = policy.action(OBSERVATION).detach()
    noisy = policy.act(STEP, phase=Phase.COLLECT).action
    assert noisy.abs().max() <= 1
    assert (noisy - plain).std() == pytest.approx(0.3, abs=0.1)
    for phase in (Phase.EVAL, Phase.UPDATE):
        assert_close(policy.act(STEP, phase=phase).action, plain)


# -- populations


def population(spec: BoundedSpec | DiscreteSpec = BOX) -> PopulationPolicy:
    policy = PopulationPolicy.build(SPEC, spec, NetworkConfig(hidden_sizes=(8,)))
    policy.noise_std = 0.5
    return policy


def test_every_lane_acts_with_parameters_that_its_seed_gives():
    policy = population()
    step = TimeStep(observation=OBSERVATION[:1].expand(6, -1))
    action = policy.act(step, phase=Phase.COLLECT).action
    seed = policy.behaviour(step.observation, action)["seed"]
    noise = policy.noise(seed)
    assert_close(noise[0::2], -noise[1::2])  # mirrored
    assert len(set(seed.abs().tolist())) == 3
    mean = torch.nn.utils.parameters_to_vector(policy.network.parameters())
    for lane in range(6):
        torch.nn.utils.vector_to_parameters(mean + 0.5 * noise[lane], policy.network.parameters())
        assert_close(policy.act(step, phase=Phase.EVAL).action[lane], action[lane])
        torch.nn.utils.vector_to_parameters(mean, policy.network.parameters())


def test_a_population_is_kept_until_the_next_version():
    policy = population()
    first = policy.act(STEP, phase=Phase.COLLECT).action
    assert_close(policy.act(STEP, phase=Phase.COLLECT).action, first)
    policy.version += 1
    assert not torch.allclose(policy.act(STEP, phase=Phase.COLLECT).action, first)


def test_a_population_that_resumes_at_any_version_draws_before_it_acts():
    """Nothing has been drawn in this process, whatever the version."""
    for version in (0, 1, 2):
        policy = population()
        policy.version = version
        assert len(policy.act(STEP, phase=Phase.COLLECT).action) == len(OBSERVATION)


def test_a_population_describes_only_the_lanes_that_acted():
    """One seed is not that of all."""
    policy = population()
    action = policy.act(TimeStep(observation=OBSERVATION[:1]), phase=Phase.COLLECT).action
    with pytest.raises(ShapeError, match=r"shape \[4, 2\] .* of 1 lanes; .* \[\.\.\., 1\]"):
        policy.behaviour(OBSERVATION[:4], action.expand(4, -1))


def test_no_perturbation_has_the_seed_zero():
    with pytest.raises(ConfigError, match="seed 0, which no perturbation has"):
        population().noise(torch.tensor([5.0, 0.0]))


def test_outside_of_collecting_all_lanes_act_alike():
    policy = population(DiscreteSpec(num=4, start=2))
    same = TimeStep(observation=OBSERVATION[:1].expand(50, -1))
    assert len(policy.act(same, phase=Phase.COLLECT).action.unique()) > 1
    assert len(policy.act(same, phase=Phase.EVAL).action.unique()) == 1
    assert policy(OBSERVATION[:50].numpy()).min() >= 2


@every_kind
def test_an_artefact_acts_as_the_policy_did(kind, tmp_path):
    policy = kind.build(SPEC, BOX, normalize=True)
    policy.normalizer.merge(policy.normalizer.increment(OBSERVATION))
    save_policy(policy, tmp_path)
    assert np.array_equal(load_policy(tmp_path)(OBSERVATION.numpy()), policy(OBSERVATION.numpy()))
