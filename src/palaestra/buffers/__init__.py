"""Experience: streams of many lanes stored once, drawn as unrolls, sequences or n-step windows."""

from palaestra.buffers.exchange import with_actions
from palaestra.buffers.joining import stream_pieces
from palaestra.buffers.layouts import Unroll, Windows
from palaestra.buffers.limiter import SamplesPerInsert
from palaestra.buffers.lists import ListReplayBuffer
from palaestra.buffers.memory import DeviceMemory, MainMemory, MappedFiles, Memory
from palaestra.buffers.minari import from_minari, to_minari
from palaestra.buffers.mixture import MixtureSource
from palaestra.buffers.replay import ReplayBuffer
from palaestra.buffers.samplers import (
    BalancedSampler,
    EpisodeSampler,
    HindsightSampler,
    PrioritizedSampler,
    Sampler,
    SumTree,
    UniformSampler,
    WholeSampler,
    sampler_of,
)
from palaestra.buffers.storage import LaneStorage
from palaestra.buffers.streams import LaneStreams, RowOptions

__all__ = [
    "BalancedSampler",
    "DeviceMemory",
    "EpisodeSampler",
    "HindsightSampler",
    "LaneStorage",
    "LaneStreams",
    "ListReplayBuffer",
    "MainMemory",
    "MappedFiles",
    "Memory",
    "MixtureSource",
    "PrioritizedSampler",
    "ReplayBuffer",
    "RowOptions",
    "Sampler",
    "SamplesPerInsert",
    "SumTree",
    "UniformSampler",
    "Unroll",
    "WholeSampler",
    "Windows",
    "from_minari",
    "sampler_of",
    "stream_pieces",
    "to_minari",
    "with_actions",
]
