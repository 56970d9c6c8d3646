"""Elo ratings of players from the scores of their games, with intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from palaestra.core import ConfigError

__all__ = ["Interval", "elo_ratings"]

_ELO = 400 / math.log(10)  # points for odds of e
_NORMAL_975 = 1.959964


@dataclass(frozen=True)
class Interval:
    """A number with its 95% interval."""

    value: float
    """Of the runs at hand."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def elo_ratings(scores: np.ndarray, games: np.ndarray, *, zero: Sequence[int] | None = None) -> list[Interval]:
    """Elo ratings of players, the most probable ones of the Bradley-Terry model, with 95% intervals.

        P(i beats j) = 1 / (1 + 10^((Rⱼ − Rᵢ) / 400))

    Bradley and Terry 1952, https://doi.org/10.2307/2334029, with draws as half a win, and intervals by the Fisher
    information (Hunter 2004, https://doi.org/10.1214/aos/1079120141, for the model's likelihood).
    Departs from the sources: each player has drawn one game more, against a player of rating 0, so that whoever won
    or lost every game has a finite rating. Draws vary less than the model says, so with many of them intervals are
    too wide rather than too narrow.

    Args:
        scores: [K, K] games that row won against column; a draw is half a game.
        games: [K, K] games between them, symmetric.
        zero: players whose mean rating is 0; by default all.

    Returns:
        Of each player, relative to that mean.

    Raises:
        ConfigError: the arrays do not fit together, or there are fewer than two players.

    Examples:
        >>> first, second = elo_ratings(np.array([[0, 750], [250, 0]]), np.array([[0, 1000], [1000, 0]]))
        >>> round(first.value - second.value)
        191
    """
    scores, games = np.asarray(scores, float), np.asarray(games, float)
    count = len(games)
    if count < 2 or games.shape != (count, count) or scores.shape != games.shape:
        raise ConfigError(f"scores are {scores.shape} and games {games.shape}; give [K, K] of at least 2 players")
    if not np.allclose(scores + scores.T, games) or (scores < 0).any():
        raise ConfigError("the scores of two players against each other must add up to their games")
    strength = np.zeros(count)
    information = np.eye(count)
    for _ in range(100):
        chance = 1 / (1 + np.exp(strength[None] - strength[:, None]))
        drawn = 1 / (1 + np.exp(-strength))
        slope = (scores - games * chance).sum(1) + 0.5 - drawn
        weight = games * chance * (1 - chance)
        information = np.diag(weight.sum(1) + drawn * (1 - drawn)) - weight
        step = np.linalg.solve(information, slope)
        strength = strength + step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-10:
            break
    known = np.isin(np.arange(count), range(count) if zero is None else zero)
    if not known.any():
        raise ConfigError(f"zero is {zero}, which names none of the {count} players; give numbers of them")
    centre = np.eye(count) - known / known.sum()
    strength = centre @ strength
    spread = np.sqrt(np.diag(centre @ np.linalg.inv(information) @ centre.T)) * _NORMAL_975
    return [
        Interval(*(float(_ELO * number) for number in (value, value - half, value + half)))
        for value, half in zip(strength, spread, strict=True)
    ]
