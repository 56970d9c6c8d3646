"""Settings of an algorithm: `AlgorithmConfig`, one flat dataclass for each, and what many of them ask for alike.

Nothing here knows what is learned by them.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

from palaestra.algorithms.rewards import RewardConfig
from palaestra.core import Plan, Prioritized, RunSeeds
from palaestra.core.errors import require_kind
from palaestra.core.settings import (
    AboveOne,
    Annealed,
    Finite,
    Fraction,
    InsideFraction,
    Limit,
    NotNegative,
    Positive,
    require_ranges,
)
from palaestra.nn import EncoderOption, PlanningOptions, handed_over

__all__ = ["AboveOne", "AlgorithmConfig", "Annealed", "BonusConfig", "Finite", "Fraction", "InsideFraction", "Limit"]
__all__ += ["NotNegative", "Positive"]

ConfigT = TypeVar("ConfigT", bound="AlgorithmConfig")


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """Base of every algorithm's hyperparameters: one flat dataclass for each, with each field's range in its type.

    Raises:
        ConfigError: numbers are out of range; the message has all of them.

    Examples:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class MyConfig(AlgorithmConfig):
        ...     gamma: Fraction[float] = 0.99
        >>> MyConfig(gamma=1.5)
        Traceback (most recent call last):
            ...
        palaestra.core.errors.ConfigError: algorithm.gamma is 1.5; it must lie in [0, 1]
    """

    optimizers: dict[str, Any] = field(default_factory=dict)
    """Other optimizers for components of the model, or parts of them: a name, or cls, params and max_grad_norm."""
    rewards: RewardConfig = field(default_factory=RewardConfig)
    """Weights and constraints, where the environment's reward is a vector."""

    plan_class: ClassVar[type[Plan] | None] = None
    """The kind of data that it asks for: `OnPolicy`, `Replay` or `Offline`."""

    @property
    def plan(self) -> Plan:
        """The data these settings ask for."""
        return self.plan_with()

    @property
    def idle(self) -> tuple[str, ...]:
        """Settings that do nothing beside the others."""
        return () if getattr(self, "prioritized", True) else ("priority_alpha", "priority_beta")

    def plan_with(self, **more: Any) -> Plan:
        """A plan of `plan_class` with the values of all settings that are called as its fields are.

        A switch `prioritized` stands for `Prioritized` with the settings `priority_alpha` and `priority_beta`. A plan
        counts sequences: settings that do call them `mini_batch_sequences`, and `mini_batch_size` is rows.

        Args:
            more: fields that no setting says, or that a setting of the same name says otherwise.
        """
        if self.plan_class is None:
            raise NotImplementedError(f"{type(self).__name__} states no plan; define `plan_class` or `plan`")
        settings: Any = self
        names = [field.name for field in dataclasses.fields(self.plan_class) if hasattr(self, field.name)]
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        if hasattr(self, "mini_batch_sequences"):
            values["mini_batch_size"] = settings.mini_batch_sequences
        if isinstance(values.get("prioritized"), bool):
            alpha, beta = settings.priority_alpha, settings.priority_beta
            values["prioritized"] = Prioritized(alpha=alpha, beta=beta) if settings.prioritized else None
        return self.plan_class(**{**values, **more})

    def __post_init__(self) -> None:
        require_ranges(self, "algorithm.")


@dataclass(frozen=True, kw_only=True)
class BonusConfig:
    """A reward that is learned beside the algorithm: for novelty, or for what looks demonstrated; none by default."""

    kind: Literal["rnd", "icm", "gail", "airl"] | str | type[Any] | None = None
    """For novelty, beside the environment's rewards: random network distillation, or the intrinsic curiosity module. To
    imitate offline.data, in their place: generative adversarial imitation, or adversarial inverse reinforcement
    learning. Or your own, as my_package:MyBonus."""
    weight: Positive[float] = 0.1
    """Reward for a novelty of one running standard deviation."""
    learning_rate: Positive[float] = 1e-3
    """Step size of Adam for what gives the reward."""
    hidden_sizes: tuple[int, ...] = (64,)
    """Units of each hidden layer of its networks."""
    feature_size: Positive[int] = 32
    """Features into which observations are encoded, for novelty."""
    gradient_penalty: NotNegative[float] = 1.0
    """Lambda of imitation: how much slopes of the discriminator other than 1 cost."""

    def __post_init__(self) -> None:
        own = isinstance(self.kind, type) or ":" in str(self.kind)
        wrong = f"bonus.kind is {self.kind!r}; it must be rnd, icm, gail or airl, or your own as my_package:MyBonus"
        require_ranges(self, "bonus.", [] if own or self.kind in (None, "rnd", "icm", "gail", "airl") else [wrong])


def resolved(
    kind: Any, config: ConfigT | None, seeds: RunSeeds | None, network: EncoderOption
) -> tuple[ConfigT, RunSeeds]:
    """What an algorithm is made with, of what it was given.

    Args:
        kind: the algorithm's configuration.

    Raises:
        ConfigError: settings of another algorithm, or something else than seeds.
    """
    found: Any = kind() if config is None else config
    seeds = RunSeeds(0) if seeds is None else seeds
    require_kind(found, kind, "an algorithm, as config,", f"a {kind.__name__}(...)")
    require_kind(seeds, RunSeeds, "an algorithm, as seeds,", "a RunSeeds(...)")
    if network is not None:
        encoded = dataclasses.replace(found.network, encoder=handed_over(network))
        found = dataclasses.replace(found, network=encoded)
    return found, seeds


def replay_plan(config: Any) -> Any:
    """The data that off-policy settings ask for: rows, or for a memory sequences of as many rows together.

    Args:
        config: with `network`, `mini_batch_size`, `mini_batch_length` and `burn_in`.
    """
    if config.network.recurrent is None:
        return config.plan_with(mini_batch_length=1, burn_in=0)
    size = max(1, config.mini_batch_size // config.mini_batch_length)
    return config.plan_with(mini_batch_size=size, mini_batch_length=max(2, config.mini_batch_length))


def planning_options(config: Any, *, state_size: int = 0, simulator: str = "") -> PlanningOptions:
    """The options of a search and of its networks.

    Args:
        config: with the fields that AlphaZero and MuZero have.
        state_size: see `PlanningOptions`.
        simulator: see `PlanningOptions`.
    """
    least_range = config.least_value_range * config.max_return
    search = (config.num_simulations, config.num_considered, config.value_scale, least_range)
    discount = -config.gamma if config.alternating else config.gamma
    return PlanningOptions(discount, config.max_return, config.num_atoms, search, state_size, simulator)
