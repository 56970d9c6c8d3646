"""The rules of `check`. What is most often wrong, and hardest to notice, is how episodes end."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np

from palaestra.core import PalaestraError, SpecError, SpecTree, TimeStep, check_time_step, spec_leaves, tree_leaves
from palaestra.core.spec import ACTION_MASK
from palaestra.envs.contract.environment import SingleEnvironment
from palaestra.envs.contract.episodes import require_read_mask
from palaestra.envs.contract.gym_environment import FINAL, REPORTED
from palaestra.envs.contract.nest import copied, flatten, leaf_dtypes
from palaestra.envs.contract.rows import no_number
from palaestra.envs.contract.spaces import spec_from_space
from palaestra.envs.wrappers.episode_ends import TimeLimit

SHORT = 3
"""Steps of the episode that a time limit cuts off."""

Stream = Sequence[TimeStep]
Draw = Callable[[Any, Any], Any]
"""Gives an action for an observation and the `info` that came with it."""


@dataclass(frozen=True)
class Finding:
    """One rule, and whether the environment keeps it."""

    rule: str
    """The rule, as a sentence."""
    got: str = ""
    """What was seen that breaks the rule; empty where it holds."""
    expected: str = ""
    """What should have been seen."""
    fix: str = ""
    """What to change."""
    level: Literal["error", "warning"] = "error"
    """An error makes training wrong or impossible; a warning may be meant."""
    seen: bool = True
    """Whether what the rule is about came about at all."""

    @property
    def ok(self) -> bool:
        """Whether the rule holds."""
        return not self.got

    def __str__(self) -> str:
        if self.ok:
            return f"{'ok' if self.seen else 'not seen':8} {self.rule}"
        details = {"expected": self.expected, "got": self.got, "fix": self.fix}
        lines = [f"           {name:8}: {text}" for name, text in details.items() if text]
        return "\n".join([f"{self.level:8} {self.rule}", *lines])


def equal(one: TimeStep, two: TimeStep) -> bool:
    """Whether step type, reward, discount and observation are the same, bit for bit.

    Args:
        one: a time step.
        two: another.
    """
    return _same(one[:4], two[:4], equal_nan=True)


def parting(one: Stream, two: Iterable[TimeStep]) -> int | None:
    """The number of the first time step that differs; `None` where all are equal.

    Args:
        one: a stream.
        two: another, at least as long.
    """
    return next((number for number, pair in enumerate(zip(one, two, strict=False)) if not equal(*pair)), None)


def gym_rules(gym_env: gymnasium.Env[Any, Any], seed: int, draw: Draw) -> Iterator[Finding]:
    """What only a Gymnasium environment promises.

    Args:
        gym_env: with its Gymnasium wrappers.
        draw: its random actions.
    """
    rule, pair = "reset(seed=...) returns (observation, info)", "a pair of an observation and a dict"
    signature = "def reset(self, *, seed=None, options=None): super().reset(seed=seed); ...; return observation, {}"
    try:
        result: Any = gym_env.reset(seed=seed)
        wrong = _unlike(result, 2)
    except TypeError as error:
        result, wrong = None, f"TypeError: {error}"
    yield Finding(rule, wrong, pair, signature)
    if wrong:
        return
    gym_env.action_space.seed(seed)
    result = gym_env.step(draw(*result))
    wrong = _unlike(result, 5)
    rule = "step returns (observation, reward, terminated, truncated, info)"
    fix = "the last is a dict; an old `done` is split into terminated (the task ended) and truncated (it was cut off)"
    yield Finding(rule, wrong, "five values, the last of them a dict", fix)
    if wrong:
        return
    kinds = [type(flag).__name__ for flag in result[2:4] if not isinstance(flag, bool | np.bool_)]
    wrong, odd = no_number(result[1]), "shape (1,)" if np.shape(result[1]) == (1,) else ""
    fix = "return float(reward)" + ("" if wrong else "; this library takes the number out, other libraries may not")
    yield Finding("A reward is a number", wrong or odd, "a float", fix, "error" if wrong else "warning")
    rule, fix = "terminated and truncated are booleans", "wrap them in bool(...)"
    yield Finding(rule, ", ".join(kinds), "bool and bool", fix)
    got = "an array returned earlier has changed since" if _overwrites(gym_env, seed, draw) else ""
    fix = "return a copy; this library copies what it gets, but wrappers and other libraries may not"
    rule = "Observations are not overwritten by later steps"
    yield Finding(rule, got, "a new array from every step", fix, "warning")
    spec = spec_from_space(gym_env.observation_space)
    dtypes = zip((np.asarray(leaf).dtype for leaf in flatten(result[0], spec)), leaf_dtypes(spec), strict=True)
    odd = next((f"{given}, the space says {dtype}" for given, dtype in dtypes if given != dtype), "")
    fix = "np.asarray(observation, dtype); this library casts it at every step, other libraries may not"
    yield Finding("Observations have the dtype of their space", odd, "equal dtypes", fix, "warning")


def _unlike(result: Any, count: int) -> str:
    """What is there instead of so many values, the last of them a dict."""
    if not isinstance(result, tuple):
        return f"a {type(result).__name__}"
    if len(result) == count and isinstance(result[-1], dict):
        return ""
    return f"{len(result)} values: {', '.join(type(value).__name__ for value in result)}"


def end_of_own_rule(gym_env: gymnasium.Env[Any, Any], steps: int, seed: int, draw: Draw) -> Finding:
    """Whether the observation of an episode's end is its own.

    A step that calls a layer's `reset` and returns what that gave is seen directly. Else episodes are played to one
    step before their end and reset there: one that resets itself shows that observation, unless its step has drawn
    random numbers. If a step before the end shows what a reset in its place does, too, observations are drawn alike in
    both. Where the last step has drawn some, its observation is the episode's own if another episode ends with another
    one, drawing the same numbers, or if it differs where all first observations are equal; else nothing is known.

    Args:
        gym_env: with its Gymnasium wrappers.
        steps: most env steps.
        draw: random actions.
    """
    rule = "The last observation of an episode is its own, not the first of the next one"
    fix = "return the episode's last observation from step, and leave resetting to reset()"
    seen, alike, key, former, firsts, lasts = 0, 0, "", None, list[Any](), list[Any]()
    for episode in range(3):
        end = _to_the_end(gym_env, steps, seed + episode, draw)
        if end is None:
            break
        key = next((name for name in FINAL if end.info.get(name) is not None), key)
        reset, known = end.reset, end.reset
        if len(end.actions) > 1:
            instead, usual = (_reset_after(gym_env, seed + episode, end.actions[:-back]) for back in (1, 2))
            fits = _same(end.observation, instead)
            reset = reset or (fits and not _same(end.before, instead) and not _same(end.before, usual))
            comparable = former if end.drew and former and former.state is not None else None
            differs = comparable and _differs(gym_env, seed + episode, end.actions, comparable)
            known = reset or not end.drew or bool(differs)
            firsts, lasts = [*firsts, instead, usual], [*lasts, end.observation]
        seen, alike, former = seen + known, alike + reset, end
    if key:
        got = f"it resets itself, and has that observation in info[{key!r}], from where this library takes it"
        return Finding(rule, got, "the episode's own last observation", fix, "warning")
    seen = seen or any(_is_no_first(last, firsts) for last in lasts)
    got = f"at {alike} of {seen} ends the observation is the one that reset() gives there" if seen == alike > 0 else ""
    fix = f"if it resets itself: {fix}. If episodes do end where they begin, all is well"
    return Finding(rule, got, "another observation", fix, "warning", seen=bool(seen))


def _is_no_first(observation: Any, firsts: Sequence[Any]) -> bool:
    """Whether an observation differs where all first ones are equal."""
    return any(
        np.any(np.all([np.asarray(other) == one for other in others], axis=0) & (np.asarray(last) != one))
        for last, one, *others in zip(tree_leaves(observation), *map(tree_leaves, firsts), strict=True)
    )


def _reset_after(gym_env: gymnasium.Env[Any, Any], seed: int, actions: Sequence[Any]) -> Any:
    """What a reset shows in the place of the step that would follow these."""
    _replay(gym_env, seed, actions)
    return copied(gym_env.reset()[0])


def _replay(gym_env: gymnasium.Env[Any, Any], seed: int, actions: Sequence[Any]) -> None:
    gym_env.reset(seed=seed)
    for action in actions:
        gym_env.step(action)


class _End(NamedTuple):
    """How an episode ended."""

    actions: list[Any]
    """All of it."""
    before: Any
    """The observation before the last."""
    observation: Any
    """The last."""
    info: dict[str, Any]
    """Of the last step."""
    state: Any
    """Of the random numbers, before the last step."""
    drew: bool
    """Whether the last step has drawn some."""
    reset: bool
    """Whether a layer's last step called a `reset` and returned what that gave."""


