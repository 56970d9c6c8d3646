"""Checks an environment against the contract, and says what to change."""

import contextlib
import functools
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from palaestra.core import PalaestraError, SpecError, episode_seed
from palaestra.envs.check.rules import SHORT, Finding, Stream, end_rules, equal, gym_rules, stream_rules
from palaestra.envs.contract.environment import SingleEnvironment
from palaestra.envs.contract.gym_environment import GymEnvironment, gym_env_of
from palaestra.envs.contract.spaces import sample_allowed, space_from_spec
from palaestra.envs.create import load, load_lane
from palaestra.envs.env_config import EnvConfig
from palaestra.envs.wrappers.episode_ends import TimeLimit

__all__ = ["CheckReport", "Finding", "check"]

Make = Callable[[], SingleEnvironment]


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
    if isinstance(env, str):
        name, make = env, functools.partial(load, env)
    elif isinstance(env, EnvConfig):
        name, make = env.name, functools.partial(load_lane, env, 0)
    else:
        name, make = getattr(env, "__name__", repr(env)), functools.partial(_layered, env)
    report = CheckReport(name)
    found = report.findings
    fix = "see the message; a class or function that is given here has to run without arguments"
    one = _tried(found, "The environment can be made", make, "an environment with spaces of fixed shape", fix)
    if one is None:
        return report
    fix = "several are stepped together, and evaluation has its own: take a free port, share a licence or a file"
    two = _tried(found, "A second one can be made beside the first", make, "another environment", fix)
    played = None
    if two is not None:
        rule, fix = "Stepping with random actions raises nothing", "the message says in which step, with which action"
        played = _tried(found, rule, lambda: _play_all(report, one, two, steps, seed), "time steps", fix, trace=True)
        _close(two)
    freed, fix = "an environment that lets go of what it holds", "see the traceback"
    _tried(found, "close raises nothing", one.close, freed, fix, trace=True)
    if played:
        stream, again, different, short, state = played
        found += [*stream_rules(one, stream, again, different), *end_rules(one, [*stream, *different], short)]
        rule = "A running episode can be replayed, so that a run is resumed exactly"
        fix = "draw from the seed of the episode alone; a layer that remembers earlier episodes is a StatefulWrapper"
        _tried(found, rule, lambda: _replay(make, state), "what was shown before", fix)
        fix = "let begin_episode depend on its seed alone; let close free the port, the licence or the file"
        after = functools.partial(_play_after_last, make, again, seed)
        _tried(found, "The action after LAST is ignored", after, "equal first time steps", fix)
    return report


def _layered(make: Callable[[], Any]) -> SingleEnvironment:
    env = make()
    if isinstance(env, SingleEnvironment):
        return env
    if not isinstance(env, gymnasium.Env):
        raise SpecError(f"{type(env).__name__} is neither a gymnasium.Env nor a SingleEnvironment")
    return GymEnvironment(env)


def _tried(
    found: list[Finding], rule: str, call: Callable[[], Any], expected: str, fix: str, *, trace: bool = False
) -> Any:
    """What a call returns; `None` where it raises, which breaks the rule."""
    try:
        result = call()
    except (Exception, SystemExit) as error:
        full = trace and not isinstance(error, PalaestraError)
        got = traceback.format_exc() if full else f"{type(error).__name__}: {error}"
        found.append(Finding(rule, got, expected, fix))
        return None
    found.append(Finding(rule))
    return result


def _play(env: SingleEnvironment, steps: int, seed: int) -> Stream:
    space = space_from_spec(env.action_spec)
    space.seed(episode_seed(seed, 0))
    env.seed(seed)
    stream = [env.reset()]
    for _ in range(steps):
        stream.append(env.step(sample_allowed(space, stream[-1].observation)))
    return stream


def _play_all(
    report: CheckReport, one: SingleEnvironment, two: SingleEnvironment, steps: int, seed: int
) -> tuple[Stream, Stream, Stream, Stream, dict[str, Any]] | None:
    """A stream, the same again, one of another seed, one that is cut off, and the state at the end of the first.

    `None` where a rule of Gymnasium is broken.
    """
    gym_env = gym_env_of(one)
    if gym_env is not None:
        report.findings.extend(gym_rules(gym_env, seed))
    if not report.ok:
        return None
    first = _play(one, steps, seed)
    if first[-1].step_type == 0:  # which shows little of an episode
        one.step(sample_allowed(space_from_spec(one.action_spec), first[-1].observation))
    state = one.state_dict()
    again, different = _play(two, steps, seed), _play(two, steps, seed + 1)
    return first, again, different, _play(TimeLimit(one, SHORT), SHORT, seed), state


def _replay(make: Make, state: dict[str, Any]) -> None:
    """Puts a new environment where another was."""
    with contextlib.closing(make()) as env:
        env.load_state_dict(state)


def _play_after_last(make: Make, stream: Stream, seed: int) -> None:
    """Plays a stream's first episode again, and takes another action after it."""
    last = next((number for number, step in enumerate(stream[:-1]) if step.step_type == 2), None)
    if last is None:
        return
    env = make()
    try:
        space = space_from_spec(env.action_spec)
        space.seed(episode_seed(seed, 1))
        env.seed(seed)
        env.reset()
        for time_step in stream[1 : last + 1]:
            env.step(time_step.prev_action)
        if not equal(env.step(space.sample()), stream[last + 1]):
            raise SpecError("two different ones, after different actions")
    finally:
        _close(env)


def _close(env: SingleEnvironment) -> None:
    with contextlib.suppress(Exception):  # that closing raises nothing is a rule of its own
        env.close()
