"""Experience: streams of many lanes stored once, drawn as unrolls, sequences or n-step windows.

`storage` says where rows lie and `lane_storage` how; `writer` and `reader` work on the `streams` in it, `drawn` has the
layouts of what is read; `replay` has `ReplayBuffer`, which holds both;
`samplers`, `prioritized` and `hindsight` choose what is drawn.
"""

from palaestra.buffers.drawn import *
from palaestra.buffers.exchange import *
from palaestra.buffers.hindsight import *
from palaestra.buffers.lane_storage import *
from palaestra.buffers.mixture import *
from palaestra.buffers.prioritized import *
from palaestra.buffers.reader import *
from palaestra.buffers.replay import *
from palaestra.buffers.samplers import *
from palaestra.buffers.storage import *
from palaestra.buffers.streams import *
from palaestra.buffers.writer import *
from palaestra.core.importing import moved

__getattr__ = moved(__name__, "palaestra.compat", ("ExperienceMemory",))
