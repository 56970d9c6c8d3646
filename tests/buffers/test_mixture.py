"""Tests of `palaestra.buffers.MixtureSource`."""

import pytest
import torch

from palaestra.buffers import MixtureSource, PrioritizedSampler, ReplayBuffer
from palaestra.core import (
    ConfigError,
    DataSource,
    DiscreteSpec,
    OnPolicy,
    Prioritized,
    ShapeError,
    TensorSpec,
    minibatches,
)
from palaestra.testing.buffers import FIRST
from tests.buffers.model import filled, generator, make_buffer, replay


def pair():
    """Two buffers whose rows are told apart by their serial numbers."""
    own, _ = filled(200, 2, 60)
    other, world = filled(100, 1, 70)
    other._streams.storage.tensors["observation"].add_(1000)
    return own, other, world


@pytest.mark.parametrize("length", [1, 3])
def test_every_minibatch_has_the_shares(length):
    own, other, _ = pair()
    mixture = MixtureSource([(own, 3), (other, 1)])
    plan = replay(mini_batch_size=16, mini_batch_length=length, gradient_steps=5)
    drawn = mixture.draw(plan, generator())
    assert isinstance(mixture, DataSource)
    assert len(mixture) == len(own) + len(other)
    if length > 1:
        for part in minibatches(drawn, plan, generator=generator()):
            assert (part.observation[0] >= 1000).sum() == 4
            assert part.reward.shape == (length + 1, 16)
    else:
        assert ((drawn.observation >= 1000).reshape(5, 16).sum(1) == 4).all()
        rewards = torch.where(drawn.observation >= 1000, drawn.next_observation - 1000, drawn.next_observation)
        moved = drawn.step_type[1] != FIRST
        assert torch.equal(drawn.reward[1][moved], (rewards % 17 + 1).float()[moved])


def test_priorities_go_where_the_rows_came_from():
    own, other, _ = pair()
    other.sampler = PrioritizedSampler()
    mixture = MixtureSource([(own, 0.5), (other, 0.5)])
    plan = replay(mini_batch_size=8)
    drawn = mixture.draw(plan, generator())
    assert drawn.weight.tolist() == [1.0] * 8
    mixture.write_back(drawn.index, torch.arange(8.0))
    rows = drawn.index[4:] - own.positions.ring_size * 2
    assert torch.equal(other.take("observation", rows), drawn.observation[4:])
    assert other.sampler._tree.leaves[rows] == pytest.approx(torch.arange(4.0, 8.0).numpy() ** 0.6, rel=1e-4)
    mixture.set_progress(1.0)
    assert other.sampler.beta == 1.0


def test_importance_weights_of_two_buffers_are_in_one_unit():
    """(N P)^-1 in each, over the largest of the whole draw; each was over the largest of its own."""
    own, other, _ = pair()
    for buffer, high in ((own, 9.0), (other, 1.5)):
        buffer.sampler = PrioritizedSampler(Prioritized(alpha=1.0, beta=1.0))
        starts = buffer.starts(1)
        buffer.write_back(starts, torch.where(torch.arange(len(starts)) % 2 == 0, 1.0, high))
    mixture = MixtureSource([(own, 0.5), (other, 0.5)])
    drawn = mixture.draw(replay(mini_batch_size=4000), generator())
    first = len(drawn.weight) // 2
    for rows, high in ((drawn.weight[:first], 9.0), (drawn.weight[first:], 1.5)):
        likely, unlikely = rows.min(), rows.max()
        torch.testing.assert_close(unlikely / likely, torch.tensor(high), rtol=1e-4, atol=0)
    assert drawn.weight.max() == 1
    means = drawn.weight[:first].mean(), drawn.weight[first:].mean()
    torch.testing.assert_close(means[0], means[1], rtol=0.05, atol=0)  # each is 1 before the division


def test_what_cannot_be_mixed_is_refused():
    own, other, _ = pair()
    with pytest.raises(ConfigError, match=r"shares \[0.5, 0\]; give at least one, all above 0"):
        MixtureSource([(own, 0.5), (other, 0)])
    with pytest.raises(ConfigError, match=r"of a minibatch of 4 are \[4, 0\] rows"):
        MixtureSource([(own, 0.99), (other, 0.01)]).draw(replay(mini_batch_size=4), generator())
    with pytest.raises(ConfigError, match="an on-policy plan learns from one buffer"):
        MixtureSource([(own, 1)]).draw(OnPolicy(unroll_length=1), generator())
    with pytest.raises(ShapeError, match="no row can be learned from yet"):
        MixtureSource([(own, 1), (make_buffer(8, 1), 1)]).draw(replay(), generator())
    remembering = make_buffer(100, 1, state_spec={"h": TensorSpec(())})
    unroll = other.newest(70)
    with pytest.raises(ShapeError, match=r"the fragment lacks the fields \['state'\]"):
        remembering.extend(unroll)
    remembering.extend(unroll.replace(state={"h": torch.zeros(70, 1)}))
    with pytest.raises(ShapeError, match="the buffers of a mixture have different fields"):
        MixtureSource([(own, 1), (remembering, 1)]).draw(replay(mini_batch_length=2), generator())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"observation_spec": TensorSpec((2,), torch.int64)}, r"the observation_spec of buffer 0 .* buffer 1 .*\(2,\)"),
        ({"observation_spec": TensorSpec(())}, r"the observation_spec of buffer 0 is .*int64.* buffer 1 is .*float32"),
        ({"observation_spec": {"x": TensorSpec((), torch.int64)}}, "the observation_spec of buffer 0"),
        ({"action_spec": TensorSpec((1,))}, "the action_spec of buffer 0"),
        ({"reward_spec": TensorSpec((3,))}, "the reward_spec of buffer 0"),
        ({"info_spec": {"log_prob": TensorSpec(())}}, "the info_spec of buffer 0"),
        ({"stack_num": 3}, "the stack_num of buffer 0 is 1 and that of buffer 1 is 3"),
    ],
)
def test_buffers_of_other_rows_are_refused_when_the_mixture_is_made(changed, message):
    """F27: not by torch, in the first update."""
    specs = {"observation_spec": TensorSpec((), torch.int64), "action_spec": DiscreteSpec(num=5)}
    with pytest.raises(ShapeError, match=message):
        MixtureSource([(make_buffer(8, 1), 1), (ReplayBuffer(8, 1, **{**specs, **changed}), 1)])
    MixtureSource([(make_buffer(8, 1), 1), (ReplayBuffer(8, 1, **specs, reward_spec=TensorSpec(())), 1)])
