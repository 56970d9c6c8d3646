"""`python -m benchmarks.pbt FOLDER`: 16 members of population-based training beside 16 draws that stay fixed.

PPO on tensor CartPole, 60,000 env steps of each member. Both begin with the same draws, seeds and environments; the
fixed ones are a population that is never compared. A seed is one population of each kind; `--seed 3` makes one and adds
it to `benchmarks/results/pbt.json`.
"""

import argparse
import dataclasses
import json
import resource
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.record import provenance, write_json
from palaestra.config.config import config_from_mapping
from palaestra.config.presets import preset
from palaestra.experiments import ExperimentConfig, read_evaluations
from palaestra.experiments.pbt import Selection, population_space
from palaestra.experiments.seeds import train_members

RESULT = Path(__file__).parent / "results" / "pbt.json"
MEMBERS, STEPS, EVERY = 16, 60_000, 8
NEVER = 1_000_000
SETTINGS: dict[str, Any] = {
    "env__max_episode_steps": 500,
    "trainer__total_env_steps": STEPS,
    "trainer__eval_every_steps": STEPS,
    "trainer__eval_episodes": 20,
    "trainer__checkpoint_every_steps": 0,
    "run__tensorboard": False,
    "run__compile": True,
}


def population(folder: Path, seed: int, every: int) -> dict[str, Any]:
    """Last evaluations of a population, best first, and the processor time that it took, s."""
    base = preset("ppo", "palaestra.envs.tiny:TensorCartPole")
    config, space = population_space(config_from_mapping(ExperimentConfig, SETTINGS, base=base), None)
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, directory=str(folder)))
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    names, seeds = [f"member_{n}" for n in range(MEMBERS)], [[100 * seed + n] for n in range(MEMBERS)]
    chosen = Selection(every, seed, space)
    groups = train_members(chosen.members(config, MEMBERS), seeds, names=names, selection=chosen.to_json())
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    runs = [one for group in groups for one in group.seeds]
    scores = [read_evaluations(one.directory)[-1][1]["return_mean"] for one in runs]
    copies = sum(len(json.loads((one.directory / "run.json").read_text())["copies"]) for one in runs)
    spent = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    return {"scores": sorted(scores, reverse=True), "copies": copies, "processor_s": round(spent, 1)}


def main() -> None:
    """Trains what is missing in the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(tempfile.gettempdir()))
    parser.add_argument("--seed", type=int, action="append", help="which seeds; 0 to 4 by default")
    given = parser.parse_args()
    for seed in given.seed or range(5):
        made = {
            kind: population(given.folder / f"{kind}_{seed}", seed, every)
            for kind, every in (("pbt", EVERY), ("fixed", NEVER))
        }
        known = json.loads(RESULT.read_text())["seeds"] if RESULT.exists() else {}
        seeds = dict(sorted((known | {str(seed): made}).items()))
        write_json(
            RESULT,
            {
                "members": MEMBERS,
                "env_steps": STEPS,
                "every": EVERY,
                "seeds": seeds,
                **provenance("python -m benchmarks.pbt FOLDER"),
            },
        )


if __name__ == "__main__":
    main()
