#!/usr/bin/env bash
# Guess: where an episode ends by its time limit, the value of the observation that it ended with is added to the reward.
# Seen with rsl-rl-lib 5.5.1: PPO adds gamma times the value of the observation *before* the last step, the one that it
# acted upon; the observation that the episode ended with is not asked for. A critic that says 1 before the step and 50
# after it adds 0.9 at gamma 0.9, where 45 are right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check rsl-rl-lib==5.5.1 torch==2.13.0 tensordict==0.14.3 numpy==2.4.0
"$folder/venv/bin/python" -W ignore - <<'PY'
from importlib.metadata import version

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

assert version("rsl-rl-lib") == "5.5.1"


def seen(value):
    return TensorDict({"policy": torch.full((1, 1), value)}, batch_size=[1])


groups = {"actor": ["policy"], "critic": ["policy"]}
distribution = {"class_name": "GaussianDistribution", "init_std": 1.0}
actor = MLPModel(seen(0.0), groups, "actor", 1, hidden_dims=(4,), distribution_cfg=distribution)
critic = MLPModel(seen(0.0), groups, "critic", 1, hidden_dims=(1,), activation="relu")
with torch.no_grad():  # the value of a positive observation is the observation
    for parameter in critic.parameters():
        parameter.fill_(1.0 if parameter.ndim == 2 else 0.0)
assert critic(seen(50.0)).item() == 50.0
ppo = PPO(actor, critic, RolloutStorage("rl", 1, 1, seen(0.0), [1]), gamma=0.9)
ppo.act(seen(1.0))
ended = {"time_outs": torch.ones(1)}
ppo.process_env_step(seen(50.0), torch.zeros(1), torch.ones(1, dtype=torch.bool), ended)
reward = ppo.storage.rewards.item()
print("reward 0, value 1 before the step and 50 after it; stored as the reward:", round(reward, 3))
assert abs(reward - 0.9) < 1e-6
PY
