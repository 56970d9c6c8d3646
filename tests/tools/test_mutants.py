"""Tests of `tools/mutants.py` and `tools/mutation.py`."""

import ast
import subprocess

import pytest

from tools import mutants, mutation

SOURCE = '''\
"""Text is left alone: 1 + 1."""

LIMIT = 3


def mean(numbers, most: int = 4):
    """Not changed either, min or max."""
    if len(numbers) < 2 and most:
        raise ValueError(f"{1 + 1} numbers")
    numbers.sort()
    return max(numbers[-1], 0.5)
'''


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    file = tmp_path / "src/palaestra/ops/means.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    return list(mutation.mutants(file))


def test_each_mutant_changes_one_thing_that_does_something(drawn):
    lines = [mutant.line().removeprefix("src/palaestra/ops/means.py: ") for mutant in drawn]
    assert sorted(lines) == sorted(
        [
            "LIMIT = 4",
            "def mean(numbers, most: int = 5):",
            "if ((len(numbers) < 2) or (most)):",
            "if ((len(numbers)) <= (2)) and most:",
            "if len(numbers) < 3 and most:",
            "pass  # was: numbers.sort()",
            "return min(numbers[-1], 0.5)",
            "return max(numbers[(1)], 0.5)",
            "return max(numbers[-2], 0.5)",
            "return max(numbers[-1], 0.25)",
        ]
    )
    for mutant in drawn:
        assert ast.dump(ast.parse(mutant.changed())) != ast.dump(ast.parse(SOURCE))


def test_the_same_mutants_are_drawn_each_time(monkeypatch):
    assert {"ops", "policies"} < set(mutation.PACKAGES)
    monkeypatch.setattr(mutation, "PACKAGES", ("ops", "policies"))
    drawn = mutation.draw(100)
    assert mutation.draw(100) == drawn
    assert mutation.draw(100, seed=1) != drawn
    assert {mutant.file.split("/")[2] for mutant in drawn} == {"ops", "policies"}


def test_mutants_are_drawn_of_files_that_are_new_since_a_revision(drawn, tmp_path):
    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    first = git("rev-parse", "HEAD").strip()
    new, moved = (tmp_path / f"src/palaestra/{name}.py" for name in ("new", "moved"))
    new.write_text("LIMIT = 3\n")
    (tmp_path / "src/palaestra/ops/means.py").rename(moved)
    git("add", ".")
    git("commit", "-qm", "second")
    assert mutation.files_added(first) == [new]
    assert [mutant.line() for mutant in mutation.draw(1, first)] == ["src/palaestra/new.py: LIMIT = 4"]


def test_a_mutant_meets_the_tests_that_reach_its_line_its_own_and_quick_ones_first(drawn, monkeypatch, tmp_path):
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    file = "src/palaestra/ops/means.py"
    tests = {
        "tests/golden/test_a.py::a": {"seconds": 0.1, "lines": {file: [8, 10, 11]}},
        "tests/ops/test_b.py::slow": {"seconds": 20.0, "lines": {file: [8, 11]}},
        "tests/ops/test_b.py::quick": {"seconds": 1.0, "lines": {file: [8, 11]}},
        "tests/ops/test_b.py::endless": {"seconds": 20.0, "lines": {file: [8, 11]}},
        "tests/ops/test_b.py::elsewhere": {"seconds": 0.1, "lines": {file: [9]}},
        "tests/ops/test_c.py::another_file": {"seconds": 0.1, "lines": {}},
    }
    returned = next(mutant for mutant in drawn if mutant.lineno == 11)
    assert mutants.chosen(returned, tests) == ["tests/ops/test_b.py::quick", "tests/ops/test_b.py::slow"]
    constant = next(mutant for mutant in drawn if mutant.lineno == 3)  # runs when the file is imported
    assert mutants.chosen(constant, tests)[:2] == [mutants.DEFAULTS, "tests/ops/test_b.py::elsewhere"]


def test_the_page_counts_survivors_and_explains_those_that_change_nothing(drawn, monkeypatch):
    monkeypatch.setitem(mutation.EQUIVALENT, drawn[0].line(), "nobody reads it")
    results = [(drawn[0], "passed"), (drawn[1], "passed"), (drawn[2], "failed"), (drawn[3], "hung")]
    page = mutation.page(results, 300)
    assert "4 of 300 were run: 4 of ops.\n2 are killed; 1 of the others change nothing:\n**66.7%**" in page
    assert f"| `{drawn[0].line()}` | nobody reads it |" in page
    assert f"| `{drawn[1].line()}` |  |" in page


def test_every_explanation_is_of_a_mutant_that_can_be_made():
    files = {mutation.ROOT / line.split(": ")[0] for line in mutation.EQUIVALENT}
    assert set(mutation.EQUIVALENT) <= {mutant.line() for file in files for mutant in mutation.mutants(file)}
