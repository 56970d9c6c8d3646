"""Networks with a memory whose rows come from workers on Ray."""

import importlib.util
import shutil
from pathlib import Path

import pytest

import palaestra
from tests.faults.parts import differences, run_contents

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'palaestra[ray]'"
    ),
]

SETTINGS = {
    "algorithm__network__recurrent": "lstm",
    "algorithm__network__recurrent_size": 6,
    "algorithm__network__hidden_sizes": (8,),
    "algorithm__mini_batch_length": 4,
    "algorithm__mini_batch_size": 16,
    "algorithm__learning_starts": 40,
    "algorithm__unroll_length": 8,
    "env__kwargs": {"continuous": True},
    "env__num_envs": 4,
    "distributed__num_workers": 2,
    "trainer__total_env_steps": 320,
    "trainer__checkpoint_every_steps": 64,
    "run__tensorboard": False,
}


def train(name: str, runtime: str, folder: Path) -> Path:
    where = {"run__directory": str(folder), "run__name": runtime, "distributed__runtime": runtime}
    return palaestra.train(name, "palaestra.envs.tiny:Recall", **SETTINGS, **where).directory


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
def test_memories_on_ray_learn_and_resume_as_in_processes(name, tmp_path):
    """F25, Beyond the list 5: everything that a run leaves but times, after a resume from a checkpoint, too."""
    expected = run_contents(train(name, "process", tmp_path))
    run = train(name, "ray", tmp_path)
    assert not differences(expected, run_contents(run))
    for newer in sorted((run / "checkpoints").glob("step_*"))[1:]:
        shutil.rmtree(newer)
    palaestra.resume(run)
    again = run_contents(run)
    for evaluation in (*expected["evaluations"].values(), *again["evaluations"].values()):
        del evaluation["best"]  # what is kept is of one that is made again
    assert not differences(expected, again)
