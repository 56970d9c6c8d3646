"""Small environments whose best values are known in closed form: for tests, docs and first attempts.

They are ordinary Gymnasium environments; `load("palaestra.envs.tiny:Chain")` gives one with all layers. Only
`TensorCartPole` is a batch by itself.
"""

from palaestra.envs.tiny.backdrop import Backdrop
from palaestra.envs.tiny.bandit import Bandit
from palaestra.envs.tiny.catch import Catch
from palaestra.envs.tiny.chain import Chain
from palaestra.envs.tiny.endless import Endless
from palaestra.envs.tiny.four_rooms import FourRooms
from palaestra.envs.tiny.recall import Recall
from palaestra.envs.tiny.tensor_cartpole import TensorCartPole

__all__ = ["Backdrop", "Bandit", "Catch", "Chain", "Endless", "FourRooms", "Recall", "TensorCartPole"]
