"""Collecting and learning in several processes and on several machines, with the same algorithms and the same loop."""

from palaestra.distributed.allocator import AllocationMode, TrainerAllocator
from palaestra.distributed.asynchronous import AsynchronousConfig, Pace
from palaestra.distributed.config import DistributedConfig
from palaestra.distributed.crew import Crew, Dropped, Member, WorkerFault, WorkersLostError
from palaestra.distributed.evaluation import EvaluationWorker
from palaestra.distributed.grad_worker import GradWorker, LossState
from palaestra.distributed.gradient_workers import GradientWorkers, apply_shards, require_gradients
from palaestra.distributed.policy_host import HostTask, PolicyHost, ShardedStep, Updated
from palaestra.distributed.policy_manager import DistributedPolicyManager
from palaestra.distributed.policy_server import PolicyServer
from palaestra.distributed.rollout_manager import RolloutManager
from palaestra.distributed.view import WorkersView
from palaestra.distributed.weights import acting_weights, load_acting_weights, versions_of
from palaestra.distributed.worker import (
    ActingParts,
    CollectorFactory,
    Fragment,
    RolloutWorker,
    broken_off,
    require_shares,
)

__all__ = [
    "ActingParts",
    "AllocationMode",
    "AsynchronousConfig",
    "CollectorFactory",
    "Crew",
    "DistributedConfig",
    "DistributedPolicyManager",
    "Dropped",
    "EvaluationWorker",
    "Fragment",
    "GradWorker",
    "GradientWorkers",
    "HostTask",
    "LossState",
    "Member",
    "Pace",
    "PolicyHost",
    "PolicyServer",
    "RolloutManager",
    "RolloutWorker",
    "ShardedStep",
    "TrainerAllocator",
    "Updated",
    "WorkerFault",
    "WorkersLostError",
    "WorkersView",
    "acting_weights",
    "apply_shards",
    "broken_off",
    "load_acting_weights",
    "require_gradients",
    "require_shares",
    "versions_of",
]
