#!/usr/bin/env bash
# Guess: a softmax over the last axis, which lies together in memory, takes about as long as it has numbers: over the 7
# actions of a policy less than over 16, and over the last axis less than over the first of the transposed tensor.
# Seen with torch 2.13.0 on a CPU, one thread: rows that are shorter than a vector register (16 numbers with AVX-512, 8 with
# AVX2) are computed number by number. 2,048 rows of 15 took 370 µs, and of 16 took 29 µs; of 7 they took 190 µs, and 22 µs
# as `x.t().softmax(0).t()`, which is vectorised across rows (copies included). log_softmax is alike (145 µs of 7, 21 of 16).
# Most tasks have fewer than 16 actions. The two ways have other last bits.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.0
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PY'
import time

import torch

assert torch.__version__.startswith("2.13.0")
torch.set_num_threads(1)
vectors = torch.backends.cpu.get_cpu_capability()
numbers = {"AVX512": 16, "AVX2": 8}[vectors]


def shortest(function):
    """Processor time of the fastest of 200 calls, microseconds."""
    taken = []
    for _ in range(200):
        begin = time.process_time_ns()
        function()
        taken.append(time.process_time_ns() - begin)
    return min(taken) / 1000


took = {}
for width in (numbers // 2 - 1, numbers - 1, numbers, 2 * numbers):
    x = torch.randn(2048, width)
    ways = {
        "softmax(-1)": lambda x=x: x.softmax(-1),
        "log_softmax(-1)": lambda x=x: x.log_softmax(-1),
        "t().softmax(0).t()": lambda x=x: x.t().softmax(0).t(),
    }
    torch.testing.assert_close(ways["softmax(-1)"](), ways["t().softmax(0).t()"]())
    took[width] = {name: shortest(way) for name, way in ways.items()}
    print(f"2,048 rows of {width} ({vectors}):", ", ".join(f"{name} {us:.0f} us" for name, us in took[width].items()))
for name in ("softmax(-1)", "log_softmax(-1)"):
    assert took[numbers - 1][name] > 3 * took[numbers][name]
    assert took[numbers // 2 - 1][name] > 1.5 * took[2 * numbers][name]
short = took[numbers // 2 - 1]
assert short["softmax(-1)"] > 2 * short["t().softmax(0).t()"]
PY
