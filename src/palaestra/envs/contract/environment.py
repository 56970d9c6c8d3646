"""The contracts of environments: `Environment` (batched), `SingleEnvironment` (one, bare) and its wrappers.

Layers, inner to outer: a Gymnasium environment, Gymnasium wrappers, `GymEnvironment`, `EnvironmentWrapper`s, and an
`Environment` that steps several such stacks. Actions flow outside-in, time steps inside-out, through every layer.
None of them knows a policy, a buffer or a loss.
"""

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, final

import numpy as np
import torch

from palaestra.core import BoundedSpec, ConfigError, DiscreteSpec, EnvError, SpecError, SpecTree, TensorSpec, TimeStep
from palaestra.core.settings import overrides
from palaestra.envs.contract.episodes import EpisodeLog, LaneEpisode, digest, lane_seeds_of, require_read_mask
from palaestra.envs.contract.nest import copied, leaf_arrays, problem, unflatten, zeros
from palaestra.envs.contract.rows import HasSpecs, Specs
from palaestra.envs.supervision.faults import EventLog, Fault, Incident, failure_of, is_own

__all__ = ["Environment", "EnvironmentWrapper", "SingleEnvironment"]

_log = logging.getLogger(__name__)

_STEP_TYPE = DiscreteSpec(dtype=torch.int32, num=3)
_DISCOUNT = BoundedSpec((), minimum=np.array(0), maximum=np.array(1))
_ENV_ID = TensorSpec((), torch.int64)


class _Specified(ABC):
    """What one environment and a batch have in common: specs of one row, without leading dimension, and pictures."""

    @property
    @abstractmethod
    def observation_spec(self) -> SpecTree:
        """Of one observation; in a batch, tuples are dicts with the keys "0", "1", ..."""

    @property
    @abstractmethod
    def action_spec(self) -> SpecTree:
        """Spec of one action."""

    @property
    def reward_spec(self) -> TensorSpec:
        """Spec of one reward: shape () or, for vector rewards, [k]."""
        return TensorSpec(())

    @property
    def env_info_spec(self) -> SpecTree:
        """Of what it reports in `info`, as far as that is declared or found by a first look; more may come and go."""
        return {}

    @property
    @final
    def time_step_spec(self) -> TimeStep:
        """A time step of specs."""
        reward, observation, action = self.reward_spec, self.observation_spec, self.action_spec
        return TimeStep(_STEP_TYPE, reward, _DISCOUNT, observation, action, _ENV_ID, (), self.env_info_spec)

    def render(self) -> np.ndarray:
        """A picture, uint8 [H, W, 3]; of environment 0 in a batch.

        Raises:
            EnvError: it cannot be drawn.
        """
        raise EnvError(f"{type(self).__name__} cannot be rendered")


