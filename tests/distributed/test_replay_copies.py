"""Shards of replay that have copies: what one of the two held is not lost with it (F14)."""

import pytest

from tests.distributed.parts import Mortal, local
from tests.distributed.runs import kill
from tests.distributed.shards import Pair, assert_equal, plan_of, worker_of


@pytest.mark.parametrize("name", ["prioritized", "sequences"])
def test_a_shard_with_a_copy_is_filled_again_and_no_bit_of_a_draw_changes(name):
    """F14: whichever of the two is lost, and the other one after it; both at once cost what they held."""
    with local() as runtime:
        pair = Pair(runtime, plan_of(name), copies=True)
        pair.fill()
        for turn, (number, which) in enumerate([(1, 0), (1, 0), (2, 1), (0, 0)]):
            pair.fill(1)
            kill(runtime, worker_of(pair.shards, number, which))
            assert_equal(*pair.draws(turn))
        pair.fill(3)
        assert_equal(*pair.draws(5))
        assert pair.shards.metrics() == {"replay/shards": 4, "replay/lost_shards": 4, "replay/lost_rows": 0}
        assert "a shard of replay was lost, and is filled again by its copy" in str(pair.shards.faults[0])
        held = int(pair.sharded.positions.counts[[1, 2]].sum())
        for which in (0, 1):
            kill(runtime, worker_of(pair.shards, 1, which))
        pair.draws(6)
        assert 0 < pair.shards.lost_rows <= held


def test_copies_have_what_a_checkpoint_brings_back():
    """F14, F25: the shards that read it may be lost right after."""
    plan = plan_of("prioritized")
    with local() as runtime, local() as other:
        pair, again = Pair(runtime, plan), Pair(other, plan, copies=True)
        pair.fill(24)
        again.sharded.load_state_tensors(pair.whole.state_tensors())
        again.whole = pair.whole
        for number in range(4):
            kill(other, worker_of(again.shards, number))
        assert_equal(*again.draws(5))
        assert (again.shards.lost_shards, again.shards.lost_rows) == (4, 0)


def test_a_shard_that_is_lost_while_it_fills_its_copy_costs_what_both_held():
    """F14: the copy was empty, so nobody has these rows; they are named once, and the run goes on."""
    with local() as runtime:
        pair = Pair(runtime, plan_of("uniform"), copies=True)
        pair.fill()
        Mortal(runtime, "copied")
        kill(runtime, worker_of(pair.shards, 1, 1))
        before = len(pair.sharded)
        pair.draws(0)
        assert pair.shards.lost_rows > 0
        assert len(pair.sharded) < before
        assert pair.shards.lost_shards == 2
        pair.fill(40)
        pair.draws(1)
