#!/usr/bin/env bash
# Guess: the random actions of an agent that explores, epsilon-greedily or for its first `random_timesteps`, differ.
# Seen with skrl 2.1.1 and gymnasium 1.4.0: `sample_space`, from which `Model.random_act` draws, makes a batched space each
# time, and Gymnasium gives that a copy of the space's generator, which itself never moves on. So every call of a process
# returns the same action, with a seed and without one: a DQN on CartPole explores with one of the two pushes only.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check skrl==2.1.1 gymnasium==1.4.0 torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import skrl
import torch
from skrl.models.torch import DeterministicMixin, Model


class QNetwork(DeterministicMixin, Model):
    def __init__(self, observations, actions):
        Model.__init__(self, observation_space=observations, action_space=actions, device="cpu")
        DeterministicMixin.__init__(self)

    def compute(self, inputs, role=""):
        return torch.zeros(1, 100), {}


assert (skrl.__version__, gymnasium.__version__) == ("2.1.1", "1.4.0")
for seed in (None, 3):
    actions = gymnasium.spaces.Discrete(100)
    if seed is not None:
        actions.seed(seed)
    network = QNetwork(gymnasium.spaces.Box(-1.0, 1.0, (4,)), actions)
    drawn = {int(network.random_act({"observations": torch.zeros(1, 4)})[0]) for _ in range(200)}
    gymnasium_draws = {int(actions.sample()) for _ in range(200)}
    print("seed", seed, "different actions of 200: skrl", len(drawn), "gymnasium", len(gymnasium_draws))
    assert len(drawn) == 1
    assert len(gymnasium_draws) > 50
PY
