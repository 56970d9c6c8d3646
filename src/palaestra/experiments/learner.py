"""`Learner`: what learns in a run. Which of three kinds it is decides all that differs between kinds of runs."""

import dataclasses
import functools
import importlib.util
import inspect
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from palaestra import distributed
from palaestra.algorithms import ALGORITHMS, Algorithm, GradientAlgorithm, objective_of
from palaestra.buffers import ReplayBuffer
from palaestra.core import POLICY, CheckpointError, ConfigError, MissingExtraError, PalaestraError, RunSeeds, SpecTree
from palaestra.core.importing import import_maker, parse_call
from palaestra.core.threads import faster_threads, num_cores
from palaestra.envs import EnvConfig, Environment, create_environment, probe_specs
from palaestra.experiments.config import ExperimentConfig, algorithm_class
from palaestra.experiments.data import mixed
from palaestra.experiments.records import Reporter
from palaestra.nn import NetworkConfig, compiler_missing, has_pictures
from palaestra.policies import Policy, PopulationPolicy, RandomPolicy, load_policy
from palaestra.rollout import Collector, Evaluation, OfflineData, evaluate, returns_of_variants
from palaestra.runtime import LocalRuntime, ProcessRuntime, RayRuntime, RestartPolicy, Runtime
from palaestra.training import Callback, DataCollector, PolicyManager, SimplePolicyManager, part_name

__all__ = ["Evaluate", "Learner", "PolicyLearner", "Scene", "evaluation_environment", "suitable_algorithms"]

_log = logging.getLogger(__name__)

Evaluate = Callable[..., Evaluation]
"""`(policies, *, episodes, seed, deterministic=True, time_limit_s=None)`; can be sent to another process."""


@dataclass(frozen=True)
class Collecting:
    """What a run collects with."""

    collector: DataCollector
    """Gives the trainer its data."""
    reporter: Reporter | None = None
    """Knows faults, and how exactly the run resumes; `None` where nothing is collected."""
    runtime: Runtime | None = None
    """Where workers live, who can also learn and evaluate."""
    views: tuple[Callback, ...] = ()
    """Add to rows of metrics how collecting does."""


class Scene(NamedTuple):
    """One picture of a policy that acts."""

    picture: np.ndarray | None
    """uint8 [H, W, 3]; `None` where a window shows it."""
    lines: list[str]
    """What to write on it."""
    returns: list[float]
    """Of the episodes that end with it."""
    fps: int = 30
    """How many of them the environment says to show in a second."""


