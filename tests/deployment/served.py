"""A server in a thread of this process, and policies for it."""

import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import torch

from palaestra.core import DiscreteSpec, TensorSpec
from palaestra.deployment import Served, serve
from palaestra.nn import NetworkConfig
from palaestra.policies import CategoricalPolicy, save_policy

SMALL = NetworkConfig(hidden_sizes=(8,))
REMEMBERS = NetworkConfig(hidden_sizes=(8,), recurrent="gru", recurrent_size=4)


def made(folder: Path, config: NetworkConfig = SMALL, *, seed: int = 0, size: int = 4) -> CategoricalPolicy:
    """A policy of random weights, and its artefact."""
    torch.manual_seed(seed)
    policy = CategoricalPolicy.build(TensorSpec((size,)), DiscreteSpec(num=3), config).eval()
    with torch.no_grad():
        for parameter in policy.parameters():  # larger than they are made: actions differ
            parameter.copy_(torch.randn(parameter.shape))
    save_policy(policy, folder)
    return policy


class Running:
    """A server, and a client of it."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.served: Served | None = None

    def act(self, status: int = 200, **request: Any) -> Any:
        answer = self.client.post("/act", json=request)
        assert answer.status_code == status, answer.text
        return answer.json()

    def metric(self, name: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        begins = (f"palaestra_{name} ", f"palaestra_{name}{{")
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(begins))


@contextlib.contextmanager
def serving(name: Any, **settings: Any) -> Iterator[Running]:
    """A server until the block ends."""
    stop, said, ended = threading.Event(), queue.Queue[Any](), []

    def work() -> None:
        try:
            ended.append(serve(name, port=0, ready=said.put, stop=stop, **settings))
        except BaseException as error:
            said.put(error)
            raise

    thread = threading.Thread(target=work)
    thread.start()
    url = said.get(timeout=60)
    if isinstance(url, BaseException):
        raise url
    headers = {"Authorization": f"Bearer {settings['token']}"} if "token" in settings else {}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=30) as client:
            running = Running(client)
            yield running
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
    running.served = ended[0]
