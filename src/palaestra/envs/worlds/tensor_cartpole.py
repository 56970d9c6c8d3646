"""The pole on a cart, thousands at a time: `TensorCartPole` balances it, `CartPoleSwingUp` has to lift it first."""

import math
from typing import Any, final

import numpy as np
import torch

from palaestra.core import BoundedSpec, ConfigError, DiscreteSpec, TensorSpec
from palaestra.envs.contract.tensor import State, TensorEnvironment

__all__ = ["CartPoleSwingUp", "TensorCartPole"]

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


_FRAME_S, _SUITE_GRAVITY, _CART_MASS, _ROD_MASS, _ROD_LENGTH, _GEAR, _RAIL = 0.01, 9.81, 1.0, 0.1, 1.0, 10.0, 1.8
_SLIDE_FRICTION, _HINGE_FRICTION = 5e-4, 2e-6


@final
class CartPoleSwingUp(TensorEnvironment):
    """Lifts a hanging pole by moving its cart, and keeps it up, as near to the middle of the rail as can be.

    The task `cartpole-swingup` of the control suite, Tassa et al. 2018, https://arxiv.org/abs/1801.00690: its masses,
    lengths, friction, force, frames of 0.01 s integrated by Runge and Kutta's method of fourth order, and reward. The
    pole is a thin rod here, and the ends of the rail, at 1.8 m, stop the cart without a rebound. A reward is the sum
    over the frames of a step, each in [0, 1]. An episode of the suite has 1000 frames: with 8 frames a step
    (Hafner et al. 2019, https://arxiv.org/abs/1811.04551, appendix A), give it `max_episode_steps=125`.

    Args:
        batch_size: B.
        frames_per_step: how long an action lasts.
        settings: see `TensorEnvironment`.

    Raises:
        ConfigError: a step has no frame.

    Examples:
        >>> env = CartPoleSwingUp(2, lane_seeds=[1, 2], max_episode_steps=125)
        >>> env.reset().observation.shape, env.step(torch.zeros(2, 1)).reward.shape
        (torch.Size([2, 5]), torch.Size([2]))
    """

    num_random = 4

    def __init__(self, batch_size: int, *, frames_per_step: int = 8, **settings: Any) -> None:
        if frames_per_step < 1:
            raise ConfigError(f"frames_per_step is {frames_per_step}; a step has at least 1 frame")
        self._frames = frames_per_step
        super().__init__(batch_size, **settings)

    @property
    def observation_spec(self) -> TensorSpec:
        """Position, cosine and sine of the angle (upright is 0), speed, angular speed."""
        return TensorSpec((5,))

    @property
    def action_spec(self) -> BoundedSpec:
        """The force, in units of 10 N."""
        return BoundedSpec((1,), minimum=np.array([-1.0]), maximum=np.array([1.0]))

    def fresh(self, uniform: torch.Tensor) -> State:
        """Hanging, all four numbers off by up to 0.017, which has the suite's standard deviation.

        Args:
            uniform: [B, 4] in [0, 1).
        """
        x, angle, speed, turn = ((uniform * 2 - 1) * 0.01 * math.sqrt(3)).unbind(-1)
        return {"x": x, "angle": angle + math.pi, "speed": speed, "turn": turn}

    def transition(self, state: State, action: torch.Tensor) -> tuple[State, torch.Tensor, torch.Tensor]:
        """All frames of a step; the task is never over.

        Args:
            state: position, angle, speed and angular speed, each [B].
            action: [B, 1].
        """
        numbers, control = tuple(state[name] for name in ("x", "angle", "speed", "turn")), action[:, 0].clamp(-1, 1)
        total = torch.zeros_like(control)
        for _ in range(self._frames):
            numbers = _frame(numbers, _GEAR * control)
            total = total + _suite_reward(numbers, control)
        x, angle, speed, turn = numbers
        after = {"x": x, "angle": angle, "speed": speed, "turn": turn}
        return after, total, torch.zeros_like(x, dtype=torch.bool)

    def observe(self, state: State) -> torch.Tensor:
        """The five numbers, [B, 5].

        Args:
            state: each [B].
        """
        angle = state["angle"]
        return torch.stack([state["x"], angle.cos(), angle.sin(), state["speed"], state["turn"]], dim=-1)


def _frame(numbers: tuple[torch.Tensor, ...], force: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """One step of Runge and Kutta's method, and the ends of the rail."""

    def shifted(slope: tuple[torch.Tensor, ...], seconds: float) -> tuple[torch.Tensor, ...]:
        return tuple(number + seconds * change for number, change in zip(numbers, slope, strict=True))

    first = _slope(numbers, force)
    second = _slope(shifted(first, _FRAME_S / 2), force)
    third = _slope(shifted(second, _FRAME_S / 2), force)
    fourth = _slope(shifted(third, _FRAME_S), force)
    mean = tuple((a + 2 * b + 2 * c + d) / 6 for a, b, c, d in zip(first, second, third, fourth, strict=True))
    x, angle, speed, turn = shifted(mean, _FRAME_S)
    outwards = (x.abs() > _RAIL) & (x * speed > 0)
    return x.clamp(-_RAIL, _RAIL), angle, speed.masked_fill(outwards, 0.0), turn


def _slope(numbers: tuple[torch.Tensor, ...], force: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Speeds and accelerations: Lagrange's equations of a cart and a rod that hangs on it."""
    _, angle, speed, turn = numbers
    sine, cosine, half = angle.sin(), angle.cos(), _ROD_LENGTH / 2
    moment, inertia = _ROD_MASS * half, _ROD_MASS * _ROD_LENGTH**2 / 3
    push = force - _SLIDE_FRICTION * speed + moment * turn.square() * sine
    torque = moment * _SUITE_GRAVITY * sine - _HINGE_FRICTION * turn
    mass = _CART_MASS + _ROD_MASS
    determinant = mass * inertia - (moment * cosine).square()
    acceleration = (inertia * push - moment * cosine * torque) / determinant
    turning = (mass * torque - moment * cosine * push) / determinant
    return speed, turn, acceleration, turning


def _suite_reward(numbers: tuple[torch.Tensor, ...], control: torch.Tensor) -> torch.Tensor:
    """Upright, in the middle, with little force and little turning: four factors in [0, 1]."""
    x, angle, _, turn = numbers
    upright = (angle.cos() + 1) / 2
    centred = (1 + _near(x, 2.0)) / 2
    calm = (4 + (1 - control.square())) / 5
    slow = (1 + _near(turn, 5.0)) / 2
    return upright * centred * calm * slow


def _near(x: torch.Tensor, margin: float) -> torch.Tensor:
    """1 at 0, 0.1 at the margin, as a bell."""
    return (math.log(0.1) * (x / margin).square()).exp()
