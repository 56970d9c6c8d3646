"""One run of Stable-Baselines3 in a fresh process: `python -m benchmarks.speed.peer_sb3 ppo WARMUP_S WINDOW_S`.

Runs in the peer's own virtual environment, without loggers (its default). Prints one line of JSON.
"""

import contextlib
import json
import sys
from typing import Any

import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.speed.window import Window
from benchmarks.speed.workloads import ENV, THREADS, WORKLOADS, DQNSettings, PPOSettings

ENDLESS = 10**9
ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}


class WindowOverError(Exception):
    """Ends `learn` between two iterations."""


class WindowCallback(BaseCallback):
    """Ticks a window before every roll-out."""

    def __init__(self, warmup_s: float, window_s: float) -> None:
        super().__init__()
        self.window = Window(self._counters, warmup_s, window_s)
        self._iterations = -1

    def _on_rollout_start(self) -> None:
        self._iterations += 1
        if self.window.tick():
            raise WindowOverError

    def _on_step(self) -> bool:
        return True

    def _counters(self) -> dict[str, int]:
        states = self.model.policy.optimizer.state.values()
        steps = max((int(state["step"]) for state in states), default=0)
        return {"env_steps": self.model.num_timesteps, "updates": steps, "iterations": self._iterations}


def model(settings: PPOSettings | DQNSettings) -> Any:
    env = make_vec_env(ENV, n_envs=settings.num_envs, seed=0)
    network = {"net_arch": list(settings.hidden_sizes), "activation_fn": ACTIVATIONS[settings.activation]}
    return ppo(settings, env, network) if isinstance(settings, PPOSettings) else dqn(settings, env, network)


def ppo(settings: PPOSettings, env: Any, network: dict[str, Any]) -> PPO:
    return PPO(
        "MlpPolicy",
        env,
        policy_kwargs=network,
        learning_rate=settings.learning_rate,
        n_steps=settings.unroll_length,
        batch_size=settings.minibatch_size,
        n_epochs=settings.epochs,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip_range=settings.clip,
        vf_coef=settings.value_cost,
        ent_coef=settings.entropy_cost,
        max_grad_norm=settings.max_grad_norm,
        device="cpu",
        seed=0,
    )


def dqn(settings: DQNSettings, env: Any, network: dict[str, Any]) -> DQN:
    return DQN(
        "MlpPolicy",
        env,
        policy_kwargs=network,
        learning_rate=settings.learning_rate,
        train_freq=settings.unroll_length,
        gradient_steps=settings.gradient_steps,
        batch_size=settings.minibatch_size,
        buffer_size=settings.capacity,
        learning_starts=settings.initial_steps,
        gamma=settings.gamma,
        target_update_interval=settings.target_period,
        exploration_initial_eps=settings.epsilon,
        exploration_final_eps=settings.epsilon,
        max_grad_norm=settings.max_grad_norm,
        device="cpu",
        seed=0,
    )


def measure(name: str, *, warmup_s: float, window_s: float) -> dict[str, float]:
    torch.set_num_threads(THREADS)
    callback = WindowCallback(warmup_s, window_s)
    with contextlib.suppress(WindowOverError):
        model(WORKLOADS[name].settings).learn(total_timesteps=ENDLESS, callback=callback)
    return {**callback.window.result, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    name, warmup_s, window_s = sys.argv[1:]
    print(json.dumps(measure(name, warmup_s=float(warmup_s), window_s=float(window_s))))
