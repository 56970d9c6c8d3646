#!/usr/bin/env bash
# Guess: `gymnasium.make("HalfCheetah-v5")` writes no file; what MuJoCo warns of is printed, or a Python warning.
# Seen with mujoco 4.0.0 and gymnasium 1.4.0: each time the environment is made, MuJoCo appends a warning to MUJOCO_LOG.TXT in
# the folder that Python runs in: Gymnasium's model uses `settotalmass`, which is deprecated. It is printed, too, but is no
# Python warning, so `-W error` says nothing. Hopper's model does not use it, and leaves no file.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mujoco==4.0.0 gymnasium==1.4.0 numpy==2.4.6 imageio packaging
mkdir "$folder/here"
cd "$folder/here"
"$folder/venv/bin/python" -W error - <<'PY'
import os

import gymnasium
import mujoco

assert (mujoco.__version__, gymnasium.__version__) == ("4.0.0", "1.4.0")
gymnasium.make("Hopper-v5").reset(seed=0)
print("after Hopper:", os.listdir("."))
assert os.listdir(".") == []
sizes = []
for _ in range(3):
    gymnasium.make("HalfCheetah-v5").reset(seed=0)
    sizes.append(os.path.getsize("MUJOCO_LOG.TXT"))
print("after HalfCheetah:", os.listdir("."), "of", sizes, "bytes")
assert os.listdir(".") == ["MUJOCO_LOG.TXT"] and 0 < sizes[0] < sizes[1] < sizes[2]
PY
