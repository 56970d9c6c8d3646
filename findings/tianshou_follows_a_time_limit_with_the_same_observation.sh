#!/usr/bin/env bash
# Guess: a buffer with `ignore_obs_next=True` refuses episodes that end by a time limit, or keeps their last observation.
# Seen with tianshou 2.0.1: it takes the next row's observation as the one that follows, and where an episode ends, its own.
# So n-step and Q targets at a time limit bootstrap from the state that was acted in, one step too early, without a word.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tianshou==2.0.1 torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PY'
from importlib.metadata import version

import numpy
from tianshou.data import Batch, ReplayBuffer

assert version("tianshou") == "2.0.1"
buffers = {ignored: ReplayBuffer(8, ignore_obs_next=ignored) for ignored in (False, True)}
for buffer in buffers.values():
    for episode in (0.0, 10.0):
        for step in range(3):
            ends = {"terminated": False, "truncated": step == 2}
            buffer.add(Batch(obs=episode + step, act=0, rew=1.0, obs_next=episode + step + 1, info={}, **ends))
follows = {ignored: numpy.asarray(buffer[numpy.arange(6)].obs_next).tolist() for ignored, buffer in buffers.items()}
print("what follows six observations 0, 1, 2 and 10, 11, 12:", follows)
assert follows[False] == [1.0, 2.0, 3.0, 11.0, 12.0, 13.0]
assert follows[True] == [1.0, 2.0, 2.0, 11.0, 12.0, 12.0]
PY
