"""Offline training: a rule makes a data set, IQL learns from it without ever acting, and is evaluated."""

import torch

import palaestra
from palaestra import EnvConfig, NetworkConfig
from palaestra.buffers import ReplayBuffer
from palaestra.envs import create_environment
from palaestra.experiments import collect_data, evaluate_run
from palaestra.policies import RulePolicy

NOISE = torch.Generator().manual_seed(0)
PENDULUM = EnvConfig(name="Pendulum-v1", num_envs=4)


def swing_up(observation):
    """Pumps energy into the pendulum until it is up, and holds it there; noise shows what else could be done."""
    cosine, sine, speed = observation.unbind(-1)
    energy = speed**2 / 6 + 5 * (cosine - 1)  # 0 is enough to stand upright
    pump = -2 * torch.sign(speed) * torch.sign(energy)
    torque = torch.where(cosine > 0.9, -10 * torch.atan2(sine, cosine) - 3 * speed, pump)
    return (torque + torch.randn(len(torque), generator=NOISE)).clamp(-2, 2).unsqueeze(-1)


def main() -> None:
    torch.set_num_threads(1)  # networks this small are slower with more
    with create_environment(PENDULUM) as env:
        rule = RulePolicy(swing_up, env.observation_spec, env.action_spec)
    print(collect_data(rule, PENDULUM, "swing_up", steps=4_000, seed=1))
    data = ReplayBuffer.load("swing_up")  # a saved buffer: look at it, draw from it, add to it
    print(f"{len(data):,} rows of {data.options['observation_spec']} in {data.num_lanes} lanes")

    done = palaestra.train(
        "iql",
        "Pendulum-v1",
        offline__data="swing_up",  # or minari:<dataset id>; the command: --offline.data swing_up
        trainer__total_env_steps=100,  # updates, of ten gradient steps each: nothing is collected
        trainer__eval_episodes=4,
        trainer__eval_every_steps=50,
        algorithm__network=NetworkConfig(hidden_sizes=(64, 64), activation="relu"),
    )
    print("learned from the data", evaluate_run(done.directory, episodes=8))


if __name__ == "__main__":
    main()
