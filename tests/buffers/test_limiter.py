"""Tests of `palaestra.buffers.SamplesPerInsert`."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.buffers import SamplesPerInsert
from palaestra.core import ConfigError


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    ratio=st.floats(0.1, 20),
    first=st.integers(0, 50),
    sizes=st.tuples(st.integers(1, 16), st.integers(1, 64)),
    who=st.lists(st.booleans(), max_size=200),
)
def test_whoever_is_ahead_waits_and_one_of_both_can_always_go_on(ratio, first, sizes, who):
    """F20: the bound holds at every moment, whatever the order in which both want to go on."""
    written, drawn = sizes
    slack = (ratio * written + drawn) / 2 + 0.001
    limiter = SamplesPerInsert(ratio=ratio, first_rows=first, slack=slack)
    for wants_to_write in who:
        assert limiter.may_write(written) or limiter.may_draw(drawn)
        if wants_to_write and limiter.may_write(written):
            limiter.wrote(written, timeout_s=0)
        elif limiter.may_draw(drawn):
            limiter.drew(drawn, timeout_s=0)
        assert -slack <= limiter.ahead <= slack
        assert limiter.drawn == 0 or limiter.written >= first


def test_producers_that_outrun_the_learner_are_held_back():
    """F20: three writers as fast as they can, one learner; the ratio holds and nothing piles up."""
    limiter = SamplesPerInsert(ratio=4, first_rows=30, slack=40)
    most = []

    def write():
        for _ in range(200):
            limiter.wrote(5, timeout_s=60)
            most.append(limiter.ahead)

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    while limiter.drawn + 10 <= 4 * (3000 - 30):
        limiter.drew(10, timeout_s=60)
    for writer in writers:
        writer.join(60)
    assert limiter.written == 3000
    assert limiter.drawn == 4 * 2970
    assert max(most) <= 40


def test_a_wait_that_ends_says_who_is_missing():
    limiter = SamplesPerInsert(ratio=2, first_rows=10, slack=20)
    with pytest.raises(TimeoutError, match=r"waited 0 s to draw 8 rows: 0 rows are written and 0 drawn, .* written"):
        limiter.drew(8, timeout_s=0)
    limiter.wrote(10, timeout_s=0)
    limiter.wrote(10, timeout_s=0)
    with pytest.raises(TimeoutError, match=r"to write 6 rows: 20 rows are written and 0 drawn, .* drawn first"):
        limiter.wrote(6, timeout_s=0)
    assert limiter.written == 20
    with pytest.raises(ConfigError, match="could wait for each other for ever; give at least 30"):
        limiter.drew(40, timeout_s=0)
    with pytest.raises(ConfigError, match="give numbers above 0"):
        SamplesPerInsert(ratio=0, slack=1)
