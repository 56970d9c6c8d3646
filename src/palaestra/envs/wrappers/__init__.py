"""Layers around a bare environment, one file per kind. `base` has what a wrapper of your own may start from."""

from palaestra.envs.wrappers.actions import *
from palaestra.envs.wrappers.atari import *
from palaestra.envs.wrappers.base import *
from palaestra.envs.wrappers.episode_ends import *
from palaestra.envs.wrappers.observations import *
from palaestra.envs.wrappers.rewards import *
from palaestra.envs.wrappers.video import *