def _to_the_end(gym_env: gymnasium.Env[Any, Any], steps: int, seed: int, draw: Draw) -> _End | None:
    """An episode with random actions; `None` where it did not end."""
    gym_env.action_space.seed(seed)
    observation, info = gym_env.reset(seed=seed)
    before, actions, returned = copied(observation), list[Any](), list[bool]()
    layers = _watched(gym_env, returned)
    try:
        for _ in range(steps):
            actions.append(draw(before, info))
            state = _random_state(gym_env)
            returned.clear()
            observation, _, terminated, truncated, info = gym_env.step(actions[-1])
            if terminated or truncated:
                drew = not _same(state, _random_state(gym_env))
                return _End(actions, before, copied(observation), info, state, drew, any(returned))
            before = copied(observation)
    finally:
        for layer in layers:
            del layer.step, layer.reset
    return None


def _watched(gym_env: gymnasium.Env[Any, Any], returned: list[bool]) -> list[Any]:
    """The layers that are watched: each step notes whether it returns what a reset that it called gave."""
    layers, given = list[Any](), list[Any]()

    def step(layer: Any, /, *args: Any, **options: Any) -> Any:
        before = len(given)
        result = type(layer).step(layer, *args, **options)
        returned.append(isinstance(result, tuple) and any(_same(result[0], one) for one in given[before:]))
        return result

    def reset(layer: Any, /, *args: Any, **options: Any) -> Any:
        result = type(layer).reset(layer, *args, **options)
        given.extend([copied(result[0])] if isinstance(result, tuple) else [])
        return result

    layer: Any = gym_env
    while layer is not None:
        if not {"step", "reset"} & vars(layer).keys():
            layers.append(layer)
            layer.step, layer.reset = step.__get__(layer), reset.__get__(layer)  # of a copy, the copy's
        layer = layer.env if isinstance(layer, gymnasium.Wrapper) else None
    return layers


