"""Tests of `tools/export_table.py` and the page that it wrote."""

import pytest

from tests.algorithms.parts import CASES, searches
from tools import export_table


def rows() -> list[list[str]]:
    lines = export_table.PAGE.read_text().removeprefix(export_table.HEAD).splitlines()
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_has_every_algorithm_with_each_kind_of_actions_and_none_was_refused():
    assert export_table.PAGE.read_text().startswith(export_table.HEAD)
    expected = [(name, kind) for name, kind in CASES if not searches(name)]
    assert [(name, kind) for name, kind, *_ in rows()] == expected
    assert all(float(onnx) <= 1e-5 and float(torch) <= 1e-5 for _, _, onnx, _, torch, _ in rows())


@pytest.mark.slow
def test_a_line_is_measured():
    line = export_table.line("reinforce", "discrete")
    name, kind, onnx, *_ = (cell.strip(" `\n") for cell in line.strip("|").split("|"))
    assert (name, kind) == ("reinforce", "discrete")
    assert float(onnx) <= 1e-5
