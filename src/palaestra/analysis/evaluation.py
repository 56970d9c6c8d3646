"""What runs have left: their policies, evaluations of these, and the data that they learned from."""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.analysis.labels import say_same_seeds
from palaestra.config.config import on_cpu
from palaestra.core import CheckpointError, ConfigError, RunSeeds, left_as_found, readable
from palaestra.envs import EnvConfig
from palaestra.multiagent import saved_pool
from palaestra.ops import Interval, elo_ratings, mean_interval
from palaestra.policies import Policy, ReturnConditionedPolicy
from palaestra.rollout import Evaluation
from palaestra.runs import FRESH_SEED, Learner, RunDirectory, begun_runs, find_run, find_runs, learner_of
from palaestra.runs.datasets import DataSummary, require_new, save_data
from palaestra.runs.matches import Opponents, Player, play_match
from palaestra.runs.team import TeamLearner
from palaestra.training import part_name
from palaestra.training.checkpoints import step_of

__all__ = [
    "Ratings",
    "RunsEvaluation",
    "evaluate_run",
    "evaluate_runs",
    "export_data",
    "policies_of_run",
    "policy_of_run",
    "rate_runs",
]


@dataclass(frozen=True)
class RunsEvaluation:
    """Evaluations of several runs, and what can be said about runs like them."""

    runs: dict[str, Evaluation]
    """Evaluation of each run, by its path."""
    return_mean: float
    """Mean over runs of their mean returns."""
    return_ci95: tuple[float, float]
    """95% interval of that mean over runs (Student's t); over episodes where there is one run."""
    baseline: Evaluation | None = None
    """Evaluation of a policy that acts at random, where it was asked for."""

    def __str__(self) -> str:
        lines = [f"{path}  {evaluation}{_more(evaluation)}" for path, evaluation in self.runs.items()]
        if len(self.runs) > 1:
            low, high = self.return_ci95
            interval = f"95% interval over {len(self.runs)} runs: {readable(low)} to {readable(high)}"
            lines.append(f"all  {readable(self.return_mean)} ({interval})")
        if self.baseline is not None:
            lines.append(f"random actions  {self.baseline}{_more(self.baseline)}")
        return "\n".join(lines)


def _more(evaluation: Evaluation) -> str:
    """What each of several policies earned, and the strength of one of self-play."""
    parts = evaluation.parts
    earned = [f"\n    each agent of {name}: {readable(value)}" for name, value in evaluation.policies.items()]
    return "".join(earned) + "".join(
        f"\n    Elo above {whom}: {parts[name]:+.0f} [{parts[f'{name}_low']:+.0f}, {parts[f'{name}_high']:+.0f}] "
        "(95%, sampled actions)"
        for name, whom in (("elo", "random actions"), ("pool_elo", "the mean of its pool"))
        if name in parts
    )


@left_as_found()
def evaluate_run(
    name: str | Path,
    *,
    root: str | Path = "runs",
    episodes: int = 20,
    seed: int | None = None,
    deterministic: bool = True,
    which: str | int = "best",
    target_return: float | None = None,
) -> Evaluation:
    """Evaluates the policy of a run.

    Args:
        name: path or name of the run, or `last`.
        seed: added to the run's own, so that each run has episodes of its own; by default 1,000,000. 0 gives those of
            its evaluations in training, which chose its best policy.
        deterministic: whether to take the most probable or most valuable action.
        which: `best` of its evaluations, `last`, or the env steps of a checkpoint.
        target_return: the return that a policy is asked for which acts for one; by default that of its training.

    Raises:
        CheckpointError: there is no such run, or it has no such policy.
        ConfigError: it is a group of several, `episodes` is less than 1, or a return is asked of a policy that acts for
            none.
    """
    require_episodes(episodes)
    directory = find_run(name, root, of_all="palaestra.evaluate_runs([{!r}])")
    learner, policies = policies_of_run(directory, which)
    if target_return is not None:
        if not math.isfinite(target_return):
            raise ConfigError(f"target_return is {target_return}; give a finite number")
        for policy in policies.values():
            if not isinstance(policy, ReturnConditionedPolicy):
                raise ConfigError(
                    f"target_return is {target_return}, but the policy of {directory.path} is a "
                    f"{type(policy).__name__}, which acts for no return in particular; leave it out"
                )
            policy.target_return = target_return
    own = {"seed": learner.config.run.seed + (FRESH_SEED if seed is None else seed), **_pool_of(directory, which)}
    return learner.evaluation()(policies, episodes=episodes, deterministic=deterministic, **own)


