"""A wrapper of your own: a pole on a cart without its velocities, and the frames that give them back.

The wrapper is a value in the configuration, so worker processes, evaluation and a resumed run have it as well.
"""

from typing import Any

import numpy as np

import palaestra
from palaestra.core import BoundedSpec, SpecTree
from palaestra.envs import SingleEnvironment, Wrap
from palaestra.envs.wrappers import FrameStack, TimeStepMap


class Positions(TimeStepMap):
    """Observes the place of the cart and the angle of the pole, in units of `scale`."""

    def __init__(self, env: SingleEnvironment, scale: float = 1.0) -> None:
        super().__init__(env)
        self.scale = scale

    @property
    def observation_spec(self) -> SpecTree:
        inner = self.env.observation_spec
        low, high = inner.minimum[::2] / self.scale, inner.maximum[::2] / self.scale
        return BoundedSpec((2,), inner.dtype, minimum=low, maximum=high)

    def change(self, time_step: palaestra.TimeStep) -> palaestra.TimeStep:
        return time_step._replace(observation=time_step.observation[::2] / np.float32(self.scale))


def returns(name: str, *wrappers: Any) -> None:
    done = palaestra.train("ppo", "CartPole-v1", env__wrappers=wrappers, trainer__total_env_steps=20_000)
    print(f"{name:22}", done.result.evaluation)


def main() -> None:
    blind = Wrap("own_wrapper:Positions", scale=0.2)  # module:class, on the Python path
    returns("without velocities", blind)
    returns("with the newest frames", blind, Wrap(FrameStack, num_frames=3))


if __name__ == "__main__":
    main()