def _random_state(gym_env: gymnasium.Env[Any, Any]) -> Any:
    """Of the generator that Gymnasium seeds; `None` where there is another."""
    generator = getattr(gym_env.unwrapped, "np_random", None)
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else None


def _differs(gym_env: gymnasium.Env[Any, Any], seed: int, actions: Sequence[Any], former: _End) -> bool:
    """Whether an episode ends with another observation than a former one where its last step draws the same numbers."""
    _replay(gym_env, seed, actions[:-1])
    gym_env.unwrapped.np_random.bit_generator.state = former.state
    observation, _, terminated, truncated, _ = gym_env.step(actions[-1])
    return bool(terminated or truncated) and not _same(observation, former.observation)


def _same(one: Any, two: Any, *, equal_nan: bool = False) -> bool:
    pairs = itertools.zip_longest(tree_leaves(one), tree_leaves(two))
    return all(np.array_equal(left, right, equal_nan=equal_nan) for left, right in pairs)


def mask_rule(first: TimeStep, observation_spec: SpecTree) -> Finding:
    """Whether a mask that an environment reports is read.

    Args:
        first: of an episode, from the outermost layer.
        observation_spec: of that.
    """
    try:
        require_read_mask(first.env_info, observation_spec)
        wrong = ""
    except SpecError as error:
        wrong = str(error)
    fix = "--env.wrappers ActionMask"
    return Finding("A mask of actions in info is read", wrong, "an action_mask in the observation", fix)


