"""What batching is worth over HTTP: `palaestra serve` beside a server that computes every request by itself.

    python -m benchmarks.speed.serve             # 5 rounds, in turns; two minutes
    python -m benchmarks.speed.serve --rounds 1 --window 2 --results /tmp/x

A policy of PPO on CartPole-v1. Both servers are processes of their own, on Starlette and uvicorn, and both answer with
JSON. The clients are one more process: connections that stay open, each of which sends an observation, waits for
the action, and sends the next; it reads of an answer only its length, to take little of the two cores. Latency is the
time from the first byte sent to the last byte received.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import origin, provenance, table, versions, write_json

RESULTS = Path(__file__).parent / "results"
SERVERS = ("batched", "one by one")
BAR = 2000  # requests a second with 32 clients
CLIENTS = (1, 32)


# -- the other server: the same libraries, one forward pass for each request


def serve_one_by_one(directory: str, port: int) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from palaestra import load_policy

    policy = load_policy(directory)

    async def act(request: Request) -> JSONResponse:
        observation = np.array((await request.json())["observation"], np.float32)
        return JSONResponse({"action": policy(observation).item()})

    app = Starlette(routes=[Route("/act", act, methods=["POST"])])
    uvicorn.run(app, port=port, lifespan="off", ws="none", access_log=False, log_level="error")


@contextlib.contextmanager
def running(name: str, directory: Path) -> Iterator[int]:
    """A server in a process of its own; its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ours = ["-m", "palaestra", "serve", str(directory), "--port", str(port)]
    other = ["-m", "benchmarks.speed.serve", "--one-by-one", str(directory), str(port)]
    process = subprocess.Popen([sys.executable, *(ours if name == "batched" else other)], stdout=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(30)


# -- the clients, a process of their own


class Client(asyncio.Protocol):
    """Asks again as soon as it is answered, and notes how long it took."""

    def __init__(self, requests: list[bytes], latencies_s: list[float]) -> None:
        self.requests, self.latencies_s = requests, latencies_s
        self.answer, self.number, self.began_s = b"", 0, 0.0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.began_s = time.perf_counter()
        self.transport.write(self.requests[self.number % len(self.requests)])
        self.number += 1

    def data_received(self, data: bytes) -> None:
        self.answer += data
        head, found, body = self.answer.partition(b"\r\n\r\n")
        if not found or len(body) < int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the server answered {self.answer!r}")
        self.latencies_s.append(time.perf_counter() - self.began_s)
        self.answer = b""
        self.ask()


def bodies() -> list[bytes]:
    rng = np.random.default_rng(0)
    return [json.dumps({"observation": row}).encode() for row in rng.normal(0, 0.1, (64, 4)).round(6).tolist()]


async def ask(port: int, clients: int, window_s: float) -> dict[str, float]:
    head = "POST /act HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    requests = [head.format(len(body)).encode() + body for body in bodies()]
    latencies_s: list[float] = []
    loop = asyncio.get_running_loop()
    for number in range(clients):
        shifted = requests[number:] + requests[:number]
        await loop.create_connection(lambda mine=shifted: Client(mine, latencies_s), "127.0.0.1", port)
    await asyncio.sleep(min(1.0, window_s / 2))
    latencies_s.clear()
    began_s = time.perf_counter()
    await asyncio.sleep(window_s)
    took_s, found_s = time.perf_counter() - began_s, sorted(latencies_s)
    p50, p99 = (1000 * found_s[int(share * (len(found_s) - 1))] for share in (0.5, 0.99))
    return {"requests_per_s": len(found_s) / took_s, "p50_ms": p50, "p99_ms": p99}


def asked(port: int, clients: int, window_s: float) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.speed.serve", "--ask", str(port), str(clients), str(window_s)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 3 * window_s)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


# -- rounds


def measure(rounds: int, window_s: float) -> dict[str, list[dict[str, float]]]:
    from palaestra import train

    found: dict[str, list[dict[str, float]]] = {}
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for all processes: the policy is small
    with tempfile.TemporaryDirectory() as folder:
        budget = {"trainer__total_env_steps": 4096, "trainer__eval_episodes": 2, "run__tensorboard": False}
        directory = train("ppo", "CartPole-v1", run__directory=folder, **budget).directory / "policy"
        for _ in range(rounds):
            for name in SERVERS:
                with running(name, directory) as port:
                    for clients in CLIENTS:
                        found.setdefault(f"{name}, {clients}", []).append(asked(port, clients, window_s))
    return found


def median(values: list[dict[str, float]], name: str) -> float:
    return statistics.median(value[name] for value in values)


def markdown(record: dict[str, Any]) -> str:
    found, rows = record["servers"], []
    for clients in CLIENTS:
        ours, alone = (found[f"{name}, {clients}"] for name in SERVERS)
        ratios = [a["requests_per_s"] / b["requests_per_s"] for a, b in zip(ours, alone, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        for name, values, ratio in (("`palaestra serve`", ours, spread), ("one by one", alone, "")):
            numbers = [f"{median(values, 'requests_per_s'):,.0f}", ratio]
            late = [f"{median(values, key):.2f}" for key in ("p50_ms", "p99_ms")]
            met = "yes" if median(values, "requests_per_s") >= BAR else "no"
            bar = [f"{BAR:,}", met] if clients == max(CLIENTS) and ratio else ["", ""]
            rows.append([str(clients), name, *numbers, *late, *bar])
    head = ["clients", "server", "requests/s", "ratio (range)", "p50, ms", "p99, ms", "bar", "met"]
    return f"{table(head, rows)}\n\n{origin(record)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.serve", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=4.0, help="seconds of each measurement")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--one-by-one", nargs=2, metavar=("DIR", "PORT"), help=argparse.SUPPRESS)
    parser.add_argument("--ask", nargs=3, metavar=("PORT", "CLIENTS", "SECONDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one_by_one:
        serve_one_by_one(arguments.one_by_one[0], int(arguments.one_by_one[1]))
    elif arguments.ask:
        port, clients, window_s = arguments.ask
        sys.stdout.write(json.dumps(asyncio.run(ask(int(port), int(clients), float(window_s)))))
    else:
        command = f"python -m benchmarks.speed.serve --rounds {arguments.rounds} --window {arguments.window:g}"
        record = provenance(command)
        record["versions"] |= versions(("starlette", "uvicorn", "h11"))
        record |= {"servers": measure(arguments.rounds, arguments.window)}
        write_json(arguments.results / "serve.json", record)
        (arguments.results / "serve.md").write_text(markdown(record) + "\n")
        sys.stdout.write(markdown(record) + "\n")


if __name__ == "__main__":
    main()
