"""Tests of `palaestra.ops.joint`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from palaestra.core import Batch, ShapeError
from palaestra.ops import Categorical, DiagonalGaussian, Joint, MultiBernoulli, MultiCategorical
from tests.ops.test_contract import compiled

NVEC = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)
bounded = settings(max_examples=30, deadline=None, derandomize=True)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def parts(logits, nvec, mask=None):
    masks = [None] * len(nvec) if mask is None else mask.split(list(nvec), -1)
    return [Categorical(part, m) for part, m in zip(logits.split(list(nvec), -1), masks, strict=True)]


@bounded
@given(nvec=NVEC, seed=st.integers(0, 99))
def test_choices_are_the_sum_of_categoricals_of_equal_and_unequal_sizes(nvec, seed):
    logits, other = torch.randn(2, 5, sum(nvec), generator=generator(seed))
    policy = MultiCategorical(logits, nvec)
    action = policy.sample(generator(seed))
    assert action.shape == (5, len(nvec))
    alone = parts(logits, nvec)
    assert_close(policy.log_prob(action), sum(p.log_prob(action[:, k]) for k, p in enumerate(alone)))
    assert_close(policy.entropy(), sum(p.entropy() for p in alone))
    assert torch.equal(policy.mode(), torch.stack([p.mode() for p in alone], -1))
    kl = sum(p.kl(q) for p, q in zip(alone, parts(other, nvec), strict=True))
    assert_close(policy.kl(MultiCategorical(other, nvec)), kl)


@bounded
@given(nvec=NVEC, seed=st.integers(0, 99))
def test_a_forbidden_choice_is_never_sampled_and_has_no_gradient(nvec, seed):
    logits = torch.randn(sum(nvec), generator=generator(seed)).mul(5).requires_grad_()
    mask = torch.rand(sum(nvec), generator=generator(seed)) < 0.5
    start = 0
    for num in nvec:  # each choice must allow one
        mask[start] = True
        start += num
    rows = MultiCategorical(logits.detach().expand(200, -1), nvec, mask.expand(200, -1))
    for action in (rows.sample(generator(seed)), rows.mode()):
        assert (action < torch.tensor(nvec)).all()
        one_hot = torch.cat([torch.nn.functional.one_hot(action[:, k], num) for k, num in enumerate(nvec)], -1)
        assert not one_hot[:, ~mask].any()
    policy = MultiCategorical(logits, nvec, mask)
    (gradient,) = torch.autograd.grad(policy.log_prob(policy.mode()) + policy.entropy(), logits)
    assert (gradient[~mask] == 0).all()
    assert gradient.isfinite().all()


def test_several_forbidden_choices_have_a_finite_log_probability():
    """As one has: a ratio of two policies that forbid the same is 1, and not NaN."""
    lowest = torch.finfo(torch.float32).min
    mask = torch.tensor([True, False, True, False])
    logits = torch.randn(4, generator=generator()).requires_grad_()
    both = MultiCategorical(logits, (2, 2), mask).log_prob(torch.tensor([1, 1]))
    assert both.item() == lowest
    assert torch.autograd.grad(both, logits)[0].isfinite().all()
    joint = Joint({name: Categorical(torch.zeros(2), mask[:2]) for name in "ab"})
    assert joint.log_prob(Batch(a=torch.tensor(1), b=torch.tensor(1))).item() == lowest


def test_divergences_from_what_forbids_more_are_huge_and_finite_of_all_kinds_alike():
    """What only self forbids adds 0; what only other forbids ought to be infinite, and 0 times infinity is nowhere."""
    logits = torch.randn(4, generator=generator()).requires_grad_()
    every, some = torch.ones(4), torch.tensor([1, 0, 1, 0])

    def kinds(mask):
        one = Categorical(logits[:2], mask[:2])
        return one, MultiCategorical(logits, (2, 2), mask), Joint({"a": one, "b": Categorical(logits[2:], mask[2:])})

    for narrow, wide in zip(kinds(some), kinds(every), strict=True):
        assert_close(narrow.kl(wide), -wide.log_prob(narrow.mode()))
        huge = wide.kl(narrow)
        assert 1e37 < huge.item() <= torch.finfo(torch.float32).max
        assert torch.autograd.grad(narrow.kl(wide) + huge, logits, retain_graph=True)[0].isfinite().all()


def test_a_divergence_is_finite_where_probabilities_add_up_to_more_than_one():
    logits = torch.randn(1000, 8, generator=generator())
    assert (Categorical(logits).probs.sum(-1) > 1).any()
    nothing_alike = torch.full((8,), torch.finfo(torch.float32).min)
    other = torch.cat([nothing_alike, torch.zeros(1)]).expand(1000, 9)
    only = torch.nn.functional.pad(logits, (0, 1), value=torch.finfo(torch.float32).min)
    assert Categorical(only).kl(Categorical(other)).isfinite().all()


def test_switches_agree_with_torch():
    logits, other = torch.randn(2, 3, 4, generator=generator())
    ours, theirs = MultiBernoulli(logits), torch.distributions.Bernoulli(logits=logits)
    action = (torch.rand(3, 4, generator=generator()) < 0.5).to(torch.int8)
    assert_close(ours.log_prob(action), theirs.log_prob(action.float()).sum(-1))
    assert_close(ours.entropy(), theirs.entropy().sum(-1))
    kl = torch.distributions.kl_divergence(theirs, torch.distributions.Bernoulli(logits=other)).sum(-1)
    assert_close(ours.kl(MultiBernoulli(other)), kl)


def test_switches_are_on_with_their_probabilities():
    logits = torch.tensor([-1.0, 0.0, 2.0])
    action = MultiBernoulli(logits.expand(20_000, 3)).sample(generator())
    assert_close(action.float().mean(0), logits.sigmoid(), atol=0.015, rtol=0)


def test_a_joint_distribution_sums_over_its_parts_however_deep_they_lie():
    one, two = Categorical(torch.randn(5, 3)), MultiBernoulli(torch.randn(5, 2))
    three = DiagonalGaussian(torch.randn(5, 2), torch.zeros(2))
    joint = Joint({"a": one, "b": Joint({"c": two, "d": three})})
    action = joint.sample(generator())
    assert isinstance(action, Batch)
    expected = one.log_prob(action.a) + two.log_prob(action.b.c) + three.log_prob(action.b.d)
    assert_close(joint.log_prob(action), expected)
    assert_close(joint.entropy(), one.entropy() + two.entropy() + three.entropy())
    assert_close(joint.mode().b.d, three.mean)
    assert_close(joint.kl(joint), torch.zeros(5))


def test_logits_of_another_size_are_refused():
    with pytest.raises(ShapeError, match=r"for choices among \(2, 3\) actions its last axis must be 5"):
        MultiCategorical(torch.zeros(4), (2, 3))


@pytest.mark.usefixtures("unchecked_shapes")
def test_joint_distributions_are_one_graph():
    logits, action = torch.randn(3, 5, generator=generator()), torch.tensor([[0, 1], [1, 2], [1, 0]])

    def terms(logits, action):
        policy = Joint({"a": MultiCategorical(logits, (2, 3)), "b": MultiBernoulli(logits[:, :2])})
        taken = Batch.of({"a": action, "b": action.clamp(max=1)})
        return policy.log_prob(taken), policy.entropy(), policy.mode()["a"]

    assert_close(compiled(terms, "eager")(logits, action), terms(logits, action))


def test_the_mode_of_bits_that_are_as_probable_either_way_is_zero():
    assert MultiBernoulli(torch.tensor([[0.0, 1e-6, -1e-6]])).mode().tolist() == [[0, 1, 0]]
