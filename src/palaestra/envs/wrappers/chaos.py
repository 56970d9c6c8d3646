"""`ChaosEnv`: an environment that misbehaves on purpose, to see what a run does about it."""

import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import numpy as np

from palaestra.core import ConfigError, TensorSpec, TimeStep, did_you_mean, spec_leaves
from palaestra.envs.contract.environment import EnvironmentWrapper, SingleEnvironment
from palaestra.envs.contract.nest import flatten, unflatten

__all__ = ["ChaosEnv", "ChaosRule", "chaos_of", "chaos_rules"]

ChaosFault = Literal[
    "raise", "unpicklable", "kill", "exit", "hang", "slow", "nan", "inf", "nan_reward", "out_of_bounds", "shape",
    "dtype", "key", "reset", "leak", "flood",
]  # fmt: skip
"""What can go wrong. `reset` raises when an episode starts; the others strike in a step."""

_RULE = re.compile(r"(?P<fault>[a-z_]+)(:(?P<probability>[0-9.e-]+))?(@(?P<step>\d+))?(#(?P<env_id>\d+))?")
_SLOW_S = 0.2
_LEAK_BYTES = 1 << 20
_FLOOD_LINES = 2000


@dataclass(frozen=True)
class ChaosRule:
    """When one fault strikes."""

    fault: ChaosFault
    """The fault that strikes."""
    probability: float = 1.0
    """In each step that the rule is for."""
    step: int | None = None
    """Only in this env step of an episode, from 1; 0 is the reset. In any, if left out."""
    env_id: int | None = None
    """Only in this environment; in all, if left out."""


