"""Evaluation: episodes of a policy that does not learn, and what can be said about their mean."""

import logging
import math
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from palaestra.core import ConfigError, StepType, as_array, readable
from palaestra.core.errors import is_news
from palaestra.envs import Environment
from palaestra.ops import mean_interval
from palaestra.policies import Phase, Policy
from palaestra.rollout.collection import require_fit
from palaestra.rollout.episodes import AverageOf, Episode, EpisodeTracker

__all__ = [
    "BrokenOffError",
    "Evaluation",
    "NoEpisodeError",
    "breakable",
    "continue_evaluation",
    "evaluate",
    "evaluation_noise",
    "evaluation_of",
    "first_episodes",
    "returns_of_variants",
]

_log = logging.getLogger(__name__)
_LONG_S = 10.0  # of an evaluation, until a warning
_STEP_S = 10.0  # of a step, or twice the longest before it; what is beyond is not counted: Ctrl-Z, most likely
_FAR = 10  # times the longest episode that has ended
_NO_END = (
    "%d of %d evaluation episodes have ended after %.0f s and %d steps; if they have no time limit, some may never "
    "end: trainer.eval_time_limit_s breaks an evaluation off (env.max_episode_steps sets one, which is another task)"
)
_SLOW = "%d of %d evaluation episodes have ended after %.0f s and %d steps; they end after %d at the latest"


class BrokenOffError(BaseException):
    """An evaluation was asked to end; nothing that handles errors on the way may take it for one."""


class NoEpisodeError(ConfigError):
    """No evaluation episode ended within the time limit."""


_asked: ContextVar[Callable[[], bool] | None] = ContextVar("asked", default=None)


@contextmanager
def breakable(asked: Callable[[], bool]) -> Iterator[None]:
    """Lets evaluations be broken off inside this context.

    They look between two steps, for an exception that a signal raises could strike native code of an environment, which
    aborts the process.

    Args:
        asked: whether they shall end.
    """
    token = _asked.set(asked)
    try:
        yield
    finally:
        _asked.reset(token)


def continue_evaluation() -> None:
    """Called by an evaluation before every step; by one of your own, too, so that Ctrl-C does not wait for its end.

    Raises:
        BrokenOffError: it is asked to end; see `breakable`.
    """
    asked = _asked.get()
    if asked is not None and asked():
        raise BrokenOffError


@dataclass(frozen=True)
class Evaluation:
    """Statistics of evaluation episodes."""

    return_mean: float
    """Mean of the raw, undiscounted returns."""
    return_std: float
    """Their sample standard deviation; 0 for one episode."""
    return_ci95: tuple[float, float]
    """95% interval of the mean (Student's t); of one episode its return alone."""
    length_mean: float
    """Mean number of env steps."""
    episodes: int
    """Number of episodes."""
    seeds: list[int]
    """Lane seeds of the environments; episode k of a lane follows from them."""
    deterministic: bool
    """Whether the policy took its most probable or most valuable action."""
    returns: list[float]
    """Every episode's return."""
    parts: dict[str, float] = field(default_factory=dict)
    """Means of the entries of `Episode.info`, such as `is_success@max` or `cost`, over the episodes that have them;
    where many agents were evaluated, also what each agent and policy earned."""
    env_ids: list[int] = field(default_factory=list)
    """In which environment each episode was played."""
    rewards: list[list[float]] = field(default_factory=list)
    """Of vectors of rewards, what every episode earned of each; nothing where a reward is a number."""
    against_best: float | None = None
    """Share of games won against the policies of the best evaluation before, a draw counted half; `None` where nobody
    played them."""
    rival_at: int | None = None
    """Env steps of those policies' evaluation, where known."""
    policies: dict[str, float] = field(default_factory=dict)
    """Of several policies, what an agent of each earned on average."""

    def weighted(self, weights: Sequence[float]) -> "Evaluation":
        """The same episodes with weighted sums as their returns, instead of sums.

        Args:
            weights: [K] of a vector of rewards; nothing leaves all as it is.
        """
        if not weights:
            return self
        mean, std, interval, returns = _statistics([float(np.dot(weights, earned)) for earned in self.rewards])
        return replace(self, return_mean=mean, return_std=std, return_ci95=interval, returns=returns)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        half = (self.return_ci95[1] - self.return_ci95[0]) / 2
        kind = "deterministic" if self.deterministic else "stochastic"
        if self.episodes == 1:
            return f"{readable(self.return_mean)} (1 episode, {kind})"
        return f"{readable(self.return_mean)} ± {readable(half)} (95%, {self.episodes} episodes, {kind})"


