"""What is measured: the same hyperparameters for both sides, and the bars to reach.

Plain Python: the peers' environments, which know nothing of Palaestra, read this file too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

ENV = "CartPole-v1"


@dataclass(frozen=True)
class PPOSettings:
    """Policy and value network are separate; Adam's epsilon is 1e-5; one unroll is 4 x 4 gradient steps."""

    num_envs: int = 8
    unroll_length: int = 128
    minibatch_size: int = 256
    epochs: int = 4
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    learning_rate: float = 3e-4
    clip: float = 0.2
    gamma: float = 0.99
    gae_lambda: float = 0.95
    value_cost: float = 0.5
    entropy_cost: float = 0.0
    max_grad_norm: float = 0.5


@dataclass(frozen=True)
class CheetahPPOSettings(PPOSettings):
    """Policy and value network are separate; Adam's epsilon is 1e-5; one unroll is 10 x 32 gradient steps."""

    unroll_length: int = 256
    minibatch_size: int = 64
    epochs: int = 10


@dataclass(frozen=True)
class PongPPOSettings(PPOSettings):
    """The convolutional network of Mnih et al. 2015, shared by policy and value; each side's own preprocessing."""

    hidden_sizes: tuple[int, ...] = ()
    activation: str = "relu"


@dataclass(frozen=True)
class DQNSettings:
    """No double Q-learning, one-step targets, a constant epsilon, one gradient step after each step."""

    num_envs: int = 1
    unroll_length: int = 1
    minibatch_size: int = 128
    gradient_steps: int = 1
    hidden_sizes: tuple[int, ...] = (120, 84)
    activation: str = "relu"
    learning_rate: float = 1e-3
    gamma: float = 0.99
    capacity: int = 100_000
    initial_steps: int = 500
    target_period: int = 500
    epsilon: float = 0.05
    max_grad_norm: float = 10.0


@dataclass(frozen=True)
class QRDQNSettings(DQNSettings):
    """No double Q-learning, one-step targets, a constant epsilon, one gradient step after each step."""

    num_quantiles: int = 50


@dataclass(frozen=True)
class ActorCriticSettings:
    num_envs: int = 1
    unroll_length: int = 1
    minibatch_size: int = 256
    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    learning_rate: float = 3e-4
    gamma: float = 0.99


@dataclass(frozen=True)
class OffPolicySettings(ActorCriticSettings):
    gradient_steps: int = 1
    capacity: int = 1_000_000
    initial_steps: int = 500


@dataclass(frozen=True)
class SACSettings(OffPolicySettings):
    """Twin critics, an automatic temperature, one gradient step of everything after each step."""

    tau: float = 0.005


@dataclass(frozen=True)
class TD3Settings(SACSettings):
    """Twin critics; the actor and the target networks move at every second gradient step, one after each step."""

    policy_period: int = 2
    exploration_std: float = 0.1
    target_noise_std: float = 0.2
    target_noise_clip: float = 0.5


@dataclass(frozen=True)
class CrossQSettings(OffPolicySettings):
    """Twin critics without targets, batch renormalisation, Adam's first beta 0.5; every third step moves the actor."""

    learning_rate: float = 1e-3
    policy_period: int = 3


@dataclass(frozen=True)
class OfflineSettings(ActorCriticSettings):
    """What `offline_rows` makes, in memory; one gradient step of everything in each iteration."""

    tau: float = 0.005


@dataclass(frozen=True)
class CQLSettings(OfflineSettings):
    """Ten actions of each kind; the weight of the conservative term is fixed, the temperature is learned."""

    num_actions: int = 10
    conservative_cost: float = 5.0


@dataclass(frozen=True)
class IQLSettings(OfflineSettings):
    """Twin critics, a value network, an actor with a standard deviation that does not depend on the observation."""

    expectile: float = 0.7
    inverse_temperature: float = 3.0


@dataclass(frozen=True)
class Workload:
    title: str
    settings: PPOSettings | DQNSettings | OffPolicySettings | OfflineSettings
    eager: float | None = None
    """Least median ratio to the peer, where there is a bar."""
    compiled: float | None = None
    """The same with `--compile`."""
    bfloat16: bool = False
    """Whether `--compile --run.precision bf16` is measured as well."""
    beside: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """Other peers that are measured, by their keys in `peers.PEERS`: least median ratios to them, by variant."""
    metric: str = "updates_per_s"
    """What is compared: `env_steps_per_s` or `updates_per_s`."""
    updates_per_iteration: int = 1
    """Optimizer steps between two unrolls; both sides must have made exactly so many."""
    threads: int | None = 1
    """Of every side; `None` leaves each the number that it chooses by itself."""
    env: str = ENV
    vectorization: Literal["serial", "batch", "native"] = "serial"
    """How ours steps its environments; the peer's are in its own process, or in the same pool."""
    algorithm: str = ""
    """Of ours; by default called as the workload is."""
    peer: str = "sb3"
    """What the bars are held against, by its key in `peers.PEERS`."""

    @property
    def bars(self) -> dict[str, float]:
        """By variant of ours."""
        return {
            variant: bar for variant, bar in (("eager", self.eager), ("compiled", self.compiled)) if bar is not None
        }

    @property
    def variants(self) -> list[str]:
        """What one round measures, in this order."""
        return ["eager", "peer", "compiled", *(["bf16"] if self.bfloat16 else []), *self.beside]

    @property
    def is_pool(self) -> bool:
        return self.env.startswith("envpool:")

    @property
    def is_offline(self) -> bool:
        return isinstance(self.settings, OfflineSettings)

    @property
    def unit(self) -> str:
        return self.metric.removesuffix("_per_s").replace("_", " ") + "/s"

    @property
    def rows_per_iteration(self) -> int:
        return self.settings.num_envs * self.settings.unroll_length


