"""The judgement of the soak: what is flat, and what is not."""

import pytest

from benchmarks import soak


def rows(memory_mb, blocks=1e6, descriptors=100):
    names = ("fragments", "restarts", "dropped", "duplicates")
    shared = {f"workers/{name}": 3.0 for name in names} | {"env_steps": 1e5, "soak/threads": 1, "soak/calls": 2}
    return [
        {**shared, "soak/memory_mb": mb, "soak/blocks": blocks, "soak/descriptors": descriptors} for mb in memory_mb
    ]


@pytest.mark.parametrize(("growth", "flat"), [(0.0, True), (0.02, True), (0.5, False)])
def test_a_driver_that_grows_by_more_than_a_twentieth_is_not_flat(growth, flat):
    found = soak.summary(rows([300 + growth * i for i in range(100)]), [200.0] * 100)
    assert found["memory_mb"]["flat"] is flat
    assert found["descriptors"] == {"early": 100, "late": 100, "most": 100, "flat": True}
    assert found["workers_mb"]["flat"]


def test_an_old_worker_that_grows_is_found_and_the_report_says_so():
    found = soak.summary(rows([300.0] * 50), [200.0 + i for i in range(50)])
    text = soak.report({"minutes": 1, "workers": 2, "killed": {"learners": 5}, **found})
    assert "Killed: 5 learners; 3 restarted" in text
    assert "| oldest worker, MB | 207 | 247 | 249 | no |" in text
    assert "| driver, MB | 300 | 300 | 300 | yes |" in text


@pytest.mark.parametrize(("calls", "flat"), [([9, 0, 2, 9, 9], True), ([6, 4, 9, 4, 5], False)])
def test_calls_that_are_never_answered_are_in_every_row(calls, flat):
    """Answers that come late on a busy machine are no leak."""
    found = soak.summary(
        [{**row, "soak/calls": 0} for row in rows([300.0] * 45)]
        + [{**row, "soak/calls": count} for row, count in zip(rows([300.0] * 5), calls, strict=True)],
        [200.0] * 50,
    )
    assert found["calls"]["flat"] is flat
