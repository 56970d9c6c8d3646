"""Checks an environment against the contract, and says what to change."""

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np

from palaestra.core import PalaestraError, SpecError, SpecTree, TimeStep, episode_seed, spec_leaves, tree_leaves
from palaestra.core.spec import ACTION_MASK
from palaestra.envs.check import rules
from palaestra.envs.check.rules import SHORT, Finding, Stream
from palaestra.envs.contract.environment import Environment, SingleEnvironment
from palaestra.envs.contract.gym_environment import GymEnvironment, bare_of
from palaestra.envs.contract.nest import batched_nest, row_of
from palaestra.envs.contract.spaces import giant_bounds, sample_allowed, space_from_spec
from palaestra.envs.create import create_environment, is_pool, load, load_lane
from palaestra.envs.env_config import EnvConfig
from palaestra.envs.wrappers.episode_ends import TimeLimit
from palaestra.nn import IntegerCode

__all__ = ["CheckReport", "Finding", "check"]

Make = Callable[[], SingleEnvironment]
_OURS = (f"{gymnasium.__path__[0]}/", f"{__file__.rpartition('/envs/')[0]}/")
"""Folders whose lines of a traceback say nothing about an environment."""


@dataclass(frozen=True)
class CheckReport:
    """What `check` found."""

    name: str
    """Of the environment."""
    findings: list[Finding] = field(default_factory=list)
    """One for every rule that could be checked."""
    sees: dict[str, str] = field(default_factory=dict)
    """What a network sees of an observation's integers, by path."""

    @property
    def ok(self) -> bool:
        """Whether no rule is broken; warnings do not count."""
        return all(finding.ok or finding.level == "warning" for finding in self.findings)

    def __str__(self) -> str:
        broken = [finding for finding in self.findings if not finding.ok]
        errors = sum(finding.level == "error" for finding in broken)
        unseen = sum(finding.ok and not finding.seen for finding in self.findings)
        summary = f"{len(self.findings)} rules: {errors} broken, {len(broken) - errors} warnings"
        summary += f", {unseen} not seen: play more steps (--steps)" if unseen else ""
        sees = [f"sees     {f'{path}: ' if path else ''}{text}" for path, text in self.sees.items()]
        return "\n".join([self.name, *(str(finding) for finding in self.findings), *sees, summary])


def check(
    env: str | EnvConfig | Callable[[], Any],
    *,
    steps: int = 1000,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> CheckReport:
    """Plays with random actions and compares what is emitted with the contract.

    What it checks hardest is the end of an episode: a time limit reported as `terminated` teaches a learner that the
    future is worth nothing there.

    Args:
        env: a name as `load` takes it, a configuration, of which one environment is checked with its wrappers, or a
            class or function that makes a `gymnasium.Env` or `SingleEnvironment`. Of environments that are stepped as
            one, a batch is checked lane by lane.
        steps: env steps of each of the runs that are compared.
        progress: called in every step of these runs, three times `steps`.

    Returns:
        Findings, each with what was expected, what came and what to do.

    Examples:
        >>> check("CartPole-v1", steps=100).ok
        True
    """
    if isinstance(env, EnvConfig) and is_pool(env):
        return check_batch(env, steps, seed, progress)
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
    fix = (
        "several are stepped together, and evaluation has its own: take a free port, share a licence or a file; of an "
        "emulator that allows one in a process: --env.vectorization process, as many --env.num-workers as environments"
    )
    two = _tried(found, "A second one can be made beside the first", make, "another environment", fix)
    played = None
    if two is not None:
        rule, fix = "Stepping with random actions raises nothing", "the message says in which step, with which action"
        play = functools.partial(_play_all, report, one, two, steps, seed, progress)
        played = _tried(found, rule, play, "time steps", fix, trace=True)
        _close(two)
    freed, fix = "an environment that lets go of what it holds", "see the traceback"
    _tried(found, "close raises nothing", one.close, freed, fix, trace=True)
    report.sees.update(_sees(one.observation_spec))
    if played:
        stream, again, different, seeded, short, state = played
        found += [
            *rules.stream_rules(one, stream, again, seeded=seeded),
            *rules.end_rules(one, [*stream, *different], short),
        ]
        rule = "A running episode can be replayed, so that a run is resumed exactly"
        fix = "draw from the seed of the episode alone; a layer that remembers earlier episodes is a StatefulWrapper"
        _tried(found, rule, lambda: _replay(make, state), "what was shown before", fix)
        fix = "let begin_episode depend on its seed alone; let close free the port, the licence or the file"
        after = functools.partial(_play_after_last, make, again, seed)
        ended = any(step.step_type == 2 for step in again[:-1])
        _tried(found, "The action after LAST is ignored", after, "equal first time steps", fix, seen=ended)
    return report


def _layered(make: Callable[[], Any]) -> SingleEnvironment:
    env = make()
    if isinstance(env, SingleEnvironment):
        return env
    if not isinstance(env, gymnasium.Env):
        raise SpecError(f"{type(env).__name__} is neither a gymnasium.Env nor a SingleEnvironment")
    return GymEnvironment(env)


def _tried(
    found: list[Finding],
    rule: str,
    call: Callable[[], Any],
    expected: str,
    fix: str,
    *,
    trace: bool = False,
    seen: bool = True,
) -> Any:
    """What a call returns; `None` where it raises, which breaks the rule."""
    try:
        result = call()
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}"
        got = ", ".join([said, *(note for note in getattr(error, "__notes__", ()) if note not in said)])
        frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(_OURS)]
        if trace and frames and not isinstance(error, PalaestraError):
            got += f"\n{''.join(traceback.format_list(frames)).rstrip()}"
        found.append(Finding(rule, got, expected, fix))
        return None
    found.append(Finding(rule, seen=seen))
    return result


