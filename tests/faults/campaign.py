"""Disturbs training runs at random, resumes them, and compares each with the run that nobody disturbed.

    python -m tests.faults.campaign --trials 200 --seed 0 --out FILE

Algorithm, environment, lanes, way of stepping, moments, signals and whom they hit are drawn for every trial. A trial
holds if everything but wall-clock times is equal in the end, and nothing is left 10 s after each end. It needs
namespaces of processes and mounts, so that what is left is known exactly: Linux, as root.
FILE gets a line of JSON for each trial and a last one with the sums.

One process imports the library; the command line of every run is forked from it.
"""

import argparse
import functools
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

STEPS = 600
LANES = (1, 2, 3, 4, 8, 16)
KINDS = ("serial", "thread", "process", "ray")
HOW = ("KILL", "KILL", "TERM", "INT", "STOP")
LIMIT_S = 120.0
LEFT_S = 10.0
ENTER = 'mount -t tmpfs none /dev/shm && exec "$@"'
COMMON = (
    *("--algorithm.network.hidden-sizes", "16", "--trainer.total-env-steps", str(STEPS)),
    *("--trainer.checkpoint-every-steps", "90", "--trainer.log-every-steps", "20", "--trainer.eval-every-steps", "200"),
    *("--trainer.eval-episodes", "2", "--env.max-episode-steps", "60", "--run.no-tensorboard", "--run.seed", "7"),
)
OF_ALGORITHM = {
    "ppo": ("--algorithm.unroll-length", "8", "--algorithm.mini-batch-size", "16", "--algorithm.num-epochs", "2"),
    "dqn": ("--algorithm.capacity", "400", "--algorithm.learning-starts", "60", "--algorithm.mini-batch-size", "16"),
    "sac": ("--algorithm.capacity", "400", "--algorithm.learning-starts", "60", "--algorithm.mini-batch-size", "16"),
}
TASKS = (("ppo", "CartPole-v1"), ("ppo", "HalfCheetah-v5"), ("dqn", "CartPole-v1"), ("sac", "HalfCheetah-v5"))


class Case(NamedTuple):
    """A run."""

    algorithm: str
    env: str
    kind: str
    lanes: int

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of the command line, to begin it."""
        workers = str(min(2, self.lanes))
        of_kind = {
            "ray": ("--distributed.runtime", "ray", "--distributed.num-workers", workers),
            "process": ("--env.vectorization", "process", "--env.num-workers", workers),
        }
        where = of_kind.get(self.kind, ("--env.vectorization", self.kind))
        own = OF_ALGORITHM[self.algorithm]
        return ("train", self.algorithm, self.env, "--env.num-envs", str(self.lanes), *COMMON, *own, *where)


class Disturbance(NamedTuple):
    """A signal, and when and whom it strikes."""

    how: str
    whom: str
    env_steps: int | None
    """Once so many were logged; after `delay_s` from the start if `None`."""
    delay_s: float


class Outcome(NamedTuple):
    """How one process ended."""

    code: int | None
    said: str
    left: list[str]
    """What was there ten seconds later."""


def drawn(seed: int, trial: int) -> tuple[Case, list[Disturbance]]:
    """What happens in a trial."""
    draw = random.Random(f"{seed} {trial}")
    algorithm, env = TASKS[trial % len(TASKS)]
    kind = KINDS[trial // len(TASKS) % len(KINDS)]
    lanes = 1 if kind == "thread" else draw.choice(LANES)
    lanes += lanes % 2 if kind == "ray" and lanes > 1 else 0  # shared out evenly
    plan = []
    for _ in range(draw.randint(1, 3) if kind != "ray" else 1):  # which takes long to start
        how = draw.choice(HOW)
        whom = draw.choice(
            ("main", "group", "worker") if kind == "process" and how in ("KILL", "STOP") else ("main", "group")
        )
        early = draw.random() < 0.25
        at = None if early else draw.randrange(20, STEPS)
        plan.append(Disturbance(how, whom, at, draw.uniform(0.0, 1.5 if early else 0.05)))
    plan.sort(key=lambda one: one.env_steps or draw.randrange(STEPS))
    return Case(algorithm, env, kind, lanes), plan


def processes() -> list[int]:
    """All others of this namespace; those that have ended are collected first."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != os.getpid()]


