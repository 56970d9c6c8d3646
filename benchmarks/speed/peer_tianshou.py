"""One run of Tianshou's PPO: `python -m benchmarks.speed.peer_tianshou ppo WARMUP_S WINDOW_S`.

Its collector and its algorithm in a loop, as its trainer has them, without logger and tests. Runs in an environment of
its own. Prints one line of JSON.
"""

import json
import sys
import warnings
from typing import Any

import gymnasium
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from benchmarks.speed.window import Window
from benchmarks.speed.workloads import WORKLOADS, PPOSettings, Workload


def networks(env: gymnasium.Env[Any, Any], settings: PPOSettings) -> tuple[Any, Any, Any]:
    """Actor, critic, and what makes a distribution of the actor's outputs."""
    shape = {"state_shape": env.observation_space.shape, "hidden_sizes": settings.hidden_sizes, "activation": nn.Tanh}
    first, second, size = Net(**shape), Net(**shape), env.action_space.shape
    if isinstance(env.action_space, gymnasium.spaces.Discrete):
        actor = DiscreteActor(preprocess_net=first, action_shape=int(env.action_space.n), softmax_output=False)
        return actor, DiscreteCritic(preprocess_net=second), lambda logits: Categorical(logits=logits)
    actor = ContinuousActorProbabilistic(preprocess_net=first, action_shape=size, unbounded=True)
    return actor, ContinuousCritic(preprocess_net=second), lambda loc_scale: Independent(Normal(*loc_scale), 1)


def algorithm(workload: Workload) -> PPO:
    settings, env = workload.settings, gymnasium.make(workload.env)
    assert isinstance(settings, PPOSettings)
    actor, critic, distribution = networks(env, settings)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=distribution,
        action_space=env.action_space,
        action_scaling=False,
        action_bound_method="clip" if isinstance(env.action_space, gymnasium.spaces.Box) else None,
    )
    return PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=settings.learning_rate, eps=1e-5),
        eps_clip=settings.clip,
        vf_coef=settings.value_cost,
        ent_coef=settings.entropy_cost,
        max_grad_norm=settings.max_grad_norm,
        gae_lambda=settings.gae_lambda,
        gamma=settings.gamma,
    )


def measure(name: str, *, warmup_s: float, window_s: float) -> dict[str, float]:
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    workload = WORKLOADS[name]
    settings, rows = workload.settings, workload.rows_per_iteration
    assert isinstance(settings, PPOSettings)
    ppo = algorithm(workload)
    envs = DummyVectorEnv([lambda: gymnasium.make(workload.env) for _ in range(settings.num_envs)])
    collector = Collector(ppo, envs, VectorReplayBuffer(2 * rows, settings.num_envs))
    collector.reset()
    counters = {"env_steps": 0, "updates": 0, "iterations": 0}
    window = Window(lambda: counters, warmup_s, window_s)
    while not window.tick():
        with policy_within_training_step(ppo.policy):
            counters["env_steps"] += collector.collect(n_step=rows).n_collected_steps
            with torch_train_mode(ppo):
                ppo.update(collector.buffer, batch_size=settings.minibatch_size, repeat=settings.epochs)
        collector.reset_buffer(keep_statistics=True)
        steps = [int(state["step"]) for state in ppo.optim._optim.state.values()]
        counters |= {"updates": max(steps), "iterations": counters["iterations"] + 1}
    return {**window.result, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    name, warmup_s, window_s = sys.argv[1:]
    print(json.dumps(measure(name, warmup_s=float(warmup_s), window_s=float(window_s))))
