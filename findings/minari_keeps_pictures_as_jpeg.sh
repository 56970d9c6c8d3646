#!/usr/bin/env bash
# Guess: a recorded observation is the one that the environment returned.
# Seen with minari 0.5.4: pictures (`uint8`, three channels) are stored as JPEG, so flat colours come back changed: a
# gridworld whose cells are told apart by their exact colours is another task offline.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'minari[create,hdf5]==0.5.4' gymnasium==1.4.0 pillow==12.0.0
"$folder/venv/bin/python" -W ignore - <<'PY'
import os
import tempfile

import gymnasium
import minari
import numpy as np

assert minari.__version__ == "0.5.4"
COLOURS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 0, 0], [255, 255, 0]], np.uint8)


class Grid(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.picture(), {}

    def step(self, action):
        return self.picture(), 0.0, False, False, {}

    def picture(self):  # 16 x 16 cells of four pixels, each of one colour
        cells = COLOURS[self.np_random.integers(0, len(COLOURS), (16, 16))]
        shown.append(cells.repeat(4, 0).repeat(4, 1))
        return shown[-1]


shown = []
with tempfile.TemporaryDirectory() as folder:
    os.environ["MINARI_DATASETS_PATH"] = folder
    env = minari.DataCollector(gymnasium.wrappers.TimeLimit(Grid(), 5))
    env.reset(seed=0)
    for _ in range(5):
        env.step(0)
    data = env.create_dataset(dataset_id="grids/flat-v0")
    stored = np.asarray(data[0].observations).astype(int)
difference = np.abs(stored - np.array(shown))
print("share of equal pixels:", round((difference.max(-1) == 0).mean(), 3), "largest difference:", difference.max())
assert stored.shape == (6, 64, 64, 3)
assert difference.max() > 20
assert (difference == 0).mean() < 0.9
PY
