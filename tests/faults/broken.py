"""Environments that break in 42 ways, in the third step of each episode unless their name says otherwise."""

import contextlib
import ctypes
import functools
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEP = 3
SEEN = np.zeros(2, np.float32)


class UnreadableError(Exception):
    """Its message cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("str fails")


class Own(BaseException):
    """Passes every `except Exception`."""


class LockedError(Exception):
    """Cannot be sent to another process."""

    def __init__(self) -> None:
        super().__init__("cannot be pickled")
        self.lock = threading.Lock()


def _raise(error: Any) -> Any:
    raise error


def _deep() -> int:
    return _deep() + 1


def _segfault() -> None:
    ctypes.string_at(0)


def _hang_with_gil() -> None:
    ctypes.PyDLL(None).sleep(1000)


def _for_ever() -> None:
    threading.Event().wait()


def _swallow() -> None:
    while True:
        with contextlib.suppress(BaseException):
            _for_ever()


def _busy() -> None:
    while True:
        pass


RAISES: dict[str, tuple[Callable[[], Any], str]] = {
    "raise": (lambda: _raise(ValueError("broken")), "raised ValueError"),
    "unpicklable": (lambda: _raise(LockedError()), "raised LockedError"),
    "memory_error": (lambda: _raise(MemoryError()), "raised MemoryError"),
    "stop_iteration": (lambda: _raise(StopIteration()), "StopIteration"),
    "recursion": (_deep, "raised RecursionError"),
    "sys_exit": (lambda: sys.exit(0), "raised SystemExit"),
    "unreadable": (lambda: _raise(UnreadableError()), "raised UnreadableError"),
    "base_exception": (lambda: _raise(Own("own")), "raised Own"),
    "generator_exit": (lambda: _raise(GeneratorExit()), "raised GeneratorExit"),
    "keyboard_interrupt": (lambda: _raise(KeyboardInterrupt()), "raised KeyboardInterrupt"),
    "assertion": (lambda: _raise(AssertionError()), "raised AssertionError"),
}
"""What is done in the step, and what is said about it."""

ENDS: dict[str, Callable[[], Any]] = {
    "os_exit_0": lambda: os._exit(0),
    "os_exit_1": lambda: os._exit(1),
    "segfault": _segfault,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
}
"""What ends the process."""

HANGS: dict[str, Callable[[], Any]] = {
    "sleep": lambda: select.select([], [], [], 1000),
    "wait": _for_ever,
    "busy": _busy,
    "swallow": _swallow,
    "gil": _hang_with_gil,
    "sigstop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}

DEEP: Any = functools.reduce(lambda inner, _: {"k": inner}, range(5_000), 1.0)

RETURNS: dict[str, tuple[Any, str]] = {
    "nan": ((np.array([np.nan, 0], np.float32), 1.0, False, False, {}), "= nan"),
    "inf": ((np.array([np.inf, 0], np.float32), 1.0, False, False, {}), "= inf"),
    "huge": ((np.array([1e300, 0]), 1.0, False, False, {}), "= inf"),
    "nan_reward": ((SEEN, np.nan, False, False, {}), "emitted reward = nan"),
    "inf_reward": ((SEEN, -np.inf, False, False, {}), "emitted reward = -inf"),
    "none_reward": ((SEEN, None, False, False, {}), "reward"),
    "text_reward": ((SEEN, "much", False, False, {}), "reward"),
    "array_reward": ((SEEN, np.ones(3), False, False, {}), "reward"),
    "shape": ((np.zeros(3, np.float32), 1.0, False, False, {}), "shape"),
    "text": ((np.array(["a", "b"]), 1.0, False, False, {}), "dtype"),
    "object": ((np.array([object(), None]), 1.0, False, False, {}), "dtype"),
    "dict": (({"a": SEEN}, 1.0, False, False, {}), "emitted another observation"),
    "none": ((None, 1.0, False, False, {}), "emitted another observation"),
    "four": ((SEEN, 1.0, False, {}), "returned what cannot be read"),
    "nothing": (None, "returned what cannot be read"),
    "info": ((SEEN, 1.0, False, False, [1]), "info must be a dict"),
    "deep_info": ((SEEN, 1.0, False, False, {"a": 1, "b": DEEP}), "info has the entry 'b', with dicts in dicts"),
    "text_flag": ((SEEN, 1.0, "False", False, {}), "terminated must be a bool, and is 'False'"),
    "nan_flag": ((SEEN, 1.0, np.nan, False, {}), "terminated must be a bool, and is nan"),
    "none_flag": ((SEEN, 1.0, False, None, {}), "truncated must be a bool, and is None"),
}
"""What the step returns, and what is said about it."""

OUTSIDE = ("render_raises", "reset_raises", "reset_hangs", "close_raises", "close_hangs", "made_raises", "made_hangs")
"""What breaks outside a step."""

MODES = [*RAISES, *ENDS, *HANGS, *RETURNS, *OUTSIDE]


class Broken(gymnasium.Env[Any, Any]):
    """Breaks as its mode says; `fine` does not, and nothing does in the process `home`."""

    observation_space = spaces.Box(-9, 9, (2,), np.float32)
    action_space = spaces.Discrete(2)
    render_mode = "rgb_array"

    def __init__(self, mode: str = "fine", home: int = -1) -> None:
        self.mode, self.steps = "fine" if os.getpid() == home else mode, 0
        self._fault("made")

    def _fault(self, where: str) -> None:
        if self.mode == f"{where}_raises":
            raise ValueError(f"broken in {where}")
        if self.mode == f"{where}_hangs":
            _for_ever()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        self._fault("reset")
        return SEEN.copy(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == STEP:
            if self.mode in RAISES:
                RAISES[self.mode][0]()
            if self.mode in (calls := ENDS | HANGS):
                calls[self.mode]()
        if self.steps == STEP and self.mode in RETURNS:
            return RETURNS[self.mode][0]
        return SEEN.copy(), 1.0, False, self.steps == 20, {}

    def render(self) -> Any:
        self._fault("render")
        return np.zeros((4, 4, 3), np.uint8)

    def close(self) -> None:
        self._fault("close")


def factories(mode: str, *, size: int = 2) -> list[Callable[[], Any]]:
    """What makes a batch whose last environment is broken.

    Args:
        mode: one of `MODES`.
        size: environments.
    """
    return [functools.partial(_made, "fine", lane) for lane in range(size - 1)] + [
        functools.partial(_made, mode, size - 1)
    ]


def _made(mode: str, lane: int) -> Any:
    from palaestra.envs import GymEnvironment

    return GymEnvironment(Broken(mode), lane)


def command(mode: str, *options: str) -> list[str]:
    """The command line that trains with environments of which each breaks.

    Args:
        mode: one of `MODES`.
        options: further ones.
    """
    return [
        *("train", "ppo", "tests.faults.broken:Broken", "--env.kwargs", "mode", mode, "--env.num-envs", "2"),
        *("--env.timeout-s", "1", "--env.reset-timeout-s", "4", "--trainer.total-env-steps", "512", *options),
    ]
