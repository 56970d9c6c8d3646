"""Tests of `palaestra.nn.optimizer`: torch's optimizers are the reference."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from palaestra.core import CheckpointError, ConfigError, Linear, load_tensors, save_tensors
from palaestra.nn import CoreModel, OptimizerOption
from palaestra.nn.optimizer import ComponentOptimizer

REFERENCE = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
SETTINGS = {
    "adam": ("adam", {}),
    "adam, all settings": ("adam", {"lr": 0.02, "betas": (0.7, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    "adamw": ("adamw", {}),
    "adamw, all settings": ("adamw", {"lr": 0.02, "betas": (0.7, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    "rmsprop": ("rmsprop", {}),
    "rmsprop with momentum": ("rmsprop", {"momentum": 0.9, "weight_decay": 0.1}),
    "rmsprop, centred": ("rmsprop", {"centered": True, "alpha": 0.9, "eps": 1e-3}),
    "sgd": ("sgd", {"lr": 0.01}),
    "sgd with momentum": ("sgd", {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}),
    "sgd, nesterov": ("sgd", {"lr": 0.01, "momentum": 0.9, "nesterov": True}),
}


def network(seed=0, width=7):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))


def optimizer_of(module, cls="adam", params=None, limit=None):
    return ComponentOptimizer(dict(module.named_parameters()), OptimizerOption(cls, params or {}, limit))


def gradients(module, seed):
    torch.manual_seed(seed)
    loss = (module(torch.randn(5, 3)) - torch.randn(5, 2)).square().mean()
    return torch.autograd.grad(loss, list(module.parameters()))


@pytest.mark.parametrize("limit", [None, 0.5, 1e6], ids=["unlimited", "clipped", "never clipped"])
@pytest.mark.parametrize(("cls", "params"), SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("width", [7, 600], ids=["small", "large"])
def test_steps_are_those_of_torch(cls, params, limit, width):
    """MARO-35: twenty steps beside `torch.optim` and `clip_grad_norm_`, with the same norms before clipping."""
    ours, theirs = network(width=width), network(width=width)
    optimizer = optimizer_of(ours, cls, params, limit)
    reference = REFERENCE[cls](theirs.parameters(), **params)
    for step in range(20):
        found = gradients(ours, step)
        for parameter, gradient in zip(theirs.parameters(), found, strict=True):
            parameter.grad = gradient.clone(memory_format=torch.contiguous_format)
        norm = optimizer.step(found)
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), limit or math.inf)
        reference.step()
        assert_close(norm, expected, rtol=1e-5, atol=1e-7)
        for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert_close(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["expanded", "transposed", "strided", "shared"])
@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("size", [4, 700], ids=["small", "large"])
def test_gradients_may_be_views_of_any_layout(kind, limit, size):
    """Fused kernels walk through memory as it lies; autograd gives views, which they would misread."""
    layouts = {
        "expanded": lambda: torch.ones(()).expand(size, size),
        "transposed": lambda: torch.arange(float(size * size)).reshape(size, size).t(),
        "strided": lambda: torch.arange(2.0 * size * size).reshape(size, 2 * size)[:, ::2],
        "shared": lambda: torch.arange(float(size * size)).reshape(size, size),
    }
    gradient = layouts[kind]()
    left, right = (nn.ParameterList([torch.zeros(size, size), torch.zeros(size, size)]) for _ in range(2))
    optimizer, reference = optimizer_of(left, "adam", {"lr": 0.1}, limit), torch.optim.Adam(right.parameters(), lr=0.1)
    before = gradient.clone()
    for _ in range(2):
        optimizer.step([gradient, gradient])
        for parameter in right.parameters():
            parameter.grad = gradient.clone(memory_format=torch.contiguous_format)
        nn.utils.clip_grad_norm_(right.parameters(), limit or math.inf)
        reference.step()
    for mine, theirs in zip(left.parameters(), right.parameters(), strict=True):
        assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    assert torch.equal(gradient, before)


def test_parameters_may_lie_transposed():
    weight = nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
    optimizer = ComponentOptimizer({"w": weight}, OptimizerOption("adam", {"lr": 0.1}))
    gradient = torch.tensor([[1.0, -1.0], [2.0, 0.0], [-3.0, 4.0]])
    before = weight.detach().clone()
    optimizer.step([gradient])
    assert_close(weight.detach(), before - 0.1 * gradient.sign(), rtol=1e-5, atol=1e-5)


def test_parameters_of_several_dtypes_are_stepped_one_by_one():
    parameters = {"a": nn.Parameter(torch.ones(2)), "b": nn.Parameter(torch.ones(2, dtype=torch.float64))}
    optimizer = ComponentOptimizer(parameters, OptimizerOption("adam", {"lr": 0.1}, 1.0))
    norm = optimizer.step([torch.ones(2), torch.ones(2, dtype=torch.float64)])
    assert norm.item() == pytest.approx(2)
    assert all(parameter.tolist() == pytest.approx([0.9, 0.9], rel=1e-5) for parameter in parameters.values())


def test_a_component_without_parameters_takes_a_step():
    assert ComponentOptimizer({}, OptimizerOption()).step([]).item() == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("cls", REFERENCE)
def test_a_gradient_that_is_not_finite_changes_nothing(cls, bad):
    """F23: parameters and memory stay bit-identical; the norm says what happened."""
    module = network()
    optimizer = optimizer_of(module, cls, {"momentum": 0.9} if cls in ("sgd", "rmsprop") else {}, 1.0)
    optimizer.step(gradients(module, 0))
    saved = [tensor.clone() for tensor in (*module.parameters(), *optimizer.state_tensors().values())]
    poisoned = list(gradients(module, 1))
    poisoned[2] = poisoned[2].index_fill(0, torch.tensor([0]), bad)
    assert not optimizer.step(poisoned).isfinite()
    for before, after in zip(saved, (*module.parameters(), *optimizer.state_tensors().values()), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize(
    ("cls", "params", "kinds"),
    [
        ("adam", {}, {"exp_avg", "exp_avg_sq"}),
        ("sgd", {}, set()),
        ("sgd", {"momentum": 0.9}, {"momentum_buffer"}),
        ("rmsprop", {}, {"square_avg"}),
        ("rmsprop", {"centered": True, "momentum": 0.5}, {"square_avg", "grad_avg", "momentum_buffer"}),
    ],
)
def test_only_what_is_used_is_remembered_and_saved(cls, params, kinds):
    """MARO-35: no buffer stands idle in memory or in a checkpoint."""
    optimizer = optimizer_of(network(), cls, params)
    assert optimizer.state.keys() == kinds
    assert {name.split(".")[0] for name in optimizer.state_tensors()} == {"steps", *kinds}


@pytest.mark.parametrize(("cls", "params"), SETTINGS.values(), ids=SETTINGS)
def test_a_saved_optimizer_goes_on_bit_for_bit(cls, params, tmp_path):
    """F25."""
    ours, twin = network(), network()
    optimizer, other = optimizer_of(ours, cls, params, 0.5), optimizer_of(twin, cls, params, 0.5)
    for step in range(5):
        optimizer.step(gradients(ours, step))
    save_tensors(tmp_path / "state", optimizer.state_tensors())
    other.load_state_tensors(load_tensors(tmp_path / "state"))
    twin.load_state_dict(ours.state_dict())
    for step in range(5, 9):
        for net, each in ((ours, optimizer), (twin, other)):
            each.step(gradients(net, step))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), twin.parameters(), strict=True))
    assert all(
        torch.equal(a, b)
        for a, b in zip(optimizer.state_tensors().values(), other.state_tensors().values(), strict=True)
    )


def test_a_state_that_does_not_fit_is_refused():
    """F11."""
    optimizer = optimizer_of(network())
    with pytest.raises(CheckpointError, match=r"does not fit sgd: \['exp_avg.0.bias'"):
        optimizer_of(network(), "sgd").load_state_tensors(optimizer.state_tensors())
    with pytest.raises(CheckpointError, match="does not fit adam"):
        optimizer_of(network(width=8)).load_state_tensors(optimizer.state_tensors())


def test_the_learning_rate_follows_its_schedule():
    """MARO-35: a learning rate of its own, and a schedule of its own."""
    module = nn.Linear(1, 1, bias=False)
    optimizer = optimizer_of(module, "sgd", {"lr": Linear(1.0, 0.0)})
    moved = []
    for progress in (0.0, 0.25, 1.0):
        optimizer.set_progress(progress)
        before = module.weight.item()
        optimizer.step([torch.ones(1, 1)])
        moved.append(before - module.weight.item())
    assert moved == pytest.approx([1.0, 0.75, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OptimizerOption("adma"), "unknown optimizer 'adma' — did you mean 'adam'"),  # pyright: ignore
        (lambda: OptimizerOption("adam", {"learning_rate": 1.0}), "adam has no parameter 'learning_rate'"),
        (lambda: OptimizerOption("sgd", {"dampening": 0.1}), "sgd has no parameter 'dampening'"),
        (lambda: OptimizerOption("adam", {"lr": -1.0}), "adam was given lr = -1.0; it must not be negative"),
        (
            lambda: OptimizerOption("adam", {"lr": Linear(1e-3, -1e-3)}),
            r"lr = linear\(0.001, -0.001\); it must not",
        ),
        (lambda: OptimizerOption("adam", {"lr": Linear(-0.1, 0.1)}), r"lr = linear\(-0.1, 0.1\); it must not"),
        (lambda: OptimizerOption("adam", {"eps": math.nan}), "eps = nan"),
        (lambda: OptimizerOption("adam", {"betas": (0.9, 1.0)}), r"betas = \(0.9, 1.0\); they must lie in \[0, 1\)"),
        (lambda: OptimizerOption("adam", max_grad_norm=-1.0), "max_grad_norm = -1.0"),
        (lambda: OptimizerOption("sgd", {"nesterov": True}), "needs a momentum above 0"),
    ],
    ids=["cls", "name", "dampening", "lr", "lr to", "lr from", "eps", "betas", "norm", "nesterov"],
)
def test_impossible_options_are_refused(make, message):
    """F27, MARO-35."""
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(("cls", "params"), SETTINGS.values(), ids=SETTINGS)
def test_a_step_is_one_graph(cls, params):
    """Traced whole with its gradient, clipping and a learning rate that moves; equal to the eager step to rounding."""
    compiled_equals_eager(cls, params, "eager")


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "params"), [SETTINGS["adam"], SETTINGS["rmsprop, centred"], SETTINGS["sgd, nesterov"]])
def test_a_compiled_step_equals_the_eager_one(cls, params):
    compiled_equals_eager(cls, params, "inductor")


def compiled_equals_eager(cls, params, backend):
    torch._dynamo.config.trace_autograd_ops = True
    schedule = {**params, "lr": Linear(0.1, 0.01)}
    models = [CoreModel({"net": network()}, {"net": OptimizerOption(cls, schedule, 0.5)}) for _ in range(2)]

    def step(model, x):
        return model.apply_gradients([model.get_gradients(model.component["net"](x).square().sum())])["net"]

    torch.compiler.reset()
    compiled = torch.compile(lambda x: step(models[1], x), fullgraph=True, dynamic=False, backend=backend)
    for i in range(4):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(i))
        for model in models:
            model.set_progress(i / 4)
        assert_close(compiled(x), step(models[0], x), rtol=1e-4, atol=1e-5)
    before = [tensor.clone() for tensor in models[1].state_tensors().values()]
    assert not compiled(torch.full((5, 3), math.nan)).isfinite()
    assert all(torch.equal(a, b) for a, b in zip(before, models[1].state_tensors().values(), strict=True))
    for left, right in zip(*(model.state_tensors().values() for model in models), strict=True):
        assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_state_of_another_optimizer_of_pytorch_is_refused():
    parameters = {"weight": nn.Parameter(torch.ones(2, 2))}
    saved = ComponentOptimizer(parameters, OptimizerOption("RAdam"))
    saved.step([torch.ones(2, 2)])
    with pytest.raises(CheckpointError, match="does not fit Adamax"):
        ComponentOptimizer(parameters, OptimizerOption("Adamax")).load_state_tensors(saved.state_tensors())


@pytest.mark.parametrize("cls", ["SparseAdam", "Muon"])
def test_an_optimizer_that_cannot_train_these_parameters_is_refused_at_once(cls):
    with pytest.raises(ConfigError, match=rf"{cls} cannot train parameters of the shapes \[\(2,\)\]"):
        ComponentOptimizer({"bias": nn.Parameter(torch.ones(2))}, OptimizerOption(cls))


def test_gradients_that_are_given_stay_as_they_are():
    """Where they are too long, too."""
    model = CoreModel({"q": nn.Linear(3, 1, bias=False)}, {"q": OptimizerOption("sgd", {"lr": 0.1}, max_grad_norm=0.1)})
    gradient = {"q.weight": torch.full((1, 3), 5.0)}
    model.apply_gradients([gradient])
    assert gradient["q.weight"].tolist() == [[5.0, 5.0, 5.0]]
