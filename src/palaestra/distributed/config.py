"""The configuration of a distributed run, and of asynchronous learning in it."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from palaestra.core import ConfigError, require_at_least
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
    num_workers: Annotated[int, "--num-workers"] = 2
    """Workers that collect; env.num_envs are shared out over them."""
    mode: Annotated[Literal["sync", "async"], "--mode"] = "sync"
    """Collect and learn in turn; or learn from whatever arrives, from actors that do not wait (asynchronous.*)."""
    num_learners: int = 1
    """Learners that make every update together, each from a part of every minibatch: the process where the policy
    learns, and replicas of it (gradient workers)."""
    gradient_shards: int | None = None
    """Parts that every minibatch is cut into; one for each learner if left out, which is equal to one learner up to
    rounding. With a number of its own a run is equal bit for bit with any number of learners, and a resumed one may
    have another."""
    allocation: AllocationMode | None = None
    """What the replicas that each of several policies has are proportional to; all have all if left out."""
    num_policy_hosts: int = 0
    """Hosts that policies are dealt out to and learn on, at the same time; 0 lets them learn in the run's process."""
    replay_shards: int | None = None
    """Workers that the rows of replay buffers are shared out over, each with some of the environments' streams; what is
    drawn is the same with any number. They lie in the run's process if left out."""
    address: Annotated[str | None, "--address"] = None
    """Of the Ray cluster, such as auto or 10.0.0.1:6379; Ray is started on this machine if left out."""
    min_finished_workers: int | None = None
    """Workers whose data an iteration needs; all of them if left out."""
    grace_timeout_s: float = 0.1
    """How long to wait for the others after that."""
    max_lag: int = 0
    """Data that comes late is used if it is at most so many policy versions old, else dropped and counted."""
    timeout_s: float = 300.0
    """A worker that takes longer to answer counts as hanging: it is ended and restarted."""
    min_workers: int = 1
    """With fewer workers for longer than recover_timeout_s, or for good, the run stops with exit code 3."""
    recover_timeout_s: float = 60.0
    """How long lost workers have to come back where there are too few of them."""
    max_restarts: int = 10
    """Restarts of one worker within an hour; after one more end it is gone for good."""
    backoff_s: float = 0.5
    """Wait before the second restart of a worker within an hour; doubles with every further one, up to 30 s."""
    num_cpus: float | None = None
    """CPUs that Ray sets aside for each worker; by default one on a cluster, none on this machine."""
    num_gpus: float = 0.0
    """GPUs that Ray sets aside for each worker."""
    num_gpus_per_learner: float = 0.0
    """GPUs that Ray sets aside for each replica of a learner, and for each policy host; run.device says where they
    compute."""

    def __post_init__(self) -> None:
        require_at_least(self, "distributed.", num_workers=1, min_workers=1, num_learners=1)
        require_at_least(self, "distributed.", num_policy_hosts=0, max_lag=0, max_restarts=0)
        require_at_least(self, "distributed.", replay_shards=1)
        require_at_least(self, "distributed.", grace_timeout_s=0, backoff_s=0, recover_timeout_s=0)
        require_at_least(self, "distributed.", num_cpus=0, num_gpus=0, num_gpus_per_learner=0)
        if self.mode == "async":
            defaults = {"min_finished_workers": None, "max_lag": 0}
            if given := [name for name, default in defaults.items() if getattr(self, name) != default]:
                raise ConfigError(f"distributed.{given[0]} is for mode=sync; for mode=async see asynchronous.*")
        needing = {
            "mode=async": self.mode == "async",
            "num_learners": self.num_learners > 1,
            "gradient_shards": self.gradient_shards,
            "num_policy_hosts": self.num_policy_hosts,
            "replay_shards": self.replay_shards,
        }
        if self.runtime is None and (given := [name for name, value in needing.items() if value]):
            raise ConfigError(f"{given[0]} needs workers: give distributed.runtime as local, process or ray")
        if self.allocation is not None and self.num_learners == 1:
            raise ConfigError("distributed.allocation shares out learners; give distributed.num_learners, at least 2")
        if self.gradient_shards is not None and self.num_learners > self.gradient_shards:
            raise ConfigError(
                f"distributed.gradient_shards is {self.gradient_shards} and num_learners {self.num_learners}; give "
                "a shard for each"
            )
        if not self.timeout_s > 0:
            raise ConfigError(f"distributed.timeout_s is {self.timeout_s}; it must be above 0 seconds")
        for name in ("min_workers", "min_finished_workers"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= self.num_workers:
                raise ConfigError(
                    f"distributed.{name} is {value}; there are {self.num_workers} workers (num_workers), so give 1 to "
                    f"{self.num_workers}"
                )
        of_ray = {"address": None, "num_cpus": None, "num_gpus": 0, "num_gpus_per_learner": 0}
        if self.runtime != "ray" and (given := [name for name, none in of_ray.items() if getattr(self, name) != none]):
            raise ConfigError(
                f"distributed.{given[0]} is {getattr(self, given[0])}, but distributed.runtime is {self.runtime}; it "
                "is for runtime=ray"
            )

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

    max_lag: int | None = None
    """Policy versions that data may be old when it is used; older data is dropped, and actors are answered when theirs
    was learned from. 0 uses only the newest; no bound if left out, which is right for replayed data and V-trace."""
    max_lags: dict[str, int | None] = field(default_factory=dict)
    """The same of policies with a bound of their own, by name, where there are several; None is no bound. The others
    have max_lag."""
    fragment_steps: int | None = None
    """Time steps that an actor takes in each environment before it sends them; the algorithm's unroll_length if left
    out, or 16 where data is replayed."""
    fragments_per_update: int = 1
    """Fragments that an on-policy algorithm learns from at a time."""
    queue_size: int | None = None
    """Fragments that may wait; while so many do, actors are not answered. As many as there are actors if left out."""
    samples_per_insert: float | None = None
    """Rows drawn for each row written, where data is replayed; what the algorithm's plan does in one process if left
    out."""

    def __post_init__(self) -> None:
        require_at_least(self, "asynchronous.", max_lag=0, fragment_steps=1, fragments_per_update=1, queue_size=1)
        for name, bound in self.max_lags.items():
            if bound is not None and bound < 0:
                raise ConfigError(f"asynchronous.max_lags has {bound} for {name}; it must be at least 0, or None")
        if self.samples_per_insert is not None and not self.samples_per_insert > 0:
            raise ConfigError(f"asynchronous.samples_per_insert is {self.samples_per_insert}; it must be above 0")

    def max_lag_of(self, policy: str) -> int | None:
        """How old the data of one policy may be; `None` is no bound.

        Args:
            policy: whose data it is.
        """
        return self.max_lags.get(policy, self.max_lag)

    def require_policies(self, names: Collection[str]) -> None:
        """Refuses bounds of policies that do not learn in the run.

        Args:
            names: of those that do.

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
        env: of a run.
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
