"""Environments: one contract for everything that emits time steps.

`create_environment(EnvConfig(name="CartPole-v1", num_envs=8), lane_seeds=...)` is the usual way in. What is where:

- `contract/`: what an environment is, and how its specs, rows, seeds and actions are laid out
- `stepping/`: how many are stepped together: serially, in threads, in processes, or by themselves
- `supervision/`: what happens when one fails or hangs
- `wrappers/`: layers around one environment, or around a batch
- `worlds/`, `suites/`: environments of our own, and those of other packages
- `simulators/`: those that step many environments at once
- `check/`: whether an environment keeps the contract
- by name: `env_config`, `create`
"""

from palaestra.envs.check.check import *
from palaestra.envs.contract.batch import *
from palaestra.envs.contract.environment import *
from palaestra.envs.contract.gym_environment import *
from palaestra.envs.contract.spaces import *
from palaestra.envs.contract.tensor import *
from palaestra.envs.create import *
from palaestra.envs.env_config import *
from palaestra.envs.simulators.joystick import *
from palaestra.envs.simulators.joystick_robots import *
from palaestra.envs.simulators.mujoco import *
from palaestra.envs.simulators.small import *
from palaestra.envs.stepping.driver import *
from palaestra.envs.stepping.first_ready import *
from palaestra.envs.stepping.lane_environment import *
from palaestra.envs.stepping.native_vector import *
from palaestra.envs.stepping.process import *
from palaestra.envs.stepping.serial import *
from palaestra.envs.stepping.thread import *
from palaestra.envs.supervision.faults import *
from palaestra.envs.worlds.board_games import *
from palaestra.envs.worlds.minatar import *
from palaestra.envs.worlds.minatar_traffic import *
from palaestra.envs.wrappers.batched import *
from palaestra.envs.wrappers.batched_rewards import *
from palaestra.envs.wrappers.chaos import *
from palaestra.envs.wrappers.episode_ends import TimeLimit
from palaestra.envs.wrappers.wrap import *
