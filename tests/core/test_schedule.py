"""Tests of `palaestra.core.schedule`."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.core import ConfigError, Linear, Piecewise, parse_schedule, schedule_value

numbers = st.floats(-1e6, 1e6, allow_nan=False)
bounded = settings(max_examples=25, deadline=None, derandomize=True)


def test_linear_goes_straight_and_then_stays():
    """MARO-46: MARO's LinearExplorationScheduler."""
    schedule = Linear(1.0, 0.1, fraction=0.5)
    assert [schedule(x) for x in (0.0, 0.25, 0.5, 1.0)] == [1.0, pytest.approx(0.55), 0.1, 0.1]
    assert (schedule(-1.0), schedule(7.0)) == (1.0, 0.1)


def test_piecewise_is_a_line_between_any_two_points():
    """MARO-46: MARO's MultiPhaseLinearExplorationScheduler, here with a fall, a plateau and a rise."""
    schedule = Piecewise(((0.0, 1.0), (0.2, 0.5), (0.6, 0.5), (0.8, 0.7)))
    values = {0.0: 1.0, 0.1: 0.75, 0.2: 0.5, 0.4: 0.5, 0.7: 0.6, 0.8: 0.7, 1.0: 0.7, -0.5: 1.0, 3.0: 0.7}
    for progress, value in values.items():
        assert schedule(progress) == pytest.approx(value)


def test_one_point_is_a_constant():
    assert Piecewise(((0.0, 0.3),))(0.9) == 0.3
    assert schedule_value(0.3, 0.9) == 0.3


def test_piecewise_with_two_points_is_linear():
    """MARO-46."""
    line, points = Linear(0.7, 0.2, 0.25), Piecewise(((0.0, 0.7), (0.25, 0.2)))
    for progress in (0.0, 0.1, 0.24, 0.25, 0.9):
        assert schedule_value(line, progress) == pytest.approx(schedule_value(points, progress))


@bounded
@given(start=numbers, end=numbers, fraction=st.floats(1e-6, 1.0), progress=st.floats(0, 1))
def test_linear_stays_between_its_ends_and_survives_as_text(start, end, fraction, progress):
    """A configuration file holds the text; the same run must come out of it, to the last bit."""
    schedule = Linear(start, end, fraction)
    assert parse_schedule(str(schedule)) == schedule
    tolerance = 1e-9 * (abs(start) + abs(end))
    assert min(start, end) - tolerance <= schedule(progress) <= max(start, end) + tolerance


@bounded
@given(xs=st.sets(st.floats(1e-6, 1.0), max_size=4), ys=st.lists(numbers, min_size=5, max_size=5))
def test_piecewise_survives_as_text(xs, ys):
    schedule = Piecewise(tuple(zip([0.0, *sorted(xs)], ys, strict=False)))
    assert parse_schedule(str(schedule)) == schedule
    for x, y in schedule.points:
        assert schedule(x) == pytest.approx(y)


def test_short_text_stays_short():
    assert str(Linear(3e-4, 0.0)) == "linear(0.0003, 0)"
    assert str(Linear(1.0, 0.05, 0.2)) == "linear(1, 0.05, 0.2)"
    assert str(Linear(1 / 3, 0.0)) == "linear(0.3333333333333333, 0)"
    assert str(Piecewise(((0.0, 1.0), (0.5, 0.1)))) == "piecewise(0: 1, 0.5: 0.1)"


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        (" 3e-4 ", 3e-4),
        ("-.5", -0.5),
        ("linear(1, 0)", Linear(1.0, 0.0)),
        ("linear( 1e-3 , 0 , .5 )", Linear(1e-3, 0.0, 0.5)),
        ("piecewise(0: 1, 0.5:0.1)", Piecewise(((0.0, 1.0), (0.5, 0.1)))),
    ],
)
def test_text_is_read(text, schedule):
    assert parse_schedule(text) == schedule


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "linear",
        "linear(1)",
        "linear(1, 2",
        "linear(1, 2, 3, 4)",
        "linear(a, b)",
        "piecewise()",
        "piecewise(1, 2)",
    ],
)
def test_other_text_is_refused_with_the_forms_that_exist(text):
    with pytest.raises(ConfigError, match=r"is no schedule; give a number, linear\(start, end\)"):
        parse_schedule(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(1.0, 0.0, 0.0), r"fraction 0.0; it must lie in \(0, 1\]"),
        (lambda: Linear(1.0, 0.0, 1.5), "fraction 1.5"),
        (lambda: Linear(math.nan, 0.0), r"\[nan, 0.0\]; they must be finite"),
        (lambda: Piecewise(()), "they must rise from 0"),
        (lambda: Piecewise(((0.1, 1.0),)), r"points lie at \[0.1\]"),
        (lambda: Piecewise(((0.0, 1.0), (0.5, 1.0), (0.5, 2.0))), "they must rise"),
        (lambda: Piecewise(((0.0, 1.0), (2.0, 1.0))), "to at most 1"),
        (lambda: Piecewise(((0.0, math.inf),)), "they must be finite"),
        (lambda: parse_schedule("linear(1, 0, 2)"), "fraction 2.0"),
    ],
)
def test_impossible_schedules_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
