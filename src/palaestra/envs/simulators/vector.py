"""Simulators that step many as one, tensors in and out: Isaac Lab, mjlab, ManiSkill, Genesis, rsl_rl's `VecEnv`.

They share an interface: `step(actions)` resets what has ended within the step, and says in four or five values what was
earned and where a task was over or cut off. `vector:MODULE:CLASS` makes one with `num_envs`.
"""

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from gymnasium import Space
from gymnasium.spaces import Box

from palaestra.core import Batch, BoundedSpec, SpecError, SpecTree, TensorSpec, TimeStep, episode_seed, spec_leaves
from palaestra.core.errors import ConfigError, EnvError, ShapeError, is_news
from palaestra.envs.contract.boundary import require_all, taken
from palaestra.envs.contract.environment import Environment, HasSpecs
from palaestra.envs.contract.episodes import lane_seeds_of, saved_seeds
from palaestra.envs.contract.nest import flatten, like, to_rows
from palaestra.envs.contract.rows import Specs
from palaestra.envs.contract.spaces import spec_from_space
from palaestra.envs.supervision.faults import describe

__all__ = ["TorchVectorEnvironment"]

_log = logging.getLogger(__name__)
_FOR_THE_POLICY = ("policy", "actor")  # Isaac Lab's and mjlab's names of what a robot itself can see
_FINAL = ("final_observation", "final_obs")
_LOGGED = ("log", "episode")


