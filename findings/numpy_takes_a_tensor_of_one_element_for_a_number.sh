#!/usr/bin/env bash
# Guess: a torch tensor of whole numbers indexes a NumPy array as an array of the same numbers does, whatever its length;
# and NumPy's bytes index a torch tensor as they index an array.
# Seen with torch 2.13.0 and numpy 2.4.0: rows of two or more numbers come out as [2, ...] and so on; a tensor of ONE number
# takes the row itself, without its first axis, and a mask of one takes row 0 or 1 instead of none or one row. So code that
# takes the rows where something holds is right until exactly one row is left. The other way round torch takes an array of
# bytes for a mask: [0, 1, 1] are rows 0, 1, 1 for NumPy and rows 1, 2 for torch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.0
"$folder/venv/bin/python" -W ignore - <<'PY'
import numpy
import torch

assert torch.__version__.startswith("2.13.0") and numpy.__version__ == "2.4.0"
rows = numpy.arange(12.0).reshape(4, 3)
shapes = {}
for done in ([0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]):
    where = torch.tensor(done).nonzero().flatten()
    shapes[len(where)] = rows[where].shape
    print(f"{len(where)} rows: indexed by a tensor {rows[where].shape}, by an array {rows[where.numpy()].shape}")
    assert rows[where.numpy()].shape == (len(where), 3)
assert shapes == {2: (2, 3), 1: (3,), 0: (0, 3)}

one = rows[:1]
print("one row, a mask of one False: by a tensor", one[torch.tensor([False])].shape, "by an array", one[numpy.array([False])].shape)
assert one[torch.tensor([False])].shape == (3,) and one[numpy.array([False])].shape == (0, 3)

index = numpy.array([0, 1, 1], numpy.uint8)
print("bytes [0, 1, 1] take of [0, 1, 2]: NumPy", numpy.arange(3)[index].tolist(), "torch", torch.arange(3)[index].tolist())
assert numpy.arange(3)[index].tolist() == [0, 1, 1] and torch.arange(3)[index].tolist() == [1, 2]
PY
