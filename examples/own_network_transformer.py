"""PPO with a transformer in which each number of the observation is a token."""

import torch
from torch import nn

from palaestra import PPO, Collector, EnvConfig, NetworkConfig, PPOConfig, RunSeeds, create_environment


class Transformer(nn.Module):
    def __init__(self, observation_spec, width: int = 16) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.randn(observation_spec.size, width) * 0.1)
        self.value = nn.Linear(1, width)
        layer = nn.TransformerEncoderLayer(width, nhead=2, dim_feedforward=32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=1)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        tokens = self.value(observation.unsqueeze(-1)) + self.place  # [N, tokens, width]
        return self.layers(tokens).mean(1)  # [N, width]


def main() -> None:
    torch.set_num_threads(1)
    config = PPOConfig(network=NetworkConfig(encoder=Transformer, hidden_sizes=(32,)), normalize_observation=True)
    with create_environment(EnvConfig(name="CartPole-v1", num_envs=8), seed=0) as env:
        algorithm = PPO(env.observation_spec, env.action_spec, config, RunSeeds(0))
        collector = Collector.of(env, algorithm)
        while collector.env_steps < 3_000:
            collector.collect(n_step=1024)
            print(collector.env_steps, algorithm.update(collector.buffer).metrics["entropy"])


if __name__ == "__main__":
    main()
