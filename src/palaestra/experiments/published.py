"""Published rows of `benchmarks/learning`: trained as they were, and compared with what they say."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.config.presets import load_config
from palaestra.core import POLICY, ConfigError, did_you_mean, left_as_found
from palaestra.core.files import temporary_folder
from palaestra.core.reading import read_json
from palaestra.experiments.run import train
from palaestra.policies import Policy, save_policy
from palaestra.runs import FRESH_SEED, Learner, learner_of, read_evaluations
from palaestra.runs.computed import differences, machine_kind
from palaestra.training import StoppedError, named_policies

__all__ = ["PublishedRow", "Verification", "published_rows", "train_published", "verify"]

_RESULTS = Path("benchmarks/learning/results")
_FINAL_EPISODES = 100


@dataclass(frozen=True)
class PublishedRow:
    """One row, with its committed results."""

    name: str
    """For example `ppo_CartPole-v1`."""
    algorithm: str
    """Its name."""
    env: str
    """Environment."""
    settings: dict[str, Any]
    """Of `palaestra.train` besides the preset: the budget, whether updates are compiled, and what else the row has."""
    seeds: dict[int, dict[str, Any]]
    """What each seed reached: `final`, its evaluations before and after, and where known `weights_sha256` and
    `machine`."""
    return_mean: float
    """Mean over seeds of the last policy's mean return."""
    half_width: float | None
    """Half of its 95% interval (Student's t); `None` for one seed, 0 where all reached the same."""
    revision: str
    """Revision of the code that was measured."""

    @property
    def has_hashes(self) -> bool:
        """Whether every seed says which weights it ended with, and on which kind of machine."""
        return all("weights_sha256" in seed["final"]["last"] for seed in self.seeds.values())


