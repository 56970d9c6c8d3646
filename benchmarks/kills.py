"""`python -m benchmarks.kills --count 560`: runs struck in every window, resumed, and compared with unbroken ones.

A window is a stretch of a command's life: import, warm-up, unroll, update, ... In each trial a command is struck up to
three times inside one window, by SIGTERM, SIGINT, SIGKILL, or a disk that is full from then on (a limit on the size of
files), each time at a random moment. Between, and in the end, it is begun again as a user would, with `resume` or the
same command. A trial holds if it ends with the bits of an unbroken run (weights, optimizers, buffer, streams, metrics
but for times, episodes, evaluations, the policy; or the files that a command writes), if every end before that has
the exit code that is documented, and if nothing is left 30 s after it (of Ray's own, 75 s).
Only strikes inside the window are counted.

It goes on where it stopped: trials that FILE has are not made again. Needs namespaces of its own: Linux, as root.
"""

import argparse
import functools
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kill_windows import FIRST, FULL, WINDOWS, Window
from benchmarks.record import ROOT, publish, revision, table
from tests.deployment.hub import TOKEN, hub
from tests.faults import campaign
from tests.faults.campaign import ENTER, LIMIT_S, Command, Outcome, processes

RESULTS = Path(__file__).parent / "results"
FIRST_TRIALS = 500
FILE_LIMIT = 2_000
RESTARTS = ("workers/restarts", "learners/there", "learners/lost")
KINDS = ("*.onnx", "weights.safetensors", "rows.safetensors")


class Strike(NamedTuple):
    """What happens at which visit of a window."""

    how: str
    visit: int
    """The window is entered so many times before."""
    delay_s: float


def drawn(trial: int) -> tuple[Window, list[Strike]]:
    """What happens in a trial; the windows take turns."""
    own = WINDOWS[:FIRST] if trial < FIRST_TRIALS else WINDOWS[FIRST:]
    draw, window = random.Random(f"kills {trial}"), own[trial % len(own)]
    count = draw.randint(1, 3)
    return window, [
        Strike(draw.choice(window.hows), draw.randrange(window.most_visits), draw.uniform(0.0, window.delay_s))
        for _ in range(count)
    ]


def victims(title: str) -> list[int]:
    """Processes with this in their title or command line."""
    found = []
    for pid in processes():
        try:
            if title in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
        except OSError:
            continue
    return found


def strike(window: Window, how: str, pid: int, note: Path) -> None:
    """Strikes a process, and notes that it did."""
    if how == FULL:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, resource.RLIM_INFINITY))
        note.write_text(how)
        return
    whom = victims(window.victim) if window.victim else [pid]
    if not whom:
        return
    note.write_text(how)
    for one in whom:
        os.kill(one, getattr(signal, f"SIG{how}"))


def arm(window: Window, one: Strike, note: Path) -> None:
    """In the process of a command: it strikes once the window has been entered so many times."""
    module, _, path = window.place.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    method, visits = getattr(owner, name), 0

    def later(pid: int) -> None:
        time.sleep(one.delay_s)
        strike(window, one.how, pid, note)

    @functools.wraps(method)
    def entered(*args: Any, **kwargs: Any) -> Any:
        nonlocal visits
        visits += 1
        if visits == one.visit + 1:
            threading.Thread(target=later, args=(os.getpid(),), daemon=True).start()
        return method(*args, **kwargs)

    setattr(owner, name, entered)


def lower(window: Window, place: Path) -> None:
    """In the process of a command: what it has otherwise."""
    for path, number in window.lowered:
        module, _, name = path.partition(":")
        setattr(importlib.import_module(module), name, number)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place.parent / "compiled")  # empty at first


