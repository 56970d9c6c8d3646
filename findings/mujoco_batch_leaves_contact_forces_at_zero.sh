#!/usr/bin/env bash
# Guess: a field of MjData that `mujoco.batch.Batch.bind` gives without an error is the field that a loop over `mj_step` has.
# Seen with mujoco 4.0.0 and gymnasium 1.4.0: `bind("cfrc_ext")` of Gymnasium's Ant stays zero while the ant stands on its feet,
# because no sensor asks for it; Gymnasium calls `mj_rnePostConstraint` after each step. `qpos` is equal in every bit. A
# persistent batch with `get_data` and that call for each simulation has Gymnasium's forces.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "gymnasium[mujoco]==1.4.0" mujoco==4.0.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import mujoco
import mujoco.batch
import numpy as np

assert (gymnasium.__version__, mujoco.__version__) == ("1.4.0", "4.0.0")
env = gymnasium.make("Ant-v5").unwrapped
env.action_space.seed(0)
env.reset(seed=0)
batch = mujoco.batch.Batch(env.model, nsim=1, nthread=1, persistent=True)
bound, qpos, qvel, ctrl = (batch.bind(name) for name in ("cfrc_ext", "qpos", "qvel", "ctrl"))
qpos[0], qvel[0] = env.data.qpos, env.data.qvel
batch.forward()
scratch = mujoco.MjData(env.model)
touching = 0
for _ in range(60):
    action = env.action_space.sample()
    env.step(action)
    ctrl[0] = action
    batch.step(nstep=env.frame_skip)
    assert (qpos[0] == env.data.qpos).all() and (qvel[0] == env.data.qvel).all()
    assert not bound.any()
    batch.get_data(0, scratch)
    mujoco.mj_rnePostConstraint(env.model, scratch)
    assert (scratch.cfrc_ext == env.data.cfrc_ext).all()
    touching += bool(env.data.cfrc_ext.any())
print("steps with contact forces:", touching, "of 60; the bound field has shown:", np.abs(bound).max())
assert touching > 5
PY
