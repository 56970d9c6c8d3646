"""Exploration: how actions depart from the policy's choice while experience is collected."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Self, final

import numpy as np
import torch
from torch import Tensor

from palaestra.core import ConfigError, Schedule, schedule_range, schedule_value
from palaestra.policies.actions import uniform_choice

__all__ = ["EpsilonGreedy", "EvalExploration", "Exploration", "GaussianNoise", "HeldNoise", "UniformNoise"]

_LEAST_EPSILON = 2.0**-24  # a float32 draw from [0, 1) has no finer steps
_FEW = 16  # rows


class Exploration(ABC):
    """Changes actions at random. Call it with actions; a schedule follows the run through `set_progress`.

    A subclass defines `explore`.

    Args:
        strength: the number that a schedule may change over the run.
        seed: of the own generator, which is used where a call brings none.
    """

    evaluates: bool = False
    """Whether it is for evaluations: then it applies in `Phase.EVAL`."""
    guide: Callable[[Any, Any, torch.Generator], Any] | None = None
    """What changes the actions of a stochastic policy by what it observed, instead of `explore`: called with raw
    observations [B, ...], actions [B, ...] and a generator. `None`, or a method that a subclass sets."""

    def __init__(self, strength: Schedule, *, seed: int = 0) -> None:
        self.schedule = strength
        self.strength = schedule_value(strength, 0.0)
        self.progress = 0.0
        self.generator = torch.Generator().manual_seed(seed)
        self.memory: dict[str, Tensor] = {}
        """What it has to know from one call to the next, for checkpoints; nothing by default."""

    @final
    def set_progress(self, progress: float) -> None:
        """Moves along the schedule.

        Args:
            progress: env steps taken divided by the run's total, in [0, 1].
        """
        self.strength, self.progress = schedule_value(self.schedule, progress), progress

    @final
    def __call__(self, action: Any, *, generator: torch.Generator | None = None, mask: Any = None) -> Any:
        """Actions to execute instead of the given ones.

        Args:
            action: what the policy would do: a number, a numpy array or a tensor, with any leading dimensions.
            generator: source of the noise; default the own one.
            mask: [..., A] which discrete actions are allowed.

        Returns:
            New actions of the same kind, shape and dtype; the given ones where nothing changes.
        """
        if isinstance(action, Tensor):
            return self.explore(action, generator or self.generator, mask)
        array = np.array(action)
        allowed = None if mask is None else torch.as_tensor(np.array(mask))
        changed = self.explore(torch.as_tensor(array), generator or self.generator, allowed).numpy()
        if isinstance(action, np.ndarray):
            return changed.astype(action.dtype, copy=False)
        return type(action)(changed.item()) if array.ndim == 0 else type(action)(changed.tolist())

    @abstractmethod
    def explore(self, action: Tensor, generator: torch.Generator, mask: Tensor | None) -> Tensor:
        """What a subclass defines; users call the object itself.

        Args:
            action: [...] or [..., A], what the policy would do.
            generator: source of all noise.
            mask: [..., A] which discrete actions are allowed; `None` is all.

        Returns:
            Actions of the same shape and dtype.
        """


def _probability(epsilon: Schedule) -> Schedule:
    least, most = schedule_range(epsilon)
    if not (least >= 0 and most <= 1):
        raise ConfigError(f"EpsilonGreedy was given epsilon={epsilon}; it must stay in [0, 1]")
    return epsilon


@final
class EpsilonGreedy(Exploration):
    """Replaces each action, with probability ε, by one drawn uniformly from all allowed ones.

    Args:
        num_actions: A.
        epsilon: ε in [0, 1], or a schedule of it.
        seed: of the own generator.
        evaluates: whether it is for evaluations, in `Phase.EVAL`.

    Raises:
        ConfigError: there is no action, or ε leaves [0, 1].

    Examples:
        >>> EpsilonGreedy(num_actions=10, epsilon=0.0)(np.array([3, 1]))
        array([3, 1])
    """

    def __init__(self, num_actions: int, epsilon: Schedule = 0.1, *, seed: int = 0, evaluates: bool = False) -> None:
        if num_actions < 1:
            raise ConfigError(f"EpsilonGreedy was given num_actions={num_actions}; it must be at least 1")
        super().__init__(_probability(epsilon), seed=seed)
        self.num_actions, self.evaluates = num_actions, evaluates

    @property
    def epsilon(self) -> float:
        """ε now. Set to a number or a schedule, it takes the place of the schedule before.

        That is not kept by checkpoints: a callback that sets it does so in every iteration.
        """
        return self.strength

    @epsilon.setter
    def epsilon(self, epsilon: Schedule) -> None:
        self.schedule = _probability(epsilon)
        self.strength = schedule_value(epsilon, self.progress)

    def explore(self, action: Tensor, generator: torch.Generator, mask: Tensor | None) -> Tensor:
        if self.strength < _LEAST_EPSILON:
            return action
        if mask is None:
            draw = self.noise(torch.empty_like(action, dtype=torch.float32), generator)
            # a look at a few numbers costs less than the operations that most steps do not need
            few = draw.ndim == 1 and 0 < draw.shape[0] <= _FEW and draw.is_cpu
            if few and min(draw.tolist()) >= self.num_actions:
                return action
            return self.changed(action, draw)
        chance = torch.empty_like(action, dtype=torch.float32).uniform_(generator=generator)
        return torch.where(chance < self.strength, uniform_choice(mask, generator).to(action.dtype), action)

    def noise(self, out: Tensor, generator: torch.Generator) -> Tensor:
        """The random numbers of one call without a mask; one number decides both whether and what.

        Args:
            out: [...] float32, filled in place.
            generator: source of the noise.

        Returns:
            `out`: below A, which happens with probability ε, it is the new action.
        """
        if self.strength < _LEAST_EPSILON:
            return out.fill_(torch.inf)
        return out.uniform_(0.0, self.num_actions / self.strength, generator=generator)

    def changed(self, action: Tensor, noise: Tensor) -> Tensor:
        """Actions with random numbers drawn before: compiled code draws none.

        Args:
            action: [...] what the policy would do.
            noise: [...] from `noise`.
        """
        return torch.where(noise < self.num_actions, noise.to(action.dtype), action)


class EvalExploration(NamedTuple):
    """How a policy explores in evaluations: not at all, or epsilon-greedily."""

    epsilon: float = 0.0
    """The probability of a random action."""
    num_actions: int = 0
    """A."""

    @classmethod
    def of(cls, policy: Any, epsilon: float) -> Self:
        """That of a policy.

        Args:
            policy: that explores epsilon-greedily.
            epsilon: the probability of a random action.

        Raises:
            ConfigError: it is above 0, and the policy does not.
        """
        if epsilon and not isinstance(policy.exploration, EpsilonGreedy):
            raise ConfigError(
                f"eval_epsilon is {epsilon}, but {type(policy).__name__} has no epsilon here; leave out "
                "trainer.eval_epsilon, which is for policies that explore epsilon-greedily, such as DQN's"
            )
        return cls(epsilon, getattr(policy.exploration, "num_actions", 0))

    def made(self) -> Exploration | None:
        """What changes actions in evaluations."""
        return EpsilonGreedy(self.num_actions, self.epsilon, evaluates=True) if self.epsilon else None


class _Noise(Exploration):
    """Adds noise, then clips."""

    def __init__(self, strength: Schedule, minimum: Any, maximum: Any, *, seed: int) -> None:
        kind = type(self).__name__
        if not schedule_range(strength)[0] >= 0:
            raise ConfigError(f"{kind} was given noise of strength {strength}; it must not be negative")
        super().__init__(strength, seed=seed)
        self.minimum, self.maximum = _bound(minimum), _bound(maximum)
        self._bounds: dict[tuple[torch.device, torch.dtype], list[Tensor | None]] = {}  # a graph cannot copy them
        if minimum is not None and maximum is not None and not (np.array(minimum) <= np.array(maximum)).all():
            raise ConfigError(f"{kind} was given minimum={minimum} and maximum={maximum}; exchange them")

    def _require_floats(self, action: Tensor) -> None:
        if not action.is_floating_point():
            raise ConfigError(
                f"{type(self).__name__} was given an action of {action.dtype}; noise is for numbers in floating point, "
                "2.0 say, not 2"
            )

    def _clipped(self, action: Tensor) -> Tensor:
        place = action.device, action.dtype
        if place not in self._bounds:
            bounds = self.minimum, self.maximum
            self._bounds[place] = [None if bound is None else bound.to(action) for bound in bounds]
        minimum, maximum = self._bounds[place]
        return action if minimum is None and maximum is None else action.clamp(minimum, maximum)


@final
class UniformNoise(_Noise):
    """Adds noise drawn uniformly between two bounds.

        a' = clip(a + scale u),   u ~ U[low, high)

    Args:
        low: lower bound of the noise, a number or [A].
        high: upper bound of the noise, a number or [A].
        minimum: lower bound of actions, a number or [A]; `None` does not clip.
        maximum: upper bound of actions, a number or [A]; `None` does not clip.
        scale: multiplies the noise; may be a schedule.
        seed: of the own generator.

    Raises:
        ConfigError: the bounds of the noise are the wrong way round.

    Examples:
        >>> action = UniformNoise(-0.1, 0.1, maximum=1.0)(np.ones(3))
        >>> bool((action > 0.9).all() and (action <= 1.0).all())
        True
    """

    def __init__(
        self, low: Any, high: Any, *, minimum: Any = None, maximum: Any = None, scale: Schedule = 1.0, seed: int = 0
    ) -> None:
        super().__init__(scale, minimum, maximum, seed=seed)
        self.low, self.high = torch.as_tensor(np.array(low)), torch.as_tensor(np.array(high))
        if (self.low > self.high).any():
            raise ConfigError(f"UniformNoise was given low={low}, high={high}; low must not be above high")

    def explore(self, action: Tensor, generator: torch.Generator, mask: Tensor | None) -> Tensor:
        self._require_floats(action)
        unit = torch.rand(action.shape, generator=generator, dtype=action.dtype, device=action.device)
        low, high = self.low.to(action), self.high.to(action)
        return self._clipped(action + self.strength * torch.lerp(low, high, unit))


@final
class GaussianNoise(_Noise):
    """Adds normal noise.

        a' = clip(a + σ ε),   or relative: a' = clip(a + σ ε a),   ε ~ N(0, 1)

    Args:
        std: σ ≥ 0, or a schedule of it; units of the action, or of one where relative.
        relative: whether noise is in proportion to the action.
        minimum: lower bound of actions, a number or [A]; `None` does not clip.
        maximum: upper bound of actions, a number or [A]; `None` does not clip.
        seed: of the own generator.

    Examples:
        >>> GaussianNoise(std=0.5, relative=True)(np.zeros(2))
        array([0., 0.])
    """

    def __init__(
        self, std: Schedule, relative: bool = False, *, minimum: Any = None, maximum: Any = None, seed: int = 0
    ) -> None:
        super().__init__(std, minimum, maximum, seed=seed)
        self.relative = relative

    def explore(self, action: Tensor, generator: torch.Generator, mask: Tensor | None) -> Tensor:
        self._require_floats(action)
        return self.changed(action, self.noise(torch.empty_like(action), generator))

    def noise(self, out: Tensor, generator: torch.Generator) -> Tensor:
        """The random numbers of one call, with the standard deviation of now.

        Args:
            out: as actions are; filled in place.
            generator: source of the noise.
        """
        return out.normal_(generator=generator) * self.strength

    def changed(self, action: Tensor, noise: Tensor) -> Tensor:
        """Actions with noise drawn before: compiled code draws none.

        Args:
            action: what the policy would do.
            noise: from `noise`.
        """
        return self._clipped(action + (noise * action if self.relative else noise))


@final
class HeldNoise(Exploration):
    """The random part of a `SquashedGaussianPolicy`'s actions, held for n steps each time it is drawn.

        P(n) = n⁻² / Σₘ m⁻²,   n, m = 1 ... N

    Steps in one direction lead further than as many in directions of their own. As in FlashSAC, Kim et al. 2026,
    https://arxiv.org/abs/2604.04539; all lanes draw at the same time. It is for batches of the same lanes in each step,
    and so for a robot with one agent at most.

    Args:
        longest: N, steps that noise is held for at most.
        seed: of the own generator.

    Raises:
        ConfigError: N is below 1.

    Examples:
        >>> noise, generator = HeldNoise(longest=16), torch.Generator().manual_seed(2)
        >>> [round(float(noise.noise(torch.zeros(1), generator)), 1) for _ in range(6)]
        [0.4, 0.4, -0.2, -2.1, -0.6, 0.6]
    """

    def __init__(self, longest: int = 16, *, seed: int = 0) -> None:
        if longest < 1:
            raise ConfigError(f"HeldNoise was given longest={longest}; noise is held for at least 1 step")
        super().__init__(1.0, seed=seed)
        chances = torch.arange(1, longest + 1, dtype=torch.float64) ** -2
        self._until = chances.cumsum(0) / chances.sum()

    def explore(self, action: Tensor, generator: torch.Generator, mask: Tensor | None) -> Tensor:
        return action

    def noise(self, out: Tensor, generator: torch.Generator) -> Tensor:
        """The random numbers of one call: new ones, or those of the call before.

        Args:
            out: as actions are; filled in place.
            generator: source of the noise.
        """
        held, left = self.memory.get("noise"), self.memory.get("left")
        if held is None or left is None or not left or held.shape != out.shape:
            held = torch.empty_like(out).normal_(generator=generator)
            chance = torch.rand((), generator=generator, device=out.device).double().cpu()
            left = (torch.searchsorted(self._until, chance) + 1).clamp(max=len(self._until))
        self.memory = {"noise": held, "left": left - 1}
        return out.copy_(held)


def _bound(bound: Any) -> Tensor | None:
    return None if bound is None else torch.as_tensor(np.array(bound))
