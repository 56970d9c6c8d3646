"""PPO in one file, on torch, numpy and Gymnasium alone: the second reading of `palaestra.PPO`.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equations (7), (9) and (11), for discrete actions. The same
seeds give the same parameters as the library, bit for bit; `tests/examples/test_single_file.py` holds it to that.

    python ppo.py --env CartPole-v1 --seed 1 --total_env_steps 100000
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

FIRST, MID, LAST = 0, 1, 2  # an episode's rows: its first observation, those between, its last one


@dataclass(frozen=True)
class Config:
    """Settings, with the library's defaults."""

    env: str = "CartPole-v1"
    seed: int = 0
    num_envs: int = 8  # B, environments side by side
    total_env_steps: int = 100_000
    unroll_length: int = 128  # T, time steps collected from every environment before each update
    num_epochs: int = 4  # how often an update goes through its rows
    mini_batch_size: int = 256
    learning_rate: float = 3e-4
    adam_epsilon: float = 1e-5
    max_grad_norm: float = 0.5
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_cost: float = 0.5
    hidden_sizes: tuple[int, ...] = (64, 64)


# -- environments, and a seed of its own for everything that draws random numbers


def derived_seed(seed: int, consumer: str, index: int = 0) -> int:
    """The seed of one consumer; it does not depend on which others there are."""
    number = ["initialisation", "acting", "minibatches", "noise", "evaluation", "environments"].index(consumer)
    child = np.random.SeedSequence(seed, spawn_key=(number, index))
    return int(child.generate_state(1, np.uint64)[0]) >> 1


def generator(seed: int, consumer: str) -> torch.Generator:
    return torch.Generator().manual_seed(derived_seed(seed, consumer))


def episode_seed(env_seed: int, episode: int) -> int:
    """One round of SplitMix64, so that any episode can be played again alone."""
    mask = (1 << 64) - 1
    z = (env_seed + (episode + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 33


class Environments:
    """B environments. The step after the last row of an episode starts the next one; its action is not executed."""

    def __init__(self, name: str, num_envs: int, seed: int) -> None:
        self.envs = [gym.wrappers.RecordEpisodeStatistics(gym.make(name)) for _ in range(num_envs)]
        self.seeds = [derived_seed(seed, "environments", index) for index in range(num_envs)]
        self.episodes, self.over = [0] * num_envs, [True] * num_envs
        self.returns = list[float]()  # of the episodes that have ended

    def step(self, actions: np.ndarray | None = None) -> tuple[Tensor, ...]:
        """Observation [B, ...], reward [B], discount [B] (0 where the task ended), and step type [B]."""
        rows = [self._step(index, None if actions is None else actions[index]) for index in range(len(self.envs))]
        observation, reward, discount, step_type = map(np.array, zip(*rows, strict=True))
        columns = observation, reward.astype(np.float32), discount.astype(np.float32), step_type
        return tuple(map(torch.from_numpy, columns))

    def _step(self, index: int, action: np.ndarray | None) -> tuple[np.ndarray, float, float, int]:
        if self.over[index]:
            seed, self.over[index] = episode_seed(self.seeds[index], self.episodes[index]), False
            self.episodes[index] += 1
            return self.envs[index].reset(seed=seed)[0], 0.0, 1.0, FIRST
        observation, reward, terminated, truncated, info = self.envs[index].step(action)
        self.over[index] = terminated or truncated
        if self.over[index]:
            self.returns.append(info["episode"]["r"])
        return observation, float(reward), 0.0 if terminated else 1.0, LAST if self.over[index] else MID


# -- networks


def mlp(sizes: tuple[int, ...], out_gain: float) -> nn.Sequential:
    """Layers with tanh between them, orthogonal weights and biases of 0."""
    layers = [nn.Linear(n, m) for n, m in pairwise(sizes)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, out_gain if layer is layers[-1] else np.sqrt(2))
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())][:-1])


def sample(logits: Tensor, noise: torch.Generator) -> Tensor:
    """Draws an action per row with probabilities in proportion to exp(logits): Gumbel's trick."""
    clocks = torch.empty_like(logits).exponential_(generator=noise)
    return (logits - clocks.log()).argmax(-1)


def log_prob(logits: Tensor, action: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)


# -- advantages


def discounted_sums(a: Tensor, b: Tensor) -> Tensor:
    """x with x[t] = a[t] + b[t] x[t+1] and x[T] = 0, in log T rounds: each doubles the rows that a[t] sums over."""
    shift, num_rows = 1, len(a)
    while shift < num_rows:
        a = torch.cat((torch.addcmul(a[:-shift], b[: num_rows - shift], a[shift:]), a[num_rows - shift :]))
        b = b[: max(0, num_rows - 2 * shift)] * b[shift : max(shift, num_rows - shift)]
        shift *= 2
    return a


