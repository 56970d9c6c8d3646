"""`Learner`: what learns in a run. Which of three kinds it is decides all that differs between kinds of runs.

The trainer knows none of the three.
"""

import atexit
import contextlib
import dataclasses
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from palaestra import distributed
from palaestra.algorithms import Algorithm, objective_of
from palaestra.buffers import ReplayBuffer
from palaestra.config.config import ExperimentConfig
from palaestra.core import POLICY, CheckpointError, ConfigError, EnvError, RunSeeds, refuses
from palaestra.envs import EnvConfig, Environment, EventLog, create_environment
from palaestra.policies import HeldNoise, Policy, PopulationPolicy, RandomPolicy, load_policy
from palaestra.rollout import Evaluation, OfflineData, evaluate, require_compression, returns_of_variants
from palaestra.runs import making
from palaestra.runs.data import mixed
from palaestra.runs.records import Reporter
from palaestra.runtime import LocalRuntime, ProcessRuntime, RayRuntime, RestartPolicy, Runtime
from palaestra.training import Callback, DataCollector, PolicyManager, SimplePolicyManager, part_name, policy_folder

__all__ = ["FRESH_SEED", "Evaluate", "Learner", "PolicyLearner", "Scene", "evaluation_environment"]

FRESH_SEED = 1_000_000
"""Added to a run's seed by evaluations after its end: none of their episodes has chosen the best policy."""

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
    """

    has_window: ClassVar[bool] = False
    """Whether its environment can be watched in a window."""

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config

    # -- what learns

    @property
    @abstractmethod
    def algorithms(self) -> Mapping[str, Algorithm[Any, Any]]:
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

    def manager_on(self, runtime: Runtime | None, faults: EventLog | None = None) -> PolicyManager:
        """What the trainer learns with: here, with gradients of workers, or on policy hosts.

        Args:
            runtime: where the run's workers live.
            faults: of the run, which ends of learners and hosts are added to.
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
        if workers is not None and faults is not None:
            workers.faults = faults
        if not hosts:
            return SimplePolicyManager(algorithms, gradient_workers=workers)
        where: dict[str, Any] = {"num_hosts": hosts, "resources": needs, "timeout_s": settings.timeout_s}
        manager = distributed.DistributedPolicyManager(algorithms, runtime, gradient_workers=workers, **where)
        manager.faults = manager.faults if faults is None else faults
        return manager

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
        specs = [algorithm.policy.whole_spec for algorithm in self.algorithms.values()]
        return max(making.choose_threads(self.config, spec, side_by_side=side_by_side) for spec in specs)

    # -- what is refused before anything starts

    @refuses(ConfigError)
    def require(self) -> Iterator[str]:
        """Refuses actors, gradient workers and policy hosts where they cannot be; nothing has been started then.

        Raises:
            ConfigError: the policies cannot learn where they are to, or as they are to.
        """
        settings, algorithms, name = self.config.distributed, self.algorithms, self.config.algorithm_name
        if self.config.run.eval_vectorization == "thread" and self.config.env.variants:
            yield (
                f"run.eval_vectorization is 'thread', which steps one environment, and there are "
                f"{len(self.config.env.variants)} env.variants to evaluate; use 'process'"
            )
        if self.config.env.num_ready is not None and any(
            isinstance(algorithm.policy, PopulationPolicy) for algorithm in algorithms.values()
        ):
            yield f"{name} tries one perturbation in each environment, all together; leave out env.num_ready"
        if settings.num_learners > 1 or settings.gradient_shards:
            distributed.require_gradients(algorithms)
        distributed.require_replay_shards(algorithms, settings, self.config.env.num_envs)
        self.config.asynchronous.require_policies(algorithms)
        for algorithm in algorithms.values():
            require_compression(algorithm, self.config.buffer.compression)
        if settings.num_policy_hosts > len(algorithms):
            yield (
                f"distributed.num_policy_hosts is {settings.num_policy_hosts}, but the policies that learn are "
                f"{', '.join(algorithms)}: a host for each is the most that is of use; give {len(algorithms)} or less"
            )

    @refuses(ConfigError)
    def require_new(self) -> Iterator[str]:
        """Refuses what a new run cannot have, and runs of earlier versions may have.

        Raises:
            ConfigError: says what.
        """
        workers = self.config.distributed.num_workers if self.config.distributed.runtime else 1
        share = self.config.env.num_envs // workers
        name, env, share_of_goals = self.config.algorithm_name, self.config.env, self.config.hindsight.share
        for algorithm in self.algorithms.values():
            if isinstance(algorithm.policy, PopulationPolicy) and workers > 1 and share % 2:
                yield (
                    f"env.num_envs gives each of {workers} workers {share}, and parameters are disturbed in pairs of "
                    f"opposite signs, each pair in one worker; give each an even number: {(share + 1) * workers} in all"
                )
            most = getattr(algorithm.policy, "most_entropy", np.inf)
            adapts = getattr(algorithm.config, "temperature_learning_rate", 0)
            if adapts and (wanted := getattr(algorithm, "target_entropy", -np.inf)) >= most:
                yield (
                    f"the target of the entropy is {wanted:.3g} nats, and actions between two bounds have less than "
                    f"{most:.3g} whatever is learned, so the temperature would rise for ever; give a smaller "
                    "algorithm.target_entropy (or algorithm.target_std)"
                )
            constrained = algorithm.rewards is not None and algorithm.rewards.learns
            replaces = getattr(getattr(algorithm, "bonus", None), "replaces", False)
            of_data = self.config.unit == "updates" or (self.config.offline.data is not None and not replaces)
            if constrained and (share_of_goals or of_data):
                yield (
                    f"algorithm.rewards.thresholds are met by what the policy earns, and {name} would learn their "
                    f"weights from rewards of {'the goals of hindsight' if share_of_goals else 'data'}, which it did "
                    "not earn; leave them out, and give fixed weights"
                )
            if isinstance(algorithm.policy.exploration, HeldNoise) and env.num_ready not in (None, env.num_envs):
                yield (
                    f"{name} holds one batch's noise for the next ones, and with env.num_ready each is of other "
                    "environments; draw it in each step (longest_noise=1), or leave out env.num_ready"
                )
            if constrained and replaces:
                yield (
                    "algorithm.rewards.thresholds are of rewards that algorithm.bonus replaces, so "
                    "they would change nothing; leave one of the two out"
                )

    def require_ranking(self) -> None:  # noqa: B027 - most returns do
        """Refuses a return that does not rank policies.

        Raises:
            ConfigError: says why, and what does.
        """

    def begun(self) -> None:  # noqa: B027 - most have nothing to do
        """After the policies of another run were put in: what copies them copies them now."""

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
    def load_data(self, *, new: bool = False) -> dict[str, ReplayBuffer]:
        """The data that the configuration names, by policy, with actions as the policies sample them.

        Args:
            new: whether the run is: actions that may be raw or not are refused then.

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
        """Evaluates policies by name in new environments, whose seeds are drawn apart from those of training."""

    def evaluate_chance(self, *, episodes: int, seed: int) -> Evaluation:
        """Evaluates random actions.

        Args:
            seed: of the environments.
        """
        return evaluate_one(self.config, {}, episodes=episodes, seed=seed, deterministic=False)

    def kept_policies(self, path: Path) -> dict[str, Policy]:
        """The policies of the best evaluation, by name, and those that do not learn.

        Args:
            path: of the run.
        """
        names = self.algorithms
        return self.policies | {name: load_policy(policy_folder(path / "policy", name)) for name in names}

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
            seed: of the environment.
            window: whether to show it in a window.
        """

    @abstractmethod
    def record(
        self, policies: Mapping[str, Policy], env: EnvConfig, directory: str | Path, *, steps: int, **options: Any
    ) -> Any:
        """Lets policies act and saves what they do as a data set.

        Args:
            env: where.
            directory: must not exist yet.
            steps: env steps, at least.
            options: `seed` and `deterministic` of `collect_data`.

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


def frames_per_second(env: Any) -> int:
    """Pictures in a second, as Gymnasium's environments say it in `metadata["render_fps"]`; 30 where none is said.

    Args:
        env: environments, of one agent or many.
    """
    try:
        metadata = env.get_attr("metadata")[0]
    except (ConfigError, EnvError):
        return 30
    rate = metadata.get("render_fps") if isinstance(metadata, Mapping) else None
    return max(1, round(rate)) if isinstance(rate, int | float) else 30


def evaluation_environment(config: ExperimentConfig, seed: int, num_envs: int) -> tuple[Environment, list[int]]:
    """Environments for evaluation; their seeds are drawn apart from those of training.

    Args:
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
    env = env if kind == "auto" else env.stepped(kind)
    return create_environment(env, lane_seeds=lanes), lanes


