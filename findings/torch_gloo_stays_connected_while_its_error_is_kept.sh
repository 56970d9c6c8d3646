#!/usr/bin/env bash
# Guess: a rank that catches a collective's error and calls `destroy_process_group` is gone for the others: its connections are
# closed, and whoever waits for it hears of that at once.
# Seen with torch 2.13.0, gloo, four ranks, of which one ends: a neighbour gets an error at once and destroys its group. If it
# keeps the caught error (in a variable, a log, a list of faults), the connections stay open, and another rank waits for its
# whole timeout. If it lets go of the error first, that rank has its own error within a second. The frames of the traceback
# hold what the group is made of; `traceback.clear_frames` lets go of it, too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
cat > ranks.py <<'PY'
import multiprocessing
import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT_S = 10


def work(rank, port, keeps, seconds):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=4, timeout=timedelta(seconds=TIMEOUT_S))
    dist.barrier()
    if rank == 2:
        os._exit(0)
    began, kept = time.monotonic(), []
    try:
        dist.all_gather([torch.empty(2) for _ in range(4)], torch.ones(2))
    except RuntimeError as error:
        seconds[rank] = time.monotonic() - began
        if keeps:
            kept.append(error)
    dist.destroy_process_group()
    while min(seconds[0], seconds[1], seconds[3]) < 0 and time.monotonic() < began + 2 * TIMEOUT_S:
        time.sleep(0.1)


def slowest(keeps):
    """Seconds until the last of the three that are left had its error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    seconds = context.Array("d", [-1.0] * 4)
    ranks = [context.Process(target=work, args=(rank, port, keeps, seconds)) for rank in range(4)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    assert min(seconds[0], seconds[1], seconds[3]) >= 0
    return max(seconds)


if __name__ == "__main__":
    assert torch.__version__.startswith("2.13.0")
    kept, let_go = slowest(True), slowest(False)
    print(f"torch {torch.__version__}: last error after {kept:.1f} s where errors are kept, {let_go:.1f} s where they are not")
    assert kept > 0.9 * TIMEOUT_S
    assert let_go < 0.5 * TIMEOUT_S
PY
"$folder/venv/bin/python" -W ignore ranks.py
