"""One run of Stable-Baselines3: `python -m benchmarks.speed.peer_sb3 ppo WARMUP_S WINDOW_S`.

Runs in the peer's own virtual environment, without loggers (its default). QR-DQN and CrossQ are those of sb3-contrib.
Prints one line of JSON.
"""

import contextlib
import json
import sys
from typing import Any

import numpy as np
import torch
from sb3_contrib import QRDQN, CrossQ
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecFrameStack

from benchmarks.speed.window import Window
from benchmarks.speed.workloads import (
    WORKLOADS,
    CrossQSettings,
    DQNSettings,
    OffPolicySettings,
    PongPPOSettings,
    PPOSettings,
    QRDQNSettings,
    SACSettings,
    TD3Settings,
    Workload,
)

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
        owner = self.model.critic if hasattr(self.model, "critic") else self.model.policy
        states = owner.optimizer.state.values()
        steps = max((int(state["step"]) for state in states), default=0)
        return {"env_steps": self.model.num_timesteps, "updates": steps, "iterations": self._iterations}


def model(workload: Workload, seed: int = 0) -> Any:
    settings = workload.settings
    if isinstance(settings, PongPPOSettings):
        import ale_py  # noqa: F401 - registers

        kwargs = {"frameskip": 1, "repeat_action_probability": 0.25}  # as ours; the wrapper repeats actions
        env: Any = make_atari_env(workload.env, n_envs=settings.num_envs, seed=seed, env_kwargs=kwargs)
        return ppo("CnnPolicy", settings, VecFrameStack(env, 4), {"net_arch": []}, seed)
    env = make_vec_env(workload.env, n_envs=settings.num_envs, seed=seed)
    network = {"net_arch": list(settings.hidden_sizes), "activation_fn": ACTIVATIONS[settings.activation]}
    if isinstance(settings, OffPolicySettings):
        return off_policy(settings, env, network, seed)
    if isinstance(settings, PPOSettings):
        return ppo("MlpPolicy", settings, env, network, seed)
    return dqn(settings, env, network, seed)


def ppo(policy: str, settings: PPOSettings, env: Any, network: dict[str, Any], seed: int) -> PPO:
    return PPO(
        policy,
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
        seed=seed,
    )


def dqn(settings: DQNSettings, env: Any, network: dict[str, Any], seed: int) -> DQN | QRDQN:
    shared = {
        "learning_rate": settings.learning_rate,
        "train_freq": settings.unroll_length,
        "gradient_steps": settings.gradient_steps,
        "batch_size": settings.minibatch_size,
        "buffer_size": settings.capacity,
        "learning_starts": settings.initial_steps,
        "gamma": settings.gamma,
        "target_update_interval": settings.target_period,
        "exploration_initial_eps": settings.epsilon,
        "exploration_final_eps": settings.epsilon,
        "max_grad_norm": settings.max_grad_norm,
        "device": "cpu",
        "seed": seed,
    }
    if isinstance(settings, QRDQNSettings):
        return QRDQN("MlpPolicy", env, policy_kwargs={**network, "n_quantiles": settings.num_quantiles}, **shared)
    return DQN("MlpPolicy", env, policy_kwargs=network, **shared)


def off_policy(settings: OffPolicySettings, env: Any, network: dict[str, Any], seed: int) -> SAC | TD3 | CrossQ:
    shared: dict[str, Any] = {
        "policy_kwargs": network,
        "learning_rate": settings.learning_rate,
        "train_freq": settings.unroll_length,
        "gradient_steps": settings.gradient_steps,
        "batch_size": settings.minibatch_size,
        "buffer_size": settings.capacity,
        "learning_starts": settings.initial_steps,
        "gamma": settings.gamma,
        "device": "cpu",
        "seed": seed,
    }
    if isinstance(settings, CrossQSettings):
        return CrossQ("MlpPolicy", env, **shared, policy_delay=settings.policy_period)
    assert isinstance(settings, SACSettings)
    shared["tau"] = settings.tau
    if not isinstance(settings, TD3Settings):
        return SAC("MlpPolicy", env, **shared)
    size = env.action_space.shape[0]
    return TD3(
        "MlpPolicy",
        env,
        **shared,
        policy_delay=settings.policy_period,
        action_noise=NormalActionNoise(np.zeros(size), np.full(size, settings.exploration_std)),
        target_policy_noise=settings.target_noise_std,
        target_noise_clip=settings.target_noise_clip,
    )


def measure(name: str, *, warmup_s: float, window_s: float) -> dict[str, float]:
    callback = WindowCallback(warmup_s, window_s)
    with contextlib.suppress(WindowOverError):
        model(WORKLOADS[name]).learn(total_timesteps=ENDLESS, callback=callback)
    return {**callback.window.result, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    name, warmup_s, window_s = sys.argv[1:]
    print(json.dumps(measure(name, warmup_s=float(warmup_s), window_s=float(window_s))))
