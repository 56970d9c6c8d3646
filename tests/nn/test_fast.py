"""Tests of `palaestra.nn.fast`: each private way gives the numbers of the public one; and PyTorch's own tools work."""

import gc
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from palaestra.algorithms import DQN, PPO, SAC, DQNConfig, PPOConfig, SACConfig
from palaestra.core import Batch, BoundedSpec, DiscreteSpec, RunSeeds, TensorSpec
from palaestra.nn import MLP, NetworkConfig, fast

VECTOR = TensorSpec((4,))
BOX = BoundedSpec((2,), minimum=-np.ones(2), maximum=np.ones(2))
SMALL = NetworkConfig(hidden_sizes=(8, 8))


def test_gradients_are_those_of_autograd():
    x = torch.randn(5, 4)
    mlp, unused = MLP(4, (8,), 2), torch.zeros(3, requires_grad=True)
    parameters = [*mlp.parameters(), unused]
    for differentiate in (fast.differentiate, fast.public_gradients):
        loss = mlp(x).square().mean()
        *found, nothing = differentiate(
            (loss,), (torch.ones_like(loss),), False, False, tuple(parameters), True, accumulate_grad=False
        )
        assert nothing is None
        expected = torch.autograd.grad(mlp(x).square().mean(), list(mlp.parameters()))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_step_of_adam_is_that_of_the_public_function(decoupled):
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in [(3, 2), (5,)]]
    ends = []
    public = partial(fast.public_adam_step, adamw if decoupled else adam)
    for step in (fast.ADAM["adamw" if decoupled else "adam"], public):
        parameters = [value.clone() for value in start]
        moments = [[torch.zeros_like(value) for value in start] for _ in range(2)]
        for number in range(1, 4):
            gradients = [value.sin() for value in parameters]
            settings = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
            counts = [torch.tensor(float(number))] * 2
            step(parameters, gradients, *moments, [], counts, amsgrad=False, maximize=False, found_inf=None, **settings)
        ends.append([*parameters, *moments[0], *moments[1]])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*ends, strict=True))


def test_flattening_and_layers_and_calls_are_those_of_the_public_way():
    tensors = [torch.randn(2, 3), torch.randn(4), torch.randn(())]
    assert torch.equal(fast.flatten(tensors), fast.public_flatten(tensors))
    x, owner = torch.randn(5, 4), nn.ModuleDict({"first": nn.Linear(4, 3)})
    assert torch.equal(fast.call(owner, "first", x), fast.public_call(owner, "first", x))
    owner["all"] = nn.ModuleList([nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2)])
    ways = [way(owner, "all", x, torch.tanh, 2) for way in (fast.through, fast.public_through)]
    assert torch.equal(*ways)


def ppo() -> tuple[PPO, nn.Module]:
    algorithm = PPO(VECTOR, DiscreteSpec(num=2), PPOConfig(network=SMALL), RunSeeds(0))
    return algorithm, algorithm.policy.network


def dqn() -> tuple[DQN, nn.Module]:
    algorithm = DQN(VECTOR, DiscreteSpec(num=2), DQNConfig(network=SMALL), RunSeeds(0))
    return algorithm, algorithm.policy.network


def sac() -> tuple[SAC, nn.Module]:
    algorithm = SAC(VECTOR, BOX, SACConfig(network=SMALL), RunSeeds(0))
    return algorithm, algorithm.policy.network


def minibatch(algorithm, count=6) -> Batch:
    """Random rows with all fields that one of the three learns from."""
    generator = torch.Generator().manual_seed(1)
    rows = {name: torch.randn(count, 4, generator=generator) for name in ("observation", "next_observation")}
    names = ("reward", "advantage", "value", "value_target", "log_prob", "bootstrap", "index")
    rows |= {name: torch.rand(count, generator=generator) for name in names}
    rows |= {"valid": torch.ones(count), "action": torch.zeros(count, dtype=torch.int64)}
    if isinstance(algorithm, SAC):
        rows |= {name: torch.rand(count, 2, generator=generator) for name in ("action", "noise", "next_noise")}
    return Batch.of(rows)


def learn(algorithm) -> dict[str, torch.Tensor]:
    gradients = algorithm.gradients(minibatch(algorithm))
    algorithm.apply(gradients)
    return gradients.values


ALGORITHMS = [ppo, dqn, sac]


@pytest.mark.parametrize("make", ALGORITHMS)
def test_forward_hooks_fire_in_acting_and_in_training(make):
    algorithm, network = make()
    seen: list[str] = []
    layers = {name: part for part in (algorithm.model, network) for name, part in part.named_modules() if name}
    for name, module in layers.items():
        if not isinstance(module, nn.ModuleList | nn.ModuleDict) and not list(module.children()):
            module.register_forward_hook(lambda *_, name=name: seen.append(name))
    inner = [name for name, part in network.named_modules() if isinstance(part, nn.Linear)]
    handle = network.register_forward_hook(lambda *_: seen.append("network"))
    algorithm.policy(np.zeros(4))
    assert {"network", *inner} <= {name.split("component.")[-1] for name in seen} | set(seen)
    seen.clear()
    learn(algorithm)
    assert "network" in seen
    assert sum("layers" in name for name in seen) >= 3 * (1 + isinstance(algorithm, SAC))
    if isinstance(algorithm, SAC):
        assert any("critic" in name for name in seen)
    handle.remove()


