"""What algorithms share: functions and small objects, from unrolls to targets and noise."""

from palaestra.algorithms.parts.actor_critic import *
from palaestra.algorithms.parts.memory import *
from palaestra.algorithms.parts.symmetry import *
from palaestra.algorithms.parts.transitions import *
from palaestra.algorithms.parts.unrolls import *

__all__ = [
    "AdvantageBatch",
    "FixedPolicy",
    "Remembered",
    "ReturnScale",
    "RewardScale",
    "Seen",
    "SequenceBatch",
    "SoftBatch",
    "StateValue",
    "Symmetry",
    "Temperature",
    "TransitionBatch",
    "ValueBatch",
]
