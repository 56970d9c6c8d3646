"""The configuration of a distributed run, and of asynchronous learning in it."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from palaestra.core import AtLeastOne, ConfigError, Duration, Limit, NotNegative, require_ranges
from palaestra.envs import EnvConfig

__all__ = ["AllocationMode", "AsynchronousConfig", "DistributedConfig", "require_shares"]

AllocationMode = Literal["by-policy", "by-agent", "by-experience"]
"""What a policy's share of the workers is proportional to: nothing (all alike), its agents, its rows learned from."""


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """Where a run collects its data, and how it waits for it.

    With `trainer.eval_async` one more worker evaluates, which training does not wait for.
    """

    runtime: Annotated[Literal["local", "process", "ray"] | None, "--runtime"] = None
    """Workers in this process, in processes of this machine, or on a Ray cluster; none if left out."""
    num_workers: Annotated[AtLeastOne[int], "--num-workers"] = 2
    """Workers that collect; env.num_envs are shared out over them."""
    mode: Annotated[Literal["sync", "async"], "--mode"] = "sync"
    """Collect and learn in turn; or learn from whatever arrives, from actors that do not wait (asynchronous.*)."""
    num_learners: AtLeastOne[int] = 1
    """Learners that make every update together, each from a part of every minibatch: the process where the policy
    learns, and replicas of it (gradient workers)."""
    gradient_shards: AtLeastOne[int | None] = None
    """Parts that every minibatch is cut into; one for each learner if left out, which is equal to one learner up to
    rounding. With a number of its own a run is equal bit for bit with any number of learners, and a resumed one may
    have another."""
    allocation: AllocationMode | None = None
    """What the replicas that each of several policies has are proportional to; all have all if left out."""
    num_policy_hosts: NotNegative[int] = 0
    """Hosts that policies are dealt out to and learn on, at the same time; 0 lets them learn in the run's process."""
    replay_shards: AtLeastOne[int | None] = None
    """Workers that the rows of replay buffers are shared out over, each with some of the environments' streams; what is
    drawn is the same with any number. They lie in the run's process if left out."""
    replay_copies: bool = False
    """Whether each shard of replay has a copy in another worker, by which one that is lost is filled again: no row is
    lost and no bit changes. Takes twice the memory and twice the workers."""
    address: Annotated[str | None, "--address"] = None
    """Of the Ray cluster, such as auto or 10.0.0.1:6379; Ray is started on this machine if left out."""
    min_finished_workers: AtLeastOne[int | None] = None
    """Workers whose data an iteration needs; all of them if left out."""
    grace_timeout_s: Duration[float] = 0.1
    """How long to wait for the others after that."""
    max_lag: NotNegative[int] = 0
    """Data that comes late is used if it is at most so many policy versions old, else dropped and counted."""
    timeout_s: Limit[float] = 300.0
    """A worker that takes longer to answer counts as hanging: it is ended and restarted."""
    min_workers: AtLeastOne[int] = 1
    """With fewer workers for longer than recover_timeout_s, or for good, the run stops with exit code 3."""
    recover_timeout_s: Duration[float] = 60.0
    """How long lost workers have to come back where there are too few of them."""
    max_restarts: NotNegative[int] = 10
    """Restarts of one worker within an hour; after one more end it is gone for good."""
    backoff_s: Duration[float] = 0.5
    """Wait before the second restart of a worker within an hour; doubles with every further one, up to 30 s."""
    num_cpus: NotNegative[float | None] = None
    """CPUs that Ray sets aside for each worker; by default one on a cluster, none on this machine."""
    num_gpus: NotNegative[float] = 0.0
    """GPUs that Ray sets aside for each worker."""
    num_gpus_per_learner: NotNegative[float] = 0.0
    """GPUs that Ray sets aside for each replica of a learner, and for each policy host; run.device says where they
    compute."""

    def __post_init__(self) -> None:
        require_ranges(self, "distributed.", self._misfits())

    def _misfits(self) -> Iterator[str]:
        of_sync = self._first(min_finished_workers=None, max_lag=0)
        if self.mode == "async" and of_sync:
            yield f"distributed.{of_sync} is for mode=sync; for mode=async see asynchronous.*"
        needing = "mode=async" if self.mode == "async" else None
        needing = needing or self._first(num_learners=1, gradient_shards=None, num_policy_hosts=0, replay_shards=None)
        if self.runtime is None and needing:
            yield f"{needing} needs workers: give distributed.runtime as local, process or ray"
        if self.replay_copies and self.replay_shards is None:
            yield "distributed.replay_copies are of shards; give distributed.replay_shards, at least 1"
        if self.allocation is not None and self.num_learners == 1:
            yield "distributed.allocation shares out learners; give distributed.num_learners, at least 2"
        if self.gradient_shards is not None and self.num_learners > self.gradient_shards:
            yield (
                f"distributed.gradient_shards is {self.gradient_shards} and num_learners {self.num_learners}; give "
                "a shard for each"
            )
        for name in ("min_workers", "min_finished_workers"):
            if (getattr(self, name) or 0) > self.num_workers:
                yield (
                    f"distributed.{name} is {getattr(self, name)}; there are {self.num_workers} workers (num_workers), "
                    f"so give 1 to {self.num_workers}"
                )
        of_ray = self._first(address=None, num_cpus=None, num_gpus=0, num_gpus_per_learner=0)
        if self.runtime != "ray" and of_ray:
            yield (
                f"distributed.{of_ray} is {getattr(self, of_ray)}, but distributed.runtime is {self.runtime}; it is "
                "for runtime=ray"
            )

    def idle(self) -> Iterator[str]:
        """What is wrong with settings that do nothing, which old runs may have and new ones may not."""
        late = self._first(max_lag=0, grace_timeout_s=DistributedConfig.grace_timeout_s)
        if late and self.runtime and self.mode == "sync" and self.min_finished_workers is None:
            yield (
                f"distributed.{late} is for data that comes late, and all workers are waited for; give "
                "distributed.min_finished_workers, or leave it out"
            )

    def _first(self, **unused: Any) -> str | None:
        """The first setting that is not what leaves it unused."""
        return next((name for name, value in unused.items() if getattr(self, name) != value), None)

    @property
    def compile_needs(self) -> str:
        """What compiled gradient steps need and do not have here, for messages; empty where they have it."""
        parts = self.num_learners > 1 or self.gradient_shards
        return "gradients of whole minibatches in one process" if parts else ""

    @property
    def cuts(self) -> Any:
        """What decides into how many parts minibatches are cut, by which sums round; `None` where nothing saves it."""
        if self.gradient_shards or self.allocation is None:
            return self.gradient_shards or self.num_learners
        return None if self.allocation == "by-experience" else (self.num_learners, self.allocation)


