"""`python -m benchmarks.learning.zoo`: trains the policies of `zoo/`, and shares those that have learned.

Each is one run of a command that its receipt names, on one thread; a run that is done is not trained again. One that
is not clearly better than random actions (the 95% intervals of 100 episodes each touch) is named and left out.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import ROOT, table, write_json
from palaestra.core import files
from palaestra.deployment import share
from palaestra.deployment.card import model_card
from palaestra.experiments import RunDirectory

ZOO = ROOT / "zoo"
EPISODES = 100
README = """\
# The zoo

Trained policies, each with its receipt: the command, the revision of the library, the SHA-256 of every file, the curve,
and the mean return over 100 episodes that are new to it with its 95% interval, beside that of random actions. There is
no pickle and no code in them. All are made by `python -m benchmarks.learning.zoo`; each is one seed.

```bash
palaestra list policies
palaestra pull zoo:ppo/CartPole-v1
```
"""
BATCH = ("--env.vectorization", "batch", "--env.num-envs", "16", "--algorithm.unroll-length", "128")
MEMORY = (
    *("--env.kwargs", "num_cues", "4", "delay", "16", "--env.num-envs", "16", "--algorithm.unroll-length", "64"),
    *("--algorithm.mini-batch-length", "64", "--algorithm.mini-batch-size", "512", "--algorithm.gamma", "0.9"),
    *("--algorithm.learning-rate", "linear(0.002, 0)", "--algorithm.entropy-cost", "0.03"),
    *("--algorithm.network.recurrent", "lstm", "--algorithm.network.recurrent-size", "32"),
    *("--algorithm.network.recurrent-span", "32", "--trainer.total-env-steps", "200000"),
)
SWING_UP = (
    *("--env.num-envs", "32", "--env.max-episode-steps", "125", "--algorithm.unroll-length", "125"),
    *("--algorithm.mini-batch-size", "500", "--algorithm.learning-rate", "linear(0.001, 0)"),
    *("--algorithm.gae-lambda", "0.95", "--trainer.total-env-steps", "300000", "--trainer.eval-every-steps", "60000"),
)
SELF_PLAY = (
    *("--agents.self-play.pool-size", "10", "--env.num-envs", "16", "--algorithm.unroll-length", "64"),
    *("--algorithm.mini-batch-size", "256", "--algorithm.learning-rate", "linear(0.001, 0)"),
    *("--algorithm.entropy-cost", "0.01", "--trainer.total-env-steps"),
)


@dataclass(frozen=True)
class Recipe:
    """A policy, and how it is trained."""

    algorithm: str
    env: str
    options: tuple[str, ...] = ()
    called: str | None = None
    """Instead of the environment's name."""

    @property
    def name(self) -> str:
        """Its folder in `zoo/`."""
        return f"{self.algorithm}/{self.called or self.env.replace(':', '/').rpartition('/')[2]}"

    @property
    def run_name(self) -> str:
        return self.name.replace("/", "_")

    @property
    def command(self) -> list[str]:
        return ["palaestra", "train", self.algorithm, self.env, *self.options, "--run.name", self.run_name]


def steps(number: int) -> tuple[str, str]:
    return "--trainer.total-env-steps", str(number)


TINY = "palaestra.envs.tiny"
RECIPES = [
    Recipe("ppo", "CartPole-v1"),
    Recipe("ppo", "Pendulum-v1"),
    Recipe("ppo", "MountainCarContinuous-v0"),
    Recipe("ppo", f"{TINY}:Catch", ("--env.kwargs", "num_pixels", "0", *steps(30_000))),
    Recipe("ppo", f"{TINY}:Recall", MEMORY),
    Recipe("ppo", "Acrobot-v1", steps(300_000)),
    Recipe("ppo", f"{TINY}:CartPoleSwingUp", SWING_UP),
    Recipe("pqn", "palaestra.envs:MinAtarBreakout", steps(700_000)),
    Recipe("dqn", "MountainCar-v0"),
    Recipe("ppo", "pettingzoo:classic/connect_four_v3", (*SELF_PLAY, "250000")),
    Recipe("pqn", "palaestra.envs:MinAtarSpaceInvaders", steps(500_000)),
    Recipe("reinforce", "CartPole-v1"),
    Recipe("evolution_strategies", "CartPole-v1"),
    Recipe("impala", "CartPole-v1"),
    Recipe("ppg", "CartPole-v1"),
    Recipe("pqn", "CartPole-v1"),
    Recipe("a2c", "CartPole-v1", steps(200_000)),
    Recipe("sarsa", "CartPole-v1", steps(200_000)),
    Recipe("trpo", "CartPole-v1"),
    Recipe("a2c", "MountainCarContinuous-v0"),
    Recipe("trpo", "MountainCarContinuous-v0"),
    Recipe("impala", "MountainCarContinuous-v0"),
    Recipe("ppg", "MountainCarContinuous-v0"),
    Recipe("evolution_strategies", "MountainCarContinuous-v0"),
    Recipe("sac", "MountainCarContinuous-v0"),
    Recipe("ppo", "LunarLander-v3"),
    Recipe("evolution_strategies", "Acrobot-v1", steps(250_000)),
    Recipe("ppg", "Pendulum-v1"),
    Recipe("trpo", "Pendulum-v1"),
    Recipe("crossq", "Pendulum-v1"),
    Recipe("ppo", "pettingzoo:classic/tictactoe-v3", (*SELF_PLAY, "100000")),
    Recipe("dqn", "CartPole-v1"),
    Recipe("trpo", "Acrobot-v1"),
    Recipe("ppo", "Hopper-v5", (*BATCH, *steps(400_000))),
    Recipe("ppo", "Walker2d-v5", (*BATCH, *steps(400_000))),
    Recipe("ppo", "HalfCheetah-v5", steps(150_000)),
    Recipe("ddpg", "Pendulum-v1"),
    Recipe("td3", "Pendulum-v1"),
    Recipe("ppo", "palaestra.envs:Go1Joystick"),
]


