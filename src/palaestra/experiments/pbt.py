"""Population-based training: members of a population copy those that learn better, and go on with other numbers.

Paper: Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846, with truncation selection.
Departures: a discount is perturbed by its distance from 1; who has ended no episode since the last time is not judged.
"""

import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
import torch

from palaestra.algorithms import Together
from palaestra.config.config import ExperimentConfig, config_from_mapping, field_values
from palaestra.config.dimensions import Dimension, first_values, search_space, setting_path
from palaestra.core import ConfigError, Linear, Piecewise, RunSeeds, Schedule, readable, schedule_value, tree_map
from palaestra.rollout.collection import episode_discount
from palaestra.runs.run_directory import RunDirectory
from palaestra.training import Callback, Trainer, TrainingRun

__all__: list[str] = []

_SHARE = 5
"""One of so many members is copied, and as many become copies."""
_RESAMPLED = 0.25
"""How often a number is drawn anew instead of perturbed."""
_FACTORS = (0.8, 1.2)


@dataclass(frozen=True)
class Selection:
    """Who copies whom, how often, and which numbers are tried."""

    every: int
    """Updates from one time to the next."""
    seed: int
    """Of all draws."""
    space: tuple[Dimension, ...]
    """Numbers that are perturbed, and their ranges."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """From `to_json`."""
        return cls(values["every"], values["seed"], tuple(Dimension(**one) for one in values["space"]))

    def copied(self, scores: Mapping[int, float], generation: int) -> dict[int, int]:
        """Whom each of the worst fifth copies: one of the best fifth, drawn at random, if that is better.

        Args:
            scores: by place, of those that are judged.
            generation: how often it has been done, counted from 1.
        """
        draws = np.random.default_rng([self.seed, generation])
        ranked = sorted(scores, key=lambda place: (-scores[place], place))
        count = max(1, len(ranked) // _SHARE)
        chosen = {place: ranked[int(draws.integers(count))] for place in ranked[-count:]}
        return {place: best for place, best in chosen.items() if scores[best] > scores[place]}

    def explored(self, values: Mapping[str, float], generation: int, place: int) -> dict[str, float]:
        """Numbers by path, each perturbed by a factor of 0.8 or 1.2, or drawn anew from its range.

        Args:
            values: of the member that is copied.
            generation: see `copied`.
            place: of the copy.
        """
        draws = np.random.default_rng([self.seed, generation, place])
        found: dict[str, float] = {}
        for one in self.space:
            anew, share, factor = draws.random() < _RESAMPLED, draws.random(), _FACTORS[draws.integers(2)]
            found[one.path] = one.at(share) if anew else one.times(values[one.path], factor)
        return found

    def members(self, config: ExperimentConfig, count: int) -> list[ExperimentConfig]:
        """What members begin with: the first with the numbers of the configuration, the others with draws.

        Args:
            config: of the first.
            count: members.
        """
        draws = np.random.default_rng([self.seed, 0])
        values = [first_values(config, self.space)]
        values += [{one.path: one.at(draws.random()) for one in self.space} for _ in range(count - 1)]
        return [config_from_mapping(ExperimentConfig, _steady(one), base=config) for one in values]


def _steady(values: Mapping[str, float]) -> dict[str, Any]:
    """Schedules that can turn later."""
    return {path: Piecewise(((0.0, value),)) for path, value in values.items()}


def population_space(
    config: ExperimentConfig, changes: Mapping[str, Sequence[float] | None] | None, every: int = 1
) -> tuple[ExperimentConfig, tuple[Dimension, ...]]:
    """The numbers that members of one population may differ in, and the configuration where they are numbers.

    What anneals to 0 by itself begins as the number that it starts from: training finds its own schedule.

    Args:
        config: of the first member.
        changes: see `search_space`.
        every: updates after which they are compared.

    Raises:
        ConfigError: a path that was given is no such number, or there is none; nobody would be compared.
    """
    rows = config.env.num_envs * getattr(config.algorithm.plan, "unroll_length", 1)
    acting = config.trainer.total_env_steps - getattr(config.algorithm.plan, "learning_starts", 0)
    if every >= (updates := acting / rows):
        raise ConfigError(
            f"search.pbt_every is {every}, and a run has {updates:.0f} updates, in which members would "
            "never be compared; give a lower number, or more trainer.total_env_steps"
        )
    algorithm = config.algorithm
    values = field_values(algorithm).items()
    annealed = {name: value.start for name, value in values if isinstance(value, Linear) and value.end == 0}
    config = dataclasses.replace(config, algorithm=dataclasses.replace(algorithm, **annealed))
    chosen: list[Dimension] = []
    for one in search_space(config, changes):
        if reason := _unfit(config, one):
            if one.path in map(setting_path, changes or ()):
                raise ConfigError(f"space.{one.path} cannot change within a run: {reason}; leave it out of pbt-every")
            continue
        chosen.append(one)
    if not chosen:
        raise ConfigError(f"{config.algorithm_name} has no number that can change within a run; leave out pbt-every")
    return config, tuple(chosen)


def _unfit(config: ExperimentConfig, one: Dimension) -> str:
    """Why a number cannot be a schedule that turns while members learn together; empty where it can."""
    room, _, name = one.path.rpartition(".")
    if room != "algorithm" or typing.get_type_hints(type(config.algorithm)).get(name) != Schedule:
        return "it is no rate, discount or coefficient of the algorithm"
    ends = [dataclasses.replace(config.algorithm, **{name: Piecewise(((0.0, end),))}) for end in (one.low, one.high)]
    return "" if ends[0].plan == ends[1].plan else "it decides what is drawn"


def _followed(algorithm: Any, path: str, copies: Sequence[Mapping[str, Any]]) -> Piecewise:
    """The schedule of a setting over a run: as it began, and turned by each copy."""
    schedule = Piecewise(((0.0, getattr(algorithm, path.removeprefix("algorithm."))(0.0)),))
    for copy in copies:
        schedule = schedule.turned(copy["progress"], copy["settings"][path])
    return schedule


@final
class PbtMember(Callback):
    """Whom a member has copied, and when: in its checkpoints, its metrics and its `run.json`.

    Args:
        directory: of its run.
        selection: of the population.
    """

    def __init__(self, directory: RunDirectory, selection: Selection) -> None:
        self._directory, self._paths = directory, [one.path for one in selection.space]
        self.number = directory.config.run.seed
        """Its run seed, by which others name it."""
        self.generation = 0
        """How often members were compared."""
        self.episodes = 0
        """That had ended by then."""
        self.copies: list[dict[str, Any]] = []
        """Of whom, when, with which scores, and the numbers that it went on with."""

    def follow(self, trainer: Trainer) -> None:
        """Lets the run have the numbers that its copies have left it with.

        Args:
            trainer: that learns with them.
        """
        config = self._directory.config
        schedules: dict[str, Piecewise] = {}
        for path in self._paths:
            schedules[path.removeprefix("algorithm.")] = _followed(config.algorithm, path, self.copies)
        algorithm = dataclasses.replace(config.algorithm, **schedules)
        if algorithm != trainer.algorithm.config:
            _reschedule(trainer.algorithm, algorithm)
            collector: Any = trainer.collector
            collector.tracker.gamma = episode_discount(trainer.algorithm)
        if algorithm != config.algorithm:
            self._directory.save_config(dataclasses.replace(config, algorithm=algorithm))
        self._directory.write_info({"copies": self.copies})

    def logged(self, trainer: TrainingRun, row: dict[str, float]) -> None:
        """See `Callback.logged`."""
        row |= {"pbt/generation": self.generation, "pbt/copies": len(self.copies)}
        row |= {"pbt/copied": self.copies[-1]["from"]} if self.copies else {}

    def state(self) -> dict[str, Any]:
        """See `Callback.state`."""
        return {"generation": self.generation, "episodes": self.episodes, "copies": self.copies}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `Callback.load_state`."""
        self.generation, self.episodes, self.copies = state["generation"], state["episodes"], list(state["copies"])


