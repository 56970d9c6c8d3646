"""What the seeds of one preset say together, and the table of all presets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.learning.chance import chance
from benchmarks.learning.rows import CAR_REPEAT, ROWS, Row, peer_of
from benchmarks.numbers import Interval, Sample, difference, mean_interval, sample, spread
from benchmarks.record import origin, table

Seeds = Sequence[Mapping[str, Any]]
CARTPOLE_RETURN = 500.0
CARTPOLE_TRAIN_S = {"ppo": 30.0}
CARTPOLE_SHARE = 4 / 5
MARGIN = 0.05
NOTES = f"""\
Mean return over seeds with its 95% interval (Student's t); every seed's final evaluation is deterministic, over 100
episodes. *Last policy* is the one after the last update, *best policy* the one that had the best evaluation during
training; both are evaluated on episodes that are new to them. *Zoo* is one tuned run of RL Baselines3 Zoo: mean and
standard deviation over the episodes of 150,000 env steps, with its environment where ours has another version. *Level*
is non-inferiority: the 95% interval (Welch's t) of our mean minus the other one lies above minus 5% of what the other
one is above random actions. It is *not met* where the interval lies below that, else *undecided*: the seeds are too few
to tell. The Zoo's one run stands for its algorithm: the spread over its seeds is not in the interval. Rows of
Stable-Baselines3 are trained by the same queue, with our hyperparameters. In MountainCarContinuous-v0 our presets
execute every action {CAR_REPEAT} times: so many frames are one env step, and the budget is the Zoo's in frames.
Rows from HalfCheetah-v5 on are trained with `--compile`. Training time is without evaluation, but with compilation."""


def summarize(row: Row, seeds: Seeds, peer: Seeds = ()) -> dict[str, Any]:
    """Mean over seeds of the final evaluation, the Zoo's row, and the bars; `peer` has the seeds of its `peer_of`."""
    last, best = (mean_interval(final(seeds, which)) for which in ("last", "best"))
    bars = []
    if row.zoo is not None:
        bars.append(level_bar(final(seeds), "the Zoo", row.zoo.sample, chance()[row.env]))
    if peer and row.rival is not None:
        bars.append(rival_bar(final(seeds), peer_title(row), sample(final(peer)), row.times))
    elif peer:
        bars.append(level_bar(final(seeds), peer_title(row), sample(final(peer)), chance()[row.env]))
    if row.solved is not None:
        bars.append(solved_bar(final(seeds), row.solved, row.seeds))
    if row.env == "CartPole-v1" and not row.variant:
        bars.append(cartpole_bar(seeds, row.env_steps, CARTPOLE_TRAIN_S.get(row.algorithm, math.inf)))
    return {
        "last": last._asdict(),
        "best": best._asdict(),
        "train_s": spread([seed["train_s"] for seed in seeds])._asdict(),
        "zoo": None if row.zoo is None else asdict(row.zoo),
        "bars": bars,
    }


def final(seeds: Seeds, which: str = "last") -> list[float]:
    """Every seed's mean return after training."""
    return [seed["final"][which]["return_mean"] for seed in seeds]


def level_bar(returns: Sequence[float], whom: str, theirs: Sample, random: float) -> dict[str, Any]:
    """Non-inferiority: whether the interval of our mean minus theirs lies above minus 5% of theirs minus chance.

    Args:
        returns: our seeds'.
        whom: theirs.
        theirs: their seeds, or the episodes of their only run.
        random: the mean return of random actions.
    """
    least = -MARGIN * (theirs.mean - random)
    mean, half_width = difference(sample(returns), theirs)
    text = f"level with {whom}: {mean:.4g}"
    if half_width is None:
        verdict = "undecided"
    else:
        text += f" ± {half_width:.3g}"
        verdict = "met" if mean - half_width > least else "not met" if mean + half_width < least else "undecided"
    return {"text": f"{text}, above {least:.3g}", "verdict": verdict}


def rival_bar(returns: Sequence[float], whom: str, theirs: Sample, times: float = 1.0) -> dict[str, Any]:
    """Superiority: whether the interval of our mean minus theirs, or several times theirs, lies above 0.

    Args:
        returns: our seeds'.
        whom: theirs.
        theirs: their seeds.
        times: what theirs are multiplied by.
    """
    mean, half_width = difference(sample(returns), Sample(times * theirs.mean, times * theirs.std, theirs.count))
    text = f"above {'' if times == 1 else f'{times:g} times '}{whom} at equal steps: {mean:.4g}"
    if half_width is None:
        return {"text": text, "verdict": "undecided"}
    verdict = "met" if mean > half_width else "not met" if mean < -half_width else "undecided"
    return {"text": f"{text} ± {half_width:.3g}", "verdict": verdict}


def peer_title(row: Row) -> str:
    """Of its `peer_of`: what differs, the library, the algorithm or the variant."""
    peer = ROWS[row.rival or row.level_with or f"sb3_{row.name}"]
    if peer.peer:
        return "Stable-Baselines3"
    return peer.title if peer.algorithm != row.algorithm else peer.variant or f"that without {row.variant}"


def solved_bar(returns: Sequence[float], least: float, wanted: int) -> dict[str, Any]:
    """Whether each seed's last policy reaches a return; undecided while seeds are missing and none has failed.

    Args:
        returns: our seeds'.
        least: the return.
        wanted: how many seeds the row has.
    """
    solved = sum(value >= least for value in returns)
    verdict = "not met" if solved < len(returns) else "met" if len(returns) >= wanted else "undecided"
    return {"text": f"{least:g} or more: {solved} of {len(returns)} seeds", "verdict": verdict}


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
    return {"text": text, "verdict": "met" if sum(solved) >= CARTPOLE_SHARE * len(seeds) else "not met"}


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
        line = [row.title, row.task, f"{row.env_steps:,}"]
        if record is None:
            lines.append([*line, f"not run (0 of {row.seeds})", "", "", "", zoo_text(row), ""])
            continue
        summary, done = summarize(row, record["seeds"], peer_seeds(row, records)), len(record["seeds"])
        state = f"done ({done})" if done >= row.seeds else f"partial ({done} of {row.seeds})"
        bars = "; ".join(f"{bar['text']} **{bar['verdict']}**" for bar in summary["bars"])
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


def peer_seeds(row: Row, records: Mapping[str, Mapping[str, Any] | None]) -> Seeds:
    """The seeds of the row that ours is compared with, as far as they are there."""
    peer = peer_of(row)
    record = None if peer is None else records.get(peer.name)
    return () if record is None else record["seeds"]


def zoo_text(row: Row) -> str:
    if row.zoo is None:
        return ""
    return f"{row.zoo.mean:g} ± {row.zoo.std:g}" + (f" ({row.zoo.env})" if row.zoo.env else "")


def interval(value: Mapping[str, float | None]) -> str:
    return f"{value['mean']:.1f}" + ("" if value["half_width"] is None else f" ± {value['half_width']:.1f}")
