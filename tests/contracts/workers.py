"""Objects that live in the workers of the runtime tests."""

import os
import signal
import threading

import numpy as np
import torch

from palaestra.core import ConfigError, NonFiniteError
from palaestra.runtime import Parcel


class Unreadable:
    """Can be sent, and not be received."""

    def __reduce__(self):
        return _unreadable, ()


def _unreadable():
    raise ValueError("cannot be read here")


class Counter:
    """Counts, echoes, fails and dies on request."""

    def __init__(self, start=0):
        self.count = start
        self.seen, self.closes = [], ""

    def add(self, number=1, *, twice=False):
        self.count += number * (2 if twice else 1)
        return self.count

    def echo(self, value):
        return value

    def parcels(self, number, rows=5000):
        return {
            "parcels": [Parcel({"x": np.full(rows, n), "n": n}, f"number {n}") for n in range(number)],
            "from": os.getpid(),
        }

    def labels(self, *parcels):
        return [parcel.label for parcel in parcels]

    def opened(self, parcel, plus, *, other=None):
        values = [parcel.open(), *([] if other is None else [other.open()])]
        values[0]["x"] += plus  # in memory of its own
        return [(value["n"], int(value["x"].sum())) for value in values]

    def parcels_and_closure(self, number):
        return [Parcel((np.ones(10_000), lambda: number)), lambda: number + self.count, Parcel(number)]

    def opened_alone(self, parcel):
        return parcel.open()

    def called(self, parcel):
        return parcel.open()[1]()

    def scale(self, weights, factor, *, offset=None):
        self.seen.append(id(weights["w"]))
        return weights["w"] * factor + (0 if offset is None else offset["w"])

    def overwrite(self, weights, value):
        weights["w"].fill_(value)

    def distinct_weights(self):
        return len(set(self.seen))

    def fail(self):
        raise NonFiniteError("the loss is NaN")

    def fail_strangely(self):
        raise TwoWordsError("a", "b")

    def lambda_(self):
        return lambda: 0

    def lock(self):
        return threading.Lock()

    def hang(self):
        threading.Event().wait()

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def pid(self):
        return os.getpid()

    def wait_for(self, file):
        while not os.path.exists(file):
            threading.Event().wait(0.01)
        return np.zeros(100_000)

    def close(self):
        if os.path.exists(self.closes):
            os.remove(self.closes)

    def closes_by_removing(self, file):
        self.closes = file

    def observations(self, shape):
        return {"pixels": np.ones(shape, np.uint8), "reward": torch.arange(3.0)}


class Stubborn:
    """Does not let itself be closed."""

    def name(self):
        return "stubborn"

    def close(self):
        raise TwoWordsError("not", "now")


class TwoWordsError(Exception):
    """Cannot be made again from its arguments alone."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")
        self.lock = threading.Lock()


def broken():
    raise ConfigError("no such environment")