class Learner(ABC):
    """What learns in a run: one policy, the policies of many agents, or a robot's tasks.

    It is made of a configuration alone; environments and networks are made when they are first asked for.

    Args:
        config: everything the run depends on.
    """

    has_window: ClassVar[bool] = False
    """Whether its environment can be watched in a window."""

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config

    # -- what learns

    @property
    @abstractmethod
    def algorithms(self) -> Mapping[str, Algorithm[Any]]:
        """What learns, by policy name."""

    @property
    def policies(self) -> dict[str, Policy]:
        """What acts, by name."""
        return {name: algorithm.policy for name, algorithm in self.algorithms.items()}

    @property
    def num_agents(self) -> dict[str, int]:
        """How many agents act by each policy."""
        return dict.fromkeys(self.algorithms, 1)

    @property
    def offline(self) -> bool:
        """Whether everything that learns does so from loaded data alone."""
        return all(algorithm.plan.data == "offline" for algorithm in self.algorithms.values())

    @cached_property
    def manager(self) -> PolicyManager:
        """What the trainer learns with in this process."""
        return SimplePolicyManager(self.algorithms)

    def manager_on(self, runtime: Runtime | None) -> PolicyManager:
        """What the trainer learns with: here, with gradients of workers, or on policy hosts.

        Args:
            runtime: where the run's workers live.
        """
        settings, algorithms = self.config.distributed, self.algorithms
        hosts, count, shards = settings.num_policy_hosts, settings.num_learners - 1, settings.gradient_shards
        if runtime is None or not (hosts or count or shards):
            return self.manager
        needs: Any = {"GPU": settings.num_gpus_per_learner}
        if count:  # hosts and replicas exchange gradients, so that they are placed together
            needs = runtime.placement_group([needs] * (hosts + count), name="learners", timeout_s=settings.timeout_s)
        shares: dict[str, Any] = {"num_shards": shards, "resources": needs, "timeout_s": settings.timeout_s}
        if settings.allocation is not None:
            shares["allocator"] = distributed.TrainerAllocator(
                settings.allocation, count, list(algorithms), agents=self.num_agents
            )
        workers = distributed.GradientWorkers(algorithms, runtime, count, **shares) if count or shards else None
        if hosts:
            where: dict[str, Any] = {"num_hosts": hosts, "resources": needs, "timeout_s": settings.timeout_s}
            return distributed.DistributedPolicyManager(algorithms, runtime, gradient_workers=workers, **where)
        return SimplePolicyManager(algorithms, gradient_workers=workers)

    def learn_at_once(self) -> None:
        """Leaves out the steps before learning starts; the rest of every plan is as it is."""
        for one in self.algorithms.values():
            if one.plan.data == "replay":
                one.plan = dataclasses.replace(one.plan, learning_starts=0)

    def num_threads(self, *, side_by_side: int = 1) -> int:
        """Threads of torch for a run of this learner.

        Args:
            side_by_side: runs that share the machine.
        """
        specs = [algorithm.policy.observation_spec for algorithm in self.algorithms.values()]
        return max(choose_threads(self.config, spec, side_by_side=side_by_side) for spec in specs)

    # -- what is refused before anything starts

    def require(self) -> None:
        """Refuses actors, gradient workers and policy hosts where they cannot be; nothing has been started then.

        Raises:
            ConfigError: the policies cannot learn where they are to, or as they are to.
        """
        settings, algorithms, name = self.config.distributed, self.algorithms, self.config.algorithm_name
        if self.config.run.eval_vectorization == "thread" and self.config.env.variants:
            raise ConfigError(
                f"run.eval_vectorization is 'thread', which steps one environment, and there are "
                f"{len(self.config.env.variants)} env.variants to evaluate; use 'process'"
            )
        if self.config.env.num_ready is not None and any(
            isinstance(algorithm.policy, PopulationPolicy) for algorithm in algorithms.values()
        ):
            raise ConfigError(
                f"{name} tries one perturbation in each environment, all together; leave out env.num_ready"
            )
        if settings.num_learners > 1 or settings.gradient_shards:
            distributed.require_gradients(algorithms)
        distributed.require_replay_shards(algorithms, settings, self.config.env.num_envs)
        self.config.asynchronous.require_policies(algorithms)
        if settings.num_policy_hosts > len(algorithms):
            raise ConfigError(
                f"distributed.num_policy_hosts is {settings.num_policy_hosts}, but the policies that learn are "
                f"{', '.join(algorithms)}: a host for each is the most that is of use; give {len(algorithms)} or less"
            )

    def refuse_hindsight(self, why: str) -> None:
        """Refuses hindsight, if the run asks for it.

        Args:
            why: it cannot be.

        Raises:
            ConfigError: the run asks for it.
        """
        if share := self.config.hindsight.share:
            raise ConfigError(f"hindsight.share is {share}, but {why}; leave hindsight out")

    # -- what it learns from

    @abstractmethod
    def load_data(self) -> dict[str, ReplayBuffer]:
        """The data that the configuration names, by policy, with actions as the policies sample them.

        Raises:
            ConfigError: an algorithm needs data or cannot use any, there is none where it should be, or it is of
                another environment.
            CheckpointError: it is damaged.
        """

    @abstractmethod
    def buffers(self, *, fragments: bool = False) -> dict[str, ReplayBuffer]:
        """Empty buffers as a run learns from, by policy.

        Args:
            fragments: whether they only hold what is on its way, see `buffer_for`.

        Raises:
            ConfigError: the data is not that of policies.
        """

    @abstractmethod
    def collecting(self, data: Mapping[str, ReplayBuffer]) -> AbstractContextManager[Collecting]:
        """What a run collects with: environments here, workers elsewhere, or loaded data; it ends with the context.

        Args:
            data: from `load_data`.

        Raises:
            ConfigError: the settings do not fit together.
        """

    # -- what it has learned

    @abstractmethod
    def evaluation(self) -> Evaluate:
        """Evaluates policies by name in new environments, whose seeds are never those of training."""

    def evaluate_chance(self, *, episodes: int, seed: int) -> Evaluation:
        """Evaluates random actions.

        Args:
            episodes: how many.
            seed: of the environments.
        """
        return evaluate_one(self.config, {}, episodes=episodes, seed=seed, deterministic=False)

    def kept_policies(self, path: Path) -> dict[str, Policy]:
        """The policies of the best evaluation, by name, and those that do not learn.

        Args:
            path: of the run.
        """
        names = self.algorithms
        return self.policies | {name: load_policy(path / "policy" / ("" if name == POLICY else name)) for name in names}

    def policies_of(self, state: Mapping[str, Any]) -> dict[str, Policy]:
        """The policies in a checkpoint, by name, and those that do not learn.

        Args:
            state: of the checkpoint.

        Raises:
            CheckpointError: one is missing.
        """
        parts = {name: part_name("algorithm", name) for name in self.algorithms}
        if missing := [name for name, part in parts.items() if part not in state]:
            raise CheckpointError(f"the checkpoint has no policy {', '.join(map(repr, missing))}")
        self.manager.load_state({name: state[part] for name, part in parts.items()})
        return self.policies

    @abstractmethod
    def play(self, policies: Mapping[str, Policy], *, episodes: int, seed: int, window: bool) -> Iterator[Scene]:
        """Lets policies act, a scene for every step.

        Args:
            policies: by name.
            episodes: how many.
            seed: of the environment.
            window: whether to show it in a window.
        """

    @abstractmethod
    def record(
        self, policies: Mapping[str, Policy], env: EnvConfig, directory: str | Path, *, steps: int, seed: int
    ) -> Any:
        """Lets policies act and saves what they do as a data set.

        Args:
            policies: by name.
            env: where.
            directory: must not exist yet.
            steps: env steps, at least.
            seed: of the environments and of the policies' choices.

        Returns:
            A `DataSummary`.
        """


