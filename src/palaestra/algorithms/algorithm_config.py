"""`AlgorithmConfig`: what every algorithm's hyperparameters have in common."""

from __future__ import annotations

from dataclasses import dataclass

from palaestra.core import ConfigError, schedule_range

__all__ = ["AlgorithmConfig"]

_FRACTIONS = ("gamma", "gae_lambda", "tau")
_POSITIVE = (
    *("unroll_length", "num_updates", "mini_batch_size", "mini_batch_length", "capacity", "n_step"),
    *("target_period", "huber_delta", "max_grad_norm", "policy_period", "num_critics"),
    *("initial_temperature", "noise_std"),
)


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """Base of every algorithm's hyperparameters.

    Raises:
        ConfigError: numbers that mean the same everywhere are out of range; the message has all of them.
    """

    def __post_init__(self) -> None:
        problems = []
        for name, value in vars(self).items():
            if value is None or name not in (*_FRACTIONS, *_POSITIVE):
                continue
            least, most = schedule_range(value)
            if name in _FRACTIONS and not 0 <= least <= most <= 1:
                problems.append(f"algorithm.{name} is {value}; it must lie in [0, 1]")
            if name in _POSITIVE and not least > 0:
                problems.append(f"algorithm.{name} is {value}; it must be greater than 0")
        if problems:
            raise ConfigError("\n".join(problems))
