"""One run seed, and a named, independent generator for everything that draws.

Nothing in the library draws from a global generator. `RunSeeds` derives children of one `numpy.random.SeedSequence` by
name, so adding a consumer never shifts the numbers that another one sees.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
import torch

from palaestra.core.errors import ConfigError, did_you_mean

__all__ = ["RunSeeds", "SeedName", "episode_seed", "seeded_initialisation"]

SeedName = Literal["initialisation", "acting", "minibatches", "noise", "evaluation", "environments"]
"""Who draws: parameter initialisation, acting policies, minibatch order, loss noise, evaluation, environments."""

_NAMES = get_args(SeedName)
_MASK = (1 << 64) - 1
_GLOBAL = threading.RLock()  # torch's global generator, which threads share


class RunSeeds:
    """The seeds of one run.

    Args:
        seed: the run seed, a non-negative integer.

    Raises:
        ConfigError: it is negative, or no integer.

    Examples:
        >>> seeds = RunSeeds(0)
        >>> seeds.integer("environments", 0) != seeds.integer("environments", 1)
        True
        >>> seeds.integer("environments", 0) == RunSeeds(0).integer("environments", 0)
        True
    """

    def __init__(self, seed: int) -> None:
        if not isinstance(seed, int | np.integer) or seed < 0:
            raise ConfigError(f"the run seed is {seed!r}; it must be an integer of at least 0")
        self.seed = int(seed)

    def integer(self, name: SeedName, index: int = 0) -> int:
        """A 63-bit seed for one consumer.

        Args:
            index: which of several (an environment's lane, an acting policy).

        Raises:
            ValueError: nothing of that name draws.
        """
        if name not in _NAMES:
            raise ValueError(f"nothing named {name!r} draws random numbers{did_you_mean(name, _NAMES)}")
        child = np.random.SeedSequence(self.seed, spawn_key=(_NAMES.index(name), index))
        return int(child.generate_state(1, np.uint64)[0]) >> 1

    def generator(self, name: SeedName, index: int = 0, *, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh torch generator for one consumer.

        Args:
            index: which of several.
            device: where the generator lives.
        """
        return torch.Generator(device=device).manual_seed(self.integer(name, index))


def episode_seed(lane_seed: int, episode: int) -> int:
    """The seed of one reset: a function of the lane and the episode's number alone.

    So a restarted worker or a resumed run continues the same stream. One round of SplitMix64 (Steele et al. 2014,
    https://doi.org/10.1145/2714064.2660195), cut to 31 bits, which every simulator accepts.

    Args:
        lane_seed: 63-bit seed of the environment's lane.
        episode: number of the episode in that lane, from 0.

    Returns:
        An integer in [0, 2^31).

    Examples:
        >>> episode_seed(7, 0) == episode_seed(7, 0), episode_seed(7, 0) == episode_seed(7, 1)
        (True, False)
    """
    z = (lane_seed + (episode + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) >> 33


@contextlib.contextmanager
def seeded_initialisation(seed: int, *, gpus: bool = True) -> Iterator[None]:
    """Makes modules built inside draw from `seed`, and leaves torch's global generator as it was.

    Other threads that come here wait, so that runs side by side build what they would have built alone.

    Args:
        seed: from `RunSeeds.integer("initialisation")`.
        gpus: whether their generators draw from it, too.
    """
    devices = range(torch.cuda.device_count() if gpus else 0)
    with _GLOBAL, torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` formats a stack for every absent kind of device
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield
