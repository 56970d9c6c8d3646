"""CartPole that notes when it is stepped for the first time, and ends the process there."""

import os
import time

from gymnasium.envs.classic_control.cartpole import CartPoleEnv

VARIABLE = "PALAESTRA_FIRST_STEP_FILE"


class FirstStep(CartPoleEnv):
    """Writes `time.time()` into the file that the environment variable names."""

    def step(self, action):
        now = time.time()
        with open(os.environ[VARIABLE], "w") as file:
            file.write(repr(now))
        os._exit(0)
