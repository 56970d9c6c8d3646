#!/usr/bin/env bash
# Guess: with `terminal_on_life_loss`, an episode begins where the last one lost its life, so that an agent meets the
# later lives of a game too, as in the wrapper of the DQN papers that the option is named after.
# Seen with gymnasium 1.4.0 and ale-py 0.12.1: `AtariPreprocessing.reset` always begins a new game. Each episode of Breakout
# starts with five lives and ends with four, and no state with fewer is ever seen.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gymnasium==1.4.0 ale-py==0.12.1 opencv-python-headless==4.13.0.90 numpy==2.4.0
"$folder/venv/bin/python" -W ignore - <<'PY'
import ale_py
import gymnasium
from gymnasium.wrappers import AtariPreprocessing

assert (gymnasium.__version__, ale_py.__version__) == ("1.4.0", "0.12.1")
gymnasium.register_envs(ale_py)
env = AtariPreprocessing(gymnasium.make("BreakoutNoFrameskip-v4"), terminal_on_life_loss=True)
env.action_space.seed(0)
_, info = env.reset(seed=0)
lives = []
while len(lives) < 20:
    began = info["lives"]
    ended = False
    while not ended:
        _, _, ended, _, info = env.step(env.action_space.sample())
    left = info["lives"]
    lives.append((began, left))
    _, info = env.reset()
print("lives at the beginning and at the end of 20 episodes:", sorted(set(lives)))
assert set(lives) == {(5, 4)}
PY