@final
class TorchVectorEnvironment(HasSpecs, Environment):
    """A vector environment of tensors, which stay on their device.

    Ends are read from five values (`observations, rewards, terminated, truncated, extras`), or from four
    (`observations, rewards, dones, extras`), where `extras["time_outs"]` says which ends are time limits; without it
    none are. Where its `cfg.is_finite_horizon` is true, time limits are ends of the task.

    A lane that ended shows the FIRST row of its next episode, and its LAST row is in `ended`, with what
    `extras["final_observation"]` shows. Most simulators do not give that: the observation before the last action takes
    its place then, which is said once. mjlab's with `cfg.auto_reset = False` are reset here, and show it.

    Args:
        env: the simulator, not used elsewhere.
        lane_seeds: the first seeds all of it.
        groups: of observations that are shown; `policy` or `actor` where there is such a group, else all.
        clip_actions: actions are within plus and minus this; as the simulator says by default.

    Raises:
        ConfigError: it has no such group, or does not say what its actions are.
        EnvError: it failed.
    """

    seeding = "per_batch"
    resume = "statistical"

    def __init__(
        self,
        env: Any,
        *,
        lane_seeds: Sequence[int] | None = None,
        groups: Sequence[str] | None = None,
        clip_actions: float | None = None,
    ) -> None:
        self.vector_env, self.batch_size = env, int(env.num_envs)
        self._seeds = lane_seeds_of(lane_seeds, self.batch_size)
        self._groups = None if groups is None else tuple(groups)
        self._action = _action_spec(env, clip_actions)
        self._resets, self._running, self._sent, self._told_final = 0, False, None, False
        config = getattr(env, "cfg", None)
        self._finite_horizon = bool(getattr(config, "is_finite_horizon", False))
        self._resets_itself = getattr(config, "auto_reset", True) is not False
        first = self._fresh()
        self._observation = _spec(first)
        leaves = flatten(first, self._observation)
        self.device = leaves[0].device
        self._env_id = torch.arange(self.batch_size, device=self.device)
        self._shown = self._rows(first)
        self.specs = Specs(self._observation, self._action, TensorSpec(()))
        self._begun: Any = first  # what the first `reset` shows

    def reset(self) -> TimeStep:
        first, self._begun = self._fresh() if self._begun is None else self._begun, None
        self._running, self._sent, self.ended = True, None, None
        self._shown = self._rows(first)
        everyone = torch.ones(self.batch_size, dtype=torch.bool, device=self.device)
        action = torch.zeros(self.batch_size, *self._action.shape, dtype=self._action.dtype, device=self.device)
        return self._emitted(everyone, torch.zeros(self.batch_size, device=self.device), action)

    def send(self, action: Any, env_id: torch.Tensor | None = None) -> None:
        require_all(self, env_id, self._sent is not None)
        action = torch.as_tensor(action, device=self.device)
        shape = (self.batch_size, *self._action.shape)
        if action.shape != shape:
            raise ShapeError(f"the action has shape {tuple(action.shape)}, expected {shape}")
        self._sent = action.to(self._action.dtype).clone()

    def recv(self) -> TimeStep:
        action, self._sent = taken(self._sent), None
        if not self._running:
            return self.reset()
        try:
            return self._step(action)
        except Exception as error:
            self._running = False
            raise self._failure(error, "when it was stepped") from error

    def state_dict(self) -> dict[str, Any]:
        """The seeds, and how often it was reset as a whole."""
        return {"lane_seed": np.array(self._seeds, np.int64), "resets": self._resets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # the next step starts new episodes everywhere, with a seed not used before
        self._seeds, self._resets = saved_seeds(state, self.batch_size), int(state["resets"])
        self._running, self._sent, self._begun = False, None, None

    def lane_state(self) -> dict[str, Any]:
        """The seeds; who continues takes the next."""
        state = self.state_dict()
        return {"lane_seed": state["lane_seed"], "episode": np.full(self.batch_size, self._resets - 1)}

    def load_lane_state(self, state: Mapping[str, Any]) -> None:
        """Takes over seeds and the number of resets, from `lane_state`."""
        self.load_state_dict({**state, "resets": state["episode"][0] + 1})

    def close(self) -> None:
        if hasattr(self.vector_env, "close"):
            self.vector_env.close()

    # -- the simulator

    def _fresh(self) -> Any:
        """The observations of a reset of everything."""
        env, seed = self.vector_env, episode_seed(self._seeds[0], self._resets) % (1 << 31)
        self._resets += 1
        try:
            if not hasattr(env, "reset"):
                if self._resets > 1:
                    raise EnvError("it has no method reset, and was reset once, when it was made; give it one")
                found = env.get_observations()
            elif "seed" in inspect.signature(env.reset).parameters:
                found = env.reset(seed=seed)
            else:
                if is_news(f"seed {type(env)}"):
                    _log.warning("%s takes no seed: its episodes do not depend on that of the run", type(env).__name__)
                found = env.reset()
            return self._seen(found[0] if isinstance(found, tuple) else found)
        except Exception as error:
            if isinstance(error, ConfigError):
                raise
            raise self._failure(error, "when it was reset") from error

    def _step(self, action: torch.Tensor) -> TimeStep:
        self.ended = None
        observation, reward, terminated, truncated, extras = self._read(self.vector_env.step(action.clone()))
        observation = self._seen(observation)
        over = terminated | truncated
        lanes = over.nonzero().squeeze(-1)
        if len(lanes):
            final = self._final(observation, extras)
            if not self._resets_itself:
                final = self._rows(final)  # before the reset writes over it
                observation = self._seen(self.vector_env.reset(env_ids=lanes)[0])
            self.ended = TimeStep(
                torch.full_like(lanes, 2, dtype=torch.int32),
                reward[lanes],
                (~terminated[lanes]).to(torch.float32),
                to_rows((leaf[lanes] for leaf in flatten(final, self._observation)), self._observation),
                action[lanes],
                lanes,
                (),
                _logged(extras, len(lanes)),
            )
        self._shown = self._rows(observation)
        return self._emitted(over, reward, action)

    def _read(self, result: Any) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor, Mapping[str, Any]]:
        """Observations, rewards, where tasks are over, where they are cut off, and extras."""
        if not isinstance(result, tuple) or len(result) not in (4, 5):
            raise SpecError(f"step gave {type(result).__name__} of {len(result)}; four or five values are needed")
        observation, reward, *ends, extras = result
        extras = extras or {}
        first, *others = (torch.as_tensor(end, device=self.device).reshape(-1).bool().clone() for end in ends)
        if others:
            terminated, truncated = first, others[0]
        else:
            truncated = torch.as_tensor(extras.get("time_outs", False), device=self.device).bool() & first
            terminated = first & ~truncated
        if self._finite_horizon:
            terminated = terminated | truncated
        reward = torch.as_tensor(reward, device=self.device).reshape(-1).to(torch.float32, copy=True)
        for what, rows in (("rewards", reward), ("terminated", terminated), ("truncated", truncated)):
            if rows.shape != (self.batch_size,):
                raise SpecError(f"step gave {what} of shape {tuple(rows.shape)}, expected ({self.batch_size},)")
        return observation, reward, terminated, truncated, extras

    def _final(self, observation: Any, extras: Mapping[str, Any]) -> Any:
        """What lanes that ended showed last, [B, ...]; other lanes are not looked at."""
        if not self._resets_itself:
            return observation
        for name in _FINAL:
            if name in extras:
                return self._rows(self._seen(extras[name]))
        told, self._told_final = self._told_final, True
        if not told and is_news(f"final {type(self.vector_env)}"):
            _log.warning(
                "%s resets itself and does not show what an episode ended with; where a time limit cut one off, what "
                "was to come is judged by the observation before the last action. Said once",
                type(self.vector_env).__name__,
            )
        return self._shown

    def _seen(self, observation: Any) -> Any:
        """The groups that are shown, of an observation."""
        if not hasattr(observation, "items"):
            return observation
        names = [str(name) for name in observation.keys()]  # noqa: SIM118 - a TensorDict iterates over its rows
        if self._groups is None:
            own = [name for name in _FOR_THE_POLICY if name in names][:1]
            self._groups = tuple(own or names)
            if (left := [name for name in names if name not in self._groups]) and is_news(f"groups {names}"):
                given = f'{{"groups": {names}}}'.replace("'", '"')
                _log.warning(
                    "networks see the group %s, not %s; env.kwargs %s shows all", own[0], ", ".join(left), given
                )
        if missing := [name for name in self._groups if name not in names]:
            raise ConfigError(f"there is no group {missing[0]!r} of observations; there are {', '.join(names)}")
        if len(self._groups) == 1:
            return observation[self._groups[0]]
        return {name: observation[name] for name in self._groups}

    def _rows(self, observation: Any) -> Any:
        """Observations in memory of their own, for simulators write to theirs again."""
        spec = spec_leaves(self._observation)
        found = flatten(observation, self._observation)
        for leaf, (path, expected) in zip(found, spec.items(), strict=True):
            if leaf.shape != (self.batch_size, *expected.shape):
                raise SpecError(
                    f"observations{f' at {path!r}' if path else ''} have shape {tuple(leaf.shape)}, expected "
                    f"{(self.batch_size, *expected.shape)}"
                )
        copies = (leaf.detach().to(kind.dtype, copy=True) for leaf, kind in zip(found, spec.values(), strict=True))
        return to_rows(copies, self._observation)

    def _emitted(self, first: torch.Tensor, reward: torch.Tensor, action: torch.Tensor) -> TimeStep:
        """A row of each lane: FIRST where an episode begins, else MID.

        Args:
            first: bool [B].
            reward: [B].
            action: [B, ...]
        """
        return TimeStep(
            (~first).to(torch.int32),
            reward.masked_fill(first, 0.0),
            torch.ones_like(reward),
            self._shown,
            action.masked_fill(like(first, action), 0),
            self._env_id,
            (),
            (),
        )

    def _failure(self, error: Exception, where: str) -> EnvError:
        return EnvError(f"{type(self.vector_env).__name__} raised {': '.join(describe(error))} {where}")


