"""`python -m benchmarks.faults`: one faulty environment among four, and what vector environments do about it.

Every case runs in a process of its own that is given 15 seconds: "no answer" is a hang. Libraries that are not
installed are left out.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.record import ROOT, origin, provenance, table, write_json

RESULTS = Path(__file__).parent / "results"
FAULTS = ("raise", "unpicklable", "kill", "hang", "nan", "nan_reward", "shape")
LIMIT_S = 15.0
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


def ours_make(fault: str, lane: int) -> Any:
    from palaestra.envs import ChaosEnv, load

    return ChaosEnv(load("CartPole-v1", env_id=lane), f"{fault}@{STEP}#2")


def play_ours(fault: str, on_fault: str) -> str:
    import functools

    import torch

    from palaestra.envs import FaultPolicy, ProcessEnvironment

    policy = FaultPolicy(on_fault=on_fault, timeout_s=TIMEOUT_S, reset_timeout_s=10.0)  # type: ignore[arg-type]
    factories = [functools.partial(ours_make, fault, lane) for lane in range(4)]
    with ProcessEnvironment(factories, lane_seeds=[1, 2, 3, 4], num_workers=4, faults=policy) as env:
        env.reset()
        for number in range(STEP + 2):
            env.step(torch.full((4,), number % 2))
        return f"goes on; {len(env.faults)} fault recorded: environment {env.faults[0].env_id} {env.faults[0].what}"


def play_gymnasium(fault: str) -> str:
    import numpy as np
    from gymnasium.vector import AsyncVectorEnv

    env = AsyncVectorEnv([Make(fault, lane) for lane in range(4)])
    env.reset(seed=1)
    for number in range(STEP + 2):
        env.step(np.full(4, number % 2))
    env.close()
    return "accepted silently"


def play_sb3(fault: str) -> str:
    import numpy as np
    from stable_baselines3.common.vec_env import SubprocVecEnv  # pyright: ignore[reportMissingImports]

    env = SubprocVecEnv([Make(fault, lane) for lane in range(4)])
    env.reset()
    for number in range(STEP + 2):
        env.step(np.full(4, number % 2))
    env.close()
    return "accepted silently"


PLAYERS = {
    "palaestra, raise": lambda fault: play_ours(fault, "raise"),
    "palaestra, restart": lambda fault: play_ours(fault, "restart"),
    "Gymnasium AsyncVectorEnv": play_gymnasium,
    "Stable-Baselines3 SubprocVecEnv": play_sb3,
}
NEEDS = {"Stable-Baselines3 SubprocVecEnv": "stable_baselines3"}


def one(player: str, fault: str) -> None:
    """In the process of one case: prints what a caller gets to see."""
    try:
        seen = PLAYERS[player](fault)
    except BaseException as error:
        text = str(error).strip().split("\n")[0]
        seen = f"{type(error).__name__}: {text or '(empty message)'}"
    print("SEEN " + json.dumps(seen), flush=True)


def case(player: str, fault: str) -> dict[str, Any]:
    begin = time.monotonic()
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.faults", "--one", player, fault]
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    seen = f"no answer in {LIMIT_S:g} s"
    try:
        out, _ = child.communicate(timeout=LIMIT_S)
        lines = [line for line in out.splitlines() if line.startswith("SEEN ")]
        seen = json.loads(lines[-1][5:]) if lines else f"the whole process ended with code {child.returncode}"
    except subprocess.TimeoutExpired:
        pass
    finally:
        _end_group(child)
    return {"player": player, "fault": fault, "seen": seen, "seconds": round(time.monotonic() - begin, 1)}


def _end_group(child: subprocess.Popen[str]) -> None:
    """Ends the case with whatever workers it left."""
    import contextlib
    import os
    import signal

    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def markdown(record: dict[str, Any]) -> str:
    players = list(dict.fromkeys(found["player"] for found in record["cases"]))
    seen = {(found["player"], found["fault"]): found["seen"][:140].replace("|", "/") for found in record["cases"]}
    rows = [[fault, *(seen[player, fault] for player in players)] for fault in FAULTS]
    return table(["fault in 1 of 4", *players], rows) + "\n\n" + origin(record)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("PLAYER", "FAULT"), help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where faults.json and faults.md are written")
    arguments = parser.parse_args()
    if arguments.one:
        one(*arguments.one)
        return
    record: dict[str, Any] = {**provenance("python -m benchmarks.faults"), "cases": []}
    for player in PLAYERS:
        if importlib.util.find_spec(NEEDS.get(player, "gymnasium")) is None:
            print(f"{player} is not installed and left out", flush=True)
            continue
        for fault in FAULTS:
            record["cases"].append(case(player, fault))
            print(record["cases"][-1], flush=True)
    write_json(arguments.results / "faults.json", record)
    (arguments.results / "faults.md").write_text(markdown(record) + "\n")


if __name__ == "__main__":
    main()