def evaluate(
    policy: Policy,
    env: Environment,
    *,
    episodes: int = 20,
    deterministic: bool = True,
    seeds: Sequence[int] = (),
    generator_seed: int = 0,
    time_limit_s: float | None = None,
) -> Evaluation:
    """Runs exactly so many episodes, shared out evenly over the environments, so that short ones are not preferred.

    The policy's acting noise comes from a generator of its own, so that training continues as if nothing had happened.

    Args:
        policy: acts in `Phase.EVAL`; observation statistics stay frozen.
        env: reset at the start; those of a run are made by `evaluate_run`.
        episodes: how many.
        deterministic: whether to take the most probable or most valuable action.
        seeds: lane seeds, one for each environment, whose streams begin anew; equal ones give equal episodes, unless
            a wrapper learns meanwhile (`NormalizeObservation`). Without them the environments go on where they are.
        generator_seed: of the policy's noise where it samples.
        time_limit_s: stop after so many seconds with the episodes that have ended, and a warning: long ones are missing
            then, so the mean is one of short ones.

    Raises:
        ConfigError: no episode is asked for, or none ended within the time limit; environments are stepped as they are
            ready, not together; or policy and environments do not fit together.
    """
    require_fit(env, policy, "evaluate")
    if seeds:
        env.seed(seeds)
    if (ready := env.num_ready) < env.batch_size:
        raise ConfigError(
            f"evaluate was given environments of which {ready} of {env.batch_size} are stepped at a "
            "time (env.num_ready); give ones that are stepped together"
        )
    if not env.auto_reset:
        raise ConfigError("evaluate goes on after the end of an episode; leave out env.auto_reset=False")
    try:
        with evaluation_noise({policy: generator_seed}), torch.inference_mode():
            play = _play(policy, env, deterministic)
            limits = {"time_limit_s": time_limit_s, "step_limit": env.step_limit}
            finished = first_episodes(play, env.batch_size, episodes, **limits)
    finally:
        env.interrupted = True
    return evaluation_of(finished, list(seeds), deterministic=deterministic and not policy.eval_epsilon)


def _play(policy: Policy, env: Environment, deterministic: bool) -> Generator[list[Episode]]:
    """Steps without end; yields the episodes that each step ended."""
    tracker = EpisodeTracker(env.batch_size)
    time_step, state = env.reset(), policy.initial_state(env.batch_size)
    while True:
        step = policy.act(time_step, state, phase=Phase.EVAL, deterministic=deterministic)
        time_step, state = env.step(policy.env_action(step.action)), step.state
        if env.ended is not None:  # episodes that ended and began again in one step
            tracker.add(env.ended, as_array(env.ended.env_id))
        tracker.add(time_step)
        over = env.ended is not None or (time_step.step_type == StepType.LAST).any()
        yield tracker.finished() if over else tracker.reported()  # which sums up many rows, however long episodes are


@contextmanager
def evaluation_noise(seeds: Mapping[Policy, int]) -> Iterator[None]:
    """Lets policies act in `Phase.EVAL` with generators of their own, so that training is not disturbed.

    Those with an `eval_epsilon` explore by it.

    Args:
        seeds: of the generators, by policy.
    """
    kept = {policy: (policy.generator, policy.exploration) for policy in seeds}
    with ExitStack() as stack:
        try:
            for policy, seed in seeds.items():
                stack.enter_context(policy.in_phase(Phase.EVAL))
                policy.generator = torch.Generator(device=policy.generator.device).manual_seed(seed)
                policy.exploration = policy.in_evaluations.made()
            yield
        finally:
            for policy, before in kept.items():
                policy.generator, policy.exploration = before