def require_episodes(episodes: int) -> None:
    """Refuses what is no number of episodes.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(episodes, int) or episodes < 1:
        raise ConfigError(f"episodes is {episodes}; it must be a whole number of at least 1")


def _pool_of(directory: RunDirectory, which: str | int) -> dict[str, Any]:
    """What evaluates a policy of self-play besides: the pool of its checkpoint; for the best one, of the newest."""
    if not directory.config.agents.self_play.pool_size or not directory.checkpoints().steps():
        return {}
    state = _checkpoint(directory, "last" if which == "best" else which)
    return {"opponents": Opponents(pool=functools.partial(saved_pool, state["collect"]))}


def evaluate_runs(
    names: Sequence[str | Path], *, root: str | Path = "runs", baseline: bool = False, **options: Any
) -> RunsEvaluation:
    """Evaluates several runs, or all of a group.

    Args:
        names: paths or names of runs and groups.
        baseline: whether to evaluate random actions in the first run's environment as well.
        options: `episodes`, `seed`, `deterministic`, `which`, `target_return`: see `evaluate_run`.

    Raises:
        CheckpointError: there is no such run, or it has no such policy.
        ConfigError: they are of several tasks: environments, weights of rewards, or agents whose returns count.
    """
    directories = begun_runs(names, root)
    if len(tasks := sorted({directory.config.task for directory in directories})) > 1:
        raise ConfigError(
            f"the runs are of {', '.join(tasks)}, whose returns have no mean; evaluate those of one task at a time"
        )
    say_same_seeds(directories)
    found = {str(directory.path): evaluate_run(directory.path, **options) for directory in directories}
    means = [evaluation.return_mean for evaluation in found.values()]
    interval = mean_interval(means) if len(means) > 1 else next(iter(found.values())).return_ci95
    chance = None
    if baseline:
        learner = learner_of(on_cpu(directories[0].config))
        given = options.get("seed")
        seed = learner.config.run.seed + (FRESH_SEED if given is None else given)
        chance = learner.evaluate_chance(episodes=options.get("episodes", 20), seed=seed)
    return RunsEvaluation(found, math.fsum(means) / len(means), interval, chance)


@left_as_found()
def policies_of_run(
    name: str | Path | RunDirectory, which: str | int = "best", *, root: str | Path = "runs"
) -> tuple[Learner, dict[str, Policy]]:
    """The policies that a run has kept, by name, those that do not learn included.

    Args:
        name: path or name of the run, or `last`; or its directory.
        which: `best` of its evaluations, `last`, or the env steps of a checkpoint.

    Returns:
        What learned in the run, and the policies.

    Raises:
        CheckpointError: there is no such run, or it has none such; the message names the checkpoints there are.
        ConfigError: `which` is none of these, or it is a group of several.
    """
    directory = _directory(name, root)
    learner = learner_of(on_cpu(directory.config))
    if which == "best":
        if not [*directory.path.glob("evals/*.json"), *directory.path.glob("policy/**/policy.json")]:
            raise CheckpointError(
                f"{directory.path} has not been evaluated yet, so it has no best policy; "
                "`eval`, `play` and `export` take that of its newest checkpoint with `--which last`"
            )
        return learner, _inside(directory, learner.kept_policies(directory.path))
    state = _checkpoint(directory, which)
    policies = learner.policies_of(state)
    for algorithm in learner.algorithms.values():  # whose policy explores as it did then
        algorithm.set_progress(state["trainer"]["learning"]["progress"])
    return learner, _inside(directory, policies)


def _directory(name: str | Path | RunDirectory, root: str | Path) -> RunDirectory:
    return name if isinstance(name, RunDirectory) else find_run(name, root)


def _inside(directory: RunDirectory, policies: dict[str, Policy]) -> dict[str, Policy]:
    """Policies that know the run's wrappers, which those saved by older versions do not say."""
    for policy in policies.values():
        policy.wrappers = directory.config.env.policy_wrappers(policy.reads_reward)
    return policies


