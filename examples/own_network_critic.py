"""SAC whose actor does not see the velocity that its critics see."""

import torch
from torch import nn

from palaestra import EnvConfig, NetworkConfig, RunSeeds, create_environment
from palaestra.algorithms import SAC, SACConfig


class Place(nn.Module):
    """Pendulum's cosine and sine; not its velocity."""

    def __init__(self, observation_spec) -> None:
        super().__init__()

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return observation[:, :2]


def main() -> None:
    network = NetworkConfig(encoder={"actor": Place}, hidden_sizes=(64, 64), activation="relu")
    with create_environment(EnvConfig(name="Pendulum-v1", num_envs=1), seed=0) as env:
        algorithm = SAC(env.observation_spec, env.action_spec, SACConfig(network=network), RunSeeds(0))
        still, fast = (algorithm.policy([1.0, 0.0, velocity]) for velocity in (0.0, 8.0))
        print("the actor does the same:", still == fast)
        print("critics see", algorithm.model.component["critic"].encoder.out_size, "numbers, the actor 2")


if __name__ == "__main__":
    main()
