#!/usr/bin/env bash
# Guess: `mujoco.batch.Batch.bind` of an output, asked for after a step, shows what that step has computed, as `qpos` does and as
# `MjData.xpos` of one simulation does.
# Seen with mujoco 4.0.0: `bind("xpos")` after a step is zero in all bodies, and so is `sensordata`; after the next step both are
# right. An output has memory from its first `bind` on, and only calls after that fill it; nothing says that there is no value yet.
# With `persistent=True`, which keeps an MjData for each simulation, the same late `bind` shows the values at once.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mujoco==4.0.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import mujoco
import mujoco.batch
import numpy as np

assert mujoco.__version__ == "4.0.0"
MODEL = mujoco.MjModel.from_xml_string(
    """<mujoco><worldbody><body name="pole" pos="0 0 1"><joint name="hinge" axis="0 1 0"/>
    <geom type="capsule" fromto="0 0 0 0 0 0.5" size="0.02"/><site name="tip" pos="0 0 0.5"/></body></worldbody>
    <sensor><framepos objtype="site" objname="tip"/></sensor></mujoco>"""
)
single = mujoco.MjData(MODEL)
batch, kept = (mujoco.batch.Batch(MODEL, nsim=2, nthread=1, persistent=persistent) for persistent in (False, True))
qpos = batch.bind("qpos")
for one in (batch, kept):
    one.bind("qpos")[:], one.bind("qvel")[:] = 0.3, 0.0
    one.step()
single.qpos[:] = 0.3
mujoco.mj_step(MODEL, single)
assert (qpos == single.qpos).all()
late, sensed = batch.bind("xpos"), batch.bind("sensordata")
print("one simulation:", single.xpos[1], single.sensordata, " bound after the step:", late[0, 1], sensed[0])
assert single.xpos[1].any() and single.sensordata.any()
assert not late.any() and not sensed.any()
assert (kept.bind("xpos") == single.xpos).all() and (kept.bind("sensordata") == single.sensordata).all()
batch.step()
mujoco.mj_step(MODEL, single)
print("one step later:", late[0, 1], sensed[0])
assert (late == single.xpos).all() and np.array_equal(sensed[0], single.sensordata)
PY