def _steps(env: SingleEnvironment, seed: int, actions: int | None = None) -> Iterator[TimeStep]:
    """Random steps without end, with actions of a seed of their own if one is given."""
    space = space_from_spec(env.action_spec)
    space.seed(episode_seed(seed if actions is None else actions, 0))
    env.seed(seed)
    with _told("in reset"):
        time_step = env.reset()
    number = 0
    while True:
        yield time_step
        action = sample_allowed(space, time_step.observation)
        number = 1 if time_step.step_type == 0 else number + 1
        with _told(f"at step {number} with action {action}"):
            time_step = env.step(action)


@contextlib.contextmanager
def _told(where: str) -> Iterator[None]:
    """Adds to an error where it was raised."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise


class _Located(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says in which step of an episode, and with which action, something was raised."""

    number = 0

    def reset(self, **options: Any) -> Any:
        self.number = 0
        with _told("in reset"):
            return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        self.number += 1
        with _told(f"at step {self.number} with action {action}"):
            return self.env.step(action)


def _play(env: SingleEnvironment, steps: int, seed: int, between: Callable[[], object] = lambda: None) -> Stream:
    """So many random steps; `between` is called before each."""
    play = _steps(env, seed)
    stream = [next(play)]
    for _ in range(steps):
        between()
        stream.append(next(play))
    return stream


def _play_all(
    report: CheckReport,
    one: SingleEnvironment,
    two: SingleEnvironment,
    steps: int,
    seed: int,
    progress: Callable[[], None],
) -> tuple[Stream, Stream, Stream, bool, Stream, dict[str, Any]] | None:
    """What the rules of streams and ends ask about; `None` where a rule of Gymnasium is broken.

    Returns:
        A stream, the same again, one of another seed and other actions, whether another seed gives another with the
        same actions, a stream that is cut off, and the state at the end of the first.
    """
    bare = bare_of(one)
    if bare is not None:
        gym_env = _Located(bare.gym_env)
        draw = functools.partial(sample_allowed, gym_env.action_space, key=bare.mask_key)
        report.findings.extend(rules.gym_rules(gym_env, seed, draw))
        if report.ok:
            if ACTION_MASK in gym_env.reset(seed=seed)[1]:
                report.findings.append(rules.mask_rule(one.begin_episode(seed), one.observation_spec))
            report.findings.append(rules.end_of_own_rule(gym_env, steps, seed, draw))
            report.findings.append(_bounds_rule(gym_env.action_space))
    if not report.ok:
        return None
    first = _play(one, steps, seed, progress)
    if first[-1].step_type == 0:  # which shows little of an episode
        one.step(sample_allowed(space_from_spec(one.action_spec), first[-1].observation))
    state = one.state_dict()
    again = _beside(report, one, two, first, seed, progress)
    different = _play(two, steps, seed + 1, progress)
    seeded = rules.parting(first, _steps(two, seed + 1, actions=seed)) is not None
    return first, again, different, seeded, _play(TimeLimit(one, SHORT), SHORT, seed), state


