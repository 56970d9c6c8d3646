#!/usr/bin/env bash
# Guess: a replay memory that was saved, and is loaded in another process, has the transitions again, so that a run that goes
# on learns from them.
# Seen with skrl 2.1.1: `Memory.load` puts the tensors of the file where neither `len` nor `sample` looks, and no file has the
# position. No error, no warning: the loaded memory has 0 rows, a sample of it is empty, and an update on an empty batch is
# the mean of nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check skrl==2.1.1 torch==2.13.0
FOLDER="$folder" "$folder/venv/bin/python" -W ignore - <<'PY'
import os
from pathlib import Path

import skrl
import torch
from skrl.memories.torch import RandomMemory


def memory():
    made = RandomMemory(memory_size=8, num_envs=1, device="cpu")
    made.create_tensor(name="rewards", size=1, dtype=torch.float32)
    return made


folder = Path(os.environ["FOLDER"])
saved = memory()
for reward in (1.0, 2.0, 3.0, 4.0):
    saved.add_samples(rewards=torch.tensor([[reward]]))
saved.save(str(folder))
(path,) = (folder / "memories").iterdir()
loaded = memory()
loaded.load(str(path))
(sample,) = loaded.sample(["rewards"], batch_size=4)[0]
print(skrl.__version__, "rows saved:", len(saved), "rows loaded:", len(loaded), "a sample:", sample.flatten().tolist())
assert skrl.__version__ == "2.1.1"
assert torch.load(path)["rewards"].flatten()[:4].tolist() == [1.0, 2.0, 3.0, 4.0]  # the file has them
assert len(saved) == 4 and len(loaded) == 0
assert sample.numel() == 0
assert loaded.tensors["rewards"].isnan().all()
loaded.add_samples(rewards=torch.tensor([[5.0]]))
assert len(loaded) == 1
PY
