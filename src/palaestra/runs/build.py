"""What is made by name: what learns in a run, and the list of what algorithms there are and can do."""

import dataclasses
import functools
import importlib.util
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra import training
from palaestra.algorithms import ALGORITHMS, Algorithm, GradientAlgorithm, Together
from palaestra.config.config import ExperimentConfig, algorithm_class, flat_settings, on_cpu
from palaestra.config.presets import preset_line, tuned
from palaestra.core import POLICY, CheckpointError, ConfigError, Replay, refuses, require_device
from palaestra.core.computing import num_cores
from palaestra.core.spec import BoundedSpec, DiscreteSpec, MultiBinarySpec, MultiDiscreteSpec, SpecTree, TensorSpec
from palaestra.distributed import EvaluationWorker, Measured, WorkersView
from palaestra.envs import TicTacToe
from palaestra.multiagent import AgentSpec, is_multi_agent, team_specs
from palaestra.nn import NetworkConfig, compiler_missing
from palaestra.policies import Policy, RandomPolicy, save_policies
from palaestra.rollout import Evaluation
from palaestra.runs.learner import Collecting, Evaluate, Learner, close_kept_environments
from palaestra.runs.lineage import require_effect
from palaestra.runs.making import attempt, choose_products, make_callbacks, not_advised
from palaestra.runs.matches import KeptPolicies, Opponents, RunningPool
from palaestra.runs.records import network_lines, require_own, write_evaluation
from palaestra.runs.robot import RobotLearner
from palaestra.runs.run_directory import RunDirectory
from palaestra.runs.single import SingleLearner
from palaestra.runs.team import TeamLearner

__all__ = ["AlgorithmEntry", "algorithm_catalogue", "algorithm_source", "learner_of", "make_algorithm", "make_learner"]

_log = logging.getLogger(__name__)
_SERVICES = {"wandb": training.WandbLogger, "mlflow": training.MLflowLogger, "trackio": training.TrackioLogger}


def learner_of(config: ExperimentConfig) -> Learner:
    """What learns in a run, by the kind that its environment and algorithm make it; nothing is made yet."""
    if is_multi_agent(config.env.name):
        return TeamLearner(config)
    single = issubclass(algorithm_class(config.algorithm_name), Algorithm)
    return SingleLearner(config) if single else RobotLearner(config)


def make_learner(config: ExperimentConfig, population: int = 1) -> Learner:
    """What learns in a run, made and checked.

    Args:
        config: of the run.
        population: runs that learn in one graph, whose products of matrices are one call.

    Raises:
        ConfigError: the device is not there, an algorithm does not fit the environment, the agents' mapping does not
            fit the agents, or the policies cannot learn where they are to, or as they are to; or a setting would do
            nothing.
    """
    require_device(config.run.device, "run.device")
    require_effect(config)
    learner = learner_of(config)
    learner.require()
    lanes = {name: config.env.num_envs * number for name, number in learner.num_agents.items()}
    choose_products(learner.algorithms, lanes, min(population, Together.at_once))
    starts = [one.plan.learning_starts for one in learner.algorithms.values() if isinstance(one.plan, Replay)]
    budget = config.trainer.total_env_steps
    if starts and min(starts) >= budget and not config.offline.updates:
        _log.warning(
            "nothing will be learned: learning begins after %s env steps (algorithm.learning_starts), and the budget "
            "is %s (trainer.total_env_steps)", f"{min(starts):,}", f"{budget:,}",
        )  # fmt: skip
    return learner


def require_fit(config: ExperimentConfig) -> Learner:
    """Refuses what `make_learner` refuses, but computes nowhere else than on the CPU, and chooses no products.

    Args:
        config: of runs that are to come.

    Returns:
        What would learn.

    Raises:
        ConfigError: see `make_learner`.
    """
    require_device(config.run.device, "run.device")
    require_effect(config)
    learner = learner_of(on_cpu(config))
    learner.require()
    learner.require_new()
    return learner


def make_algorithm(config: ExperimentConfig) -> Algorithm[Any, Any]:
    """The algorithm of a configuration with one policy, on the specs of its environment.

    Raises:
        ConfigError: the algorithm does not fit the environment; the message names those that do.
    """
    algorithm = SingleLearner(config).algorithm
    choose_products({POLICY: algorithm}, {POLICY: config.env.num_envs})
    return algorithm