def _action_spec(env: Any, clip: float | None) -> TensorSpec:
    """Of one lane: what its space says, or how many numbers they are."""
    space: Any = getattr(env, "single_action_space", None)
    if space is None and not hasattr(env, "num_actions"):
        raise ConfigError(f"{type(env).__name__} has neither single_action_space nor num_actions; give it one")
    if not isinstance(space, Space):  # mjlab has spaces of its own, rsl_rl and Genesis none
        shape = tuple(space.shape) if space is not None else (int(env.num_actions),)
        low, high = (np.float32(getattr(space, name, sign * np.inf)) for name, sign in (("low", -1), ("high", 1)))
        space = Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), shape, np.float32)
    if clip is not None and isinstance(space, Box):
        space = Box(np.maximum(space.low, -clip), np.minimum(space.high, clip), space.shape, np.float32)
    spec = spec_from_space(space, "action_space")
    if not isinstance(spec, TensorSpec):
        raise ConfigError(f"{type(env).__name__} has the action space {space}; it must be of one array")
    return spec


def _spec(observation: Any) -> SpecTree:
    """The spec of one row of observations [B, ...]. Whole numbers but pictures are given as float32."""
    if hasattr(observation, "items"):
        return {str(name): _spec(child) for name, child in observation.items()}
    shape = tuple(observation.shape[1:])
    if observation.dtype in (torch.uint8, torch.bool):
        top = 255 if observation.dtype is torch.uint8 else 1
        return BoundedSpec(shape, torch.uint8, minimum=np.array(0), maximum=np.array(top))
    return TensorSpec(shape, observation.dtype if observation.dtype.is_floating_point else torch.float32)


def _logged(extras: Mapping[str, Any], count: int) -> Any:
    """Numbers that are reported of episodes that ended, each a mean over them, as float64 [n]."""
    found = {name: value for key in _LOGGED for name, value in (extras.get(key) or {}).items()}
    numbers = {name: torch.as_tensor(value, dtype=torch.float64).mean() for name, value in found.items()}
    return Batch.of({name: value.cpu().expand(count).clone() for name, value in numbers.items()}) if numbers else ()
