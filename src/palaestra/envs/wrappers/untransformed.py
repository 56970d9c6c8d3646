"""`Untransformed`: time steps from before wrappers changed them, on their way from bare environments to a batch."""

from typing import Any, final

import numpy as np

from palaestra.core import SpecTree, TimeStep
from palaestra.envs.contract.environment import EnvironmentWrapper, SingleEnvironment
from palaestra.envs.contract.nest import unstacked
from palaestra.envs.wrappers.base import TimeStepMap


@final
class Untransformed(EnvironmentWrapper):
    """The outermost layer of `EnvConfig(untransformed=True)`: observations hold the untransformed ones, too.

    So they come to the batch the way observations do, through shared memory say, and `split` takes them apart.
    """

    def __init__(self, env: SingleEnvironment) -> None:
        super().__init__(env)
        raw = layer = env
        while isinstance(layer, EnvironmentWrapper):
            if isinstance(layer, TimeStepMap):
                raw = layer.env
            layer = layer.env
        before: dict[str, SpecTree] = {"observation": unstacked(raw.observation_spec), "reward": raw.reward_spec}
        self.specs = self.specs._replace(observation={"seen": env.observation_spec, "untransformed": before})

    def begin_episode(self, seed: int) -> TimeStep:
        return self._joined(self.env.begin_episode(seed))

    def advance(self, action: Any) -> TimeStep:
        return self._joined(self.env.advance(action))

    def _joined(self, time_step: TimeStep) -> TimeStep:
        raw = time_step.untransformed if isinstance(time_step.untransformed, TimeStep) else time_step
        before = {"observation": raw.observation, "reward": np.asarray(raw.reward, np.float32)}
        return time_step._replace(
            observation={"seen": time_step.observation, "untransformed": before}, untransformed=()
        )


def split(time_step: TimeStep) -> TimeStep:
    """The batched time step as the environment means it, with the untransformed one inside.

    Args:
        time_step: of environments whose outermost layer is `Untransformed`.
    """
    return with_raw(time_step._replace(observation=time_step.observation.seen), time_step.observation.untransformed)


def with_raw(time_step: TimeStep, raw: Any) -> TimeStep:
    """A time step with the one from before the wrappers inside.

    Args:
        time_step: as it came out.
        raw: has the observation and the reward of before.
    """
    before = time_step._replace(observation=raw.observation, reward=raw.reward, env_info=(), untransformed=())
    return time_step._replace(untransformed=before)
