#!/usr/bin/env bash
# Guess: `gymnasium.make_vec("ALE/MsPacman-v5", 1)` is `gymnasium.make("ALE/MsPacman-v5")` in a vector of one.
# Seen with ale-py 0.12.1 and gymnasium 1.4.0: without a further argument it is another task. Rewards are clipped to their
# sign, as whole numbers (a dot is 1, and 10 in `make`), and observations are four grey pictures of 84 x 84 instead of one of
# 210 x 160 in colours.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ale-py==0.12.1 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import ale_py
import gymnasium
import numpy as np

assert (ale_py.__version__.partition("+")[0], gymnasium.__version__) == ("0.12.1", "1.4.0")
gymnasium.register_envs(ale_py)
one, many = gymnasium.make("ALE/MsPacman-v5"), gymnasium.make_vec("ALE/MsPacman-v5", 1)
one.reset(seed=0)
many.reset(seed=0)
generator, alone, vector = np.random.default_rng(0), set(), set()
for _ in range(400):
    action = int(generator.integers(9))
    _, reward, terminated, truncated, _ = one.step(action)
    alone.add(float(reward))
    if terminated or truncated:
        one.reset()
    vector.add(float(many.step(np.array([action]))[1][0]))
print("make    ", one.observation_space.shape, "rewards", sorted(alone))
print("make_vec", many.single_observation_space.shape, "rewards", sorted(vector))
assert one.observation_space.shape == (210, 160, 3) and many.single_observation_space.shape == (4, 84, 84)
assert max(alone) >= 10 and max(vector) == 1
PY
