"""Tests of `palaestra.policies.stochastic`, `heads`, `action_mask` and `action_range`."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from palaestra.core import (
    Batch,
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpecError,
    StepType,
    TensorSpec,
    TimeStep,
    spec_leaves,
)
from palaestra.envs.contract.nest import flatten
from palaestra.nn import NetworkConfig
from palaestra.policies import CategoricalPolicy, CompositePolicy, GaussianPolicy, Phase, RandomPolicy
from palaestra.policies.actions import head_of, require_continuous, require_discrete

VECTOR = TensorSpec((4,))
SMALL = NetworkConfig(hidden_sizes=(8,))
BOX = BoundedSpec((2, 2), torch.float64, minimum=np.full((2, 2), -1.0), maximum=np.full((2, 2), 5.0))
EVERYTHING = {
    "gear": DiscreteSpec(num=3, start=-1),
    "body": (BOX, MultiDiscreteSpec(nvec=(2, 4, 3), dtype=torch.int32)),
    "lamps": MultiBinarySpec((2, 3)),
    "force": TensorSpec((1,)),
}

leaves = st.one_of(
    st.builds(lambda n, start: DiscreteSpec(num=n, start=start), st.integers(1, 4), st.integers(-2, 2)),
    st.builds(lambda n: MultiDiscreteSpec(nvec=tuple(n)), st.lists(st.integers(1, 3), min_size=1, max_size=3)),
    st.builds(lambda n: MultiBinarySpec((n,)), st.integers(1, 3)),
    st.builds(lambda n: BoundedSpec((n,), minimum=np.full(n, -2.0), maximum=np.full(n, 1.0)), st.integers(1, 3)),
)
trees = st.recursive(
    leaves,
    lambda children: st.one_of(
        st.dictionaries(st.sampled_from("abc"), children, min_size=1, max_size=3),
        st.lists(children, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=5,
)
bounded = settings(max_examples=40, deadline=None, derandomize=True)


def rows(count=6):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0))


def steps(observation, count):
    kinds = torch.full((count,), StepType.MID, dtype=torch.int32)
    return TimeStep(kinds, torch.zeros(count), torch.ones(count), observation)


@bounded
@given(spec=trees, deterministic=st.booleans())
def test_any_action_space_is_acted_in(spec, deterministic):
    """The environment's action lies in its space; every row of a nest has the leading dimension of its observation."""
    policy = CompositePolicy.build(VECTOR, spec, SMALL)
    step = policy.act(steps(rows(), 6), phase=Phase.COLLECT, deterministic=deterministic)
    sampled = flatten(policy.env_action(step.action), spec)
    for (path, leaf), value in zip(spec_leaves(spec).items(), sampled, strict=True):
        for row in value:
            assert leaf.problem(row) is None, path
    raw = flatten(step.action, policy.raw_action_spec)
    for leaf, value in zip(spec_leaves(policy.raw_action_spec).values(), raw, strict=True):
        assert value.dtype == leaf.dtype
        assert value.shape == (6, *leaf.shape)


@bounded
@given(spec=trees)
def test_log_probabilities_and_entropies_have_one_number_for_each_row(spec):
    policy = CompositePolicy.build(VECTOR, spec, SMALL)
    observation = rows(6).reshape(3, 2, 4)
    distribution = policy.distribution(observation)
    action = distribution.sample(policy.generator)
    assert distribution.log_prob(action).shape == distribution.entropy().shape == (3, 2)
    assert_close(policy.behaviour(observation, action).log_prob, distribution.log_prob(action))


def test_calling_the_policy_gives_nested_numpy():
    policy = CompositePolicy.build(VECTOR, EVERYTHING, SMALL)
    for leading in ((), (5,), (2, 3)):
        action = policy(np.zeros((*leading, 4)), deterministic=False)
        assert list(action) == list(EVERYTHING)
        assert isinstance(action["body"], tuple)
        assert action["body"][0].shape == (*leading, 2, 2)
        assert action["body"][0].dtype == np.float64
        assert action["body"][1].dtype == np.int32
        assert action["lamps"].shape == (*leading, 2, 3)
    assert -1 <= policy(np.zeros(4))["gear"] <= 1


def test_a_composite_of_one_part_is_the_plain_policy():
    """The same network gives the same log-probabilities as `CategoricalPolicy` and `GaussianPolicy`."""
    plain = CategoricalPolicy.build(VECTOR, DiscreteSpec(num=3), SMALL)
    policy = CompositePolicy(lambda_network(lambda x: (plain.network(x), None)), VECTOR, DiscreteSpec(num=3))
    action = torch.tensor([0, 1, 2, 0, 1, 2])
    assert_close(policy.distribution(rows()).log_prob(action), plain.distribution(rows()).log_prob(action))
    box = GaussianPolicy.build(VECTOR, BOX, SMALL)
    same = CompositePolicy(lambda_network(box.network), VECTOR, BOX)
    raw = torch.randn(6, 4)
    assert_close(same.distribution(rows()).log_prob(raw), box.distribution(rows()).log_prob(raw))
    assert_close(same.env_action(raw), box.env_action(raw))


