"""One run of PPO made of TorchRL's parts: `python -m benchmarks.speed.peer_torchrl ppo WARMUP_S WINDOW_S`.

Parts and order are those of its own PPO example: a collector, `GAE`, a buffer that is drawn without replacement,
`ClipPPOLoss`. Runs in an environment of its own. Prints one line of JSON.
"""

import functools
import json
import sys
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs import DoubleToFloat, GymEnv, SerialEnv, TransformedEnv
from torchrl.modules import MLP, NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from benchmarks.speed.window import Window
from benchmarks.speed.workloads import WORKLOADS, PPOSettings, Workload

ENDLESS = 10**9


def environments(workload: Workload) -> TransformedEnv:
    make = functools.partial(GymEnv, workload.env, categorical_action_encoding=True)
    envs = SerialEnv(workload.settings.num_envs, make)
    envs.set_seed(0)
    double = envs.observation_spec["observation"].dtype == torch.float64
    return TransformedEnv(envs, DoubleToFloat(in_keys=["observation"]) if double else None)


def networks(env: TransformedEnv, settings: PPOSettings) -> tuple[ProbabilisticActor, ValueOperator]:
    shape = {"num_cells": list(settings.hidden_sizes), "activation_class": nn.Tanh}
    size = env.observation_spec["observation"].shape[-1]
    spec = env.action_spec_unbatched
    discrete = not spec.dtype.is_floating_point
    outputs = spec.space.n if discrete else 2 * spec.shape[-1]
    layers: Any = MLP(in_features=size, out_features=outputs, **shape)
    keys, kind = ["logits"], Categorical
    if not discrete:
        layers, keys, kind = nn.Sequential(layers, NormalParamExtractor()), ["loc", "scale"], TanhNormal
    actor = ProbabilisticActor(
        TensorDictModule(layers, in_keys=["observation"], out_keys=keys),
        spec=spec,
        in_keys=keys,
        distribution_class=kind,
        return_log_prob=True,
    )
    return actor, ValueOperator(MLP(in_features=size, out_features=1, **shape), in_keys=["observation"])


def measure(name: str, *, warmup_s: float, window_s: float) -> dict[str, float]:
    torch.manual_seed(0)
    workload = WORKLOADS[name]
    settings, rows = workload.settings, workload.rows_per_iteration
    assert isinstance(settings, PPOSettings)
    env = environments(workload)
    actor, critic = networks(env, settings)
    advantages = GAE(gamma=settings.gamma, lmbda=settings.gae_lambda, value_network=critic)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=settings.clip,
        entropy_bonus=settings.entropy_cost > 0,
        critic_coeff=settings.value_cost,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=settings.learning_rate, eps=1e-5, fused=True)
    storage, sampler = LazyTensorStorage(rows), SamplerWithoutReplacement()
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=settings.minibatch_size)
    collector = Collector(env, actor, frames_per_batch=rows, total_frames=ENDLESS)
    counters = {"env_steps": 0, "updates": 0, "iterations": 0}
    window = Window(lambda: counters, warmup_s, window_s)
    for unroll in collector:
        for _ in range(settings.epochs):
            with torch.no_grad():
                rows_of = advantages(unroll).reshape(-1)
            buffer.extend(rows_of)
            for minibatch in buffer:
                terms = loss(minibatch)
                (terms["loss_objective"] + terms["loss_critic"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), settings.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
                counters["updates"] += 1
        counters["env_steps"] += rows
        counters["iterations"] += 1
        if window.tick():
            break
    collector.shutdown()
    return {**window.result, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    name, warmup_s, window_s = sys.argv[1:]
    print(json.dumps(measure(name, warmup_s=float(warmup_s), window_s=float(window_s))))
