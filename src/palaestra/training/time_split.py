"""Where the time of a run goes."""

from __future__ import annotations

import time
from collections.abc import Mapping

from palaestra.rollout import CollectInfo

__all__ = ["TimeSplit", "advice"]

_PARTS = ("environment", "inference", "storing", "learning", "waiting")


class TimeSplit:
    """Seconds of a run by what was done in them; the parts add up to all of them.

    | part | is |
    |---|---|
    | environment | in the environments, or waiting for their processes |
    | inference | choosing actions |
    | storing | the rest of collecting: writing rows, counting episodes |
    | learning | updates |
    | waiting | evaluation, checkpoints, loggers and callbacks: neither collecting nor learning |
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(_PARTS, 0.0)
        """By part."""
        self._since = time.perf_counter()

    def start(self) -> None:
        """The run begins or goes on; what lies before is nobody's."""
        self._since = time.perf_counter()

    def spent(self, part: str) -> None:
        """Everything since the last call was this.

        Args:
            part: one of the table's.
        """
        now = time.perf_counter()
        self.seconds[part] += now - self._since
        self._since = now

    def collected(self, info: CollectInfo) -> None:
        """Everything since the last call was this collection.

        Args:
            info: with the seconds of its parts.
        """
        self.spent("storing")
        self.seconds["storing"] -= info.env_s + info.inference_s
        self.seconds["environment"] += info.env_s
        self.seconds["inference"] += info.inference_s

    @property
    def train_s(self) -> float:
        """Seconds of collecting and learning."""
        return sum(self.seconds.values()) - self.seconds["waiting"]

    def metrics(self, env_steps: int) -> dict[str, float]:
        """For a row of metrics: fractions that add up to 1, training seconds, env steps per second of them.

        Args:
            env_steps: of the run so far.
        """
        whole = max(sum(self.seconds.values()), 1e-9)
        return {
            "time/train_s": self.train_s,
            "time/env_steps_per_s": env_steps / max(self.train_s, 1e-9),
            **{f"time/{part}": seconds / whole for part, seconds in self.seconds.items()},
        }


def advice(row: Mapping[str, float]) -> str:
    """One line about what would make a run faster.

    Args:
        row: of metrics.

    Examples:
        >>> parts = dict.fromkeys(("inference", "storing", "waiting"), 0.02)
        >>> advice({f"time/{part}": x for part, x in parts.items()} | {"time/environment": 0.9, "time/learning": 0.04})
        'the environments take 90%: step them in processes (env.vectorization) or use more of them'
    """
    share = {part: row.get(f"time/{part}", 0.0) for part in _PARTS}
    most = max(share, key=lambda part: share[part])
    percent = f"{share[most]:.0%}"
    if share["waiting"] > 0.25:
        return f"evaluation and saving take {share['waiting']:.0%}: do so less often, or use trainer.eval_async"
    if share[most] < 0.5:
        return "time is spread evenly: nothing stands out"
    return {
        "environment": f"the environments take {percent}: step them in processes (env.vectorization) or use more of "
        "them",
        "inference": f"choosing actions takes {percent}: step more environments at once (env.num_envs)",
        "storing": f"storing takes {percent}: step more environments at once (env.num_envs), or store smaller rows",
        "learning": f"learning takes {percent}: compile it (--compile), use larger minibatches or fewer updates",
        "waiting": f"evaluation and saving take {percent}: do so less often",
    }[most]