@final
class Exploit:
    """Compares members every few updates: the worst copy the best, and explore other numbers.

    The score is the mean return of the episodes that have ended since the last time, of the newest 100 at most.

    Args:
        selection: who copies whom.
        trainers: of all members.
        lineages: of each.
        together: makes their updates.
    """

    def __init__(
        self, selection: Selection, trainers: Sequence[Trainer], lineages: Sequence[PbtMember], together: Together
    ) -> None:
        self._selection, self._trainers, self._lineages, self._together = selection, trainers, lineages, together
        for lineage, trainer in zip(lineages, trainers, strict=True):
            lineage.follow(trainer)

    def __call__(self, places: Sequence[int]) -> None:
        """Before an unroll of some members, where it is time.

        Args:
            places: of the members that are about to act.
        """
        some = [self._trainers[place] for place in places]
        if not places or any(one.collector.unfinished for one in some):
            return
        generation = self._lineages[places[0]].generation + 1
        if min(one.algorithm.policy_version for one in some) < generation * self._selection.every:
            return
        scores = {place: score for place in places if math.isfinite(score := self._score(place))}
        for place, source in self._selection.copied(scores, generation).items() if scores else ():
            self._copy(generation, place, source, scores)
        for place in places:
            lineage = self._lineages[place]
            lineage.generation, lineage.episodes = generation, self._metric(place, "episodes").state()

    def _metric(self, place: int, name: str) -> Any:
        return next(one for one in self._trainers[place].metrics if getattr(one, "name", None) == name)

    def _score(self, place: int) -> float:
        count = self._metric(place, "episodes").state() - self._lineages[place].episodes
        returns = [one["return_mean"] for one in self._metric(place, "return_mean").state()[-count:]] if count else []
        return math.fsum(returns) / len(returns) if returns else math.nan

    @torch.no_grad()
    def _copy(self, generation: int, place: int, source: int, scores: Mapping[int, float]) -> None:
        trainer, best = self._trainers[place], self._trainers[source].algorithm
        now = {
            one.path: schedule_value(getattr(best.config, one.path.removeprefix("algorithm.")), best.progress)
            for one in self._selection.space
        }
        members, whole = self._together.members, self._together.whole
        tree_map(lambda tensor: tensor[place].copy_(tensor[source]), whole)  # numbers follow before the next update
        members[place].num_gradient_steps = members[source].num_gradient_steps
        lineage = self._lineages[place]
        when = {
            "generation": generation,
            "env_steps": trainer.collector.env_steps,
            "progress": trainer.algorithm.progress,
        }
        who = {"from": self._lineages[source].number, "score": scores[place], "from_score": scores[source]}
        lineage.copies = [*lineage.copies, when | who | {"settings": self._selection.explored(now, generation, place)}]
        lineage.follow(trainer)


