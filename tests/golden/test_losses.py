"""The first 10 losses of every algorithm are what they were; see generate.py for when they may move."""

import json

import pytest

from palaestra.algorithms import ALGORITHMS
from tests.algorithms.parts import CASES, searches
from tests.golden.generate import COUNT, default_settings, defaults, first_losses, golden_file

# Across machines sums are taken in another order; losses are of size 0.1 to 10, so 1e-6 is ten float32 roundings.
RELATIVE, ABSOLUTE = 1e-5, 1e-6
SEARCHED = 1e-3  # what a search finds weighs differences of values tenfold, and is what the loss compares with
UNIT_VECTORS = (
    1e-2  # and behind batch normalisation of a few rows, weights of length 1 turn by far more than a rounding
)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_first_losses_are_the_golden_ones(name, kind):
    """F25: up to roundings; tests/contracts/test_learners.py shows that two runs of one process have the same bits."""
    golden = json.loads(golden_file(name).read_text())[kind]
    assert len(golden) == COUNT
    relative = UNIT_VECTORS if kind == "unit-vectors" else SEARCHED if searches(name) else RELATIVE
    assert first_losses(name, kind) == pytest.approx(golden, rel=relative, abs=ABSOLUTE)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_golden_file_with_every_kind_of_action(name):
    path = golden_file(name)
    assert path.exists(), f"make it: python tests/golden/generate.py --overwrite {name}"
    kinds = {kind for algorithm, kind in CASES if algorithm == name}
    assert json.loads(path.read_text()).keys() == {"settings", *kinds}


def test_defaults_are_the_golden_ones():
    """A default is what papers and presets are compared with: it does not move unnoticed."""
    assert default_settings() == json.loads(golden_file("defaults").read_text())
    for name, kind in ALGORITHMS.items():
        assert defaults(kind.config_class) == json.loads(golden_file(name).read_text())["settings"], name