def _overwrites(gym_env: gymnasium.Env[Any, Any], seed: int, draw: Draw) -> bool:
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    observation, info = gym_env.reset(seed=seed)
    for _ in range(5):
        seen += [(leaf, leaf.copy()) for leaf in tree_leaves(observation) if isinstance(leaf, np.ndarray)]
        observation, _, terminated, truncated, info = gym_env.step(draw(observation, info))
        if terminated or truncated:
            break
    return not all(np.array_equal(leaf, copy, equal_nan=leaf.dtype.kind == "f") for leaf, copy in seen)


def stream_rules(env: Any, stream: Stream, again: Stream, *, seeded: bool) -> Iterator[Finding]:
    """What every time step has to be, and what follows from the seed.

    Args:
        env: that was played.
        stream: what it emitted.
        again: with the same seed and actions.
        seeded: whether another seed gives another, with the same actions.
    """
    rule, pairs = "discount is 0 or 1, and 0 only with LAST", "(FIRST, 1), (MID, 1), (LAST, 0) or (LAST, 1)"
    fix = "a layer changed step_type or discount: use core.termination, truncation or transition"
    yield Finding(rule, next(_unpaired(stream), ""), pairs, fix)
    jumps = (
        f"step type {int(after.step_type)} after {int(before.step_type)}, at step {number}"
        for number, (before, after) in enumerate(itertools.pairwise(stream), start=1)
        if (before.step_type == 2) != (after.step_type == 0)
    )
    rule = "An episode is FIRST, MID, ..., LAST, and the step after LAST ignores its action and is FIRST"
    yield Finding(rule, next(jumps, ""), "FIRST after LAST, else MID or LAST", "let begin_episode return FIRST")
    earned = (
        f"reward {step.reward}, prev_action {step.prev_action}"
        for step in stream
        if step.step_type == 0 and any(np.any(leaf) for leaf in tree_leaves((step.reward, step.prev_action)))
    )
    rule, fix = "A FIRST step has reward 0 and the previous action zeros", "do not give a reward in begin_episode"
    yield Finding(rule, next(earned, ""), "reward 0, prev_action zeros", fix)
    fix = "correct the observation space, or the observation (np.asarray(..., dtype), np.clip)"
    misfits = _misfits((step.observation for step in stream), env.observation_spec)
    yield Finding("Observations fit their spec and are finite", next(misfits, ""), "what the spec says", fix)
    misfits = _misfits((np.asarray(step.reward, np.float32) for step in stream), env.reward_spec)
    misfits = itertools.chain(filter(None, (no_number(step.reward) for step in stream)), misfits)
    rule, fix = "Rewards fit their spec and are finite", "return one finite float"
    yield Finding(rule, next(misfits, ""), "what the spec says", fix)
    where = parting(stream, again)
    rule, got = "The same seed and actions give the same stream", f"they differ from time step {where} on"
    fix = (
        "draw every random number from self.np_random, which super().reset(seed=seed) seeds; keep no state across "
        "episodes. Else a resumed run is not the run that was interrupted"
    )
    yield Finding(rule, "" if where is None else got, "two equal streams from two instances", fix)
    got = "" if seeded else f"two equal ones of {len(stream)} time steps, with the same actions"
    fix = "nothing, if the task is the same every time; else draw from self.np_random, after super().reset(seed=seed)"
    yield Finding("Another seed gives another stream", got, "two different streams", fix, "warning")


def _unpaired(stream: Stream) -> Iterator[str]:
    for time_step in stream:
        try:
            check_time_step(time_step)
        except PalaestraError as error:
            yield str(error)


def _misfits(values: Iterable[Any], spec: SpecTree) -> Iterator[str]:
    leaves = spec_leaves(spec)
    for number, value in enumerate(values):
        for (path, leaf_spec), leaf in zip(leaves.items(), flatten(value, spec), strict=True):
            if wrong := leaf_spec.problem(leaf):
                yield f"{wrong}{f' at {path!r}' if path else ''}, in time step {number}"


