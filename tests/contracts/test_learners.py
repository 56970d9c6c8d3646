"""What every algorithm promises about collecting, saving and building, with those that have no losses."""

import dataclasses
from typing import Any

import pytest
import torch

from palaestra.algorithms import ALGORITHMS
from palaestra.core import (
    ConfigError,
    Offline,
    Replay,
    RunSeeds,
    TensorSpec,
    load_tensors,
    save_tensors,
)
from palaestra.nn import NetworkConfig
from palaestra.testing.algorithms import different, global_generators, parameters, whole_state
from tests.algorithms.parts import CASES, TINY, any_kind, collected, environment, make, tiny_config

every_case = pytest.mark.parametrize(("name", "kind"), CASES)
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


@pytest.mark.usefixtures("unchecked_shapes")  # the checks of tuples draw which item to look at
@every_case
def test_a_seed_or_a_checkpoint_decides_a_run_and_nothing_else_moves(name, kind, tmp_path):
    """ALF-03, F25, and DESIGN.md, randomness; one walk, since what takes the time is to collect and to learn.

    Collecting changes no parameter; building, collecting and updating leave the global generators of torch, numpy and
    random as they are; equal seeds are equal whatever those say; a fresh instance of another seed goes on with the
    same bits from what was saved.
    """
    generators = global_generators()
    algorithm, collector = collected(name, kind)
    first = parameters(algorithm)
    algorithm.update(collector.buffer)
    learned, before = parameters(algorithm), whole_state(algorithm)
    collector.unroll(12)
    acting = {"generator.acting", "exploration.noise", "exploration.left"}  # only the generator that acts moves
    assert set(different(before, whole_state(algorithm))) <= acting, "collecting"
    save_tensors(tmp_path / "state.safetensors", algorithm.state_tensors())
    save_tensors(tmp_path / "buffer.safetensors", collector.buffer.state_tensors())
    info = algorithm.update(collector.buffer)
    assert global_generators() == generators

    torch.rand(3)
    twin, twins = collected(name, kind)
    twin.update(twins.buffer)
    assert not different(learned, parameters(twin)), "equal seeds"

    other, others = collected(name, kind, seed=9)
    assert different(first, parameters(other)), "other seeds"
    other.load_state_tensors(load_tensors(tmp_path / "state.safetensors"))
    others.buffer.load_state_tensors(load_tensors(tmp_path / "buffer.safetensors"))
    again = other.update(others.buffer)
    assert info.metrics == again.metrics
    assert not different(whole_state(algorithm), whole_state(other)), "loading"


@every_algorithm
def test_an_impossible_action_space_is_a_configuration_error(name):
    """F27: by name, before anything is built on it."""
    kind: Any = ALGORITHMS[name]
    for spec in ({"left": TensorSpec((2,), torch.int32)}, TensorSpec((3,), torch.uint8)):
        with pytest.raises(ConfigError, match=r"wrap the environment|needs") as caught:
            kind(TensorSpec((4,)), spec, tiny_config(kind), RunSeeds(0))
        assert caught.value.exit_code == 2


@every_algorithm
def test_a_configuration_documents_every_field_and_is_frozen(name):
    config = ALGORITHMS[name].config_class()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.gamma = 0.5
    assert set(TINY) & {field.name for field in dataclasses.fields(config)}


@every_algorithm
def test_the_plan_agrees_with_the_configuration(name):
    """ALF-07, ALF-08, ALF-09: what the data is asked for is what the configuration says."""
    with environment(any_kind(name)) as env:
        algorithm = make(name, env, kind=any_kind(name), unroll_length=7.5)
    config, plan = algorithm.config, algorithm.plan
    assert isinstance(plan, Offline) or plan.unroll_length == 7.5
    for field in ("num_epochs", "gradient_steps", "mini_batch_size", "n_step", "learning_starts", "capacity"):
        if hasattr(config, field):
            assert getattr(plan, field) == getattr(config, field)
    assert not isinstance(plan, Replay) or plan.capacity == 120


@pytest.mark.parametrize("name", [name for name, kind in CASES if kind == "recurrent"])
def test_a_policy_with_a_memory_is_not_compiled(name):
    """The error says what to do: a graph cannot hold a loop whose length depends on where episodes begin."""
    algorithm, _ = collected(name, "recurrent")
    with pytest.raises(ConfigError, match="leave out --compile"):
        algorithm.compile()


@every_algorithm
def test_a_memory_that_an_algorithm_cannot_train_is_a_configuration_error(name):
    """Nothing is built that would forget in silence."""
    kind: Any = ALGORITHMS[name]
    if kind.recurrent or "network" not in {field.name for field in dataclasses.fields(kind.config_class)}:
        return
    with environment(any_kind(name)) as env, pytest.raises(ConfigError, match=r"leave it out, or use|nn.with_memory"):
        make(name, env, network=NetworkConfig(recurrent="lstm"))
