"""`Health`: warns when learning goes wrong."""

from __future__ import annotations

import logging
import math
import re
import statistics
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, final

from palaestra.core import POLICY
from palaestra.training.callbacks import Callback
from palaestra.training.parts import TrainingRun

__all__ = ["Health", "NoteOpposed", "opposed"]

_log = logging.getLogger(__name__)
_PERSISTENT = 3  # rows in a row; one bad row is noise
_FEW_EPISODES = 10  # are enough to see that a sum is 0
_MANY_STEPS, _LONG_EPISODE = 100_000, 10_000  # env steps of all environments, and of each
_NORMS = 100  # of which the median is what is usual

_CAUSES = {
    "kl": "each update moves the policy too far",
    "entropy": "the policy stopped exploring while returns do not rise",
    "explained_variance": "values explain returns worse than a constant would",
    "gradient_norm": "the loss explodes",
    "q_mean": "action values diverge",
    "range": "values end where their range does, so actions beyond it look alike",
    "scaled_range": "values end where their range does, so actions beyond it look alike",
    "episodes": "episodes never end, so no return is known",
}
_LOWER_RATE = "lower algorithm.learning_rate"
_ADVICE = {  # of which a run is told what its algorithm has
    "kl": (_LOWER_RATE, "lower algorithm.num_epochs", "set algorithm.target_kl"),
    "entropy": ("raise algorithm.entropy_cost", _LOWER_RATE, "look at the scale of rewards"),
    "explained_variance": ("look at the scale of rewards", "raise algorithm.value_cost", "lower algorithm.gamma"),
    "gradient_norm": (_LOWER_RATE, "lower algorithm.max_grad_norm", "normalise observations", "scale rewards down"),
    "q_mean": (
        _LOWER_RATE,
        "copy the target network less often (algorithm.target_period)",
        "lower algorithm.tau",
        "lower algorithm.n_step",
        "scale rewards down",
    ),
    "range": ("raise algorithm.max_return", "lower algorithm.min_return", "scale rewards down"),
    "scaled_range": ("give algorithm.min_return and algorithm.max_return one size", "lower algorithm.gamma"),
    "episodes": ("set env.max_episode_steps",),
}


_LEARNED = re.compile(r"learning/(?:(?P<policy>.+)/)?(?P<metric>kl|entropy|explained_variance|q_mean|gradient_norm/.+)")


