"""Why a run does not learn: findings from what it logged and plays, with evidence, threshold, source and a way out."""

import contextlib
import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.algorithms import ALGORITHMS
from palaestra.analysis import played as seen
from palaestra.analysis.curves import thinned_metrics
from palaestra.analysis.played import Symptom, possible
from palaestra.config.config import ExperimentConfig, on_cpu
from palaestra.core import POLICY, CheckpointError, ConfigError, Linear, Piecewise, left_as_found, schedule_value
from palaestra.core.reading import opened_text, read_json
from palaestra.runs.records import is_number, read_evaluations
from palaestra.runs.run_directory import RunDirectory, find_run
from palaestra.training import opposed

__all__ = ["Diagnosis", "Symptom", "diagnose", "logged_symptoms"]

_EPISODES = 20  # fewer say nothing about what is never earned, or always cut off


@dataclass(frozen=True)
class Diagnosis:
    """What was found in a run."""

    run: str
    """Its directory."""
    findings: tuple[Symptom, ...]
    """The most severe first; empty where nothing was found."""

    def __str__(self) -> str:
        if not self.findings:
            return f"{self.run}: nothing found"
        return "\n\n".join([f"{self.run}: {len(self.findings)} finding(s)", *map(str, self.findings)])

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {"run": self.run, "findings": [asdict(finding) for finding in self.findings]}


@left_as_found()
def diagnose(name: str | Path, *, root: str | Path = "runs", episodes: int = 5) -> Diagnosis:
    """Looks for reasons why a run does not learn: in its configuration, in what it has logged, and in what it does.

    The policy of the newest checkpoint plays some episodes, for at most half a minute. A metric that an algorithm does
    not log is not judged; runs of many agents, and those without a checkpoint, play nothing. Of a run that failed
    before it logged anything, what its faults have kept is looked at.

    Args:
        name: path or name of the run, or `last`.
        root: where to look for a name.
        episodes: to play; 0 for none.

    Raises:
        CheckpointError: there is no such run, or it has logged nothing yet and has not failed.
        ConfigError: `episodes` is negative.
    """
    if episodes < 0:
        raise ConfigError(f"episodes is {episodes}; give a number of at least 0")
    directory = find_run(name, root)
    log, failed = _Log(directory, makes=True), directory.status == "failed"
    played = _played(directory, log, episodes) if episodes and log.rows else ()
    counts = log.last("updates_skipped") or failed or not log.rows  # else the run went on from before
    kept = seen.kept_update(directory.path / "faults") if counts else ()
    others = (*kept, *(seen.failure(directory.info) if failed else ()), *played)
    found = [*_logged(log), *(possible(one, log.config) for one in others)]
    if not (log.rows or found):
        raise CheckpointError(f"{directory.path}/metrics.jsonl has no row of metrics yet; train on, and ask again")
    return Diagnosis(str(directory.path), tuple(sorted(found, key=lambda finding: -finding.severity)))


def logged_symptoms(directory: RunDirectory) -> list[Symptom]:
    """Symptoms that a run's log alone shows; nothing is made or imported."""
    return _logged(_Log(directory))


def _logged(log: "_Log") -> list[Symptom]:
    return [possible(finding, log.config) for check in _CHECKS for finding in check(log)] if log.rows else []


def _played(directory: RunDirectory, log: "_Log", episodes: int) -> Iterator[Symptom]:
    from palaestra.analysis.evaluation import policies_of_run
    from palaestra.runs.learner import evaluation_environment
    from palaestra.runs.making import choose_threads

    if not any(directory.path.glob("checkpoints/*")):
        return
    _, policies = policies_of_run(directory, "last")
    if list(policies) != [POLICY]:
        return
    env, _ = evaluation_environment(log.config, log.config.run.seed + 2, 1)
    with env:
        gamma, bonus = log.setting("gamma"), getattr(log.config.algorithm, "bonus", None)
        others = log.config.env.train_wrappers, log.config.env.train_kwargs, env.reward_spec.shape, bonus and bonus.kind
        gamma = None if any(others) else 1.0 if gamma is None else gamma  # values of other rewards are not compared
        played = seen.play(policies[POLICY], env, episodes=episodes, gamma=gamma)
        unasked = replace(log.config, run=replace(log.config.run, num_threads=None))
        yield from seen.too_many_threads(log.config.run.num_threads or 1, choose_threads(unasked, env.observation_spec))
    yield from seen.played_symptoms(policies[POLICY], played)


