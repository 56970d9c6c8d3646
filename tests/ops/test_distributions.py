"""Tests of `palaestra.ops.distributions`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from palaestra.core import ShapeError, SpecError
from palaestra.ops import Categorical, DiagonalGaussian, check_action_mask

bounded = settings(max_examples=25, deadline=None, derandomize=True)
rows_of_logits = st.lists(st.floats(-20, 20), min_size=2, max_size=6)
MASK = torch.tensor([[1, 0, 1, 1], [0, 0, 1, 0]], dtype=torch.int8)


def softmax(row):
    total = sum(math.exp(x) for x in row)
    return [math.exp(x) / total for x in row]


@bounded
@given(row=rows_of_logits)
def test_categorical_is_the_softmax_of_its_logits(row):
    policy, probs = Categorical(torch.tensor(row, dtype=torch.float64)), softmax(row)
    assert_close(policy.probs, torch.tensor(probs, dtype=torch.float64))
    for action, p in enumerate(probs):
        assert policy.log_prob(torch.tensor(action)).item() == pytest.approx(math.log(p))
    assert policy.entropy().item() == pytest.approx(-sum(p * math.log(p) for p in probs))
    assert probs[int(policy.mode())] == max(probs)


@bounded
@given(rows=st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=6))
def test_categorical_divergence_is_the_sum(rows):
    left, right = zip(*rows, strict=True)
    expected = sum(p * math.log(p / q) for p, q in zip(softmax(left), softmax(right), strict=True))
    result = Categorical(torch.tensor(left, dtype=torch.float64)).kl(Categorical(torch.tensor(right).double()))
    assert result.item() == pytest.approx(expected, abs=1e-6)


def test_categorical_agrees_with_torch():
    generator = torch.Generator().manual_seed(0)
    logits, other = torch.randn(2, 3, 5, 4, generator=generator)
    action = torch.randint(4, (3, 5), generator=generator)
    ours, theirs = Categorical(logits), torch.distributions.Categorical(logits=logits)
    assert_close(ours.log_prob(action), theirs.log_prob(action))
    assert_close(ours.entropy(), theirs.entropy())
    assert torch.equal(ours.mode(), theirs.mode)
    other_theirs = torch.distributions.Categorical(logits=other)
    assert_close(ours.kl(Categorical(other)), torch.distributions.kl_divergence(theirs, other_theirs))


def test_categorical_gradients_are_right():
    logits = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    other = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    action = torch.tensor([0, 3, 2])
    assert torch.autograd.gradcheck(lambda x: (Categorical(x).log_prob(action), Categorical(x).entropy()), logits)
    assert torch.autograd.gradcheck(lambda x, y: Categorical(x).kl(Categorical(y)), (logits, other))


def test_forbidden_actions_have_probability_zero_and_the_rest_sums_to_one():
    policy = Categorical(torch.zeros(2, 4), MASK)
    assert policy.probs.tolist() == [
        [pytest.approx(1 / 3), 0.0, pytest.approx(1 / 3), pytest.approx(1 / 3)],
        [0, 0, 1, 0],
    ]
    assert_close(policy.entropy(), torch.tensor([math.log(3), 0.0]))
    assert Categorical(torch.zeros(2, 4)).probs[0, 1].item() == 0.25  # the mutant that forgets the mask


def test_forbidden_actions_are_never_chosen():
    # However large their logits are; the mutant without the mask takes nothing else.
    logits = torch.where(MASK.bool(), 0.0, 80.0)
    policy = Categorical(logits.repeat(2000, 1), MASK.repeat(2000, 1))
    sample = policy.sample(torch.Generator().manual_seed(0))
    allowed = MASK.bool().repeat(2000, 1)
    assert allowed.gather(-1, sample[:, None]).all()
    assert allowed.gather(-1, policy.mode()[:, None]).all()
    mutant = Categorical(logits.repeat(2000, 1)).sample(torch.Generator().manual_seed(0))
    assert not allowed.gather(-1, mutant[:, None]).any()


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_masks_keep_entropies_divergences_and_gradients_finite(scale):
    logits = (scale * torch.randn(2, 4, generator=torch.Generator().manual_seed(0))).requires_grad_()
    policy = Categorical(logits, MASK)
    terms = policy.entropy() + policy.kl(Categorical(2 * logits, MASK)) + policy.log_prob(torch.tensor([0, 2]))
    (gradient,) = torch.autograd.grad(terms.sum(), logits)
    assert terms.isfinite().all()
    assert gradient.isfinite().all()
    assert gradient[MASK == 0].abs().max().item() == 0.0


def test_where_no_action_is_allowed_all_are():
    """A soft value of such a row is that of the policy, and not of a uniform one."""
    logits = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    masked = Categorical(logits, torch.tensor([[0, 0, 0, 0], [0, 1, 1, 0]]))
    assert_close(masked.probs[0], Categorical(logits).probs[0])
    assert masked.probs[1, [0, 3]].sum() == 0


def test_entropy_counts_only_allowed_actions():
    logits = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = [Categorical(row[keep]).entropy().item() for row, keep in zip(logits, MASK.bool(), strict=True)]
    assert_close(Categorical(logits, MASK).entropy(), torch.tensor(expected, dtype=torch.float64))


def test_a_row_without_any_allowed_action_gives_no_nan():
    # A padded or final row: it is not learned from, but a NaN in it would spread through the batch.
    logits = torch.zeros(1, 3, requires_grad=True)
    policy = Categorical(logits, torch.zeros(1, 3))
    total = policy.entropy().sum() + policy.log_prob(torch.tensor([1])).sum()
    (gradient,) = torch.autograd.grad(total, logits)
    assert total.isfinite()
    assert gradient.isfinite().all()


def test_categorical_samples_follow_the_probabilities():
    # 20000 draws: the standard error of a frequency is at most 0.0036; five of them.
    probs = torch.tensor([0.5, 0.1, 0.0, 0.4])
    policy = Categorical((probs + 1e-30).log().expand(20_000, 4))
    frequency = torch.bincount(policy.sample(torch.Generator().manual_seed(3)), minlength=4) / 20_000
    assert_close(frequency, probs, atol=0.018, rtol=0)


def test_samples_come_from_the_generator_alone():
    gaussian, categorical = DiagonalGaussian(torch.zeros(5, 2), torch.zeros(2)), Categorical(torch.zeros(50, 4))
    for policy in (gaussian, categorical):
        state = torch.get_rng_state()
        first, second = (policy.sample(torch.Generator().manual_seed(7)) for _ in range(2))
        assert torch.equal(first, second)
        assert not torch.equal(first, policy.sample(torch.Generator().manual_seed(8)))
        assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("shared", [True, False])
def test_gaussian_agrees_with_torch(shared):
    generator = torch.Generator().manual_seed(0)
    mean, other_mean, action = torch.randn(3, 6, 2, generator=generator)
    log_std = torch.tensor([0.3, -1.0]) if shared else torch.randn(6, 2, generator=generator)
    ours, theirs = DiagonalGaussian(mean, log_std), torch.distributions.Normal(mean, log_std.exp().expand(6, 2))
    other, other_theirs = (
        DiagonalGaussian(other_mean, -log_std),
        torch.distributions.Normal(other_mean, (-log_std).exp()),
    )
    assert_close(ours.log_prob(action), theirs.log_prob(action).sum(-1))
    assert_close(ours.entropy(), theirs.entropy().sum(-1))
    assert_close(ours.kl(other), torch.distributions.kl_divergence(theirs, other_theirs).sum(-1))
    assert torch.equal(ours.mode(), mean)


def test_gaussian_log_prob_is_the_density_of_the_whole_action():
    policy = DiagonalGaussian(torch.tensor([1.0, -1.0]), torch.tensor([2.0, 0.5]).log())
    density = math.exp(-0.5 * (1 / 2) ** 2) / (2 * math.sqrt(2 * math.pi)) / (0.5 * math.sqrt(2 * math.pi))
    assert policy.log_prob(torch.tensor([2.0, -1.0])).item() == pytest.approx(math.log(density))


def test_gaussian_gradients_are_right():
    generator = torch.Generator().manual_seed(1)
    mean, action = torch.randn(2, 3, 2, dtype=torch.float64, generator=generator)
    log_std = torch.tensor([0.3, -0.4], dtype=torch.float64, requires_grad=True)
    mean.requires_grad_()

    def terms(mean, log_std):
        policy = DiagonalGaussian(mean, log_std)
        sample = policy.sample(torch.Generator().manual_seed(0))
        return policy.log_prob(action), policy.entropy(), policy.kl(DiagonalGaussian(2 * mean, 3 * log_std)), sample

    assert torch.autograd.gradcheck(terms, (mean, log_std))


def test_gaussian_samples_have_the_mean_and_deviation():
    policy = DiagonalGaussian(torch.tensor([3.0, -1.0]).expand(20_000, 2), torch.tensor([2.0, 0.1]).log())
    sample = policy.sample(torch.Generator().manual_seed(0))
    assert_close(sample.mean(0), torch.tensor([3.0, -1.0]), atol=0.07, rtol=0)
    assert_close(sample.std(0), torch.tensor([2.0, 0.1]), atol=0.05, rtol=0.03)


def test_check_action_mask_names_the_row_that_allows_nothing():
    mask = torch.ones(4, 3)
    check_action_mask(mask)
    mask[2] = 0
    with pytest.raises(SpecError, match=r"action_mask allows none of the 3 actions in row 2 of 4 \(1 such rows\)"):
        check_action_mask(mask)


@pytest.mark.usefixtures("unchecked_shapes")
def test_distributions_name_both_arrays_when_shapes_do_not_fit():
    with pytest.raises(ShapeError, match=r"logits has shape \[2, 4\] and mask has shape \[4\]; both must be \[N, A\]"):
        Categorical(torch.zeros(2, 4), torch.ones(4))
    with pytest.raises(ShapeError, match=r"logits has shape \[2, 4\] and action has shape \[2, 1\]; logits must be"):
        Categorical(torch.zeros(2, 4)).log_prob(torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"logits has shape \[2, 4\] and other_logits has shape \[2, 3\]"):
        Categorical(torch.zeros(2, 4)).kl(Categorical(torch.zeros(2, 3)))
    with pytest.raises(ShapeError, match=r"mean has shape \[5, 2\] and log_std has shape \[5\]; mean must be \[N, A\]"):
        DiagonalGaussian(torch.zeros(5, 2), torch.zeros(5))
    with pytest.raises(ShapeError, match=r"action has shape \[5\] and mean has shape \[5, 2\]; both must be \[N, A\]"):
        DiagonalGaussian(torch.zeros(5, 2), torch.zeros(2)).log_prob(torch.zeros(5))
    with pytest.raises(ShapeError, match=r"mean has shape \[5, 2\] and other_mean has shape \[4, 2\]"):
        DiagonalGaussian(torch.zeros(5, 2), torch.zeros(2)).kl(DiagonalGaussian(torch.zeros(4, 2), torch.zeros(2)))
