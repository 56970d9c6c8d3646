"""What every algorithm promises; a class in `palaestra.algorithms.ALGORITHMS` is enrolled by being there."""

import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from palaestra import EnvConfig
from palaestra.algorithms import ALGORITHMS, GradientAlgorithm, Gradients
from palaestra.core import (
    Batch,
    ConfigError,
    NonFiniteError,
    Offline,
    OnPolicy,
    StepType,
    minibatches,
)
from palaestra.policies import Phase, raw_actions
from tests.algorithms.parts import CASES, SETTINGS, any_kind, collected, collector_for, environment, make
from tests.contracts.states import different, global_generators, parameters, whole_state

every_case = pytest.mark.parametrize(("name", "kind"), CASES)
GRADIENT_CASES = [(name, kind) for name, kind in CASES if issubclass(ALGORITHMS[name], GradientAlgorithm)]
every_gradient_case = pytest.mark.parametrize(("name", "kind"), GRADIENT_CASES)


def prepared(algorithm: GradientAlgorithm, collector: Any) -> Batch:
    """All the data of one update, ready for `losses`."""
    generator = torch.Generator().manual_seed(1)
    with algorithm.policy.in_phase(Phase.UPDATE):
        drawn = collector.buffer.draw(algorithm.plan, generator)
        return algorithm.noise(algorithm.preprocess(drawn, collector.buffer), generator)


def minibatches_of(algorithm: GradientAlgorithm, batch: Batch) -> list[Batch]:
    return list(minibatches(batch, algorithm.plan, generator=torch.Generator().manual_seed(2)))


def flat(algorithm: GradientAlgorithm) -> bool:
    """Whether minibatches are rows `[N]`, not sequences `[T, N]`."""
    return getattr(algorithm.plan, "mini_batch_length", None) == 1


def cut(algorithm: GradientAlgorithm, batch: Batch, rows: slice) -> Batch:
    """Some rows `[N]`, or some sequences of `[T, N]`."""
    return batch.map(lambda leaf: leaf[rows] if flat(algorithm) or leaf.ndim == 1 else leaf[:, rows])


def width(algorithm: GradientAlgorithm, batch: Batch) -> int:
    leaf = batch.values()[0]
    while isinstance(leaf, Batch):
        leaf = leaf.values()[0]
    return leaf.shape[0 if flat(algorithm) else 1]


