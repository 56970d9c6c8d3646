"""Hindsight experience replay: goals that were reached are put in the place of those that were not.

Paper: Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495, algorithm 1 and section 4.5 (strategies).
Departures: goals are exchanged when rows are drawn, not when they are stored, so that storage does not grow with k.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, final

import numpy as np
import torch

from palaestra.buffers.reader import StreamReader
from palaestra.buffers.samplers import Sampler, UniformSampler
from palaestra.core import Batch, ConfigError, ShapeError, StepType

__all__ = ["HindsightSampler"]


def _of_first_episode(batch: Batch, changed: np.ndarray) -> torch.Tensor:
    """[T+1, n] which rows are of the episode that a row begins in; all of windows, which end where theirs does."""
    if "next_observation" in batch:
        return torch.ones(len(batch.reward), len(changed), dtype=torch.bool, device=batch.reward.device)
    ends = batch.step_type[:, changed] == StepType.LAST
    ends[0] = False  # a sequence that begins at the end of an episode is of the next one
    return ends.cumsum(0) - ends.long() == 0


@final
class HindsightSampler(Sampler):
    """Draws rows as another sampler does and gives a share of them a goal that their own episode reached.

    Observations have the keys `observation`, `achieved_goal` and `desired_goal`. Of a row with a new goal,
    `desired_goal` changes in every observation drawn, and the rewards are computed anew.

    Args:
        reward: the environment's own function, `reward(achieved_goal, desired_goal, info)`, on numpy arrays
            `[..., goal]`; the info is empty.
        strategy: where the goal comes from: `future`, a later step of the episode; `final`, its last step so far;
            `episode`, any of its steps.
        share: probability of a new goal, in [0, 1]; k new goals for each old one are k / (k + 1).
        base: who draws the rows; uniform by default.
        terminated: `terminated(achieved_goal, desired_goal, info)` where reaching a goal ends the episode; by default
            ends stay as they were.

    Raises:
        ConfigError: the strategy does not exist or the share is no probability.
    """

    def __init__(
        self,
        reward: Callable[[np.ndarray, np.ndarray, Any], Any],
        *,
        strategy: Literal["future", "final", "episode"] = "future",
        share: float = 0.8,
        base: Sampler | None = None,
        terminated: Callable[[np.ndarray, np.ndarray, Any], Any] | None = None,
    ) -> None:
        if strategy not in ("future", "final", "episode"):
            raise ConfigError(f"HindsightSampler(strategy={strategy!r}): give 'future', 'final' or 'episode'")
        if not 0 <= share <= 1:
            raise ConfigError(f"HindsightSampler(share={share}): give a probability in [0, 1]")
        self.reward, self.terminated = reward, terminated
        self.strategy, self.share, self.base = strategy, share, UniformSampler() if base is None else base

    def starts(self, buffer: StreamReader, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        return self.base.starts(buffer, count, length, generator)

    def every(self, buffer: StreamReader, length: int) -> np.ndarray:
        return self.base.every(buffer, length)

    def finish(self, buffer: StreamReader, batch: Batch, generator: torch.Generator) -> Batch:
        batch = self.base.finish(buffer, batch, generator)
        if not isinstance(batch.observation, Batch) or "desired_goal" not in batch.observation:
            raise ShapeError(
                "hindsight needs observations with the keys 'observation', 'achieved_goal', 'desired_goal'"
            )
        index = batch.index.numpy()
        uniform = torch.rand(2, len(index), generator=generator, dtype=torch.float64).numpy()
        changed = np.flatnonzero(uniform[0] < self.share)
        start = index[changed]
        goal = buffer.take("observation.achieved_goal", self._goals(buffer, start, uniform[1, changed]))
        if goal.ndim != 2:
            raise ShapeError(
                f"hindsight needs goals of one axis, and these are {tuple(goal.shape[1:])}, stacks included"
            )
        same = _of_first_episode(batch, changed)
        for name in ("observation", "next_observation"):
            if name in batch:
                rows = batch[name].desired_goal[..., changed, :]
                moved = goal.to(rows.device)
                new = torch.where(same[..., None], moved, rows) if rows.ndim > 2 else moved
                batch[name].desired_goal[..., changed, :] = new
        steps = len(batch.reward) - 1
        later = buffer.after(start, np.arange(1, steps + 1)[:, None])
        achieved = buffer.take("observation.achieved_goal", later).cpu().numpy()
        desired = np.broadcast_to(goal.cpu().numpy(), achieved.shape)
        rewards = self._computed(self.reward, "reward", achieved, desired, batch.reward.shape[2:])
        arrived = same[1:].reshape(*same[1:].shape, *(1 for _ in batch.reward.shape[2:]))
        batch.reward[1:, changed] = torch.where(arrived, rewards.to(batch.reward), batch.reward[1:, changed])
        if self.terminated is not None:
            before = buffer.take("observation.desired_goal", later).cpu().numpy()
            was, over = (
                self._computed(self.terminated, "terminated", achieved, goals, ()).to(batch.discount.device) > 0
                for goals in (before, desired)
            )
            given = batch.discount[1:, changed]
            new = torch.where(over, 0.0, torch.where(was, 1.0, given))  # what else ended the episode still does
            batch.discount[1:, changed] = torch.where(same[1:], new, given)
        return batch

    def _goals(self, buffer: StreamReader, start: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """[N] rows of the same episodes whose achieved goals become the desired ones."""
        # a sequence that begins at the end of an episode is of the next one
        start = np.where(buffer.is_start(start), start, buffer.after(start, 1))
        first, last = np.ones_like(start), buffer.steps_to_end(start)
        if self.strategy == "episode":
            first = 1 - buffer.steps_from_begin(start)
        if self.strategy == "final":
            first = last
        return buffer.after(start, first + (uniform * (last - first + 1)).astype(np.int64))

    def _computed(
        self, function: Callable[..., Any], name: str, achieved: np.ndarray, desired: np.ndarray, element: Sequence[int]
    ) -> Any:
        given = np.asarray(function(achieved, desired, {}), np.float32)
        needed = (*achieved.shape[:-1], *element)
        if given.shape != needed:
            raise ShapeError(
                f"{name}(achieved_goal, desired_goal, info) gave shape {given.shape} for goals {achieved.shape}; "
                f"it must compute all rows at once and give {needed}"
            )
        return torch.from_numpy(given)

    def weight(self) -> torch.Tensor | None:
        return self.base.weight()

    def largest_weight(self) -> float:
        return self.base.largest_weight()

    def write_back(self, buffer: StreamReader, index: np.ndarray, priority: np.ndarray) -> None:
        self.base.write_back(buffer, index, priority)

    def set_progress(self, progress: float) -> None:
        self.base.set_progress(progress)

    def state(self) -> dict[str, Any]:
        return self.base.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.base.load_state(state)
