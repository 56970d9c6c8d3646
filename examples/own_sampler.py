"""A sampler of your own: DQN on CartPole that learns from recent rows more often than from old ones."""

import torch

import palaestra
from palaestra import DQN, Collector, DQNConfig, EnvConfig, NetworkConfig, RunSeeds, create_environment
from palaestra.buffers import Sampler


class RecentSampler(Sampler):
    """Chooses the younger of two rows drawn at random."""

    def starts(self, buffer, count, length, generator):
        rows = buffer.starts(length)  # every row that may be chosen, oldest first
        number = torch.randint(len(rows), (2, count), generator=generator).numpy()
        return rows[number.max(0)]


def main() -> None:
    torch.set_num_threads(1)
    env = create_environment(EnvConfig(name="CartPole-v1"), seed=0)
    config = DQNConfig(gradient_steps=16, mini_batch_size=64, network=NetworkConfig(hidden_sizes=(64, 64)))
    algorithm = DQN(env.observation_spec, env.action_spec, config, RunSeeds(0))
    collector = Collector.of(env, algorithm)
    collector.buffer.sampler = RecentSampler()

    with env:
        collector.collect(n_step=500)
        while collector.env_steps < 1_500:
            collector.collect(n_step=64)
            algorithm.update(collector.buffer)
            algorithm.set_progress(collector.env_steps / 1_500)
        index = collector.buffer.draw(algorithm.plan, torch.Generator().manual_seed(0)).index
        print(f"mean age of the rows drawn: {(len(collector.buffer) - index.float()).mean():.0f} steps")
        print(palaestra.evaluate(algorithm.policy, env, episodes=5))


if __name__ == "__main__":
    main()
