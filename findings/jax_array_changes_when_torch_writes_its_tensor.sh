#!/usr/bin/env bash
# Guess: a torch tensor made from a JAX array by DLPack is a copy, or read-only: JAX arrays never change, and the NumPy view
# of one refuses to be written.
# Seen with jax 0.10.2 and torch 2.13.0 on a CPU: it is the same memory and can be written, and JAX's array has changed
# afterwards: an observation of a JAX simulator that is normalised in place changes the simulator's own state.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 torch==2.13.0 numpy==2.4.0
"$folder/venv/bin/python" -W ignore - <<'PY'
import jax
import jax.numpy as jnp
import numpy
import torch

assert jax.__version__ == "0.10.2" and torch.__version__.startswith("2.13.0")
state = jnp.arange(16.0)
before = numpy.array(state)
assert not numpy.asarray(state).flags.writeable
observation = torch.from_dlpack(state)
observation.sub_(7.5).div_(4.6)
after = numpy.array(state)
print("JAX's array before:", before[:4], "after torch normalised its tensor:", after[:4])
assert not (before == after).any()
assert numpy.allclose(after, (before - 7.5) / 4.6)
PY