def advantages(value: Tensor, reward: Tensor, discount: Tensor, valid: Tensor, lambda_: float) -> Tensor:
    """Generalised advantage estimates [T, B] of T + 1 rows, 0 where the row is not valid."""
    error = torch.addcmul(reward[1:], discount[1:], value[1:]) - value[:-1]
    return discounted_sums(torch.where(valid, error, 0.0), torch.where(valid, lambda_ * discount[1:], 0.0))


def standardized(x: Tensor, valid: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over valid rows; 0 elsewhere."""
    count = valid.sum()
    centred = torch.where(valid, x - torch.where(valid, x, 0.0).sum() / count, 0.0)
    return centred / ((centred.square().sum() / count).sqrt() + 1e-8)


# -- the algorithm


def loss(agent: nn.ModuleDict, batch: dict[str, Tensor], config: Config) -> Tensor:
    """Equation (9): clipped surrogate and value error, each a mean over the valid rows."""
    weight = batch["valid"] / batch["valid"].sum().clamp(min=1)
    ratio = (log_prob(agent["policy"](batch["observation"]), batch["action"]) - batch["log_prob"]).exp()
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    surrogate = weight @ torch.maximum(ratio * -batch["advantage"], clipped * -batch["advantage"])
    value = agent["value"](batch["observation"]).squeeze(-1)
    return surrogate + config.value_cost * (weight @ (value - batch["value_target"]).square())


def prepared(agent: nn.ModuleDict, unroll: list[Tensor], action: Tensor, config: Config) -> dict[str, Tensor]:
    """The [T * B, ...] rows that an update learns from, of an unroll of T + 1 time steps and T actions."""
    observation, reward, discount, step_type = unroll
    with torch.no_grad():
        old_log_prob = log_prob(agent["policy"](observation[:-1]), action)
        value = agent["value"](observation).squeeze(-1)
    valid = (step_type[:-1] != LAST) & (step_type[1:] != FIRST)
    advantage = advantages(value, reward, config.gamma * discount, valid, config.gae_lambda)
    rows = {
        "observation": observation[:-1],
        "action": action,
        "log_prob": old_log_prob,
        "advantage": standardized(advantage, valid),
        "value_target": value[:-1] + advantage,
        "valid": valid.float(),
    }
    return {name: column.flatten(0, 1) for name, column in rows.items()}


def gradient_step(agent: nn.ModuleDict, optimizer: torch.optim.Optimizer, loss: Tensor, max_norm: float) -> None:
    """One step along the gradient, which is scaled down where it is longer than `max_norm`."""
    optimizer.zero_grad()
    loss.backward()
    gradients = [parameter.grad for parameter in agent.parameters()]
    norm = float(torch.linalg.vector_norm(nn.utils.parameters_to_vector(gradients)))
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / (norm + 1e-6))
    optimizer.step()


def train(config: Config, max_updates: int = -1, after_update: Callable[..., None] | None = None) -> nn.ModuleDict:
    """Trains for `total_env_steps`, or `max_updates`; after each update, `after_update(networks, observations)`."""
    torch.set_flush_denormal(True)
    envs = Environments(config.env, config.num_envs, config.seed)
    num_observations, num_actions = envs.envs[0].observation_space.shape[0], int(envs.envs[0].action_space.n)
    torch.manual_seed(derived_seed(config.seed, "initialisation"))
    policy = mlp((num_observations, *config.hidden_sizes, num_actions), out_gain=0.01)
    value = mlp((num_observations, *config.hidden_sizes, 1), out_gain=1.0)
    agent = nn.ModuleDict({"policy": policy, "value": value})
    optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, eps=config.adam_epsilon, fused=True)
    acting, order = generator(config.seed, "acting"), generator(config.seed, "minibatches")

    row, env_steps, updates = envs.step(), 0, 0
    while env_steps < config.total_env_steps and updates != max_updates:
        rows, actions = [row], list[Tensor]()
        with torch.no_grad():
            for _ in range(config.unroll_length):
                actions.append(sample(policy(row[0]), acting))
                env_steps += int((row[3] != LAST).sum())
                row = envs.step(actions[-1].numpy())
                rows.append(row)
        unroll = [torch.stack(column) for column in zip(*rows, strict=True)]
        batch = prepared(agent, unroll, torch.stack(actions), config)
        for _ in range(config.num_epochs):
            for rows_of in torch.randperm(len(batch["action"]), generator=order).split(config.mini_batch_size):
                minibatch = {name: column[rows_of] for name, column in batch.items()}
                gradient_step(agent, optimizer, loss(agent, minibatch, config), config.max_grad_norm)
        updates += 1
        if after_update is not None:
            after_update(agent, unroll[0])
        if envs.returns and updates % 10 == 0:
            print(f"{env_steps} env steps, mean return of 100 episodes {np.mean(envs.returns[-100:]):.1f}")
    return agent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Config):
        if field.type in (int, float, str):
            parser.add_argument(f"--{field.name}", type=field.type, default=field.default)
    train(Config(**vars(parser.parse_args())))
