"""Populations: what a run must be to train beside others in one graph, and what makes them do so."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from palaestra.algorithms import GradientAlgorithm, Together
from palaestra.config.config import ExperimentConfig, algorithm_class
from palaestra.core import ConfigError, refuses
from palaestra.envs import TensorEnvironment, create_environment
from palaestra.multiagent import is_multi_agent
from palaestra.nn import compiler_missing
from palaestra.rollout import Collector, UnrollTogether
from palaestra.runs.learner import Learner
from palaestra.runs.single import SingleLearner
from palaestra.training import LEAST_COMPILED, Member, Trainer, planned_gradient_steps

__all__: list[str] = []

_ONE_GRAPH = "a population in one graph (run.together, train_together, tune --pbt-every)"


@refuses(ConfigError)
def require_together(configs: Sequence[ExperimentConfig]) -> Iterator[str]:
    """Refuses runs that cannot train as one population.

    Args:
        configs: of runs that differ in their seeds besides.

    Raises:
        ConfigError: names the setting, and says what to do.
    """
    first = configs[0]
    if is_multi_agent(first.env.name) or not issubclass(algorithm_class(first.algorithm_name), GradientAlgorithm):
        yield (
            f"{_ONE_GRAPH} is for one agent that learns by a loss; {first.algorithm_name} on {first.env.name} is not"
        )
    for config in configs:
        _require_settings(config)
    for config in configs[1:]:
        same = dataclasses.replace(config, algorithm=first.algorithm)
        if type(config.algorithm) is not type(first.algorithm) or same != first:
            yield (
                "configurations of one population differ in numbers of the algorithm only, such as its learning rate; "
                "train others as runs of their own"
            )
    learners = [SingleLearner(config) for config in configs]
    with create_environment(dataclasses.replace(first.env, num_envs=1)) as env:
        if not isinstance(env, TensorEnvironment):
            yield (
                f"{_ONE_GRAPH} is for environments that are tensors, and {first.env.name} is a {type(env).__name__}"
                "; leave that out, or take such as palaestra.envs.tiny:TensorCartPole"
            )
    algorithms: Any = [learner.algorithm for learner in learners]
    together = Together(algorithms)
    with create_environment(first.env, seed=first.run.seed) as env:
        UnrollTogether.require(Collector.of(env, together.members[0]))


def _require_settings(config: ExperimentConfig) -> None:
    """Refuses what would be another way to collect or to learn."""
    refused = {
        "distributed.runtime": config.distributed.runtime,
        "offline.data": config.offline.data,
        "hindsight.share": config.hindsight.share,
        "buffer.compression": config.buffer.compression if config.buffer.compression != "none" else None,
        "run.device": config.run.device if config.run.device != "cpu" else None,
        "run.precision": config.run.precision if config.run.precision != "float32" else None,
        "trainer.episodes_per_iteration": config.trainer.episodes_per_iteration,
    }
    if found := [(name, given) for name, given in refused.items() if given]:
        name, given = found[0]
        raise ConfigError(
            f"{name} is {given!r}, which a population in one graph cannot have; leave it out, or train each by itself"
        )


def member_configs(
    configs: Sequence[ExperimentConfig], count: int, names: Sequence[str] | None = None
) -> list[ExperimentConfig]:
    """Those of the members' own runs, which can go on alone: with names of their own, and compiled if it pays for all.

    Args:
        configs: of runs that differ in their seeds besides.
        count: members in all.
        names: of the group directory of each; by default numbered.

    Raises:
        ConfigError: they cannot train as one population.
    """
    require_together(configs)
    first, compiles = configs[0], configs[0].run.compile
    if compiles == "auto":
        plan = SingleLearner(first).algorithm.plan
        steps = count * planned_gradient_steps(plan, first.trainer.total_env_steps, first.env.num_envs)
        compiles = steps >= LEAST_COMPILED
    compiles, made = compiles and not compiler_missing(), list[ExperimentConfig]()
    for number, config in enumerate(configs, start=1):
        name = config.run.name if config.run.name is None or len(configs) == 1 else f"{config.run.name}_{number}"
        name = name if names is None else names[number - 1]
        run = dataclasses.replace(config.run, name=name, compile=compiles, together=False)
        made.append(dataclasses.replace(config, run=run))
    return made


def as_member(learner: Learner, population: int) -> None:
    """Lets a run learn beside others: its updates are asked for when they are made.

    Args:
        learner: of the run, before its trainer is made.
        population: how many runs they are.
    """
    learner.manager = member = Member(learner.algorithms)
    member.population = population


def population(learners: Sequence[Learner], trainers: Sequence[Trainer]) -> tuple[Together, UnrollTogether]:
    """What makes the updates and unrolls of runs.

    Args:
        learners: of each, with `as_member`.
        trainers: of each.

    Raises:
        ConfigError: a callback asks for env steps, which are those of all runs.
    """
    if any(callback.stepped for trainer in trainers for callback in trainer.callbacks):
        raise ConfigError("a callback has a hook stepped, but a population steps in one graph; train runs of their own")
    algorithms: Any = [trainer.algorithm for trainer in trainers]
    collectors: Any = [trainer.collector for trainer in trainers]
    config, compiles = learners[0].config, learners[0].config.run.compile is True
    together = Together(algorithms)
    if compiles:
        together.compile()
    count = sum(one.num_lanes for one in collectors)
    env: Any = create_environment(dataclasses.replace(config.env, num_envs=count))
    return together, UnrollTogether(together, collectors, env, compiles=compiles)