def train(recipe: Recipe, runs: Path) -> bool:
    """Runs the command, or the rest of it; says what came of it."""
    directory = RunDirectory(runs / recipe.run_name)
    command = [sys.executable, "-m", *recipe.command, "--run.directory", str(runs)]
    if (directory.path / "run.json").is_file():
        if directory.status == "done":
            return True
        command = [sys.executable, "-m", "palaestra", "resume", str(directory.path)]
    environment, began = {**os.environ, "OMP_NUM_THREADS": "1"}, time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    said = (done.stdout if done.returncode == 0 else done.stderr)[-1500:].strip().splitlines()
    print(f"{recipe.name}  {time.monotonic() - began:.0f} s  {' | '.join(said[-8:])}", flush=True)
    return done.returncode == 0


def publish(recipe: Recipe, runs: Path) -> None:
    """Makes the shared folder, where the policy has learned."""
    target = ZOO / recipe.name
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    facts = share(runs / recipe.run_name, output=target, episodes=EPISODES, film=False).facts
    (target / "README.md").write_text(model_card(facts, list(facts["files"]), f"zoo:{recipe.name}"), encoding="utf-8")
    evaluation, random = facts["evaluation"], facts["random"]
    low, high = evaluation["return_ci95"]
    strength = evaluation.get("elo_ci95")  # of self-play, whose returns cancel out
    learned = strength[0] > 0 if strength else low > random["return_ci95"][1]
    told = (
        f"{low:.1f} to {high:.1f}, random actions {random['return_mean']:.1f}{f', Elo {strength}' if strength else ''}"
    )
    print(f"{recipe.name}  {told}{'' if learned else '  has not learned, left out'}", flush=True)
    if not learned:
        shutil.rmtree(target)


def index_of(folder: Path) -> dict[str, Any]:
    """What `index.json` of a folder with shared policies has to hold.

    Args:
        folder: with a folder ALGORITHM/ENVIRONMENT for each.
    """
    found = {}
    for manifest in sorted(folder.glob("*/*/manifest.json")):
        facts = files.read_manifest(manifest.parent, 1)
        evaluation, elo = facts["evaluation"], facts["evaluation"].get("elo_ci95")
        found[manifest.parent.relative_to(folder).as_posix()] = {
            "environment": facts["environment"],
            "env_steps": facts["env_steps"],
            "return_mean": evaluation["return_mean"],
            "return_ci95": evaluation["return_ci95"],
            "random_mean": facts["random"]["return_mean"],
            "elo_ci95": elo,
            "size_bytes": sum(path.stat().st_size for path in manifest.parent.rglob("*") if path.is_file()),
            "manifest_sha256": files.fingerprint(manifest)["sha256"],
        }
    return {"format": 1, "policies": found}


def write_index() -> None:
    """What can be pulled, for programs and for readers."""
    index = index_of(ZOO)
    write_json(ZOO / "index.json", index)
    lines = []
    for name, one in index["policies"].items():
        (low, high), strength = one["return_ci95"], one["elo_ci95"]
        reached = [f"{one['return_mean']:,.1f} ± {(high - low) / 2:,.1f}", f"{one['random_mean']:,.1f}"]
        if strength:
            reached = [f"Elo {strength[0]:+.0f} to {strength[1]:+.0f} above random actions", ""]
        lines.append(
            [f"[{name}]({name}/README.md)", f"{one['env_steps']:,}", *reached, f"{one['size_bytes'] / 1000:,.0f}"]
        )
    head = ["policy", "env steps", "return", "random actions", "kB"]
    (ZOO / "README.md").write_text(f"{README}\n{table(head, lines)}\n", encoding="utf-8")
    total = sum(one["size_bytes"] for one in index["policies"].values())
    print(f"{len(lines)} policies, {total / 1e6:.1f} MB in {ZOO}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="for example ppo/CartPole-v1; all by default")
    parser.add_argument("--runs", type=Path, default=Path("runs/zoo"), help="where the runs are kept")
    parser.add_argument("--train-only", action="store_true", help="share nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {recipe.name for recipe in RECIPES}:
        parser.error(f"unknown {', '.join(sorted(unknown))}; there are {', '.join(recipe.name for recipe in RECIPES)}")
    for recipe in RECIPES:
        wanted = not arguments.names or recipe.name in arguments.names
        if wanted and train(recipe, arguments.runs) and not arguments.train_only:
            publish(recipe, arguments.runs)
    if not arguments.train_only:
        write_index()


if __name__ == "__main__":
    main()