def evaluate_one(
    config: ExperimentConfig,
    policies: Mapping[str, Policy],
    *,
    episodes: int,
    seed: int,
    keep: bool = False,
    **options: Any,
) -> Evaluation:
    """Evaluates one policy, or actions at random where there is none.

    Args:
        seed: of the evaluation.
        keep: the environments for the next evaluation, until `close_kept_environments`.
        options: of `evaluate`.
    """
    count = evaluation_count(config, episodes)
    with borrowed(config, seed, count, evaluation_environment, keep=keep) as (env, lanes):
        policy = policies.get(POLICY) or RandomPolicy(env.observation_spec, env.action_spec)
        noise = RunSeeds(lanes[0]).integer("acting")
        sums = evaluate(policy, env, episodes=episodes, generator_seed=noise, **options)
    evaluation = dataclasses.replace(sums.weighted(objective_of(config.algorithm)), seeds=lanes)
    evaluation.parts.update(returns_of_variants(evaluation, len(config.env.variants)))
    return evaluation


_kept: list[tuple[Any, Any]] = []  # what environments are for, and they with their seeds


@contextmanager
def borrowed(
    config: ExperimentConfig,
    seed: int,
    num_envs: int,
    make: Callable[[ExperimentConfig, int, int], tuple[Any, list[int]]],
    *,
    keep: bool,
) -> Iterator[tuple[Any, list[int]]]:
    """Environments of an evaluation at the beginning of their streams: those that were kept, or new ones.

    Kept are those that can begin again, and whose wrappers remember nothing from one episode to the next, for an
    evaluation of a resumed run must be that of the run that was not interrupted.

    Args:
        seed: of the evaluation.
        num_envs: how many.
        make: makes new ones, and says their lane seeds.
        keep: whether they are kept for the next evaluation like this one; not where it fails.
    """
    purpose = (config, seed, num_envs)
    found = next((one for one in _kept if one[0] == purpose), None)
    if found is not None:
        _kept.remove(found)  # which another thread may look for
    env, lanes = make(*purpose) if found is None else found[1]
    try:
        yield env, lanes
        layers = (*config.env.gym_wrappers, *config.env.wrappers)
        carries = getattr(env, "carries_over", False) or any(getattr(layer, "carries_over", True) for layer in layers)
        if keep and not carries:
            with contextlib.suppress(EnvError):  # an environment of one's own that cannot begin again
                env.seed(lanes)
                _kept.append((purpose, (env, lanes)))
                return
    except BaseException:
        env.close()
        raise
    env.close()


def close_kept_environments() -> None:
    """Closes what evaluations of this process have kept."""
    while _kept:
        _kept.pop()[1][0].close()


atexit.register(close_kept_environments)  # of a trainer that evaluates after its run


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
