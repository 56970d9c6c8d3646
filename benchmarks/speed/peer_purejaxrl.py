"""One run of PureJaxRL in its own environment: `python peer_purejaxrl.py CHECKOUT NUM_ENVS NUM_STEPS WINDOW_S`.

`train` of its `ppo.py` is compiled ahead and called twice; the second call is timed. Prints one line of JSON. With
`SEEDS STEPS` in the place of `WINDOW_S`, so many seeds are trained by `vmap`, once, and nothing is timed here.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

checkout, num_envs, num_steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, f"{checkout}/purejaxrl")
for name in ("brax", "brax.envs.wrappers.training", "navix"):  # of its wrappers for other environments
    sys.modules[name] = MagicMock()

import jax  # noqa: E402
import ppo  # noqa: E402

GUESS = 120_000  # env steps a second


def trained(updates: int) -> Callable[[Any], Any]:
    """`train` of a key, for so many updates."""
    settings = {"LR": 3e-4, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.0, "VF_COEF": 0.5}
    settings |= {"MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh", "ENV_NAME": "CartPole-v1", "ANNEAL_LR": False}
    settings |= {"UPDATE_EPOCHS": 4, "NUM_MINIBATCHES": 4, "NUM_ENVS": num_envs, "NUM_STEPS": num_steps}
    settings |= {"TOTAL_TIMESTEPS": updates * num_envs * num_steps, "DEBUG": False}
    return ppo.make_train(settings)


def population(seeds: int, steps: int) -> None:
    """Trains them, each for so many env steps or a few more."""
    train = jax.jit(jax.vmap(trained(-(-steps // (num_envs * num_steps)))))
    jax.block_until_ready(train(jax.random.split(jax.random.PRNGKey(0), seeds)))
    print(json.dumps({"version": jax.__version__}))


def main() -> None:
    if len(sys.argv) > 5:
        population(int(sys.argv[4]), int(sys.argv[5]))
        return
    updates = max(1, round(GUESS * float(sys.argv[4]) / (num_envs * num_steps)))
    began = time.perf_counter()
    train = jax.jit(trained(updates)).lower(jax.random.PRNGKey(0)).compile()
    compiled_s = time.perf_counter() - began
    for seed in range(2):
        began = time.perf_counter()
        jax.block_until_ready(train(jax.random.PRNGKey(seed)))
        seconds = time.perf_counter() - began
    speed = updates * num_envs * num_steps / seconds
    print(json.dumps({"env_steps_per_s": speed, "first_s": compiled_s, "version": jax.__version__}))


if __name__ == "__main__":
    main()
