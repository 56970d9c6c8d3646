"""Tests of `palaestra.algorithms.reinforce`."""

import torch
from torch.testing import assert_close

from palaestra.core import StepType
from palaestra.ops import valid_starts
from tests.algorithms.parts import collected


def test_only_steps_whose_episode_ended_are_learned_from():
    """There is no value to bootstrap from, so the tail of an unroll is left out."""
    algorithm, collector = collected("reinforce", "discrete")
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
    batch = algorithm.preprocess(drawn, collector.buffer)
    for lane in range(3):
        ends = (drawn.step_type[1:, lane] == StepType.LAST).nonzero().flatten().tolist()
        assert ends
        assert batch.valid[ends[-1] + 1 :, lane].sum() == 0
        kept = drawn.valid[: ends[-1] + 1, lane]
        assert torch.equal(batch.valid[: ends[-1] + 1, lane], kept)


def test_an_episode_that_broke_off_is_not_learned_from():
    """Nothing is known of its return; a later episode that ends says nothing about it."""
    algorithm, collector = collected("reinforce", "discrete")
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
    first, mid, last = StepType.FIRST, StepType.MID, StepType.LAST
    drawn.step_type[:, 0] = torch.tensor([first, mid, mid, first, mid, last, first, mid, mid, first, mid, mid, mid])
    drawn.step_type[:, 1] = torch.tensor([mid, last, first, last, first, first, mid, mid, mid, mid, mid, mid, last])
    drawn = drawn.replace(valid=valid_starts(drawn.step_type).float())
    valid = algorithm.preprocess(drawn, collector.buffer).valid
    assert valid[:, 0].tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert valid[:, 1].tolist() == [1, 0, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1]


def test_the_weight_of_an_action_is_the_standardised_return_that_followed_it():
    """Sutton and Barto, equation (13.8): in Catch the return is gamma^(steps left - 1) times +1 or -1."""
    algorithm, collector = collected("reinforce", "discrete", gamma=0.5)
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
    batch = algorithm.preprocess(drawn, collector.buffer)
    returns = torch.zeros_like(batch.advantage)
    for lane in range(3):
        running = 0.0
        for t in reversed(range(12)):
            running = float(drawn.reward[t + 1, lane]) + (
                0.0 if drawn.step_type[t + 1, lane] == StepType.LAST else 0.5 * running
            )
            returns[t, lane] = running
    valid = batch.valid > 0
    kept = returns[valid]
    expected = (kept - kept.mean()) / kept.std(correction=0)
    assert_close(batch.advantage[valid], expected, rtol=1e-3, atol=1e-3)


def test_an_update_is_one_gradient_step_on_the_whole_unroll():
    """ALF-05, ALF-07, ALF-11: exactly one parameter update; the data is discarded afterwards."""
    algorithm, collector = collected("reinforce", "discrete")
    assert algorithm.update(collector.buffer).gradient_steps == 1
    collector.unroll(12)
    assert len(collector.buffer) == 36
