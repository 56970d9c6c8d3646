"""DQN in one file, on torch, numpy and Gymnasium alone: the second reading of `palaestra.DQN`.

Mnih et al. 2015, https://doi.org/10.1038/nature14236, equation (2), with the target of double Q-learning: van Hasselt
et al. 2016, https://arxiv.org/abs/1509.06461, equation (4). The same seeds give the same parameters as the library, bit
for bit; `tests/examples/test_single_file.py` holds it to that.

    python dqn.py --env CartPole-v1 --seed 1 --total_env_steps 50000
"""

import argparse
import copy
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
    num_envs: int = 1  # B, environments side by side
    total_env_steps: int = 50_000
    learning_starts: int = 1_000  # env steps with random actions before the first gradient step
    capacity: int = 100_000  # rows that the replay buffer keeps
    mini_batch_size: int = 128
    learning_rate: float = 1e-3
    max_grad_norm: float = 10.0
    gamma: float = 0.99
    target_period: int = 250  # gradient steps between two copies of the online to the target network
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_fraction: float = 0.2  # part of the run in which epsilon falls from start to end
    huber_delta: float = 1.0
    hidden_sizes: tuple[int, ...] = (256, 256)


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


# -- replay


class Replay:
    """A ring of rows of B environments: observation, the reward and discount that came with it, and the action taken.

    The newest row is open: its action is not known yet. A transition is two rows, one after the other.
    """

    def __init__(self, capacity: int, num_envs: int, row: tuple[Tensor, ...], action: Tensor) -> None:
        self.places, self.num_envs = capacity // num_envs + 1, num_envs
        self.columns = [column.expand(self.places, *column.shape).clone() for column in row]
        self.action = torch.zeros((self.places, *action.shape), dtype=action.dtype)
        self.head = self.count = 0  # place of the open row, and number of complete ones

    def add(self, action: Tensor, row: tuple[Tensor, ...]) -> None:
        """Completes the open row by its action, and opens the next one."""
        self.action[self.head] = action
        self.head = (self.head + 1) % self.places
        self.count = min(self.count + 1, self.places - 1)
        for ring, column in zip(self.columns, row, strict=True):
            ring[self.head] = column

    def draw(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """So many transitions, all that may be learned from equally often."""
        observation, reward, discount, step_type = (column.flatten(0, 1) for column in self.columns)
        oldest, rows = (self.head - self.count) % self.places * self.num_envs, self.places * self.num_envs
        chosen = torch.empty(0, dtype=torch.int64)
        while (missing := count - len(chosen)) > 0:  # rows at the end of an episode are dropped and others drawn
            number = torch.randint(self.count * self.num_envs, (missing + missing // 4 + 8,), generator=generator)
            index = (oldest + number) % rows
            valid = (step_type[index] != LAST) & (step_type[(index + self.num_envs) % rows] != FIRST)
            chosen = torch.cat((chosen, index[valid][:missing]))
        after = (chosen + self.num_envs) % rows
        return {
            "observation": observation[chosen],
            "action": self.action.flatten(0, 1)[chosen],
            "reward": reward[after],
            "discount": discount[after],
            "next_observation": observation[after],
        }


# -- the algorithm


def mlp(sizes: tuple[int, ...]) -> nn.Sequential:
    """Layers with ReLU between them."""
    layers = [nn.Linear(n, m) for n, m in pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])


def epsilon_at(progress: float, config: Config) -> float:
    """Probability of a random action, at this part of the run."""
    done = min(1.0, progress / config.epsilon_fraction)
    return (
        config.epsilon_end if done == 1 else config.epsilon_start + (config.epsilon_end - config.epsilon_start) * done
    )


def explored(action: Tensor, num_actions: int, epsilon: float, noise: torch.Generator) -> Tensor:
    """With probability epsilon any action: a number in [0, A / epsilon) is one exactly where it lies below A."""
    draw = torch.empty(action.shape).uniform_(0.0, num_actions / epsilon, generator=noise)
    return torch.where(draw < num_actions, draw.long(), action)


def loss(online: nn.Module, target: nn.Module, batch: dict[str, Tensor], config: Config) -> Tensor:
    """The online network chooses the next action, the target network values it; Huber's loss of the difference."""
    with torch.no_grad():
        best = online(batch["next_observation"]).argmax(-1, keepdim=True)
        next_value = target(batch["next_observation"]).gather(-1, best).squeeze(-1)
        goal = torch.addcmul(batch["reward"], config.gamma * batch["discount"], next_value)
    q = online(batch["observation"]).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
    return nn.functional.huber_loss(q, goal, delta=config.huber_delta)


def gradient_step(network: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, max_norm: float) -> None:
    """One step along the gradient, which is scaled down where it is longer than `max_norm`."""
    optimizer.zero_grad()
    loss.backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    norm = float(nn.utils.get_total_norm(gradients))
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / (norm + 1e-6))
    optimizer.step()


def train(config: Config, max_updates: int = -1, after_update: Callable[..., None] | None = None) -> nn.Module:
    """Trains for `total_env_steps`, or `max_updates`; after each update, `after_update(networks, observation)`."""
    torch.set_flush_denormal(True)
    envs = Environments(config.env, config.num_envs, config.seed)
    num_observations, num_actions = envs.envs[0].observation_space.shape[0], int(envs.envs[0].action_space.n)
    torch.manual_seed(derived_seed(config.seed, "initialisation"))
    online = mlp((num_observations, *config.hidden_sizes, num_actions))
    agent = nn.ModuleDict({"online": online, "target": copy.deepcopy(online)})
    optimizer = torch.optim.Adam(online.parameters(), lr=config.learning_rate, fused=True)
    acting, order = generator(config.seed, "acting"), generator(config.seed, "minibatches")

    row, env_steps, updates, progress = envs.step(), 0, 0, 0.0
    replay = Replay(config.capacity, config.num_envs, row, torch.zeros(config.num_envs, dtype=torch.int64))
    while env_steps < config.total_env_steps and updates != max_updates:
        with torch.no_grad():
            action = explored(online(row[0]).argmax(-1), num_actions, epsilon_at(progress, config), acting)
        if env_steps < config.learning_starts:
            unit = torch.rand(config.num_envs, dtype=torch.float64, generator=acting)
            action = (unit * num_actions).long()
        env_steps += int((row[3] != LAST).sum())
        row = envs.step(action.numpy())
        replay.add(action, row)
        progress = min(1.0, env_steps / config.total_env_steps)
        if env_steps <= config.learning_starts:
            continue
        batch = replay.draw(config.mini_batch_size, order)
        gradient_step(online, optimizer, loss(online, agent["target"], batch, config), config.max_grad_norm)
        updates += 1
        if updates % config.target_period == 0:
            agent["target"].load_state_dict(online.state_dict())
        if after_update is not None:
            after_update(agent, row[0])
        if envs.returns and updates % 5_000 == 0:
            print(f"{env_steps} env steps, mean return of 100 episodes {np.mean(envs.returns[-100:]):.1f}")
    return agent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Config):
        if field.type in (int, float, str):
            parser.add_argument(f"--{field.name}", type=field.type, default=field.default)
    train(Config(**vars(parser.parse_args())))