def shaken(algorithm: GradientAlgorithm) -> GradientAlgorithm:
    """Away from the initial weights, where policies are almost uniform and values almost zero."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in algorithm.model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return algorithm


# -- gradients


@every_gradient_case
def test_gradients_of_uneven_shards_combine_to_the_gradient_of_the_whole(name, kind):
    """MARO-30, MARO-31, MARO-39: weighted by valid rows. Where networks mix rows, parts are refused."""
    algorithm, collector = collected(name, kind)
    batch = prepared(shaken(algorithm), collector)
    minibatch = minibatches_of(algorithm, batch)[0]
    whole = algorithm.gradients(minibatch)
    if algorithm.mixes_rows:
        with pytest.raises(ConfigError, match="give the gradient of the whole minibatch"):
            algorithm.apply([whole, whole])
        return
    third = max(1, width(algorithm, minibatch) // 3)
    shards = [algorithm.gradients(cut(algorithm, minibatch, rows)) for rows in (slice(third), slice(third, None))]
    counts = [float(shard.num_valid) for shard in shards]
    assert counts[0] != counts[1]
    assert sum(counts) == float(whole.num_valid)
    for key, gradient in whole.values.items():
        parts = [count * shard.values[key] for count, shard in zip(counts, shards, strict=True)]
        assert_close(sum(parts) / sum(counts), gradient, rtol=1e-4, atol=1e-6)
    twin = make(name, collector.env, kind=kind)
    twin.load_state_tensors(algorithm.state_tensors())
    together, apart = algorithm.apply(whole), twin.apply(shards)
    for norm in (key for key in together if key.startswith("gradient_norm/")):
        assert_close(apart[norm], together[norm], rtol=1e-4, atol=1e-6)
    assert twin.num_gradient_steps == algorithm.num_gradient_steps == 1


@every_gradient_case
def test_a_shard_without_valid_rows_counts_nothing(name, kind):
    """MARO-30: a gradient worker may be handed nothing but ends of episodes."""
    algorithm, collector = collected(name, kind)
    batch = prepared(algorithm, collector)
    if "valid" not in batch:
        pytest.skip("every row that this algorithm draws is valid")
    minibatch = minibatches_of(algorithm, batch)[0]
    empty = minibatch.replace(valid=torch.zeros_like(minibatch.valid))
    whole, nothing = algorithm.gradients(minibatch), algorithm.gradients(empty)
    assert float(nothing.num_valid) == 0
    assert all(torch.isfinite(gradient).all() for gradient in nothing.values.values())
    other = make(name, collector.env, kind=kind)
    other.apply([whole, nothing])
    algorithm.apply(whole)
    assert not different(parameters(algorithm), parameters(other))


@every_gradient_case
def test_losses_read_weights_and_change_nothing(name, kind):
    """MARO-31, PARL-10: no parameter, buffer, generator, optimizer or global random state moves."""
    algorithm, collector = collected(name, kind)
    minibatch = minibatches_of(algorithm, prepared(algorithm, collector))[0]
    batch_before = copy.deepcopy(dict(minibatch.items()))
    before, generators = whole_state(algorithm), global_generators()
    first, second = algorithm.losses(minibatch), algorithm.losses(minibatch)
    algorithm.gradients(minibatch)
    assert not different(whole_state(algorithm), before)
    assert global_generators() == generators
    assert all(torch.equal(first.terms[term], second.terms[term]) for term in first.terms)
    for field, value in batch_before.items():
        if isinstance(value, Tensor):
            assert torch.equal(minibatch[field], value), field
    assert all(parameter.grad is None for parameter in algorithm.model.parameters())


def cost_fields() -> Iterator[tuple[str, str]]:
    for name, kind in ALGORITHMS.items():
        for field in dataclasses.fields(kind.config_class):
            if field.name.endswith("_cost"):
                yield name, field.name


@pytest.mark.parametrize(("name", "cost"), list(cost_fields()))
@pytest.mark.parametrize("kind", ["discrete", "continuous", "team"])
def test_every_coefficient_of_a_loss_moves_the_gradient(name, cost, kind):
    if (name, kind) not in GRADIENT_CASES:
        pytest.skip(f"{name} takes no {kind} actions")
    gradients = []
    for value in (0.1, 0.7):
        algorithm, collector = collected(name, kind, **{cost: value})
        batch = prepared(shaken(algorithm), collector)
        algorithm.num_gradient_steps = math.lcm(*algorithm.term_periods.values()) - 1  # all terms are due
        gradients.append(algorithm.gradients(minibatches_of(algorithm, batch)[0]).values)
    moved = [float((gradients[0][key] - gradients[1][key]).norm()) for key in gradients[0]]
    assert max(moved) > 1e-3, f"{cost} changes no gradient"


PRIORITIZED = [(name, kind) for name, kind in CASES if hasattr(ALGORITHMS[name].config_class, "prioritized")]


@pytest.mark.parametrize(("name", "kind"), PRIORITIZED)
def test_a_row_of_importance_weight_zero_gives_no_gradient(name, kind):
    """TS-11, TS-15: the loss of a row is multiplied by its weight; others keep theirs."""
    algorithm, collector = collected(name, kind, prioritized=True)
    minibatch = minibatches_of(algorithm, prepared(shaken(algorithm), collector))[0]
    assert minibatch.weight.max() <= 1.0
    nothing = algorithm.gradients(minibatch.replace(weight=torch.zeros_like(minibatch.weight)))
    assert not any(gradient.any() for gradient in nothing.values.values())
    one = torch.zeros_like(minibatch.weight)
    one[0] = 1.0
    alone = algorithm.gradients(cut(algorithm, minibatch, slice(1)))
    among = algorithm.gradients(minibatch.replace(weight=one))
    share = float(among.num_valid) / float(alone.num_valid)
    for key, gradient in among.values.items():
        assert_close(share * gradient, alone.values[key] / minibatch.weight[0], rtol=1e-4, atol=1e-6)
    assert among.priority is not None
    assert_close(among.priority, nothing.priority)
    assert not among.priority.requires_grad


@every_case
def test_optimizers_cover_each_trainable_parameter_exactly_once(name, kind):
    """MARO-32, MARO-35: what needs a gradient has one optimizer, what has none is frozen."""
    algorithm, _ = collected(name, kind)
    covered = [id(p) for optimizer in algorithm.model.optimizers.values() for p in optimizer.parameters]
    trainable = {id(p): key for key, p in algorithm.model.named_parameters() if p.requires_grad}
    assert len(covered) == len(set(covered))
    assert set(covered) == set(trainable)
    assert {id(p) for p in algorithm.policy.parameters()} <= {id(p) for p in algorithm.model.parameters()}


@every_case
def test_an_update_reaches_every_trainable_parameter(name, kind):
    """Where it can go from data to steps of its own, an update of each."""
    algorithm, collector = collected(name, kind)
    before = parameters(shaken(algorithm))
    algorithm.update(collector.buffer)
    if isinstance(algorithm.plan, Offline) and not algorithm.imitates:
        algorithm.plan = algorithm.plan.online()
        algorithm.update(collector.buffer)
    trained = {key for optimizer in algorithm.model.optimizers.values() for key in optimizer.names}
    moved = set(different(before, parameters(algorithm)))
    assert {f"component.{key}" for key in trained} <= moved


# -- an update


@every_gradient_case
def test_an_update_draws_preprocesses_then_takes_each_minibatch_once(name, kind, monkeypatch):
    """TS-12, TS-13, TS-14, TS-15, ALF-07..09: draw, preprocess, noise, then losses and one step for each minibatch."""
    algorithm, collector = collected(name, kind)
    expected = len(minibatches_of(algorithm, prepared(algorithm, collector)))
    calls: list[str] = []
    weights: list[dict[str, Tensor]] = []

    def spy(owner: Any, method: str) -> None:
        original = getattr(owner, method)

        def called(*args: Any, **kwargs: Any) -> Any:
            calls.append(method)
            weights.append(parameters(algorithm))
            return None if original is None else original(*args, **kwargs)

        monkeypatch.setattr(owner, method, called, raising=False)

    for method in ("preprocess", "noise", "losses", "after_step"):
        spy(algorithm, method)
    spy(collector.buffer, "draw")
    info = algorithm.update(collector.buffer)
    assert calls == ["draw", "preprocess", "noise", *(["losses", "after_step"] * expected)]
    assert info.gradient_steps == expected
    assert algorithm.num_gradient_steps == expected
    for losses_at in range(3, len(calls), 2):
        assert different(weights[losses_at], weights[losses_at + 1]), "no optimizer step before after_step"


@every_case
def test_an_update_raises_the_version_by_one_whatever_its_gradient_steps(name, kind):
    """MARO-22, ALF-05: the version counts updates; an unroll is learned from once, and a second time is refused."""
    algorithm, collector = collected(name, kind)
    assert algorithm.policy_version == 0
    info = algorithm.update(collector.buffer)
    assert (algorithm.policy_version, info.policy_version) == (1, 1)
    if isinstance(algorithm.plan, OnPolicy):
        before = parameters(algorithm)
        with pytest.raises(ConfigError, match="learned from already, and an on-policy update needs new rows"):
            algorithm.update(collector.buffer)
        assert algorithm.policy_version == 1 and not different(before, parameters(algorithm))
    collector.unroll(12)
    assert int(collector.buffer.newest(1).policy_version.max()) == 1
    assert algorithm.update(collector.buffer).policy_version == 2


@every_gradient_case
def test_the_policy_is_updating_only_during_an_update(name, kind, monkeypatch):
    """TS-16, TS-17: collecting True, False; updating True, True; and back after an exception."""
    algorithm, collector = collected(name, kind)
    policy = algorithm.policy
    flags = []

    def losses(batch: Any) -> Any:
        flags.append((policy.training, policy.updating))
        raise RuntimeError("on purpose")

    assert (policy.training, policy.updating) == (True, False)
    with monkeypatch.context() as patch:
        patch.setattr(algorithm, "losses", losses)
        with pytest.raises(RuntimeError, match="on purpose"):
            algorithm.update(collector.buffer)
    assert flags == [(True, True)]
    assert (policy.training, policy.updating) == (True, False)
    assert algorithm.policy_version == 0
    with policy.in_phase(Phase.EVAL):
        assert (policy.training, policy.updating) == (False, False)


@every_case
def test_an_update_with_ends_of_episodes_inside_is_finite(name, kind):
    """ALF-23..26: LAST rows, terminated and truncated, lie inside the data."""
    algorithm, collector = collected(name, kind)
    for _ in range(3):
        assert (collector.buffer.recent("step_type", 12) == StepType.LAST).any()
        info = algorithm.update(collector.buffer)
        assert all(np.isfinite(value) for value in info.metrics.values()), info.metrics
        collector.unroll(12)
    assert all(torch.isfinite(value).all() for value in parameters(algorithm).values())


SMALL_INTEGERS = {
    "discrete": EnvConfig(name="tests.algorithms.parts:Numbered"),
    "recurrent": EnvConfig(name="tests.algorithms.parts:Numbered"),
    "team": EnvConfig(name="tests.algorithms.teams:Team", kwargs={"dtype": "int32"}),
}


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case[1] in SMALL_INTEGERS])
def test_discrete_actions_may_be_of_any_integer_type_and_begin_anywhere(name, kind):
    """Policies count from 0 in int64; the environment, and data of it, have its own numbers and type."""
    env = environment(SMALL_INTEGERS[kind])
    algorithm = make(name, env, kind=kind)
    collector = collector_for(env, algorithm)
    collector.unroll(12)
    action, policy = collector.buffer.recent("action", 12), algorithm.policy
    executed = policy.env_action(action)
    if isinstance(action, Batch):
        with pytest.raises(ConfigError, match="stores more with an action"):
            raw_actions(executed, env.action_spec, policy.raw_action_spec)
        action = action["choice"]
    else:
        assert_close(raw_actions(executed, env.action_spec, policy.raw_action_spec), action)
    assert (action.dtype, executed.dtype) == (torch.int64, torch.int32)
    info = algorithm.update(collector.buffer)
    assert all(np.isfinite(value) for value in info.metrics.values()), info.metrics
    assert policy(env.reset().observation).dtype == np.int32


@every_gradient_case
def test_a_gradient_that_is_not_finite_raises(name, kind, monkeypatch):
    """F23: the error names the component and the numbers of the step, and the command line ends with 4."""
    algorithm, collector = collected(name, kind)
    original = algorithm.losses

    def losses(batch: Any) -> Any:
        stated = original(batch)
        return stated._replace(terms={key: term * torch.nan for key, term in stated.terms.items()})

    monkeypatch.setattr(algorithm, "losses", losses)
    with pytest.raises(NonFiniteError, match=r"the gradient of '\w+' is not finite") as caught:
        algorithm.update(collector.buffer)
    assert caught.value.exit_code == 4
    assert not algorithm.policy.updating


# -- compiled


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", sorted({name for name, _ in GRADIENT_CASES if any_kind(name) not in SETTINGS}))
def test_a_compiled_gradient_step_equals_the_eager_one(name):
    """DESIGN.md section 10: eager is the reference, compiled results equal it to rounding."""
    results = []
    for compiled in (False, True):
        algorithm, collector = collected(name, any_kind(name))
        if compiled:
            torch.compiler.reset()
            if algorithm.policy.state_spec:
                with pytest.raises(ConfigError, match="a hidden state cannot be compiled"):
                    algorithm.compile()
                return
            algorithm.compile()
        metrics = [algorithm.update(collector.buffer).metrics]
        collector.unroll(12)
        metrics.append(algorithm.update(collector.buffer).metrics)
        results.append((metrics, parameters(algorithm)))
    (eager, weights), (fast, others) = results
    for before, after in zip(eager, fast, strict=True):
        assert after == pytest.approx(before, rel=1e-4, abs=1e-5)
    for key in weights:
        assert_close(others[key], weights[key], rtol=1e-4, atol=1e-5)


def test_gradients_carry_what_a_worker_has_to_send():
    """MARO-31: values by name, the weight of the shard, metrics, priorities and moments; nothing else."""
    assert Gradients._fields == ("values", "num_valid", "metrics", "priority", "moments")