def end_rules(env: Any, stream: Stream, short: Stream | None) -> Iterator[Finding]:
    """Whether episodes end, whether what looks like an end is a time limit, and whether there is something to do.

    Args:
        env: that was played.
        stream: of one or several runs.
        short: one episode under a time limit of `SHORT`, which goes around single environments alone.
    """
    lasts = list(_lasts(stream))
    terminated = [length for length, step in lasts if step.discount == 0]
    truncated = [length for length, step in lasts if step.discount != 0]
    infos = [step.env_info for _, step in lasts if step.discount == 0 and isinstance(step.env_info, dict)]
    reported = sum(bool(info.get(REPORTED)) for info in infos)
    rule, got = "Episodes end, or there is a time limit", f"none in {len(stream)} time steps"
    got = "" if terminated or truncated or _has_limit(env) else got
    fix = "register the environment with max_episode_steps, or set env.max_episode_steps in the config"
    yield Finding(rule, got, "an episode that ends", fix, "warning")
    limit, count = _heap(terminated)
    hidden = limit > 1 and all(cut > limit for cut in truncated)
    got = f"{count} of {len(terminated)} episodes terminated at step {limit} exactly, and none later" if hidden else ""
    rule = "A time limit is reported as truncated, not as terminated"
    needed = "episodes that terminate at different steps, or truncated=True at a limit"
    fix = (
        "if that is a time limit: return truncated=True there, or, where the code cannot be changed, wrap with "
        f"TimeLimit(env, {limit - 1}). If the task is over after {limit} steps, all is well"
    )
    yield Finding(rule, got, needed, fix, "warning", seen=bool(lasts))
    rule, needed = "An end that info calls a time limit is truncated", f"discount 1 where info[{REPORTED!r}] is true"
    got = f"discount 0 at {reported} such ends" if reported else ""
    fix = "return terminated=False, truncated=True there: the old `done` meant both"
    yield Finding(rule, got, needed, fix, seen=bool(lasts))
    yield from _stuck_rule(stream)
    if short is None:
        return
    rule, needed = "An episode that is cut off is LAST with discount 1", f"(LAST, 1) at step {SHORT}"
    fix = "a layer changes discount or step_type where it must not; see the table of episode ends"
    yield Finding(rule, _not_cut_off(short), needed, fix)


def _stuck_rule(stream: Stream) -> Iterator[Finding]:
    masked = [step for step in stream if isinstance(step.observation, dict) and ACTION_MASK in step.observation]
    pairs = ((number, step) for number, step in enumerate(masked) if step.step_type != 2)
    stuck = [number for number, step in pairs if not np.any(step.observation[ACTION_MASK])]
    got = f"none in {len(stuck)} of {len(masked)} time steps, the first of them number {stuck[0]}" if stuck else ""
    rule = "An action_mask allows some action, unless the step is LAST"
    fix = "where nothing can be done, end the episode, or allow an action that does nothing"
    if masked:
        yield Finding(rule, got, "at least one 1 in the mask", fix)


def _lasts(stream: Stream) -> Iterator[tuple[int, TimeStep]]:
    """The LAST steps, and how many env steps their episodes had."""
    length = 0
    for step in stream:
        length = 0 if step.step_type == 0 else length + 1
        if step.step_type == 2:
            yield length, step


def _not_cut_off(short: Stream) -> str:
    for number, step in enumerate(short):
        if step.step_type == 2 and step.discount in (0, 1):  # 0 where the task itself ended so soon
            return ""
        if step.discount != 1:
            return f"discount {float(step.discount)} at step {number}"
    return f"no LAST in {SHORT} steps"


def _heap(lengths: Sequence[int]) -> tuple[int, int]:
    """The greatest length and how often it comes, if that is far more often than the lengths just below it; else 0."""
    counts = Counter(lengths)
    longest = max(counts, default=0)
    below = sum(count for length, count in counts.items() if 0.8 * longest <= length < longest)
    enough = counts[longest] >= (2 if len(counts) == 1 else 4)
    return (longest, counts[longest]) if enough and counts[longest] > 2 * below else (0, 0)


def _has_limit(env: Any) -> bool:
    while isinstance(env, SingleEnvironment) and not isinstance(env, TimeLimit):
        env = getattr(env, "env", None)
    return isinstance(env, TimeLimit)
