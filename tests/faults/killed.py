"""Kills processes with SIGKILL while they write checkpoints; prints what was left each time, a JSON line for each.

    python -m tests.faults.killed points FOLDER          at every point of the protocol, once
    python -m tests.faults.killed random FOLDER 20 0     so many times at a random moment, with a seed

One process imports the library; those that are killed are forked from it, so that hundreds of kills take seconds.
"""

import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import palaestra.core.files
from palaestra.core import CheckpointError
from palaestra.training import CheckpointStore

# What the protocol does to the disk, as Python reports it; tensor files are written in Rust, which reports nothing.
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
MILLISECONDS = 40


def state(step: int, rows: int = 2_000) -> dict[str, Any]:
    """Every number of it says which step it is of."""
    return {
        "trainer": {"step": step},
        "buffer": {"field.observation": torch.full((rows, 8), float(step)), "head": torch.tensor([step])},
        "algorithm": {"model.weight": torch.full((32, 32), float(step))},
    }


def whole(step: int, saved: dict[str, Any]) -> bool:
    """Whether a state is that of its step, to the last number."""
    tensors = [*saved["buffer"].values(), *saved["algorithm"].values()]
    return saved["trainer"]["step"] == step and all(bool((tensor == step).all()) for tensor in tensors)


def forked(work: Callable[[], None]) -> int:
    """Runs work in a child process; returns its id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def die_at(point: int, folder: Path, report: int) -> None:
    """Kills this process at the point-th event in a folder, after reporting its name."""
    count = 0

    def reached(name: str) -> None:
        nonlocal count
        count += 1
        if count == point:
            os.write(report, name.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        # a tree is removed by names relative to its folders
        if event == "os.remove" or (event in EVENTS and str(arguments[0]).startswith(str(folder))):
            reached(f"{event} {os.path.basename(str(arguments[0]))}")

    fsync, save_file = os.fsync, palaestra.core.files.save_file

    def flushing(descriptor: int) -> None:
        reached("before fsync")
        fsync(descriptor)
        reached("after fsync")

    def half_written(tensors: Any, path: Any, metadata: Any = None) -> None:
        save_file(tensors, path, metadata=metadata)
        content = Path(path).read_bytes()
        Path(path).write_bytes(content[: len(content) // 2])
        reached("half a tensor file")
        Path(path).write_bytes(content)

    os.fsync, palaestra.core.files.save_file = flushing, half_written
    sys.addaudithook(audit)


def examined(store: CheckpointStore, killed: bool, acknowledged: int, event: str) -> dict[str, Any]:
    """What a fresh look at the folder finds; the next save has to clean it."""
    try:
        step, saved = store.load_newest()
        newest, right = step, whole(step, saved)
    except CheckpointError as error:
        newest, right = -1, f"{error}"
    left = len(list(store.directory.glob(".tmp-*")))
    corrupt = len(list(store.directory.glob("*.corrupt")))
    store.save(newest + 1, state(newest + 1))
    uncleaned = len(list(store.directory.glob(".tmp-*")))
    return {
        "killed": killed,
        "event": event,
        "acknowledged": acknowledged,
        "newest": newest,
        "right": right,
        "left": left,
        "corrupt": corrupt,
        "uncleaned": uncleaned,
    }


def at_every_point(store: CheckpointStore) -> None:
    """Until a save gets through alive."""
    for point in range(1, 200):
        last = int(store.steps()[-1].name.removeprefix("step_"))
        reader, writer = os.pipe()

        def work(last: int = last, point: int = point, writer: int = writer) -> None:
            die_at(point, store.directory, writer)
            store.save(last + 1, state(last + 1))

        child = forked(work)
        os.close(writer)
        _, status = os.waitpid(child, 0)
        event = os.read(reader, 200).decode()
        os.close(reader)
        killed = os.WIFSIGNALED(status)
        if not killed and os.WEXITSTATUS(status):
            raise SystemExit(f"the save failed after {point - 1} points")
        print(json.dumps(examined(store, killed, last, event)), flush=True)
        if not killed:
            return


def at_random_times(store: CheckpointStore, count: int, seed: int) -> None:
    """While one save follows another."""
    draw = random.Random(seed)
    for _ in range(count):
        last = int(store.steps()[-1].name.removeprefix("step_"))
        reader, writer = os.pipe()

        def work(last: int = last, writer: int = writer) -> None:
            for step in range(last + 1, last + 10_000):
                store.save(step, state(step))
                os.write(writer, f"{step}\n".encode())

        child = forked(work)
        os.close(writer)
        deadline_s = time.monotonic() + draw.uniform(0.001, MILLISECONDS / 1000)
        acknowledged, text = last, ""
        while (rest_s := deadline_s - time.monotonic()) > 0:
            if select.select([reader], [], [], rest_s)[0]:
                text += os.read(reader, 4096).decode()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        text += os.read(reader, 65536).decode()
        acknowledged = max([last, *(int(line) for line in text.split("\n")[:-1])])
        os.close(reader)
        print(json.dumps(examined(store, True, acknowledged, "random")), flush=True)


def main(how: str, folder: str, *options: str) -> None:
    """The command."""
    torch.set_num_threads(1)
    store = CheckpointStore(folder, keep=2)
    for step in (1, 2):
        store.save(step, state(step))
    if how == "points":
        at_every_point(store)
    else:
        at_random_times(store, *(int(option) for option in options))


if __name__ == "__main__":
    main(*sys.argv[1:])
