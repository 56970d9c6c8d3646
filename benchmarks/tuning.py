"""`python -m benchmarks.tuning`: a search from DQN's defaults to the Zoo's level on Acrobot-v1, killed in the middle.

The search runs in a process of its own, which is ended by `kill -9` after a third of its time; a second one goes on.
Writes `benchmarks/results/tuning_dqn_Acrobot-v1.json`. The defaults, without a search, are trained on the same fresh
seeds and play the same episodes.
"""

import argparse
import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import palaestra
from benchmarks.record import provenance, write_json
from palaestra import EnvConfig, ExperimentConfig, TrainerConfig
from palaestra.algorithms import DQNConfig
from palaestra.experiments import Search, evaluate_run, train_seeds

RESULT = Path(__file__).parent / "results" / "tuning_dqn_Acrobot-v1.json"
ZOO = -76.6
"""DQN on Acrobot-v1 after 100,000 steps: RL Baselines3 Zoo, benchmark.md."""
STEPS = 60_000
_LEFT_OUT = ("unroll_length", "learning_starts", "n_step", "huber_delta", "max_grad_norm")
"""Not searched, so that the trials suffice for what is."""


def configuration() -> ExperimentConfig:
    """DQN's defaults."""
    trainer = TrainerConfig(total_env_steps=STEPS, eval_every_steps=STEPS // 10, eval_episodes=30)
    return ExperimentConfig(
        algorithm_name="dqn", algorithm=DQNConfig(), env=EnvConfig(name="Acrobot-v1"), trainer=trainer
    )


def search(folder: Path, seconds: float, trials: int) -> None:
    """The search, or its second half; prints a line for each trial."""
    asked = Search(output=str(folder), trials=trials, seeds=2, time_limit_s=seconds, top=1, fresh_seeds=5)

    def tell(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)

    space = {f"algorithm.{name}": None for name in _LEFT_OUT}
    palaestra.tune("dqn", "Acrobot-v1", search=asked, space=space, config=configuration(), on_trial=tell)


def defaults(folder: Path) -> list[float]:
    """Returns of the defaults on the winners' seeds and episodes."""
    config = configuration()
    run = dataclasses.replace(config.run, directory=str(folder))
    done = train_seeds(dataclasses.replace(config, run=run), range(10_000, 10_005))
    return [evaluate_run(seed.directory, episodes=100).return_mean for seed in done.seeds]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("folder", type=Path, help="of the study; must not exist")
    parser.add_argument("--minutes", type=float, default=25.0, help="of the search; the winner is trained after it")
    parser.add_argument("--trials", type=int, default=100, help="at most")
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.seconds is not None:
        search(arguments.folder, arguments.seconds, arguments.trials)
        return
    if arguments.folder.exists():
        parser.error(f"{arguments.folder} exists already")
    began_s, limit_s = time.monotonic(), 60 * arguments.minutes
    command = [sys.executable, "-m", "benchmarks.tuning", str(arguments.folder), "--trials", str(arguments.trials)]
    first = subprocess.Popen([*command, "--seconds", str(limit_s)])
    try:
        first.wait(limit_s / 3)
    except subprocess.TimeoutExpired:
        first.send_signal(signal.SIGKILL)
        first.wait()
    left_s = limit_s - (time.monotonic() - began_s)
    subprocess.run([*command, "--seconds", str(left_s)], check=True)
    wall_s, used = time.monotonic() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    record: dict[str, Any] = provenance("python -m benchmarks.tuning FOLDER")
    record |= {"killed": first.returncode == -signal.SIGKILL, "wall_s": round(wall_s)}
    record |= {"processor_s_without_what_was_killed": round(used.ru_utime + used.ru_stime), "load": os.getloadavg()[1]}
    record |= {"zoo": ZOO, "steps_of_a_trial": STEPS}
    record["found"] = json.loads((arguments.folder / "summary.json").read_text())
    record["found"].pop("directory")
    write_json(RESULT, record)
    record["defaults"] = defaults(arguments.folder / "defaults")
    write_json(RESULT, record)
    print(json.dumps(record["found"]["winners"], indent=2), record["defaults"], f"{wall_s:.0f} s")


if __name__ == "__main__":
    main()