def _beside(
    report: CheckReport,
    one: SingleEnvironment,
    two: SingleEnvironment,
    first: Stream,
    seed: int,
    progress: Callable[[], None],
) -> Stream:
    """The first stream again, of another instance that is stepped in turn with this one; alone if that changes it."""
    steps, others = len(first) - 1, _steps(one, seed + 2)
    again = _play(two, steps, seed, lambda: (next(others), progress()))
    got, seen = "", True
    if not _same(first, again):
        again = _play(two, steps, seed)
        seen = _same(first, again)
        got = "another stream where one of another seed is stepped in turn with it" if seen else ""
    fix = (
        "draw from self.np_random, not from a global generator; keep state in the instance, not in its class, and open "
        "a handle for each. Of a simulator that has one state in a process: --env.vectorization process, as many "
        "--env.num-workers as environments"
    )
    rule = "Two environments do not disturb each other"
    report.findings.append(Finding(rule, got, "the stream that it gives alone", fix, seen=seen))
    return again


def _same(first: Stream, again: Stream) -> bool:
    return all(map(rules.equal, first, again))


def _bounds_rule(space: gymnasium.Space[Any]) -> Finding:
    giant = next(filter(None, map(giant_bounds, tree_leaves(_boxes(space)))), "")
    got = f"{giant}, which is taken for none" if giant else ""
    fix = "give the bounds that actions should have, or infinity where there are none"
    return Finding("Bounds of actions are meant", got, "bounds of at most a million", fix, "warning")


def _boxes(space: Any) -> Any:
    inner = getattr(space, "spaces", None)
    return space if inner is None else [_boxes(one) for one in (inner.values() if isinstance(inner, dict) else inner)]


def _sees(spec: SpecTree) -> dict[str, str]:
    codes = {path: IntegerCode.of(leaf) for path, leaf in spec_leaves(spec).items() if path != ACTION_MASK}
    return {path: code.text for path, code in codes.items() if code is not None}


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
        if not rules.equal(env.step(space.sample()), stream[last + 1]):
            raise SpecError("two different ones, after different actions")
    finally:
        _close(env)


def _close(env: SingleEnvironment) -> None:
    with contextlib.suppress(Exception):  # that closing raises nothing is a rule of its own
        env.close()


def check_batch(config: EnvConfig, steps: int, seed: int, progress: Callable[[], None]) -> CheckReport:
    """The same for environments that are stepped as one: rules of streams and of ends, lane by lane.

    Args:
        config: of the batch.
        steps: env steps of each of the three runs, over all lanes.
        progress: as for `check`.
    """
    report = CheckReport(config.name)
    found, count = report.findings, -(-steps // config.num_envs)

    def play(seed: int) -> Sequence[Stream]:
        with create_environment(config, seed=seed) as env:
            report.sees.update(_sees(env.observation_spec))
            return _play_batch(env, count, progress)

    rule, fix = "A batch can be made, and stepping it with random actions raises nothing", "see the message"
    runs = _tried(found, rule, lambda: [play(seed), play(seed), play(seed + 1)], "time steps", fix, trace=True)
    if runs is None:
        return report
    with create_environment(config, seed=seed) as env:
        lanes = [
            [
                *rules.stream_rules(env, first, again, seeded=rules.parting(first, different) is not None),
                *rules.end_rules(env, [*first, *different], None),
            ]
            for first, again, different in zip(*runs, strict=True)  # all with the same actions
        ]
    for findings in zip(*lanes, strict=True):
        wrong = [(lane, one) for lane, one in enumerate(findings) if not one.ok]
        one = wrong[0][1] if wrong else findings[0]
        got = f"in lane {wrong[0][0]}: {one.got}" if wrong else ""
        found.append(replace(one, got=got, seen=any(lane.seen for lane in findings)))
    return report


def _play_batch(env: Environment, steps: int, progress: Callable[[], None]) -> Sequence[Stream]:
    """The stream of every lane; LAST rows of environments that reset within the step stand before their FIRST."""
    space = space_from_spec(env.action_spec)
    space.seed(0)
    streams: list[list[TimeStep]] = [[] for _ in range(env.batch_size)]

    def note(rows: TimeStep) -> None:
        for row, lane in enumerate(rows.env_id.tolist()):
            seen = row_of(rows.observation, row, env.observation_spec)
            acted = row_of(rows.prev_action, row, env.action_spec)
            kind, reward, discount = (np.asarray(leaf[row].cpu())[()] for leaf in (rows[0], rows[1], rows[2]))
            streams[lane].append(TimeStep(kind, reward, discount, seen, acted, lane, (), {}))

    note(env.reset())
    for _ in range(steps):
        actions = [sample_allowed(space, stream[-1].observation) for stream in streams]
        rows = env.step(batched_nest(actions, env.action_spec).to(env.device))
        if env.ended is not None:
            note(env.ended)
        note(rows)
        for _ in streams:
            progress()
    return streams
