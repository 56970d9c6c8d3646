"""The table of algorithms names every algorithm, and links to every page; no page counts them."""

import re
from pathlib import Path

import pytest

from palaestra.algorithms import ALGORITHMS

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "algorithms"
ROWS = {
    match["name"]: match["rest"]
    for match in re.finditer(r"^\| `(?P<name>\w+)` \|(?P<rest>.*)\|$", (FOLDER / "index.md").read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_row_with_its_class_and_page(name):
    assert name in ROWS, f"docs/algorithms/index.md has no row for `{name}`"
    assert f"`{ALGORITHMS[name].__name__}`" in ROWS[name]
    if (FOLDER / f"{name}.md").exists():
        assert f"({name}.md)" in ROWS[name], f"link {name}.md in the row of `{name}`"


@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if getattr(kind, "recurrent", False)])
def test_an_algorithm_that_can_have_a_memory_says_so(name):
    assert ROWS[name].split("|")[3].strip() == "yes"


def test_no_page_says_how_many_algorithms_there_are():
    """A new one would make it false; "more than thirty" stays true."""
    assert len(ALGORITHMS) > 30
    counted = re.compile(r"(?<!more than )\b(\d\d|(twen|thir|for|fif)ty(-\w+)?)\W+(of the )?algorithms", re.IGNORECASE)
    root = FOLDER.parents[1]
    pages = [
        root / "README.md",
        *(root / "docs").glob("*.md"),
        *(root / "docs/concepts").glob("*.md"),
        *FOLDER.glob("*.md"),
    ]
    found = [
        f"{page.name}: {match[0]}" for page in pages for match in counted.finditer(page.read_text(encoding="utf-8"))
    ]
    assert found == []