class Command:
    """The command line in a forked process."""

    def __init__(self, arguments: tuple[str, ...], folder: Path, codes: dict[int, int]) -> None:
        self._codes, self._log = codes, folder / "log.txt"
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _become(functools.partial(self.become, arguments), folder, self._log)

    def become(self, arguments: tuple[str, ...]) -> None:
        """What the forked process does."""
        from palaestra.cli import main

        main(arguments)

    @property
    def code(self) -> int | None:
        """How it ended; `None` while it runs."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                self._codes[found[0]] = os.waitstatus_to_exitcode(found[1])
        return self._codes.get(self.pid)

    def wait(self, until: Callable[[], object], limit_s: float) -> bool:
        """Until it has ended or something holds; whether that was in time."""
        deadline_s = time.monotonic() + limit_s
        while self.code is None and not until():
            if time.monotonic() > deadline_s:
                return False
            select.select([], [], [], 0.002)
        return True

    def strike(self, one: Disturbance) -> None:
        """Sends the signal; what was stopped goes on a second later."""
        others = [pid for pid in processes() if pid != self.pid]
        # the newest process is a worker of the environments
        victims = {"main": [self.pid], "group": [self.pid, *others], "worker": others[-1:]}[one.whom]
        for number in (signal.SIGSTOP, signal.SIGCONT) if one.how == "STOP" else (getattr(signal, f"SIG{one.how}"),):
            if number == signal.SIGCONT:
                self.wait(lambda: False, 1.0)
            for pid in victims:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def ended(self) -> Outcome:
        """Waits for the end, then for the end of everything that it had begun."""
        in_time = self.wait(lambda: False, LIMIT_S)
        code = self.code
        deadline_s = time.monotonic() + LEFT_S
        while (left := self._left()) and in_time and time.monotonic() < deadline_s:
            select.select([], [], [], 0.02)
        for pid in processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait(lambda: not processes(), LEFT_S)
        for path in Path("/dev/shm").iterdir():
            path.unlink()
        return Outcome(code, self._log.read_text(errors="replace")[-3000:], left)

    def _left(self) -> list[str]:
        _ = self.code
        named = []
        for pid in processes():
            with suppress(OSError):
                named.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:100] or f"process {pid}")
        return named + [f"/dev/shm/{name}" for name in os.listdir("/dev/shm")]


def _become(work: Callable[[], None], folder: Path, log: Path) -> None:
    try:
        os.setsid()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(folder)
        work()
    except SystemExit as end:
        _leave(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        traceback.print_exc()
        _leave(1)


def _leave(code: int) -> None:
    """As an interpreter does that ends; its child processes are told by their own threads and pipes."""
    import atexit
    import multiprocessing.util

    multiprocessing.util._exit_function()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Campaign:
    """Trials, and the undisturbed runs that they are compared with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole: dict[Case, Any] = {}
        self._codes: dict[int, int] = {}

    def trial(self, case: Case, plan: list[Disturbance]) -> dict[str, Any]:
        """Disturbs a run, and says how it went."""
        from tests.faults.parts import differences

        began = time.monotonic()
        wrong, codes, struck = [], [], 0
        run = self._folder / "cut"
        shutil.rmtree(run, ignore_errors=True)
        for one in [*plan, None]:
            before, now = _written(run), time.monotonic()
            command = self._command(case, run)
            if one is not None and command.wait(functools.partial(_due, one, run, now, before), LIMIT_S):
                if one.env_steps is not None:
                    command.wait(lambda: False, one.delay_s)
                struck += command.code is None
                command.strike(one)
            end = command.ended()
            codes.append(end.code)
            wrong += [f"left: {left}" for left in end.left]
            if not _as_it_should(one, end.code):
                wrong.append(f"ended with {end.code} after {one}: {end.said[-1500:]}")
                if end.code is None or one is None:
                    break
        if not codes[-1]:
            wrong += differences(self._uninterrupted(case), _contents(run))[:20]
        return {
            **case._asdict(),
            "plan": [list(one) for one in plan],
            "codes": codes,
            "disturbed": struck,
            "wrong": wrong,
            "seconds": round(time.monotonic() - began, 1),
        }

    def _command(self, case: Case, run: Path) -> Command:
        """Begins a run, or resumes it where there is one."""
        if not (run / "config.yaml").is_file():  # struck before there was anything to resume
            shutil.rmtree(run, ignore_errors=True)
            place = ("--run.directory", str(run.parent), "--run.name", run.name)
            return Command((*case.arguments, *place), self._folder, self._codes)
        return Command(("resume", str(run)), self._folder, self._codes)

    def _uninterrupted(self, case: Case) -> Any:
        if case not in self._whole:
            run = self._folder / "whole"
            shutil.rmtree(run, ignore_errors=True)
            end = self._command(case, run).ended()
            if end.code or end.left:
                raise SystemExit(f"{case}, undisturbed, ended with {end.code} and left {end.left}: {end.said}")
            self._whole[case] = _contents(run)
        return self._whole[case]