def test_a_hook_of_all_modules_fires():
    seen: list[nn.Module] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    mlp = MLP(4, (8,), 2)
    try:
        fast.call(nn.ModuleDict({"mlp": mlp}), "mlp", torch.zeros(1, 4))
    finally:
        handle.remove()
    assert {mlp, *mlp.layers} == set(seen)


@pytest.mark.parametrize("norm", [parametrizations.spectral_norm, parametrizations.weight_norm])
@pytest.mark.parametrize("make", ALGORITHMS)
def test_parametrizations_are_learned_and_act(make, norm):
    plain, _ = make()
    config = plain.config
    algorithm, network = make()
    first = next(part for part in network.modules() if isinstance(part, nn.Linear))
    norm(first)
    assert parametrize.is_parametrized(first)
    algorithm = rebuilt(algorithm)
    before = first.weight.detach().clone()
    values = learn(algorithm)
    assert any("parametrizations.weight.original" in name for name in values)
    assert not torch.equal(first.weight, before)
    assert np.isfinite(algorithm.policy(np.zeros(4))).all()
    assert algorithm.config == config


def rebuilt(algorithm):
    """With a model that knows the parameters of a network that was parametrized."""
    model = algorithm.model
    options = {name: optimizer.option for name, optimizer in model.optimizers.items()}
    algorithm.model = type(model)(dict(model.component.items()), options)
    return algorithm


@pytest.mark.slow
@pytest.mark.parametrize("make", ALGORITHMS)
def test_a_compiled_network_gives_the_same_numbers(make):
    algorithm, network = make()
    x = torch.randn(6, 4)
    expected = network(x)
    assert torch.allclose(torch.compile(network)(x), expected, atol=1e-6)
    expected = algorithm.policy(x.numpy())
    gradients = algorithm.gradients(minibatch(algorithm)).values
    algorithm.policy.network.compile()
    assert np.allclose(algorithm.policy(x.numpy()), expected, atol=1e-6)
    for name, gradient in algorithm.gradients(minibatch(algorithm)).values.items():
        assert torch.allclose(gradient, gradients[name], atol=1e-6)


class Owner:
    """Of a method to compile."""

    def __init__(self) -> None:
        self.weight = torch.ones(3)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).tanh()

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        return fast.scan(lambda total, row: (total + self.weight * row, total), self.weight, x)[1]

    def multiplied(self, x: torch.Tensor) -> torch.Tensor:
        return fast.scan(lambda total, row: (total * row + self.weight, total), self.weight, x)[1]


@pytest.mark.skipif(not fast.can_compile(), reason="this PyTorch cannot")
def test_a_compiled_method_is_found_again_by_a_second_process():
    """What PyTorch calls the graph is another name each time, and may not be part of the key of its cache."""
    from torch._dynamo.utils import counters

    for _ in range(2):
        torch.compiler.reset()
        counters.clear()
        owner, x = Owner(), torch.arange(3.0)
        assert torch.allclose(fast.compiled_method(owner, Owner.scaled, x)(x), owner.scaled(x))
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1


@pytest.mark.skipif(not fast.can_compile(), reason="this PyTorch cannot")
def test_a_loop_over_one_row_can_be_compiled():
    owner, x = Owner(), torch.arange(3.0)[None]
    torch.testing.assert_close(fast.compiled_method(owner, Owner.summed, x)(x), owner.summed(x))


@pytest.mark.slow
@pytest.mark.skipif(not fast.can_compile(), reason="this PyTorch cannot")
def test_loops_that_differ_in_their_body_alone_are_not_each_other_in_the_cache():
    from torch._dynamo.utils import counters

    x = torch.arange(12.0).reshape(4, 3)
    for _ in range(2):
        torch.compiler.reset()
        counters.clear()
        for method in (Owner.summed, Owner.multiplied):
            owner = Owner()
            torch.testing.assert_close(fast.compiled_method(owner, method, x)(x), method(owner, x))
    assert counters["aot_autograd"]["autograd_cache_hit"] == 2


@pytest.mark.slow
@pytest.mark.skipif(not fast.can_compile(), reason="this PyTorch cannot")
@pytest.mark.parametrize("accepted", [True, False])
def test_instructions_are_trusted_where_the_compiler_accepts_them(accepted, monkeypatch):
    """PyTorch's own test of them takes 4 to 14 seconds of a first run; it is left to find out for an old compiler."""
    from torch._inductor import config

    asked = []
    answer = SimpleNamespace(returncode=int(not accepted))
    asking = SimpleNamespace(run=lambda command, **_: asked.append(command) or answer, SubprocessError=OSError)
    monkeypatch.setattr(fast, "subprocess", asking)
    with config.patch({"cpp.vec_isa_ok": None}):
        fast._trust_instructions()
        assert config.cpp.vec_isa_ok == (True if accepted else None)
    assert len(asked) == 1 and "-E" in asked[0]


def test_what_is_left_of_a_compilation_counts_as_old():
    gc.unfreeze()  # what tests/conftest.py froze
    with fast._no_garbage_collection():
        left: list[list[int]] = [[]]
    assert any(old is left for old in gc.get_objects(generation=2))
    assert gc.isenabled() and not gc.get_freeze_count()


def test_a_bias_may_be_pruned():
    mlp = MLP(3, (), 2)
    nn.init.normal_(mlp.layers[0].bias)
    expected = mlp(torch.ones(3)) - mlp.layers[0].bias
    prune.random_unstructured(mlp.layers[0], "bias", amount=2)
    assert torch.allclose(mlp(torch.ones(3)), expected)
