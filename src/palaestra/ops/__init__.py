"""Pure functions, one equation each: returns, advantages, targets, loss terms, distributions, statistics.

Functions of time take time-major `[T+1, B]` arrays `(value, reward, discount, step_type)`: row t is time step t, and
its reward and discount belong to the action taken at row t - 1. The discount is continuation, 0 or 1, as everywhere;
gamma is an argument of its own.
`palaestra.ops.episode_ends` says what an episode end means; nothing else in the code base does.
"""

from palaestra.ops.distributions import *
from palaestra.ops.episode_ends import *
from palaestra.ops.joint import *
from palaestra.ops.linear import *
from palaestra.ops.losses import *
from palaestra.ops.ratings import *
from palaestra.ops.returns import *
from palaestra.ops.statistics import *
from palaestra.ops.targets import *
