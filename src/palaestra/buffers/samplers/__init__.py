"""Who chooses the rows of a draw: one sampler per file, handed to the buffer as an object."""

from palaestra.buffers.samplers.balanced import BalancedSampler
from palaestra.buffers.samplers.episodes import EpisodeSampler
from palaestra.buffers.samplers.hindsight import HindsightSampler
from palaestra.buffers.samplers.prioritized import PrioritizedSampler
from palaestra.buffers.samplers.sampler import Sampler
from palaestra.buffers.samplers.sum_tree import SumTree
from palaestra.buffers.samplers.uniform import UniformSampler
from palaestra.buffers.samplers.whole import WholeSampler
from palaestra.core import Replay

__all__ = [
    "BalancedSampler",
    "EpisodeSampler",
    "HindsightSampler",
    "PrioritizedSampler",
    "Sampler",
    "SumTree",
    "UniformSampler",
    "WholeSampler",
    "sampler_of",
]


def sampler_of(plan: Replay) -> Sampler:
    """The sampler that a plan asks for.

    Args:
        plan: draws by priority where it has settings for that, else uniformly.
    """
    return UniformSampler() if plan.prioritized is None else PrioritizedSampler(plan.prioritized)
