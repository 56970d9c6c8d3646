"""Environments made for tests. Everything here can be sent to a worker process."""

import os
import signal
import threading
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from palaestra.core import TensorSpec, TimeStep
from palaestra.envs import Environment, EnvironmentWrapper, GymEnvironment, SingleEnvironment, TimeLimit


class Counter(gymnasium.Env):
    """Counts its steps; ends as `script` says: {step: "terminated" | "truncated" | "both"}."""

    def __init__(self, script: dict[int, str] | None = None, noisy: bool = False):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._script = script or {}
        self._noisy = noisy
        self.seeds: list[int | None] = []
        self.actions: list[Any] = []
        self.steps = 0

    def _seen(self):
        noise = float(self.np_random.random()) if self._noisy else 0.0
        return np.array([self.steps, noise], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        self.actions.append(action)
        end = self._script.get(self.steps, "")
        return self._seen(), 10 * self.steps, end in ("terminated", "both"), end in ("truncated", "both"), {}


class Nested(gymnasium.Env):
    """A dict of a vector, a category and a tuple; nested actions, and info that comes and goes."""

    def __init__(self):
        self.observation_space = spaces.Dict(
            {
                "body": spaces.Box(-1, 1, (2, 3), np.float64),
                "mode": spaces.Discrete(4, start=1),
                "pair": spaces.Tuple((spaces.Box(0, 255, (4,), np.uint8), spaces.MultiBinary(2))),
            }
        )
        self.action_space = spaces.Dict({"move": spaces.Box(-1, 1, (2,), np.float32), "gear": spaces.Discrete(3)})
        self.steps = 0

    def _seen(self):
        rng = self.np_random
        pair = (rng.integers(0, 255, 4).astype(np.uint8), rng.integers(0, 2, 2).astype(np.int8))
        return {"body": rng.uniform(-1, 1, (2, 3)), "mode": int(rng.integers(1, 5)), "pair": pair}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {"fresh": True}

    def step(self, action):
        self.steps += 1
        reward = float(np.sum(action["move"]) + action["gear"])
        info = {"speed": np.float32(self.steps), "deep": {"x": self.steps}, "text": "ignored"} if self.steps % 2 else {}
        return self._seen(), reward, bool(self.np_random.random() < 0.2), False, info


class Switches(gymnasium.Env):
    """MultiDiscrete actions, a bare integer as the observation, vector rewards."""

    def __init__(self):
        self.observation_space = spaces.Discrete(5)
        self.action_space = spaces.MultiDiscrete([3, 2])
        self.reward_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return int(self.np_random.integers(5)), {}

    def step(self, action):
        self.steps += 1
        reward = np.asarray(action, np.float32) + self.steps
        return int(self.np_random.integers(5)), reward, self.steps == 7, False, {}


class Reusing(gymnasium.Env):
    """Writes every observation into the same array."""

    def __init__(self):
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.array = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.array[:] = 0
        return self.array, {}

    def step(self, action):
        action *= 0  # as careless with what it is given
        self.array += 1
        return self.array, 0.0, False, False, {}


class UnpicklableError(Exception):
    """Cannot be sent to another process: it holds a lock."""

    def __init__(self, message: str):
        super().__init__(message)
        self.lock = threading.Lock()


class TwoArgumentError(Exception):
    """Cannot be rebuilt from its `args`."""

    def __init__(self, code: int, message: str):
        super().__init__(f"{code}: {message}")


class Faulty(Counter):
    """Misbehaves at one step of every episode, or while resetting or being made."""

    def __init__(self, fault: str, at: int = 3):
        super().__init__()
        self._fault, self._at = fault, at
        if at < 0:
            self.misbehave()

    def misbehave(self):
        match self._fault:
            case "raise":
                raise KeyError("the wheel came off")
            case "unpicklable":
                raise UnpicklableError("holding a lock")
            case "two arguments":
                raise TwoArgumentError(7, "two arguments")
            case "hang":
                threading.Event().wait()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(0)

    def reset(self, *, seed=None, options=None):
        if self._at == 0:
            self.misbehave()
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.steps + 1 == self._at:
            self.misbehave()
        return super().step(action)


class Shifty(Counter):
    """Observations of another shape from step 2 on, which would broadcast into the right one."""

    def step(self, action):
        observation, *rest = super().step(action)
        return (observation[:1] if self.steps > 1 else observation), *rest


class Pid(Counter):
    """Reports the process it is stepped in."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"pid": os.getpid()}


class Drawing(Counter):
    """Can be rendered."""

    render_mode = "rgb_array"

    def render(self):
        return np.full((2, 3, 3), self.steps, np.uint8)


class Recorder(gymnasium.Wrapper):
    """A Gymnasium wrapper that notes what passes through it."""

    def __init__(self, env, name: str, notes: list[str]):
        super().__init__(env)
        self._name, self._notes = name, notes

    def step(self, action):
        self._notes.append(f"{self._name} down")
        result = self.env.step(action)
        self._notes.append(f"{self._name} up")
        return result


class StepRecorder(EnvironmentWrapper):
    """The same above the Gymnasium layer."""

    def __init__(self, env: SingleEnvironment, name: str, notes: list[str]):
        super().__init__(env)
        self._name, self._notes = name, notes

    def advance(self, action):
        self._notes.append(f"{self._name} down")
        time_step = self.env.advance(action)
        self._notes.append(f"{self._name} up")
        return time_step


class Doubled(EnvironmentWrapper):
    """Doubles actions on their way in and rewards on their way out, and keeps everything else."""

    def advance(self, action):
        time_step = self.env.advance(action)
        return time_step._replace(reward=2 * time_step.reward)


class Global(Counter):
    """Draws from a generator that no seed reaches."""

    generator = np.random.default_rng()

    def _seen(self):
        return self.generator.random(2, np.float32)


class Constant(Environment):
    """A batched environment of its own."""

    batched = True
    seeding = "per_batch"
    resume = "statistical"

    def __init__(self, batch_size: int, lane_seeds: list[int]):
        self.batch_size = batch_size
        self.lane_seeds = lane_seeds

    observation_spec = action_spec = TensorSpec(())

    def reset(self):
        zeros, ones = torch.zeros(self.batch_size), torch.ones(self.batch_size)
        return TimeStep(zeros.int(), zeros, ones, zeros, zeros, torch.arange(self.batch_size))

    def send(self, action, env_id=None):
        pass

    def recv(self):
        return self.reset()

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def close(self):
        pass


def counter(script: dict[int, str] | None = None, limit: int = 0, noisy: bool = False) -> SingleEnvironment:
    """A `Counter` with its layers."""
    env = GymEnvironment(Counter(script, noisy))
    return TimeLimit(env, limit) if limit else env


def faulty(fault: str, at: int = 3) -> SingleEnvironment:
    """A `Faulty` with its layers."""
    return GymEnvironment(Faulty(fault, at))


def layered(name: str) -> SingleEnvironment:
    """One of the classes above, with its layers."""
    return GymEnvironment(globals()[name]())