def lambda_network(function):
    class Network(torch.nn.Module):
        def forward(self, x):
            return function(x)

    return Network()


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"a": DiscreteSpec(num=2), "b": {}}, r"'b' \{\}"),
        ((DiscreteSpec(num=2), {"x": ()}), r"'1.x' \(\)"),
        ({"a": DiscreteSpec(num=2), "b": TensorSpec((0,))}, r"'b' TensorSpec\(shape=\(0,\)"),
        (BoundedSpec((2, 0), minimum=np.zeros(0), maximum=np.zeros(0)), r"BoundedSpec\(shape=\(2, 0\)"),
    ],
)
def test_an_empty_part_of_an_action_is_named(spec, named):
    """It was called no spec, or the layers of a network were blamed."""
    for refuse in (head_of, functools.partial(require_discrete, "DQN"), functools.partial(require_continuous, "SAC")):
        with pytest.raises(ConfigError, match=f"the action {named}.* is empty, so that there is nothing to decide"):
            refuse(spec)


def test_the_head_of_every_part_is_trained_by_that_part_alone():
    policy = CompositePolicy.build(VECTOR, {"a": DiscreteSpec(num=2), "b": (TensorSpec((1,)),)}, SMALL)
    joint = policy.distribution(rows())
    last = policy.network.numbers.mlp.layers[-1].weight
    (gradient,) = torch.autograd.grad(joint.parts["a"].entropy().sum(), last)
    assert gradient[:2].any()
    assert not gradient[2:].any()
    (std,) = torch.autograd.grad(joint.entropy().sum(), policy.network.log_std)
    assert_close(std, torch.tensor([6.0]))  # the entropy of a normal grows by 1 with log σ, in six rows


# -- masks

MASKED = {
    "x": VECTOR,
    "action_mask": {"gear": MultiBinarySpec((3,)), "body": (MultiBinarySpec((5,)),)},
}
PARTLY = {"gear": DiscreteSpec(num=3, start=4), "body": (MultiDiscreteSpec(nvec=(2, 3)), BOX)}
MASKS = st.tuples(
    st.lists(st.booleans(), min_size=3, max_size=3).filter(any),
    st.lists(st.booleans(), min_size=2, max_size=2).filter(any),
    st.lists(st.booleans(), min_size=3, max_size=3).filter(any),
)


def masked_rows(gear, first, second, count=60):
    gear_mask, body_mask = torch.tensor([gear] * count), torch.tensor([first + second] * count)
    mask = Batch.of({"gear": gear_mask, "body": Batch.of({"0": body_mask})})
    return Batch.of({"x": rows(count), "action_mask": mask})


@bounded
@given(masks=MASKS, kind=st.sampled_from([CompositePolicy, RandomPolicy]), deterministic=st.booleans())
def test_a_masked_action_is_never_sampled(masks, kind, deterministic):
    """ALF, masks: in any part, whatever the network says; what is allowed is chosen sometimes."""
    policy = kind(MASKED, PARTLY) if kind is RandomPolicy else kind.build(MASKED, PARTLY, SMALL)
    observation = masked_rows(*masks)
    step = policy.act(steps(observation, 60), phase=Phase.COLLECT, deterministic=deterministic)
    action = policy.env_action(step.action)
    chosen = [set((action.gear - 4).tolist()), *(set(column.tolist()) for column in action.body["0"].T)]
    for values, mask in zip(chosen, masks, strict=True):
        allowed = {index for index, ok in enumerate(mask) if ok}
        assert values <= allowed
        if not deterministic or kind is RandomPolicy:
            assert values == allowed


def test_a_choice_that_allows_nothing_is_an_error():
    policy = CompositePolicy.build(MASKED, PARTLY, SMALL)
    observation = masked_rows([True] * 3, [False, False], [True] * 3, count=2)
    with pytest.raises(SpecError, match="none of the 2 actions in row 0"):
        policy.act(steps(observation, 2), phase=Phase.COLLECT)


@pytest.mark.parametrize(
    ("mask", "action", "message"),
    [
        (MultiBinarySpec((3,)), DiscreteSpec(num=4), "for 4 actions it needs the shape"),
        (MultiBinarySpec((2,)), MultiDiscreteSpec(nvec=(2, 3)), "for 5 actions it needs the shape"),
        (MultiBinarySpec((2,)), MultiBinarySpec((2,)), "only discrete choices can be masked"),
        (MultiBinarySpec((2,)), {"a": DiscreteSpec(num=2)}, "needs masks by those names"),
        ({"b": MultiBinarySpec((2,))}, {"a": DiscreteSpec(num=2)}, "needs masks by those names"),
        ({"a": MultiBinarySpec((3,))}, {"a": DiscreteSpec(num=2)}, "'action_mask.a'.*for 2 actions"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask, action, message):
    with pytest.raises(ConfigError, match=message):
        CompositePolicy.build({"x": VECTOR, "action_mask": mask}, action, SMALL)


def test_a_leaf_that_cannot_be_sampled_is_named():
    with pytest.raises(ConfigError, match=r"no policy can sample the action 'a\.1'.*wrap the environment"):
        CompositePolicy.build(VECTOR, {"a": (DiscreteSpec(num=2), TensorSpec((2,), torch.int32))}, SMALL)
