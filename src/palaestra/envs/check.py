"""Checks an environment against the contract, and says what to change."""

import functools
import itertools
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from palaestra.core import PalaestraError, SpecError, TimeStep, check_time_step, episode_seed, spec_leaves
from palaestra.envs.check_ends import (
    Finding,
    close_quietly,
    cut_off,
    ends,
    equal,
    ignored_action,
    limits_reported,
    masks,
    sample,
)
from palaestra.envs.create import load, load_lane
from palaestra.envs.env_config import EnvConfig
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.gym_environment import gym_env_of
from palaestra.envs.nest import flatten, leaf_dtypes
from palaestra.envs.spaces import space_from_spec, spec_from_space
from palaestra.envs.suites.gym import wrap

__all__ = ["CheckReport", "Finding", "check"]


@dataclass(frozen=True)
class CheckReport:
    """What `check` found."""

    name: str
    """Of the environment."""
    findings: list[Finding] = field(default_factory=list)
    """One for every rule that could be checked."""

    @property
    def ok(self) -> bool:
        """Whether no rule is broken; warnings do not count."""
        return all(finding.ok or finding.level == "warning" for finding in self.findings)

    def __str__(self) -> str:
        broken = [finding for finding in self.findings if not finding.ok]
        errors = sum(finding.level == "error" for finding in broken)
        summary = f"{len(self.findings)} rules: {errors} broken, {len(broken) - errors} warnings"
        return "\n".join([self.name, *(str(finding) for finding in self.findings), summary])


Stream = list[TimeStep]


def check(env: str | EnvConfig | Callable[[], Any], *, steps: int = 1000, seed: int = 0) -> CheckReport:
    """Plays with random actions and compares what is emitted with the contract.

    What it checks hardest is the end of an episode: a time limit reported as `terminated` teaches a learner that the
    future is worth nothing there.

    Args:
        env: a name as `load` takes it, a configuration, of which one environment is checked with its wrappers, or a
            class or function that makes a `gymnasium.Env` or `SingleEnvironment`.
        steps: env steps of each of the runs that are compared.
        seed: of environment and actions.

    Returns:
        Findings, each with what was expected, what came and what to do.

    Examples:
        >>> check("CartPole-v1", steps=100).ok
        True
    """
    name, make = _maker(env)
    findings: list[Finding] = []
    try:
        with_gym = make()
    except (Exception, SystemExit) as error:
        made = "an environment with spaces of fixed shape"
        fix = "let the constructor run without arguments" if isinstance(error, TypeError) else "see the message"
        finding = Finding("The environment can be made", False, made, f"{type(error).__name__}: {error}", fix)
        return CheckReport(name, [finding])
    findings.append(Finding("The environment can be made", True))
    rules: list[Finding] = []
    try:
        gym_env = gym_env_of(with_gym)
        if gym_env is not None:
            try:
                findings += _gym_rules(gym_env, seed)
            except (Exception, SystemExit):
                rule, trace = "Stepping with random actions raises nothing", traceback.format_exc()
                findings.append(Finding(rule, False, "an observation", trace, "see the traceback"))
        if all(finding.ok or finding.level == "warning" for finding in findings):
            rules = _stream_rules(with_gym, make, steps, seed)
    finally:
        findings += [*rules, _closes(with_gym)]
    if len(rules) > 1:  # it could be played; two more are made only now, since some allow no third at a time
        findings.append(ignored_action(make, seed, steps))
    return CheckReport(name, findings)


def _maker(env: str | EnvConfig | Callable[[], Any]) -> tuple[str, Callable[[], SingleEnvironment]]:
    if isinstance(env, str):
        return env, functools.partial(load, env)
    if isinstance(env, EnvConfig):
        return env.name, functools.partial(load_lane, env, 0)
    return getattr(env, "__name__", repr(env)), functools.partial(_layered, env)


def _closes(env: SingleEnvironment) -> Finding:
    rule = "close raises nothing"
    try:
        env.close()
    except Exception:
        return Finding(rule, False, "an environment that lets go of what it holds", traceback.format_exc(), "see above")
    return Finding(rule, True)


