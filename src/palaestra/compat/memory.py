"""`ExperienceMemory`: transitions that stand alone, put as sets, in the place of a replay buffer."""

from collections.abc import Mapping
from typing import Any, Literal, Unpack, final

import numpy as np
import torch

from palaestra.buffers import ReplayBuffer, RowOptions, Sampler
from palaestra.buffers.drawn import cast_rows
from palaestra.compat.layouts import ExperienceSet
from palaestra.core import Batch, CheckpointError, ConfigError, Plan, ShapeError, StepType, TensorSpec, as_array

__all__ = ["ExperienceMemory"]


@final
class ExperienceMemory:
    """Keeps transitions that need not follow each other; any algorithm that replays single steps learns from it.

    It is a `ReplayBuffer` in which every transition is a stream of its own, so samplers and priorities are the same. An
    `ExperienceSet` has no ends of episodes: `info` may have `terminated`, and nothing is bootstrapped where it is true.

    Args:
        capacity: transitions to keep.
        overwrite_type: of a full memory, the oldest transitions are replaced ("rolling"), or any of them ("random").
        sampler: who chooses; `UniformSampler()` by default. Its `on_put` is told what was put.
        seed: of the random replacement.
        options: what a transition consists of, see `RowOptions`; `info_spec` names what is kept of a set's `info`.

    Raises:
        ConfigError: the capacity is below 1, memory has no room for it, or there is no such way to overwrite.
        TypeError: an option is unknown, or a spec is missing.

    Examples:
        >>> from palaestra.core import DiscreteSpec, TensorSpec
        >>> memory = ExperienceMemory(100, observation_spec=TensorSpec((2,)), action_spec=DiscreteSpec(num=3))
        >>> states = np.zeros((5, 2))
        >>> memory.put(ExperienceSet(states, np.arange(5) % 3, np.ones(5), states + 1)).tolist(), len(memory)
        ([0, 1, 2, 3, 4], 5)
        >>> memory.sample(2, torch.Generator())[0].rewards
        tensor([1., 1.])
    """

    def __init__(
        self,
        capacity: int,
        *,
        overwrite_type: Literal["rolling", "random"] = "rolling",
        sampler: Sampler | None = None,
        seed: int = 0,
        **options: Unpack[RowOptions],
    ) -> None:
        if overwrite_type not in ("rolling", "random"):
            raise ConfigError(f"overwrite_type is {overwrite_type!r}; give 'rolling' or 'random'")
        self.capacity, self.overwrite_type = capacity, overwrite_type
        self.buffer = ReplayBuffer(capacity, capacity, sampler=sampler, **options)
        """Where the transitions lie, one in each lane; not to be written to."""
        self._next, self._generator = 0, torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        """Transitions that it holds."""
        return len(self.buffer)

    @property
    def sampler(self) -> Sampler:
        """Sampler of the transitions of a draw."""
        return self.buffer.sampler

    # -- writing

    def put(self, experiences: ExperienceSet) -> np.ndarray:
        """Takes the transitions of a set, which may be empty.

        Args:
            experiences: its `info` has what `info_spec` names, and perhaps `terminated`.

        Returns:
            [N] the numbers by which a sampler means them.

        Raises:
            ShapeError: there are more than the capacity, or they do not fit the specs; nothing is taken then.
        """
        count, buffer = len(experiences), self.buffer
        if count > self.capacity:
            raise ShapeError(f"{count} transitions were put into a memory with a capacity of {self.capacity}")
        if not count:
            return np.empty(0, np.int64)
        rows, places = self._rows(experiences, count), self._places(count)
        buffer.extend(rows, places)
        if self._next < self.capacity or self.overwrite_type == "rolling":
            self._next += count
        positions = buffer.positions
        index = (positions.cursors[places] - 1) % positions.ring_size * self.capacity + places
        self.sampler.on_put(experiences, index)
        return index

    def _places(self, count: int) -> np.ndarray:
        """The places to which so many transitions go."""
        if self.overwrite_type == "rolling":
            return np.arange(self._next, self._next + count) % self.capacity
        free = np.arange(self._next, min(self._next + count, self.capacity))
        others = torch.randperm(min(self._next, self.capacity), generator=self._generator)[: count - len(free)]
        return np.concatenate([free, others.numpy()])

    def _rows(self, experiences: ExperienceSet, count: int) -> Batch:
        """A step before and one after each action, as `ReplayBuffer.extend` takes them."""
        options = self.buffer.options
        info = {str(name): value for name, value in Batch.of(experiences.info).items()}
        if missing := [name for name in self.buffer.info_fields if name not in info]:
            raise ShapeError(f"info lacks {missing}, which info_spec names; it has {list(info)}")
        terminated = torch.as_tensor(as_array(info.get("terminated", np.zeros(count)))).to(torch.float32)

        def cast(name: str, spec: Any) -> Any:
            return cast_rows(name, experiences[name], spec, count)

        before, after = (cast(name, options["observation_spec"]) for name in ("states", "next_states"))
        kept = {
            name: cast_rows(f"info.{name}", info[name], spec, count, finite=False)[:, 0][None]
            for name, spec in (options.get("info_spec") or {}).items()
        }
        rewards = cast("rewards", TensorSpec(np.shape(experiences.rewards)[1:]))[:, 0]
        kinds = torch.tensor([[int(StepType.FIRST)], [int(StepType.LAST)]], dtype=torch.int32)
        return Batch.of(
            {
                "step_type": kinds.expand(2, count),
                "reward": torch.stack([torch.zeros_like(rewards), rewards]),
                "discount": torch.stack([torch.ones(count), 1 - terminated]),
                "observation": _together(before, after),
                "action": _together(cast("actions", options["action_spec"])),
                "policy_info": Batch.of(kept),
            }
        )

    def clear(self) -> None:
        """Forgets everything."""
        self.buffer.clear()
        self._next = 0

    # -- drawing

    def draw(self, plan: Plan, generator: torch.Generator) -> Batch:
        """The data of one update; see `ReplayBuffer.draw`.

        Args:
            plan: of single steps.
            generator: source of every random choice.

        Raises:
            ConfigError: the plan asks for more than single steps.
            ShapeError: the memory is empty.
        """
        if plan.window != 1 or plan.data == "on-policy":
            raise ConfigError(f"an ExperienceMemory holds single transitions, and this plan needs sequences: {plan}")
        self._require_any()
        return self.buffer.draw(plan, generator)

    def sample(self, count: int, generator: torch.Generator) -> tuple[ExperienceSet, np.ndarray]:
        """Transitions as they were put.

        Args:
            count: how many the sampler chooses; 0 is all.

        Returns:
            The set, and [N] their numbers.

        Raises:
            ShapeError: the memory is empty, or the sampler has not so many.
        """
        self._require_any()
        if count < 0:
            raise ShapeError(f"sample({count}) was asked for; give at least 1 row, or 0 for all")
        reader = self.buffer.reader
        index = self.sampler.starts(reader, count, 1, generator) if count else reader.starts(1)
        after, take = reader.after(index, 1), reader.take
        states, actions, next_states = take("observation", index), take("action", index), take("observation", after)
        info = {name: take(f"policy_info.{name}", index) for name in self.buffer.info_fields}
        info = Batch.of({**info, "terminated": take("discount", after) == 0})
        return ExperienceSet(states, actions, take("reward", after), next_states, info), index

    def write_back(self, indices: torch.Tensor | np.ndarray, priority: torch.Tensor | np.ndarray) -> None:
        """Gives priorities of drawn transitions to the sampler.

        Args:
            indices: the batch's `index` field, or the numbers of `sample`.
            priority: non-negative, one for each.
        """
        self.buffer.write_back(indices, priority)

    def set_progress(self, progress: float) -> None:
        """Moves the schedules of the sampler.

        Args:
            progress: env steps taken divided by the run's total, in [0, 1].
        """
        self.buffer.set_progress(progress)

    def _require_any(self) -> None:
        if not len(self):
            raise ShapeError("the memory holds no transitions; put some before learning")

    # -- checkpoints

    def state_tensors(self) -> dict[str, Any]:
        """Everything that it and its sampler hold, by name."""
        return {**self.buffer.state_tensors(), "next": self._next, "generator": self._generator.get_state()}

    def load_state_tensors(self, tensors: Mapping[str, Any]) -> None:
        """Puts back what `state_tensors` gave.

        Args:
            tensors: of a memory with the same specs, capacity and sampler.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
        if missing := [name for name in ("next", "generator") if name not in tensors]:
            raise CheckpointError(f"the saved memory has no {', '.join(missing)}")
        self.buffer.load_state_tensors(tensors)
        self._next = int(tensors["next"])
        self._generator.set_state(tensors["generator"])


def _together(*parts: Any) -> Any:
    """[N, 1, ...] of several nests as one of [parts, N, ...]."""
    if isinstance(parts[0], Batch):
        return parts[0].map(lambda *leaves: torch.stack([leaf[:, 0] for leaf in leaves]), *parts[1:])
    return torch.stack([part[:, 0] for part in parts])