class Closeable(ABC):
    """What has to be closed, at the end of a `with`, too."""

    @abstractmethod
    def close(self) -> None:
        """Frees what the environments hold. Closing twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.close()
        except Exception as another:
            if error is None:
                raise
            _log.warning("%s", another)  # the first error is what the user needs


class Environment(_Specified, Closeable):
    """B environments that are stepped together; every leaf of what they emit is a tensor [B, ...] on their device.

    After LAST the next `step` ignores that environment's action and returns FIRST; a `step` before any `reset` returns
    FIRST everywhere. What is returned is never written to again.

    Examples:
        >>> from palaestra.envs import LaneEnvironment, SerialDriver, load
        >>> two = SerialDriver([load("CartPole-v1"), load("CartPole-v1")])
        >>> with LaneEnvironment(two, lane_seeds=[1, 2]) as env:
        ...     first = env.reset()
        ...     second = env.step(torch.tensor([0, 1]))
        >>> first.step_type, second.prev_action
        (tensor([0, 0], dtype=torch.int32), tensor([0, 1]))
    """

    batch_size: int
    """Number of environments, B."""
    seeding: Literal["per_episode", "per_batch"]
    """What a seed determines: every episode of a lane by its number, or the batch as a whole."""
    resume: Literal["exact", "statistical"]
    """Whether a restored environment continues the very same stream, or begins new episodes."""
    device: torch.device = torch.device("cpu")
    """Device of the tensors that it emits."""
    ended: TimeStep | None = None
    """LAST rows of environments that reset within the step (their FIRST rows are in the step itself), else `None`."""
    exact_reward: torch.Tensor | None = None
    """Rewards of the latest step before they were rounded, float64 [B]; `None` where they are not known."""
    exact_ended: torch.Tensor | None = None
    """The same of the rows in `ended`."""
    checks_finite: bool = False
    """Whether it raises an error itself before it would emit NaN or infinity."""
    auto_reset: bool = True
    """Whether the step after LAST begins an episode; if not, it is an error until `reset` is called."""
    info: Sequence[str] = ()
    """Entries of `env_info` that every time step has (0 at FIRST and NaN elsewhere where nothing was reported), and
    that rows of a buffer keep."""
    find_info: Callable[[], Sequence[str]] = staticmethod(tuple)
    """Names of what it reports, found by a first look at an environment made for that."""
    untransformed_spec: dict[str, SpecTree] | None = None
    """Of `untransformed`, its `observation` and `reward`, where time steps have it and rows of a buffer keep it."""
    end_episodes: Any = None
    """A method `end_episodes(lanes)` makes the next step the FIRST one of a new episode where `lanes`, bool [B], are
    true, whatever their environments think: what a time limit around it needs. `None` where it decides that itself."""
    step_limit: int = 0
    """Most env steps of an episode; 0 where no limit is known."""
    dropped: Collection[int] = ()
    """Numbers of those that failed and are stepped no more, of environments that are stepped together: every step has a
    FIRST row of theirs."""
    interrupted: bool = False
    """Whether it was stepped by others since its collector last did; the collector then begins new episodes."""

    @property
    def env_info_spec(self) -> SpecTree:
        """Of what it reports in `info`, by name: `info`, or else what a first look finds; more may come and go."""
        return {name: TensorSpec((), torch.float64) for name in self.info or self.find_info()}

    @property
    def row_specs(self) -> dict[str, Any]:
        """The specs of what rows of a buffer keep of a time step, as `RowOptions` has them."""
        kept: dict[str, Any] = {"observation_spec": self.observation_spec, "reward_spec": self.reward_spec}
        if self.info:
            kept["env_info_spec"] = {name: TensorSpec(()) for name in self.info}
        if self.untransformed_spec is not None:
            kept["untransformed_spec"] = self.untransformed_spec
        return kept

    @property
    def faults(self) -> EventLog:
        """The newest faults, those that did not stop the run and the one that did; and how many there were."""
        return EventLog()

    @property
    def num_ready(self) -> int:
        """Rows of what `recv` returns, n: all B, or fewer where environments do not wait for each other."""
        return self.batch_size

    @abstractmethod
    def reset(self) -> TimeStep:
        """Starts the next episode everywhere; running ones are abandoned."""

    @final
    def step(self, action: Any) -> TimeStep:
        """Executes one action in every environment.

        Args:
            action: [B, ...], a tensor or a nest shaped like `action_spec`.

        Raises:
            EnvError: an environment failed; the message names it, its seed, episode, step and action.
        """
        self.send(action)
        return self.recv()

    @abstractmethod
    def send(self, action: Any, env_id: torch.Tensor | None = None) -> None:
        """Hands out actions; `recv` collects what comes of them. Simulation may run in between.

        Args:
            action: as for `step`.
            env_id: [n] which environments they are for; `None` for all.
        """

    @abstractmethod
    def recv(self) -> TimeStep:
        """Waits for the time steps of the actions sent."""

    def seed(self, lane_seeds: Sequence[int]) -> None:
        """Begins the streams of these lane seeds: the next `reset` starts the first episode of each.

        Layers keep what they learned (running statistics), and nothing else of earlier episodes.

        Raises:
            EnvError: there is not one seed for each, or these environments cannot begin again.
        """
        lanes: Any = self
        if not hasattr(lanes, "load_lane_state"):
            raise EnvError(f"{type(self).__name__} cannot begin its streams again; give it a method seed(lane_seeds)")
        seeds, before = np.array(lane_seeds_of(lane_seeds, self.batch_size)), np.full(self.batch_size, -1)
        lanes.load_lane_state({**lanes.lane_state(), "lane_seed": seeds, "episode": before})

    def set_attr(self, name: str, value: Any, lanes: Sequence[int] | None = None) -> None:
        """Changes an attribute of environments, which is saved and restored with them.

        Environments that are stepped one by one have it from their next episode on; those that are stepped as one, at
        once.

        Args:
            name: of an attribute that a layer of theirs has; the outermost is meant.
            value: a JSON value.
            lanes: numbers of the environments; all by default.

        Raises:
            ConfigError: there is no such attribute or lane, or the value cannot be saved.
            EnvError: these environments take none.
        """
        raise EnvError(f"attributes of {type(self).__name__} cannot be set from outside; give it a method set_attr")

    def get_attr(self, name: str, lanes: Sequence[int] | None = None) -> list[Any]:
        """What an attribute of environments is now, one value for each.

        Args:
            lanes: numbers of the environments; all by default.

        Raises:
            ConfigError: there is no such attribute or lane.
            EnvError: these environments do not tell.
        """
        raise EnvError(f"attributes of {type(self).__name__} cannot be read from outside; give it a method get_attr")

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Where every environment is, as JSON values and arrays by name."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts the environments back to a saved state.

        Raises:
            EnvError: it does not fit, or an environment does not replay.
        """


