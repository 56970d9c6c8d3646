"""`preprocess` as a graph: of whole unrolls, where its class says so."""

import functools

import pytest

import palaestra
from tests.algorithms.parts import collected


class Halved(palaestra.PPO):
    """With a `preprocess` of its own, which reads its source."""

    def preprocess(self, batch, source):
        return super().preprocess(batch.replace(reward=batch["reward"] / source.num_lanes), source)


def prepared_for(monkeypatch, algorithm, collector, lengths):
    """Layouts [T, B] of rewards that graphs of `preprocess` are made for, when unrolls of such lengths are learned."""
    made = []

    def compiled_method(owner, method, example, *rest):
        if method.__name__ == "preprocess_in_graph":
            made.append(tuple(example["reward"].shape))
        return functools.partial(method, owner)

    monkeypatch.setattr("palaestra.algorithms.compiled_steps.compiled_method", compiled_method)
    for length in lengths:
        collector.unroll(length)
        algorithm.update(collector.source)
    return made


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_whole_unrolls_are_preprocessed_as_a_graph_and_others_are_not(monkeypatch, name):
    """So a run whose unrolls have any length compiles once, whichever comes first."""
    algorithm, collector = collected(name, "discrete", unroll_length=12)
    algorithm.update(collector.source)
    algorithm.compile()
    found = prepared_for(monkeypatch, algorithm, collector, [5, 12, 7, 12])
    assert found == [(13, collector.num_lanes)]


def test_what_is_compiled_later_is_prepared_before(monkeypatch):
    algorithm, collector = collected("ppo", "discrete", unroll_length=12)
    algorithm.compile(after=100)
    assert prepared_for(monkeypatch, algorithm, collector, [5, 12]) == []
    made = prepared_for(monkeypatch, algorithm, collector, [])
    algorithm.prepare()
    assert made == [(13, collector.num_lanes)]


def test_each_pass_of_its_own_and_a_preprocess_of_your_own_are_not_in_a_graph(monkeypatch):
    algorithm, collector = collected("ppo", "discrete", unroll_length=12, recompute_advantage=True)
    algorithm.update(collector.source)
    algorithm.compile()
    assert prepared_for(monkeypatch, algorithm, collector, [12]) == []
    env = palaestra.create_environment(palaestra.EnvConfig(name="CartPole-v1", num_envs=2))
    config = palaestra.PPOConfig(unroll_length=12, mini_batch_size=24, num_epochs=1)
    algorithm = Halved(env.observation_spec, env.action_spec, config)
    algorithm.compile()
    assert prepared_for(monkeypatch, algorithm, palaestra.Collector.of(env, algorithm), [12]) == []