@dataclass(frozen=True)
class TrainingEvaluation:
    """Evaluates as the trainer does: in environments that are kept until `close`."""

    evaluation: Evaluate
    """Of the learner."""
    config: ExperimentConfig
    """Of the run."""

    def __call__(self, acting: Policy | torch.nn.ModuleDict) -> Evaluation:
        """Evaluates the policy, or all of them by name where there are several."""
        trainer, seed, policies = self.config.trainer, self.config.run.seed, training.named_policies(acting)
        limit_s = trainer.eval_time_limit_s
        return self.evaluation(policies, episodes=trainer.eval_episodes, seed=seed, time_limit_s=limit_s, keep=True)

    @property
    def timeout_s(self) -> float:
        """How long another process may take for one: for ever where several are made, or none has a limit."""
        alone = not (is_multi_agent(self.config.env.name) or self.config.agents.self_play.pool_size)
        limited = alone and issubclass(algorithm_class(self.config.algorithm_name), Algorithm)  # no robot
        limit_s = self.config.trainer.eval_time_limit_s if limited else None
        return math.inf if limit_s is None else limit_s + self.config.distributed.timeout_s

    def close(self) -> None:
        """Closes the environments of this process; those of another end with it."""
        close_kept_environments()


class KeepEvaluations(training.Callback):
    """Writes every evaluation, and the policy of the best one, into a run directory.

    Args:
        path: of the run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def evaluated(self, trainer: training.TrainingRun, result: training.Evaluated) -> None:
        """See `Callback.evaluated`.

        Raises:
            CheckpointError: the disk is full, say; the trainer counts it as a failed save.
            RunLostError: the directory is another run's by now.
        """
        try:
            self._write(result)
        except OSError as error:
            raise CheckpointError(f"the evaluation in {self._path} cannot be written: {error}") from error

    def _write(self, result: training.Evaluated) -> None:
        require_own(self._path)
        kept = training.named_policies(result.policy) if result.best else {}
        folders = {training.policy_folder(self._path / "policy", name): policy for name, policy in kept.items()}
        save_policies({path: policy for path, policy in folders.items() if not isinstance(policy, RandomPolicy)})
        record = {**result.evaluation.to_json(), "best": result.best}
        write_evaluation(self._path, result.env_steps, record)  # last: it says that these are kept


def make_console(learner: Learner, networks: Mapping[str, str]) -> training.ConsoleLogger:
    """What shows how a run goes.

    Args:
        learner: of the run.
        networks: what its networks look like, by policy.
    """
    config = learner.config
    title = f"{config.algorithm_name} on {config.env.name}"
    threads = f"threads     {torch.get_num_threads()} of {num_cores()} cores"
    batch = ["environments are stepped as one by MuJoCo's batch"] if config.env.vectorization == "batch" else []
    head = [preset_line(config), *network_lines(networks), threads, *batch]
    offline = config.unit == "updates"
    without = not_advised(config, learner.algorithms.values())
    return training.ConsoleLogger(title, config.trainer.total_env_steps, head=head, offline=offline, without=without)


def make_compiled_later(learner: Learner, tell: Callable[[dict[str, Any]], None]) -> training.CompiledLater:
    """What lets a run begin eagerly and go on compiled, where `run.compile` is auto; decided by its settings alone.

    Args:
        learner: of the run.
        tell: as `CompiledLater` takes it.
    """
    config, settings = learner.config, learner.config.distributed
    if config.run.compile != "auto":
        return training.CompiledLater({})
    on_data, lanes = config.offline.updates or 0, config.env.num_envs
    budget = config.trainer.total_env_steps - on_data
    planned = {
        name: training.planned_gradient_steps(algorithm.plan, budget, lanes * learner.num_agents[name])
        + on_data * getattr(algorithm.plan, "gradient_steps", 0)
        for name, algorithm in learner.algorithms.items()
        if isinstance(algorithm, GradientAlgorithm)
    }
    why, here = f"it lacks {missing}" if (missing := compiler_missing()) else "", config.run.device == "cpu"
    if isinstance(learner.manager, training.SelfPaced):
        why = "a robot's tasks learn at their own pace"
    elif settings.num_policy_hosts or settings.compile_needs:
        why, here = "policy hosts and gradient workers compute eagerly", False
    elif not here:
        why = f"on {config.run.device} it is asked for with --compile"
    stays = {name: "it makes no gradient steps" for name in learner.algorithms if name not in planned}
    for name, number in planned.items():
        plan: Any = learner.algorithms[name].plan
        if config.trainer.episodes_per_iteration is not None and plan.mini_batch_size is None:
            stays[name] = "every update has the length of its longest episode, and each would be compiled by itself"
        elif number < training.LEAST_COMPILED:
            stays[name] = f"about {number:,} gradient steps, and compiling pays from {training.LEAST_COMPILED:,} on"
        elif why:
            stays[name] = why
            _log.warning("policy %r learns eagerly, without --compile auto: %s", name, why)
    after = {name: training.COMPILED_AFTER for name in planned if name not in stays}
    return training.CompiledLater(after, stays, planned if here else {}, tell=tell)


def make_trainer(
    learner: Learner,
    collecting: Collecting,
    path: Path,
    loggers: Sequence[training.Logger] = (),
    callbacks: Sequence[training.Callback] = (),
) -> training.Trainer:
    """The trainer of a run, with everything that it writes into the run directory.

    Args:
        learner: from `make_learner`.
        collecting: of the learner.
        loggers: besides the run's own.
        callbacks: besides the run's own and those of the configuration.
    """
    config, path = learner.config, path.absolute()
    for policy in learner.policies.values():
        policy.wrappers = config.env.policy_wrappers(policy.reads_reward)
    own: list[training.Logger] = [training.FileLogger(path)]
    if config.run.tensorboard or (config.run.tensorboard is None and importlib.util.find_spec("tensorboard")):
        own.append(training.TensorBoardLogger(path / "tensorboard"))
    own += [_SERVICES[name](config.run.project, path, config=flat_settings(config)) for name in config.run.loggers]
    evaluate: Any = None
    if config.trainer.eval_episodes:
        evaluation = learner.evaluation()
        if isinstance(learner, TeamLearner):
            pool = RunningPool(collecting.collector) if config.agents.self_play.pool_size else dict
            opponents = Opponents(pool, KeptPolicies(path, tuple(learner.algorithms)))
            evaluation = functools.partial(evaluation, opponents=opponents)
        evaluate = TrainingEvaluation(evaluation, config)
    if evaluate is not None and collecting.runtime is not None:
        evaluate = EvaluationWorker(collecting.runtime, evaluate, timeout_s=evaluate.timeout_s)
    faults = None if collecting.reporter is None else collecting.reporter.faults
    manager = learner.manager_on(collecting.runtime, faults)
    views = [*collecting.views, *([WorkersView(manager)] if isinstance(manager, Measured) else [])]
    kept = {"keep": config.trainer.keep_checkpoints, "copies": config.trainer.copied_segments}
    health = training.Health(unit=config.unit)
    return training.Trainer(
        collecting.collector,
        manager,
        config.trainer,
        evaluate=evaluate,
        checkpoints=RunDirectory(path).checkpoints(**kept),
        loggers=[*own, *loggers],
        callbacks=[health, training.NoteOpposed(), KeepEvaluations(path), *views, *make_callbacks(config), *callbacks],
    )


@refuses(ConfigError)
def require_hooks(loggers: Any, callbacks: Any) -> Iterator[str]:
    """Refuses what a run could not call.

    Args:
        loggers: should be a sequence.
        callbacks: should be a sequence of `Callback`.

    Raises:
        ConfigError: they are not.
    """
    methods = ("start", "metrics", "episodes", "close")
    if not isinstance(loggers, Sequence) or any(not hasattr(one, name) for one in loggers for name in methods):
        yield f"loggers is {loggers!r}; give a list of objects with the methods {', '.join(methods)}"
    if not isinstance(callbacks, Sequence) or not all(isinstance(one, training.Callback) for one in callbacks):
        yield f"callbacks is {callbacks!r}; give a list of objects of subclasses of Callback"


_BOX = BoundedSpec((2,), minimum=np.full(2, -1.0), maximum=np.full(2, 1.0))
_ACTIONS: dict[str, SpecTree] = {
    "discrete": DiscreteSpec(num=3),
    "box": _BOX,
    "multi-discrete": MultiDiscreteSpec(nvec=(2, 3)),
    "multi-binary": MultiBinarySpec((2,)),
    "nested": {"move": _BOX, "choice": DiscreteSpec(num=2)},
}
_IMAGE = BoundedSpec((36, 36, 3), torch.uint8, minimum=np.array(0), maximum=np.array(255))
_OBSERVATIONS: dict[str, SpecTree] = {
    "vector": TensorSpec((4,)),
    "image": _IMAGE,
    "nested": {"image": _IMAGE, "vector": TensorSpec((4,))},
}


@dataclass(frozen=True)
class AlgorithmEntry:
    """One algorithm and what it can do."""

    name: str
    """On the command line."""
    summary: str
    """What it does, in a sentence."""
    data: str
    """What it learns from: `on-policy`, `replay` or `offline`."""
    actions: tuple[str, ...]
    """Action spaces: `discrete`, `box`, `multi-discrete`, `multi-binary`, `nested`."""
    observations: tuple[str, ...]
    """Observation spaces: `vector`, `image`, `nested`."""
    features: tuple[str, ...]
    """What it can do besides: `memory`, its network can have one; `n-step`, it can sum rewards before bootstrapping;
    `priorities`, it can replay rows by their error; `bonus`, it takes an exploration bonus; `gradient workers`, these
    can share a minibatch; `team`, it learns for a team of agents, and the spaces are those of a member."""
    tuned_for: tuple[str, ...]
    """Environments with settings of their own."""


def algorithm_catalogue(*, observations: bool = True) -> list[AlgorithmEntry]:
    """Every algorithm, made with small networks for one space of each kind: what can be made is supported.

    Args:
        observations: whether those are tried, too, which takes most of the time.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for hundreds of small networks; beside a run several threads took six times as long
    try:
        return [_entry(name, observations) for name in sorted(ALGORITHMS)]
    finally:
        torch.set_num_threads(threads)


