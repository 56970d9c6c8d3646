#!/usr/bin/env bash
# Guess: with `treat_episode_timeout_as_truncation=True`, the default since 1.3, a VizDoom episode that its time limit cuts off
# is truncated and not terminated, so that a learner adds the value of what would have followed.
# Seen with vizdoom 1.3.2: it is both. The option only sets truncated as well; terminated is True with it and without. A learner
# that asks `if terminated`, or `truncated and not terminated` as Stable-Baselines3 does, learns from it what it learnt before.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check vizdoom==1.3.2 gymnasium==1.4.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PY'
from importlib.metadata import version

import gymnasium
import vizdoom.gymnasium_wrapper

assert (version("vizdoom"), gymnasium.__version__) == ("1.3.2", "1.4.0")


def time_out(**kwargs):
    """What the last step of an episode says in which nothing is done: its number, terminated, truncated."""
    env = gymnasium.make("VizdoomBasic-v1", **kwargs)
    env.reset(seed=0)
    limit = env.unwrapped.game.get_episode_timeout()
    for number in range(1, limit + 1):
        _, _, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            break
    env.close()
    assert number == limit
    return number, terminated, truncated


for treated in (True, False):
    print("as truncation:", treated, "step, terminated, truncated:", time_out(treat_episode_timeout_as_truncation=treated))
assert time_out() == time_out(treat_episode_timeout_as_truncation=True) == (300, True, True)
assert time_out(treat_episode_timeout_as_truncation=False) == (300, True, False)
PY