WORKLOADS = {
    "ppo": Workload(
        title="PPO, 8 environments x 128 steps",
        settings=PPOSettings(),
        metric="env_steps_per_s",
        updates_per_iteration=16,
        eager=3.0,
        compiled=5.0,
        beside={"cleanrl": {"compiled": 5.0}, "torchrl": {"compiled": 12.0}, "tianshou": {}, "sample_factory": {}},
    ),
    "ppo_cheetah": Workload(
        title="PPO, 8 environments x 256 steps",
        settings=CheetahPPOSettings(),
        metric="env_steps_per_s",
        updates_per_iteration=320,
        eager=2.2,
        compiled=4.5,
        env="HalfCheetah-v5",
        vectorization="batch",  # as every new run of it
        algorithm="ppo",
        beside={"cleanrl": {"compiled": 4.0}, "leanrl": {}, "torchrl": {}, "tianshou": {}},
    ),
    "ppo_pong": Workload(
        title="PPO, 8 environments x 128 steps",
        settings=PongPPOSettings(),
        metric="env_steps_per_s",
        updates_per_iteration=16,
        eager=1.3,
        compiled=1.6,
        env="ALE/Pong-v5",
        algorithm="ppo",
    ),
    "ppo_envpool": Workload(
        title="PPO, 8 environments x 128 steps, both on EnvPool",
        settings=PongPPOSettings(),
        metric="env_steps_per_s",
        updates_per_iteration=16,
        compiled=1.5,
        env="envpool:Pong-v5",
        vectorization="native",
        algorithm="ppo",
        peer="cleanrl",
    ),
    "dqn": Workload("DQN, one update per step", DQNSettings(), eager=2.5, compiled=4.0, beside={"leanrl": {}}),
    "qr_dqn": Workload("QR-DQN, one update per step", QRDQNSettings(), eager=1.4, compiled=1.8),
    "sac": Workload(
        "SAC, one update per step",
        SACSettings(),
        eager=1.6,
        compiled=2.2,
        bfloat16=True,
        beside={"sbx": {"compiled": 1.05, "bf16": 1.4}, "leanrl": {}},
        env="HalfCheetah-v5",
    ),
    "sac_as_it_comes": Workload(
        "SAC, one update per step, threads as each side chooses",
        SACSettings(),
        eager=2.0,
        compiled=3.0,
        beside={"sbx": {"compiled": 1.3}},
        threads=None,
        env="HalfCheetah-v5",
        algorithm="sac",
    ),
    "td3": Workload(
        "TD3, one update per step",
        TD3Settings(),
        eager=1.5,
        compiled=2.0,
        bfloat16=True,
        env="HalfCheetah-v5",
        beside={"leanrl": {}},
    ),
    "crossq": Workload(
        "CrossQ, one update per step", CrossQSettings(), compiled=2.0, bfloat16=True, env="HalfCheetah-v5"
    ),
    "cql": Workload("CQL, offline", CQLSettings(), compiled=2.0, bfloat16=True, env="HalfCheetah-v5", peer="d3rlpy"),
    "iql": Workload("IQL, offline", IQLSettings(), compiled=2.0, bfloat16=True, env="HalfCheetah-v5", peer="d3rlpy"),
}


def offline_rows(length: int = 1_000, episodes: int = 100) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Episodes as long and as wide as HalfCheetah's, of noise: both sides learn from the same ones.

    Args:
        length: T, steps of an episode, after which it is cut off.
        episodes: N.

    Returns:
        [T, N, 17] observations, [T, N, 6] actions in [-1, 1] and [T, N] rewards.
    """
    noise, shape = np.random.default_rng(0), (length, episodes)
    arrays = noise.normal(size=(*shape, 17)), noise.uniform(-1, 1, (*shape, 6)), noise.normal(size=shape)
    observation, action, reward = (array.astype(np.float32) for array in arrays)
    return observation, action, reward
