"""What a run computes with is chosen once, and kept; what could not work is refused before it begins."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import palaestra
from palaestra.config.config import config_from_mapping
from palaestra.core import ConfigError, TensorSpec, computing
from palaestra.experiments import make_learner, preset
from palaestra.runs.making import choose_threads
from tests.experiments.parts import trained

WORKERS = {"distributed__runtime": "local", "distributed__num_workers": 2}


def read_info(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text())


def test_a_resumed_run_multiplies_with_the_library_that_it_began_with(tmp_path, monkeypatch):
    """F25: another one rounds otherwise; where this machine lacks it, the run says so."""
    monkeypatch.setattr(computing, "_onednn_is_exact", lambda: True)
    monkeypatch.setattr("palaestra.core.computing.choose_library", lambda largest: computing.prefer_onednn(True))
    run = trained(tmp_path, trainer__total_env_steps=8)
    assert read_info(run.directory)["onednn"] is True
    monkeypatch.setattr("palaestra.core.computing.choose_library", lambda largest: computing.prefer_onednn(False))
    forked = palaestra.resume(run.directory, trainer__total_env_steps=16, fork=True)
    assert read_info(forked.directory)["onednn"] is True
    assert read_info(forked.directory)["resume"] == "exact"
    monkeypatch.setattr(computing, "_onednn_is_exact", lambda: False)
    palaestra.resume(run.directory, trainer__total_env_steps=16)
    assert read_info(run.directory)["resume"] == "continued"


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        (
            "ppo",
            {"trainer__episodes_per_iteration": 4, "env__num_envs": 4, "env__on_fault": "drop"},
            "plays none; give",
        ),
        ("ppo", {"env__num_envs": 2, "env__on_fault": "drop", **WORKERS}, "each of 2 workers has one environment"),
        ("ppo", {"distributed__num_cpus": -1.0, **WORKERS}, "num_cpus"),
    ],
)
def test_settings_that_could_not_work_are_refused(algorithm, settings, message):
    base = preset(algorithm, "CartPole-v1")
    with pytest.raises(ConfigError, match=message):
        make_learner(config_from_mapping(type(base), settings, base=base))


def test_learners_in_processes_share_the_cores(monkeypatch):
    """Pictures are learned from with all of them; learners beside each other would take more than there are."""
    monkeypatch.setattr("palaestra.core.computing.num_cores", lambda: 8)
    monkeypatch.setattr("palaestra.core.computing.faster_threads", lambda rows, widths, most, picture: most)
    learners = {"distributed__runtime": "process", "distributed__num_learners": 4}
    base, pictures = preset("ppo", "CartPole-v1"), TensorSpec((4, 84, 84), torch.uint8)
    config = config_from_mapping(type(base), learners, base=base)
    assert [choose_threads(one, pictures) for one in (base, config)] == [8, 2]
    hosts = {"distributed__runtime": "process", "distributed__num_policy_hosts": 2}
    assert choose_threads(config_from_mapping(type(base), hosts, base=base), pictures) == 4
    for number in (1, 2, 4):
        equal = {**learners, "distributed__num_learners": number, "distributed__gradient_shards": 4}
        assert choose_threads(config_from_mapping(type(base), equal, base=base), pictures) == 2


def test_threads_for_pictures_are_measured_and_limited_too(monkeypatch):
    """What a convolutional network encodes; a small box is flattened, whatever its axes."""
    seen = []
    monkeypatch.setattr("palaestra.core.computing.num_cores", lambda: 8)
    monkeypatch.setattr("palaestra.core.computing.faster_threads", lambda *given: seen.append(given) or 8)
    config, pictures = preset("sac", "Pendulum-v1"), {"camera": TensorSpec((3, 64, 64), torch.uint8)}
    for spec in (TensorSpec((2, 2, 2)), pictures):
        assert choose_threads(config, spec) == 8
    assert [given[2:] for given in seen] == [(8, ()), (8, (3, 64, 64))]
    monkeypatch.undo()
    assert choose_threads(config, pictures) == 1  # OMP_NUM_THREADS is 1 in tests


@pytest.mark.parametrize(
    ("algorithm", "env", "first"), [("cql", "CartPole-v1", "discrete_cql"), ("sac", "CartPole-v1", "discrete_sac")]
)
def test_of_the_algorithms_that_fit_the_nearest_stands_first(algorithm, env, first):
    """Issue 54: `cql` on discrete actions was answered with 21 names in the order of the alphabet."""
    with pytest.raises(ConfigError, match=rf"Algorithms that fit: {first}, "):
        _ = make_learner(preset(algorithm, env)).algorithms