class SingleEnvironment(_Specified):
    """One bare environment: numpy in and out, no leading dimension.

    A layer implements `begin_episode` and `advance`. What these return is valid until the next call; a layer that
    keeps an observation copies it. Only the outermost layer's `seed`, `reset` and `step` are called from outside: they
    number the episodes, reset after LAST, record actions and copy what they return. So a layer costs one Python call.
    """

    env_id: int = 0
    """Which environment of a batch this is."""
    auto_reset: bool = True
    """Whether the step after a LAST one begins the next episode; if not, it is an error, and you call `reset`."""
    carried: Mapping[str, Any] = MappingProxyType({})
    """Of the outermost layer: what `carried_state` said when the running episode began."""
    _log: EpisodeLog | None = None
    _latest: TimeStep | None = None

    @property
    def cut_off(self) -> bool:
        """After a step in which the task ended: whether the episode would have been cut off there as well."""
        return False

    @abstractmethod
    def begin_episode(self, seed: int) -> TimeStep:
        """Starts an episode.

        Args:
            seed: all the randomness of the episode comes from it.

        Returns:
            A FIRST time step.
        """

    @abstractmethod
    def advance(self, action: Any) -> TimeStep:
        """Executes one action inside an episode.

        Args:
            action: as the spec says.

        Returns:
            A MID or LAST time step.
        """

    @final
    def begin(self, seed: int) -> TimeStep:
        """Starts an episode of all layers, and keeps in `carried` what goes into it from earlier ones.

        Args:
            seed: as for `begin_episode`.

        Raises:
            SpecError: it reports a mask of actions that nobody reads.
        """
        self.carried = self.carried_state()
        time_step = self.begin_episode(seed)
        require_read_mask(time_step.env_info, self.observation_spec)
        return time_step

    def carried_state(self) -> dict[str, Any]:
        """What an episode that began now would be carried, by layer: numbers, text and nests; most carry nothing."""
        return {}

    def load_carried_state(self, state: dict[str, Any]) -> None:
        """Takes over what `carried_state` gave, before the episode is replayed.

        Args:
            state: of equal layers.
        """

    def begin_stream(self) -> None:
        """Puts back what layers keep of earlier episodes, as far as it was not learned: the first one begins next."""

    def close(self) -> None:
        """Frees what the environment holds."""

    @final
    def seed(self, lane_seed: int) -> None:
        """Sets the seed that those of all episodes derive from, and counts episodes from 0 again.

        Args:
            lane_seed: 63 bits, from `RunSeeds.integer("environments", lane)`.
        """
        self._log = EpisodeLog([lane_seed], self.action_spec)
        self._latest = None
        self.begin_stream()

    @final
    def reset(self) -> TimeStep:
        """Starts the next episode."""
        self._episodes().abandon()
        return self._drive(self._episodes(), zeros(self.action_spec))

    @final
    def step(self, action: Any) -> TimeStep:
        """Executes one action; after LAST, or before any reset, ignores it and starts the next episode.

        Args:
            action: as the spec says.

        Raises:
            EnvError: the environment failed, or `auto_reset` is off and there is no episode to go on with.
        """
        log = self._episodes()
        if not self.auto_reset and log.due:
            raise EnvError("the episode has ended, or none has begun, and auto_reset is False; call reset()")
        return self._drive(log, action)

    @final
    def state_dict(self) -> dict[str, Any]:
        """Where the environment is: its episode's number, the actions so far, a digest of the latest observation."""
        latest = self._latest
        return self._episodes().state_dict([self.mark(latest.observation, latest.reward) if latest else ""])

    @final
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replays the saved episode through all layers.

        Raises:
            EnvError: the environment does not replay.
        """
        log = self._episodes()
        episodes = log.episodes_of(state)
        log.restore(episodes, [0])
        self._latest = None
        try:
            time_step = self.replay(episodes[0])
        except BaseException as error:
            raise self._failure(log, error) from error
        if time_step is not None:
            self._emit(log, time_step, zeros(self.action_spec) if not log.steps(0) else log.last_action(0))

    @final
    def mark(self, observation: Any, reward: Any) -> str:
        """What proves that an episode was replayed, and what replaying it takes: one word.

        Args:
            observation: the latest.
            reward: the latest; a layer of running statistics may show in nothing else.

        Returns:
            A digest of both; after a colon, what the layers carried into the episode from earlier ones.

        Raises:
            SpecError: that holds arrays.
        """
        return self._digest(observation, reward) + LaneEpisode.carried_text(self.carried)

    @final
    def replay(self, episode: LaneEpisode) -> TimeStep | None:
        """Puts the environment where an episode had come to, through all layers.

        Args:
            episode: with its actions and its `mark`.

        Returns:
            The latest time step; `None` if no episode was running.

        Raises:
            EnvError: the digest differs.
        """
        if not episode.digest:
            self.begin_stream()
            return None
        expected = episode.digest.partition(":")[0]
        if carried := episode.carried:
            self.load_carried_state(carried)
        time_step = self.begin(episode.seed)
        for action in episode.actions:
            time_step = self.advance(action)
        found = self._digest(time_step.observation, time_step.reward)
        if not found.startswith(expected):  # older marks have no reward
            raise EnvError(
                f"the episode does not replay: after {len(episode.actions)} actions observation and reward hash to "
                f"{found}, in the saved run to {expected}. The environment draws from something other than the seed of "
                "its reset (a global generator, the clock), keeps state across episodes (a wrapper that does is a "
                "StatefulWrapper), or its code or settings have changed since. What was learned can go on in a new "
                "run, with --from"
            )
        return time_step

    def _digest(self, observation: Any, reward: Any) -> str:
        return digest(observation, self.observation_spec, reward, self.reward_spec.size)

    def _episodes(self) -> EpisodeLog:
        if self._log is None:
            # unseeded: a fresh seed, which state_dict holds, so the episode can still be replayed
            self._log = EpisodeLog(lane_seeds_of(None, 1), self.action_spec)
        return self._log

    def _drive(self, log: EpisodeLog, action: Any) -> TimeStep:
        spec = self.action_spec
        rows = [array[None] for array in leaf_arrays(action, spec)]  # the environment may change them
        action = copied(action)  # and the caller what was given
        seeds = log.send(rows)
        try:
            if seeds:
                return self._emit(log, self.begin(seeds[0]), zeros(spec))
            time_step = self.advance(unflatten((row[0] for row in rows), spec))
            require_read_mask(time_step.env_info, self.observation_spec)
            return self._emit(log, time_step, action)
        except BaseException as error:
            self._latest = None
            raise self._failure(log, error) from error

    def _emit(self, log: EpisodeLog, time_step: TimeStep, action: Any) -> TimeStep:
        spec = self.observation_spec
        if wrong := problem(time_step.observation, spec):
            raise SpecError(f"the observation has {wrong}")
        log.due = [0] if time_step.step_type == 2 else []
        self._latest = time_step._replace(
            observation=unflatten(iter(leaf_arrays(time_step.observation, spec)), spec),
            prev_action=action,
            env_id=self.env_id,
            untransformed=copied(time_step.untransformed),
        )
        return self._latest

    def _failure(self, log: EpisodeLog, error: BaseException) -> Exception:
        place = log.place(0)
        log.abandon()
        if not is_own(error):
            raise error
        return Fault.of(Incident(failure_of(0, error)), place, handled="raise", first_id=self.env_id).error()


_LAYERS: dict[type, Callable[..., Environment]] = {}
STEPS = ("begin_episode", "advance", "change")
"""Methods that say what a layer makes of the time steps of one environment."""


def layer_of(kind: type["EnvironmentWrapper"]) -> Callable[[Any], Any]:
    """Marks a class as what a wrapper becomes around a batch; it is made with the batch, the wrapper, its arguments.

    Args:
        kind: the wrapper; one with subclasses means those that are `elementwise`.
    """
    return lambda layer: _LAYERS.setdefault(kind, layer)


class EnvironmentWrapper(HasSpecs, SingleEnvironment):
    """A layer around a bare environment that passes everything through.

    Override `advance` and `begin_episode` to change time steps or actions, and the specs of whatever is changed. A
    layer that neither skips steps nor changes observations says `keeps_frames = True`.

    Around a batched environment, one that is `elementwise` becomes a layer that does by `change_rows` and `action_rows`
    to every row what it does to one; others are refused there.

    Raises:
        SpecError: a Gymnasium environment was given, without the layer that converts it.
        ConfigError: a batch was given, and the wrapper is for single environments.

    Examples:
        >>> class SparseReward(EnvironmentWrapper):
        ...     def advance(self, action):
        ...         time_step = self.env.advance(action)
        ...         return time_step._replace(reward=float(time_step.reward > 0))
    """

    keeps_frames: ClassVar[bool] = False
    """Whether every step of this layer is one step of the inner layer, from its FIRST on, with the same observation.
    The frames of a stack are then those of the steps before, and a buffer may store each frame once. A class that
    overrides how steps are changed, or how episodes begin, says it itself."""

    elementwise: ClassVar[bool] = False
    """Whether it keeps nothing and treats every number by itself, tensors too, so that `change_rows` and `action_rows`
    do it to a whole batch."""

    __signature__ = inspect.Signature([inspect.Parameter("env", inspect.Parameter.POSITIONAL_OR_KEYWORD)])

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if own := {"step", "reset"} & vars(cls).keys():
            raise ConfigError(f"nobody calls {own} of {cls.__name__}; define advance and begin_episode instead")
        if overrides(cls, STEPS, ["keeps_frames"]):
            cls.keeps_frames = False
        first, *others = inspect.signature(cls.__init__).parameters.values()
        cls.__signature__ = inspect.Signature(others) if first.name == "self" else None  # that of __new__ says nothing

    if not TYPE_CHECKING:  # what is written in code goes around one environment; type checkers look at `__init__`

        def __new__(cls, env: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(env, Environment):
                return super().__new__(cls)
            idle = overrides(cls, STEPS, ["change_rows", "action_rows"])
            kinds = cls.__mro__ if cls.elementwise and not idle else (cls,)
            if (layer := next((_LAYERS[kind] for kind in kinds if kind in _LAYERS), None)) is None:
                more = f", and do in change_rows or action_rows to rows what {idle[-1]} does to one" if idle else ""
                raise ConfigError(
                    f"the wrapper {cls.__name__} cannot go around a {type(env).__name__}, which steps as one; let that "
                    f"compute it, write a BatchedWrapper, or say `elementwise = True` if it keeps nothing{more}"
                )
            return layer(env, cls, args, kwargs)

    def change_rows(self, time_step: TimeStep) -> TimeStep:
        """What an `elementwise` layer makes of the time steps of a batch.

        Args:
            time_step: rows [B, ...]; not to be changed in place.
        """
        return time_step

    action_rows: Any = None
    """A method `action_rows(action)` gives what an `elementwise` layer lets the environments of a batch execute, from
    tensors [B, ...]; `None` where that is what it is given."""

    def __init__(self, env: SingleEnvironment) -> None:
        if not isinstance(env, SingleEnvironment):
            kind, outer = type(env).__name__, type(self).__name__
            raise SpecError(f"{outer} was given a {kind}; it goes around a SingleEnvironment: GymEnvironment({kind}())")
        self.env, self.specs = env, Specs.of(env, unstack=not self.keeps_frames)
        self.env_id, self.auto_reset = env.env_id, env.auto_reset

    @property
    def env_info_spec(self) -> SpecTree:
        return self.env.env_info_spec

    @property
    def cut_off(self) -> bool:
        return self.env.cut_off

    def begin_episode(self, seed: int) -> TimeStep:
        return self.env.begin_episode(seed)

    def advance(self, action: Any) -> TimeStep:
        return self.env.advance(action)

    def carried_state(self) -> dict[str, Any]:
        return self.env.carried_state()

    def load_carried_state(self, state: dict[str, Any]) -> None:
        self.env.load_carried_state(state)

    def begin_stream(self) -> None:
        self.env.begin_stream()

    def render(self) -> np.ndarray:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def common_specs(envs: Sequence[SingleEnvironment]) -> Specs:
    """The specs that all environments of a batch share.

    Args:
        envs: their outermost layers.

    Raises:
        SpecError: none were given, or they differ.
    """
    if not envs:
        raise SpecError("no environments were given; at least one is needed")
    for lane, env in enumerate(envs):
        if not isinstance(env, SingleEnvironment):
            kind = type(env).__name__
            raise SpecError(f"environment {lane} is a {kind}, not a SingleEnvironment; use GymEnvironment({kind}())")
    specs = [*map(Specs.of, envs)]
    for lane, other in enumerate(specs):
        other.require_equal(specs[0], lane, 0)
    return specs[0]
