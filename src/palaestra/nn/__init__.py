"""Networks: layers, encoders of nested observations, recurrent cells, and models with embedded optimizers."""

from palaestra.core.importing import moved
from palaestra.nn.attention import *
from palaestra.nn.batch_norm import *
from palaestra.nn.blocks import *
from palaestra.nn.cnn import *
from palaestra.nn.config import *
from palaestra.nn.core_model import *
from palaestra.nn.distributional import *
from palaestra.nn.encoder import *
from palaestra.nn.fast import *
from palaestra.nn.network import *
from palaestra.nn.optimizer import *
from palaestra.nn.planning import *
from palaestra.nn.precision import *
from palaestra.nn.recurrent import *
from palaestra.nn.search import *
from palaestra.nn.summary import *
from palaestra.nn.world_model import *

__getattr__ = moved(__name__, "palaestra.compat", ("create_algorithm_func",))
