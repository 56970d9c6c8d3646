"""Experience: streams of many lanes stored once, drawn as unrolls, sequences or n-step windows."""

from palaestra.buffers.layouts import Unroll, Windows
from palaestra.buffers.replay import ReplayBuffer
from palaestra.buffers.storage import LaneStorage
from palaestra.buffers.streams import LaneStreams

__all__ = ["LaneStorage", "LaneStreams", "ReplayBuffer", "Unroll", "Windows"]
