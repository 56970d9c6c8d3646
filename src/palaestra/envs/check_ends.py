"""The rules of `check` about how episodes end: what is most often wrong with an environment, and hardest to notice."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np

from palaestra.core import PalaestraError, TimeStep, episode_seed
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.nest import flatten
from palaestra.envs.spaces import space_from_spec
from palaestra.envs.wrappers.episode_ends import TimeLimit

__all__ = [
    "Finding",
    "close_quietly",
    "cut_off",
    "ends",
    "equal",
    "ignored_action",
    "limits_reported",
    "masks",
    "sample",
]

_SHORT = 3
_REPORTED = "TimeLimit.truncated"
_MASK = "action_mask"
_AGAIN = "an environment that was closed must let another one be made: free the port, the licence or the file in close"


@dataclass(frozen=True)
class Finding:
    """One rule, and whether the environment keeps it."""

    rule: str
    """The rule, as a sentence."""
    ok: bool
    """Whether it holds."""
    expected: str = ""
    """What should have been seen."""
    got: str = ""
    """What was seen."""
    fix: str = ""
    """What to change."""
    level: Literal["error", "warning"] = "error"
    """An error makes training wrong or impossible; a warning may be meant."""

    def __str__(self) -> str:
        if self.ok:
            return f"ok       {self.rule}"
        lines = [f"{self.level:8} {self.rule}"]
        lines += [f"           {name}: {value}" for name, value in self._details() if value]
        return "\n".join(lines)

    def _details(self) -> Iterator[tuple[str, str]]:
        yield "expected", self.expected
        yield "got     ", self.got
        yield "fix     ", self.fix


def ends(stream: Sequence[TimeStep], env: SingleEnvironment, reported: int) -> Iterator[Finding]:
    """Whether episodes end, and whether what looks like an end is a time limit.

    Args:
        stream: of one or several runs.
        env: that emitted it.
        reported: ends with discount 0 of which the info says that they are time limits.
    """
    lengths: dict[bool, list[int]] = {True: [], False: []}
    length = 0
    for time_step in stream:
        length = 0 if time_step.step_type == 0 else length + 1
        if time_step.step_type == 2:
            lengths[bool(time_step.discount == 0)].append(length)
    terminated, truncated = lengths[True], lengths[False]
    yield Finding(
        "Episodes end, or there is a time limit",
        bool(terminated or truncated or _has_limit(env)),
        "an episode that ends",
        f"none in {len(stream)} time steps",
        "register the environment with max_episode_steps, or set env.max_episode_steps in the config",
        "warning",
    )
    steps, count = _heap(terminated)
    same = steps > 1 and not any(cut <= steps for cut in truncated)
    yield Finding(
        "A time limit is reported as truncated, not as terminated",
        not same,
        "episodes that terminate at different steps, or truncated=True at a limit",
        f"{count} of {len(terminated)} episodes terminated at step {steps} exactly, and none later",
        f"if that is a time limit: return truncated=True there, or, where the code cannot be changed, wrap with "
        f"TimeLimit(env, {steps - 1}). If the task is over after {steps} steps, all is well",
        "warning",
    )
    yield Finding(
        "An end that info calls a time limit is truncated",
        not reported,
        f"discount 1 where info[{_REPORTED!r}] is true",
        f"discount 0 at {reported} such ends",
        "return terminated=False, truncated=True there: the old `done` meant both",
    )


def _heap(lengths: Sequence[int]) -> tuple[int, int]:
    """The greatest length and how often it comes, if that is far more often than the lengths just below it; else 0."""
    counts = Counter(lengths)
    longest = max(counts, default=0)
    below = sum(count for length, count in counts.items() if 0.8 * longest <= length < longest)
    enough = counts[longest] >= (2 if len(counts) == 1 else 4)
    return (longest, counts[longest]) if enough and counts[longest] > 2 * below else (0, 0)


def limits_reported(stream: Sequence[TimeStep]) -> int:
    """Ends with discount 0 that `info` calls time limits, as old versions of Gym did.

    Args:
        stream: of one run.
    """
    lasts = [step for step in stream if step.step_type == 2 and step.discount == 0]
    return sum(bool(isinstance(step.env_info, dict) and step.env_info.get(_REPORTED)) for step in lasts)


def masks(stream: Sequence[TimeStep]) -> Iterator[Finding]:
    """Whether an `action_mask` in the observation always leaves something to do.

    Args:
        stream: of one or several runs.
    """
    seen = [step.observation.get(_MASK) for step in stream if isinstance(step.observation, dict)]
    if not seen or seen[0] is None:
        return
    bad = [number for number, (mask, step) in enumerate(zip(seen, stream, strict=True))
           if step.step_type != 2 and not np.any(mask)]  # fmt: skip
    yield Finding(
        "An action_mask allows some action, unless the step is LAST",
        not bad,
        "at least one 1 in the mask",
        f"none in {len(bad)} of {len(stream)} time steps, the first of them number {bad[0]}" if bad else "",
        "where nothing can be done, end the episode, or allow an action that does nothing",
    )


def ignored_action(make: Callable[[], SingleEnvironment], seed: int, steps: int) -> Finding:
    """Whether the action that follows LAST has no influence on the FIRST step of the next episode, or on its reward.

    Args:
        make: makes the environment with its layers.
        seed: of environment and actions.
        steps: to look for an end in.
    """
    rule = "The action after LAST is ignored"
    made: list[SingleEnvironment] = []
    try:
        made += [make()]
        made += [make()]
    except (Exception, SystemExit) as error:
        for env in made:
            close_quietly(env)
        return Finding(rule, False, "two environments to compare", f"{type(error).__name__}: {error}", _AGAIN)
    one, two = made
    try:
        spaces = space_from_spec(one.action_spec), space_from_spec(two.action_spec)
        for env, space in zip((one, two), spaces, strict=True):
            env.seed(seed)
            space.seed(episode_seed(seed, 0))
        latest, _ = one.reset(), two.reset()
        for _ in range(steps):
            action = sample(spaces[0], latest.observation)
            latest = one.step(action)
            two.step(action)
            if latest.step_type == 2:
                spaces[1].seed(episode_seed(seed, 1))
                ours, theirs = one.step(spaces[0].sample()), two.step(spaces[1].sample())
                got = "two different ones, after different actions"
                fix = "let begin_episode depend on its seed alone; keep nothing of the last action"
                return Finding(rule, equal(ours, theirs, one), "equal first time steps", got, fix)
    except PalaestraError as error:
        return Finding(rule, False, "time steps", str(error), "the message says in which step, with which action")
    finally:
        close_quietly(one)
        close_quietly(two)
    return Finding(rule, True)


def cut_off(inner: SingleEnvironment, seed: int) -> Finding:
    """Whether a time limit around the environment gives LAST with discount 1.

    Args:
        inner: the environment with its layers.
        seed: of environment and actions.
    """
    rule = "An episode that is cut off is LAST with discount 1"
    fix = "a layer changes discount or step_type where it must not; see the table of episode ends"
    try:
        env = TimeLimit(inner, _SHORT)
        space = space_from_spec(env.action_spec)
        space.seed(episode_seed(seed, 0))
        env.seed(seed)
        time_step = env.reset()
        for number in range(1, _SHORT + 1):
            time_step = env.step(sample(space, time_step.observation))
            if time_step.step_type == 2 and time_step.discount == 0:
                break  # the task itself is over so soon
            if time_step.step_type != (2 if number == _SHORT else 1) and time_step.step_type != 2:
                got = f"step type {int(time_step.step_type)} at step {number} of {_SHORT}"
                return Finding(rule, False, f"(LAST, 1) at step {_SHORT}", got, fix)
            if time_step.discount != 1:
                got = f"discount {float(time_step.discount)} at step {number} of {_SHORT}"
                return Finding(rule, False, f"(LAST, 1) at step {_SHORT}", got, fix)
            if time_step.step_type == 2:
                break
    except PalaestraError as error:
        return Finding(rule, False, f"(LAST, 1) at step {_SHORT}", str(error), fix)
    return Finding(rule, True)


def sample(space: gymnasium.Space[Any], observation: Any) -> Any:
    """A random action that the observation's `action_mask` allows, if it has one.

    Args:
        space: of actions.
        observation: that the action follows.
    """
    mask = observation.get(_MASK) if isinstance(observation, dict) else None
    return space.sample() if mask is None else space.sample(np.asarray(mask, np.int8))


def close_quietly(env: SingleEnvironment) -> None:
    """Closes an environment; that closing raises nothing is a rule of its own.

    Args:
        env: that is not needed any more.
    """
    with contextlib.suppress(Exception):
        env.close()


def equal(one: TimeStep, two: TimeStep, env: SingleEnvironment) -> bool:
    """Whether two time steps are the same, bit for bit.

    Args:
        one: a time step.
        two: another.
        env: that emitted them.
    """
    if one.step_type != two.step_type or one.discount != two.discount or not np.array_equal(one.reward, two.reward):
        return False
    spec = env.observation_spec
    leaves = zip(flatten(one.observation, spec), flatten(two.observation, spec), strict=True)
    return all(np.array_equal(left, right, equal_nan=left.dtype.kind == "f") for left, right in leaves)


def _has_limit(env: Any) -> bool:
    while isinstance(env, SingleEnvironment) and not isinstance(env, TimeLimit):
        env = getattr(env, "env", None)
    return isinstance(env, TimeLimit)
