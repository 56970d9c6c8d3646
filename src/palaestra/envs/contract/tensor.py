"""`TensorEnvironment`: environments whose states are tensors, all stepped by the same few operations on a device."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch

from palaestra.core import TensorSpec, TimeStep, spec_leaves, tree_leaves, tree_paths
from palaestra.core.errors import ConfigError, ShapeError, SpecError, refuses
from palaestra.envs.contract.attributes import SharedAttributes
from palaestra.envs.contract.boundary import outside, require_all, require_idle, taken, tolerant_bounds
from palaestra.envs.contract.environment import Environment
from palaestra.envs.contract.episodes import batch_seeds, saved_seeds
from palaestra.envs.contract.nest import like, neutral_rows

__all__ = ["LaneTensors", "TensorEnvironment"]

State = dict[str, torch.Tensor]
_NEVER = (1 << 31) - 1


class _Progress(NamedTuple):
    """What the base class knows about every lane."""

    over: torch.Tensor
    """bool [B]; the next step starts an episode."""
    episode: torch.Tensor
    """int32 [B]; -1 before the first."""
    steps: torch.Tensor
    """int32 [B]; env steps in the running episode."""


class LaneTensors(NamedTuple):
    """All that changes from step to step."""

    state: State
    """Of the task, leaves [B, ...]."""
    progress: _Progress
    """Of the episodes."""

    @property
    def leaves(self) -> list[torch.Tensor]:
        """All tensors."""
        return [*self.state.values(), *self.progress]

    def with_leaves(self, leaves: Sequence[torch.Tensor]) -> "LaneTensors":
        """Other tensors instead of these.

        Args:
            leaves: in the order of `leaves`.
        """
        count = len(self.state)
        return LaneTensors(dict(zip(self.state, leaves, strict=False)), _Progress(*leaves[count:]))


class TensorEnvironment(SharedAttributes, Environment):
    """B environments that are tensors of leading dimension B, on any device; nothing passes through numpy.

    A subclass states the task by three pure functions of tensors: `fresh`, `transition` and `observe`. Episodes,
    seeds, time limits, resets and saving are done here. Every number of a reset is a hash of (lane seed, episode), so a
    stream depends neither on the device nor on the other lanes.

    Args:
        batch_size: B.
        lane_seeds: one for each; fresh ones if left out.
        device: where the tensors live.
        max_episode_steps: the time limit; 0 for none.
        compile: whether to compile a step: seconds of waiting at the first one, then several times the speed.

    Raises:
        ConfigError: a number is out of range, or the subclass says no `num_random`.
        SpecError: actions are not one array, or what the task's functions give has another shape or dtype than its
            specs say.

    Examples:
        >>> from palaestra.envs.tiny import TensorCartPole
        >>> env = TensorCartPole(3, lane_seeds=[1, 2, 3])
        >>> env.reset().step_type.tolist(), env.step(torch.tensor([0, 1, 0])).reward.tolist()
        ([0, 0, 0], [1.0, 1.0, 1.0])
    """

    batched = True
    seeding = "per_episode"
    resume = "exact"
    num_random: int
    """Uniform random numbers that a reset needs."""

    def __init__(
        self,
        batch_size: int,
        *,
        lane_seeds: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
        max_episode_steps: int = 0,
        compile: bool = False,
    ) -> None:
        self._seeds = batch_seeds(lane_seeds, batch_size, max_episode_steps)
        self.batch_size, self.device = batch_size, torch.device(device)
        self.step_limit, self._limit = max_episode_steps, max_episode_steps or _NEVER
        self._keys = self._keys_of(self._seeds)
        self._env_id = torch.arange(batch_size, device=self.device)
        self._advance: Any = torch.compile(self.advanced, dynamic=False, fullgraph=True) if compile else self.advanced
        if not isinstance(self.action_spec, TensorSpec):
            raise SpecError(
                f"{type(self).__name__} needs actions of one array, and its action_spec is {self.action_spec}"
            )
        if not isinstance(getattr(self, "num_random", None), int):
            raise ConfigError(f"{type(self).__name__} must say num_random: how many random numbers a reset needs")
        self._none = torch.from_numpy(neutral_rows(self.action_spec, batch_size)[0]).to(self.device)
        self._bounds = tolerant_bounds(self.action_spec)
        fresh = self.fresh(torch.zeros(batch_size, self.num_random, device=self.device))
        self.lanes = LaneTensors(fresh, self._before_the_first())
        """States of all lanes; `advanced` makes the next ones."""
        self._result: TimeStep | None = None
        self._try_out()

    def __getstate__(self) -> dict[str, Any]:
        """For a process that compiles beside this one: lanes as they are, and no way back to the configuration."""
        return {name: value for name, value in vars(self).items() if name not in ("_advance", "find_info")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _advance=self.advanced)

    # -- the task

    @abstractmethod
    def fresh(self, uniform: torch.Tensor) -> State:
        """States at the start of an episode.

        Args:
            uniform: [B, num_random] in [0, 1).
        """

    @abstractmethod
    def transition(self, state: State, action: torch.Tensor) -> tuple[State, torch.Tensor, torch.Tensor]:
        """Executes an action in every environment, without changing its arguments.

        Args:
            state: leaves [B, ...].
            action: [B, ...].

        Returns:
            The next state, the reward (float32 [B]) and whether the task is over (bool [B]). Not where it is cut off:
            that is what `max_episode_steps` is for.
        """

    @abstractmethod
    def observe(self, state: State) -> Any:
        """Observations [B, ...], in memory of their own: a tensor, or a `Batch` where the observation spec is a dict.

        Args:
            state: leaves [B, ...].
        """

    # -- the environment

    @final
    def reset(self) -> TimeStep:
        """Starts the next episode everywhere; running ones are abandoned."""
        everyone = torch.ones(self.batch_size, dtype=torch.bool, device=self.device)
        self._set_progress(self.lanes.progress._replace(over=everyone))
        self._result = None
        return self.step(self._none)

    @final
    def end_episodes(self, lanes: torch.Tensor) -> None:
        """Makes the next step the FIRST one of a new episode in some lanes.

        Args:
            lanes: bool [B]: in which.
        """
        self._set_progress(self.lanes.progress._replace(over=self.lanes.progress.over | lanes))

    @final
    def send(self, action: Any, env_id: torch.Tensor | None = None) -> None:
        """Executes the actions; on a GPU the call returns before they are.

        Args:
            action: [B, ...] on the device.
            env_id: all environments, or `None`.

        Raises:
            EnvError: the actions sent before have not been received.
            ShapeError: the actions have another shape.
            SpecError: fractions are given for whole numbers, or an action is NaN or outside its bounds (which is looked
                at on the CPU only, where that costs next to nothing).
        """
        require_all(self, env_id, self._result is not None)
        action = torch.as_tensor(action, device=self.device)
        if action.shape != self._none.shape:
            raise ShapeError(f"the action has shape {tuple(action.shape)}, expected {tuple(self._none.shape)}")
        dtype = self._none.dtype
        if action.dtype != dtype:
            if action.is_floating_point() and not dtype.is_floating_point:
                raise SpecError(f"the action has dtype {action.dtype}, expected {dtype}; cast it, if it is whole")
            action = action.to(dtype)
        wrong = outside(action.detach().numpy(), *self._bounds) if self.device.type == "cpu" else None
        if wrong is not None:
            raise SpecError(f"the action for environment {wrong[0]} has {wrong[1]}")
        self.lanes, fields = self._advance(self.lanes, action)
        self._result = TimeStep(*fields, env_id=self._env_id)

    @final
    def recv(self) -> TimeStep:
        """The time steps of the actions sent.

        Raises:
            EnvError: nothing was sent.
        """
        time_step, self._result = taken(self._result), None
        return time_step

    @final
    def state_dict(self) -> dict[str, Any]:
        """The very states, so that a restored environment continues exactly."""
        require_idle(self._result, "state_dict was called")
        state = {f"state.{name}": leaf.cpu().numpy().copy() for name, leaf in self.lanes.state.items()}
        progress = {name: leaf.cpu().numpy().copy() for name, leaf in self.lanes.progress._asdict().items()}
        return {"lane_seed": np.array(self._seeds, np.int64), **progress, **state, **self._attributes_text()}

    @final
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts the environments back.

        Raises:
            EnvError: it is of another number of environments.
        """
        self._seeds = saved_seeds(state, self.batch_size)
        self._load_attributes(state)
        self._keys.copy_(self._keys_of(self._seeds))
        progress = _Progress(*(self._tensor(state[name]) for name in _Progress._fields))
        self.lanes = LaneTensors({name: self._tensor(state[f"state.{name}"]) for name in self.lanes.state}, progress)
        self._result = None

    @final
    def lane_state(self) -> dict[str, Any]:
        """Every lane's seed and episode number, and what was set."""
        episode = self.lanes.progress.episode.cpu().numpy().copy()
        return {"lane_seed": np.array(self._seeds, np.int64), "episode": episode, **self._attributes_text()}

    @final
    def load_lane_state(self, state: Mapping[str, Any]) -> None:
        """Takes over seeds and episode numbers; the next step starts new episodes everywhere."""
        self._seeds = saved_seeds(state, self.batch_size)
        self._load_attributes(state)
        self._keys.copy_(self._keys_of(self._seeds))
        self._set_progress(self._before_the_first()._replace(episode=self._tensor(state["episode"])))
        self._result = None

    def close(self) -> None:
        """Nothing is held that has to be freed."""

    @final
    def advanced(self, lanes: LaneTensors, action: torch.Tensor) -> tuple[LaneTensors, tuple[torch.Tensor, ...]]:
        """One step of all lanes: a pure function of tensors, which compiles to one graph, alone or with what acts.

        Args:
            lanes: where they are.
            action: [B, ...], not looked at for what is out of range.

        Returns:
            Where they are then; and step types, rewards, discounts, observations and previous actions, all [B, ...].
        """
        over, episode = lanes.progress.over, lanes.progress.episode + lanes.progress.over.to(torch.int32)
        moved, reward, terminated = self.transition(lanes.state, action)
        if self.device.type == "cpu" and not torch.compiler.is_compiling():
            rows = over.nonzero().squeeze(-1)  # which a GPU, and a graph, would have to wait for
            fresh = self.fresh(uniform(self._keys[:, rows], episode[rows], self.num_random))
            state = {name: moved[name].index_copy(0, rows, leaf) for name, leaf in fresh.items()}
        else:
            fresh = self.fresh(uniform(self._keys, episode, self.num_random))
            state = {name: torch.where(like(over, moved[name]), leaf, moved[name]) for name, leaf in fresh.items()}
        running = ~over
        steps = (lanes.progress.steps + 1).masked_fill(over, 0)
        terminated = terminated & running
        last = terminated | ((steps >= self._limit) & running)
        step_type = running.to(torch.int32) + last
        prev_action = action.masked_fill(like(over, action), 0)
        discount = (~terminated).to(torch.float32)
        fields = (step_type, reward.masked_fill(over, 0.0), discount, self.observe(state), prev_action)
        return LaneTensors(state, _Progress(last, episode, steps)), fields

    @refuses(SpecError)
    def _try_out(self) -> Iterator[str]:
        """One step of the task's functions, so that what does not fit is found at once."""
        given = {**{f"state[{name!r}]": leaf for name, leaf in self.lanes.state.items()}, "action": self._none}
        before = _versions(given)
        _, reward, terminated = self.transition(self.lanes.state, self._none)
        shown = [*map(_whole, tree_leaves(self.observe(self.lanes.state)))]
        held = {name for name, leaf in given.items() if name == "action" or any(_whole(leaf) is one for one in shown)}
        if changed := [name for name, version in _versions(given).items() if name in held and version != before[name]]:
            yield (
                f"transition of {type(self).__name__} changes {', '.join(changed)}, which others hold, too; make new "
                "tensors: `x = x + 1`, not `x += 1`"
            )
        observation, spec = self.observe(self.lanes.state), spec_leaves(self.observation_spec)
        leaves = tree_paths(observation)
        if leaves.keys() != spec.keys():
            yield f"{type(self).__name__} observes {list(leaves)}, and its observation_spec is {self.observation_spec}"
        made: list[tuple[str, torch.Tensor, tuple[int, ...], torch.dtype]] = [
            *(("the observation", leaves[path], leaf.shape, leaf.dtype) for path, leaf in spec.items()),
            ("the reward", reward, (), torch.float32),
            ("what says whether the task is over", terminated, (), torch.bool),
        ]
        for what, value, shape, dtype in made:
            if value.shape != (self.batch_size, *shape) or value.dtype != dtype:
                yield (
                    f"{what} of {type(self).__name__} has shape {list(value.shape)} and dtype {value.dtype}, expected "
                    f"{[self.batch_size, *shape]} and {dtype}"
                )

    def _set_progress(self, progress: _Progress) -> None:
        self.lanes = self.lanes._replace(progress=progress)

    def _before_the_first(self) -> _Progress:
        size, device = self.batch_size, self.device
        never = torch.full((size,), -1, dtype=torch.int32, device=device)
        return _Progress(torch.ones(size, dtype=torch.bool, device=device), never, torch.zeros_like(never))

    def _keys_of(self, seeds: Sequence[int]) -> torch.Tensor:
        words = np.array(seeds, np.uint64)
        halves = np.stack([words & np.uint64(0xFFFFFFFF), words >> np.uint64(32)]).astype(np.uint32).view(np.int32)
        return torch.from_numpy(halves).to(self.device)

    def _tensor(self, value: Any) -> torch.Tensor:
        return torch.as_tensor(np.asarray(value)).clone().to(self.device)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """What it is a view of, if it is one."""
    return tensor if tensor._base is None else tensor._base


def _versions(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """How often each was written into, where PyTorch counts that."""
    return {name: tensor._version for name, tensor in tensors.items() if not tensor.is_inference()}


def uniform(keys: torch.Tensor, counter: torch.Tensor, count: int, first: int = 0) -> torch.Tensor:
    """Uniform numbers in [0, 1), float32 [B, count], each a hash of (seed, counter, index).

    Args:
        keys: int32 [2, B], the halves of seeds.
        counter: int32 [B], such as the episode or its step.
        count: how many.
        first: the first index.
    """
    lane = mixed(keys[0] ^ (counter * -1640531527)) + keys[1]
    index = torch.arange(first, first + count, dtype=torch.int32, device=keys.device) * -2048144789
    return ((mixed(lane[:, None] + index) >> 8) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def mixed(x: torch.Tensor) -> torch.Tensor:
    """Random bits of other bits, by multiply and xor-shift; the constants are of C. Wellons' `lowbias32`.

    Args:
        x: int32, any shape.
    """
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -2073254261
    return x ^ ((x >> 16) & 0xFFFF)
