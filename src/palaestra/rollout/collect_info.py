"""What one collection did."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from palaestra.rollout.episodes import Episode

__all__ = ["CollectInfo"]


@dataclass(slots=True)
class CollectInfo:
    """What one collection did."""

    env_steps: int
    """Actions executed over all environments; resets are none."""
    rows: int = 0
    """Time steps collected from every environment, resets included."""
    rows_of: dict[str, int] = field(default_factory=dict)
    """Time steps collected for each policy, where there are several; one without any does not learn from them."""
    episodes: list[Episode] = field(default_factory=list)
    """Episodes that ended and had not been reported yet."""
    env_s: float = 0.0
    """Seconds spent in the environments."""
    inference_s: float = 0.0
    """Seconds spent choosing actions."""
    total_s: float = 0.0
    """Seconds of the whole collection."""

    @property
    def stats(self) -> dict[str, float]:
        """Episodes `n/ep`, env steps `n/st`, both per second `v/ep` and `v/st`, mean return `rew` and length `len`.

        Without an episode, `rew` and `len` are NaN.
        """
        episodes, seconds = self.episodes, max(self.total_s, 1e-9)
        return {
            "n/ep": len(episodes),
            "n/st": self.env_steps,
            "v/ep": len(episodes) / seconds,
            "v/st": self.env_steps / seconds,
            "rew": float(np.mean([e.episode_return for e in episodes])) if episodes else float("nan"),
            "len": float(np.mean([e.length for e in episodes])) if episodes else float("nan"),
        }