class PolicyLearner(Learner):
    """Learns from what policies do: in environments here, in workers elsewhere, or in loaded data."""

    @abstractmethod
    def workers(self) -> Any:
        """What makes the part of each roll-out worker."""

    @abstractmethod
    def environments(self) -> Any:
        """The environments of a run that collects in this process."""

    @abstractmethod
    def collector(self, env: Any, data: Mapping[str, ReplayBuffer]) -> Any:
        """What collects in `environments`.

        Args:
            env: where.
            data: from `load_data`, to be mixed with what is collected.
        """

    @contextmanager
    def collecting(self, data: Mapping[str, ReplayBuffer]) -> Iterator[Collecting]:
        settings = self.config.distributed
        if settings.runtime is None and self.offline:
            yield Collecting(OfflineData(data))
            return
        if settings.runtime is None:
            with self.environments() as env:
                yield Collecting(self.collector(env, data), env)
            return
        if self.offline:
            raise ConfigError(f"{self.config.algorithm_name} collects nothing; leave out distributed.runtime")
        workers, buffers = self.workers(), self.buffers(fragments=settings.replay_shards is not None)
        with make_runtime(settings) as runtime:
            pace, number = self.config.asynchronous, self.config.env.num_envs
            manager = distributed.worker_streams(runtime, workers, self.algorithms, buffers, settings, pace, number)
            for name, loaded in data.items():
                manager.sources[name] = mixed(self.config, manager.buffers[name], loaded)
            yield Collecting(manager, manager, runtime, (distributed.WorkersView(manager),))


# -- what learners of several kinds are made with


def make_from_specs(config: ExperimentConfig) -> tuple[Any, tuple[SpecTree, SpecTree, Any]]:
    """The algorithm or robot of a configuration, on the specs of its environment, and these specs.

    Args:
        config: everything the run depends on.

    Raises:
        ConfigError: it does not fit the environment; the message names the algorithms that do.
    """
    require_parts(config)
    specs = observation_spec, action_spec, reward_spec = probe_specs(config.env)
    _require_same_specs(config, observation_spec, action_spec)
    seeds = RunSeeds(config.run.seed)
    made = made_of(config, config.algorithm_name, config.algorithm, (observation_spec, action_spec), seeds)
    if isinstance(made, Algorithm):
        made.require_reward(reward_spec)
    return made, specs


def made_of(
    config: ExperimentConfig,
    name: str,
    settings: Any,
    specs: tuple[SpecTree, SpecTree],
    seeds: RunSeeds,
    *,
    policy: str = "",
) -> Any:
    """An algorithm or robot, on the run's device.

    Args:
        config: of the run.
        name: of the algorithm.
        settings: of the algorithm.
        specs: of observations and actions.
        seeds: of the algorithm.
        policy: what to call the policy in messages, where there are several.

    Raises:
        ConfigError: it does not fit the specs; the message names the algorithms that do.
    """
    set_up_torch(config, specs[0])
    kind: Any = algorithm_class(name)
    try:
        made = kind(*specs, settings, seeds)
    except ConfigError as error:
        others = suitable_algorithms(*specs, team=getattr(kind, "team", False))
        hint = "" if name in others else f". Algorithms that fit: {', '.join(others) or 'none'}"
        raise ConfigError(f"{name} does not fit {policy or config.env.name}: {error}{hint}") from error
    made.to(config.run.device)
    for algorithm in [made] if isinstance(made, Algorithm) else made.algorithms.values():
        algorithm.set_precision(config.run.precision)
        compile_if_asked(config, algorithm)
    return made