@dataclass(frozen=True)
class Ancestry:
    """Where what a member knows at its end has come from."""

    members: tuple[int, ...]
    """Run seeds of its ancestors, oldest first, and its own."""
    since: tuple[int, ...]
    """Env steps at which each but the first copied the one before it."""
    settings: dict[str, str]
    """By path, the schedule that it learned with."""

    @classmethod
    def of(cls, number: int, runs: Mapping[int, RunDirectory], space: Sequence[Dimension]) -> Self:
        """Of a member.

        Args:
            number: its run seed.
            runs: of all members, by run seed.
            space: numbers that were tried.
        """
        members, copies, before = [number], list[dict[str, Any]](), math.inf
        while own := [one for one in runs[members[0]].info.get("copies", ()) if one["generation"] < before]:
            copies.insert(0, own[-1])
            members.insert(0, own[-1]["from"])
            before = own[-1]["generation"]
        first, settings = runs[members[0]].config.algorithm, dict[str, str]()
        for one in space:
            settings[one.path] = str(_followed(first, one.path, copies))
        return cls(tuple(members), tuple(copy["env_steps"] for copy in copies), settings)

    def __str__(self) -> str:
        head, *rest = self.members
        return " ".join([str(head), *(f"→ {one} at {step:,}" for one, step in zip(rest, self.since, strict=True))])


def lineage_page(
    runs: Mapping[int, RunDirectory], last: Mapping[int, tuple[int, float]], space: Sequence[Dimension]
) -> str:
    """Who copied whom, in Markdown.

    Args:
        runs: of all members, by run seed.
        last: env steps and score of their last evaluations.
        space: numbers that were tried.
    """
    names = [one.path.removeprefix("algorithm.") for one in space]
    lines = ["# Lineage", "", "Members by their run seeds; → is a copy, at these env steps.", ""]
    lines += ["| member | last score | after env steps | where it comes from |", "|---|---|---|---|"]
    for number in sorted(runs, key=lambda one: -last[one][1] if one in last else math.inf):
        score = f"{readable(last[number][1])} | {last[number][0]:,}" if number in last else "failed | "
        lines.append(f"| {number} | {score} | {Ancestry.of(number, runs, space)} |")
    columns = ["env steps", "member", "score", "copied", "its score", *names]
    lines += ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    copies = [(one, number) for number, run in runs.items() for one in run.info.get("copies", ())]
    for one, number in sorted(copies, key=lambda pair: (pair[0]["env_steps"], pair[1])):
        numbers = " | ".join(f"{value:.4g}" for value in one["settings"].values())
        scored = f"{readable(one['score'])} | {one['from']} | {readable(one['from_score'])}"
        lines.append(f"| {one['env_steps']:,} | {number} | {scored} | {numbers} |")
    return "\n".join(lines) + "\n"


def _reschedule(algorithm: Any, config: Any) -> None:
    """Lets an algorithm follow the schedules of another configuration of its kind from now on; all else stays."""
    other = type(algorithm)(algorithm.policy.observation_spec, algorithm.policy.action_spec, config, RunSeeds(0))
    algorithm.config, algorithm._schedules, algorithm.targets.tau = config, other._schedules, other.targets.tau
    for name, optimizer in algorithm.model.optimizers.items():
        optimizer.schedule = other.model.optimizers[name].schedule
    if algorithm.policy.exploration is not None:
        algorithm.policy.exploration.schedule = other.policy.exploration.schedule
    algorithm.set_progress(algorithm.progress)
