"""Small environments and algorithms for every test of something that learns."""

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from palaestra import Collector, EnvConfig, NetworkConfig, RunSeeds, create_environment
from palaestra.algorithms import ALGORITHMS, Algorithm, GradientAlgorithm, ShardedSteps
from palaestra.buffers import ReplayBuffer
from palaestra.core import ConfigError, Offline, Replay
from palaestra.envs import Environment

# What makes any algorithm small; an algorithm takes the fields that its configuration has.
TINY: dict[str, Any] = {
    "network": NetworkConfig(hidden_sizes=(8,)),
    "unroll_length": 12,
    "num_epochs": 2,
    "gradient_steps": 2,
    "mini_batch_size": 10,
    "mini_batch_sequences": 10,
    "capacity": 120,
    "learning_starts": 0,
    "target_period": 3,
    "burn_in": 2,
    "policy_period": 2,
    "num_actions": 3,
    "num_policy_phases": 1,
    "num_auxiliary_updates": 2,
    "actor_hidden_sizes": (8,),
    "num_simulations": 3,
    "model_steps": 2,
    "td_steps": 2,
    "state_size": 6,
    "memory_size": 8,
    "num_latents": 3,
    "num_classes": 4,
    "horizon": 3,
    "num_starts": 2,
    "num_bins": 9,
    "free_nats": 0.0,
}


