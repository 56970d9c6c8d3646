#!/usr/bin/env bash
# Guess: an Ant-v5 whose simulation is put back by MuJoCo's full integration state earns what the original earns next.
# Seen with gymnasium 1.4.0 and mujoco 4.0.0: the next positions are equal in every bit, and the next reward is not. Ant measures
# its velocity from `xpos`, which after a step belongs to the simulation step before, and no state of MuJoCo holds it; `mj_forward`
# after the restore computes the newer one. HalfCheetah, which measures from `qpos`, goes on exactly.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "gymnasium[mujoco]==1.4.0" mujoco==4.0.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import mujoco
import numpy as np

assert (gymnasium.__version__, mujoco.__version__) == ("1.4.0", "4.0.0")
KIND = mujoco.mjtState.mjSTATE_INTEGRATION


def rewards_after_a_restore(name):
    """The next three rewards of an environment, and of another that was put where it is."""
    one, other = gymnasium.make(name).unwrapped, gymnasium.make(name).unwrapped
    one.action_space.seed(0)
    one.reset(seed=0)
    other.reset(seed=1)
    for _ in range(10):
        one.step(one.action_space.sample())
    state = np.empty(mujoco.mj_stateSize(one.model, KIND))
    mujoco.mj_getState(one.model, one.data, state, KIND)
    mujoco.mj_setState(other.model, other.data, state, KIND)
    mujoco.mj_forward(other.model, other.data)
    mujoco.mj_setState(other.model, other.data, state, KIND)  # the warm start of the solver, which `mj_forward` changed
    pairs = []
    for _ in range(3):
        action = one.action_space.sample()
        pairs.append((float(one.step(action)[1]), float(other.step(action)[1])))
        assert (one.data.qpos == other.data.qpos).all()
    return pairs


ant, cheetah = rewards_after_a_restore("Ant-v5"), rewards_after_a_restore("HalfCheetah-v5")
print("Ant-v5", ant, "HalfCheetah-v5", cheetah)
assert abs(ant[0][0] - ant[0][1]) > 1e-5
assert ant[1][0] == ant[1][1] and ant[2][0] == ant[2][1]
assert all(ours == theirs for ours, theirs in cheetah)
PY
