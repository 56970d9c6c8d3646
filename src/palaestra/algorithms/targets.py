"""`Targets`: which networks follow which others, and when. An algorithm's file says it; no name of a setting does."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from palaestra.core import ConfigError, Linear, Piecewise, Schedule, schedule_value
from palaestra.nn import CoreModel

__all__ = ["Targets"]


class Targets:
    """Target networks: components of a model, each of which begins as a copy of another one and follows it.

    With `period` they become copies again after so many gradient steps. With `tau` they go that share of the way after
    each step, or with both after each `period` of them.

    Args:
        model: has them; those that it lacks are added.
        follows: by the name of a component, that of the one it follows: `{"target_q": "q"}`.
        period: gradient steps from one move to the next, at least 1.
        tau: share of the way in each move, in [0, 1]; a number or a schedule.

    Raises:
        ConfigError: neither `period` nor `tau` is given, or `period` is below 1, or the model lacks what they follow,
            or a target shares parameters with it.
        ShapeError: a target network differs from what it follows.

    Examples:
        >>> model = CoreModel({"q": torch.nn.Linear(4, 2)}, {})
        >>> Targets(model, {"target_q": "q"}, period=250).period
        250
        >>> sorted(model.component)
        ['q', 'target_q']
    """

    def __init__(
        self, model: CoreModel, follows: Mapping[str, str], *, period: int | None = None, tau: Schedule | None = None
    ) -> None:
        if (period is None and tau is None) or (period is not None and period < 1):
            raise ConfigError(
                f"Targets were given period={period} and tau={tau}; say after how many gradient steps they become "
                "copies again, at least 1, or which share of the way they go after each"
            )
        if missing := sorted(set(follows.values()) - set(model.component)):
            raise ConfigError(f"Targets follow {missing}, but the components are {sorted(model.component)}")
        self._model = model
        self.follows = dict(follows)
        self.period = 1 if period is None else int(period)
        """Gradient steps from one move to the next."""
        self.tau: Schedule = 1.0 if tau is None else tau
        """Share of the way that each move goes, over the run."""
        self.share: Any = self.tau
        """Share of the way that each move goes now; a 0-dim tensor where it follows a schedule."""
        if isinstance(self.tau, Linear | Piecewise):
            self.share = torch.tensor(schedule_value(self.tau, 0.0))
        for target, source in self.follows.items():
            if target not in model.component:
                model.extend({target: copy.deepcopy(model.component[source])})
            kept, learned = ({*model.component[name].parameters()} for name in (target, source))
            if any(parameter.requires_grad for parameter in kept & learned):  # what is frozen may be shared
                raise ConfigError(f"{target} has parameters of {source}, which it is to follow; give it copies")
        self.copy()

    def copy(self) -> None:
        """Makes each a copy of what it follows."""
        for target, source in self.follows.items():
            self._model.sync(target, source=source)

    def pair(self) -> None:
        """Prepares moves inside of compiled code."""
        for target, source in self.follows.items():
            self._model.pair(target, source=source)

    def step(self, number: int) -> None:
        """After gradient step `number`, counted from 1: a move, if it is time for one."""
        if number % self.period == 0:
            share = float(self.share)
            self.copy() if share == 1 else self.move(share)

    def move(self, share: float | Tensor) -> None:
        """Goes a share of the way; 0-dim inside of compiled code."""
        for target, source in self.follows.items():
            self._model.polyak_update(target, source=source, tau=share)

    def to(self, device: torch.device) -> None:
        """Follows the model to a device."""
        if isinstance(self.share, Tensor):
            self.share = self.share.to(device)

    def set_progress(self, progress: float) -> None:
        """Moves `tau` along its schedule."""
        if isinstance(self.share, Tensor):
            self.share.fill_(schedule_value(self.tau, progress))
