#!/usr/bin/env bash
# Guess: two environments that are reset with the same seed show the same game, 0 as well as any other seed; Gymnasium's own
# do, and `reset(seed=0)` is what most examples write.
# Seen with tetris-gymnasium 0.3.1: seed 1 gives the same pieces every time; seed 0 is taken for none, so that the pieces are
# drawn from the operating system's entropy, in the first reset and in every one after. Nothing is said: two runs "with seed 0"
# differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gymnasium==1.4.0 numpy==2.4.6 \
  opencv-python-headless==5.0.0.93
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps tetris-gymnasium==0.3.1  # JAX is for another class
"$folder/venv/bin/python" -W ignore - <<'PY'
from importlib.metadata import version

import gymnasium
from tetris_gymnasium.envs import tetris

assert (version("tetris-gymnasium"), gymnasium.__version__) == ("0.3.1", "1.4.0")


def pieces(seed):
    """The first 14 pieces of a game in a new environment."""
    env = tetris.Tetris()
    env.reset(seed=seed)
    return tuple(int(env.queue.get_next_tetromino()) for _ in range(14))


games = {seed: {pieces(seed) for _ in range(5)} for seed in (0, 1, 2)}
print("different games of 5:", {seed: len(found) for seed, found in games.items()})
assert len(games[1]) == len(games[2]) == 1 and games[1] != games[2]
assert len(games[0]) == 5
PY