def _layered(make: Callable[[], Any]) -> SingleEnvironment:
    env = make()
    if isinstance(env, SingleEnvironment):
        return env
    if not isinstance(env, gymnasium.Env):
        raise SpecError(f"{type(env).__name__} is neither a gymnasium.Env nor a SingleEnvironment")
    return wrap(env)


# -- what only a Gymnasium environment promises


def _gym_rules(gym_env: gymnasium.Env[Any, Any], seed: int) -> Iterator[Finding]:
    rule = "reset(seed=...) returns (observation, info)"
    signature = "def reset(self, *, seed=None, options=None): super().reset(seed=seed); ...; return observation, {}"
    try:
        result = gym_env.reset(seed=seed)
    except TypeError as error:
        yield Finding(rule, False, "a pair", f"TypeError: {error}", signature)
        return
    pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
    yield Finding(rule, pair, "a pair of an observation and a dict", _kinds(result), signature)
    if not pair:
        return
    gym_env.action_space.seed(seed)
    result: Any = gym_env.step(sample(gym_env.action_space, result[0]))
    rule = "step returns (observation, reward, terminated, truncated, info)"
    five = isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict)
    fix = "the last is a dict; an old `done` is split into terminated (the task ended) and truncated (it was cut off)"
    yield Finding(rule, five, "five values, the last of them a dict", _kinds(result), fix)
    if not five:
        return
    flags = all(isinstance(flag, bool | np.bool_) for flag in result[2:4])
    kinds = f"{type(result[2]).__name__} and {type(result[3]).__name__}"
    yield Finding("terminated and truncated are booleans", flags, "bool and bool", kinds, "wrap them in bool(...)")
    yield _overwrites(gym_env, seed)
    spec = spec_from_space(gym_env.observation_space)
    dtypes = zip((np.asarray(leaf).dtype for leaf in flatten(result[0], spec)), leaf_dtypes(spec), strict=True)
    odd = next((f"{given}, the space says {dtype}" for given, dtype in dtypes if given != dtype), "")
    fix = "np.asarray(observation, dtype); this library casts it at every step, other libraries may not"
    yield Finding("Observations have the dtype of their space", not odd, "equal dtypes", odd, fix, "warning")


def _overwrites(gym_env: gymnasium.Env[Any, Any], seed: int) -> Finding:
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    observation, _ = gym_env.reset(seed=seed)
    for _ in range(5):
        seen += [(leaf, leaf.copy()) for leaf in _arrays(observation)]
        observation, _, terminated, truncated, _ = gym_env.step(sample(gym_env.action_space, observation))
        if terminated or truncated:
            break
    kept = all(np.array_equal(leaf, copy, equal_nan=leaf.dtype.kind == "f") for leaf, copy in seen)
    return Finding(
        "Observations are not overwritten by later steps",
        kept,
        "a new array from every step",
        "an array returned earlier has changed since",
        "return a copy; this library copies what it gets, but wrappers and other libraries may not",
        "warning",
    )


# -- what every environment promises


def _stream_rules(
    env: SingleEnvironment, make: Callable[[], SingleEnvironment], steps: int, seed: int
) -> list[Finding]:
    try:
        other = make()
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        fix = "several are stepped together, and evaluation has its own: take a free port, share a licence or a file"
        return [Finding("A second one can be made beside the first", False, "another environment", got, fix)]
    rule = "Stepping with random actions raises nothing"
    try:
        stream = _play(env, steps, seed)
        again, different = _play(other, steps, seed), _play(other, steps, seed + 1)
    except PalaestraError as error:
        return [Finding(rule, False, "time steps", str(error), "the message says in which step, with which action")]
    finally:
        close_quietly(other)
    return [
        Finding(rule, True),
        _pairs(stream),
        _order(stream),
        _firsts(stream),
        *_specs(stream, env),
        _reproducible(stream, again, env),
        _seeded(stream, different, env),
        *ends([*stream, *different], env, limits_reported(stream)),
        *masks([*stream, *different]),
        cut_off(env, seed),
    ]


def _play(env: SingleEnvironment, steps: int, seed: int) -> Stream:
    space = space_from_spec(env.action_spec)
    space.seed(episode_seed(seed, 0))
    env.seed(seed)
    stream = [env.reset()]
    for _ in range(steps):
        stream.append(env.step(sample(space, stream[-1].observation)))
    return stream