class Track(gymnasium.Env[np.ndarray, np.ndarray]):
    """Continuous actions: pays for following a random walk; an episode ends by chance, or by a time limit."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-4, 4, (3,), np.float32)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = -float(np.square(action - 0.3).sum())
        return self._observation(), reward, bool(self.np_random.random() < 0.1), False, {"error": -reward}

    def _observation(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


class Numbered(gymnasium.Env[np.ndarray, np.int32]):
    """Three actions that are numbers from 2 to 4, and of a type that PyTorch does not count in."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(3, start=2, dtype=np.int32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: np.int32) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        return self._observation(), float(action), bool(self.np_random.random() < 0.2), False, {}

    def _observation(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


class Masked(gymnasium.Env[dict[str, np.ndarray], np.int64]):
    """A dict of observations, and a mask that forbids one of three actions at random; a forbidden one raises."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {"action_mask": spaces.MultiBinary(3), "position": spaces.Box(-1, 1, (2,), np.float32)}
        )
        self.action_space = spaces.Discrete(3)
        self._forbidden = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        if action == self._forbidden:
            raise ValueError(f"action {action} is forbidden")
        return self._observation(), float(action), bool(self.np_random.random() < 0.2), False, {}

    def _observation(self) -> dict[str, np.ndarray]:
        self._forbidden = int(self.np_random.integers(3))
        mask = np.ones(3, np.int8)
        mask[self._forbidden] = 0
        return {"action_mask": mask, "position": self.np_random.uniform(-1, 1, 2).astype(np.float32)}


class Parts(gymnasium.Env[dict[str, Any], dict[str, Any]]):
    """A nest of actions, some of them masked: one of three levers is locked, and the first of two buttons at times."""

    def __init__(self) -> None:
        masks = spaces.Dict({"lever": spaces.MultiBinary(3), "buttons": spaces.MultiBinary(2 + 3)})
        self.observation_space = spaces.Dict({"action_mask": masks, "position": spaces.Box(-1, 1, (2,), np.float32)})
        self.action_space = spaces.Dict(
            {
                "lever": spaces.Discrete(3, start=1),
                "buttons": spaces.MultiDiscrete([2, 3]),
                "rest": spaces.Tuple((spaces.Box(0, 2, (2,), np.float32), spaces.MultiBinary(2))),
            }
        )
        self._locked = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        if action["lever"] - 1 == self._locked or (self._locked == 0 and action["buttons"][0] == 0):
            raise ValueError(f"{action} is forbidden")
        reward = float(action["buttons"].sum()) - float(np.abs(action["rest"][0] - 1.5).sum())
        return self._observation(), reward, bool(self.np_random.random() < 0.2), False, {}

    def _observation(self) -> dict[str, Any]:
        self._locked = int(self.np_random.integers(3))
        masks = {"lever": np.ones(3, np.int8), "buttons": np.ones(5, np.int8)}
        masks["lever"][self._locked] = 0
        masks["buttons"][0] = self._locked > 0
        return {"action_mask": masks, "position": self.np_random.uniform(-1, 1, 2).astype(np.float32)}


KINDS = {
    "discrete": EnvConfig(name="palaestra.envs.tiny:Catch", kwargs={"num_rows": 6, "num_columns": 3}),
    "continuous": EnvConfig(name="tests.algorithms.parts:Track", max_episode_steps=5),
    "masked": EnvConfig(name="tests.algorithms.parts:Masked", max_episode_steps=4),
    "batch-norm": EnvConfig(name="tests.algorithms.parts:Track", max_episode_steps=5),
    "unit-vectors": EnvConfig(name="tests.algorithms.parts:Track", max_episode_steps=5),
    "inverted-blocks": EnvConfig(name="tests.algorithms.parts:Track", max_episode_steps=5),
    "composite": EnvConfig(name="tests.algorithms.parts:Parts", max_episode_steps=4),
    "recurrent": EnvConfig(name="palaestra.envs.tiny:Catch", kwargs={"num_rows": 6, "num_columns": 3}),
    "recurrent-masked": EnvConfig(name="tests.algorithms.parts:Masked", max_episode_steps=4),
    "game": EnvConfig(name="palaestra.envs:TicTacToe"),
    "team": EnvConfig(name="tests.algorithms.teams:Team", max_episode_steps=5),
    "team-continuous": EnvConfig(name="tests.algorithms.teams:Team", kwargs={"discrete": False}, max_episode_steps=5),
}
"""An environment for each kind of action that an algorithm may accept."""

MEMORY = {"network": NetworkConfig(hidden_sizes=(8,), recurrent="gru", recurrent_size=6), "mini_batch_length": 4}
ATTENTION = NetworkConfig(
    hidden_sizes=(8,), recurrent="attention", recurrent_size=8, attention_window=3, attention_layers=2
)
SETTINGS: dict[str, dict[str, Any]] = {
    "recurrent": MEMORY,
    "recurrent-masked": MEMORY,
    "batch-norm": {"network": NetworkConfig(hidden_sizes=(8,), batch_norm=True)},
    "unit-vectors": {"network": NetworkConfig(hidden_sizes=(8,), activation="relu", block="xqc")},
    "inverted-blocks": {"network": NetworkConfig(hidden_sizes=(8,), activation="relu", block="flash")},
    "game": {"simulator": "palaestra.envs:TicTacToe", "mini_batch_length": 4},
}
"""What a kind changes besides the environment."""


def environment(config: EnvConfig | str, num_envs: int = 3, seed: int = 3, **changes: Any) -> Environment:
    """Environments by configuration, by a name in `palaestra.envs.tiny`, or by a kind of action."""
    if isinstance(config, str):
        config = KINDS.get(config) or EnvConfig(name=f"palaestra.envs.tiny:{config}")
    lanes = [RunSeeds(seed).integer("environments", lane) for lane in range(num_envs)]
    return create_environment(dataclasses.replace(config, num_envs=num_envs, **changes), lane_seeds=lanes)


def tiny_config(kind: type[Algorithm], **changes: Any) -> Any:
    """The configuration of any algorithm with small sizes, and with the changes that it knows."""
    fields = {field.name for field in dataclasses.fields(kind.config_class)}
    if kind is ALGORITHMS["dreamer"]:
        changes = {"mini_batch_length": 4, **changes}  # its default is longer than what is collected here
    if kind.config_class.plan_class is Replay and "num_epochs" not in changes:  # else nothing would be drawn
        fields -= {"num_epochs"}
    return kind.config_class(**{name: value for name, value in {**TINY, **changes}.items() if name in fields})


def make(name: str, env: Environment, seed: int = 3, *, kind: str = "", **changes: Any) -> GradientAlgorithm:
    """A small algorithm for an environment, with the settings of its kind."""
    algorithm: Any = ALGORITHMS[name]
    config = tiny_config(algorithm, **{**SETTINGS.get(kind, {}), **changes})
    return algorithm(env.observation_spec, env.action_spec, config, RunSeeds(seed))


def accepted(name: str, kind: str, env: Environment) -> bool:
    """Whether an algorithm takes such actions; it says no by a `ConfigError`.

    Rewards by member are for teams alone, and games for what plans with them.

    Args:
        env: of that kind.
    """
    if kind.startswith("team") and not ALGORITHMS[name].team:
        return False
    if kind == "game" and not hasattr(ALGORITHMS[name].config_class, "simulator"):
        return False
    try:
        make(name, env, kind=kind)
    except ConfigError:
        return False
    return True


def _cases() -> list[tuple[str, str]]:
    """Asks every algorithm, which takes seconds; processes that tests start inherit what was answered."""
    if _INHERITED not in os.environ:
        with ExitStack() as stack:
            envs = {kind: stack.enter_context(environment(kind, 1)) for kind in KINDS}
            found = [(name, kind) for name in ALGORITHMS for kind, env in envs.items() if accepted(name, kind, env)]
        os.environ[_INHERITED] = json.dumps(found)
    return [(name, kind) for name, kind in json.loads(os.environ[_INHERITED])]


_INHERITED = "PALAESTRA_TESTS_CASES"
CASES = _cases()
"""Every algorithm with every kind of action that it accepts."""
FAST = ("ppo", "dqn", "sac", "impala", "mappo", "r2d2", "dreamer", "muzero", "decision_transformer")
"""One of each family: where every algorithm keeps a promise in the same way, the fast tests ask these."""


def slow_but_of(names: Sequence[str], cases: Iterable[Any]) -> list[Any]:
    """Cases of a parametrised test, those of other algorithms for the slow tests alone.

    Args:
        names: of the algorithms for the fast tests.
        cases: names, or tuples that begin with one.
    """
    marked = []
    for case in cases:
        values = (case,) if isinstance(case, str) else case
        marked.append(pytest.param(*values, marks=() if values[0] in names else pytest.mark.slow))
    return marked


def searches(name: str) -> bool:
    """Whether an algorithm acts by a search."""
    return hasattr(ALGORITHMS[name].config_class, "planning")


def any_kind(name: str) -> str:
    """A kind of action that an algorithm accepts."""
    return next(kind for algorithm, kind in CASES if algorithm == name)


def collector_for(env: Environment, algorithm: Algorithm) -> Collector:
    """A collector, also for algorithms that learn from a data set: the untrained policy makes theirs."""
    if not isinstance(algorithm.plan, Offline):
        return Collector.of(env, algorithm)
    policy = algorithm.policy
    memory: dict[str, Any] = {"state_spec": policy.stored_state_spec or None}
    buffer = ReplayBuffer(
        120, env.batch_size, observation_spec=env.observation_spec, action_spec=policy.raw_action_spec, **memory
    )
    return Collector(env, policy, buffer)


def collected(name: str, kind: str, seed: int = 3, **changes: Any) -> tuple[GradientAlgorithm, Collector]:
    """An algorithm, and a collector whose buffer holds data with ends of episodes inside."""
    env = environment(kind, seed=seed)
    algorithm = make(name, env, seed, kind=kind, **changes)
    collector = collector_for(env, algorithm)
    collector.unroll(12)
    return algorithm, collector


def first_minibatch(algorithm: Any, source: Any) -> Any:
    """The first minibatch of the next update, which ends there and leaves the weights as they are."""
    seen: list[Any] = []

    def step(minibatch: Any) -> Any:
        seen.append(minibatch)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        algorithm.update(source, ShardedSteps(step))
    return seen[0]
