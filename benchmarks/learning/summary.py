"""What the seeds of one preset say together, and the table of all presets."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.learning.rows import ROWS, Row, ZooRow
from benchmarks.numbers import Interval, mean_interval, spread
from benchmarks.record import origin, table

Seeds = Sequence[Mapping[str, Any]]
CARTPOLE_RETURN = 500.0
CARTPOLE_TRAIN_S = {"ppo": 30.0}
CARTPOLE_SHARE = 4 / 5
NOTES = """\
Mean return over seeds with its 95% interval (Student's t); every seed's final evaluation is deterministic, over 100
episodes. *Last policy* is the one after the last update, *best policy* the one that had the best evaluation during
training; both are evaluated on episodes that are new to them. *Zoo* is one tuned run of RL Baselines3 Zoo: mean and
standard deviation over the episodes of 150,000 env steps, with its environment where ours has another version. *Level*
means that our mean is at least the Zoo's minus two standard errors, of ours and the Zoo's together. Training time is
without evaluation."""


def summarize(row: Row, seeds: Seeds) -> dict[str, Any]:
    """Mean over seeds of the final evaluation, the Zoo's row, and the bars."""
    last, best = (mean_interval([seed["final"][which]["return_mean"] for seed in seeds]) for which in ("last", "best"))
    bars = []
    if row.zoo is not None:
        bars.append(level_bar([seed["final"]["last"]["return_mean"] for seed in seeds], row.zoo))
    if row.env == "CartPole-v1":
        bars.append(cartpole_bar(seeds, row.env_steps, CARTPOLE_TRAIN_S.get(row.algorithm, math.inf)))
    return {
        "last": last._asdict(),
        "best": best._asdict(),
        "train_s": spread([seed["train_s"] for seed in seeds])._asdict(),
        "zoo": None if row.zoo is None else asdict(row.zoo),
        "bars": bars,
    }


def level_bar(returns: Sequence[float], zoo: ZooRow) -> dict[str, Any]:
    """Whether a mean over seeds is level with the Zoo's."""
    ours = statistics.stdev(returns) / math.sqrt(len(returns)) if len(returns) > 1 else 0.0
    least = zoo.mean - 2 * math.hypot(ours, zoo.standard_error)
    return {"text": f"level with the Zoo: at least {least:.2f}", "met": statistics.fmean(returns) >= least}


def cartpole_bar(seeds: Seeds, env_steps: int, train_s: float) -> dict[str, Any]:
    """A seed counts if an evaluation within the budget gave 500, the run's last one still does, and time sufficed."""
    solved = [
        seed["return_mean"][-1] >= CARTPOLE_RETURN
        and first_at(seed, CARTPOLE_RETURN) <= env_steps
        and seed["train_s"] <= train_s
        for seed in seeds
    ]
    time = "" if train_s == math.inf else f" and {train_s:.0f} s of training"
    what = f"500 over {seeds[0]['episodes']} episodes within {env_steps // 1000}k env steps{time}"
    text = f"{what}: {sum(solved)} of {len(seeds)} seeds"
    return {"text": text, "met": sum(solved) >= CARTPOLE_SHARE * len(seeds)}


def first_at(seed: Mapping[str, Any], least: float) -> float:
    """Env steps at the first evaluation that reached a return."""
    pairs = zip(seed["env_steps"], seed["return_mean"], strict=True)
    return min((steps for steps, value in pairs if value >= least), default=float("inf"))


def curve(seeds: Seeds) -> list[tuple[float, Interval]]:
    """(env steps, mean over seeds) at each evaluation that all seeds have."""
    count = min(len(seed["env_steps"]) for seed in seeds)
    return [
        (
            sum(seed["env_steps"][i] for seed in seeds) / len(seeds),
            mean_interval([seed["return_mean"][i] for seed in seeds]),
        )
        for i in range(count)
    ]


def markdown(records: Mapping[str, Mapping[str, Any] | None]) -> str:
    """The table of all rows, with how much of each is done and where the numbers come from."""
    lines = []
    for name, record in records.items():
        row = ROWS[name]
        line = [row.algorithm, row.env, f"{row.env_steps:,}"]
        if record is None:
            lines.append([*line, f"not run (0 of {row.seeds})", "", "", "", zoo_text(row), ""])
            continue
        summary, done = summarize(row, record["seeds"]), len(record["seeds"])
        state = f"done ({done})" if done >= row.seeds else f"partial ({done} of {row.seeds})"
        bars = "; ".join(f"{bar['text']} **{'met' if bar['met'] else 'not met'}**" for bar in summary["bars"])
        means = [interval(summary["last"]), interval(summary["best"]), f"{summary['train_s']['median']:.0f} s"]
        lines.append([*line, state, *means, zoo_text(row), bars])
    header = [
        "",
        "environment",
        "env steps",
        "seeds",
        "last policy",
        "best policy",
        "training",
        "Zoo",
        "bars, last policy",
    ]
    origins = sorted({origin(record) for record in records.values() if record is not None})
    return "\n\n".join([table(header, lines), NOTES, *origins])


def zoo_text(row: Row) -> str:
    if row.zoo is None:
        return ""
    return f"{row.zoo.mean:g} ± {row.zoo.std:g}" + (f" ({row.zoo.env})" if row.zoo.env else "")


def interval(value: Mapping[str, float | None]) -> str:
    return f"{value['mean']:.1f}" + ("" if value["half_width"] is None else f" ± {value['half_width']:.1f}")
