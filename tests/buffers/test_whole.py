"""Plans that go through the whole buffer, and who says which rows that are."""

import numpy as np
import pytest
import torch

from palaestra import DQN, Collector, DQNConfig, EnvConfig, create_environment
from palaestra.buffers import BalancedSampler, EpisodeSampler, PrioritizedSampler, Sampler, UniformSampler, WholeSampler
from palaestra.core import ConfigError, Replay
from tests.buffers.model import filled, generator

WHOLE = Replay(unroll_length=1, num_epochs=1)


class Newest(Sampler):
    """As a user writes one: it says which rows of a draw."""

    def starts(self, buffer, count, length, generator):
        return buffer.starts(length)[-count:]


@pytest.mark.parametrize("sampler", [PrioritizedSampler(), BalancedSampler(), Newest()])
def test_a_sampler_that_draws_some_rows_more_often_is_refused(sampler):
    buffer, _ = filled(64, 2, 40)
    buffer.sampler = sampler
    buffer.sample(7, generator())  # whose weights are of other rows
    with pytest.raises(ConfigError, match=f"num_epochs.*{type(sampler).__name__}.*leave out num_epochs"):
        buffer.draw(WHOLE, generator())


def test_an_update_says_so_instead_of_a_raw_error():
    with create_environment(EnvConfig(name="CartPole-v1", num_envs=2), seed=0) as env:
        algorithm = DQN(env.observation_spec, env.action_spec, DQNConfig(num_epochs=1, learning_starts=0))
        collector = Collector.of(env, algorithm)
        collector.buffer.sampler = PrioritizedSampler()
        collector.collect(n_step=100)
        with pytest.raises(ConfigError, match="PrioritizedSampler"):
            algorithm.update(collector.buffer)


@pytest.mark.parametrize("sampler", [UniformSampler(), WholeSampler(), EpisodeSampler(), WholeSampler(stride=3)])
def test_the_whole_buffer_is_what_its_sampler_may_choose(sampler):
    buffer, _ = filled(64, 2, 60)
    buffer.sampler = sampler
    drawn = buffer.draw(WHOLE, generator())
    chosen = sampler.starts(buffer.reader, 2000, 1, torch.Generator().manual_seed(1))
    assert set(np.asarray(drawn.index).tolist()) == set(chosen.tolist())
    assert len(set(drawn.index.tolist())) == len(drawn.index)
