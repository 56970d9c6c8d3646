"""`AlgorithmConfig`: what every algorithm's hyperparameters have in common."""

from __future__ import annotations

from dataclasses import dataclass

from palaestra.core import ConfigError, schedule_range

__all__ = ["AlgorithmConfig"]

_FRACTIONS = ("gamma", "gae_lambda", "tau", "trace_decay", "target_entropy_share")
_OPEN_FRACTIONS = ("expectile",)
_POSITIVE = (
    *("unroll_length", "num_epochs", "gradient_steps", "mini_batch_size", "mini_batch_length", "capacity", "n_step"),
    *("target_period", "huber_delta", "max_grad_norm", "policy_period", "num_critics"),
    *("initial_temperature", "noise_std", "target_kl", "rho_clip", "trace_clip", "max_weight"),
    *("num_fractions", "num_target_fractions", "num_acting_fractions", "num_actions"),
    *("num_conjugate_steps", "num_line_steps", "num_policy_phases", "num_auxiliary_updates"),
)
_ANNEALED = ("clip",)
_NOT_NEGATIVE = ("exploration_std", "target_noise_std", "target_noise_clip")
_KNOWN = frozenset((*_FRACTIONS, *_OPEN_FRACTIONS, *_POSITIVE, *_ANNEALED, *_NOT_NEGATIVE))


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """Base of every algorithm's hyperparameters.

    Raises:
        ConfigError: numbers that mean the same everywhere are out of range; the message has all of them.
    """

    def __post_init__(self) -> None:
        problems = []
        for name, value in vars(self).items():
            if value is not None and name in _KNOWN and (needed := _needed(name, *schedule_range(value))):
                problems.append(f"algorithm.{name} is {value}; it must {needed}")
        if problems:
            raise ConfigError("\n".join(problems))


def _needed(name: str, least: float, most: float) -> str | None:
    """What the values of a setting must be, if they are not."""
    if name in _FRACTIONS:
        return None if 0 <= least <= most <= 1 else "lie in [0, 1]"
    if name in _OPEN_FRACTIONS:
        return None if 0 < least <= most < 1 else "lie between 0 and 1, both excluded"
    if name in _NOT_NEGATIVE:
        return None if least >= 0 else "not be negative"
    if name in _ANNEALED:
        return None if least >= 0 and most > 0 else "be greater than 0, where a schedule may end at 0"
    return None if least > 0 else "be greater than 0"
