#!/usr/bin/env bash
# Guess: after `learn(1000)` with a learning rate that falls to 0, `learn(1000, reset_num_timesteps=False)` goes on at 0, or
# with the same schedule stretched over 2,000 steps.
# Seen with stable-baselines3 2.9.2: the schedule is asked for what is left of the new total, so the rate jumps from 0 up to
# half of its first value and falls once more. Who trains in parts, or goes on from a saved model, trains with a sawtooth.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PY'
import stable_baselines3
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

assert stable_baselines3.__version__ == "2.9.2"


class Rates(BaseCallback):
    """What each update was made with, seen when the next rollout begins, and at the end."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def _rate(self):
        self.seen.append(round(self.model.policy.optimizer.param_groups[0]["lr"], 3))

    def _on_rollout_start(self):
        self._rate()

    def _on_step(self):
        return True

    def _on_training_end(self):
        self._rate()


rates = []
agent = PPO("MlpPolicy", "CartPole-v1", n_steps=100, batch_size=100, n_epochs=1, learning_rate=lambda left: left, seed=0)
for first in (True, False):
    seen = Rates()
    agent.learn(1000, callback=seen, reset_num_timesteps=first)
    rates.append(seen.seen[1:])
print("ten updates of the first 1,000 steps:", rates[0])
print("ten updates of the next 1,000 steps: ", rates[1])
assert rates[0] == [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]
assert rates[1] == [0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.0]
PY