class UnpicklableError(Exception):
    """Cannot be sent to another process: it holds a lock, and cannot be rebuilt from its arguments either."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.lock = threading.Lock()


def chaos_rules(text: str) -> tuple[ChaosRule, ...]:
    """The rules of a text such as `kill:0.001,nan@5#2`: fault, `:probability`, `@step`, `#environment`.

    Args:
        text: rules, joined by commas.

    Raises:
        ConfigError: no such fault, or it cannot be read.

    Examples:
        >>> chaos_rules("kill:0.01")
        (ChaosRule(fault='kill', probability=0.01, step=None, env_id=None),)
    """
    rules: list[ChaosRule] = []
    for part in filter(None, text.split(",")):
        found = _RULE.fullmatch(part.strip())
        if found is None:
            raise ConfigError(
                f"chaos {part!r} is not of the form fault:probability@step#environment, such as kill:0.01"
            )
        fault: Any
        fault, probability, step, env_id = found.group("fault", "probability", "step", "env_id")
        if fault not in get_args(ChaosFault):
            raise ConfigError(f"there is no chaos {fault!r}{did_you_mean(fault, get_args(ChaosFault))}")
        try:
            share = float(probability or 1)
        except ValueError:
            share = np.nan
        if not 0 <= share <= 1:
            raise ConfigError(f"chaos {part!r} has the probability {probability!r}, which is no number in [0, 1]")
        rules.append(ChaosRule(fault, share, int(step) if step else None, int(env_id) if env_id else None))
    return tuple(rules)


def chaos_of(text: str, lanes: range) -> str:
    """The rules for some environments of a batch, which are counted from the first of these then.

    Args:
        text: rules that can be read.
        lanes: which environments.

    Examples:
        >>> chaos_of("raise@3#5,nan@9,kill#0", range(4, 8))
        'raise@3#1,nan@9'
    """
    parts = [part.partition("#") for part in text.split(",")]
    own = [(rule, number) for rule, _, number in parts if not number or int(number) in lanes]
    return ",".join(f"{rule}#{int(number) - lanes.start}" if number else rule for rule, number in own)


@final
class ChaosEnv(EnvironmentWrapper):
    """Misbehaves as its rules say; the same seed misbehaves in the same place, in whatever process.

    Args:
        env: the layers inside.
        rules: as `chaos_rules` reads them.

    Examples:
        >>> from palaestra.envs import LaneEnvironment, SerialDriver, load
        >>> env = ChaosEnv(load("CartPole-v1"), "nan@2")
        >>> batch = LaneEnvironment(SerialDriver([env]), lane_seeds=[1])
        >>> _, _ = batch.reset(), batch.step([0])
        >>> batch.step([0])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        palaestra.core.errors.NonFiniteError: environment 0 emitted observation[0] = nan in episode 0 ...
    """

    keeps_frames = True

    def __init__(self, env: SingleEnvironment, rules: str) -> None:
        super().__init__(env)
        self._rules = [rule for rule in chaos_rules(rules) if rule.env_id in (None, env.env_id)]
        self._random = np.random.default_rng(0)
        self._steps = 0
        self._leaked: list[bytearray] = []

    def begin_episode(self, seed: int) -> TimeStep:
        self._random = np.random.default_rng([seed, 0xC4A05])
        self._steps = 0
        struck = self._struck([rule for rule in self._rules if rule.fault == "reset" or rule.step == 0])
        return self._corrupted(self.env.begin_episode(seed), struck)

    def advance(self, action: Any) -> TimeStep:
        self._steps += 1
        rules = [rule for rule in self._rules if rule.fault != "reset" and rule.step in (None, self._steps)]
        struck = self._struck(rules)  # first: some faults come before the step
        return self._corrupted(self.env.advance(action), struck)

    def _struck(self, rules: list[ChaosRule]) -> list[ChaosFault]:
        """The faults of those rules that strike; what they do before a step is done."""
        struck: list[ChaosFault] = [rule.fault for rule in rules if self._random.random() < rule.probability]
        for fault in struck:
            self._disturb(fault)
        return struck

    def _disturb(self, fault: ChaosFault) -> None:
        match fault:
            case "raise" | "reset":
                raise ValueError("chaos: the environment raised")
            case "unpicklable":
                raise UnpicklableError(7, "chaos: an exception that cannot be pickled")
            case "kill":
                os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
            case "exit":
                os._exit(0)
            case "hang":
                threading.Event().wait()
            case "slow":
                time.sleep(_SLOW_S)
            case "leak":
                self._leaked.append(bytearray(_LEAK_BYTES))
            case "flood":
                sys.stdout.write("chaos: a flood of output\n" * _FLOOD_LINES)
                sys.stdout.flush()
            case _:
                pass

    def _corrupted(self, time_step: TimeStep, struck: list[ChaosFault]) -> TimeStep:
        spec = self.observation_spec
        for fault in struck:
            if fault == "nan_reward":
                time_step = time_step._replace(reward=time_step.reward * np.nan)
            elif fault in _CORRUPTIONS:
                first, *others = flatten(time_step.observation, spec)
                changed = _CORRUPTIONS[fault](np.asarray(first), next(iter(spec_leaves(spec).values())))
                time_step = time_step._replace(observation=unflatten(iter([changed, *others]), spec))
        return time_step


def _with_first(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy() if array.dtype.kind == "f" else array.astype(np.float64)
    array.reshape(-1)[:1] = value
    return array


def _outside(array: np.ndarray, spec: TensorSpec) -> Any:
    high = getattr(spec, "maximum", None)
    beyond = np.max(high) if high is not None and np.isfinite(high).any() else np.array(1e30)
    return np.full_like(array, np.minimum(beyond * 2 + 1, np.finfo(np.float32).max / 2))


# Each takes a leaf of an observation and its spec.
_CORRUPTIONS: dict[str, Any] = {
    "nan": lambda array, _: _with_first(array, np.nan),
    "inf": lambda array, _: _with_first(array, np.inf),
    "out_of_bounds": _outside,
    "shape": lambda array, _: np.append(array.reshape(-1), array.reshape(-1)[:1]),
    "dtype": lambda array, _: array.astype("U8"),
    "key": lambda array, _: {"unexpected": array},
}
