"""PPO with an encoder of your own; policy and value are two heads on it."""

import torch
from torch import nn

import palaestra
from palaestra import NetworkConfig


class MyNet(nn.Module):
    def __init__(self, observation_spec) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observation_spec.size, 64), nn.GELU(), nn.LayerNorm(64))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.body(observation)  # [N, 4] -> [N, 64]


def main() -> None:
    network = NetworkConfig(encoder=MyNet, hidden_sizes=())  # linear heads
    done = palaestra.train("ppo", "CartPole-v1", algorithm__network=network, trainer__total_env_steps=8_000)
    policy = palaestra.load_policy(done.directory / "policy", network=MyNet)  # a script's class has no name to import
    print(policy([0.0, 0.0, 0.1, 0.0]))


if __name__ == "__main__":
    main()
