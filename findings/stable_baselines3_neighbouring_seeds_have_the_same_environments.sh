#!/usr/bin/env bash
# Guess: runs with the seeds 0 and 1 are independent samples: no environment of one starts as an environment of the other.
# Seen with stable-baselines3 2.9.2 and gymnasium 1.4.0: both seed environment i with seed + i, so eight environments of seed
# 0 and eight of seed 1 have seven seeds in common: the same first states, and the same draws of the environment ever after.
# An interval over the seeds 0 to 4 takes runs for independent whose environments are nearly all the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import stable_baselines3
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

assert (stable_baselines3.__version__, gymnasium.__version__) == ("2.9.2", "1.4.0")
starts = []
for seed in (0, 1):
    agent = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=8), seed=seed)
    starts.append(agent.env.reset())
same = (starts[0][1:] == starts[1][:-1]).all()
print("PPO of Stable-Baselines3, eight environments: seven start as those of the next seed:", same)
assert same
separate = [gymnasium.make_vec("CartPole-v1", 8, vectorization_mode="sync").reset(seed=seed)[0] for seed in (0, 1)]
same = (separate[0][1:] == separate[1][:-1]).all()
print("Gymnasium, eight separate environments:", same)
assert same
PY