def policy_of_run(name: str | Path | RunDirectory, which: str | int = "best", *, root: str | Path = "runs") -> Policy:
    """The policy that a run has kept.

    Args:
        name: see `policies_of_run`.
        which: see `policies_of_run`.

    Raises:
        CheckpointError: there is no such run, or it has none such; the message names the checkpoints there are.
        ConfigError: `which` is none of these, or the run has several policies.
    """
    directory = _directory(name, root)
    _, policies = policies_of_run(directory, which)
    if len(policies) > 1:
        raise ConfigError(f"{directory.path} has the policies {', '.join(policies)}; use `policies_of_run`")
    return next(iter(policies.values()))


@left_as_found()
def export_data(name: str | Path, directory: str | Path, *, root: str | Path = "runs") -> DataSummary:
    """Saves the replay buffer of a run's newest checkpoint as a data set; of many agents, one for each policy.

    Args:
        name: path or name of the run, or `last`.
        directory: must not exist yet.

    Raises:
        CheckpointError: there is no such run, or it has no valid checkpoint.
        ConfigError: the run keeps no replay buffer, or the folder exists.
    """
    require_new(directory)
    run = find_run(name, root)
    learner = learner_of(on_cpu(run.config))
    algorithms = learner.algorithms
    kept = [policy for policy, algorithm in algorithms.items() if algorithm.plan.data == "replay"]
    if not kept:
        raise ConfigError(
            f"{run.config.algorithm_name} keeps no replay buffer that could be exported; let its policy act with "
            f"`palaestra data collect {name} {directory} --steps 10000`"
        )
    buffers, store = learner.buffers(), run.checkpoints()
    if not store.steps():
        raise CheckpointError(f"{run.path} has no checkpoint yet, so there is no buffer to export")
    _, state = store.load_newest(rename=False)
    for policy in kept:
        buffers[policy].load_state_tensors(state[part_name("buffer", policy)])
    recorded = {policy: (buffers[policy], algorithms[policy].policy) for policy in kept}
    return save_data(recorded, directory, run.config.env)


def _checkpoint(directory: RunDirectory, which: str | int) -> dict[str, Any]:
    """The state in a checkpoint."""
    store = directory.checkpoints()
    steps = {step_of(path): path for path in store.steps()}
    if which != "last" and not str(which).isdigit():
        raise ConfigError(f"--which is {which!r}; give best, last, or the env steps of a checkpoint")
    if not steps or (which != "last" and int(which) not in steps):
        known = ", ".join(map(str, steps)) or "none"
        raise CheckpointError(f"{directory.path} has no checkpoint {which}; there are: {known}")
    newest = which == "last"
    return (store.load_newest(rename=False) if newest else store.load(steps[int(which)], without_lost=True))[1]


@dataclass(frozen=True)
class Ratings:
    """Players, and how strong they are."""

    players: list[str]
    """Their names."""
    elo: list[Interval]
    """Rating of each, relative to the mean of all."""
    scores: list[list[float]]
    """Games that row won against column; a draw is half a game."""
    games: int
    """Between any two of them."""
    different: list[list[float]]
    """Games of row and column that say something: those of a side that all went alike count as one."""
    deterministic: bool
    """Whether the policies took their most probable or most valuable actions."""

    def __str__(self) -> str:
        width = max(map(len, self.players))
        order = sorted(range(len(self.players)), key=lambda player: -self.elo[player].value)
        total = self.games * (len(self.players) - 1)
        lines = [
            f"{self.players[player]:<{width}}  {self.elo[player].value:+6.0f} "
            f"[{self.elo[player].low:+.0f}, {self.elo[player].high:+.0f}]  {sum(self.scores[player]):g} of {total}"
            for player in order
        ]
        if any(0 < number < self.games for row in self.different for number in row):
            lines.append("games that all went alike are counted as one: these players, or their games, know no chance")
        acted = "deterministic" if self.deterministic else "stochastic"
        return "\n".join([f"{'player':<{width}}  Elo [95% interval]  score ({self.games} games each, {acted})", *lines])


