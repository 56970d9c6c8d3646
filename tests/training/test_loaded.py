"""Tests of `palaestra.training.checkpoints`: what checkpoints keep of loaded data."""

import pytest
import torch

from palaestra import Collector, Trainer, TrainerConfig
from palaestra.buffers import MixtureSource, ReplayBuffer, WholeSampler, sampler_of
from palaestra.core import POLICY, ConfigError, DiscreteSpec, Offline, ShapeError, TensorSpec, schedule_value
from palaestra.rollout import OfflineData
from palaestra.testing.buffers import FIRST, MID
from palaestra.training import CheckpointStore
from tests.algorithms.parts import environment, make
from tests.buffers.model import step
from tests.faults.parts import differences
from tests.training.parts import trainer


def buffer_of(seed=1, steps=60):
    with environment("discrete", 2, seed=seed) as env:
        collector = Collector.of(env, make("dqn", env, 5))
        collector.collect(n_step=steps)
    return collector.buffer


def offline(data, total=40):
    with environment("discrete", 2) as env:
        algorithm = make("dqn", env, 5)
    algorithm.plan = Offline(gradient_steps=1, mini_batch_size=8)
    return Trainer(OfflineData(data), algorithm, TrainerConfig(total_env_steps=total))


def hybrid(env, data, total=80):
    algorithm = make("dqn", env, 5, prioritized=True)
    collector = Collector.of(env, algorithm)
    data.sampler = sampler_of(algorithm.plan)
    collector.source = MixtureSource([(collector.buffer, 0.5), (data, 0.5)])
    return Trainer(collector, algorithm, TrainerConfig(total_env_steps=total))


def learned(made):
    """All of the state but what the loop wrote and counted on the way."""
    return {name: value for name, value in made.state().items() if name != "trainer"}


def test_the_data_is_no_part_of_a_checkpoint_but_its_fingerprint_is():
    data = buffer_of()
    state = offline(data).state()
    assert "buffer" not in state
    (loaded,) = state["loaded"]
    assert loaded["data"]["rows"] == len(data)
    assert len(loaded["data"]["sha256"]) == 64


def test_data_that_differs_in_its_last_action_alone_is_other_data():
    fingerprints = []
    for action in (0, 1):
        buffer = ReplayBuffer(10, 1, observation_spec=TensorSpec((), torch.int64), action_spec=DiscreteSpec(num=3))
        buffer.open(step([FIRST]))
        for taken in (2, 1, action):
            buffer.append(torch.tensor([taken]), step([MID]))
        fingerprints.append(offline(buffer).state()["loaded"][0]["data"])
    assert fingerprints[0]["rows"] == fingerprints[1]["rows"]
    assert fingerprints[0]["sha256"] != fingerprints[1]["sha256"]


def test_a_run_without_loaded_data_keeps_nothing_of_it():
    with environment("discrete", 2) as env:
        algorithm = make("dqn", env, 5)
        assert "loaded" not in Trainer(Collector.of(env, algorithm), algorithm).state()


def test_a_pass_over_offline_data_goes_on_where_it_was(tmp_path):
    """F25: a sampler that goes through the data in passes is in the checkpoint of an offline run."""

    def made(total):
        data = buffer_of()
        data.sampler = WholeSampler()
        return offline(data, total)

    whole = made(40)
    whole.run()
    cut, store = made(40), CheckpointStore(tmp_path)
    while cut.collector.env_steps < 17:
        cut.train_iter()
    store.save(17, cut.state())
    again = made(40)
    again.load_state(store.load_newest()[1])
    again.run()
    assert differences(learned(whole), learned(again)) == []


def test_priorities_of_loaded_data_go_on_where_they_were(tmp_path):
    """F25: learning writes priorities into the data's own sum tree, so they are state of the run."""
    with environment("discrete", 2, seed=9) as env:
        whole = hybrid(env, buffer_of())
        whole.run()
        expected = learned(whole)
    store = CheckpointStore(tmp_path)
    with environment("discrete", 2, seed=9) as env:
        cut = hybrid(env, buffer_of())
        while cut.collector.env_steps < 50:
            cut.train_iter()
        assert cut.state()["loaded"][0]["sampler"]["tree"] is not None
        store.save(50, cut.state())
    with environment("discrete", 2, seed=9) as env:
        again = hybrid(env, buffer_of())
        again.load_state(store.load_newest()[1])
        again.run()
        assert differences(expected, learned(again)) == []


@pytest.mark.parametrize("other", [{"seed": 2}, {"steps": 62}])
def test_other_data_than_the_run_learned_from_is_refused(other):
    state = offline(buffer_of()).state()
    with pytest.raises(ConfigError, match="a run resumes with the data that it began with"):
        offline(buffer_of(**other)).load_state(state)


def test_data_that_a_run_did_not_have_is_refused():
    with environment("discrete", 2) as env:
        algorithm = make("dqn", env, 5)
        state = Trainer(Collector.of(env, algorithm), algorithm).state()
        with pytest.raises(ConfigError, match=r"learned from 0 loaded data set\(s\), and now there are 1"):
            hybrid(env, buffer_of()).load_state(state)


def test_data_of_nothing_is_refused():
    empty = ReplayBuffer(4, 1, observation_spec=TensorSpec((1,)), action_spec=TensorSpec((1,)))
    for data in ({}, empty, {"policy": empty}):
        with pytest.raises(ShapeError, match="load or collect data into it first"):
            OfflineData(data)


def test_priorities_follow_the_progress_that_the_algorithm_follows():
    """The weights that a sampler makes and whoever undoes them mean the same β, so iterations may be long."""
    learns = trainer("dqn", total=300, prioritized=True, unroll_length=20, learning_starts=0)
    source, seen = learns.collector.sources[POLICY], []
    draw = source.draw

    def drawn(plan, generator):
        seen.append((source.sampler.beta, schedule_value(plan.prioritized.beta, learns.algorithm.progress)))
        return draw(plan, generator)

    source.draw = drawn
    learns.run()
    assert len({beta for beta, _ in seen}) > 3
    assert all(beta == expected for beta, expected in seen)