class Kills:
    """Trials, and the unbroken runs that they are compared with."""

    def __init__(self, folder: Path, models: dict[str, dict[str, bytes]]) -> None:
        self._folder, self._models, self._codes = folder, models, dict[int, int]()
        self._whole: dict[tuple[str, ...], Any] = {}

    def trial(self, window: Window, plan: list[Strike]) -> dict[str, Any]:
        """Strikes a command, begins it again, and says how it went."""
        campaign.LEFT_S = window.left_s
        began, wrong, codes, struck = time.monotonic(), list[str](), list[int | None](), Counter[str]()
        place = self._emptied("cut")
        for one in [*plan, None]:
            note = place / "struck"
            note.unlink(missing_ok=True)
            end = self._ended(window, place, one, note)
            hit = note.exists()
            codes.append(end.code)
            struck.update([one.how] if one is not None and hit else [])
            wrong += [f"left: {left}" for left in end.left]
            if end.code not in {0, *(window.may_end(one.how) if one else ())}:
                wrong.append(f"ended with {end.code} after {one}: {end.said[-1500:]}")
                if end.code is None or one is None:
                    break
        if not codes[-1]:
            replaced = window.replaces and struck and says_replaced(place / "run")
            wrong += [] if replaced else self._differing(window, place)[:20]
        seconds = round(time.monotonic() - began, 1)
        said = {"window": window.name, "plan": [list(one) for one in plan], "codes": codes}
        return {**said, "struck": struck, "wrong": wrong, "seconds": seconds}

    def _ended(self, window: Window, place: Path, one: Strike | None, note: Path) -> Outcome:
        def prepare() -> None:
            lower(window, place)
            if one is not None and window.place:
                arm(window, one, note)

        arguments = self._arguments(window, place)
        arguments += ("--run.directory", ".", "--run.name", "run") if arguments[0] == "train" else ()
        command = _Command(arguments, place, self._codes, prepare, fresh=window.fresh)
        if one is not None and not window.place:
            if window.victim:
                command.wait(lambda: victims(window.victim), LIMIT_S)
            command.wait(lambda: False, one.delay_s)
            if command.code is None:
                strike(window, one.how, command.pid, note)
        return command.ended()

    def _arguments(self, window: Window, place: Path) -> tuple[str, ...]:
        if window.setup and not (place / "run").exists():
            self._made(window.setup, place)
            self._models.clear()
        if window.command[0] != "train" and window.keeps:
            return window.command
        if window.command[0] != "train":
            shutil.rmtree(place / "data", ignore_errors=True)  # what a user would do who is told that it is not whole
            return window.command
        if all((place / file).exists() for file in window.begins):
            return ("resume", "run", "--root", ".")
        shutil.rmtree(place / "run", ignore_errors=True)
        return window.command

    def _differing(self, window: Window, place: Path) -> list[str]:
        from tests.faults.parts import differences

        found, key = contents(place, self._models), (*window.command, *map(str, window.lowered))
        if key not in self._whole:
            whole = self._emptied("whole")
            self._made(self._arguments(window, whole), whole, functools.partial(lower, window, whole))
            self._whole[key] = contents(whole, self._models)
        return differences(self._whole[key], found)

    def _made(self, command: tuple[str, ...], place: Path, prepare: Callable[[], None] | None = None) -> None:
        where = ("--run.directory", ".", "--run.name", "run") if command[0] == "train" else ()
        end = _Command((*command, *where), place, self._codes, prepare).ended()
        if end.code or end.left:
            raise SystemExit(f"{command}, unbroken, ended with {end.code} and left {end.left}: {end.said}")

    def _emptied(self, name: str) -> Path:
        shutil.rmtree(self._folder / name, ignore_errors=True)
        (self._folder / name).mkdir()
        return self._folder / name


