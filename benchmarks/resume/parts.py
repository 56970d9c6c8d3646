"""The parts of a run, as hashes: equal hashes are equal bits. Needs nothing of the library that is measured."""

import hashlib
import json
import random
from typing import Any

import numpy as np
import torch


def hash_of(*arrays: Any) -> str:
    """Of the bytes of arrays and tensors.

    Args:
        arrays: in order.
    """
    found = hashlib.sha256()
    for array in arrays:
        numbers = np.ascontiguousarray(array.detach().cpu() if isinstance(array, torch.Tensor) else array)
        if numbers.dtype == object:
            raise TypeError(f"{type(array).__name__} is not an array: its bytes would be addresses")
        found.update(numbers.tobytes())
    return found.hexdigest()[:12]


def optimizer_hash(optimizer: torch.optim.Optimizer) -> str:
    """Of its moments and step counts.

    Args:
        optimizer: of the algorithm.
    """
    states = optimizer.state_dict()["state"]
    return hash_of(*(torch.as_tensor(states[key][name]) for key in sorted(states) for name in sorted(states[key])))


def generators_hash() -> str:
    """Of the global generators, from which the other libraries draw."""
    numbers = np.random.get_state()[1]
    return hash_of(torch.get_rng_state(), numbers, np.array(random.getstate()[1]))


def environment_hash(*envs: Any) -> str:
    """Of the running episodes of CartPole and of the generators from which the next ones begin.

    Args:
        envs: of Gymnasium, with all their wrappers.
    """
    found = []
    for env in envs:
        state, random_state = env.unwrapped.state, env.unwrapped.np_random.bit_generator.state["state"]["state"]
        found.append(repr((None if state is None else np.asarray(state).tolist(), random_state)).encode())
    return hash_of(*(np.frombuffer(text, np.uint8) for text in found))


def tell(**parts: Any) -> None:
    """Prints the parts as one line of JSON.

    Args:
        parts: by name.
    """
    print(json.dumps(parts))
