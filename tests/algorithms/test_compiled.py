"""Tests of `palaestra.algorithms.compiled`, beside the contracts, which compile every algorithm."""

from types import SimpleNamespace

import torch

from palaestra.algorithms.compiled import CompiledSteps
from palaestra.core import Batch


def test_a_compiled_step_takes_denormal_numbers_for_zero(monkeypatch):
    monkeypatch.setattr(CompiledSteps, "_compiled", lambda self, batch: lambda given: given.x * 0.5)
    steps = CompiledSteps(SimpleNamespace(device=torch.device("cpu")), None)
    batch = Batch(x=torch.tensor([2.0**-126]))
    assert steps((), batch).item() == 0
    assert (batch.x * 0.5).item() > 0