@dataclass(frozen=True)
class Verification:
    """What training a published row again could say."""

    row: str
    """Its name."""
    verdict: str
    """`same bits`, `other bits` (though the machine is of the same kind), `within the interval`, `outside the
    interval`, or `nothing`, where no hash fits and there is no interval."""
    seeds: dict[int, dict[str, Any]]
    """By seed: `published` and `here` (mean returns of the last policy), and `bits`: same, other, or why unknown."""
    return_mean: float
    """Mean over the seeds trained here."""
    interval: tuple[float, float] | None
    """Where a mean over so many seeds lies in 95 of 100 cases, given those that were published; `None` where one was,
    or all reached one return that is not reached here: what never varied says nothing of how far it may."""

    @property
    def ok(self) -> bool:
        """Whether the row could be verified."""
        return self.verdict in ("same bits", "within the interval")

    @property
    def within(self) -> bool | None:
        """Whether the mean return lies in the interval; `None` without one."""
        return None if self.interval is None else self.interval[0] <= self.return_mean <= self.interval[1]

    def __str__(self) -> str:
        lines = [
            f"seed {number:<4} {seed['here']:.2f} here, {seed['published']:.2f} published; weights: {seed['bits']}"
            for number, seed in self.seeds.items()
        ]
        if self.interval is not None:
            low, high = self.interval
            place = "within" if self.within else "outside"
            lines.append(f"return      {self.return_mean:.2f}, {place} the published interval {low:.2f} to {high:.2f}")
        said = {
            "same bits": "verified: the weights are the published ones, bit for bit",
            "other bits": "not verified: the machine is of the published kind, and the weights are others; has the "
            "code changed since the published revision?",
            "within the interval": "verified by the return alone: it lies within the published interval",
            "outside the interval": "not verified: the return lies outside the published interval",
            "nothing": "nothing could be said: the published seeds, one or all of one return, have no interval, and no "
            "hash to compare",
        }
        return "\n".join([*lines, f"{self.row}  {said[self.verdict]}"])

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, and `ok`."""
        return {**vars(self), "ok": self.ok, "within": self.within}


def published_rows(results: str | Path | None = None) -> dict[str, PublishedRow]:
    """The rows that have results, by name; rows of other libraries are left out.

    Args:
        results: the folder of results; by default that of the checkout which this package is in, or of the working
            directory.

    Raises:
        ConfigError: there is no such folder. An installed package has none: a checkout is needed.
    """
    checkout = Path(__file__).resolve().parents[3] / _RESULTS
    folder = Path(results) if results is not None else checkout if checkout.is_dir() else _RESULTS
    if not folder.is_dir():
        raise ConfigError(
            f"there are no published results in {folder}: an installed package has none. Run this in a checkout of the "
            "repository, or name its folder benchmarks/learning/results as --results"
        )
    found = {}
    for file in sorted(folder.glob("*.json")):
        record = read_json(file)
        if "row" in record:
            found[file.stem] = _row(file.stem, record)
    return found


def _row(name: str, record: Mapping[str, Any]) -> PublishedRow:
    row, last = record["row"], record["summary"]["last"]
    asked = {"trainer__total_env_steps": row["env_steps"], "run__compile": row["compile"]}
    return PublishedRow(
        name=name,
        algorithm=row["algorithm"],
        env=row["env"],
        settings={**row.get("settings", {}), **asked},
        seeds={seed["seed"]: seed for seed in record["seeds"]},
        return_mean=last["mean"],
        half_width=last["half_width"],
        revision=str(record["revision"]),
    )


@left_as_found()
def train_published(algorithm: str, env: str, seed: int, directory: str | Path, /, **settings: Any) -> dict[str, Any]:
    """Trains one seed of a row as it is published, and evaluates the last and the best policy on new episodes.

    Args:
        algorithm: its name.
        env: environment.
        seed: of the run.
        directory: where the run directory is made.
        settings: of `train`, besides the preset.

    Returns:
        What a seed's entry in the row's results holds, as JSON values.

    Raises:
        StoppedError: a signal ended the training.
    """
    own = {"run__num_threads": 1, "run__tensorboard": False, **settings}
    done = train(algorithm, env, run__seed=seed, run__directory=str(directory), **own)
    if done.result.status == "interrupted":
        raise StoppedError("the run is not whole, so it says nothing", done.result.exit_code)
    evaluations = read_evaluations(done.directory)
    learner = learner_of(load_config(done.directory / "config.yaml"))
    policies = {"last": learner.policies | named_policies(done.policy), "best": learner.kept_policies(done.directory)}
    return {
        "seed": seed,
        "env_steps": [steps for steps, _ in evaluations],
        "return_mean": [evaluation["return_mean"] for _, evaluation in evaluations],
        "episodes": evaluations[-1][1]["episodes"],
        "final": {which: _final(learner, those, done.directory / which, seed) for which, those in policies.items()},
        "machine": machine_kind(),
        "train_s": done.result.train_s,
    }


def _final(learner: Learner, policies: Mapping[str, Policy], folder: Path, seed: int) -> dict[str, Any]:
    result = learner.evaluation()(policies, episodes=_FINAL_EPISODES, deterministic=True, seed=FRESH_SEED + seed)
    hashes = {name: _hash(policies[name], folder / name) for name in learner.algorithms}
    reached = {name: getattr(result, name) for name in ("return_mean", "return_std", "episodes")}
    return {**reached, "weights_sha256": hashes.get(POLICY, hashes)}


def _hash(policy: Policy, folder: Path) -> str:
    """Of its weights, as a saved policy has it."""
    save_policy(policy, folder)
    return str(read_json(folder / "policy.json")["weights_sha256"])


def verify(
    row: str,
    *,
    seeds: Sequence[int] = (),
    results: str | Path | None = None,
    on_seed: Callable[[int, dict[str, Any]], None] | None = None,
) -> Verification:
    """Trains a published row again, and compares it with its committed results.

    On a machine of the published kind the weights have to be the same, bit for bit. Elsewhere, and where no hash was
    published, the mean return of the last policies has to lie where the published seeds say: with their 95% interval
    m ± h over n seeds, that of k new ones is m ± h √(1 + n/k).

    Args:
        row: for example `ppo_CartPole-v1`.
        seeds: which of the published ones; by default all.
        results: see `published_rows`.
        on_seed: called with each seed and what came of it.

    Raises:
        ConfigError: there is no such row, or it has no such seed.
    """
    rows = published_rows(results)
    if row not in rows:
        raise ConfigError(f"there is no published row {row!r}{did_you_mean(row, rows)}. `--list` shows all")
    published = rows[row]
    chosen = list(seeds) or list(published.seeds)
    if unknown := [seed for seed in chosen if seed not in published.seeds]:
        known = ", ".join(map(str, published.seeds))
        raise ConfigError(f"{row} has no published seed {unknown[0]}; there are {known}")
    found: dict[int, dict[str, Any]] = {}
    for seed in chosen:
        with temporary_folder("published") as folder:
            here = train_published(published.algorithm, published.env, seed, folder, **published.settings)
        found[seed] = _compared(published.seeds[seed], here)
        if on_seed is not None:
            on_seed(seed, found[seed])
    mean = statistics.fmean(seed["here"] for seed in found.values())
    interval = _interval(published, len(found), mean)
    return Verification(row, _verdict(found, mean, interval), found, mean, interval)


def _compared(published: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
    then, now = published["final"]["last"], here["final"]["last"]
    if "weights_sha256" not in then:
        bits = "no hash was published"
    elif then["weights_sha256"] == now["weights_sha256"]:
        bits = "same"
    else:
        different = differences(published.get("machine", {}), here["machine"])
        told = ", ".join(f"{name}: {old} then, {new} here" for name, (old, new) in different.items())
        bits = f"another kind of machine ({told})" if different else "other"
    return {"published": then["return_mean"], "here": now["return_mean"], "bits": bits}


def _interval(published: PublishedRow, count: int, mean: float) -> tuple[float, float] | None:
    if published.half_width is None or (published.half_width == 0 and mean != published.return_mean):
        return None
    half = published.half_width * math.sqrt(1 + len(published.seeds) / count)
    return published.return_mean - half, published.return_mean + half


def _verdict(found: Mapping[int, Mapping[str, Any]], mean: float, interval: tuple[float, float] | None) -> str:
    bits = [seed["bits"] for seed in found.values()]
    if "other" in bits:
        return "other bits"
    if all(one == "same" for one in bits):
        return "same bits"
    if interval is None:
        return "nothing"
    return "within the interval" if interval[0] <= mean <= interval[1] else "outside the interval"
