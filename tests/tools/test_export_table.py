"""Tests of `tools/export_table.py` and the page that it wrote."""

import pytest

from tests.algorithms.parts import CASES, searches
from tools import export_table


def rows() -> list[list[str]]:
    lines = export_table.PAGE.read_text().removeprefix(export_table.HEAD).splitlines()
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


EXPORTED = [(name, kind) for name, kind in CASES if not searches(name)]
MISSING = [case for case in EXPORTED if case not in {(name, kind) for name, kind, *_ in rows()}]


def test_the_page_has_algorithms_with_each_kind_of_actions_and_none_was_refused():
    assert export_table.PAGE.read_text().startswith(export_table.HEAD)
    assert [(name, kind) for name, kind, *_ in rows()] == [case for case in EXPORTED if case not in MISSING]
    assert all(float(onnx) <= 1e-5 and float(torch) <= 1e-5 for _, _, onnx, _, torch, _ in rows())


@pytest.mark.parametrize(("name", "kind"), MISSING)
def test_an_algorithm_that_the_page_has_not_yet_is_exported(name, kind):
    """A new algorithm needs no edit of the page; who measures all of them again writes it."""
    assert "refused" not in export_table.line(name, kind)


@pytest.mark.slow
def test_a_line_is_measured():
    line = export_table.line("reinforce", "discrete")
    name, kind, onnx, *_ = (cell.strip(" `\n") for cell in line.strip("|").split("|"))
    assert (name, kind) == ("reinforce", "discrete")
    assert float(onnx) <= 1e-5
