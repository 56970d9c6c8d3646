"""SAC in one file, on torch, numpy and Gymnasium alone: the second reading of `palaestra.SAC`.

Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, equations (5), (6), (9) and (18), and algorithm 1. The same
seeds give the same parameters as the library, bit for bit; `tests/examples/test_single_file.py` holds it to that.

    python sac.py --env Pendulum-v1 --seed 1 --total_env_steps 20000
"""

import argparse
import math
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

    env: str = "Pendulum-v1"
    seed: int = 0
    num_envs: int = 1  # B, environments side by side
    total_env_steps: int = 20_000
    learning_starts: int = 1_000  # env steps with random actions before the first gradient step
    capacity: int = 1_000_000  # rows that the replay buffer keeps
    mini_batch_size: int = 256
    learning_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005  # share of the way that target critics go towards the online ones
    num_critics: int = 2
    initial_temperature: float = 1.0
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


# -- networks


def mlp(sizes: tuple[int, ...]) -> nn.Sequential:
    """Layers with ReLU between them."""
    layers = [nn.Linear(n, m) for n, m in pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])


def sample(actor: nn.Module, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The actions [N, A], in (-1, 1), that standard normal noise leads to, and their log-probabilities [N]."""
    mean, log_std = actor(observation).chunk(2, -1)
    log_std = log_std.clamp(-20.0, 2.0)
    u = torch.addcmul(mean, log_std.exp(), noise)
    log_slope = 2 * (math.log(2.0) - u - nn.functional.softplus(-2 * u))  # of tanh at u
    log_prob = (noise.square() * -0.5 - log_std - log_slope).sum(-1)
    return u.tanh(), log_prob - 0.5 * math.log(2 * math.pi) * noise.shape[-1]


class Critics(nn.Module):
    """K networks of one shape, [K, in, out] weights: one batched product per layer."""

    def __init__(self, sizes: tuple[int, ...], count: int) -> None:
        super().__init__()
        stacks = zip(*[mlp(sizes)[::2] for _ in range(count)], strict=True)
        pairs = [([x.weight.T for x in stack], [x.bias[None] for x in stack]) for stack in stacks]
        self.layers = nn.ParameterList(torch.stack(part).detach() for pair in pairs for part in pair)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Values [K, N] of N actions."""
        x = torch.cat((observation, action), -1).expand(len(self.layers[0]), -1, -1)
        for index in range(0, len(self.layers), 2):  # a weight, then its bias
            x = torch.bmm(x if index == 0 else x.relu(), self.layers[index]) + self.layers[index + 1]
        return x.squeeze(-1)


# -- the algorithm


def losses(agent: nn.ModuleDict, log_alpha: Tensor, batch: dict[str, Tensor], config: Config) -> dict[str, Tensor]:
    """Equation (5) with the target of (6) for the critics, (9) for the actor, (18) for the temperature."""
    alpha, observation = log_alpha.detach().exp(), batch["observation"]
    with torch.no_grad():
        next_action, next_log_prob = sample(agent["actor"], batch["next_observation"], batch["next_noise"])
        next_q = agent["target_critic"](batch["next_observation"], next_action).amin(0)
        target = torch.addcmul(batch["reward"], config.gamma * batch["discount"], next_q - alpha * next_log_prob)
    q = agent["critic"](observation, batch["action"])
    action, log_prob = sample(agent["actor"], observation, batch["noise"])
    least_q = agent["critic"](observation, action).amin(0)
    excess = (log_prob - action.shape[-1]).detach()  # the target entropy is minus the number of action dimensions
    return {
        "critic": 0.5 * len(q) * nn.functional.mse_loss(q, target.expand_as(q)),
        "actor": (alpha * log_prob - least_q).mean(),
        "temperature": -log_alpha * excess.mean(),
    }


def train(config: Config, max_updates: int = -1, after_update: Callable[..., None] | None = None) -> nn.Module:
    """Trains for `total_env_steps`, or `max_updates`; after each update, `after_update(networks, observation)`."""
    torch.set_flush_denormal(True)
    envs = Environments(config.env, config.num_envs, config.seed)
    space = envs.envs[0].action_space
    low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
    num_observations, size = envs.envs[0].observation_space.shape[0], space.shape[0]
    torch.manual_seed(derived_seed(config.seed, "initialisation"))
    actor = mlp((num_observations, *config.hidden_sizes, 2 * size))
    critic, target = (Critics((num_observations + size, *config.hidden_sizes, 1), config.num_critics) for _ in range(2))
    target.load_state_dict(critic.state_dict())
    log_alpha = nn.Parameter(torch.tensor(config.initial_temperature).log())
    temperature = nn.ParameterList([log_alpha])
    agent = nn.ModuleDict({"actor": actor, "critic": critic, "target_critic": target, "temperature": temperature})
    trained = {"critic": list(critic.parameters()), "actor": list(actor.parameters()), "temperature": [log_alpha]}
    optimizers = [torch.optim.Adam(of, lr=config.learning_rate, fused=True) for of in trained.values()]
    acting, order, noise = (generator(config.seed, name) for name in ("acting", "minibatches", "noise"))

    row, env_steps, updates = envs.step(), 0, 0
    replay = Replay(config.capacity, config.num_envs, row, torch.zeros(config.num_envs, size))
    while env_steps < config.total_env_steps and updates != max_updates:
        with torch.no_grad():
            normal = torch.empty(config.num_envs, size).normal_(generator=acting)
            action = sample(actor, row[0], normal)[0]
        if env_steps < config.learning_starts:
            unit = torch.rand(config.num_envs, size, dtype=torch.float64, generator=acting)
            torch.empty_like(unit).normal_(generator=acting)  # what dimensions without bounds would take
            action = (-1.0 * (1 - unit) + 1.0 * unit).float()
        env_steps += int((row[3] != LAST).sum())
        executed = torch.addcmul(high / 2 + low / 2, high / 2 - low / 2, action).clamp(low, high)
        row = envs.step(executed.numpy())
        replay.add(action, row)
        if env_steps <= config.learning_starts:
            continue
        batch = replay.draw(config.mini_batch_size, order)
        batch["noise"], batch["next_noise"] = torch.empty(2, *batch["action"].shape).normal_(generator=noise)
        for name, loss in losses(agent, log_alpha, batch, config).items():
            for parameter, gradient in zip(trained[name], torch.autograd.grad(loss, trained[name]), strict=True):
                parameter.grad = gradient
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                slow.lerp_(fast, config.tau)
        updates += 1
        if after_update is not None:
            after_update(agent, row[0])
        if envs.returns and updates % 2_000 == 0:
            print(f"{env_steps} env steps, mean return of 10 episodes {np.mean(envs.returns[-10:]):.1f}")
    return agent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Config):
        if field.type in (int, float, str):
            parser.add_argument(f"--{field.name}", type=field.type, default=field.default)
    train(Config(**vars(parser.parse_args())))
