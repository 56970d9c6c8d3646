"""Algorithms of the library that a user extends: one method replaced, the rest as it is."""

from typing import Any

import pytest
import torch

from palaestra import load_policy
from palaestra.algorithms import DQN, PPO, DQNConfig
from palaestra.core import DataSource
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
