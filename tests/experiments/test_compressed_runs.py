"""Runs whose replayed pictures are compressed end with the bits of those without, stopped and resumed, too."""

from pathlib import Path
from typing import Any

import pytest
import torch

import palaestra
from palaestra.core import PackedRows, load_tensors
from tests.experiments.parts import Hook
from tests.experiments.test_pictures import Lamp

SMALL: dict[str, Any] = {
    "env__num_envs": 2,
    "env__max_episode_steps": 6,
    "trainer__total_env_steps": 96,
    "trainer__eval_every_steps": None,
    "trainer__eval_episodes": 1,
    "algorithm__capacity": 60,  # the ring goes round, and ends inside a block
    "algorithm__learning_starts": 16,
    "algorithm__mini_batch_size": 8,
    "algorithm__network__hidden_sizes": (8,),
    "algorithm__network__image_size": 8,
    "run__tensorboard": False,
    "run__num_threads": 1,
}
PROCESSES = {"distributed__runtime": "process", "distributed__num_workers": 2}
KINDS: dict[str, dict[str, Any]] = {
    "priorities": {"algorithm__prioritized": True, "algorithm__n_step": 3},
    "plain": {},
    "whole": {"algorithm__num_epochs": 1, "algorithm__mini_batch_size": 16},
    "curious": {"algorithm__bonus__kind": "rnd"},
    "shards": PROCESSES | {"distributed__replay_shards": 2},
}


@pytest.fixture(scope="module", autouse=True)
def codec():
    pytest.importorskip("cramjam")


def trained(folder: Path, name: str, compression: str, algorithm: str = "dqn", **settings: Any) -> Path:
    given = SMALL | {"run__directory": str(folder), "run__name": name, "buffer__compression": compression} | settings
    return Path(palaestra.train(algorithm, Lamp, **given).directory)


def learned(run: Path) -> dict[str, Any]:
    newest = sorted((run / "checkpoints").iterdir())[-1]
    (file,) = newest.rglob("*algorithm*.safetensors")
    return load_tensors(file)


def require_same(run: Path, other: Path) -> None:
    one, two = learned(run), learned(other)
    assert one.keys() == two.keys()
    assert all(torch.equal(value, two[key]) for key, value in one.items() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("kind", ["priorities", *(pytest.param(kind, marks=pytest.mark.slow) for kind in [*KINDS][1:])])
def test_what_is_learned_from_compressed_pictures_is_what_is_learned_without(kind, tmp_path):
    runs = [trained(tmp_path, compression, compression, **KINDS[kind]) for compression in ("none", "lz4")]
    require_same(*runs)
    packed = [load_tensors(file) for file in (runs[1] / "checkpoints").rglob("*.safetensors")]
    assert any(isinstance(value, PackedRows) for tensors in packed for value in tensors.values())


def test_a_run_that_was_stopped_goes_on_with_compressed_rows(tmp_path):
    stop = Hook(str(tmp_path / "hooks"), stop_at=53)
    whole, parts = (
        trained(tmp_path, name, "lz4", callbacks=hooks) for name, hooks in (("whole", ()), ("parts", [stop]))
    )
    assert len(learned(parts)) == len(learned(whole))
    palaestra.resume(parts)
    require_same(whole, parts)
