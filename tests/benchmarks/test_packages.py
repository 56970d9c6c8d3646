"""The table of packages: the page says what the results say, and rows that were not run say so."""

import json

from benchmarks.packages import PAGE, RESULTS, ROOT, known, markdown


def test_the_page_has_the_results():
    results = json.loads((RESULTS / "packages.json").read_text())
    assert markdown(known(), results) in (ROOT / PAGE).read_text()
    assert len(known()) >= 60 and not results.keys() - known().keys()
    for name, found in results.items():
        assert found["version"] == str(known()[name]["version"]), f"{name} has another version by now: run it again"


def test_a_row_that_was_not_run_says_so():
    facts = {"toy": {"version": 1.0, "env": "toy:Toy-v0", "family": "jax", "note": "tiny"}}
    assert "| toy | 1.0 | `toy:Toy-v0` |  | not run |  |  | `palaestra env create jax`; tiny |" in markdown(facts, {})
    found = {"version": "1.0", "install": "yes", "mib": 3, "check": "27 rules: 0 broken", "train": "yes"}
    assert "| 3 | yes | 27 rules: 0 broken | yes |" in markdown(facts, {"toy": found})
