"""`python -m benchmarks.faults`: one faulty environment among four, and what vector environments do about it.

Every case runs in a process of its own, which is given 15 seconds from its reset on: "no answer" is a hang.
Stable-Baselines3 and Tianshou are those of `benchmarks.speed`; what both sides need is imported from our environment.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.record import ROOT, origin, provenance, publish, table, write_json
from benchmarks.speed import buffers, peers

RESULTS = Path(__file__).parent / "results"
FAULTS = ("raise", "unpicklable", "kill", "hang", "nan", "nan_reward", "shape")
LIMIT_S, START_S = 15.0, 120.0
TIMEOUT_S = 2.0
STEP = 4


def faulty_env(fault: str, lane: int) -> Any:
    """CartPole as a Gymnasium environment; environment 2 misbehaves in step 4."""
    import gymnasium
    import numpy as np

    from palaestra.envs import ChaosEnv, load

    class Env(gymnasium.Env):
        def __init__(self) -> None:
            inner = load("CartPole-v1", env_id=lane)
            self.inner = ChaosEnv(inner, f"{fault}@{STEP}#2")
            plain = gymnasium.make("CartPole-v1")
            self.observation_space, self.action_space = plain.observation_space, plain.action_space

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            first = self.inner.begin_episode(seed or 0)
            return np.asarray(first.observation), {}

        def step(self, action: Any) -> Any:
            step = self.inner.advance(np.int64(action))
            last = step.step_type == 2
            ended = bool(last and step.discount == 0)
            return step.observation, float(step.reward), ended, bool(last and not ended), {}

    return Env()


class Make:
    """A factory that every library can send to its workers."""

    def __init__(self, fault: str, lane: int) -> None:
        self.fault, self.lane = fault, lane

    def __call__(self) -> Any:
        return faulty_env(self.fault, self.lane)


def begin_to_wait() -> None:
    """Environments are there, so that what takes long from now on is a hang."""

    def end() -> None:
        print("SEEN " + json.dumps(f"no answer in {LIMIT_S:g} s"), flush=True)
        os._exit(1)

    timer = threading.Timer(LIMIT_S, end)
    timer.daemon = True
    timer.start()


def ours_make(fault: str, lane: int) -> Any:
    from palaestra.envs import ChaosEnv, load

    return ChaosEnv(load("CartPole-v1", env_id=lane), f"{fault}@{STEP}#2")


def play_ours(fault: str, on_fault: str) -> str:
    import functools

    import torch

    from palaestra.envs import FaultPolicy, ProcessDriver

    policy = FaultPolicy(on_fault=on_fault, timeout_s=TIMEOUT_S, reset_timeout_s=10.0)  # type: ignore[arg-type]
    factories = [functools.partial(ours_make, fault, lane) for lane in range(4)]
    with LaneEnvironment(ProcessDriver(factories, num_workers=4, faults=policy), lane_seeds=[1, 2, 3, 4]) as env:
        env.reset()
        begin_to_wait()
        for number in range(STEP + 2):
            env.step(torch.full((4,), number % 2))
        return f"goes on; {len(env.faults)} fault recorded: environment {env.faults[0].env_id} {env.faults[0].what}"


def play_gymnasium(fault: str) -> str:
    import numpy as np
    from gymnasium.vector import AsyncVectorEnv

    env = AsyncVectorEnv([Make(fault, lane) for lane in range(4)])
    env.reset(seed=1)
    begin_to_wait()
    for number in range(STEP + 2):
        env.step(np.full(4, number % 2))
    env.close()
    return "accepted silently"


def play_sb3(fault: str) -> str:
    import numpy as np
    from stable_baselines3.common.vec_env import SubprocVecEnv  # pyright: ignore[reportMissingImports]

    env = SubprocVecEnv([Make(fault, lane) for lane in range(4)])
    env.reset()
    begin_to_wait()
    for number in range(STEP + 2):
        env.step(np.full(4, number % 2))
    env.close()
    return "accepted silently"


def play_tianshou(fault: str) -> str:
    import numpy as np
    from tianshou.env import SubprocVectorEnv  # pyright: ignore[reportMissingImports]

    env = SubprocVectorEnv([Make(fault, lane) for lane in range(4)])
    env.reset()
    begin_to_wait()
    for number in range(STEP + 2):
        env.step(np.full(4, number % 2))
    env.close()
    return "accepted silently"


PLAYERS = {
    "palaestra, raise": lambda fault: play_ours(fault, "raise"),
    "palaestra, restart": lambda fault: play_ours(fault, "restart"),
    "Gymnasium AsyncVectorEnv": play_gymnasium,
    "Stable-Baselines3 SubprocVecEnv": play_sb3,
    "Tianshou SubprocVectorEnv": play_tianshou,
}
PEERS = {"Stable-Baselines3 SubprocVecEnv": "sb3", "Tianshou SubprocVectorEnv": "tianshou"}


def one(player: str, fault: str, packages: str) -> None:
    """In the process of one case: prints what a caller gets to see."""
    if packages:
        sys.path.append(packages)  # last, so that only what we do not have comes from there
    try:
        seen = PLAYERS[player](fault)
    except BaseException as error:
        text = str(error).strip().split("\n")[0]
        seen = f"{type(error).__name__}: {text or '(empty message)'}"
    print("SEEN " + json.dumps(seen), flush=True)


def case(player: str, fault: str, packages: str) -> dict[str, Any]:
    begin = time.monotonic()
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.faults", "--one", player, fault, packages]
    with tempfile.TemporaryFile("w+") as out:  # no pipe: workers that are left behind would keep it open
        child = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            child.wait(START_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end_group(child)
        out.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith("SEEN ")]
    ended = f"no environment in {START_S:g} s" if child.returncode < 0 else f"the process ended with {child.returncode}"
    seen = json.loads(lines[-1][5:]) if lines else ended
    return {"player": player, "fault": fault, "seen": seen, "seconds": round(time.monotonic() - begin, 1)}


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Ends the case with whatever workers it left."""
    import contextlib
    import signal

    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def markdown(record: dict[str, Any]) -> str:
    players = list(dict.fromkeys(found["player"] for found in record["cases"]))
    seen = {(found["player"], found["fault"]): found["seen"][:140].replace("|", "/") for found in record["cases"]}
    rows = [[fault, *(seen[player, fault] for player in players)] for fault in FAULTS]
    versions = ", ".join(f"{n} {v}" for found in record["peers"].values() for n, v in found.items())
    return table(["fault in 1 of 4", *players], rows) + f"\n\n{origin(record)} Peers: {versions}."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--one", nargs=3, metavar=("PLAYER", "FAULT", "PACKAGES"), help=argparse.SUPPRESS)
    parser.add_argument(
        "--peer-dir", type=Path, default=peers.default_directory(), help="where the peers are installed"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where faults.json and faults.md are written")
    arguments = parser.parse_args()
    if arguments.one:
        from benchmarks.faults import one  # not that of `__main__`, which workers could not import

        one(*arguments.one)
        return
    record: dict[str, Any] = {**provenance("python -m benchmarks.faults"), "peers": {}, "cases": []}
    for player in PLAYERS:
        packages = ""
        if (name := PEERS.get(player)) is not None:
            python, record["peers"][name] = peers.environment(
                arguments.peer_dir, name, buffers.PEERS[name][1], buffers.SHARED
            )
            packages = str(next(python.parent.parent.glob("lib/python*/site-packages")))
        for fault in FAULTS:
            record["cases"].append(case(player, fault, packages))
            print(record["cases"][-1], flush=True)
    write_json(arguments.results / "faults.json", record)
    publish(arguments.results / "faults.md", markdown(record), "docs/concepts/faults.md")


if __name__ == "__main__":
    main()
