"""The single-file scripts learn what the library learns: the same parameters, bit for bit, from the same seeds."""

import ast
import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from palaestra import Collector, EnvConfig, RunSeeds, Trainer, TrainerConfig, create_environment
from palaestra.algorithms import ALGORITHMS
from palaestra.core import Linear, TimeStep
from palaestra.training import Callback

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "single_file"
NAMES = ("dqn", "ppo", "sac")
UPDATES = {"dqn": 20, "ppo": 6, "sac": 20}  # one of PPO's is 320 gradient steps
# Settings that show in few updates what the defaults show late: copies to the target network, a buffer that is full.
OTHERS: dict[str, dict[str, Any]] = {
    "dqn": {"num_envs": 3, "seed": 5, "target_period": 7, "capacity": 900, "total_env_steps": 4_000},
    "ppo": {"num_envs": 3, "seed": 5, "unroll_length": 256, "mini_batch_size": 96},
    "sac": {"num_envs": 3, "seed": 5, "capacity": 900, "tau": 0.1},
}
CASES = [(name, {}) for name in NAMES] + list(OTHERS.items())


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"single_file_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def snapshot(model: nn.Module, seen: Tensor) -> list[Tensor]:
    """All parameters in the order in which a script makes them, and an observation."""
    parts = (
        sorted(model.component.items(), key=lambda item: item[0] == "temperature")
        if hasattr(model, "component")
        else [("", model)]
    )
    return [*(parameter.detach().clone() for _, part in parts for parameter in part.parameters()), seen.clone()]


class Recorder(Callback):
    """Keeps the parameters after every update and the observations before it, and stops after some."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.updates: list[list[Tensor]] = []
        self.seen: list[Tensor] = []

    def observe(self, time_step: TimeStep) -> TimeStep:
        self.seen.append(time_step.observation.clone())
        return time_step

    def iteration_ended(self, trainer: Trainer, updates: Any) -> None:
        if updates:
            length = int(trainer.algorithm.plan.unroll_length)
            seen = self.seen[-1] if length == 1 else torch.stack(self.seen[-length - 1 :])
            self.updates.append(snapshot(trainer.algorithm.model, seen))
        if len(self.updates) == self.most:
            trainer.stop("enough")


def of_library(name: str, config: Any) -> list[list[Tensor]]:
    env = create_environment(EnvConfig(name=config.env, num_envs=config.num_envs), seed=config.seed)
    kind: Any = ALGORITHMS[name]
    same = {field.name for field in dataclasses.fields(kind.config_class)} & vars(config).keys()
    settings = kind.config_class(**{key: getattr(config, key) for key in same})
    algorithm = kind(env.observation_spec, env.action_spec, settings, RunSeeds(config.seed))
    recorder = Recorder(UPDATES[name])
    collector = Collector.of(env, algorithm, preprocess=recorder.observe)
    Trainer(collector, algorithm, TrainerConfig(total_env_steps=config.total_env_steps), callbacks=[recorder]).run()
    return recorder.updates


@pytest.mark.parametrize(("name", "changes"), CASES, ids=[f"{n}-{'other' if c else 'default'}" for n, c in CASES])
def test_a_script_and_the_library_learn_the_same_bit_for_bit(name, changes):
    module = script(name)
    config = module.Config(**changes)
    updates: list[list[Tensor]] = []
    try:
        module.train(config, UPDATES[name], lambda agent, seen: updates.append(snapshot(agent, seen)))
    finally:
        torch.set_flush_denormal(False)
    expected = of_library(name, config)
    assert len(updates) == len(expected) == UPDATES[name]
    for number, (mine, theirs) in enumerate(zip(updates, expected, strict=True), start=1):
        different = [i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if not torch.equal(a, b)]
        assert not different, (
            f"after update {number} the tensors {different} of {len(mine)} differ (the last: observed)"
        )


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_of_a_script_are_the_defaults_of_the_library(name):
    config, theirs = script(name).Config(), ALGORITHMS[name].config_class()
    own = {"env", "seed", "num_envs", "total_env_steps", "hidden_sizes", "adam_epsilon"}
    own |= {"epsilon_start", "epsilon_end", "epsilon_fraction"}
    names = vars(config).keys() - own
    assert {key: getattr(config, key) for key in names} == {key: getattr(theirs, key) for key in names}
    assert config.hidden_sizes == theirs.network.hidden_sizes
    if name == "dqn":
        assert theirs.epsilon == Linear(config.epsilon_start, config.epsilon_end, config.epsilon_fraction)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_short_and_needs_nothing_of_ours(name):
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    outside = {module.split(".")[0] for module in modules} - sys.stdlib_module_names
    assert outside == {"torch", "numpy", "gymnasium"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def test_a_script_runs_from_the_command_line(name, tmp_path):
    arguments = [sys.executable, "-W", "error", str(FOLDER / f"{name}.py"), "--total_env_steps", "1100"]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