def _due(one: Disturbance, run: Path, began_s: float, before: int) -> bool:
    from tests.faults.parts import logged

    if one.env_steps is None:
        return time.monotonic() - began_s >= one.delay_s
    rows = logged(run) if _written(run) > before else []
    return bool(rows) and rows[-1]["env_steps"] >= one.env_steps


def _written(run: Path) -> int:
    """When metrics were written last, by any process."""
    path = run / "metrics.jsonl"
    return path.stat().st_mtime_ns if path.exists() else 0


def _as_it_should(one: Disturbance | None, code: int | None) -> bool:
    """Whether a command may end like this; one that was quicker than its disturbance ends with 0."""
    if one is None or (one.how == "STOP" and code != 0):
        return code == 0
    # a lost worker ends the run with 3; before its handlers are there, Python's own answer to a signal
    after = {"KILL": {-9, 3}, "TERM": {143, -15}, "INT": {130, -2}, "STOP": {0}}[one.how]
    return code in after | {0}


def _contents(run: Path) -> Any:
    from tests.faults.parts import run_contents

    return run_contents(run)


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over the trials."""
    signals = Counter(f"SIG{one[0]} {one[1]}" for result in results for one in result["plan"])
    return {
        "trials": len(results),
        "equal": sum(not result["wrong"] for result in results),
        "disturbances": sum(result["disturbed"] for result in results),
        "signals": dict(sorted(signals.items())),
        **{
            name: dict(sorted(Counter(str(result[name]) for result in results).items()))
            for name in ("algorithm", "env", "kind", "lanes")
        },
        "seconds": round(sum(result["seconds"] for result in results)),
    }


def main() -> int:
    """The command; returns 1 if a trial did not hold."""
    parser = argparse.ArgumentParser(description="Disturb runs at random and compare what becomes of them.")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if os.getpid() != 1:
        inside = ["sh", "-c", ENTER, "sh", sys.executable, "-m", "tests.faults.campaign", *sys.argv[1:]]
        return subprocess.call(["unshare", "--mount", "--pid", "--fork", "--mount-proc", *inside])
    import torch

    import palaestra.cli.train  # noqa: F401 - forked processes have it then

    torch.set_num_threads(1)
    folder, results = Path(tempfile.mkdtemp(prefix="campaign-")), []
    campaign = Campaign(folder)
    with given.out.open("a") as out:
        for trial in range(given.first, given.first + given.trials):
            result = {"trial": trial, **campaign.trial(*drawn(given.seed, trial))}
            results.append(result)
            print(json.dumps(result), file=out, flush=True)
        print(json.dumps(summary(results)), file=out)
    shutil.rmtree(folder)
    return int(any(result["wrong"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