class _Command(Command):
    """The command line in a forked process that prepares itself, or in one of its own."""

    def __init__(
        self,
        arguments: tuple[str, ...],
        folder: Path,
        codes: dict[int, int],
        prepare: Callable[[], None] | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        self._prepare, self._fresh = prepare, fresh
        super().__init__(arguments, folder, codes)

    def become(self, arguments: tuple[str, ...]) -> None:
        if self._fresh:
            os.execv(sys.executable, [sys.executable, "-m", "palaestra", *arguments])
        if self._prepare is not None:
            self._prepare()
        super().become(arguments)


def says_replaced(run: Path) -> bool:
    """Whether a run says that it has replaced a process."""
    from tests.faults.parts import logged

    names = ("workers/restarts", "replay/lost_shards")
    return any(row.get(name, 0) for row in logged(run) for name in names) or any(run.glob("faults/*.json"))


def contents(place: Path, models: Mapping[str, Mapping[str, bytes]]) -> Any:
    """What two equal commands must have in common, on a hub as well."""
    from tests.faults.parts import run_contents

    runs = sorted(path.parent for path in place.glob("run/**/config.yaml"))
    files = sorted(path for kind in KINDS for path in place.glob(f"data/**/{kind}"))
    found = {str(run.relative_to(place)): run_contents(run) for run in runs}
    for one in found.values():  # how many were replaced is what differs
        one["metrics"] = [{name: x for name, x in row.items() if name not in RESTARTS} for row in one["metrics"]]
        for name, evaluation in one["evaluations"].items():  # what is kept may be of one that a resumed run makes again
            one["evaluations"][name] = {of: x for of, x in evaluation.items() if of != "best"}
    there = {f"{model}/{name}": data for model, names in models.items() for name, data in names.items()}
    written = {str(file.relative_to(place)): file.read_bytes() for file in files} | there
    return {"runs": found, "files": {name: hashlib.sha256(data).hexdigest() for name, data in written.items()}}


def summary(results: list[dict[str, Any]]) -> str:
    """A table of the windows."""
    rows = []
    for window in WINDOWS:
        own = [one for one in results if one["window"] == window.name]
        hits = sum((Counter(one["struck"]) for one in own), Counter[str]())
        told = ", ".join(f"{how} {count}" for how, count in sorted(hits.items()))
        rows.append([window.name, str(len(own)), told or "none", str(sum(not one["wrong"] for one in own))])
    trials, good = len(results), sum(not one["wrong"] for one in results)
    total = sum(sum(one["struck"].values()) for one in results)
    rows.append(["**all**", f"**{trials}**", f"**{total}**", f"**{good}**"])
    revisions = ", ".join(dict.fromkeys(one["revision"] for one in results))
    return f"{table(['window', 'trials', 'struck inside it', 'held'], rows)}\n\nRevisions {revisions}."


def known(file: Path) -> list[dict[str, Any]]:
    """The trials that a file has."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def main() -> int:
    """The command; returns 1 if a trial did not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=560, help="trials in all, those in FILE included")
    parser.add_argument("--out", type=Path, default=RESULTS / "kills.jsonl", help="FILE of the results")
    parser.add_argument("--window", help="only trials of this window, made again and printed")
    given = parser.parse_args()
    given.out = given.out.resolve()
    if os.getpid() != 1:
        inside = ["sh", "-c", ENTER, "sh", sys.executable, "-m", "benchmarks.kills", *sys.argv[1:]]
        os.execvp("unshare", ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *inside])
    import torch

    import palaestra.cli.train  # noqa: F401 - forked processes have it then

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that begins this behind it would have it ignored
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    folder, found = Path(tempfile.mkdtemp(prefix="kills-")), known(given.out)
    done = {one["trial"] for one in found}
    wanted = [trial for trial in range(given.count) if trial not in done or given.window]
    with hub() as (address, models):
        os.environ |= {"HF_ENDPOINT": address, "HF_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
        kills = Kills(folder, models)
        for trial in wanted:
            window, plan = drawn(trial)
            if given.window not in (None, window.name):
                continue
            result: Mapping[str, Any] = {"trial": trial, "revision": revision(), **kills.trial(window, plan)}
            print(json.dumps(result), flush=True)
            if not given.window:
                with given.out.open("a") as out:
                    out.write(json.dumps(result) + "\n")
    shutil.rmtree(folder)
    results = known(given.out)
    if results and not given.window:
        publish(given.out.with_suffix(".md"), summary(results), "docs/reliability/campaign.md")
    return int(any(one["wrong"] for one in results))


if __name__ == "__main__":
    sys.exit(main())
