"""What is learned: an algorithm, an environment, a budget, and what RL Baselines3 Zoo publishes for the pair.

The Zoo's `benchmark.md` (https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md) evaluates one tuned run
of each, deterministically, for 150,000 env steps. Where its environment had another version than ours (`HalfCheetah-v3`
and `-v5`), the row says so. Where it has no row at our budget, Stable-Baselines3 itself is trained by the same queue.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.numbers import Sample

EVALUATED_STEPS = 150_000
_TINY = "palaestra.envs.tiny"
_BF16 = {"run__precision": "bf16"}
GYMNAX_PPO = {"Breakout": 28.0, "SpaceInvaders": 131.0, "Asterix": 15.0, "Freeway": 58.0, "Seaquest": None}
"""What gymnax (https://github.com/RobertTLange/gymnax) publishes of its PPO after 10M steps; of Seaquest nothing."""
POPGYM = ("RepeatFirst", "RepeatPrevious", "Autoencode", "CountRecall")
CAR_REPEAT = 8
"""How often our presets for MountainCarContinuous-v0 repeat an action; budgets are the Zoo's in frames."""


@dataclass(frozen=True)
class ZooRow:
    """One line of the Zoo's table."""

    mean: float
    std: float
    episodes: int
    """In its evaluation: 150,000 env steps by the mean length, or by the greatest where that is not known."""
    env: str | None = None
    """Its environment, where it is not of the same version."""

    @property
    def sample(self) -> Sample:
        return Sample(self.mean, self.std, self.episodes)


@dataclass(frozen=True)
class Row:
    """One line of our table."""

    algorithm: str
    env: str
    env_steps: int
    """The Zoo's budget, where it has the pair."""
    zoo: ZooRow | None = None
    seeds: int = 5
    peer: bool = False
    """Whether Stable-Baselines3 is trained, to compare with."""
    compile: bool = False
    """Whether our updates are compiled (`--compile`), which pays in runs of many minutes."""
    rival: str | None = None
    """Name of another row of the same environment and budget, which this one has to surpass."""
    times: float = 1.0
    """How many times the rival's mean return it has to surpass."""
    level_with: str | None = None
    """Name of another row of the same environment and budget, which this one has to be level with."""
    variant: str = ""
    """What tells it from other rows of the algorithm and the environment, in a few words; `settings` say it exactly."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of `palaestra.train`, besides the preset."""
    solved: float | None = None
    """The return from which on a seed has solved the task; the row's bar is that all seeds have."""

    @property
    def name(self) -> str:
        """Of its file of results."""
        env = self.env.rpartition(":")[2].replace("/", "-")
        variant = re.sub(r"\W+", "-", self.variant)
        return f"{'sb3_' if self.peer else ''}{self.algorithm}_{env}{'_' if variant else ''}{variant}"

    @property
    def title(self) -> str:
        return f"{self.algorithm}{' of Stable-Baselines3' if self.peer else ''}"

    @property
    def task(self) -> str:
        """Environment and variant."""
        return f"{self.env}, {self.variant}" if self.variant else self.env


def _cartpole(algorithm: str, env_steps: int, *, zoo: bool = True) -> Row:
    return Row(algorithm, "CartPole-v1", env_steps, ZooRow(500.0, 0.0, 300) if zoo else None)


def _acrobot(algorithm: str, env_steps: int, mean: float, std: float) -> Row:
    return Row(algorithm, "Acrobot-v1", env_steps, ZooRow(mean, std, round(EVALUATED_STEPS / (1 - mean))))


def _mountain_car(algorithm: str, env_steps: int, mean: float, std: float) -> Row:
    return Row(algorithm, "MountainCar-v0", env_steps, ZooRow(mean, std, round(EVALUATED_STEPS / -mean)))


def _pendulum(algorithm: str, env_steps: int, mean: float, std: float) -> Row:
    return Row(algorithm, "Pendulum-v1", env_steps, ZooRow(mean, std, EVALUATED_STEPS // 200))


def _continuous_car(algorithm: str, frames: int, mean: float, std: float) -> Row:
    env_steps = frames // CAR_REPEAT
    return Row(algorithm, "MountainCarContinuous-v0", env_steps, ZooRow(mean, std, EVALUATED_STEPS // 999))


def _long(algorithm: str, env: str, env_steps: int, mean: float, std: float, zoo_env: str) -> Row:
    """An environment whose episodes have at most 1000 steps."""
    return Row(algorithm, env, env_steps, ZooRow(mean, std, EVALUATED_STEPS // 1000, zoo_env), seeds=3, compile=True)


def _mujoco(algorithm: str, env: str, sac: str = "") -> Row:
    """What 200,000 env steps teach, with products in bfloat16; the newer algorithm has to reach 1.4 times SAC's.

    Args:
        algorithm: which.
        env: in which.
        sac: what the name of SAC's row ends with.
    """
    rival = None if algorithm == "sac" else f"sac_{env}{sac}"
    return Row(algorithm, env, 200_000, compile=True, rival=rival, times=1.4 if rival else 1.0, settings=_BF16)


def _trial(algorithm: str, env: str) -> Row:
    """What 100,000 env steps teach FlashSAC's small networks, beside XQC's."""
    variant, rival = "100,000 steps", f"xqc_{env}_100-000-steps" if algorithm == "flash_sac" else None
    return Row(algorithm, env, 100_000, seeds=3, compile=True, rival=rival, variant=variant, settings=_BF16)


def _long_mujoco(env: str) -> Row:
    """What 1,000,000 env steps teach, on two threads: a step takes 7 ms or so there."""
    settings = {**_BF16, "run__num_threads": 2}
    return Row("xqc", env, 1_000_000, seeds=1, compile=True, variant="1M steps", settings=settings)


def _cheetah_in_bf16(algorithm: str) -> Row:
    """Products in bfloat16, which have to be level with those in float32."""
    env = "HalfCheetah-v5"
    return Row(algorithm, env, 200_000, compile=True, level_with=f"{algorithm}_{env}", variant="bf16", settings=_BF16)


_RECALL_STEPS = 64
_CELLS = {"recurrent": "lstm", "recurrent_size": 64, "recurrent_span": 2 * _RECALL_STEPS}
_ATTENTION = {"recurrent": "attention", "recurrent_size": 32}


def _recall(memory: str, network: Mapping[str, Any], **changes: Any) -> Row:
    """A cue, one of four, to be named 64 steps later: 1/4 by chance, and without memory."""
    algorithm = {
        "unroll_length": 128,
        "mini_batch_length": 128,
        "mini_batch_size": 512,
        "gamma": 0.9,
        "gae_lambda": 0.9,
    }
    algorithm |= {"learning_rate": "linear(0.001, 0)", "entropy_cost": 0.03, **changes}
    algorithm |= {"network": {"hidden_sizes": (64,), **network}}
    return Row(
        "ppo",
        f"{_TINY}:Recall",
        200_000,
        rival="ppo_Recall_64-steps-no-memory" if network["recurrent"] else None,
        variant=f"{_RECALL_STEPS} steps, {memory}",
        settings={
            "env": {"num_envs": 8, "kwargs": {"num_cues": 4, "delay": _RECALL_STEPS}},
            "algorithm": algorithm,
            "trainer__eval_every_steps": 20_000,
        },
        solved=0.95 if network["recurrent"] else None,
    )


_HIDES_VELOCITIES = {"env__wrappers": ("SelectEntries(entries=[0, 2])",)}


def _popgym(game: str, memory: str | None) -> Row:
    """A game of cards of POPGym (Morad et al. 2023, https://arxiv.org/abs/2303.01859); returns are from -1 to 1.

    Needs `pip install --no-deps popgym==1.0.7`, whose Gymnasium environments are taken as they are.
    """
    algorithm: dict[str, Any] = {"unroll_length": 128, "mini_batch_length": 128, "mini_batch_size": 1024}
    algorithm |= {"gamma": 0.99, "entropy_cost": 0.01, "learning_rate": "linear(0.0005, 0)"}
    cells = {"recurrent": memory, "recurrent_size": 128, "recurrent_span": 104} if memory else {}
    algorithm |= {"network": {"hidden_sizes": (128,), **cells}}
    env = f"popgym:popgym-{game}Easy-v0"
    return Row(
        "ppo",
        env,
        2_000_000,
        seeds=3,
        rival=f"ppo_popgym-{game}Easy-v0_no-memory" if memory else None,
        variant="GRU" if memory else "no memory",
        settings={"env": {"num_envs": 32}, "algorithm": algorithm},
    )


def _positions_only(memory: str, network: Mapping[str, Any]) -> Row:
    """CartPole without its two velocities; Gymnasium says that 475 solves it.

    Rewards are normalised: value and policy share the memory, and errors of values near 50 leave it nothing else.
    """
    algorithm = {"unroll_length": 64, "mini_batch_length": 32, "num_epochs": 10, "gae_lambda": 0.9}
    algorithm |= {"learning_rate": "linear(0.0003, 0)", "normalize_observation": True}
    algorithm |= {"network": {"hidden_sizes": (64,), **network}}
    return Row(
        "ppo",
        "CartPole-v1",
        300_000,
        rival="ppo_CartPole-v1_positions-only-no-memory" if network else None,
        variant=f"positions only, {memory}",
        settings={
            **_HIDES_VELOCITIES,
            "env__train_wrappers": ("NormalizeReward(gamma=0.98)",),
            "algorithm": algorithm,
            "trainer__eval_every_steps": 30_000,
        },
        solved=475.0 if network else None,
    )


def _few_positions() -> Row:
    """What PPO with an LSTM makes of as many steps as Dreamer is given."""
    row = _positions_only("10,000 steps", {"recurrent": "lstm", "recurrent_size": 64})
    settings = {**row.settings, "trainer__eval_every_steps": 1_000}
    return replace(row, env_steps=10_000, rival=None, settings=settings, solved=None)


_ROWS = (
    # classic control: complete
    _cartpole("ppo", 100_000),
    _cartpole("dqn", 50_000),
    _cartpole("qr_dqn", 50_000),
    _cartpole("c51", 50_000, zoo=False),
    _cartpole("iqn", 50_000, zoo=False),
    _cartpole("rainbow", 50_000, zoo=False),
    _cartpole("discrete_sac", 50_000, zoo=False),
    _cartpole("trpo", 100_000),
    _cartpole("ppg", 100_000, zoo=False),
    _cartpole("a2c", 500_000),
    _cartpole("impala", 500_000, zoo=False),
    _cartpole("pqn", 500_000, zoo=False),
    Row("muzero", "CartPole-v1", 50_000, compile=True, solved=500.0),
    _cartpole("sarsa", 500_000, zoo=False),
    _cartpole("reinforce", 500_000, zoo=False),
    _cartpole("evolution_strategies", 500_000, zoo=False),
    _acrobot("dqn", 100_000, -76.639, 11.752),
    _acrobot("qr_dqn", 100_000, -69.135, 9.967),
    Row("c51", "Acrobot-v1", 100_000),
    Row("iqn", "Acrobot-v1", 100_000),
    Row("rainbow", "Acrobot-v1", 100_000),
    _acrobot("trpo", 100_000, -83.114, 18.648),
    _acrobot("a2c", 500_000, -83.353, 17.213),
    _acrobot("ppo", 1_000_000, -73.506, 18.201),
    Row("ppg", "Acrobot-v1", 1_000_000),
    Row("impala", "Acrobot-v1", 500_000),
    Row("sarsa", "Acrobot-v1", 200_000),
    Row("evolution_strategies", "Acrobot-v1", 500_000),
    _mountain_car("dqn", 120_000, -100.849, 9.925),
    _mountain_car("qr_dqn", 120_000, -106.042, 15.536),
    _pendulum("ppo", 100_000, -172.225, 104.159),
    _pendulum("sac", 20_000, -156.995, 88.714),
    _pendulum("td3", 20_000, -151.855, 90.227),
    _pendulum("ddpg", 20_000, -152.099, 94.282),
    Row("crossq", "Pendulum-v1", 10_000, compile=True),
    Row("xqc", "Pendulum-v1", 10_000, compile=True),
    Row("quantile_sac", "Pendulum-v1", 20_000),
    Row("redq", "Pendulum-v1", 20_000),
    _pendulum("trpo", 100_000, -174.631, 127.577),
    Row("ppg", "Pendulum-v1", 100_000),
    _pendulum("a2c", 1_000_000, -162.965, 103.210),
    Row("impala", "Pendulum-v1", 1_000_000),
    _continuous_car("ppo", 20_000, 88.343, 2.572),
    _continuous_car("sac", 50_000, 94.679, 1.134),
    _continuous_car("trpo", 50_000, 92.489, 0.355),
    _continuous_car("a2c", 100_000, 91.166, 0.255),
    _continuous_car("td3", 300_000, 93.483, 0.075),
    _continuous_car("ddpg", 300_000, 93.512, 0.048),
    Row("quantile_sac", "MountainCarContinuous-v0", 50_000 // CAR_REPEAT),
    Row("redq", "MountainCarContinuous-v0", 50_000 // CAR_REPEAT),
    Row("ppg", "MountainCarContinuous-v0", 20_000 // CAR_REPEAT),
    Row("impala", "MountainCarContinuous-v0", 100_000 // CAR_REPEAT),
    Row("evolution_strategies", "MountainCarContinuous-v0", 100_000 // CAR_REPEAT),
    *(
        Row(algorithm, f"palaestra.envs:MinAtar{game}", 1_000_000, compile=True, rival=rival)
        for game in ("Breakout", "SpaceInvaders", "Asterix", "Freeway", "Seaquest")
        for algorithm, rival in (("pqn", f"dqn_MinAtar{game}"), ("dqn", None))
    ),
    *(
        Row("pqn", f"palaestra.envs:MinAtar{game}", 10_000_000, compile=True, variant="10M steps", solved=ppo)
        for game, ppo in GYMNAX_PPO.items()
    ),
    # what a world model is for, beside PPO at the same steps
    Row("dreamer", f"{_TINY}:CartPoleSwingUp", 20_000),
    Row("ppo", f"{_TINY}:CartPoleSwingUp", 20_000),
    Row("sac", f"{_TINY}:CartPoleSwingUp", 20_000),
    Row("dreamer", f"{_TINY}:Catch", 6_000),
    Row("ppo", f"{_TINY}:Catch", 6_000),
    Row("dreamer", f"{_TINY}:Recall", 6_000, rival="ppo_Recall"),
    Row("ppo", f"{_TINY}:Recall", 6_000),
    Row(
        "dreamer",
        "CartPole-v1",
        10_000,
        rival="ppo_CartPole-v1_positions-only-10-000-steps",
        variant="positions only",
        settings=_HIDES_VELOCITIES,
    ),
    _few_positions(),
    # what a memory is for
    _recall("no memory", {"recurrent": None}),
    _recall("LSTM", _CELLS),
    _recall("attention", _ATTENTION, learning_rate=0.001, entropy_cost=0.01),
    _positions_only("no memory", {}),
    _positions_only("LSTM", {"recurrent": "lstm", "recurrent_size": 64}),
    _positions_only("attention", {"recurrent": "attention", "recurrent_size": 32, "attention_window": 16}),
    *(_popgym(game, memory) for game in POPGYM for memory in (None, "gru")),
    # hours each
    _long("ppo", "HalfCheetah-v5", 1_000_000, 5819.099, 663.530, "HalfCheetah-v3"),
    _long("ppo", "Hopper-v5", 1_000_000, 2410.435, 10.026, "Hopper-v3"),
    *(Row(algorithm, "HalfCheetah-v5", 200_000, compile=True) for algorithm in ("sac", "td3")),
    *(Row(algorithm, "HalfCheetah-v5", 200_000, seeds=2, peer=True) for algorithm in ("sac", "td3")),
    *(_cheetah_in_bf16(algorithm) for algorithm in ("sac", "td3")),
    Row("crossq", "HalfCheetah-v5", 60_000, compile=True),
    *(_mujoco(algorithm, env) for env in ("Walker2d-v5", "Ant-v5") for algorithm in ("sac", "xqc")),
    _mujoco("xqc", "HalfCheetah-v5", sac="_bf16"),
    *(Row("xqc", env, 200_000, compile=True, settings=_BF16) for env in ("Hopper-v5", "Humanoid-v5")),
    *(
        _trial(algorithm, env)
        for env in ("HalfCheetah-v5", "Walker2d-v5", "Humanoid-v5")
        for algorithm in ("flash_sac", "xqc")
    ),
    _long("dqn", "LunarLander-v3", 100_000, 154.382, 79.241, "LunarLander-v2"),
    _long("ppo", "LunarLander-v3", 1_000_000, 242.119, 31.823, "LunarLander-v2"),
    _long("ppo", "Walker2d-v5", 1_000_000, 3478.798, 821.708, "Walker2d-v3"),
    *(_long_mujoco(env) for env in ("HalfCheetah-v5", "Humanoid-v5")),
    Row("ppo", "envpool:Pong-v5", 2_000_000, seeds=2),
)
ROWS = {row.name: row for row in _ROWS}
"""Rows by the name of their file of results, in the order in which they are run."""


def peer_of(row: Row) -> Row | None:
    """The row that this one is compared with, if there is one: another of ours, or that of Stable-Baselines3."""
    if row.peer:
        return None
    return ROWS.get(row.rival or row.level_with or f"sb3_{row.name}")
