"""Algorithms of the library that a user extends: one method replaced, the rest as it is."""

import copy
from typing import Any

import pytest
import torch

from palaestra import load_policy
from palaestra.algorithms import DQN, PPO, DQNConfig
from palaestra.core import CheckpointError, DataSource
from tests.algorithms.parts import collected
from tests.cli.parts import exit_code, output

HALVED = "tests.algorithms.test_extended:Halved"


class Halved(DQN):
    """Learns from half of each reward."""

    config_class = DQNConfig

    def preprocess(self, batch: Any, source: DataSource) -> Any:
        return super().preprocess(batch.replace(reward=batch.reward / 2), source)


class Bold(PPO):
    """Counts advantages twice."""

    def preprocess(self, batch: Any, source: DataSource) -> Any:
        found = super().preprocess(batch, source)
        return found.replace(advantage=2 * found.advantage)


class Tempered(PPO):
    """Whose policy has a number that falls with each update."""

    config_class = PPO.config_class

    def build(self, observation_spec: Any, action_spec: Any, config: Any) -> None:
        super().build(observation_spec, action_spec, config)
        self.policy.register_buffer("temperature", torch.ones(()))

    def after_update(self, batch: Any) -> None:
        self.policy.temperature.mul_(0.5)


def test_buffers_of_a_policy_are_in_checkpoints():
    """Beside those of the model; of the run, and of older ones, which have none."""
    algorithm, collector = collected("ppo", "discrete")
    specs = algorithm.policy.observation_spec, algorithm.policy.action_spec
    first, twin = Tempered(*specs, algorithm.config), Tempered(*specs, algorithm.config)
    first.update(collector.buffer)
    state = copy.deepcopy(first.state_tensors())
    assert state.keys() - algorithm.state_tensors().keys() == {"policy.temperature"}
    twin.load_state_tensors({name: value for name, value in state.items() if name != "policy.temperature"})
    assert twin.policy.temperature == 1
    twin.load_state_tensors(state)
    assert twin.policy.temperature == 0.5
    with pytest.raises(CheckpointError, match=r"(?s)the saved tensors do not fit the policy: .*temperature"):
        twin.load_state_tensors({**state, "policy.temperature": torch.ones(2)})


def test_a_method_of_an_algorithm_may_be_replaced():
    """TS-12: what `process_fn` is there, `preprocess` is here."""
    algorithm, collector = collected("ppo", "discrete")
    bold = Bold(algorithm.policy.observation_spec, algorithm.policy.action_spec, algorithm.config)
    bold.model.load_state_dict(algorithm.model.state_dict())
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
    usual, changed = (one.preprocess(drawn, collector.buffer) for one in (algorithm, bold))
    torch.testing.assert_close(changed.advantage, 2 * usual.advantage)
    assert torch.equal(changed.value_target, usual.value_target)


def test_an_extended_algorithm_is_trained_and_resumed_by_its_name(tmp_path, monkeypatch, capsys):
    """TS-12."""
    monkeypatch.chdir(tmp_path)
    options = ("--env.num-envs", "2", "--algorithm.learning-starts", "32", "--algorithm.mini-batch-size", "16")
    short = ("--trainer.total-env-steps", "96", "--trainer.eval-episodes", "1", "--run.no-tensorboard")
    seen = []
    original = DQN.preprocess
    monkeypatch.setattr(DQN, "preprocess", lambda *args: (seen.append(args[1].reward.max().item()), original(*args))[1])
    pole = ("CartPole-v1", "--env.max-episode-steps", "6")
    assert exit_code("train", HALVED, *pole, *options, *short, "--run.name", "run") == 0, output(capsys)
    assert seen and max(seen) == pytest.approx(0.5)  # each step pays 1
    assert exit_code("resume", "runs/run", "--until", "128") == 0, output(capsys)
    assert load_policy("runs/run/policy") is not None
