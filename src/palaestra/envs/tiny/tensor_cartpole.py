"""`TensorCartPole`: the pole on a cart, thousands at a time."""

import math
from typing import final

import numpy as np
import torch

from palaestra.core import BoundedSpec, DiscreteSpec
from palaestra.envs.tensor import State, TensorEnvironment

__all__ = ["TensorCartPole"]

_GRAVITY, _POLE_MASS, _TOTAL_MASS, _HALF_LENGTH, _FORCE, _TAU_S = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
_MOMENT = _POLE_MASS * _HALF_LENGTH
_X_LIMIT, _ANGLE_LIMIT = 2.4, 12 * 2 * math.pi / 360

_BOUND = np.array([2 * _X_LIMIT, np.inf, 2 * _ANGLE_LIMIT, np.inf])
_OBSERVATION = BoundedSpec((4,), minimum=-_BOUND, maximum=_BOUND)


@final
class TensorCartPole(TensorEnvironment):
    """Balances a pole by pushing its cart to the left (0) or right (1); every step pays 1.

    The task of Barto, Sutton and Anderson 1983, https://doi.org/10.1109/TSMC.1983.6313077, with the constants and
    the Euler steps of Gymnasium's `CartPole-v1`. Give it `max_episode_steps=500` for that environment's time limit.

    Examples:
        >>> env = TensorCartPole(2, lane_seeds=[1, 2], max_episode_steps=500)
        >>> env.reset().observation.shape
        torch.Size([2, 4])
    """

    num_random = 4

    @property
    def observation_spec(self) -> BoundedSpec:
        """Position, speed, angle and angular speed; positions and angles beyond half their bounds end the episode."""
        return _OBSERVATION

    @property
    def action_spec(self) -> DiscreteSpec:
        """0 pushes to the left, 1 to the right."""
        return DiscreteSpec(num=2)

    def fresh(self, uniform: torch.Tensor) -> State:
        """All four numbers uniform in [-0.05, 0.05).

        Args:
            uniform: [B, 4] in [0, 1).
        """
        x, speed, angle, turn = (uniform * 0.1 - 0.05).unbind(-1)
        return {"x": x, "speed": speed, "angle": angle, "turn": turn}

    def transition(self, state: State, action: torch.Tensor) -> tuple[State, torch.Tensor, torch.Tensor]:
        """One Euler step of 0.02 s.

        Args:
            state: position, speed, angle and angular speed, each [B].
            action: [B].
        """
        x, speed, angle, turn = state["x"], state["speed"], state["angle"], state["turn"]
        cosine, sine = torch.cos(angle), torch.sin(angle)
        push = (action.to(torch.float32) * 2 - 1) * _FORCE
        pull = (push + _MOMENT * turn.square() * sine) / _TOTAL_MASS
        inertia = _HALF_LENGTH * (4.0 / 3.0 - _POLE_MASS / _TOTAL_MASS * cosine.square())
        turning = (_GRAVITY * sine - cosine * pull) / inertia
        moving = pull - _MOMENT / _TOTAL_MASS * turning * cosine
        x, angle = x + _TAU_S * speed, angle + _TAU_S * turn
        after = {"x": x, "speed": speed + _TAU_S * moving, "angle": angle, "turn": turn + _TAU_S * turning}
        return after, torch.ones_like(x), (x.abs() > _X_LIMIT) | (angle.abs() > _ANGLE_LIMIT)

    def observe(self, state: State) -> torch.Tensor:
        """The four numbers, [B, 4].

        Args:
            state: each [B].
        """
        return torch.stack([state["x"], state["speed"], state["angle"], state["turn"]], dim=-1)