@dataclass(frozen=True, kw_only=True)
class AsynchronousConfig:
    """How stale data may be, how much is learned from at a time, and who waits for whom."""

    max_lag: NotNegative[int | None] = None
    """Policy versions that data may be old when it is used; older data is dropped, and actors are answered when theirs
    was learned from. 0 uses only the newest; no bound if left out, which is right for replayed data and V-trace."""
    max_lags: dict[str, int | None] = field(default_factory=dict)
    """The same of policies with a bound of their own, by name, where there are several; None is no bound. The others
    have max_lag."""
    fragment_steps: AtLeastOne[int | None] = None
    """Time steps that an actor takes in each environment before it sends them; the algorithm's unroll_length if left
    out, or 16 where data is replayed."""
    fragments_per_update: AtLeastOne[int] = 1
    """Fragments that an on-policy algorithm learns from at a time."""
    queue_size: AtLeastOne[int | None] = None
    """Fragments that may wait; while so many do, actors are not answered. As many as there are actors if left out."""
    samples_per_insert: Limit[float | None] = None
    """Rows drawn for each row written, where data is replayed; what the algorithm's plan does in one process if left
    out."""

    def __post_init__(self) -> None:
        low = {name: lag for name, lag in self.max_lags.items() if (lag or 0) < 0}
        wrong = (f"asynchronous.max_lags has {lag} for {name}; it must be at least 0" for name, lag in low.items())
        require_ranges(self, "asynchronous.", wrong)

    def max_lag_of(self, policy: str) -> int | None:
        """How old the data of one policy may be; `None` is no bound."""
        return self.max_lags.get(policy, self.max_lag)

    def require_policies(self, names: Collection[str]) -> None:
        """Refuses bounds of policies that do not learn in the run.

        Raises:
            ConfigError: names them.
        """
        if unknown := sorted(self.max_lags.keys() - set(names)):
            raise ConfigError(
                f"asynchronous.max_lags names {', '.join(unknown)}, but the policies that learn are {', '.join(names)}"
            )


def require_shares(env: EnvConfig, num_workers: int) -> None:
    """Refuses environments that workers cannot share.

    Args:
        num_workers: that step its environments.

    Raises:
        ConfigError: their number is no multiple of that of the workers, or they would need processes of their own.
    """
    if env.num_envs % num_workers:
        near = env.num_envs // num_workers * num_workers, -(-env.num_envs // num_workers) * num_workers
        raise ConfigError(
            f"env.num_envs is {env.num_envs}, which cannot be shared out evenly over {num_workers} workers; give "
            f"{' or '.join(str(count) for count in near if count)}"
        )
    if env.vectorization in ("process", "thread"):
        raise ConfigError(
            f"env.vectorization is {env.vectorization}, but the workers of the run are processes already; leave it "
            "out, or use native"
        )
