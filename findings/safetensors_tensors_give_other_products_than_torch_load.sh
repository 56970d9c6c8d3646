#!/usr/bin/env bash
# Guess: tensors that are loaded bit for bit as they were saved give the same results from there on, whatever the format of
# the file: a resumed run ends with the same weights from safetensors as from torch.save.
# Seen with safetensors 0.8.0 and torch 2.13.0 on a CPU with AVX-512: values are equal, but the tensors lie where the file
# has them, at any multiple of 8 bytes (40 of 64 here), while torch.load and torch's own memory begin at multiples of 64.
# And a linear layer of two or three rows has other last bits at such an address. So the first step of a recurrent network
# after loading differs from the one that would have followed. A copy (`clone`) of each tensor after loading mends it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.0 safetensors==0.8.0
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PY'
import safetensors
import torch
from safetensors.torch import load_file, save_file

assert torch.__version__.startswith("2.13.0") and safetensors.__version__ == "0.8.0"
torch.set_num_threads(1)
torch.manual_seed(0)
layer = torch.nn.Linear(64, 64)
state = {"step": torch.zeros(3), "hidden": torch.randn(2, 64), "count": torch.arange(5)}
save_file(state, "state.safetensors")
torch.save(state, "state.pt")
vectors = torch.backends.cpu.get_cpu_capability()
same = {}
for how, loaded in (("torch.load", torch.load("state.pt")), ("safetensors", load_file("state.safetensors"))):
    apart = {name: tensor.data_ptr() % 64 for name, tensor in loaded.items()}
    assert all(torch.equal(loaded[name], state[name]) for name in state)
    same[how] = torch.equal(layer(loaded["hidden"]), layer(state["hidden"]))
    print(f"{how}: addresses modulo 64 {apart}, values equal, products {'equal' if same[how] else 'other'} ({vectors})")
    assert any(apart.values()) == (how == "safetensors")
    assert torch.equal(layer(loaded["hidden"].clone()), layer(state["hidden"]))
assert same["torch.load"]
assert not same["safetensors"] or vectors != "AVX512"
PY
