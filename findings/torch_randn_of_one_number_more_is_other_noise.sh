#!/usr/bin/env bash
# Guess: noise for 17 lanes begins with the noise for 16 lanes of the same seed, as it does for 8 and 20 with `torch.rand`.
# Seen with torch 2.13.0 on a CPU: from 16 numbers on, `randn` fills blocks of 16 and makes the last 16 anew where blocks do
# not fit. So `randn(17)` and `randn(16)` have one number in common, `randn(15)` and `randn(16)` none, `randn(32)` begins
# with `randn(16)`: one lane more changes the exploration of every other lane.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.0
"$folder/venv/bin/python" -W ignore - <<'PY'
import torch


def noise(draw, count):
    torch.manual_seed(0)
    return draw(count)


assert torch.__version__.startswith("2.13.0")
common = {}
for few, many in ((8, 15), (15, 16), (16, 17), (16, 32), (32, 40)):
    uniform = int((noise(torch.rand, few) == noise(torch.rand, many)[:few]).sum())
    normal = int((noise(torch.randn, few) == noise(torch.randn, many)[:few]).sum())
    common[few, many] = normal
    print(f"of the first {few} of {few} and of {many}: equal with rand {uniform}, with randn {normal}")
    assert uniform == few
assert common == {(8, 15): 8, (15, 16): 0, (16, 17): 1, (16, 32): 16, (32, 40): 24}
PY
