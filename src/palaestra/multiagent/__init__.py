"""Many agents and many policies: environments, the bridge to simulators, collection, evaluation."""

from palaestra.core.importing import moved
from palaestra.multiagent.acting import *
from palaestra.multiagent.collector import *
from palaestra.multiagent.env import *
from palaestra.multiagent.envs import *
from palaestra.multiagent.evaluation import *
from palaestra.multiagent.loading import *
from palaestra.multiagent.mapping import *
from palaestra.multiagent.self_play import *
from palaestra.multiagent.tiny import *

__getattr__ = moved(__name__, "palaestra.compat", ("EnvWrapper",))
