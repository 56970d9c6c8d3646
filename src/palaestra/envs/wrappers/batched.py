"""Layers around batched environments: `BatchedWrapper`, what makes wrappers of single ones such, and inputs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np
import torch

from palaestra.core import Batch, ConfigError, EnvError, SpecError, SpecTree, TensorSpec, TimeStep, tree_select
from palaestra.core.spec import spec_leaves
from palaestra.envs.contract.boundary import outside, tolerant_bounds
from palaestra.envs.contract.environment import Environment, EnvironmentWrapper, HasSpecs, SingleEnvironment, layer_of
from palaestra.envs.contract.nest import flatten, like, unstacked
from palaestra.envs.contract.rows import Specs
from palaestra.envs.supervision.faults import EventLog
from palaestra.envs.wrappers.episode_ends import TimeLimit
from palaestra.envs.wrappers.observations import FrameStack, NormalizeObservation
from palaestra.envs.wrappers.untransformed import with_raw

__all__ = ["BatchedWrapper"]


class BatchedWrapper(HasSpecs, Environment):
    """A layer around a batched environment that passes everything through.

    Override `change` for what comes out, `inner_action` for what goes in, and the specs of what is changed. What it
    keeps for every lane is `lane_arrays`: tensors [B, ...] that are saved and restored with the environment.

    Raises:
        SpecError: one environment was given, not a batch.

    Examples:
        >>> from palaestra.envs.tiny import TensorCartPole
        >>> class Halved(BatchedWrapper):
        ...     def change(self, time_step):
        ...         return time_step._replace(reward=time_step.reward / 2)
        >>> env = Halved(TensorCartPole(2, lane_seeds=[1, 2]))
        >>> env.reset().reward.tolist(), env.step(torch.tensor([0, 1])).reward.tolist()
        ([0.0, 0.0], [0.5, 0.5])
    """

    keeps_frames: ClassVar[bool] = False
    """Whether observations stay as they are. The frames of a stack are then those of the steps before, and a buffer may
    store each frame once."""
    learned: ClassVar[bool] = False
    """Whether `lane_arrays` were learned (running statistics): they then stay where `seed` begins streams anew, and are
    otherwise put back to what they were before the first episodes."""

    def __init__(self, env: Environment) -> None:
        if not isinstance(env, Environment):
            raise SpecError(f"{type(self).__name__} was given a {type(env).__name__}; it goes around a batch")
        self.env = env
        """The batch inside."""
        self.specs = Specs.of(env, unstack=not self.keeps_frames)
        self.batch_size, self.device, self.seeding, self.resume = env.batch_size, env.device, env.seeding, env.resume
        self.checks_finite = env.checks_finite and type(self).change is BatchedWrapper.change
        self.auto_reset, self.step_limit = env.auto_reset, env.step_limit
        self.info, self.untransformed_spec, self.find_info = env.info, env.untransformed_spec, env.find_info
        self.lane_arrays: dict[str, torch.Tensor] = {}
        """The layer's state of every lane, by name."""
        self._untouched: dict[str, torch.Tensor] | None = None
        self._given: Any = None
        self.earned: torch.Tensor | None = None
        """Exact rewards of the rows that `change` is given, float64 [n], where they are known."""
        self.exact: torch.Tensor | None = None
        """Those of the rows that it makes of them, if it changes rewards and says so."""
        self.end_episodes = env.end_episodes

    @property
    def dropped(self) -> Collection[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.dropped

    # -- what layers change

    def change(self, time_step: TimeStep) -> TimeStep:
        """The time step that the layer makes of the inner one.

        Args:
            time_step: rows [n, ...], of the environments `env_id`; not to be changed in place. All B of them, or,
                before these, the LAST rows of those that reset within the step.
        """
        return time_step

    inner_action: Any = None
    """A method `inner_action(action)` gives the action [B, ...] that the inner environments execute; `None` where they
    execute what the layer is given."""

    # -- passing through

    @property
    @final
    def faults(self) -> EventLog:
        return self.env.faults

    @property
    @final
    def num_ready(self) -> int:
        return self.env.num_ready

    @final
    def reset(self) -> TimeStep:
        """Starts the next episode everywhere; running ones are abandoned."""
        self._given = None
        return self._changed(self.env.reset())

    @final
    def send(self, action: Any, env_id: torch.Tensor | None = None) -> None:
        """Hands out actions.

        Args:
            action: [B, ...].
            env_id: all environments, or `None`; with layers that pass actions on unchanged, any that are ready.
        """
        if self.inner_action is not None:
            self._given, action = action, self.inner_action(action)
        self.env.send(action, env_id)

    @final
    def recv(self) -> TimeStep:
        """Waits for the time steps of the actions sent."""
        return self._changed(self.env.recv())

    def _changed(self, time_step: TimeStep) -> TimeStep:
        self._note()
        ended = self.env.ended
        self.ended, self.exact_ended = (None, None) if ended is None else self._rows(ended, self.env.exact_ended)
        changed, self.exact_reward = self._rows(time_step, self.env.exact_reward)
        return changed

    def _note(self) -> None:
        """Keeps what lanes have before their first episode, for `seed`."""
        if self._untouched is None:
            self._untouched = {name: rows.clone() for name, rows in self.lane_arrays.items()}

    def _rows(self, time_step: TimeStep, earned: torch.Tensor | None) -> tuple[TimeStep, torch.Tensor | None]:
        """What the layer makes of rows and of their exact rewards."""
        given = self._with_action(time_step)
        self.earned, self.exact = earned, None
        changed = self.change(given)
        return changed, earned if changed.reward is given.reward else self.exact

    def _with_action(self, time_step: TimeStep) -> TimeStep:
        """With the action as this layer was given it."""
        if self._given is None:
            return time_step
        given = tree_select(_tensors(self._given, self.device), time_step.env_id)
        first = time_step.first
        if not isinstance(given, Batch):
            return time_step._replace(prev_action=given.masked_fill(like(first, given), 0))
        return time_step._replace(prev_action=given.map(lambda leaf: leaf.masked_fill(like(first, leaf), 0)))

    @final
    def set_attr(self, name: str, value: Any, lanes: Sequence[int] | None = None) -> None:
        self.env.set_attr(name, value, lanes)

    @final
    def get_attr(self, name: str, lanes: Sequence[int] | None = None) -> list[Any]:
        return self.env.get_attr(name, lanes)

    @final
    def state_dict(self) -> dict[str, Any]:
        """That of the batch inside, and the layer's own arrays under names of their own."""
        arrays = {name: array.cpu().numpy().copy() for name, array in self.lane_arrays.items()}
        return self.env.state_dict() | {f"{self._key()}.{name}": array for name, array in arrays.items()}

    @final
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts the environments, and what the layer keeps of them, back.

        Raises:
            EnvError: it is of other layers, or does not fit.
        """
        names = {name: f"{self._key()}.{name}" for name in self.lane_arrays}
        if lacking := [key for key in names.values() if key not in state]:
            raise EnvError(f"the saved state has no {', '.join(lacking)}; resume with the wrappers of the saved run")
        self.env.load_state_dict(state)
        self.resume = self.env.resume
        self._note()
        for name, key in names.items():
            self.lane_arrays[name] = torch.as_tensor(np.asarray(state[key])).clone().to(self.device)

    def _key(self) -> str:
        depth, layer = 0, self.env
        while isinstance(layer, BatchedWrapper):
            depth, layer = depth + 1, layer.env
        return f"layer.{depth}:{type(self).__name__}"

    def lane_state(self) -> dict[str, Any] | None:
        """Every lane's seed and episode number, for a worker that takes this one's place; `None` where unknown."""
        inner: Any = self.env
        return inner.lane_state() if hasattr(inner, "lane_state") else None

    def load_lane_state(self, state: Mapping[str, Any]) -> None:
        """Takes over seeds and episode numbers; the next step starts new episodes everywhere."""
        inner: Any = self.env
        inner.load_lane_state(state)

    def seed(self, lane_seeds: Sequence[int]) -> None:
        self.env.seed(lane_seeds)
        if self._untouched is not None and not self.learned:
            self.lane_arrays |= {name: rows.clone() for name, rows in self._untouched.items()}

    def render(self) -> np.ndarray:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


@layer_of(EnvironmentWrapper)
class BatchedLayer(BatchedWrapper):
    """What `ClipReward(env)` and others are where `env` is a batch: the wrapper does to all rows what it does to one.

    Args:
        kind: the wrapper, one that is `elementwise`.
        args: its other arguments.
        kwargs: those by name.
    """

    def __init__(self, env: Environment, kind: type[EnvironmentWrapper], args: Sequence[Any], kwargs: Any) -> None:
        super().__init__(env)
        self.layer = kind(_Row(env), *args, **kwargs)
        """The wrapper, around the specs of one row."""
        self.specs = Specs.of(self.layer)
        self.inner_action = None if self.layer.action_rows is None else self._read_action
        self._bounds = [tolerant_bounds(leaf) for leaf in spec_leaves(self.layer.action_spec).values()]

    def change(self, time_step: TimeStep) -> TimeStep:
        return self.layer.change_rows(time_step)

    def keep(self, name: str, lanes: torch.Tensor, rows: torch.Tensor) -> None:
        """Changes what is known of some lanes.

        Args:
            name: of one of `lane_arrays`.
            lanes: int [n]: which.
            rows: [n, ...].
        """
        self.lane_arrays[name] = self.lane_arrays[name].index_copy(0, lanes, rows)

    def _read_action(self, action: Any) -> Any:
        action = _tensors(action, self.device)
        leaves = flatten(action, self.action_spec) if self.device.type == "cpu" else ()
        for leaf, bounds in zip(leaves, self._bounds, strict=False):
            wrong = outside(leaf.detach().numpy(), *bounds)
            if wrong is not None:
                raise SpecError(f"the action for environment {wrong[0]} has {wrong[1]}")
        return self.layer.action_rows(action)


@final
class _Row(HasSpecs, SingleEnvironment):
    """Specs of one row of a batch, for a layer to be made around; it is never stepped."""

    def __init__(self, env: Environment) -> None:
        self.specs = Specs.of(env)

    def begin_episode(self, seed: int) -> TimeStep:
        raise EnvError("rows of a batch are not stepped one by one")

    def advance(self, action: Any) -> TimeStep:
        return self.begin_episode(0)


def _tensors(value: Any, device: torch.device) -> Any:
    return (
        Batch(value).to_torch(device=device)
        if isinstance(value, Mapping | Batch)
        else torch.as_tensor(value, device=device)
    )


@layer_of(FrameStack)
@final
class FrameStackLayer(BatchedLayer):
    """`FrameStack` around a batch; the stacks of all lanes are saved with it.

    Args:
        kind: the wrapper.
        args: its arguments.
        kwargs: those by name.
    """

    layer: FrameStack

    def __init__(self, env: Environment, kind: type[FrameStack], args: Sequence[Any], kwargs: Any) -> None:
        super().__init__(env, kind, args, kwargs)
        for path, leaf in spec_leaves(self.observation_spec).items():
            if path in self.layer.changed_paths:
                shape = (self.batch_size, *leaf.shape)
                self.lane_arrays[f"frames.{path}"] = torch.zeros(shape, dtype=leaf.dtype, device=self.device)

    def change(self, time_step: TimeStep) -> TimeStep:
        lanes = time_step.env_id

        def stacked(frame: torch.Tensor, path: str, first: torch.Tensor) -> torch.Tensor:
            before = self.lane_arrays[name := f"frames.{path}"][lanes]
            before = before.masked_fill(like(first, before), 0)
            stack = torch.cat([before[:, 1:], frame[:, None]], 1)
            self.keep(name, lanes, stack)
            return stack

        return self.layer.change_rows(time_step, stacked)


@layer_of(NormalizeObservation)
@final
class NormalizeObservationLayer(BatchedLayer):
    """`NormalizeObservation` around a batch: each environment counts for itself, and its statistics are saved.

    Args:
        kind: the wrapper.
        args: its arguments.
        kwargs: those by name.
    """

    layer: NormalizeObservation
    learned = True

    def __init__(self, env: Environment, kind: type[NormalizeObservation], args: Sequence[Any], kwargs: Any) -> None:
        super().__init__(env, kind, args, kwargs)
        self.lane_arrays["count"] = torch.zeros(self.batch_size, dtype=torch.int64, device=self.device)
        for path in self.layer.changed_paths:
            shape = (self.batch_size, *spec_leaves(env.observation_spec)[path].shape)
            for name in ("mean", "square"):
                self.lane_arrays[f"{name}.{path}"] = torch.zeros(shape, dtype=torch.float64, device=self.device)

    def change(self, time_step: TimeStep) -> TimeStep:
        lanes = time_step.env_id
        counts = self.lane_arrays["count"][lanes] + 1
        self.keep("count", lanes, counts)

        def normal(value: torch.Tensor, path: str, _: Any) -> torch.Tensor:
            """As `RunningMeanVariance`, for all lanes at once."""
            mean, square = (self.lane_arrays[f"{name}.{path}"][lanes] for name in ("mean", "square"))
            count, before = like(counts, value), value - mean
            mean = mean + before / count
            square = square + before * (value - mean)
            self.keep(f"mean.{path}", lanes, mean)
            self.keep(f"square.{path}", lanes, square)
            return self.layer.normal(value, mean, square / count).float()

        return self.layer.change_rows(time_step, normal)


@layer_of(TimeLimit)
@final
class TimeLimitLayer(BatchedLayer):
    """`TimeLimit` around a batch: it makes steps LAST ones, and has those lanes begin anew in the next step.

    Args:
        kind: the wrapper.
        args: its arguments.
        kwargs: those by name.

    Raises:
        ConfigError: the duration is no positive integer, or the batch resets its lanes itself and takes no orders.
    """

    layer: TimeLimit

    def __init__(self, env: Environment, kind: type[TimeLimit], args: Sequence[Any], kwargs: Any) -> None:
        super().__init__(env, kind, args, kwargs)
        if env.end_episodes is None:
            raise ConfigError(
                f"TimeLimit cannot go around a {type(env).__name__}, which resets its lanes itself; give it a method "
                "end_episodes(lanes), or its constructor a max_episode_steps"
            )
        self.lane_arrays["steps"] = torch.zeros(self.batch_size, dtype=torch.int64, device=self.device)
        self.step_limit = min(env.step_limit or self.layer.duration, self.layer.duration)

    def change(self, time_step: TimeStep) -> TimeStep:
        if self.env.ended is not None and time_step.step_type is self.env.ended.step_type:
            return time_step  # of episodes that are over already
        steps = self.lane_arrays["steps"] = (self.lane_arrays["steps"] + 1).masked_fill(time_step.first, 0)
        cut = (steps >= self.layer.duration) & (time_step.step_type == 1)
        self.env.end_episodes(cut)
        return time_step._replace(step_type=time_step.step_type.masked_fill(cut, 2))


@final
class RawRows(BatchedWrapper):
    """The innermost layer of `EnvConfig(untransformed=True)` around environments that are stepped as one.

    Time steps carry what they were through the layers outside, to `UntransformedRows`.
    """

    keeps_frames = True

    def change(self, time_step: TimeStep) -> TimeStep:
        return time_step._replace(untransformed=time_step)


@final
class UntransformedRows(BatchedWrapper):
    """The outermost layer there: `untransformed` has observations and rewards of `RawRows`, all else as it came out.

    Args:
        env: the batch with its wrappers.
        raw: the batch without.
    """

    keeps_frames = True

    def __init__(self, env: Environment, raw: Environment) -> None:
        super().__init__(env)
        self.untransformed_spec = {"observation": unstacked(raw.observation_spec), "reward": raw.reward_spec}

    def change(self, time_step: TimeStep) -> TimeStep:
        raw = time_step.untransformed
        if not isinstance(raw, TimeStep):
            raise EnvError(
                f"the time step of a {type(self.env).__name__} has no `untransformed` any more; let `change` return "
                "time_step._replace(...), not a TimeStep of its own, or leave out env.untransformed"
            )
        return with_raw(time_step, raw)


@final
class InputEnvironment(BatchedWrapper):
    """The outermost layer of `EnvConfig(inputs=...)`: observations hold other fields of their time steps, too.

    An observation is a `Batch` of the fields: that of the environment as `observation`, or its own entries where it is
    a dict, then those of the time step: `prev_action`, `reward`, and `env_info` with the entries of `EnvConfig.info`,
    0 where one was not reported. Everything behind it, buffers and networks say, needs to know nothing of this.

    Args:
        env: the batch inside; closed if it does not fit.
        inputs: names of the fields.

    Raises:
        ConfigError: the environment names no entries of `env_info`, or its observation has an entry of such a name.
    """

    def __init__(self, env: Environment, inputs: Sequence[str]) -> None:
        super().__init__(env)
        seen = env.observation_spec
        own: dict[str, SpecTree] = dict(seen) if isinstance(seen, dict) else {"observation": seen}
        info: SpecTree = {name: TensorSpec(()) for name in env.info}
        shown: dict[str, SpecTree] = {"prev_action": env.action_spec, "reward": env.reward_spec, "env_info": info}
        if problem := _problem(own, env, inputs):
            env.close()
            raise ConfigError(f"env.inputs is {tuple(inputs)}, but {problem}")
        self._inputs, self._nested = tuple(inputs), isinstance(seen, dict)
        self.specs = self.specs._replace(observation=own | {name: shown[name] for name in inputs})

    def change(self, time_step: TimeStep) -> TimeStep:
        seen = time_step.observation
        fields = dict(seen.items()) if self._nested else {"observation": seen}
        for name in self._inputs:
            fields[name] = self._info_of(time_step) if name == "env_info" else getattr(time_step, name)
        return time_step._replace(observation=Batch.of(fields))

    def _info_of(self, time_step: TimeStep) -> Batch:
        found = time_step.env_info if isinstance(time_step.env_info, Batch) else {}
        missing = torch.zeros(len(time_step.step_type), device=self.device)
        return Batch.of({name: found.get(name, missing).float().nan_to_num(0.0, 0.0, 0.0) for name in self.info})


def _problem(own: Mapping[str, SpecTree], env: Environment, inputs: Sequence[str]) -> str:
    """Why observations cannot have these fields; empty if they can."""
    taken = [name for name in inputs if name in own]
    if taken:
        return f"the observation has an entry {taken[0]!r} of its own; leave it out, or rename the entry by a wrapper"
    if "env_info" in inputs and not env.info:
        return "this environment has no entries of env_info in every time step; let it put them into its observations"
    return ""
