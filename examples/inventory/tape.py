"""Everything that chance decides in an episode, drawn from its seed before the episode begins.

So two policies that are compared on a seed meet the same orders, delays and returns, whatever they do; and what would
have been possible with known demand can be computed (`planning.bound`).
"""

from dataclasses import dataclass

import numpy as np

from examples.inventory.topology import Topology


@dataclass(frozen=True)
class Tape:
    """The random part of one episode."""

    orders: np.ndarray
    """int64 [tick, trade]: containers ordered."""
    delays: np.ndarray
    """int64 [vessel, call]: ticks that the leg after that call takes longer than planned."""
    returns: np.ndarray
    """int64 [port, tick]: ticks after which what is unloaded there and then is back empty, at least 1."""

    @classmethod
    def draw(cls, topology: Topology, seed: int) -> "Tape":
        """Draws an episode.

        Args:
            topology: where.
            seed: of the episode, at least 0; equal seeds give equal episodes.
        """
        rng = np.random.default_rng(seed)
        num_ticks, trades = topology.num_ticks, topology.trades
        tick = np.arange(num_ticks)[:, None]
        rate, season, phase = np.array([(k.rate, k.season, k.phase) for k in trades]).T
        wave = 1 + season * np.sin(2 * np.pi * (tick / topology.season_ticks + phase))
        booms = np.stack([_booms(topology, rng) for _ in topology.ports], axis=1)  # [tick, port]
        booming = booms[:, [trade.origin for trade in trades]]
        factor = topology.calm_rate * np.where(booming, topology.boom_factor, 1.0)
        calls = num_ticks // min(min(vessel.leg_ticks) for vessel in topology.vessels) + 1
        return cls(
            orders=rng.poisson(rate * wave * factor),
            delays=rng.choice(np.array(topology.delays), (len(topology.vessels), calls)),
            returns=np.stack(
                [rng.integers(port.return_ticks[0], port.return_ticks[1] + 1, num_ticks) for port in topology.ports]
            ),
        )


def _booms(topology: Topology, rng: np.random.Generator) -> np.ndarray:
    """bool [tick]: whether a port is in a boom; calm and boom alternate, each with a geometric length."""
    means = np.array([topology.calm_ticks, topology.boom_ticks])
    begins_in_boom = rng.random() < means[1] / means.sum()
    pairs = topology.num_ticks // 2 + 1
    lengths = rng.geometric(1 / np.tile(np.roll(means, begins_in_boom), pairs))
    ends = np.cumsum(lengths)
    spell = np.searchsorted(ends, np.arange(topology.num_ticks), side="right")
    return (spell % 2 == 1) ^ begins_in_boom