def first_episodes(
    play: Generator[list[Episode]],
    num_envs: int,
    episodes: int,
    *,
    time_limit_s: float | None = None,
    step_limit: int = 0,
) -> list[Episode]:
    """The first episodes of each environment, shared out evenly over them, so that short ones are not preferred.

    Args:
        play: steps the environments and yields the episodes that each step ended; closed at the end.
        num_envs: how many environments.
        episodes: how many episodes, over all environments.
        time_limit_s: stop after so many seconds with the episodes that have ended, and a warning; a step counts for ten
            of them at most, or for twice the longest one before it.
        step_limit: most steps of an episode; 0 where that is not known.

    Raises:
        ConfigError: it is no episode.
        NoEpisodeError: no episode ended within the time limit.
    """
    if episodes < 1:
        raise ConfigError(f"an evaluation was asked for {episodes} episodes; it needs at least 1")
    left = [episodes // num_envs + (number < episodes % num_envs) for number in range(num_envs)]
    kept: list[Episode] = []
    passed_s, longest_s, now_s, look_s = 0.0, 0.0, time.monotonic(), _LONG_S
    with closing(play):
        for steps, ended in enumerate(play, start=1):
            continue_evaluation()
            for episode in ended:
                if left[episode.env_id]:
                    left[episode.env_id] -= 1
                    kept.append(episode)
            before_s, now_s = now_s, time.monotonic()
            step_s = min(now_s - before_s, max(_STEP_S, 2 * longest_s))
            passed_s, longest_s = passed_s + step_s, max(longest_s, step_s)
            if not any(left) or (time_limit_s is not None and passed_s >= time_limit_s):
                break
            if passed_s >= look_s:
                endless, so_far = _may_not_end(kept, left, steps, step_limit), (len(kept), episodes, passed_s, steps)
                look_s = math.inf if endless else passed_s + 1
                if endless and is_news(_NO_END):
                    _log.warning(*((_SLOW, *so_far, step_limit) if step_limit else (_NO_END, *so_far)))
    if len(kept) < episodes:
        text = f"only {len(kept)} of {episodes} evaluation episodes ended within {time_limit_s} s"
        if not kept:
            raise NoEpisodeError(
                f"{text}; give more time (trainer.eval_time_limit_s), or set a time limit on episodes "
                "(env.max_episode_steps)"
            )
        warnings.warn(f"{text}; long ones are missing, so the mean is biased towards short ones", stacklevel=3)
    return kept


def _may_not_end(kept: Sequence[Episode], left: Sequence[int], steps: int, step_limit: int) -> bool:
    """Whether no episode has ended, or one without a known limit is longer by far than those that have."""
    if step_limit or not kept:
        return not kept
    over = [sum(one.length for one in kept if one.env_id == lane) for lane, more in enumerate(left) if more]
    return steps - min(over) > _FAR * max(one.length for one in kept)


def evaluation_of(episodes: Sequence[Episode], seeds: list[int], *, deterministic: bool) -> Evaluation:
    """Statistics of episodes.

    Args:
        episodes: at least one.
        seeds: lane seeds of their environments.
        deterministic: whether the policy took its most probable or most valuable action.
    """
    mean, std, interval, returns = _statistics([episode.episode_return for episode in episodes])
    length = float(np.mean([episode.length for episode in episodes]))
    infos = AverageOf("", lambda episode: episode.info, window=len(episodes))
    infos.add(0, episodes)
    parts, lanes = dict(infos.result()), [episode.env_id for episode in episodes]
    names = [name for number in range(len(parts)) if (name := f"reward_{number}") in episodes[0].info]
    rewards = [[episode.info[name] for name in names] for episode in episodes] if names else []
    return Evaluation(mean, std, interval, length, len(returns), seeds, deterministic, returns, parts, lanes, rewards)


def _statistics(returns: list[float]) -> tuple[float, float, tuple[float, float], list[float]]:
    """Mean, standard deviation and 95% interval of returns, and these."""
    std = float(np.std(returns, ddof=1)) if len(returns) > 1 else 0.0
    return float(np.mean(returns)), std, mean_interval(returns), returns


def returns_of_variants(evaluation: Evaluation, num_variants: int) -> dict[str, float]:
    """The mean return of each variant of a task, as `return_of_variant_<number>`; of those that were played.

    Args:
        evaluation: in environments that take the variants in turns.
        num_variants: how many there are; 0 for a task without.
    """
    means: dict[str, float] = {}
    for variant in range(num_variants):
        of_it = [lane % num_variants == variant for lane in evaluation.env_ids]
        returns = [value for value, counts in zip(evaluation.returns, of_it, strict=True) if counts]
        if returns:
            means[f"return_of_variant_{variant}"] = math.fsum(returns) / len(returns)
    return means
