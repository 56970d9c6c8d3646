"""Replay in shards: the rows of a run lie in workers, and are drawn as from one buffer."""

import pytest
import torch

from palaestra.core import ConfigError, RowsLostError
from palaestra.distributed import ShardedReplay
from palaestra.runtime import LocalRuntime, ProcessRuntime
from tests.distributed.runs import assert_same, copied, iterate, kill, make_trainer

RUNS = {"dqn": "discrete", "sac": "continuous", "rainbow": "discrete", "r2d2": "discrete"}


@pytest.mark.parametrize("shards", [1, 3, 4])
@pytest.mark.parametrize("name", RUNS)
def test_shards_give_the_bits_that_one_buffer_gives(name, shards):
    with LocalRuntime() as one, LocalRuntime() as several:
        whole = iterate(make_trainer(one, name, RUNS[name]), 8)
        sharded = make_trainer(several, name, RUNS[name], replay_shards=shards)
        assert isinstance(sharded.collector.buffers["policy"], ShardedReplay)
        assert_same(iterate(sharded, 8), whole)
        assert sharded.algorithm.num_gradient_steps > 0
