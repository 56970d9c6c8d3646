"""Tests of `palaestra list`, `check-env` and `doctor`."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from palaestra.algorithms import ALGORITHMS
from palaestra.cli import inspect
from palaestra.experiments import PRESETS, RunDirectory
from tests.cli.parts import exit_code, output, train


class Wrong(gymnasium.Env[np.ndarray, np.int64]):
    """Emits what its space forbids."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.full(2, 7.0, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.full(2, 7.0, np.float32), 0.0, True, False, {}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")


def test_the_list_names_algorithms_presets_and_runs(capsys):
    assert exit_code("list") == 0
    text = output(capsys)
    assert "no runs yet; start one with `palaestra train ppo CartPole-v1`" in text
    for name, kind in ALGORITHMS.items():
        assert f" {name} {(kind.__doc__ or '').splitlines()[0]}"[:20] in text
    train(name="first")
    capsys.readouterr()
    assert exit_code("list", "runs") == 0
    assert "runs/first done " in output(capsys)


@pytest.mark.slow
def test_names_of_runs_are_whole_in_a_pipe_and_on_a_narrow_terminal(monkeypatch, capsys):
    """Two runs whose names end differently can be told apart."""
    monkeypatch.setenv("COLUMNS", "50")
    name = "2026-11-22_05-52-30_ppo_palaestra.envs.tiny-Chain_s0"
    train(name=name)
    capsys.readouterr()
    assert exit_code("list") == 0
    text = output(capsys)
    assert f"\n runs/{name} done " in text
    assert "\n discrete_cql " in text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert exit_code("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(" discrete_cql ") for line in lines)
    assert f"runs/{name}" in "".join(line.split(" ")[1] for line in lines if line.startswith(" "))


@pytest.mark.slow
def test_the_list_is_also_json(capsys):
    train(name="first")
    capsys.readouterr()
    assert exit_code("list", "--json") == 0
    listing = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listing["algorithms"]] == sorted(ALGORITHMS)
    assert {tuple(key) for key in listing["presets"]} > set(PRESETS)
    assert ["dqn", "ALE/*"] in listing["presets"]
    kept = RunDirectory("runs/first")
    done = {"done": kept.steps_done, "unit": "env steps", "best_return": kept.kept_return}
    assert listing["runs"] == [{"path": "runs/first", "status": "done", **done}]


@pytest.mark.slow
def test_a_run_with_a_damaged_record_is_listed(capsys):
    run = train(name="first")
    (run / "run.json").write_text("damaged")
    capsys.readouterr()
    assert exit_code("list") == 0
    assert "runs/first unknown" in output(capsys)


def test_a_right_environment_passes_its_check(capsys):
    """ALF-58, ALF-27, ALF-43: `palaestra check-env`."""
    assert exit_code("check-env", "palaestra.envs.tiny:Catch") == 0
    assert "ok " in output(capsys)
    assert exit_code("check-env", "CartPole-v1", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert report["findings"]


def test_a_wrong_environment_is_told_what_to_change(capsys):
    """F6, ALF-43: emitted data is compared with the specs; exit code 3."""
    assert exit_code("check-env", "tests.cli.test_inspect:Wrong") == 3
    text = output(capsys)
    assert "expected" in text
    assert "fix" in text
    assert exit_code("check-env", "tests.cli.test_inspect:Wrong", "--json") == 3
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_an_environment_is_checked_with_the_settings_of_a_run(capsys):
    chain = (
        "check-env",
        "palaestra.envs.tiny:Chain",
        "--env.kwargs",
        "num_states",
        "3",
        "--env.max-episode-steps",
        "9",
    )
    assert exit_code(*chain) == 0
    broken = "tests.envs.worlds:Doubled"
    assert exit_code(*chain, "--env.wrappers", broken, "ClipReward(minimum=0, maximum=0.1)", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["name"] == "palaestra.envs.tiny:Chain"
    assert exit_code("check-env", "CartPole-v1", "--env.chaos", "raise@3") == 3
    assert "chaos: the environment raised" in output(capsys)
    assert exit_code("check-env", "CartPole-v1", "--env.wrappers", "NoSuch") == 2
    assert "unknown wrapper 'NoSuch'" in output(capsys)
    assert exit_code("check-env", "") == 2
    assert "the environment is an empty text" in output(capsys)


def test_an_environment_to_check_is_needed(capsys):
    assert exit_code("check-env") == 2
    assert "the environment is missing: palaestra check-env ENVIRONMENT" in output(capsys)


def test_the_doctor_says_what_there_is(capsys, monkeypatch):
    monkeypatch.setattr(inspect, "num_cores", lambda: 3)  # of a container, whatever the machine has
    assert exit_code("doctor") == 0
    text = output(capsys)
    for part in (
        "ok python",
        "ok torch",
        "device",
        "cores 3, torch uses",
        "C++ compiler",
        "this folder can be written",
        "extra atari",
        "extra plot",
    ):
        assert part in text
    assert exit_code("doctor", "--json") == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"what", "ok", "note"} == findings[0].keys()
    assert all(finding["ok"] for finding in findings)
    listed = {finding["what"].removeprefix("extra ") for finding in findings}
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert listed >= project["optional-dependencies"].keys() - {"all", "dev"}


def test_the_doctor_says_what_is_missing_for_what(monkeypatch, capsys):
    import importlib.util
    import shutil

    version, find_spec = inspect.package_version, importlib.util.find_spec
    monkeypatch.setattr(inspect, "package_version", lambda name: None if name == "safetensors" else version(name))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ale_py" else find_spec(name))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert exit_code("doctor") == 2
    text = output(capsys)
    assert "no safetensors pip install safetensors" in text
    assert "none extra atari Atari games: pip install 'palaestra[atari]'" in text
    assert "training works without, only slower" in text


def test_all_runs_are_listed_where_they_are_asked_for(capsys, tmp_path, monkeypatch):
    """Issue 54: more than the newest 20 were shown as JSON alone."""
    monkeypatch.chdir(tmp_path)
    for number in range(22):
        folder = tmp_path / f"runs/run{number:02}"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("{}")
        (folder / "run.json").write_text('{"env_steps": 1500, "unit": "updates"}' if number == 21 else "{}")
    assert exit_code("list", "runs") == 0
    shown = output(capsys)
    assert "runs/run02 " in shown and "runs/run01 " not in shown and "the newest 20 of 22; --all shows all" in shown
    assert "runs/run21 " in shown and " 1,500 updates" in shown and " 0 env steps" in shown
    assert exit_code("list", "runs", "--all") == 0
    shown = output(capsys)
    assert "runs/run00 " in shown and "newest" not in shown
