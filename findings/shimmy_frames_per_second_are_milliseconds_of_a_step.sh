#!/usr/bin/env bash
# Guess: `metadata["render_fps"]` of a task of dm_control in Shimmy is how many steps it makes in a second, so that a film by
# `gymnasium.wrappers.RecordVideo` runs as fast as the simulation; Gymnasium's own tasks of MuJoCo refuse to be made otherwise.
# Seen with Shimmy 2.0.0, dm-control 1.0.50 and gymnasium 1.4.0: it is how many milliseconds a step takes. cartpole, of 100
# steps a second, says 10, and its films take ten times as long; walker, of 40, says 25. And it is written into the dictionary
# of the class: whichever task is made last, decides it for all of a process.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check shimmy==2.0.0 dm-control==1.0.50 mujoco==3.17.0 \
  'gymnasium[mujoco]==1.4.0' numpy==2.4.6
cd "$folder"
MUJOCO_GL=disabled "$folder/venv/bin/python" -W ignore - <<'PY'
from importlib.metadata import version

import gymnasium
import shimmy

assert (version("shimmy"), version("dm-control"), gymnasium.__version__) == ("2.0.0", "1.0.50", "1.4.0")
gymnasium.register_envs(shimmy)
cartpole = gymnasium.make("dm_control/cartpole-swingup-v0")
alone = cartpole.metadata["render_fps"]
walker = gymnasium.make("dm_control/walker-walk-v0")
steps = {"cartpole": 1 / cartpole.unwrapped.dt, "walker": 1 / walker.unwrapped.dt}
after = cartpole.metadata["render_fps"]
pusher = gymnasium.make("Pusher-v5")
print("steps a second", steps, "Pusher-v5", 1 / pusher.unwrapped.dt)
print("render_fps: cartpole", alone, "walker", walker.metadata["render_fps"], "Pusher-v5", pusher.metadata["render_fps"])
print("cartpole's after walker was made", after)
assert round(steps["cartpole"]) == 100 and alone == 10
assert round(steps["walker"]) == 40 and walker.metadata["render_fps"] == 25 == after
assert pusher.metadata["render_fps"] == round(1 / pusher.unwrapped.dt)
PY
