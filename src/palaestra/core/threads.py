"""Threads that compute with PyTorch."""

import threading
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["computing_thread"]


def computing_thread(target: Callable[..., object], *args: Any, name: str | None = None) -> threading.Thread:
    """A daemon thread, not started yet, that computes with as many cores as the one that makes it.

    PyTorch keeps that number for each thread: a thread made otherwise takes every core, whatever
    `torch.set_num_threads` said before, is slower beside others that do, and adds numbers in another order.

    Args:
        target: what it runs.
        *args: of `target`.
        name: of the thread, for messages.
    """
    cores = torch.get_num_threads()

    def run() -> None:
        torch.set_num_threads(cores)
        target(*args)

    return threading.Thread(target=run, name=name, daemon=True)