@final
class Health(Callback):
    """Looks at every row of metrics and warns, once for each symptom and policy, when it persists.

    | symptom | warned of when |
    |---|---|
    | KL | the mean KL of an update's policies exceeds 0.2 |
    | entropy | within 2% of 0, measured by what it was at first, unless learning works |
    | explained variance | below -0.5, unless learning works or returns are 0: equal ones have no variance to explain |
    | gradient norm | above 100 times its median of the last 100 rows, unless learning works |
    | action values | beyond 20 times the largest discounted return so far, and 100; not of other rewards |
    | range of values | discounted returns, scaled as values are, lie outside `min_return` to `max_return` |
    | episodes | none has ended in 100,000 env steps, and 10,000 of each environment |

    Learning works where returns are at their best so far, and better than at first. Densities over continuous actions
    may have entropies below 0, and those say nothing. With many agents, discounted returns are the mean of an agent of
    the policy; where one agent wins what others lose, they say nothing of the size of action values.

    Args:
        stop: whether a symptom ends the run, and again after it was resumed, where it persists from there on.
        unit: what the run counts: `env steps`, or `updates` where it learns from data alone, which has no episodes.
    """

    def __init__(self, *, stop: bool = False, unit: str = "env steps") -> None:
        self._stop, self._unit = stop, unit
        self.warnings: list[str] = []
        """Given so far."""
        self._rows: Counter[str] = Counter()
        self._known: set[str] = set()  # symptoms that were warned of
        self._first_entropies: dict[str, float] = {}
        self._first_return = math.nan
        self._best_return = -math.inf
        self._largest_returns: dict[str, float] = {}  # discounted, by policy; "" is the only one
        self._norms: dict[str, deque[float]] = {}

    def logged(self, trainer: TrainingRun, row: dict[str, float]) -> None:
        """See `Callback.logged`; adds `health/warnings`, how many symptoms were warned of."""
        found = self._symptoms(row, trainer)
        for name in list(self._rows):
            if name not in found and self._rows[name] < _PERSISTENT:
                del self._rows[name]
        for name, what in found.items():
            self._rows[name] += 1
            if self._rows[name] == _needed(name):
                cause, _, policy = name.partition("/")
                advice = "; ".join(_advice(cause, _algorithm(trainer, policy).config))
                text = f"after {int(row['env_steps']):,} {self._unit} {what}. Likely: {_CAUSES[cause]}. Try: {advice}"
                if name not in self._known:
                    self._known.add(name)
                    self.warnings.append(text)
                    _log.warning("%s", text)
                if self._stop:
                    trainer.stop(text)
        row["health/warnings"] = len(self.warnings)

    def state(self) -> dict[str, Any]:
        return {
            "warnings": list(self.warnings),
            "rows": {**self._rows, **{name: max(_needed(name), self._rows[name]) for name in self._known}},
            "first": [dict(self._first_entropies), self._first_return],
            "largest": [self._best_return, self._largest_returns.get("", 0.0)],
            "largest_of": {policy: largest for policy, largest in self._largest_returns.items() if policy},
            "norms": {name: list(norms) for name, norms in self._norms.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.warnings, self._rows = list(state["warnings"]), Counter(state["rows"])
        self._known = {name for name, rows in self._rows.items() if rows >= _needed(name)}
        if self._stop:  # what ended the run before ends it again only if it persists
            self._rows = Counter({name: rows for name, rows in self._rows.items() if name not in self._known})
        first, self._first_return = state["first"]
        self._first_entropies = dict(first)
        self._best_return, largest = state["largest"]
        self._largest_returns = {"": largest} | dict(state.get("largest_of", {}))
        self._norms = {name: deque(norms, maxlen=_NORMS) for name, norms in state["norms"].items()}

    def _symptoms(self, row: Mapping[str, float], trainer: TrainingRun) -> dict[str, str]:
        """What looks wrong in a row, by cause and policy; metrics that it lacks are NaN, which compares as false."""
        found: dict[str, str] = {}
        mean = row.get("return_mean", math.nan)
        self._first_return = mean if math.isnan(self._first_return) else self._first_return
        self._best_return = max(self._best_return, mean)
        works = mean == self._best_return > self._first_return
        flat = mean == self._best_return == self._first_return == 0  # no reward so far, or a game whose sum is 0
        steps = row["env_steps"] - getattr(trainer.collector, "updates_made", 0)  # on data, which ends nothing
        many = max(_MANY_STEPS, _LONG_EPISODE * trainer.collector.num_lanes)
        if self._unit == "env steps" and steps >= many and not row.get("episodes"):
            found["episodes"] = "no episode has ended"
        for policy, discounted in _discounted_returns(row, trainer).items():
            self._largest_returns[policy] = max(self._largest_returns.get(policy, 0.0), abs(discounted))
            learner = _algorithm(trainer, policy)
            if beyond := _beyond(discounted, learner):
                found |= _of_policy("scaled_range" if hasattr(learner, "reward_scale") else "range", beyond, policy)
        opponents = opposed(row) > 0
        for name, value in row.items():
            if not (match := _LEARNED.fullmatch(name)) or (flat and match["metric"] == "explained_variance"):
                continue
            learner = _algorithm(trainer, match["policy"])
            if match["metric"] == "q_mean" and (opponents or _has_other_rewards(learner)):
                continue
            if wrong := self._wrong(match, value, works):
                found |= _of_policy(match["metric"].partition("/")[0], wrong, match["policy"])
        return found

    def _wrong(self, match: re.Match[str], value: float, works: bool) -> str | None:
        """What looks wrong in one number of a policy's learning."""
        name, metric = match[0], match["metric"]
        if metric == "kl" and value > 0.2:
            return f"the mean KL of an update is {value:.2g}"
        if metric == "explained_variance" and value < -0.5 and not works:
            return f"the explained variance is {value:.2g}"
        if metric == "entropy" and not math.isnan(value):
            first = self._first_entropies.setdefault(name, value)
            if 0 <= value < 0.02 * first and not works and math.isfinite(self._first_return):
                return f"the entropy fell from {first:.2g} to {value:.2g}"
        largest = self._largest_returns.get(match["policy"] or "")
        if metric == "q_mean" and largest and abs(value) > max(100.0, 20 * largest):
            return f"the mean action value is {value:.2g}, discounted returns are {largest:.2g}"
        if metric.startswith("gradient_norm/"):
            before, part = self._norms.setdefault(name, deque(maxlen=_NORMS)), metric.partition("/")[2]
            usual = statistics.median(before or [value])
            before.append(value)
            if len(before) > 5 and value > 100 * max(usual, 1e-6) and not works:
                return f"the gradient of {part!r} is {value:.2g} long, usually {usual:.2g}"
        return None


def _needed(symptom: str) -> int:
    """Rows in a row until a symptom is warned of."""
    return 1 if symptom == "episodes" else _PERSISTENT


def _algorithm(trainer: TrainingRun, policy: str | None) -> Any:
    """That of a policy, or the only one."""
    return trainer.algorithms.get(policy or "", next(iter(trainer.algorithms.values())))


def _discounted_returns(row: Mapping[str, float], trainer: TrainingRun) -> dict[str, float]:
    """That of the only policy, which is called "", or that of an agent of each of several, where it is known."""
    if "discounted_return_mean" in row:
        return {"": row["discounted_return_mean"]}
    means = {policy: f"info/{policy}/discounted_return" for policy in trainer.algorithms}
    return {"" if policy == POLICY else policy: row[mean] for policy, mean in means.items() if mean in row}


def _of_policy(cause: str, wrong: str, policy: str | None) -> dict[str, str]:
    """A symptom by its cause, and by its policy, where there are several."""
    return {f"{cause}/{policy}": f"{wrong} (policy {policy!r})"} if policy else {cause: wrong}


def _has_other_rewards(learner: Any) -> bool:
    """Whether it learns from other rewards than those that returns are sums of."""
    return bool(learner.rewards or getattr(learner, "bonus", None))


def _beyond(discounted_return: float, learner: Any) -> str | None:
    """What is wrong with a return outside the range of an algorithm's values."""
    most = getattr(learner.config, "max_return", math.inf)
    least = getattr(learner.config, "min_return", -most)
    if (scale := getattr(learner, "reward_scale", None)) is not None:  # the range is that of scaled returns
        unit = float(scale()) if scale.mean_square > 0 else math.inf  # no rewards, no scale yet
        least, most = least * unit, most * unit
    if _has_other_rewards(learner) or not (discounted_return < least or discounted_return > most):
        return None
    return f"discounted returns are {discounted_return:.4g}, and values reach from {least:g} to {most:g}"


def _advice(cause: str, config: Any) -> list[str]:
    """What can be changed in an algorithm."""
    return [
        one for one in _ADVICE[cause] if all(hasattr(config, name) for name in re.findall(r"algorithm\.(\w+)", one))
    ]


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def opposed(row: Mapping[str, Any]) -> float:
    """The largest mean return of an agent, where all of them together have none: what one wins, others lose.

    Args:
        row: of metrics.

    Returns:
        Its size; 0 elsewhere.
    """
    agents = [abs(row[name]) for name in row if re.fullmatch("info/.*/return", name) and _is_finite(row[name])]
    most = max(agents, default=0.0)
    return most if abs(row.get("return_mean", math.inf)) < 1e-6 * most else 0.0


class NoteOpposed(Callback):
    """Says once of a run whose agents share one reward that they are opponents, as soon as episodes show it."""

    def __init__(self) -> None:
        self._told = False

    def logged(self, trainer: TrainingRun, row: dict[str, float]) -> None:
        """See `Callback.logged`."""
        shared = any(getattr(one, "team", False) for one in trainer.algorithms.values())
        if shared and not self._told and row.get("episodes", 0) >= _FEW_EPISODES and opposed(row):
            self._told = True
            _log.warning(
                "the agents share one reward, the mean of theirs, and it is always 0: what one wins, others lose, so "
                "there is nothing to learn. Let one policy play against itself: train ppo or dqn with "
                "--agents.self-play.pool-size 10"
            )
