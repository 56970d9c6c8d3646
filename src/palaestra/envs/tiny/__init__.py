"""Small environments whose best values are known in closed form: for tests, docs and first attempts.

They are ordinary Gymnasium environments; `load("palaestra.envs.tiny:Chain")` gives one with all layers. Only
`TensorCartPole` is a batch by itself.
"""

from palaestra.envs.worlds.sensors import *
from palaestra.envs.worlds.tabular import *
from palaestra.envs.worlds.tensor_cartpole import *
