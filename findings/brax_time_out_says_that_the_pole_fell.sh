#!/usr/bin/env bash
# Guess: `info["time_out"]` of Brax's inverted_pendulum is 1 in a step in which the time limit ends an episode, and 0 where the
# pole falls; so says the description of `bootstrap_on_timeout` in Brax's PPO, the one that reads it.
# Seen with brax 0.14.2 and jax 0.10.2: it is the other way round. `time_out` is 1 in the step in which the pole falls, and 0 in
# the step of the limit; `info["truncation"]`, which the wrapper adds, is right in both. Who adds the value of what follows to
# rewards where `time_out` is 1, teaches that falling costs nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check brax==0.14.2 jax==0.10.2 jaxlib==0.10.2
cd "$folder"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
from importlib.metadata import version

import jax
from brax import envs

assert (version("brax"), version("jax")) == ("0.14.2", "0.10.2")


def end_of(length, push):
    """What the last step of an episode says: its number, time_out, truncation."""
    env = envs.create("inverted_pendulum", backend="generalized", episode_length=length, auto_reset=False)
    state, step = jax.jit(env.reset)(jax.random.PRNGKey(0)), jax.jit(env.step)
    for number in range(1, length + 1):
        state = step(state, jax.numpy.full((1,), push))
        if state.done:
            return number, float(state.info["time_out"]), float(state.info["truncation"])


limit, fall = end_of(length=5, push=0.0), end_of(length=1000, push=1.0)
print("limit at step", limit[0], "time_out", limit[1], "truncation", limit[2])
print("fall at step", fall[0], "time_out", fall[1], "truncation", fall[2])
assert limit == (5, 0.0, 1.0)
assert fall[0] < 100 and fall[1:] == (1.0, 0.0)
PY
