"""Tests of how ranks of a group tell each other gradients."""

import os

import pytest
import torch

from palaestra.distributed.exchange import Exchange
from palaestra.testing.algorithms import different, whole_state
from tests.algorithms.parts import any_kind, collected
from tests.distributed.test_gradient_workers import updated_with


@pytest.fixture
def sent(monkeypatch):
    """Ranks that send."""
    found, send = set[int](), torch.distributed.ProcessGroupGloo.send

    def sending(group, *args):
        found.add(group.rank())
        return send(group, *args)

    monkeypatch.setattr(torch.distributed.ProcessGroupGloo, "send", sending)
    return found


@pytest.mark.parametrize("together", [True, False])
def test_ranks_of_one_machine_tell_each_other_through_memory_and_others_through_the_network(
    together, sent, monkeypatch
):
    """With the same bits. The mutant is who sends."""

    def hidden(path):
        raise OSError(path)

    if not together:
        monkeypatch.setattr(os, "readlink", hidden)  # of which machine this is
    algorithm, collector = collected("ppo", any_kind("ppo"))
    alone, _ = updated_with(0, algorithm, collector, times=2, num_shards=4)
    shared, _ = updated_with(2, algorithm, collector, times=2, num_shards=4)
    assert not different(whole_state(alone), whole_state(shared))
    assert sent == (set() if together else {0, 1, 2})


@pytest.mark.needs_linux
def test_memory_is_shared_by_all_ranks_or_by_none(sent, monkeypatch):
    """A rank that may not open that of another says so, and all send."""
    opened, refusals = os.open, list[str]()

    def refused(path, *args):
        if str(path).startswith("/proc/") and not refusals:
            refusals.append(path)
            raise PermissionError(path)
        return opened(path, *args)

    monkeypatch.setattr(os, "open", refused)
    algorithm, collector = collected("ppo", any_kind("ppo"))
    updated_with(2, algorithm, collector, num_shards=3)
    assert refusals
    assert sent == {0, 1, 2}


def test_ranks_share_out_the_values_of_an_unroll_and_cut_it_alike_whatever_their_number(monkeypatch):
    """Each lane is looked at by one of them; one that learns alone looks at the same parts, so that bits are equal."""
    seen, by_lanes = list[list[int]](), Exchange.by_lanes

    def looking(exchange, function, unroll):
        mine = list[int]()
        seen.append(mine)
        return by_lanes(exchange, lambda part: (mine.append(part.reward.shape[1]), function(part))[1], unroll)

    monkeypatch.setattr(Exchange, "by_lanes", looking)
    algorithm, collector = collected("ppo", any_kind("ppo"))
    alone, _ = updated_with(0, algorithm, collector, num_shards=4)
    assert seen == [[1] * collector.buffer.num_lanes]  # no more parts than lanes
    seen.clear()
    shared, _ = updated_with(1, algorithm, collector, num_shards=4)
    assert sorted(seen) == [[1], [1, 1]]
    assert not different(whole_state(alone), whole_state(shared))
