"""PPO of RLlib on environments that sleep: `python -m benchmarks.speed.peer_rllib WORKERS WINDOW_S`.

Runs in the peer's own virtual environment, on RLlib's new API stack. Answers every line of its standard input with one
of JSON, after a window of so many seconds.
"""

import json
import logging
import sys
import time
from typing import Any

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.speed.sleepy import ENVS_EACH, MINIBATCHES, Sleepy
from benchmarks.speed.workloads import PPOSettings


def algorithm(workers: int) -> Any:
    settings = PPOSettings()
    rows = settings.unroll_length * ENVS_EACH * workers
    network = DefaultModelConfig(
        fcnet_hiddens=list(settings.hidden_sizes), fcnet_activation=settings.activation, vf_share_layers=False
    )
    return (
        PPOConfig()
        .environment(Sleepy)
        .env_runners(
            num_env_runners=workers,
            num_envs_per_env_runner=ENVS_EACH,
            rollout_fragment_length=settings.unroll_length,
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=rows,
            minibatch_size=rows // MINIBATCHES,
            num_epochs=settings.epochs,
            lr=settings.learning_rate,
            gamma=settings.gamma,
            lambda_=settings.gae_lambda,
            clip_param=settings.clip,
            vf_loss_coeff=settings.value_cost,
            vf_clip_param=float("inf"),
            entropy_coeff=settings.entropy_cost,
            grad_clip=settings.max_grad_norm,
            grad_clip_by="global_norm",
            use_kl_loss=False,
        )
        .rl_module(model_config=network)
        .reporting(min_sample_timesteps_per_iteration=0, min_time_s_per_iteration=0)
        .build_algo()
    )


def steps_of(result: dict[str, Any]) -> int:
    return int(result["env_runners"]["num_env_steps_sampled_lifetime"])


def main() -> None:
    workers, window_s = int(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    ray.init(num_cpus=workers + 2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    trained = algorithm(workers)
    result = [trained.train() for _ in range(2)][-1]  # workers start, caches warm up
    print(json.dumps({"ready": ray.__version__}), flush=True)
    for _ in sys.stdin:
        began, before = time.perf_counter(), steps_of(result)
        while time.perf_counter() - began < window_s:
            result = trained.train()
        seconds = time.perf_counter() - began
        print(json.dumps({"env_steps_per_s": (steps_of(result) - before) / seconds}), flush=True)
    trained.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
