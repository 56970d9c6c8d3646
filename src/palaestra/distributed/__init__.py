"""Learning with many workers: policy hosts, gradient workers, actors."""

from palaestra.distributed.allocator import AllocationMode, TrainerAllocator
from palaestra.distributed.grad_worker import GradWorker, LossState
from palaestra.distributed.gradient_workers import GradientWorkers, apply_shards, require_gradients
from palaestra.distributed.policy_host import HostTask, PolicyHost, ShardedStep, Updated
from palaestra.distributed.policy_manager import DistributedPolicyManager

__all__ = [
    "AllocationMode",
    "DistributedPolicyManager",
    "GradWorker",
    "GradientWorkers",
    "HostTask",
    "LossState",
    "PolicyHost",
    "ShardedStep",
    "TrainerAllocator",
    "Updated",
    "apply_shards",
    "require_gradients",
]
