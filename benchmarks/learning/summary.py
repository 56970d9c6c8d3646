"""What the seeds of one preset say together, and the table of all presets."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.learning.zoo import BAR_EPISODES, NAMES, ZOO
from benchmarks.numbers import Interval, mean_interval, spread
from benchmarks.record import origin, table

Seeds = Sequence[Mapping[str, Any]]
CARTPOLE_RETURN = 500.0
CARTPOLE_TRAIN_S = {"ppo": 30.0, "dqn": float("inf")}
CARTPOLE_SHARE = 4 / 5
NOTES = """\
Mean return over seeds with its 95% interval (Student's t); every seed's final evaluation is deterministic, over 100
episodes. *Last policy* is the one after the last update, *best policy* the one that had the best evaluation during
training; both are evaluated on episodes that are new to them. *Zoo* is one tuned run of RL Baselines3 Zoo: mean and
standard deviation over the episodes of 150,000 env steps (training steps). Training time is without evaluation."""


def summarize(algorithm: str, env: str, seeds: Seeds) -> dict[str, Any]:
    """Mean over seeds of the final evaluation, the Zoo's row, and the bars."""
    last, best = (mean_interval([seed["final"][which]["return_mean"] for seed in seeds]) for which in ("last", "best"))
    zoo = ZOO[algorithm, env]
    bars = [
        {
            "text": f"Zoo's mean minus two standard errors of {episodes} episodes: {zoo.bar(episodes):.2f}",
            "met": last.mean >= zoo.bar(episodes),
        }
        for episodes in ((BAR_EPISODES, zoo.episodes) if zoo.std else ())
    ]
    if env == "CartPole-v1":
        bars.append(cartpole_bar(seeds, zoo.env_steps, CARTPOLE_TRAIN_S[algorithm]))
    return {
        "last": last._asdict(),
        "best": best._asdict(),
        "train_s": spread([seed["train_s"] for seed in seeds])._asdict(),
        "zoo": {"mean": zoo.mean, "std": zoo.std, "env_steps": zoo.env_steps, "episodes": zoo.episodes},
        "bars": bars,
    }


def cartpole_bar(seeds: Seeds, env_steps: int, train_s: float) -> dict[str, Any]:
    """A seed counts if an evaluation within the budget gave 500, the run's last one still does, and time sufficed."""
    solved = [
        seed["return_mean"][-1] >= CARTPOLE_RETURN
        and first_at(seed, CARTPOLE_RETURN) <= env_steps
        and seed["train_s"] <= train_s
        for seed in seeds
    ]
    time = "" if train_s == float("inf") else f" and {train_s:.0f} s of training"
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


def markdown(records: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of all presets that have results, with where the numbers come from."""
    rows = []
    for name, record in records.items():
        algorithm, env = NAMES[name]
        summary = summarize(algorithm, env, record["seeds"])
        zoo = summary["zoo"]
        rows.append(
            [
                algorithm.upper(),
                env,
                f"{max(seed['env_steps'][-1] for seed in record['seeds']):,}",
                str(len(record["seeds"])),
                interval(summary["last"]),
                interval(summary["best"]),
                f"{summary['train_s']['median']:.0f} s",
                f"{zoo['mean']:g} ± {zoo['std']:g} ({zoo['env_steps']:,})",
                "; ".join(f"{bar['text']} **{'met' if bar['met'] else 'not met'}**" for bar in summary["bars"]),
            ]
        )
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
    origins = sorted({origin(record) for record in records.values()})
    return "\n\n".join([table(header, rows), NOTES, *origins])


def interval(value: Mapping[str, float | None]) -> str:
    return f"{value['mean']:.1f}" + ("" if value["half_width"] is None else f" ± {value['half_width']:.1f}")
