"""Experience: streams of many lanes stored once, drawn as unrolls, sequences or n-step windows."""

from palaestra.buffers.layouts import Unroll, Windows
from palaestra.buffers.replay import ReplayBuffer
from palaestra.buffers.samplers import PrioritizedSampler, Sampler, SumTree, UniformSampler, sampler_of
from palaestra.buffers.storage import LaneStorage
from palaestra.buffers.streams import LaneStreams, RowOptions

__all__ = [
    "LaneStorage",
    "LaneStreams",
    "PrioritizedSampler",
    "ReplayBuffer",
    "RowOptions",
    "Sampler",
    "SumTree",
    "UniformSampler",
    "Unroll",
    "Windows",
    "sampler_of",
]