def _pairs(stream: Stream) -> Finding:
    rule = "discount is 0 or 1, and 0 only with LAST"
    fix = "a layer changed step_type or discount: use core.termination, truncation or transition"
    for time_step in stream:
        try:
            check_time_step(time_step)
        except PalaestraError as error:
            return Finding(rule, False, "(FIRST, 1), (MID, 1), (LAST, 0) or (LAST, 1)", str(error), fix)
    return Finding(rule, True)


def _order(stream: Stream) -> Finding:
    rule = "An episode is FIRST, MID, ..., LAST, and the step after LAST ignores its action and is FIRST"
    for number, (before, after) in enumerate(itertools.pairwise(stream)):
        if (before.step_type == 2) != (after.step_type == 0):
            got = f"step type {int(after.step_type)} after {int(before.step_type)}, at step {number + 1}"
            return Finding(rule, False, "FIRST after LAST, else MID or LAST", got, "let begin_episode return FIRST")
    return Finding(rule, True)


def _firsts(stream: Stream) -> Finding:
    firsts = [time_step for time_step in stream if time_step.step_type == 0]
    bad = next((first for first in firsts if np.any(first.reward) or any(np.any(x) for x in _leaves(first))), None)
    got = "" if bad is None else f"reward {bad.reward}, prev_action {bad.prev_action}"
    rule = "A FIRST step has reward 0 and the previous action zeros"
    return Finding(rule, bad is None, "reward 0, prev_action zeros", got, "do not give a reward in begin_episode")


def _specs(stream: Stream, env: SingleEnvironment) -> Iterator[Finding]:
    fix = "correct the observation space, or the observation (np.asarray(..., dtype), np.clip)"
    observations = (time_step.observation for time_step in stream)
    yield _fits("Observations fit their spec and are finite", observations, env.observation_spec, fix)
    rewards = (np.asarray(time_step.reward, np.float32) for time_step in stream)
    yield _fits("Rewards fit their spec and are finite", rewards, env.reward_spec, "return one finite float")


def _fits(rule: str, values: Iterable[Any], spec: Any, fix: str) -> Finding:
    paths = spec_leaves(spec)
    for number, value in enumerate(values):
        for (path, leaf_spec), leaf in zip(paths.items(), flatten(value, spec), strict=True):
            wrong = leaf_spec.problem(leaf)
            if wrong:
                got, _, expected = wrong.partition(", expected ")
                where = f" at {path!r}" if path else ""
                return Finding(rule, False, expected, f"{got}{where}, in time step {number}", fix)
    return Finding(rule, True)


def _reproducible(stream: Stream, again: Stream, env: SingleEnvironment) -> Finding:
    where = next((i for i, (one, two) in enumerate(zip(stream, again, strict=True)) if not equal(one, two, env)), None)
    return Finding(
        "The same seed and actions give the same stream",
        where is None,
        "two equal streams from two instances",
        f"they differ from time step {where} on",
        "draw every random number from self.np_random, which super().reset(seed=seed) seeds; "
        "keep no state across episodes. Else a resumed run is not the run that was interrupted",
    )


def _seeded(stream: Stream, different: Stream, env: SingleEnvironment) -> Finding:
    differ = not equal(stream[0], different[0], env) or any(
        not equal(one, two, env) for one, two in zip(stream, different, strict=True)
    )
    expected, got = "two different streams", "two equal ones, with different actions as well"
    fix = "nothing, if the task is the same every time; else use self.np_random in reset"
    return Finding("Another seed gives another stream", differ, expected, got, fix, "warning")


def _leaves(time_step: TimeStep) -> list[np.ndarray]:
    return list(_arrays(time_step.prev_action))


def _arrays(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for child in value:
            yield from _arrays(child)
    elif isinstance(value, np.ndarray | np.generic):
        yield np.asarray(value)


def _kinds(result: Any) -> str:
    if not isinstance(result, tuple):
        return f"a {type(result).__name__}"
    return f"{len(result)} values: {', '.join(type(value).__name__ for value in result)}"
