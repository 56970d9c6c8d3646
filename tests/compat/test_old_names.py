"""Names that stand in `compat` now are found where they stood before."""

import importlib

import pytest

from palaestra import compat


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("palaestra.core", "ExperienceSet"),
        ("palaestra.buffers", "ExperienceMemory"),
        ("palaestra.multiagent", "EnvWrapper"),
        ("palaestra.nn", "create_algorithm_func"),
    ],
)
def test_a_name_is_found_where_it_stood(package, name):
    assert getattr(importlib.import_module(package), name) is getattr(compat, name)


def test_a_name_that_never_stood_there_is_refused():
    with pytest.raises(AttributeError, match=r"palaestra\.nn.* has no attribute 'create_algorithm'"):
        _ = importlib.import_module("palaestra.nn").create_algorithm
