"""What a run computes with is chosen once, and kept."""

import json
from pathlib import Path
from typing import Any

import palaestra
from palaestra.core import computing
from tests.experiments.parts import trained


def read_info(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text())


def test_a_resumed_run_multiplies_with_the_library_that_it_began_with(tmp_path, monkeypatch):
    """F25: another one rounds otherwise; where this machine lacks it, the run says so."""
    monkeypatch.setattr(computing, "_onednn_is_exact", lambda: True)
    monkeypatch.setattr("palaestra.experiments.making.choose_library", lambda largest: computing.prefer_onednn(True))
    run = trained(tmp_path, trainer__total_env_steps=8)
    assert read_info(run.directory)["onednn"] is True
    monkeypatch.setattr("palaestra.experiments.making.choose_library", lambda largest: computing.prefer_onednn(False))
    forked = palaestra.resume(run.directory, trainer__total_env_steps=16, fork=True)
    assert computing.prefers_onednn()
    assert read_info(forked.directory)["onednn"] is True
    assert read_info(forked.directory)["resume"] == "exact"
    monkeypatch.setattr(computing, "_onednn_is_exact", lambda: False)
    palaestra.resume(run.directory, trainer__total_env_steps=16)
    assert read_info(run.directory)["resume"] == "statistical"
