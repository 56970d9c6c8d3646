"""Tests of runs that see small pictures: the network is chosen, shown, written down, resumed and exported."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import palaestra
from palaestra import NetworkConfig, RunSeeds
from palaestra.algorithms import ALGORITHMS
from palaestra.core import BoundedSpec, DiscreteSpec, PalaestraError, TensorSpec
from palaestra.experiments import RunDirectory
from palaestra.multiagent import AgentSpec, team_specs
from palaestra.nn import ImpalaCNN, SmallCNN
from palaestra.policies import load_policy
from tests.cli.parts import exit_code, output

PICTURE = TensorSpec((7, 7, 3), torch.uint8)
RECURRENT = ("r2d2", "decision_transformer")
"""What learns only with a memory."""
BOX = BoundedSpec((2,), minimum=np.full(2, -1.0), maximum=np.full(2, 1.0))


class Lamp(gymnasium.Env[np.ndarray, Any]):
    """A 7 x 7 picture has one bright pixel; pays for saying (pointing) whether it is in the left half."""

    def __init__(self, continuous: bool = False) -> None:
        self.observation_space = spaces.Box(0, 255, (7, 7, 3), np.uint8)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float((np.asarray(action).item() > 0) == (self.column > 3))
        return self._seen(), reward, bool(self.np_random.random() < 0.2), False, {}

    def _seen(self) -> np.ndarray:
        row, self.column = self.np_random.integers(7, size=2)
        picture = np.zeros((7, 7, 3), np.uint8)
        picture[row, self.column] = 255
        return picture


def trained(algorithm: str, *options: str, name: str) -> Path:
    sizes = ("--algorithm.network.hidden-sizes", "8", "--algorithm.network.image-size", "8", "--env.num-envs", "2")
    kept = (
        "--trainer.checkpoint-every-steps",
        "24",
        "--run.name",
        name,
        "--run.no-tensorboard",
        "--run.num-threads",
        "1",
    )
    short = ("--trainer.total-env-steps", "64", "--trainer.eval-episodes", "1", "--env.max-episode-steps", "6")
    assert exit_code("train", algorithm, f"{__name__}:Lamp", *sizes, *short, *kept, *options) == 0
    return Path("runs") / name


LEARNS = ("--algorithm.learning-starts", "16", "--algorithm.mini-batch-size", "8")
RUNS = {
    "ppo": ("--algorithm.unroll-length", "8"),
    "dqn": LEARNS,
    "sac": (*LEARNS, "--env.kwargs", "continuous", "true"),
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", RUNS)
def test_a_chosen_network_is_shown_written_down_resumed_and_exported(algorithm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = (*RUNS[algorithm], "--algorithm.network.cnn", "impala")
    whole = trained(algorithm, *options, name="whole")
    networks = RunDirectory(whole).info["networks"]
    assert all(text.startswith("ImpalaCNN 3x7x7 → 8 ") for text in networks.values())
    shown = output(capsys)
    assert all(f"network {name} {text}" in shown for name, text in networks.items())
    again = trained(algorithm, *options, name="again")
    for newer in sorted((again / "checkpoints").glob("step_*"))[1:]:
        shutil.rmtree(newer)
    assert exit_code("resume", str(again)) == 0, output(capsys)
    policy, resumed = load_policy(whole / "policy"), load_policy(again / "policy")
    assert any(isinstance(module, ImpalaCNN) for module in policy.modules())
    for ours, theirs in zip(policy.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    (made,) = palaestra.export(whole, tmp_path / "out", format="torch")
    assert made.parity.largest_difference <= 1e-5


def test_small_pictures_meet_a_small_network_and_the_run_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    network = "SmallCNN 3x7x7 (below the 36 pixels of NatureCNN) → 8 → 8 → 2 | 8 → 8 → 1"
    run = trained("ppo", *RUNS["ppo"], name="run")
    assert RunDirectory(run).info["networks"]["ppo"].startswith(network)
    assert f"network ppo {network}" in output(capsys)
    assert exit_code("train", "ppo", f"{__name__}:Lamp", "--algorithm.network.cnn", "nature") == 2
    assert "network.cnn is 'nature', which needs images of at least 36 x 36 pixels" in output(capsys)


@pytest.mark.slow
def test_a_dry_run_says_what_it_built(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sizes = ("--algorithm.network.image-size", "8", "--algorithm.unroll-length", "8", "--env.num-envs", "1")
    assert exit_code("train", "ppo", f"{__name__}:Lamp", *sizes, "--dry-run") == 0
    assert "network ppo SmallCNN 3x7x7 (below the 36 pixels of NatureCNN) → 8 → 64" in output(capsys)


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - {"alphazero"}))  # its simulator says what it sees
@pytest.mark.parametrize(("cnn", "network"), [("impala", ImpalaCNN), ("auto", SmallCNN)])
def test_every_algorithm_sees_small_pictures(name, cnn, network):
    kind: Any = ALGORITHMS[name]
    layers = NetworkConfig(cnn=cnn, hidden_sizes=(8,), image_size=8, recurrent="lstm" if name in RECURRENT else None)
    config = kind.config_class(network=layers)
    if getattr(config, "normalize_observation", False):  # of numbers, which pictures are not
        config = dataclasses.replace(config, normalize_observation=False)
    for action in (DiscreteSpec(num=2), BOX):
        specs = team_specs(AgentSpec(PICTURE, action), 2) if kind.team else (PICTURE, action)
        try:
            made = kind(*specs, config, RunSeeds(0))
        except PalaestraError:
            continue
        assert any(type(module) is network for module in made.policy.modules())
        break
    else:
        pytest.fail(f"{name} takes no pictures")
