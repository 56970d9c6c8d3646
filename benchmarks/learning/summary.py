"""What the seeds of one preset say together, and the table of all presets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.learning.chance import chance
from benchmarks.learning.rows import CAR_REPEAT, ROWS, Row, peer_of
from benchmarks.numbers import Interval, Sample, difference, mean_interval, sample, spread
from benchmarks.record import origin

Seeds = Sequence[Mapping[str, Any]]
CARTPOLE_RETURN = 500.0
CARTPOLE_TRAIN_S = {"ppo": 30.0}
CARTPOLE_SHARE = 4 / 5
MARGIN = 0.05
NOTES = f"""\
The bar is the interval of the last policy, on an axis whose ends stand above it; the red mark is the Zoo's mean.
Returns are means over seeds with their 95% interval (Student's t); every seed's final evaluation is deterministic,
over 100 episodes. *Last policy* is the one after the last update, *best policy* the one that had the best evaluation
during training; both are evaluated on episodes that are new to them. *Zoo* is one tuned run of RL Baselines3 Zoo:
mean and standard deviation over the episodes of 150,000 env steps, with its environment where ours has another
version. *Level* is non-inferiority: the 95% interval (Welch's t) of our mean minus the other one lies above minus 5%
of what the other one is above random actions. It is *not met* where the interval lies below that, else *undecided*:
the seeds are too few to tell. The Zoo's one run stands for its algorithm: the spread over its seeds is not in the
interval. Some rows got further seeds after a look at the planned ones: their verdict is of all seeds, and behind it
stands that of the planned seeds alone, on which no such choice has worked; a star says that it is another. Rows of
Stable-Baselines3 are trained by the same queue, with our hyperparameters. In MountainCarContinuous-v0 our presets
execute every action {CAR_REPEAT} times: so many frames are one env step, and the budget is the Zoo's in frames.
Training time is without evaluation, but with compilation; behind it stands *compiled* where a row is trained with
`--compile`, and *bf16* where its products are in
bfloat16 (`--run.precision bf16`)."""


def summarize(row: Row, seeds: Seeds, peer: Seeds = ()) -> dict[str, Any]:
    """Mean over seeds of the final evaluation, the Zoo's row, and the bars; `peer` has the seeds of its `peer_of`.

    Where either side has more seeds than were planned, a bar has the verdict of the planned ones, too.
    """
    last, best = (mean_interval(final(seeds, which)) for which in ("last", "best"))
    other, bars = peer_of(row), judged(row, seeds, peer)
    planned = seeds[: row.seeds], peer if other is None else peer[: other.seeds]
    if (seeds, peer) != planned:
        counts = " and ".join(str(len(side)) for side in (planned if planned[1] != peer else planned[:1]))
        first = judged(row, *planned)
        for bar, one in zip(bars, first, strict=True):
            bar["planned"] = {"seeds": counts, "verdict": one["verdict"]}
    return {
        "last": last._asdict(),
        "best": best._asdict(),
        "train_s": spread([seed["train_s"] for seed in seeds])._asdict(),
        "zoo": None if row.zoo is None else asdict(row.zoo),
        "bars": bars,
    }


def judged(row: Row, seeds: Seeds, peer: Seeds) -> list[dict[str, Any]]:
    """The bars of a row, by these seeds and those of its `peer_of`."""
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
    return bars


def verdict(bar: Mapping[str, Any], *, bold: bool = False) -> str:
    """The verdict of all seeds, and that of the planned ones where there are more; bold unless met, if asked for."""
    said = f"**{bar['verdict']}**" if bold and bar["verdict"] != "met" else bar["verdict"]
    first = bar.get("planned")
    return said + (f" (the {first['seeds']} planned seeds: {first['verdict']})" if first else "")


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
    """Of its `peer_of`: what differs, the library, the algorithm with its variant, or the variant alone."""
    peer = ROWS[row.rival or row.level_with or f"sb3_{row.name}"]
    if peer.peer:
        return "Stable-Baselines3"
    if peer.algorithm == row.algorithm:
        return peer.variant or f"that without {row.variant}"
    return f"{peer.title} ({peer.variant})" if peer.variant else peer.title


def marks(row: Row) -> list[str]:
    """How it is trained, other than in float32 and step by step."""
    return ["compiled"] * row.compile + ["bf16"] * (row.settings.get("run__precision") == "bf16")


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
    """A table for each environment, with how much of each row is done and where the numbers come from."""
    by_env: dict[str, list[str]] = {}
    for name in records:
        by_env.setdefault(ROWS[name].env, []).append(name)
    parts = []
    for env, names in by_env.items():
        summaries = {name: _summary(name, records) for name in names}
        means = [_ends(one["last"]) for one in summaries.values() if one]
        means += [(row.zoo.mean,) * 2 for name in names if (row := ROWS[name]).zoo]
        bounds = min((low for low, _ in means), default=0.0), max((high for _, high in means), default=0.0)
        rows = "\n".join(_line(name, records, summaries[name], bounds) for name in names)
        digits = 0 if bounds[1] - bounds[0] > 20 else 1
        ends = f"{bounds[0]:,.{digits}f} to {bounds[1]:,.{digits}f}"
        head = "".join(
            f"<th>{title}{f'<br>{ends}' if title == AXIS and bounds[0] < bounds[1] else ''}</th>" for title in HEAD
        )
        parts.append(
            f'## {env}\n\n<table class="results">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>'
        )
    origins = sorted({origin(record) for record in records.values() if record is not None})
    commands = "\n".join(f"- {one}" for one in origins)
    reading = f'??? note "How to read this"\n\n{_indented(NOTES)}'
    return "\n\n".join([reading, *parts, f'??? note "Commands, machines and revisions"\n\n{_indented(commands)}'])


AXIS = "last policy"
HEAD = ("", "env steps", "seeds", AXIS, "best policy", "training", "Zoo", "bars")


def _summary(name: str, records: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any] | None:
    record = records[name]
    return None if record is None else summarize(ROWS[name], record["seeds"], peer_seeds(ROWS[name], records))


def _ends(value: Mapping[str, float | None]) -> tuple[float, float]:
    mean, half = value["mean"] or 0.0, value["half_width"] or 0.0
    return mean - half, mean + half


def _line(
    name: str,
    records: Mapping[str, Mapping[str, Any] | None],
    summary: Mapping[str, Any] | None,
    bounds: tuple[float, float],
) -> str:
    """A row of the table of its environment.

    Args:
        name: of the row.
        records: of all rows.
        summary: of the row, where it has been run.
        bounds: ends of the drawn axis, for all rows of the environment.
    """
    row, record = ROWS[name], records[name]
    title = f"{row.title}, {row.variant}" if row.variant else row.title
    if record is None or summary is None:
        cells = [title, f"{row.env_steps:,}", f"0 of {row.seeds}", "not run", "", ", ".join(marks(row)), _zoo(row), ""]
    else:
        done, seconds = len(record["seeds"]), summary["train_s"]["median"]
        cells = [
            title,
            f"{row.env_steps:,}",
            f"{done}" if done >= row.seeds else f"{done} of {row.seeds}",
            interval(summary["last"])
            + drawn(_ends(summary["last"]), bounds, None if row.zoo is None else row.zoo.mean),
            interval(summary["best"]),
            ", ".join([f"{seconds:.0f} s", *marks(row)]),
            _zoo(row),
            _bars(row, summary["bars"]),
        ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def drawn(ends: tuple[float, float], bounds: tuple[float, float], mark: float | None) -> str:
    """An interval as a bar on an axis, and a mark on it.

    Args:
        ends: of the interval.
        bounds: of the axis.
        mark: where; the Zoo's mean.
    """
    low, high = bounds
    width = (high - low) or 1.0

    def share(value: float) -> float:
        return round(100 * (value - low) / width, 1)

    start, end = share(ends[0]), share(ends[1])
    line = "" if mark is None else f'<b style="left:{share(mark)}%"></b>'
    return f'<span class="axis"><i style="left:{start}%;width:{round(end - start, 1)}%"></i>{line}</span>'


def _zoo(row: Row) -> str:
    return "" if row.zoo is None else f"{row.zoo.mean:.1f} ± {row.zoo.std:.1f}"


def _bars(row: Row, bars: Sequence[Mapping[str, Any]]) -> str:
    """Verdicts, and behind a click what they mean."""
    if not bars:
        return ""
    firsts = [bar.get("planned", bar)["verdict"] for bar in bars]
    short = ", ".join(bar["verdict"] + "*" * (bar["verdict"] != first) for bar, first in zip(bars, firsts, strict=True))
    texts = [f"{bar['text']}: {verdict(bar)}" for bar in bars]
    if row.zoo is not None and row.zoo.env is not None:
        texts.append(f"the Zoo's environment is {row.zoo.env}")
    return f"<details><summary>{short}</summary>{'; '.join(texts)}</details>"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


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
