"""`python -m benchmarks.learning run [ROW ...]` trains what is missing; `report` prints a table and draws curves."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.learning import queue
from benchmarks.learning.curves import draw
from benchmarks.learning.pages import PAGES, write_pages
from benchmarks.learning.rows import ROWS
from benchmarks.learning.summary import markdown, peer_seeds
from benchmarks.record import ROOT, provenance
from benchmarks.speed.peers import default_directory, installed_peer

RESULTS = Path(__file__).parent / "results"
CURVES = ROOT / "docs" / "assets" / "curves"
LOCK = threading.Lock()
WORKER = ("-m", "benchmarks.learning.worker")
PEER_WORKER = ("-m", "benchmarks.learning.peer_worker")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="train the seeds that have no result yet; of all rows if none is named")
    run.add_argument("rows", nargs="*", metavar="ROW", help="for example ppo_CartPole-v1; see `status`")
    run.add_argument("--seeds", type=int, nargs="+", help="which; default as many as the row wants, from 0")
    run.add_argument("--jobs", type=int, default=2, help="processes at a time, one thread each")
    run.add_argument("--minutes", type=float, help="start no seed after so long; run again to go on")
    run.add_argument("--peer-dir", type=Path, default=default_directory(), help="where Stable-Baselines3 is installed")
    run.add_argument("--env-steps", type=int, help="another budget, to try the benchmark itself; give --results too")
    status = verbs.add_parser("status", help="which rows are done, partial or not run")
    report = verbs.add_parser("report", help="print the table; renew summaries, pages and curves (needs matplotlib)")
    report.add_argument("--curves", type=Path, default=CURVES, help="where curves are written")
    report.add_argument("--pages", type=Path, default=PAGES, help="where the pages of the algorithms are")
    for verb in (run, status, report):
        verb.add_argument("--results", type=Path, default=RESULTS, help="where results are")
    arguments = parser.parse_args()
    unknown = [name for name in getattr(arguments, "rows", []) if name not in ROWS]
    if unknown:
        parser.error(f"unknown row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    if getattr(arguments, "env_steps", None) and arguments.results == RESULTS:
        parser.error("a run with another budget is no result; give --results another folder")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """One job after another; a row's file is written whenever one of its seeds is there."""
    jobs = queue.pending(arguments.results, arguments.rows, arguments.seeds)
    peer = installed_peer(arguments.peer_dir, "sb3")[0] if any(job.row.peer for job in jobs) else None
    end = None if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(arguments.jobs) as pool:

        def work(job: queue.Job) -> None:
            if end is None or time.monotonic() < end:
                origin = provenance(f"python -m benchmarks.learning run {job.row.name}")
                env_steps = arguments.env_steps or job.row.env_steps
                if job.row.peer:
                    result = train(job, [str(peer), *PEER_WORKER], [str(env_steps)])
                else:
                    budget = {"trainer__total_env_steps": env_steps, "run__compile": job.row.compile}
                    settings = json.dumps({**job.row.settings, **budget})
                    result = train(job, [sys.executable, *WORKER], [directory, settings])
                with LOCK:
                    queue.add(arguments.results, job, result, origin)

        futures = [pool.submit(work, job) for job in jobs]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def train(job: queue.Job, worker: list[str], rest: list[str]) -> dict[str, Any]:
    env = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
    command = [*worker, job.row.algorithm, job.row.env, str(job.seed), *rest]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    last = result["final"]["last"]["return_mean"]
    steps, seconds = result["env_steps"][-1], result["train_s"]
    print(f"{job.row.name}  seed {job.seed}  {last:.1f} after {steps:,} env steps, {seconds:.0f} s", flush=True)
    return result


def status(arguments: argparse.Namespace) -> None:
    for name, row in ROWS.items():
        done = queue.seeds_done(queue.read(arguments.results, row))
        print(f"{queue.status(arguments.results, row):<8} {len(done)}/{row.seeds}  {name}  {row.env_steps:,} env steps")


def report(arguments: argparse.Namespace) -> None:
    records = {name: queue.read(arguments.results, row) for name, row in ROWS.items()}
    if not any(records.values()):
        raise SystemExit(f"no results in {arguments.results}; first run `python -m benchmarks.learning run`")
    for row in ROWS.values():
        queue.renew(arguments.results, row)
    print(markdown(records))
    for page in write_pages(records, arguments.pages):
        print(f"wrote {page}", file=sys.stderr)
    if importlib.util.find_spec("matplotlib") is None:
        print("no curves: matplotlib is not installed", file=sys.stderr)
        return
    for name, record in records.items():
        if record is not None and not ROWS[name].peer:
            path = draw(name, record, arguments.curves, peer_seeds(ROWS[name], records))
            print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    arguments = parse()
    {"run": run, "status": status, "report": report}[arguments.verb](arguments)
