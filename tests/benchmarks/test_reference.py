"""Tests of the offline reference table: its data sets, and what a table with holes says."""

import importlib.util
import json
import math

import pytest

from benchmarks.learning import reference
from palaestra.buffers import ReplayBuffer

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mujoco") is None, reason="mujoco is not installed")


def test_a_data_set_is_made_once_and_has_the_same_bits_whoever_makes_it(tmp_path):
    found = reference.collect("Hopper-v5 mixed", tmp_path / "a", steps=300)
    assert reference.collect("Hopper-v5 mixed", tmp_path / "a", steps=999) == found
    assert reference.collect("Hopper-v5 mixed", tmp_path / "b", steps=300)["sha256"] == found["sha256"]
    assert reference.collect("Hopper-v5 medium", tmp_path / "a", steps=1_000)["return_mean"] > found["return_mean"]
    buffer = ReplayBuffer.load(tmp_path / "a" / "Hopper-v5_mixed")
    assert len(buffer) - found["episodes"] in (300, 301)  # the last row of an episode has no action; the newest is cut


def test_a_set_without_a_policy_is_left_out_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    words = [str(tmp_path), "--sets", "Hopper-v5 mixed", "--results", str(tmp_path / "reference.json")]
    monkeypatch.setattr("sys.argv", ["reference", *words])
    reference.main()
    assert "Hopper-v5 mixed is left out: `python -m benchmarks.learning.zoo ppo/Hopper-v5`" in capsys.readouterr().out
    assert json.loads((tmp_path / "reference.json").read_text())["data"] == {}


def test_a_table_says_what_was_not_run_and_how_many_seeds_there_are():
    cells = {
        "iql Hopper-v5 mixed": {"0": {"return_mean": 10.0, "by_data": {"value": {"value": 3.0}}, "true_value": 4.0}},
        "fql Hopper-v5 mixed": {str(seed): {"return_mean": float(seed)} for seed in range(3)},
    }
    of_set = {"return_mean": 404.0, "sha256": "", "steps": 1, "episodes": 1}
    versions = {"command": "x", "date": "2026-11-29", "versions": {}, "revision": "r"}
    hardware = {"hardware": {"cpu": "c", "cores": 2, "system": "s"}}
    told = reference.text({"data": {"Hopper-v5 mixed": of_set}, "cells": cells, **versions, **hardware})
    half = 4.302652729911275 / math.sqrt(3)
    assert f"| Hopper-v5 mixed | 404 | not run | not run | 10 (one seed) | not run | not run | 1 ± {half:.0f} |" in told
    assert "| Hopper-v5 mixed |  | not run | not run | 3 (4) | not run | not run | - |" in told
    assert "| Walker2d-v5 medium | not made |" in told
