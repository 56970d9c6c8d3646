"""Environments: one contract for everything that emits time steps.

`create_environment(EnvConfig(name="CartPole-v1", num_envs=8), lane_seeds=...)` is the usual way in. What is where:

- the contract: `environment`, `spaces`, `nest`, `rows`, `episodes`
- what adapts: `gym_environment`, `native_vector`, `tensor`, `suites`
- what steps: `lane_environment` with a `driver`: `serial`, `thread` or `process`; `first_ready`
- what guards: `boundary`, `faults`, `check`, `chaos`
- what is around a batch, kept or set besides: `batched`, `untransformed`, `attributes`
- by name: `env_config`, `wrap`, `create`
"""

from palaestra.envs.batched import *
from palaestra.envs.board_games import *
from palaestra.envs.chaos import *
from palaestra.envs.check import *
from palaestra.envs.create import *
from palaestra.envs.driver import *
from palaestra.envs.env_config import *
from palaestra.envs.environment import *
from palaestra.envs.faults import *
from palaestra.envs.first_ready import *
from palaestra.envs.gym_environment import *
from palaestra.envs.lane_environment import *
from palaestra.envs.minatar import *
from palaestra.envs.native_vector import *
from palaestra.envs.process import *
from palaestra.envs.serial import *
from palaestra.envs.spaces import *
from palaestra.envs.tensor import *
from palaestra.envs.thread import *
from palaestra.envs.wrap import *
from palaestra.envs.wrappers.episode_ends import TimeLimit
