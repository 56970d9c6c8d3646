"""What every algorithm promises; a class in `palaestra.algorithms.ALGORITHMS` is enrolled by being there."""

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
from palaestra.core import Batch, ConfigError, shards
from palaestra.policies import raw_actions
from palaestra.testing import AlgorithmContract, GradientAlgorithmContract
from palaestra.testing.algorithms import different, minibatches_of, parameters, prepared, shaken
from tests.algorithms.parts import CASES, SETTINGS, any_kind, collected, collector_for, environment, make

GRADIENT_CASES = [(name, kind) for name, kind in CASES if issubclass(ALGORITHMS[name], GradientAlgorithm)]
OTHER_CASES = [case for case in CASES if case not in GRADIENT_CASES]
every_gradient_case = pytest.mark.parametrize(("name", "kind"), GRADIENT_CASES)


class Cases:
    """An algorithm of the library with a kind of action."""

    @pytest.fixture(autouse=True)
    def _case(self, name, kind):
        self.name, self.kind = name, kind

    def environment(self):
        return environment(self.kind)

    def algorithm(self, env):
        return make(self.name, env, kind=self.kind)


@pytest.mark.parametrize(("name", "kind"), OTHER_CASES)
class TestAlgorithms(Cases, AlgorithmContract):
    """ALF-05, ALF-23..26, MARO-22, MARO-32, MARO-35: the contract that users can run on theirs, too."""


@every_gradient_case
class TestGradientAlgorithms(Cases, GradientAlgorithmContract):
    """And MARO-30, MARO-31, MARO-39, PARL-10, TS-16, TS-17, F23."""


# -- gradients


def cost_fields() -> Iterator[tuple[str, str]]:
    for name, kind in ALGORITHMS.items():
        for field in dataclasses.fields(kind.config_class):
            if field.name.endswith("_cost") and field.name != "symmetry_cost":  # which needs a mirror
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
    alone = algorithm.gradients(shards(minibatch, algorithm.plan, len(minibatch.weight))[0])
    among = algorithm.gradients(minibatch.replace(weight=one))
    share = float(among.num_valid) / float(alone.num_valid)
    for key, gradient in among.values.items():
        assert_close(share * gradient, alone.values[key] / minibatch.weight[0], rtol=1e-4, atol=1e-6)
    assert among.priority is not None
    assert_close(among.priority, nothing.priority)
    assert not among.priority.requires_grad


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
