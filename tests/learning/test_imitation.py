"""What rewards learned from demonstrations lead to, whatever the environment's own reward asks for."""

import pytest
import torch

from palaestra import Collector, NetworkConfig, Trainer, TrainerConfig
from palaestra.algorithms import BonusConfig
from palaestra.core import Batch
from tests.algorithms.parts import environment, make
from tests.learning.parts import POINT

SETTINGS = {
    "ppo": {"learning_rate": 1e-3, "unroll_length": 64, "num_epochs": 4, "mini_batch_size": 64, "gamma": 0.9},
    "sac": {"learning_rate": 3e-3, "mini_batch_size": 64, "learning_starts": 200, "gamma": 0.9, "tau": 0.02},
}


def demonstrated() -> Batch:
    """Of somebody who goes to +1, where the environment pays less than at 0."""
    x = torch.linspace(-2, 2, 400).unsqueeze(-1)
    action = (1 - x).clamp(-1, 1)
    there = torch.cat((x, torch.ones(400, 1)))
    stays = torch.cat((action, torch.zeros(400, 1)))
    return Batch.of({"observation": there, "action": stays, "next_observation": there + stays})


def place_after(name: str, kind: str, seed: int, env_steps: int) -> float:
    """Mean place after 8 steps of the policy's most probable actions, from 41 starts."""
    bonus = BonusConfig(kind=kind, hidden_sizes=(32, 32), learning_rate=3e-3)
    with environment(POINT, 4, seed) as environments:
        network = NetworkConfig(hidden_sizes=(32,))
        algorithm = make(name, environments, seed, network=network, bonus=bonus, **SETTINGS[name])
        algorithm.bonus.imitate(demonstrated())
        Trainer(Collector.of(environments, algorithm), algorithm, TrainerConfig(total_env_steps=env_steps)).run()
    x = torch.linspace(-2, 2, 41).unsqueeze(-1)
    with torch.no_grad():
        for _ in range(8):
            x = x + algorithm.policy.env_action(algorithm.policy.choose(x, (), False, True).action)
    return float(x.mean())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "kind", "steps"), [("ppo", "gail", 30_000), ("ppo", "airl", 30_000), ("sac", "gail", 10_000)]
)
def test_what_was_demonstrated_is_learned_and_not_what_is_paid(name, kind, steps, seed):
    """What the environment pays leads to 0; to 1, nothing but the demonstrations do."""
    assert place_after(name, kind, seed, steps) == pytest.approx(1.0, abs=0.4 if kind == "airl" else 0.3)
