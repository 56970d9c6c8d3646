"""One run of SBX, Stable-Baselines3 in JAX: `python -m benchmarks.speed.peer_sbx sac WARMUP_S WINDOW_S`.

Runs in an environment of its own, on one core, without loggers (its default). Prints one line of JSON.
"""

import contextlib
import json
import sys
from typing import Any

from sbx import SAC
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.speed.peer_sb3 import ENDLESS, WindowCallback, WindowOverError
from benchmarks.speed.workloads import WORKLOADS, SACSettings


class JaxWindowCallback(WindowCallback):
    """Reads the number of critic steps from its training state."""

    def _counters(self) -> dict[str, int]:
        state: Any = self.model.policy.qf_state
        return {"env_steps": self.model.num_timesteps, "updates": int(state.step), "iterations": self._iterations}


def measure(name: str, *, warmup_s: float, window_s: float) -> dict[str, float]:
    workload, callback = WORKLOADS[name], JaxWindowCallback(warmup_s, window_s)
    settings = workload.settings
    assert isinstance(settings, SACSettings) and settings.activation == "relu"  # SBX's own default
    model = SAC(
        "MlpPolicy",
        make_vec_env(workload.env, n_envs=settings.num_envs, seed=0),
        policy_kwargs={"net_arch": list(settings.hidden_sizes)},
        learning_rate=settings.learning_rate,
        train_freq=settings.unroll_length,
        gradient_steps=settings.gradient_steps,
        batch_size=settings.minibatch_size,
        buffer_size=settings.capacity,
        learning_starts=settings.initial_steps,
        gamma=settings.gamma,
        tau=settings.tau,
        seed=0,
    )
    with contextlib.suppress(WindowOverError):
        model.learn(total_timesteps=ENDLESS, callback=callback)
    return {**callback.window.result, "threads": workload.threads or 0}  # JAX does not say


if __name__ == "__main__":
    name, warmup_s, window_s = sys.argv[1:]
    print(json.dumps(measure(name, warmup_s=float(warmup_s), window_s=float(window_s))))
