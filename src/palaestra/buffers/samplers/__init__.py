"""Who chooses the rows of a draw: one sampler per file, handed to the buffer as an object."""

from palaestra.buffers.samplers.prioritized import PrioritizedSampler
from palaestra.buffers.samplers.sampler import Sampler
from palaestra.buffers.samplers.sum_tree import SumTree
from palaestra.buffers.samplers.uniform import UniformSampler
from palaestra.core import Replay

__all__ = ["PrioritizedSampler", "Sampler", "SumTree", "UniformSampler", "sampler_of"]


def sampler_of(plan: Replay) -> Sampler:
    """The sampler that a plan asks for.

    Args:
        plan: draws by priority where it has settings for that, else uniformly.
    """
    return UniformSampler() if plan.prioritized is None else PrioritizedSampler(plan.prioritized)
