"""What an algorithm is: `Algorithm`, anything that learns a policy from data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar, final

import torch

from palaestra.algorithms.algorithm_config import AlgorithmConfig
from palaestra.algorithms.records import UpdateInfo
from palaestra.core import (
    Batch,
    CheckpointError,
    ConfigError,
    DataSource,
    Linear,
    OnPolicy,
    Piecewise,
    Plan,
    RunSeeds,
    require_device,
    schedule_value,
    to_device,
)
from palaestra.nn import CoreModel
from palaestra.policies import NetworkPolicy, Policy

__all__ = ["Algorithm", "PolicyT"]

PolicyT = TypeVar("PolicyT", bound=Policy)


class Algorithm(ABC, Generic[PolicyT]):
    """Anything that learns a policy from data.

    Subclasses are final and are constructed as `Name(observation_spec, action_spec, config, seeds)`.

    Args:
        config: its hyperparameters.
        policy: how to act.
        model: what is learned, with optimizers.
        plan: the data it wants.
        seeds: of the run.
    """

    config_class: ClassVar[type[AlgorithmConfig]]
    """Its configuration."""
    stored_fields: ClassVar[tuple[str, ...]] = ()
    """Which of the policy's `behaviour` fields the buffer has to keep."""
    recurrent: ClassVar[bool] = False
    """Whether it learns policies with a memory."""
    team: ClassVar[bool] = False
    """Whether it learns for a team of agents together."""

    def __init__(
        self, config: Any, *, policy: PolicyT, model: CoreModel, plan: Plan, seeds: RunSeeds | None = None
    ) -> None:
        if policy.state_spec and not self.recurrent:
            name = type(self).__name__
            raise ConfigError(
                f"{name} learns no policy with a memory; leave it out, or use A2C, IMPALA, PPO, REINFORCE or R2D2"
            )
        seeds = seeds or RunSeeds(0)
        self.config: Any = config
        self.policy: PolicyT = policy
        self.model, self.plan = model, plan
        self.device = torch.device("cpu")
        """Where it learns."""
        self._moves = False  # whether that is not the CPU: a device takes ten times as long to ask
        self.num_gradient_steps = 0
        self.progress = 0.0
        """Where everything that follows a schedule is, in [0, 1]."""
        self.minibatch_generator = seeds.generator("minibatches")
        """Decides what is drawn from a source, and in which order it is learned from."""
        self._noise_generator = seeds.generator("noise")
        self._scheduled = {
            name: (value, torch.tensor(value(0.0)))
            for name, value in vars(config).items()
            if isinstance(value, Linear | Piecewise)
        }
        policy.seed(seeds.integer("acting"))
        if isinstance(policy, NetworkPolicy):
            model.attach_policy(policy)

    @property
    def policy_version(self) -> int:
        """Updates made so far; every row carries the version that acted."""
        return self.policy.version

    @final
    def to(self, device: torch.device | str) -> Self:
        """Moves the model, what its optimizers remember, and the policy to a device; data follows when it is drawn.

        The numbers that decide what is drawn and the noise of losses go on coming from generators on the CPU, so they
        are the same on every device. Acting draws from the device's own generator, which starts anew.

        Args:
            device: `"cpu"`, `"cuda"` or `"cuda:1"`.

        Returns:
            The algorithm itself.

        Raises:
            ConfigError: there is no such device; the message says which there are.
        """
        target = require_device(str(device))
        self.model.to(target)
        self.policy.to(target)
        self._scheduled = {name: (schedule, value.to(target)) for name, (schedule, value) in self._scheduled.items()}
        self.device, self._moves = target, target.type != "cpu"
        return self

    @final
    def draw(self, source: DataSource) -> Batch:
        """The data of one update, where the algorithm learns: the one place where data moves to a device.

        Args:
            source: where the data comes from.
        """
        return self.on_device(source.draw(self.plan, self.minibatch_generator))

    @final
    def on_device(self, batch: Any) -> Any:
        """Data where the algorithm learns.

        Args:
            batch: from anywhere.
        """
        return to_device(batch, self.device) if self._moves else batch

    @abstractmethod
    def update(self, source: DataSource) -> UpdateInfo:
        """Everything learned from one unroll or sample; raises the policy version by one.

        Args:
            source: where the data comes from.
        """

    @final
    def finish_update(self, drawn: Batch) -> None:
        """What ends every update: the policy's version rises, and its normaliser learns the `drawn` observations."""
        vars(self.policy)["version"] += 1  # nn.Module's own way of setting a number takes ten times as long
        if self.policy.normalizer is not None:
            seen = drawn["observation"]
            if isinstance(self.plan, OnPolicy):
                seen = seen[:-1]  # the last row begins the next unroll
                collected = drawn["valid"].cummax(0).values > 0
                if not collected.all():  # shorter lanes are filled up in front
                    seen = seen[collected]
            self.policy.normalizer.merge(self.policy.normalizer.increment(seen))

    @final
    def value_of(self, name: str) -> Any:
        """A number of the configuration as it is now: itself, or where its schedule has come to.

        Args:
            name: of a field that holds a number or a schedule.

        Returns:
            The number, or a 0-dim tensor that follows the schedule, inside compiled code too.
        """
        scheduled = self._scheduled.get(name)
        return getattr(self.config, name) if scheduled is None else scheduled[1]

    @final
    def set_progress(self, progress: float) -> None:
        """Moves everything that follows a schedule.

        Args:
            progress: env steps taken divided by the run's total, in [0, 1].
        """
        self.progress = progress
        for schedule, value in self._scheduled.values():
            value.fill_(schedule_value(schedule, progress))
        self.model.set_progress(progress)
        if self.policy.exploration is not None:
            self.policy.exploration.set_progress(progress)

    def state_tensors(self) -> dict[str, Any]:
        """All that learning depends on, by name, for a checkpoint."""
        state: dict[str, Any] = self.model.state_tensors()
        state |= {"policy_version": self.policy_version, "num_gradient_steps": self.num_gradient_steps}
        state |= {
            "generator.minibatches": self.minibatch_generator.get_state(),
            "generator.noise": self._noise_generator.get_state(),
            "generator.acting": self.policy.generator.get_state(),
        }
        if self.policy.normalizer is not None:
            state |= {f"normalizer.{key}": value for key, value in self.policy.normalizer.state_dict().items()}
        return state

    def load_state_tensors(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_tensors` gave.

        Args:
            state: of an algorithm with the same configuration.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
        self.model.load_state_tensors(state)
        try:
            self.policy.version = int(state["policy_version"])
            self.num_gradient_steps = int(state["num_gradient_steps"])
            self.minibatch_generator.set_state(state["generator.minibatches"])
            self._noise_generator.set_state(state["generator.noise"])
            self.policy.load_generator_state(state["generator.acting"])
        except KeyError as error:
            raise CheckpointError(f"the saved algorithm has no {error}") from error
        if self.policy.normalizer is not None:
            prefix = "normalizer."
            saved = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            self.policy.normalizer.load_state_dict(saved)
