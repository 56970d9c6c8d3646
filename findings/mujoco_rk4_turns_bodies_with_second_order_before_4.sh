#!/usr/bin/env bash
# Guess: integrator "RK4", which Gymnasium's Ant and Humanoid ask for, has an error of fourth order in the time step in every
# version of MuJoCo, and a new major version moves the last digits at most.
# Seen with mujoco 3.17.0 and 4.0.0: a box that turns freely has an error of second order in 3.17.0 (a quarter of it at half the
# step), and of fourth order in 4.0.0 (a sixteenth). So at the step of 0.01 s that these tasks use, a floating base ends
# elsewhere: Gymnasium's Ant differs in the first step in the air already, by 1e-10, and by 1e-6 after ten. Hopper and
# Walker2d ask for RK4, too, but have no body that turns in space: theirs are equal but for rounding.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/turn.py" <<'PY'
import sys
from pathlib import Path

import gymnasium
import mujoco
import numpy as np

BOX = """<mujoco><option integrator="RK4" gravity="0 0 0"/>
<worldbody><body><freejoint/><geom type="box" size=".1 .2 .3"/></body></worldbody></mujoco>"""


def turned(timestep):
    """Orientation of the box after 1 s."""
    model = mujoco.MjModel.from_xml_string(BOX)
    model.opt.timestep = timestep
    data = mujoco.MjData(model)
    data.qvel[3:] = 1, 2, 3
    mujoco.mj_step(model, data, round(1 / timestep))
    return data.qpos[3:].copy()


def states(task):
    """Ten steps in the air with random torques."""
    assets = Path(gymnasium.__file__).parent / "envs/mujoco/assets"
    model = mujoco.MjModel.from_xml_path(str(assets / f"{task}.xml"))
    data, rng, rows = mujoco.MjData(model), np.random.default_rng(0), []
    data.qpos[2 if task == "ant" else 1] += 1
    for _ in range(10):
        data.ctrl[:] = rng.uniform(-1, 1, model.nu)
        mujoco.mj_step(model, data)
        rows.append(np.concatenate([data.qpos, data.qvel]))
    return np.array(rows)


exact = turned(1 / 8192)
errors = [np.abs(turned(step) - exact).max() for step in (1 / 32, 1 / 64)]
np.savez(sys.argv[1], order=np.log2(errors[0] / errors[1]), **{task: states(task) for task in ("ant", "hopper")})
PY
for version in 3.17.0 4.0.0; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install --quiet --disable-pip-version-check gymnasium==1.4.0 "mujoco==$version" numpy==2.4.6
  "$folder/$version/bin/python" -W ignore "$folder/turn.py" "$folder/$version.npz"
done
"$folder/4.0.0/bin/python" - "$folder" <<'PY'
import sys

import numpy as np

old, new = (np.load(f"{sys.argv[1]}/{version}.npz") for version in ("3.17.0", "4.0.0"))
apart = {task: np.abs(old[task] - new[task]).max(axis=1) for task in ("ant", "hopper")}
print(f"order of the error: {old['order']:.2f} with 3.17.0, {new['order']:.2f} with 4.0.0")
print("largest difference after 1 and 10 steps:", {task: (found[0], found[-1]) for task, found in apart.items()})
assert abs(old["order"] - 2) < 0.1 and abs(new["order"] - 4) < 0.1
assert apart["ant"][0] > 1e-12 and apart["ant"][-1] > 1e-7
assert apart["hopper"].max() < 1e-12
PY