class _Log:
    """A run's configuration, metrics and episodes.

    Args:
        makes: whether policies may be made to know their actions, where none is saved yet.
    """

    def __init__(self, directory: RunDirectory, *, makes: bool = False) -> None:
        self.path, self._makes = directory.path, makes
        self.config: ExperimentConfig = directory.config
        self.rows = thinned_metrics(directory.path)

    def setting(self, name: str) -> float | None:
        """A number of the algorithm's configuration; of a schedule, what it has come to."""
        progress = min(1.0, (self.last("env_steps") or 0) / self.config.trainer.total_env_steps)
        asked: Any = getattr(self.config.algorithm, name, None)
        value: Any = schedule_value(asked, progress)
        return float(value) if isinstance(value, int | float) and is_number(value) else None

    def late(self, name: str, middle: Callable[[Any], Any] = np.median) -> float | None:
        """Median, or mean, of a metric over the last half of what was logged."""
        values = [row[name] for row in self.rows if is_number(row.get(name))]
        return float(middle(values[len(values) // 2 :])) if values else None

    def of_policies(self, metric: str) -> dict[str, str]:
        """Names of a metric of learning in the rows, by the policies that have it."""
        names = {key for row in self.rows for key in row if key.startswith("learning/") and key.endswith(f"/{metric}")}
        return {name[len("learning/") : -len(metric) - 1] or POLICY: name for name in sorted(names)}

    def last(self, name: str) -> float | None:
        """Newest value of a metric."""
        return next((float(row[name]) for row in reversed(self.rows) if is_number(row.get(name))), None)

    @cached_property
    def returns(self) -> "array[float]":
        """Returns of the training episodes, of which there may be 10^8."""
        path, found = self.path / "episodes.csv", array("d")
        if path.is_file():
            with opened_text(path, errors="replace") as file:
                for line in file:
                    # the head; half a row, of a machine that went down
                    with contextlib.suppress(ValueError, IndexError):
                        found.append(float(line.split(",", 2)[1]))
        return found

    @cached_property
    def num_actions(self) -> dict[str, Any]:
        """How many actions each policy has to choose from; `None` where that is no number."""
        from palaestra.runs.build import learner_of

        files = [*self.path.glob("policy/**/policy.json")]
        if self._makes and not files:
            made = learner_of(on_cpu(self.config)).policies
            return {name: getattr(getattr(one, "action_spec", None), "num", None) for name, one in made.items()}
        saved = {POLICY if file.parent.name == "policy" else file.parent.name: file for file in files}
        with contextlib.suppress(CheckpointError, KeyError, TypeError, AttributeError):  # of a damaged one
            return {name: read_json(file)["action_spec"].get("num") for name, file in saved.items()}
        return {}


def _called(policy: str) -> str:
    return "the policy" if policy == POLICY else f"policy {policy!r}"


def _no_updates(log: _Log) -> Iterator[Symptom]:
    steps, env_steps = log.last("gradient_steps"), log.last("env_steps") or 0.0
    starts, budget = log.setting("learning_starts"), log.config.trainer.total_env_steps
    if steps == 0:
        wanted = "" if starts is None else f", and learning_starts is {starts:,.0f}"
        yield Symptom(
            name="no_updates",
            severity=3,
            evidence=f"no gradient step in {env_steps:,.0f} {log.config.unit} of {budget:,}{wanted}",
            threshold="0 gradient steps (arithmetic)",
            advice=("a larger --trainer.total-env-steps", "a smaller --algorithm.learning-starts"),
        )
    elif starts is not None and steps is not None and env_steps > starts:
        ratio = steps / (env_steps - starts)
        if ratio < 0.02:
            yield Symptom(
                name="replay_ratio",
                severity=2,
                evidence=f"{ratio:.4f} gradient steps for each env step after learning_starts",
                threshold="0.02; DQN takes 0.25 (Mnih et al. 2015, update frequency 4), SAC 1 (Haarnoja et al. 2018)",
                advice=("a larger --algorithm.gradient-steps", "a smaller --algorithm.unroll-length"),
            )


def _step_size(log: _Log) -> Iterator[Symptom]:
    """KL is measured before each step: from the policy that acted, so 0 where an update is one step and that is new."""
    logged, lag = log.of_policies("kl"), log.late("workers/lag_mean", np.mean) or 0.0
    learn = {key.partition("/gradient_norm/")[0] for row in log.rows for key in row if "/gradient_norm/" in key}
    several = (log.last("gradient_steps") or 0) > (log.last("policy_version") or 0) * max(len(learn), len(logged))
    for policy, name in logged.items():
        kl = log.late(name, np.mean)  # few updates may move it far, which a median hides
        if kl is not None:
            rate = getattr(log.config.algorithm, "learning_rate", None)
            yield from _step_of_size(kl, _called(policy), rate, lag, several=several)


def _step_of_size(kl: float, policy: str, rate: Any, lag: float, *, several: bool) -> Iterator[Symptom]:
    evidence = f"an update moves {policy} by KL {kl:.3g} (mean of the last half)"
    evidence += "" if rate is None else f"; learning_rate is {rate}"
    if kl > 0.1 and lag > 0:
        yield Symptom(
            name="policy_moves_ahead",
            severity=2,
            evidence=f"{policy} is {lag:.3g} versions and KL {kl:.3g} ahead of what acted (means of the last half)",
            threshold="0.1 (our choice): corrections for old data lose what they weigh down",
            advice=("a smaller --asynchronous.max-lag", "fewer actors", "a smaller --algorithm.learning-rate"),
        )
    elif kl > 0.1:
        yield Symptom(
            name="policy_jumps",
            severity=3,
            evidence=evidence,
            threshold="0.1; updates should stay near 0.01 to 0.02 (TRPO takes 0.01: Schulman et al. 2015, https://arxiv.org/abs/1502.05477)",
            advice=("a smaller --algorithm.learning-rate, such as 3e-4", "a --algorithm.target-kl of 0.02 or less"),
        )
    elif abs(kl) < 1e-7 and rate != 0 and several:
        yield Symptom(
            name="policy_stands_still",
            severity=3,
            evidence=evidence,
            threshold="1e-7, a hundred-thousandth of TRPO's 0.01 (Schulman et al. 2015, https://arxiv.org/abs/1502.05477)",
            advice=(
                "a larger --algorithm.learning-rate, such as 3e-4, that does not decay to 0 too early",
                "a larger --algorithm.target-kl",
            ),
        )


def _schedule(log: _Log) -> Iterator[Symptom]:
    """A step size of 0, from the beginning or by a schedule that ends before the last row does, where it may be 0."""
    asked = getattr(log.config.algorithm, "learning_rate", None)
    late = [log.late(one, lambda x: max(x[:-1], default=1)) for one in log.of_policies("learning_rate").values()]
    if asked == 0 or (isinstance(asked, Linear | Piecewise) and late and not any(late)):
        yield Symptom(
            name="learning_rate_is_0",
            severity=3,
            evidence=f"algorithm.learning_rate is {asked}, and was 0 in the last half of what was logged",
            threshold="0: nothing is learned from there on (arithmetic)",
            advice=("an --algorithm.learning-rate above 0, such as 3e-4, or one that falls to 0 at the very end",),
        )


def _entropy(log: _Log) -> Iterator[Symptom]:
    for policy, name in log.of_policies("entropy").items():
        entropy, actions = log.late(name), log.num_actions.get(policy)  # none of what is only called like a policy
        if entropy is not None and is_number(actions) and actions > 1:
            yield from _entropy_of(entropy, math.log(actions), _called(policy), log.last("gradient_steps") or 0)


def _entropy_of(entropy: float, most: float, policy: str, gradient_steps: float) -> Iterator[Symptom]:
    share = entropy / most
    evidence = f"entropy of {policy} is {entropy:.3g} nats, {share:.1%} of the {most:.3g} of random actions"
    if share > 0.995 and gradient_steps >= 100:
        yield Symptom(
            name="acts_at_random",
            severity=2,
            evidence=evidence,
            threshold="99.5% after 100 gradient steps (measured: PPO on CartPole-v1 has 87% after 6,000 env steps, "
            "and 99.8% with an entropy cost of 10)",
            advice=("a smaller --algorithm.entropy-cost (0.01 in Mnih et al. 2016)", "more env steps"),
        )
    elif share < 0.01:
        yield Symptom(
            name="entropy_collapse",
            severity=2,
            evidence=evidence,
            threshold="1% (our choice): exploration has ended",
            advice=(
                "a larger --algorithm.entropy-cost, such as 0.01",
                "a smaller --algorithm.learning-rate",
                "a smaller --algorithm.target-kl",
            ),
        )


def _horizon(log: _Log) -> Iterator[Symptom]:
    gamma, length = log.setting("gamma"), log.last("length_mean")
    if gamma is not None and length is not None and gamma < 0.5 and length > 4 / (1 - gamma):
        yield Symptom(
            name="short_sighted",
            severity=3,
            evidence=f"gamma is {gamma}, which sees {1 / (1 - gamma):.1f} steps ahead; episodes last {length:.0f}",
            threshold="gamma below 0.5, episodes over 4 times 1 / (1 - gamma) (Sutton and Barto 2018, section 3.3)",
            advice=("--algorithm.gamma 0.99, if later rewards count",),
        )


def _learns_from_others(algorithm: Any) -> bool:
    """Whether it learns, at least in part, from something else than the rewards that are logged."""
    bonus = getattr(algorithm, "bonus", None)
    return bool((bonus and bonus.kind) or getattr(algorithm, "teacher", None))


def _rewards(log: _Log) -> Iterator[Symptom]:
    returns = log.returns
    most = opposed({name: value for name, value in log.rows[-1].items() if is_number(value)})
    if most and getattr(ALGORITHMS.get(log.config.algorithm_name), "team", False):
        yield Symptom(
            name="opponents_share_a_reward",
            severity=3,
            evidence=f"what all share has the mean return 0 over {len(returns)} episodes, and single agents {most:.3g}",
            threshold="0 for all together (arithmetic): what one wins, others lose, and the mean of it has no signal",
            advice=("ppo or dqn with --agents.self-play.pool-size 10: one policy that plays against itself",),
        )
    elif len(returns) >= _EPISODES and min(returns) == max(returns) and not _learns_from_others(log.config.algorithm):
        yield Symptom(
            name="no_reward_signal",
            severity=3,
            evidence=f"all {len(returns)} training episodes had the return {returns[0]:g}",
            threshold=f"{_EPISODES} episodes that are all alike: there is nothing to prefer (arithmetic)",
            advice=(
                "more exploration by a larger --algorithm.entropy-cost",
                "more exploration by a larger --algorithm.epsilon",
                "a denser reward",
            ),
        )
    # those of opponents cancel out
    of_agents = [] if most else [name for name in log.rows[-1] if name.endswith("/discounted_return")]
    for name in [] if _learns_from_others(log.config.algorithm) else ["discounted_return_mean", *of_agents]:
        size = abs(log.late(name) or 0.0)
        if 1e-4 <= size <= 1e5 or not size:
            continue
        yield Symptom(
            name="reward_scale",
            severity=2,
            evidence=f"{name} is of size {size:.3g}",
            threshold="1e-4 to 1e5: sizes of returns change what is learned (van Hasselt et al. 2016, "
            "https://arxiv.org/abs/1602.07714; Henderson et al. 2018, https://arxiv.org/abs/1709.06560)",
            advice=("rewards scaled in the environment so that discounted returns are near 1 to 100",),
        )


def _fall(log: _Log) -> Iterator[Symptom]:
    """What was gained and lost is more than what evaluations say beside their intervals."""
    results = [result for _, result in read_evaluations(log.path)]  # rows repeat the newest
    if len(results) < 4:
        return
    of_best, of_late = (max(some, key=lambda one: one["return_mean"]) for some in (results, results[-2:]))
    first, best, late = (float(one["return_mean"]) for one in (results[0], of_best, of_late))
    surely = of_best["return_ci95"][0] > max(results[0]["return_ci95"][1], of_late["return_ci95"][1])
    if best - late > 0.5 * (best - first) > 0 and surely:
        yield Symptom(
            name="performance_collapse",
            severity=2,
            evidence=f"evaluations rose from {first:.4g} to {best:.4g}, and the last two are at most {late:.4g}",
            threshold="half of the gain is lost in the last two of 4 evaluations or more, beyond 95% (our choice)",
            advice=(
                "one that falls, such as --algorithm.learning-rate 'linear(3e-4, 0)'",
                "a smaller --algorithm.learning-rate",
                "the best policy, which is kept: eval and play use it",
            )[isinstance(getattr(log.config.algorithm, "learning_rate", None), Linear | Piecewise) :],
        )


def _value(log: _Log) -> Iterator[Symptom]:
    if late := log.returns[len(log.returns) // 2 :]:
        low, middle, high = np.quantile(late, [0.05, 0.5, 0.95])
        if high - low <= 0.05 * abs(middle):  # equal returns have no variance to explain
            return
    for policy, name in log.of_policies("explained_variance").items():
        variance = log.late(name)
        if variance is None or variance >= -0.5:
            continue
        yield Symptom(
            name="value_worse_than_constant",
            severity=2,
            evidence=f"explained variance of the value of {_called(policy)}: {variance:.3g} (median of the last half)",
            threshold="-0.5, where returns differ by more than 5%; below 0 the mean return would be the better guess "
            "(definition, 1 - Var[R - V] / Var[R])",
            advice=(
                "a larger --algorithm.value-cost",
                "another --algorithm.learning-rate",
                "rewards of a smaller scale",
            ),
        )


_CHECKS = (seen.not_finite, _no_updates, _schedule, _step_size, _horizon, _rewards, _fall, _value, _entropy)
