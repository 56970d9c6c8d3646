#!/usr/bin/env bash
# Guess: a square root of float64 is the same in torch and NumPy, for IEEE 754 asks that it be rounded correctly.
# Seen with torch 2.13.0 (CPU build) and numpy 2.4.6: `torch.sqrt`, and `** 0.5`, differ from `numpy.sqrt` in the last bit for
# some numbers between 0 and 1 (about 1 to 4 in 100); NumPy's is the correctly rounded one, as exact fractions show.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PY'
from fractions import Fraction

import numpy as np
import torch

assert torch.__version__.startswith("2.13.0") and np.__version__ == "2.4.6"
numbers = np.random.default_rng(0).random(100_000)
ours, theirs = np.sqrt(numbers), torch.from_numpy(numbers).sqrt().numpy()
different = np.flatnonzero(ours != theirs)
print(f"{len(different)} of {len(numbers)} square roots differ, by at most", np.abs(ours - theirs).max())


def misses(root: float, number: float) -> Fraction:
    """How far the square is from the number: of two neighbours the nearer root has the smaller one, to first order."""
    return abs(Fraction(root) ** 2 - Fraction(number))


better = sum(misses(ours[i], numbers[i]) < misses(theirs[i], numbers[i]) for i in different)
print(f"NumPy's is the nearer one in {better} of {len(different)}")
assert len(different) > 0 and better == len(different)
PY