def require_parts(config: ExperimentConfig) -> None:
    """Refuses tracking services that are not installed, callbacks that are none, and variants never seen.

    Args:
        config: names them.
    """
    for text in config.run.callbacks:
        _callback_maker(text)
    for name in (*config.run.loggers, *(["tensorboard"] if config.run.tensorboard else [])):
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(name, name, f"run.{'loggers=' if name in config.run.loggers else ''}{name}")
    _require_every_variant(config)


def make_callbacks(config: ExperimentConfig) -> list[Callback]:
    """The callbacks that a configuration names, made.

    Args:
        config: has their names.

    Raises:
        ConfigError: a name leads to no callback, or it does not take the arguments; or something else was made.
    """
    made = [_callback_maker(text)() for text in config.run.callbacks]
    for text, callback in zip(config.run.callbacks, made, strict=True):
        if not isinstance(callback, Callback):
            raise ConfigError(f"run.callbacks has {text!r}, which made {callback!r}; a training.Callback is needed")
    return made


def _callback_maker(text: str) -> Callable[[], Any]:
    name, kwargs = parse_call(text, "the callback", "my_package:MyCallback(goal=475)")
    maker = import_maker(name, "a callback", lambda kind: issubclass(kind, Callback))
    try:
        inspect.signature(maker).bind(**kwargs)
    except TypeError as error:
        needs = f"{name}{inspect.signature(maker)}"
        raise ConfigError(f"run.callbacks has {text!r}, which does not fit {needs}: {error}") from None
    return functools.partial(maker, **kwargs)


def _require_every_variant(config: ExperimentConfig) -> None:
    """Refuses runs in which a variant of the environment would never be trained or evaluated."""
    count = len(config.env.variants)
    for name, given in (("env.num_envs", config.env.num_envs), ("trainer.eval_episodes", config.trainer.eval_episodes)):
        if 0 < given < count:
            raise ConfigError(f"{name} is {given}, and env.variants has {count} entries; give at least one for each")


def _require_same_specs(config: ExperimentConfig, observation_spec: SpecTree, action_spec: SpecTree) -> None:
    """Refuses what is for training alone where a policy could not be evaluated without it."""
    if not (config.env.train_wrappers or config.env.train_kwargs):
        return
    observed, acted, _ = probe_specs(config.env.for_evaluation(1))
    for what, training, evaluation in (("observations", observation_spec, observed), ("actions", action_spec, acted)):
        if training != evaluation:
            raise ConfigError(
                f"env.train_wrappers or env.train_kwargs change the {what} from {evaluation} to {training}, and the "
                "policy is evaluated without them; put what does that into env.wrappers or env.kwargs"
            )


def set_up_torch(config: ExperimentConfig, observation_spec: SpecTree) -> None:
    """Chooses threads and kernels.

    Args:
        config: of the run.
        observation_spec: of its environment.
    """
    torch.set_num_threads(choose_threads(config, observation_spec))
    _log.info("torch uses %d thread(s)", torch.get_num_threads())
    if config.run.deterministic:  # slower kernels, equal results on equal GPUs; on a CPU they are equal anyway
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if config.run.deterministic != torch.are_deterministic_algorithms_enabled():  # to say it takes a second
        torch.use_deterministic_algorithms(config.run.deterministic)


