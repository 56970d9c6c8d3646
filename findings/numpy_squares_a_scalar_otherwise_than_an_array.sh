#!/usr/bin/env bash
# Guess: `x ** 2` of one float64 and of an array of float64 are the same numbers, so that a task of Gymnasium that is computed
# for all environments at once has the rewards of the task that is computed one by one.
# Seen with numpy 2.4.6 and gymnasium 1.4.0 (glibc): an array is squared by a product, a scalar by C's `pow`, which rounds
# otherwise now and then. Of the 2,000 distance penalties of InvertedDoublePendulum-v5, some differ in their last bit from the
# same formula of arrays; `np.float_power`, which calls `pow`, gives all of them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "gymnasium[mujoco]==1.4.0" mujoco==4.0.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import numpy as np

assert (gymnasium.__version__, np.__version__) == ("1.4.0", "2.4.6")
env = gymnasium.make("InvertedDoublePendulum-v5")
env.action_space.seed(0)
env.reset(seed=0)
places, penalties = [], []
while len(places) < 2_000:
    *_, terminated, truncated, info = env.step(env.action_space.sample())
    places.append(env.unwrapped.data.site_xpos[0].copy())
    penalties.append(-info["distance_penalty"])
    if terminated or truncated:
        env.reset()
x, _, y = np.array(places).T
penalties = np.array(penalties)
by_product = 0.01 * x**2 + (y - 2) ** 2
by_power = 0.01 * np.float_power(x, 2) + np.float_power(y - 2, 2)
differing = int((by_product != penalties).sum())
print("differ from arrays:", differing, "from np.float_power:", int((by_power != penalties).sum()), "of", len(penalties))
assert 0 < differing < 200
assert np.abs(by_product - penalties).max() < 1e-14
assert (by_power == penalties).all()
PY