@left_as_found()
def rate_runs(
    names: Sequence[str],
    *,
    root: str | Path = "runs",
    games: int = 100,
    seed: int = 0,
    deterministic: bool = False,
    baseline: bool = False,
) -> Ratings:
    """Lets the policies of runs play against each other, every two of them, and rates them.

    Of two agents, each policy plays each in half of the games; of more, one policy plays every other agent. Who earned
    more has won. A game that does not end within `trainer.eval_time_limit_s` is a draw.

    Args:
        names: paths or names of runs or groups; `RUN@last` or `RUN@20000` takes a checkpoint's policy instead of
            that of the best evaluation.
        root: folder of the runs.
        games: between any two, an even number.
        seed: of the environments and of what is drawn from policies.
        deterministic: whether to take the most probable or most valuable actions; equal games may repeat then.
        baseline: whether random actions play as well.

    Raises:
        ConfigError: there are fewer than two players, a run has one agent or a team, environments differ, or `games` is
            odd.
        CheckpointError: there is no such run, or it has no such policy.
    """
    if games < 2 or games % 2:
        raise ConfigError(f"games is {games}; give an even number of at least 2, for each side plays first as often")
    players: dict[str, Player] = {}
    env: EnvConfig | None = None
    limit_s: float | None = None
    for text in names:
        name, which = _run_and_which(str(text), root)
        for directory in find_runs([name], root):
            learner, policies = policies_of_run(directory, which or "best")
            label = str(directory.path) + (f"@{which}" if which else "")
            if not isinstance(learner, TeamLearner) or any(spec.team for spec in learner.policy_specs.values()):
                raise ConfigError(_unrated(label, learner))
            own = learner.config.env
            if env is not None and env.task != own.task:
                raise ConfigError(f"{label} is of {own.task}, and those before of {env.task}")
            env, players[label] = own, Player(learner.policy_specs, policies)
            limit_s = learner.config.trainer.eval_time_limit_s
    if baseline and players:
        players["random actions"] = Player.at_random(next(iter(players.values())).policy_specs)
    if env is None or len(players) < 2:
        raise ConfigError(f"{len(players)} player(s) given; rate at least two, or one and `--baseline`")
    scores, played = np.zeros((2, len(players), len(players)))
    order = list(players.values())
    for first, second in itertools.combinations(range(len(order)), 2):
        lanes = RunSeeds(seed).integer("evaluation", first * len(order) + second)
        rules = {"seed": lanes, "deterministic": deterministic, "time_limit_s": limit_s}
        match = play_match(order[first], order[second], env, games=games, **rules)
        scores[first, second], scores[second, first] = match.won, games - match.won
        played[first, second] = played[second, first] = match.different
    elo = elo_ratings(scores / games * played, played)
    return Ratings(list(players), elo, scores.tolist(), games, played.tolist(), deterministic)


def _run_and_which(text: str, root: str | Path) -> tuple[str, str]:
    """`RUN` and `last` of `RUN@last`; the whole, and nothing, of a run whose own path has an @."""
    name, _, which = text.rpartition("@")
    whole = not name or Path(text).exists() or (Path(root) / text).exists()
    return (text, "") if whole else (name, which)


def _unrated(label: str, learner: Any) -> str:
    """Why a run cannot be rated, and which one can."""
    how = "palaestra train ppo pettingzoo:classic/tictactoe-v3 --agents.self-play.pool-size 10"
    if not isinstance(learner, TeamLearner):
        return f"{label} has one agent, so that nobody plays against it; what can be rated is a game of several: {how}"
    (team, *_) = (name for name, spec in learner.policy_specs.items() if spec.team)
    return (
        f"{label} has no agents that could play against each other: {team!r} acts for a team, whose members learn "
        "together. Train each agent for itself, by ppo or dqn, with --agents.self-play.pool-size 10 or with "
        f"--agents.sharing separate: {how}"
    )