def choose_threads(config: ExperimentConfig, observation_spec: SpecTree, *, side_by_side: int = 1) -> int:
    """Threads of torch: as asked for; else all where there are pictures, and what is faster where there are none.

    Args:
        config: of the run.
        observation_spec: of its environment; pictures need large networks.
        side_by_side: runs that share the machine.
    """
    network, most = getattr(config.algorithm, "network", None), max(1, num_cores() // side_by_side)
    if config.run.num_threads or has_pictures(observation_spec):
        return config.run.num_threads or most
    if not issubclass(algorithm_class(config.algorithm_name), Algorithm):  # a robot's threads wait for torch's
        return 1
    whole = int(getattr(config.algorithm, "unroll_length", 0)) * config.env.num_envs
    rows = getattr(config.algorithm, "mini_batch_size", None) or whole
    return faster_threads(rows, network.hidden_sizes, most) if isinstance(network, NetworkConfig) else most


def compile_if_asked(config: ExperimentConfig, part: Algorithm[Any] | Collector) -> None:
    """Compiles gradient steps, or acting and stepping, where the run asks for it and this machine can.

    Args:
        config: of the run.
        part: that learns, or collects.
    """
    if config.run.compile is True and isinstance(part, GradientAlgorithm | Collector):
        if missing := config.distributed.compile_needs or compiler_missing(config.run.device):
            _log.warning("--compile needs %s; training runs without", missing)
        else:
            part.compile()


def evaluation_environment(config: ExperimentConfig, seed: int, num_envs: int) -> tuple[Environment, list[int]]:
    """Environments for evaluation; their seeds are never those of training.

    Args:
        config: of the run.
        seed: of the evaluation.
        num_envs: how many.

    Returns:
        The environments and their lane seeds.
    """
    kind, env = config.run.eval_vectorization, config.env
    if kind == "thread":
        num_envs = 1
    lanes = [RunSeeds(seed).integer("evaluation", lane) for lane in range(num_envs)]
    env = env.for_evaluation(num_envs)
    env = env if kind == "auto" else dataclasses.replace(env, vectorization=kind)
    return create_environment(env, lane_seeds=lanes), lanes


def refuse_eval_vectorization(config: ExperimentConfig, what: str) -> None:
    """Refuses to evaluate elsewhere than in this process.

    Args:
        config: of the run.
        what: it is that cannot be evaluated elsewhere.

    Raises:
        ConfigError: the run asks for it.
    """
    if config.run.eval_vectorization not in ("auto", "serial"):
        raise ConfigError(
            f"run.eval_vectorization is {config.run.eval_vectorization!r}, but {what} evaluated in this process; "
            "leave it out"
        )


def evaluate_one(
    config: ExperimentConfig, policies: Mapping[str, Policy], *, episodes: int, seed: int, **options: Any
) -> Evaluation:
    """Evaluates one policy, or actions at random where there is none.

    Args:
        config: of the run.
        policies: by name.
        episodes: how many.
        seed: of the evaluation.
        options: of `evaluate`.
    """
    env, lanes = evaluation_environment(config, seed, evaluation_count(config, episodes))
    with env:
        policy = policies.get(POLICY) or RandomPolicy(env.observation_spec, env.action_spec)
        sums = evaluate(policy, env, episodes=episodes, seeds=lanes, **options)
    evaluation = sums.weighted(objective_of(config.algorithm))
    evaluation.parts.update(returns_of_variants(evaluation, len(config.env.variants)))
    return evaluation


def evaluation_count(config: ExperimentConfig, episodes: int) -> int:
    """How many environments an evaluation steps: as many of each variant, if there are episodes for each.

    Args:
        config: has the number of environments, and the variants.
        episodes: that are played.
    """
    each = max(1, len(config.env.variants))
    return min(each * -(-config.run.eval_num_envs // each), each * max(1, episodes // each), episodes)


def make_runtime(config: distributed.DistributedConfig) -> Runtime:
    """Where the workers of a run live.

    Args:
        config: with a runtime.

    Raises:
        MissingExtraError: ray is needed and not installed.
        ConfigError: the cluster cannot be joined.
    """
    restarts = RestartPolicy(
        max_restarts=config.max_restarts, backoff_s=config.backoff_s, max_backoff_s=max(30.0, config.backoff_s)
    )
    if config.runtime == "ray":
        return RayRuntime(restarts, address=config.address)
    return ProcessRuntime(restarts) if config.runtime == "process" else LocalRuntime(restarts)


def suitable_algorithms(observation_spec: SpecTree, action_spec: SpecTree, *, team: bool = False) -> list[str]:
    """The algorithms that can be made for these spaces: each is asked with its default settings.

    Args:
        observation_spec: of an environment.
        action_spec: of an environment.
        team: whether for a team of agents.
    """
    with torch.device("meta"):  # the weights are not used, and those for large pictures take seconds to initialise
        return [
            name
            for name, kind in sorted(ALGORITHMS.items())
            if kind.team == team and attempt(kind, observation_spec, action_spec)
        ]


def attempt(kind: Any, observation_spec: SpecTree, action_spec: SpecTree, config: Any = None) -> Algorithm[Any] | None:
    """An algorithm for these spaces; `None` if it refuses them.

    Args:
        kind: the algorithm's class.
        observation_spec: of an environment.
        action_spec: of an environment.
        config: its settings; the defaults if left out.
    """
    try:
        return kind(observation_spec, action_spec, config or kind.config_class(), RunSeeds(0))
    except PalaestraError:
        return None
