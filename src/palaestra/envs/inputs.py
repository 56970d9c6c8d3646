"""`InputEnvironment`: observations with more of their time steps, for policies and networks to see."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch

from palaestra.core import Batch, ConfigError, SpecTree, TensorSpec, TimeStep
from palaestra.envs.environment import Environment
from palaestra.envs.faults import Fault

__all__ = ["InputEnvironment"]


@final
class InputEnvironment(Environment):
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
        self.env = env
        """The batch inside."""
        seen = env.observation_spec
        own: dict[str, SpecTree] = dict(seen) if isinstance(seen, dict) else {"observation": seen}
        info: SpecTree = {name: TensorSpec(()) for name in env.info}
        shown: dict[str, SpecTree] = {"prev_action": env.action_spec, "reward": env.reward_spec, "env_info": info}
        if problem := _problem(own, env, inputs):
            env.close()
            raise ConfigError(f"env.inputs is {tuple(inputs)}, but {problem}")
        self._inputs, self._nested = tuple(inputs), isinstance(seen, dict)
        self._spec: SpecTree = own | {name: shown[name] for name in inputs}
        self.batch_size, self.device, self.seeding, self.resume = env.batch_size, env.device, env.seeding, env.resume
        self.checks_finite, self.auto_reset = env.checks_finite, env.auto_reset
        self.info, self.untransformed_spec = env.info, env.untransformed_spec

    @property
    def observation_spec(self) -> SpecTree:
        return self._spec

    @property
    def action_spec(self) -> SpecTree:
        return self.env.action_spec

    @property
    def reward_spec(self) -> TensorSpec:
        return self.env.reward_spec

    @property
    def faults(self) -> Sequence[Fault]:
        return self.env.faults

    @property
    def num_ready(self) -> int:
        return self.env.num_ready

    def reset(self) -> TimeStep:
        return self._with_inputs(self.env.reset())

    def send(self, action: Any, env_id: torch.Tensor | None = None) -> None:
        self.env.send(action, env_id)

    def recv(self) -> TimeStep:
        return self._with_inputs(self.env.recv())

    def _with_inputs(self, time_step: TimeStep) -> TimeStep:
        ended = self.env.ended
        self.ended = None if ended is None else self._joined(ended)
        return self._joined(time_step)

    def _joined(self, time_step: TimeStep) -> TimeStep:
        seen = time_step.observation
        fields = dict(seen.items()) if self._nested else {"observation": seen}
        for name in self._inputs:
            fields[name] = self._info_of(time_step) if name == "env_info" else getattr(time_step, name)
        return time_step._replace(observation=Batch.of(fields))

    def _info_of(self, time_step: TimeStep) -> Batch:
        found = time_step.env_info if isinstance(time_step.env_info, Batch) else {}
        missing = torch.zeros(len(time_step.step_type), device=self.device)
        return Batch.of({name: found.get(name, missing).float().nan_to_num(0.0, 0.0, 0.0) for name in self.info})

    def state_dict(self) -> dict[str, Any]:
        return self.env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state)
        self.resume = self.env.resume

    def lane_state(self) -> dict[str, np.ndarray] | None:
        """Every lane's seed and episode number, for a worker that takes this one's place; `None` where unknown."""
        inner: Any = self.env
        return inner.lane_state() if hasattr(inner, "lane_state") else None

    def load_lane_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes over seeds and episode numbers; the next step starts new episodes everywhere.

        Args:
            state: from `lane_state`.
        """
        inner: Any = self.env
        inner.load_lane_state(state)

    def render(self) -> np.ndarray:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def _problem(own: Mapping[str, SpecTree], env: Environment, inputs: Sequence[str]) -> str:
    """Why observations cannot have these fields; empty if they can."""
    taken = [name for name in inputs if name in own]
    if taken:
        return f"the observation has an entry {taken[0]!r} of its own; leave it out, or rename the entry by a wrapper"
    if "env_info" in inputs and not env.info:
        return "this environment has no entries of env_info in every time step; let it put them into its observations"
    return ""
