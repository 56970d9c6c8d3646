"""`BatchEnvironment`: what a simulator that steps many environments at once has to say, in arrays.

It knows nothing of any simulator: episodes, seeds, time limits, checks and saving are here, for all of them.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from gymnasium import Space

from palaestra.core import Batch, TensorSpec, TimeStep, episode_seed
from palaestra.core.errors import EnvError, PalaestraError
from palaestra.envs.contract.attributes import SharedAttributes
from palaestra.envs.contract.boundary import ActionReader, Boundary, batched_time_step, require_all, require_idle, taken
from palaestra.envs.contract.environment import Environment, HasSpecs
from palaestra.envs.contract.episodes import batch_seeds, saved_seeds
from palaestra.envs.contract.nest import batched_arrays, batched_leaves, flatten, to_batched, unflatten
from palaestra.envs.contract.rows import Rows, Specs, completed
from palaestra.envs.contract.spaces import spec_from_space
from palaestra.envs.supervision.faults import describe

__all__ = ["BatchEnvironment"]

_NEVER = (1 << 63) - 1


class BatchEnvironment(SharedAttributes, HasSpecs, Environment):
    """B environments that a simulator steps as one, each an entry of its arrays.

    A subclass says what they look like, how lanes begin, what an action does, what is observed, and gives its rows,
    which are all that it would need to go on. Episodes, seeds, time limits, resets, checks, saving and restoring are
    done here: a restored batch goes on with the very same stream. The seed of an episode is that of the same lane and
    episode in environments stepped one by one.

    Args:
        batch_size: B.
        observation_space: Gymnasium's, of one environment.
        action_space: the same.
        lane_seeds: one for each environment; new ones by default.
        max_episode_steps: the time limit; 0: without.

    Raises:
        ConfigError: a number is out of range.
        SpecError: a space has no arrays of fixed shape.

    Examples:
        >>> import gymnasium, numpy
        >>> class Counting(BatchEnvironment):
        ...     '''Counts to 3.'''
        ...     def __init__(self, batch_size, **settings):
        ...         space = gymnasium.spaces.Box(0, 3, (1,))
        ...         super().__init__(batch_size, space, gymnasium.spaces.Discrete(2), **settings)
        ...         self.count = numpy.zeros((batch_size, 1), numpy.float32)
        ...     def fresh(self, lanes, seeds):
        ...         self.count[lanes] = 0
        ...     def transition(self, lanes, action):
        ...         self.count[lanes, 0] += action
        ...         return action, self.count[lanes, 0] == 3
        ...     def observe(self):
        ...         return self.count
        ...     def rows(self):
        ...         return {"count": self.count}
        ...     def set_rows(self, rows):
        ...         self.count = rows["count"]
        >>> env = Counting(2, lane_seeds=[0, 1])
        >>> env.reset().observation.tolist(), env.step(torch.tensor([1, 0])).reward.tolist()
        ([[0.0], [0.0]], [1.0, 0.0])
    """

    batched = True
    seeding = "per_episode"
    resume = "exact"
    checks_finite = True

    def __init__(
        self,
        batch_size: int,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        lane_seeds: Sequence[int] | None = None,
        max_episode_steps: int = 0,
    ) -> None:
        self._seeds = batch_seeds(lane_seeds, batch_size, max_episode_steps)
        self._observation = spec_from_space(observation_space, "observation_space")
        self._action = spec_from_space(action_space, "action_space")
        bare = Specs(self._observation, self._action, TensorSpec(()))
        self.specs, self.batch_size = bare.batched(), batch_size
        self._reader = ActionReader(bare, batch_size)
        self._boundary = Boundary(self._observation, batch_size, batch_size, strict=False, first=0)
        self._leaves = batched_leaves(self._observation, batch_size)
        self.step_limit, self._limit = max_episode_steps, max_episode_steps or _NEVER
        self._env_id, self._lanes = torch.arange(batch_size), np.arange(batch_size)
        self._episode, self._steps = np.full(batch_size, -1), np.zeros(batch_size, np.int64)
        self._over = np.ones(batch_size, np.bool_)  # lanes that begin an episode in the next step
        self._sent: list[np.ndarray] | None = None

    # -- the task

    @abstractmethod
    def fresh(self, lanes: np.ndarray, seeds: Sequence[int]) -> None:
        """Begins episodes in some lanes.

        Args:
            lanes: int [n]: which.
            seeds: one for each; all the randomness of its episode comes from it.
        """

    @abstractmethod
    def transition(self, lanes: np.ndarray, action: Any) -> tuple[np.ndarray, np.ndarray]:
        """Executes actions in some lanes, most often in all; the others must not change.

        Args:
            lanes: int [n]: which.
            action: [n, ...], an array or a nest as the action space says.

        Returns:
            Rewards [n], and whether the task is over (bool [n]). Not where it is cut off: that is what
            `max_episode_steps` and `truncated` are for.
        """

    def truncated(self) -> np.ndarray | None:
        """Where the simulator itself has cut episodes off in the latest transition, bool [B]; `None`: it never does."""
        return None

    @abstractmethod
    def observe(self) -> Any:
        """Observations [B, ...] of all lanes, an array or a nest as the observation space says; copied here."""

    @abstractmethod
    def rows(self) -> Mapping[str, np.ndarray]:
        """All that the simulator would need to go on, by name; copied here."""

    @abstractmethod
    def set_rows(self, rows: Mapping[str, np.ndarray]) -> None:
        """Goes on from there.

        Args:
            rows: from `rows`, to keep.
        """

    def infos(self) -> Mapping[str, np.ndarray]:
        """What is reported of all lanes, [B] or [B, k] by name, NaN where a lane has nothing to report."""
        return {}

    # -- the environment

    @final
    def reset(self) -> TimeStep:
        self._over[:], self._reader.mask = True, None
        self._sent = self._reader.zeros()
        return self.recv()

    @final
    def end_episodes(self, lanes: torch.Tensor) -> None:
        """Makes the next step the FIRST one of a new episode in some lanes.

        Args:
            lanes: bool [B]: in which.
        """
        self._over |= lanes.numpy()
        if self._reader.mask is not None:  # the action after LAST is ignored, whatever it is
            self._reader.mask[self._over] = True

    @final
    def send(self, action: Any, env_id: torch.Tensor | None = None) -> None:
        """Takes the actions; `recv` executes them.

        Args:
            action: [B, ...].
            env_id: all environments, or `None`.

        Raises:
            EnvError: the actions sent before have not been received.
            SpecError: an action is NaN, outside its space, or not allowed.
        """
        require_all(self, env_id, self._sent is not None)
        self._sent = self._reader.checked(action, 0, self._where)

    @final
    def recv(self) -> TimeStep:
        """The time steps of the actions sent.

        Raises:
            EnvError: the simulator failed, or nothing was sent.
            NonFiniteError: it emitted NaN or infinity.
        """
        actions, self._sent = taken(self._sent), None
        over, size = self._over, self.batch_size
        begun = np.flatnonzero(over)
        self._steps += 1
        try:
            if not len(begun):  # most often
                given = unflatten((array.copy() for array in actions), self._action)  # which a simulator may change
                reward, terminated = self.transition(self._lanes, given)
            else:
                running = np.flatnonzero(~over)
                reward, terminated = np.zeros(size), np.zeros(size, np.bool_)
                if len(running):
                    given = unflatten((array[running] for array in actions), self._action)
                    reward[running], terminated[running] = self.transition(running, given)
                self._episode[begun] += 1
                self._steps[begun] = 0
                self.fresh(begun, [episode_seed(self._seeds[lane], int(self._episode[lane])) for lane in begun])
            observed = flatten(self.observe(), self._observation)
            arrays = batched_arrays(observed, self._leaves, f"{type(self).__name__} observes")
            info = self._info(len(begun) > 0)
            terminated = np.asarray(terminated, np.bool_)
            last = terminated | ((self._steps >= self._limit) & ~over)
            if (cut := self.truncated()) is not None:
                last |= cut & ~over
            step_type = np.where(over, 0, 1 + last).astype(np.int32)
            reward = np.array(reward, np.float64)
            self.exact_reward = torch.from_numpy(reward)
            rows = Rows(step_type, reward.astype(np.float32), (~terminated).astype(np.float32), arrays)
            self._boundary.require(rows, int(self._steps[0]), self._where)
        except PalaestraError:
            self._over = np.ones(size, np.bool_)  # which lanes were stepped is not known
            raise
        except Exception as error:
            self._over = np.ones(size, np.bool_)
            kind, detail = describe(error)
            where = f"raised {kind} when environment 0 was at {self.place(0)}"
            raise EnvError(f"{type(self).__name__} {where}: {detail}") from error
        if len(begun):
            for array in actions:
                array[begun] = 0
        self._over = last
        if self.info:
            info = completed(info, step_type, self.info)
        prev_action = to_batched(actions, self._action)
        time_step = batched_time_step(rows, prev_action, self._env_id, info, self._observation)
        if self._reader.masked:
            self._reader.show(time_step)
        return time_step

    def place(self, lane: int) -> str:
        """Where in its stream a lane is, for messages."""
        return f"episode {self._episode[lane]}, step {self._steps[lane]}"

    def _where(self, lane: int) -> str:
        return f" ({self.place(lane)})"

    @final
    def state_dict(self) -> dict[str, Any]:
        """The rows of the simulator and where every lane is, so that a restored batch continues exactly."""
        require_idle(self._sent, "state_dict was called")
        rows = {f"row.{name}": np.array(row) for name, row in self.rows().items()}
        return {**self.lane_state(), "steps": self._steps.copy(), "over": self._over.copy(), **rows}

    @final
    def load_state_dict(self, state: dict[str, Any]) -> None:
        # the simulator's rows, too
        self.load_lane_state(state)
        self._steps, self._over = np.array(state["steps"]), np.array(state["over"])
        prefix = "row."
        rows = {key.removeprefix(prefix): np.array(row) for key, row in state.items() if key.startswith(prefix)}
        self.set_rows(rows)

    @final
    def lane_state(self) -> dict[str, Any]:
        """Every lane's seed and episode number, and what was set."""
        return {"lane_seed": np.array(self._seeds), "episode": self._episode.copy(), **self._attributes_text()}

    @final
    def load_lane_state(self, state: Mapping[str, Any]) -> None:
        """Takes over seeds and episode numbers; the next step starts new episodes everywhere."""
        self._seeds, self._episode = saved_seeds(state, self.batch_size), np.array(state["episode"])
        self._load_attributes(state)
        self._over = np.ones(self.batch_size, np.bool_)
        self._sent, self._reader.mask = None, None

    def close(self) -> None:
        """Nothing is held that has to be freed."""

    def _info(self, partial: bool) -> Any:
        columns: dict[str, torch.Tensor] = {}
        for name, values in self.infos().items():
            single = values.ndim == 1
            for index, column in enumerate([values] if single else values.T):  # [B] of [B, k]
                if not (partial and np.isnan(column).all()):
                    columns[name if single else f"{name}/{index}"] = torch.from_numpy(np.array(column, np.float64))
        return Batch.of(columns) if columns else ()
