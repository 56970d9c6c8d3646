"""Layers that decide where an episode ends, or count what it was."""

from typing import Any, final

from palaestra.core import ConfigError, TensorSpec, TimeStep
from palaestra.envs.contract.environment import EnvironmentWrapper, SingleEnvironment
from palaestra.envs.contract.episodes import StepLimits

__all__ = ["EpisodeStatistics", "NonEpisodic", "TimeAwareDiscount", "TimeLimit"]


@final
class TimeLimit(EnvironmentWrapper):
    """Makes the env step number `duration` of an episode its LAST, with the discount unchanged.

    A truncated state keeps its value; one that terminates on that very step keeps its discount of 0. An environment
    that counts by itself and reports `terminated` at step N is corrected by `TimeLimit(env, N - 1)`. Around
    `ActionRepeat` it counts env steps; inside of it, where `env.max_episode_steps` puts it, every repetition.

    Args:
        duration: steps in an episode, an integer of at least 1.

    Raises:
        ConfigError: the duration is no such integer.

    Examples:
        >>> from palaestra.envs import load
        >>> env = TimeLimit(load("palaestra.envs.tiny:Endless"), 2)
        >>> time_steps = [env.reset(), env.step(0), env.step(0)]
        >>> [(int(time_step.step_type), time_step.discount) for time_step in time_steps]
        [(0, 1.0), (1, 1.0), (2, 1.0)]
    """

    keeps_frames = True

    def __init__(self, env: SingleEnvironment, duration: int) -> None:
        super().__init__(env)
        if type(duration) is not int or duration < 1:
            raise ConfigError(f"TimeLimit(duration={duration}); an episode needs a whole number of steps, at least 1")
        self.duration = duration
        self._limits = StepLimits([duration])
        self._advance = env.advance

    @property
    def cut_off(self) -> bool:
        return self._limits.reached(0) or self.env.cut_off

    def begin_episode(self, seed: int) -> TimeStep:
        self._limits.begin(0, duration=self.duration)
        return self.env.begin_episode(seed)

    def advance(self, action: Any) -> TimeStep:
        time_step = self._advance(action)
        if not self._limits.tick():
            return time_step
        raw = time_step.untransformed
        raw = raw._replace(step_type=2) if isinstance(raw, TimeStep) else raw
        return time_step._replace(step_type=2, untransformed=raw)


@final
class TimeAwareDiscount(EnvironmentWrapper):
    """Sets the discount of every LAST step to 0, also at a time limit.

    Right where the time left is part of the observation (`gymnasium.wrappers:TimeAwareObservation`) and what counts is
    the return until the limit: the policy sees the end coming, so nothing lies beyond it. Elsewhere a time limit must
    keep its discount, or the same state would be worth two different things. On the command line:
    `--env.gym-wrappers TimeAwareObservation --env.wrappers TimeAwareDiscount`.

    Examples:
        >>> from palaestra.envs import load
        >>> env = TimeAwareDiscount(load("palaestra.envs.tiny:Endless", max_episode_steps=1))
        >>> env.reset().discount, env.step(0).discount
        (1.0, 0.0)
    """

    keeps_frames = True
    elementwise = True

    def advance(self, action: Any) -> TimeStep:
        time_step = self.env.advance(action)
        return time_step._replace(discount=0.0) if time_step.step_type == 2 else time_step

    def change_rows(self, time_step: TimeStep) -> TimeStep:
        """The same for a batch.

        Args:
            time_step: rows [B, ...].
        """
        return time_step._replace(discount=time_step.discount.masked_fill(time_step.step_type == 2, 0.0))


@final
class NonEpisodic(EnvironmentWrapper):
    """Hides terminations: where the task says that it is over, the agent continues to act.

    For continuing tasks whose environment reports success or failure as an end. A truncation stays a LAST step, also
    where it comes together with a termination, so a time limit can still cut the stream into pieces. A hidden end has
    the discount of the step before it: 1, or what the task has instead. The environment has to stand being stepped
    after its end.

    Examples:
        >>> from palaestra.envs import load
        >>> env = NonEpisodic(load("palaestra.envs.tiny:Bandit"))  # terminates after every step
        >>> _ = env.reset()
        >>> [int(env.step(0).step_type) for _ in range(3)]
        [1, 1, 1]
    """

    keeps_frames = True

    def __init__(self, env: SingleEnvironment) -> None:
        super().__init__(env)
        bare: Any = env
        while hasattr(bare, "env"):
            bare = bare.env
        self._usual = self._discount = getattr(bare, "usual_discount", 1.0)

    def begin_episode(self, seed: int) -> TimeStep:
        self._discount = self._usual
        return self.env.begin_episode(seed)

    def advance(self, action: Any) -> TimeStep:
        time_step = self.env.advance(action)
        if time_step.step_type != 2 or time_step.discount != 0:
            self._discount = time_step.discount
            return time_step
        return time_step._replace(step_type=2 if self.env.cut_off else 1, discount=self._discount)


@final
class EpisodeStatistics(EnvironmentWrapper):
    """Adds `episode/return` and `episode/length` to the `info` of every LAST step.

    Put it inside of layers that change rewards: the library's own metrics see what comes out at the outside, and these
    are the raw numbers. Put it around a `TimeLimit`: what one further out cuts off is not reported, and new runs refuse
    that. They become the metrics `info/episode/return` and `info/episode/length`.

    Examples:
        >>> from palaestra.envs import load
        >>> env = EpisodeStatistics(load("palaestra.envs.tiny:Endless", max_episode_steps=3))
        >>> time_steps = [env.reset(), env.step(0), env.step(0), env.step(0)]
        >>> time_steps[-1].env_info
        {'episode': {'return': 3.0, 'length': 3}}
    """

    keeps_frames = True

    def __init__(self, env: SingleEnvironment) -> None:
        super().__init__(env)
        self._return: Any = 0.0
        self._length = 0

    @property
    def env_info_spec(self) -> Any:
        scalar = TensorSpec(())
        return {**self.env.env_info_spec, "episode": {"return": self.env.reward_spec, "length": scalar}}

    def begin_episode(self, seed: int) -> TimeStep:
        self._return, self._length = 0.0, 0
        return self.env.begin_episode(seed)

    def advance(self, action: Any) -> TimeStep:
        time_step = self.env.advance(action)
        self._return = self._return + time_step.reward
        self._length += 1
        if time_step.step_type != 2:
            return time_step
        statistics = {"return": self._return, "length": self._length}
        return time_step._replace(env_info={**(time_step.env_info or {}), "episode": statistics})
