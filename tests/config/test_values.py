"""Tests of `palaestra.config.values`: single settings, wherever they come from."""

import math
from typing import Any, Literal

import pytest
import yaml

from palaestra.config.values import dataclass_of, read_yaml, type_name, value_from_words, value_of
from palaestra.core import ConfigError, Linear, Schedule
from palaestra.nn import NetworkConfig


@pytest.mark.parametrize(
    ("hint", "value", "result"),
    [
        (int, 100_000.0, 100_000),
        (int, "1e5", 100_000),
        (int | None, "2e3", 2_000),
        (int | None, None, None),
        (float, 3, 3.0),
        (float, "3e-4", 3e-4),
        (bool, "no", False),
        (Schedule, "linear(1, 0)", Linear(1.0, 0.0)),
        (Schedule | None, None, None),
        (Schedule, 3, 3.0),
        (tuple[int, ...], [64, 3.0], (64, 3)),
        (dict[str, Any], {"g": 9}, {"g": 9}),
    ],
)
def test_a_value_takes_the_type_of_its_field(hint, value, result):
    """F27: integral floats such as 1e5 are whole numbers."""
    assert value_of(hint, value) == result
    assert type(value_of(hint, value)) is type(result)


@pytest.mark.parametrize(
    ("hint", "value", "reason"),
    [
        (float, math.nan, "a number is needed"),
        (Schedule, math.nan, "a number is needed"),
        (int, 1.5, "a whole number is needed"),
        (int | None, "many", "a whole number is needed"),
        (float, [1], "a number is needed"),
        (bool, "perhaps", "true or false is needed"),
        (str, 3, "a text is needed"),
        (tuple[int, ...], 64, "a list is needed"),
        (tuple[int, ...], [64, "x"], "a whole number is needed at place 2"),
        (dict[str, Any], [1], "a mapping of names to values is needed"),
        (Literal["a", "b"], "c", "'a' or 'b' is needed"),
        (Schedule, [1], "a number is needed"),
        (Schedule, lambda progress: 1e-3, "a number is needed, or a schedule as text, such as 'linear(1e-3, 0)'"),
    ],
)
def test_a_value_of_another_type_is_refused_in_plain_words(hint, value, reason):
    """F27."""
    with pytest.raises(ConfigError) as caught:
        value_of(hint, value)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("hint", "words", "value"),
    [
        (bool, [], True),
        (bool, ["false"], False),
        (str | None, ["none"], None),
        (str, ["1e5"], "1e5"),
        (int, ["1e5"], 1e5),
        (int, ["010"], "010"),
        (int, ["1:30"], "1:30"),
        (float, ["0.10"], 0.1),
        (tuple[int, ...], ["64", "32"], [64, 32]),
        (tuple[int, ...], ["64,32"], [64, 32]),
        (tuple[str, ...], [""], []),
        (dict[str, Any], [""], {}),
        (dict[str, int | None], ["one", "none", "two", "2"], {"one": None, "two": 2}),
        (dict[str, Any], ["size", "3", "label", "x"], {"size": 3, "label": "x"}),
        (dict[str, Any], ['{"size": 3, "parts": {"a": [1]}}'], {"size": 3, "parts": {"a": [1]}}),
        (Any, ["[1, 2"], "[1, 2"),
        (dict[str, Any], ["text", ""], {"text": ""}),
        (int | None, ["Null"], None),
    ],
)
def test_words_of_the_command_line_become_values(hint, words, value):
    assert value_from_words(hint, words) == value


@pytest.mark.parametrize(
    ("hint", "words", "reason"),
    [
        (int, [], "one value is needed, and none was given"),
        (float, ["1", "2"], "one value is needed, and 2 were given: 1 2"),
        (tuple[int, ...], [], "a value is needed; an empty text ('') stands for none at all"),
        (int, [""], "an empty text was given, as a shell makes of an unset variable; give a value"),
        (float | None, [""], "an empty text was given, as a shell makes of an unset variable; give a value, or none"),
        (dict[str, Any], ["size"], "'size' has no value; give names and values in turn, or one {name: value}"),
    ],
)
def test_too_few_or_too_many_words_are_refused(hint, words, reason):
    """F27."""
    with pytest.raises(ConfigError) as caught:
        value_from_words(hint, words)
    assert str(caught.value) == reason


def test_numbers_in_yaml_may_be_written_as_everywhere():
    assert read_yaml("[1e5, 3e-4, -2E3, 1e, e5, '1e5']") == [1e5, 3e-4, -2e3, "1e", "e5", "1e5"]


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "c:\n- {d: 1,\n   d: 2}", "\n\n{a: 1, a: 2}"])
def test_a_key_that_stands_twice_is_refused(text):
    """F27: the first value would be lost without a word."""
    with pytest.raises(yaml.YAMLError, match=r"the key '[ad]' stands twice, in lines \d and 3"):
        read_yaml(text)
    assert read_yaml("a: {b: 1}\nc: {b: 2}") == {"a": {"b": 1}, "c": {"b": 2}}


def test_types_are_named_in_the_words_of_a_user():
    names = [type_name(hint) for hint in (int | None, Schedule, tuple[int, ...], Literal["a", "b"], dict[str, Any])]
    assert names == ["int", "number or schedule", "list", "a or b", "dict"]


def test_settings_inside_a_field_are_found_and_schedules_are_none():
    assert dataclass_of(NetworkConfig | None) is NetworkConfig
    assert dataclass_of(Schedule) is None
    assert dataclass_of(int) is None
