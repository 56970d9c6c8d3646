"""Tests of `palaestra.algorithms.evolution_strategies`."""

import pytest
import torch
from torch.testing import assert_close

from palaestra.core import Batch, ConfigError
from palaestra.ops import centered_ranks, episode_returns
from tests.algorithms.parts import collected


class Source:
    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def draw(self, plan: object, generator: torch.Generator) -> Batch:
        return self.batch

    def write_back(self, indices: torch.Tensor, priority: torch.Tensor) -> None:
        raise AssertionError("there are no priorities")


@pytest.mark.parametrize("kind", ["discrete", "continuous", "masked"])
def test_the_step_is_the_sum_of_perturbations_weighted_by_ranks(kind):
    """Salimans et al., algorithm 2: seeds in the rows are enough to make the step again, slowly, lane by lane."""
    algorithm, collector = collected("evolution_strategies", kind, noise_std=0.2)
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    score = episode_returns(unroll.reward, unroll.step_type)
    expected = torch.zeros(sum(p.numel() for p in algorithm.policy.network.parameters()))
    for lane, utility in enumerate(centered_ranks(score)):
        expected += utility * algorithm.policy.noise(unroll.policy_info.seed[0, lane : lane + 1])[0]
    expected /= len(score) * 0.2
    found = {}
    algorithm.model.apply_gradients = lambda gradients: found.update(gradients[0]) or {"policy": torch.tensor(0.0)}
    algorithm.update(Source(unroll))
    assert_close(torch.cat([-gradient.flatten() for gradient in found.values()]), expected)


def test_all_rows_of_a_lane_name_the_perturbation_that_acted():
    algorithm, collector = collected("evolution_strategies", "continuous")

    def seeds() -> torch.Tensor:
        return collector.buffer.draw(algorithm.plan, torch.Generator()).policy_info.seed.clone()

    first = seeds()
    assert (first == first[0]).all()
    assert first[0, 0] == -first[0, 1]  # mirrored
    collector.unroll(12)
    assert torch.equal(seeds()[0], first[0])
    algorithm.update(collector.buffer)
    collector.unroll(12)
    assert not torch.equal(seeds()[0], first[0])


def test_one_lane_has_nothing_to_be_compared_with():
    algorithm, collector = collected("evolution_strategies", "discrete")
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())
    with pytest.raises(ConfigError, match="at least 2 environments"):
        algorithm.update(Source(unroll.map(lambda leaf: leaf[:, :1])))
    assert not algorithm.policy.updating
