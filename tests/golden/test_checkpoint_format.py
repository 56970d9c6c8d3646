"""Checkpoints of every released format load for ever (F13).

    python -m tests.golden.test_checkpoint_format FOLDER       # writes a checkpoint of today's format

`checkpoints/format_<version>/` is never written again once its version is released.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.core import Batch, CheckpointError
from palaestra.core.files import write_manifest
from palaestra.training import FORMAT_VERSION, CheckpointStore
from tests.faults.parts import differences

FOLDER = Path(__file__).with_name("checkpoints")
STEP = 7


def state() -> dict[str, Any]:
    """One of every kind of value that a checkpoint can hold."""
    return {
        "trainer": {
            "none": None,
            "flag": True,
            "integer": 2**53,
            "number": 0.1,
            "text": "käse",
            "list": [1, [2.5, None]],
            "tuple": (1, "two"),
            "best": float("-inf"),
        },
        "collect": {"time_step": {"reward": torch.tensor([1.5, -0.0])}, "digest": "a b", "empty": ()},
        "buffer": {
            "field.observation": torch.arange(6, dtype=torch.uint8).reshape(3, 2),
            "field.reward": torch.tensor([[1.0], [float("nan")], [1e-40]]),
            "head": np.array([3, 4]),
            "opened": np.array([True, False]),
        },
        "algorithm": {
            "weight": torch.linspace(0, 1, 5, dtype=torch.float64),
            "half": torch.tensor([1.0, 2.0], dtype=torch.bfloat16).float(),
            "nested": Batch(a=torch.ones(2), b=Batch(c=torch.zeros(1, dtype=torch.int32))),
            "policy_version": 12,
        },
    }


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION + 1))
def test_checkpoints_of_every_released_format_load(version):
    """F13: written by that release, byte for byte as it is in the repository."""
    step, loaded = CheckpointStore(FOLDER / f"format_{version}").load_newest()
    assert step == STEP
    assert differences(state(), loaded) == []


def test_todays_format_is_the_newest_fixture(tmp_path):
    """F13: a change of the layout of files needs a new version and a new fixture."""
    written = CheckpointStore(tmp_path).save(STEP, state())
    (kept,) = CheckpointStore(FOLDER / f"format_{FORMAT_VERSION}").steps()
    assert sorted(path.name for path in written.iterdir()) == sorted(path.name for path in kept.iterdir())
    for name in ("state.json", "manifest.json"):
        assert json.loads((written / name).read_text()) == json.loads((kept / name).read_text())
    assert differences(CheckpointStore(tmp_path).load_newest(), (STEP, state())) == []


def test_a_format_from_before_the_first_release_is_refused_clearly(tmp_path):
    """F13: nothing is put aside as corrupt."""
    shutil.copytree(FOLDER / f"format_{FORMAT_VERSION}", tmp_path, dirs_exist_ok=True)
    (path,) = CheckpointStore(tmp_path).steps()
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    manifest["format_version"] = 0
    write_manifest(path, manifest)
    with pytest.raises(CheckpointError, match=r"format 0, which was never released; this version reads 1"):
        CheckpointStore(tmp_path).load_newest()
    assert path.exists()


if __name__ == "__main__":
    print(CheckpointStore(sys.argv[1]).save(STEP, state()))
