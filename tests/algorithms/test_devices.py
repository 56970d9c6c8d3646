"""Algorithms on a device: the numbers of the CPU, and no tensor that meets one from elsewhere."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

import palaestra.nn.optimizer
from palaestra.algorithms import ALGORITHMS, BonusConfig, GradientAlgorithm
from palaestra.algorithms.compiled_steps import AwaitedMetrics, CompiledSteps
from palaestra.core import ConfigError, Linear, Minibatches, NonFiniteError, to_device
from palaestra.testing.algorithms import different
from tests.algorithms.parts import FAST, any_kind, collected, collector_for, environment, make, slow_but_of
from tests.devices import pretend_device

# every algorithm once; then actions of several parts, masks, and memories
KINDS_OF_ALL = [("ppo", "composite"), ("dqn", "masked"), ("ppo", "recurrent-masked")]
some_cases = pytest.mark.parametrize(
    ("name", "kind"), [*slow_but_of(FAST, ((name, any_kind(name)) for name in ALGORITHMS)), *KINDS_OF_ALL]
)
CHANGED = [
    ("dqn", "discrete", {"prioritized": True, "noisy": True}),
    ("sac", "continuous", {"normalize_observation": True}),
    (
        "ppo",
        "continuous",
        {"normalize_observation": True, "clip": Linear(0.3, 0.1), "learning_rate": Linear(1e-3, 0.0)},
    ),
    ("dqn", "discrete", {"bonus": BonusConfig(kind="rnd")}),
    ("ppo", "discrete", {"bonus": BonusConfig(kind="icm")}),
    ("td3", "continuous", {"tau": Linear(0.01, 0.1), "gamma": Linear(0.9, 0.99)}),
]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch with CUDA")


def learned(name, kind, device, *, compiled=False, **changes):
    """What an algorithm has come to after some updates, and what they reported."""
    with environment(kind) as env:
        algorithm = make(name, env, kind=kind, **changes).to(device)
        if compiled:
            algorithm.compile()
        collector = collector_for(env, algorithm)
        records = []
        for _ in range(2):
            collector.unroll(12)
            records.append(algorithm.update(collector.source).metrics)
            algorithm.set_progress(0.5)
    return algorithm, records


def check_equal(name, kind, device, **changes):
    here, metrics = learned(name, kind, "cpu", **changes)
    there, metrics_there = learned(name, kind, device, **changes)
    assert {parameter.device.type for parameter in there.model.parameters()} == {torch.device(device).type}
    state, expected = to_device(there.state_tensors(), "cpu"), here.state_tensors()
    if "recurrent" in kind:  # torch computes memories on devices by other operations
        assert_close(metrics_there, metrics, rtol=1e-3, atol=1e-5)
        names = [key for key in expected if key.startswith("model.")]
        assert_close({key: state[key] for key in names}, {key: expected[key] for key in names}, rtol=1e-3, atol=1e-4)
    else:
        assert metrics_there == metrics
        assert not different(state, expected)


@some_cases
def test_an_algorithm_learns_on_a_device_what_it_learns_on_the_cpu(name, kind, monkeypatch):
    """ALF-56: equal weights at first, equal rows, equal noise; collecting, acting, learning and its checkpoint."""
    monkeypatch.setattr(palaestra.nn.optimizer, "_SMALL", 0)  # the optimizer's sums in the order of a device
    with pretend_device() as device:
        check_equal(name, kind, device)


@pytest.mark.parametrize(("name", "kind", "changes"), CHANGED)
def test_priorities_noisy_layers_statistics_bonuses_and_schedules_follow(name, kind, changes, monkeypatch):
    monkeypatch.setattr(palaestra.nn.optimizer, "_SMALL", 0)
    with pretend_device() as device:
        check_equal(name, kind, device, **changes)


def test_a_checkpoint_of_one_device_goes_on_on_another(monkeypatch):
    """F25: weights, optimizer state and what is drawn go along; a generator of another kind begins anew."""
    algorithm, _ = learned("sac", "continuous", "cpu")
    saved = algorithm.state_tensors()
    with pretend_device() as device:
        other, _ = collected("sac", "continuous", seed=8)
        other.to(device).load_state_tensors(saved)
        assert not different(to_device(other.state_tensors(), "cpu"), saved)
        back, _ = collected("sac", "continuous", seed=9)
        back.load_state_tensors(other.state_tensors())
        assert not different(back.state_tensors(), saved)


def test_acting_begins_anew_where_the_saved_generator_is_of_another_kind():
    """F25: that of CUDA has 16 bytes; everything else goes on, and equal seeds give equal choices again."""
    algorithm, _ = learned("sac", "continuous", "cpu")
    saved = {**algorithm.state_tensors(), "generator.acting": torch.zeros(16, dtype=torch.uint8)}
    first, second = (collected("sac", "continuous", seed=9)[0] for _ in range(2))
    fresh = first.policy.generator.get_state()
    for twin in (first, second):
        twin.load_state_tensors(saved)
    assert different(first.state_tensors(), saved) == ["generator.acting"]
    assert not different(first.state_tensors(), second.state_tensors())
    assert not torch.equal(first.policy.generator.get_state(), fresh)


def test_compiled_code_is_for_one_device(monkeypatch):
    made = []

    def compiled(algorithm, step, batch, *rest):
        made.append(algorithm.device.type)
        return lambda batch: (({}, None, 1), None)

    monkeypatch.setattr("palaestra.algorithms.compiled_steps.compiled_method", compiled)
    algorithm, collector = collected("dqn", "discrete")
    steps = CompiledSteps(algorithm, 0)
    list(steps.steps([Minibatches(algorithm.draw(collector.buffer), 1, 0)]))
    with pretend_device() as device:
        algorithm.to(device)
        for _ in range(2):
            list(steps.steps([Minibatches(algorithm.draw(collector.buffer), 1, 0)]))
    assert made == ["cpu", device]


@pytest.mark.parametrize(
    ("steps", "period", "done", "together"),
    [(16, 1, 5, 16), (40, 1, 0, 10), (17, 1, 0, 1), (16, 2, 4, 2), (16, 2, 5, 1), (16, 1000, 8, 8)],
)
def test_a_graph_on_a_gpu_has_steps_with_no_copy_into_target_networks_between(steps, period, done, together):
    """After each step they are part of it."""
    algorithm, _ = collected("dqn", "discrete", target_period=period)
    algorithm.device, algorithm.num_gradient_steps = torch.device("cuda"), done
    assert CompiledSteps(algorithm, 0)._in_a_row(steps) == together


@pytest.mark.parametrize("finite", [True, False])
def test_targets_follow_inside_of_a_step_on_a_gpu_if_its_gradient_is_finite(finite):
    algorithm, collector = collected("sac", "continuous", tau=0.25)
    batch = algorithm.prepared(drawn := algorithm.draw(collector.buffer), drawn, collector.buffer)
    algorithm.device = torch.device("cuda")
    before = [p.clone() for p in algorithm.model.component["target_critic"].parameters()]
    _, moments = algorithm.one_step(batch if finite else batch.replace(reward=batch.reward * torch.nan))
    for target, old, now in zip(
        algorithm.model.component["target_critic"].parameters(),
        before,
        algorithm.model.component["critic"].parameters(),
        strict=True,
    ):
        assert_close(target, old.lerp(now, 0.25) if finite else old, rtol=0, atol=1e-7)
    after = [p.clone() for p in algorithm.model.component["target_critic"].parameters()]
    if finite:
        algorithm.follow_step(moments, targets_followed=algorithm.targets_follow_inside)
    assert all(
        torch.equal(a, b) for a, b in zip(after, algorithm.model.component["target_critic"].parameters(), strict=True)
    )


def test_statistics_of_a_batch_are_followed_after_a_step():
    """Targets follow running averages, too, which move first."""
    algorithm, _ = collected("sac", "continuous")
    algorithm.device, algorithm.mixes_rows = torch.device("cuda"), True
    assert algorithm.steps_in_a_row == 1


@pytest.mark.parametrize("name", ["ppo", "td3"])
def test_steps_on_a_gpu_are_apart_where_something_is_asked_in_between(name):
    algorithm, _ = collected(name, "continuous")
    assert algorithm.steps_in_a_row == (0 if name == "ppo" else 1)
    algorithm.stop_early = lambda metrics: False
    assert algorithm.steps_in_a_row == 1


def test_metrics_of_an_update_on_a_gpu_are_those_when_it_was_begun(monkeypatch):
    """Of what it does, only waiting needs a GPU."""
    waited, empty = [], torch.empty
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: waited.append(True))
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    algorithm, _ = collected("sac", "continuous")
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory, **named: empty(*shape, **named))
    loss, norm, count = torch.tensor(3.0), torch.tensor(torch.inf), torch.tensor(2)
    records = [{"loss": loss, "count": count}, {"loss": torch.tensor(4.0), "gradient_norm/critic": norm}]
    awaited = AwaitedMetrics(algorithm, records)
    loss.fill_(0.0)
    norm.fill_(0.0)
    with pytest.raises(NonFiniteError, match=r"'critic' is not finite.*'loss': 4.0"):
        awaited.require_finite()
    assert waited
    assert [record["loss"].item() for record in records] == [3.0, 4.0]
    assert records[0]["count"] is count


def test_a_device_that_is_not_there_is_refused_and_nothing_moves():
    algorithm, _ = collected("dqn", "discrete")
    with pytest.raises(ConfigError, match=r"device is 'cuda:77', but this process can compute on cpu"):
        algorithm.to("cuda:77")
    assert algorithm.device.type == "cpu"


@needs_cuda
@pytest.mark.parametrize(("name", "kind"), [("ppo", "continuous"), ("dqn", "discrete"), ("sac", "continuous")])
def test_an_algorithm_learns_on_a_gpu(name, kind):
    algorithm, records = learned(name, kind, "cuda")
    assert {parameter.device.type for parameter in algorithm.model.parameters()} == {"cuda"}
    assert algorithm.policy.generator.device.type == "cuda"
    assert all(torch.isfinite(torch.tensor(value)) for record in records for value in record.values())
    twin, _ = learned(name, kind, "cpu")
    twin.load_state_tensors(algorithm.state_tensors())
    assert not different(
        {k: v for k, v in twin.state_tensors().items() if k != "generator.acting"},
        {k: v for k, v in to_device(algorithm.state_tensors(), "cpu").items() if k != "generator.acting"},
    )


@needs_cuda
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore::UserWarning:torch._inductor")
@pytest.mark.parametrize(
    ("name", "kind", "changes"),
    [*((n, any_kind(n), {}) for n, kind in ALGORITHMS.items() if issubclass(kind, GradientAlgorithm)), *CHANGED],
)
@pytest.mark.parametrize("fuses", [False, True])
def test_compiled_steps_on_a_gpu_are_those_of_eager_code(name, kind, changes, fuses, monkeypatch):
    """One CUDA graph, of the operations as they are, and of those that the compiler makes of them."""
    if fuses and torch.__version__ < "2.13" and (ALGORITHMS[name].team or "bonus" in changes):
        pytest.skip("this PyTorch cannot trace batches that are made inside of a loss")
    monkeypatch.setattr("palaestra.nn.fast.can_compile", lambda: fuses)
    torch.compiler.reset()
    try:
        algorithm, metrics = learned(name, kind, "cuda", compiled=True, **changes)
    except ConfigError as error:
        if "a hidden state" not in str(error):
            raise
        pytest.skip(str(error))
    expected, eager = learned(name, kind, "cuda", **changes)
    for after, before in zip(metrics, eager, strict=True):
        assert after == pytest.approx(before, rel=1e-3, abs=1e-4)
    for found, wanted in zip(algorithm.model.parameters(), expected.model.parameters(), strict=True):
        assert_close(found, wanted, rtol=1e-3, atol=1e-4)


@needs_cuda
def test_a_gradient_on_a_gpu_that_is_not_finite_changes_nothing_and_is_found_when_asked_for(monkeypatch):
    monkeypatch.setattr("palaestra.nn.fast.can_compile", lambda: False)
    with environment("discrete") as env:
        algorithm = make("ppo", env, kind="discrete").to("cuda")
        algorithm.compile()
        collector = collector_for(env, algorithm)
        collector.unroll(12)
        collector.buffer.newest(12).reward[:] = float("nan")
        before = [parameter.detach().clone() for parameter in algorithm.model.parameters()]
        begun = algorithm.begin_update(collector.buffer)
        with pytest.raises(NonFiniteError, match="the gradient of 'ppo' is not finite"):
            begun.require_finite()
        assert all(torch.equal(a, b) for a, b in zip(before, algorithm.model.parameters(), strict=True))
        collector.unroll(12)
        collector.buffer.newest(12).reward[:] = float("nan")
        with pytest.raises(NonFiniteError, match="the gradient of 'ppo' is not finite"):
            algorithm.update(collector.buffer)
        collector.unroll(12)
        assert algorithm.update(collector.buffer).rows_trained


@needs_cuda
def test_running_statistics_on_a_gpu_learn_from_no_update_that_is_not_finite(monkeypatch):
    monkeypatch.setattr("palaestra.nn.fast.can_compile", lambda: False)
    with environment("discrete") as env:
        algorithm = make("ppo", env, kind="discrete", normalize_return=True, normalize_observation=True).to("cuda")
        algorithm.compile()
        collector = collector_for(env, algorithm)
        collector.unroll(12)
        collector.buffer.newest(12).reward[:] = float("nan")
        with pytest.raises(NonFiniteError, match="the gradient of 'ppo' is not finite"):
            algorithm.begin_update(collector.buffer)
        for _ in range(2):
            collector.unroll(12)
            algorithm.begin_update(collector.buffer).require_finite()