@functools.cache
def _entry(name: str, observations: bool) -> AlgorithmEntry:
    kind: Any = ALGORITHMS[name]
    seen = _OBSERVATIONS["nested" if _has_simulator(kind) else "vector"]
    made = {action: _attempt(kind, seen, spec) for action, spec in _ACTIONS.items()}
    actions = tuple(action for action, algorithm in made.items() if algorithm is not None)
    plan = next((algorithm.plan for algorithm in made.values() if algorithm is not None), None)
    spec = _ACTIONS[actions[0]] if actions else _ACTIONS["discrete"]
    known = {} if _has_simulator(kind) else {"vector": bool(actions)}  # tried above
    shapes = _OBSERVATIONS if observations else {}
    seen_too = [key for key, shape in shapes.items() if known.get(key) or _attempt(kind, shape, spec)]
    return AlgorithmEntry(
        name=name,
        summary=(inspect.getdoc(kind) or "").splitlines()[0],
        data="replay" if plan is None else plan.data,
        actions=actions,
        observations=tuple(seen_too),
        features=_features(kind),
        tuned_for=tuple(env for algorithm, env in tuned() if algorithm == name),
    )


def _attempt(kind: Any, observation_spec: SpecTree, action_spec: SpecTree) -> Any:
    """An algorithm for these spaces, or for a team of two with them; `None` if it refuses."""
    if _has_simulator(kind):  # takes the spaces of its simulator alone: a game stands for all of these kinds
        game = TicTacToe(1)
        if (type(observation_spec), type(action_spec)) != (type(game.observation_spec), type(game.action_spec)):
            return None
        config = kind.config_class(simulator="palaestra.envs:TicTacToe")
        return attempt(kind, game.observation_spec, game.action_spec, config)
    config = kind.config_class()
    for name, net in vars(config).items():
        if isinstance(net, NetworkConfig):  # of which all that matters is whether it can be made
            small: Any = {name: dataclasses.replace(net, hidden_sizes=(4,) * len(net.hidden_sizes), image_size=4)}
            config = dataclasses.replace(config, **small)
    if not kind.team:
        return attempt(kind, observation_spec, action_spec, config)
    try:
        team = team_specs(AgentSpec(observation_spec, action_spec), 2)
    except ConfigError:
        return None
    return attempt(kind, *team, config)


def _has_simulator(kind: Any) -> bool:
    return "simulator" in {field.name for field in dataclasses.fields(kind.config_class)}


def _features(kind: Any) -> tuple[str, ...]:
    settings = {field.name for field in dataclasses.fields(kind.config_class)}
    has = {
        "memory": kind.recurrent,
        "n-step": "n_step" in settings,
        "priorities": "prioritized" in settings,
        "bonus": "bonus" in settings,
        "gradient workers": issubclass(kind, GradientAlgorithm),
        "team": kind.team,
    }
    return tuple(feature for feature, there in has.items() if there)


def algorithm_source(name: str) -> Path:
    """The file that is an algorithm.

    Args:
        name: of the library, or `my_package:MyAlgorithm`.

    Raises:
        ConfigError: there is none of this name, or it was not written in a file.
    """
    try:
        return Path(inspect.getsourcefile(algorithm_class(name)) or "")
    except TypeError as error:
        raise ConfigError(f"the algorithm {name!r} has no source file: {error}") from error
