"""Products in bfloat16: the same learning, to 3 digits."""

import dataclasses
import functools
from typing import Any

import pytest
import torch

from palaestra import NetworkConfig, RunSeeds
from palaestra.algorithms import ALGORITHMS, GradientAlgorithm
from palaestra.core import POLICY, ConfigError
from palaestra.distributed import CollectorFactory
from palaestra.envs import ConnectFour, EnvConfig
from palaestra.experiments import RunConfig, make_algorithm, preset
from palaestra.nn import bfloat16_products, set_products
from tests.algorithms.parts import CASES, SETTINGS, collector_for, environment, make

GRADIENT_CASES = [(name, kind) for name, kind in CASES if issubclass(ALGORITHMS[name], GradientAlgorithm)]


@pytest.fixture
def instructions(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)


def first_step(name: str, kind: str, precision: Any) -> tuple[dict[str, float], torch.Tensor]:
    """The terms of the first losses, and the parameters after an update."""
    env = environment(kind, num_envs=4, seed=11)
    memory = SETTINGS.get(kind, {}).get("network", NetworkConfig())
    network = dataclasses.replace(memory, hidden_sizes=(32, 32))
    algorithm: Any = make(name, env, 11, kind=kind, unroll_length=24, mini_batch_size=24, capacity=400, network=network)
    algorithm.set_precision(precision)
    original, terms = algorithm.losses, []

    def losses(batch: Any) -> Any:
        stated = original(batch)
        terms.append({key: float(term.detach()) for key, term in stated.terms.items()})
        return stated

    algorithm.losses = losses
    collector = collector_for(env, algorithm)
    while not terms:
        collector.unroll(24)
        algorithm.update(collector.buffer)
    parameters = [parameter.detach().flatten() for parameter in algorithm.model.parameters()]
    assert {parameter.dtype for parameter in parameters} == {torch.float32}
    return terms[0], torch.cat(parameters)


@pytest.mark.parametrize(("name", "kind"), GRADIENT_CASES)
def test_losses_and_weights_are_near_those_of_single_precision(name, kind, instructions):
    exact, weights = first_step(name, kind, "float32")
    rounded, low_weights = first_step(name, kind, "bf16")
    assert rounded == pytest.approx(exact, rel=0.05, abs=0.05)
    assert low_weights.isfinite().all()
    assert not torch.equal(weights, low_weights)  # else nothing was rounded


def test_values_of_hundreds_keep_their_digits(instructions):
    algorithm: Any = make("dqn", environment("discrete", num_envs=2, seed=0), 0, kind="discrete")
    algorithm.set_precision("bf16")
    with torch.no_grad():
        algorithm.network.mlp.layers[-1].bias.fill_(500.3)
        algorithm.network.mlp.layers[-1].weight.zero_()
    with bfloat16_products(algorithm.device), torch.no_grad():
        value = algorithm.network(torch.zeros(3, *algorithm.policy.observation_spec.shape))
    assert value.dtype == torch.float32
    assert float(value.max()) == pytest.approx(500.3, abs=1e-3)


def of_preset(name: str) -> Any:
    config = preset(name, "CartPole-v1")
    return make_algorithm(dataclasses.replace(config, run=RunConfig(precision="bf16", num_threads=1)))


def test_a_processor_without_the_instructions_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    with pytest.raises(ConfigError, match=r"but torch \S+ does not say that this cpu has instr"):
        of_preset("dqn")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True}, raising=False)
    with pytest.raises(ConfigError, match="this cpu has no instructions for products in bfloat16"):
        of_preset("dqn")


def test_tf32_is_for_a_gpu():
    config = preset("dqn", "CartPole-v1")
    with pytest.raises(ConfigError, match=r"run.precision is .tf32., but this cpu has no products in TF32"):
        make_algorithm(dataclasses.replace(config, run=RunConfig(precision="tf32", num_threads=1)))


def test_single_precision_on_a_gpu_is_that_of_convolutions_and_recurrent_cells_too(monkeypatch):
    """PyTorch's default rounds what these multiply to TF32."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    before = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    try:
        for precision, rounds in (("float32", False), ("tf32", True)):
            set_products(precision, torch.device("cuda"))
            assert torch.backends.cudnn.allow_tf32 is rounds
            assert torch.get_float32_matmul_precision() == ("high" if rounds else "highest")
    finally:
        torch.backends.cudnn.allow_tf32 = before[0]
        torch.set_float32_matmul_precision(before[1])


def test_an_algorithm_without_gradients_is_an_error():
    with pytest.raises(ConfigError, match="EvolutionStrategies makes no gradient steps"):
        of_preset("evolution_strategies")


def test_a_precision_that_does_not_exist_is_an_error():
    given: Any = "half"
    with pytest.raises(ConfigError, match=r"run.precision is 'half'; it must be float32, tf32 or bf16"):
        RunConfig(precision=given)


@pytest.mark.parametrize("name", ["alphazero", "muzero"])
def test_searches_round_as_gradient_steps_do_and_weights_keep_their_digits(name, instructions):
    env = ConnectFour(8, lane_seeds=list(range(8)))
    settings = {"simulator": "palaestra.envs:ConnectFour"} if name == "alphazero" else {"alternating": True}
    kind = ALGORITHMS[name]
    config = kind.config_class(num_simulations=4, network=NetworkConfig(hidden_sizes=(32, 32)), **settings)
    algorithm: Any = kind(env.observation_spec, env.action_spec, config, RunSeeds(0))
    step = env.reset()
    values = {}
    for precision in ("float32", "bf16", "float32"):
        algorithm.set_precision(precision)
        found = algorithm.policy.act(step, deterministic=True).action
        assert found["value"].dtype == torch.float32
        assert found["policy"].sum(-1).tolist() == pytest.approx([1.0] * 8, abs=1e-5)
        values.setdefault(precision, []).append(found["policy"])
    assert torch.equal(*values["float32"])
    assert not torch.equal(values["bf16"][0], values["float32"][0])
    assert torch.allclose(values["bf16"][0], values["float32"][0], atol=0.1)


def test_workers_search_as_exactly_as_the_run_says_and_other_policies_act_in_single_precision(instructions):
    given = {"env": EnvConfig(name="palaestra.envs:ConnectFour", num_envs=2), "num_workers": 1, "precision": "bf16"}
    config = preset("alphazero", "palaestra.envs:ConnectFour")
    found = CollectorFactory(algorithm=functools.partial(make_algorithm, config), **given)(0)
    assert found.policies[POLICY].rounds_searches
    given["env"], config = EnvConfig(name="CartPole-v1", num_envs=2), preset("dqn", "CartPole-v1")
    algorithms: list[Any] = []
    CollectorFactory(algorithm=lambda: algorithms.append(make_algorithm(config)) or algorithms[0], **given)(0)
    assert not algorithms[0].bfloat16
