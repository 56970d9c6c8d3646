"""Tests of networks of one's own that bring their memory or their head along, as docs/concepts/networks.md says."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import palaestra
from palaestra import Batch, Collector, NetworkConfig, load_policy, save_policy
from palaestra.algorithms import ALGORITHMS, DQN, PPO, DQNConfig, PPOConfig
from palaestra.core import BoundedSpec, ConfigError, DiscreteSpec, RunSeeds, TensorSpec
from palaestra.testing.algorithms import different
from tests.algorithms.parts import environment, tiny_config
from tests.experiments.parts import Hook

NAME = "tests.algorithms.test_own_memories:Lstm"
SIZE = 6


class Lstm(nn.Module):
    """The library's LSTM as somebody would write it."""

    def __init__(self, observation_spec: Any) -> None:
        super().__init__()
        self.cells = nn.LSTM(observation_spec.size, SIZE)

    def initial_state(self, batch_size: int) -> dict[str, Tensor]:
        return {name: torch.zeros(batch_size, SIZE) for name in ("hidden", "cell")}

    def forward(self, observation: Tensor, state: Any) -> tuple[Tensor, dict[str, Tensor]]:
        before = state["hidden"].unsqueeze(0), state["cell"].unsqueeze(0)
        y, (hidden, cell) = self.cells(observation.flatten(1).unsqueeze(0), before)
        return y.squeeze(0), {"hidden": hidden.squeeze(0), "cell": cell.squeeze(0)}


class Warm(Lstm):
    """One whose memory does not begin with zeros."""

    def initial_state(self, batch_size: int) -> dict[str, Tensor]:
        return {name: torch.full((batch_size, SIZE), 2.0) for name in ("hidden", "cell")}


def made(name: str, env: Any, network: NetworkConfig) -> Any:
    kind: Any = ALGORITHMS[name]
    config = tiny_config(kind, network=network, mini_batch_length=4, burn_in=2, n_step=1)
    return kind(env.observation_spec, env.action_spec, config, RunSeeds(0))


def as_own(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    plain = {name.replace("module.", ""): value.clone() for name, value in weights.items()}
    return {name.replace("cells.", "module.cells."): value for name, value in plain.items()}


@pytest.mark.parametrize("name", ["ppo", "a2c", "impala", "reinforce", "r2d2", "sac", "td3", "ddpg"])
def test_a_memory_of_ones_own_learns_what_ours_does(name):
    kind = "Recall" if name in ("ppo", "a2c", "impala", "reinforce", "r2d2") else "continuous"
    learned: list[dict[str, Any]] = []
    ours: Any = None
    for network in (
        NetworkConfig(hidden_sizes=(8,), recurrent="lstm", recurrent_size=SIZE),
        NetworkConfig(hidden_sizes=(8,), recurrent="own", encoder=Lstm),
    ):
        with environment(kind, 2, seed=1) as env:
            algorithm = made(name, env, network)
            components = algorithm.model.component.items()
            if ours is None:
                ours = {part: as_own(module.state_dict()) for part, module in components}
            else:
                for part, module in components:
                    module.load_state_dict(ours[part])
            collector = Collector.of(env, algorithm)
            for _ in range(3):
                collector.unroll(12)
                algorithm.update(collector.buffer)
            learned.append({part: as_own(module.state_dict()) for part, module in components})
    for part, weights in ours.items():
        for key, start in weights.items():
            same = [of[part][key] for of in learned]
            torch.testing.assert_close(same[0], same[1], rtol=1e-4, atol=1e-5, msg=f"{part}.{key}")
            if "cells" in key and part in ("ppo", "a2c", "impala", "policy", "q", "memory"):
                assert not torch.equal(same[1], start), f"{part}.{key} learns nothing"


def test_it_differs_by_history_and_starts_anew_with_each_episode():
    network = NetworkConfig(hidden_sizes=(), recurrent="own", encoder=Lstm)
    policy: Any = PPO(TensorSpec((3,)), DiscreteSpec(num=2), PPOConfig(network=network)).policy
    assert policy.state_spec == {name: TensorSpec((SIZE,)) for name in ("hidden", "cell")}
    seen = torch.rand(5, 2, 3)
    first = torch.zeros(5, 2, dtype=torch.bool)
    first[0] = True
    first[3, 1] = True
    state = policy.initial_state(2)
    logits = policy.distribution(seen, state, first).logits
    other = policy.distribution(torch.cat((1 - seen[:1], seen[1:])), state, first).logits
    assert not torch.allclose(logits[2:, 0], other[2:, 0]), "lane 0 remembers row 0"
    assert torch.equal(logits[3:, 1], other[3:, 1]), "lane 1 has begun another episode"
    alone = policy.distribution(seen[3:, 1:], policy.initial_state(1), first[3:, 1:]).logits
    torch.testing.assert_close(alone, logits[3:, 1:])


@pytest.mark.parametrize("name", ["Lstm", "Warm"])
def test_a_saved_policy_and_an_exported_one_have_the_memory(name, tmp_path):
    config = PPOConfig(network=NetworkConfig(hidden_sizes=(8,), recurrent="own", encoder=NAME.replace("Lstm", name)))
    policy = PPO(TensorSpec((3,)), DiscreteSpec(num=2), config).policy.eval()
    save_policy(policy, tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    (program,) = palaestra.export(tmp_path / "policy", tmp_path / "out", format="torch")
    exported: Any = torch.export.load(program.path).module()
    state = again = None
    memory = [torch.rand_like(leaf) for leaf in policy.initial_state(1).values()]  # of an episode before
    for step in range(6):
        seen = torch.rand(1, 3)
        answer, other = policy(Batch(obs=seen), state), loaded(Batch(obs=seen), again)
        state, again = answer.state, other.state
        action, *memory = exported(seen, *memory, torch.tensor([step == 0]))
        assert answer.act.tolist() == other.act.tolist() == action.tolist()
        torch.testing.assert_close(memory, list(state.values()))
    assert not different(policy.state_dict(), loaded.state_dict())


def test_a_run_with_it_resumes_exactly(tmp_path):
    settings: dict[str, Any] = {
        "env__num_envs": 2,
        "env__wrappers": ("SelectEntries(entries=[0, 2])",),
        "algorithm__network__encoder": NAME,
        "algorithm__network__recurrent": "own",
        "algorithm__unroll_length": 8,
        "algorithm__mini_batch_length": 4,
        "trainer__eval_episodes": 2,
        "run__tensorboard": False,
        "run__directory": str(tmp_path),
        "trainer__total_env_steps": 96,
    }
    train: Any = palaestra.train
    whole = train("ppo", "CartPole-v1", **settings, run__name="whole")
    stop = Hook(str(tmp_path / "hooks"), stop_at=40)
    part = train("ppo", "CartPole-v1", **settings, run__name="part", callbacks=[stop])
    assert part.result.status == "stopped"
    palaestra.resume(part.directory)
    one, two = (load_policy(run.directory / "policy") for run in (whole, part))
    assert not different(one.state_dict(), two.state_dict())


class Growing(Lstm):
    def forward(self, observation: Tensor, state: Any) -> tuple[Tensor, dict[str, Tensor]]:
        y, after = super().forward(observation, state)
        return y, {name: torch.cat((leaf, leaf), 1) for name, leaf in after.items()}


class Lone(Lstm):
    """Gives features alone, of which Python makes two where there are two rows."""

    def forward(self, observation: Tensor, state: Any) -> Any:
        return super().forward(observation, state)[0]


class Unbatched(Lstm):
    def initial_state(self, batch_size: int) -> dict[str, Tensor]:
        return {"hidden": torch.zeros(SIZE)}


class Forgetful(nn.Module):
    def __init__(self, observation_spec: Any) -> None:
        super().__init__()
        self.cell = nn.GRUCell(observation_spec.size, SIZE)

    def forward(self, observation: Tensor) -> Tensor:
        return self.cell(observation)


@pytest.mark.parametrize(
    ("name", "network", "message"),
    [
        (
            "ppo",
            NetworkConfig(encoder=Lstm),
            "Lstm has a memory, `initial_state`, which goes together with network.recurrent own",
        ),
        ("ppo", NetworkConfig(encoder=Lstm, recurrent="gru"), "together with network.recurrent own"),
        ("ppo", NetworkConfig(recurrent="own"), "so give network.encoder, a network of your own with a memory"),
        ("ppo", NetworkConfig(encoder=nn.Flatten(), recurrent="own"), "Flatten has no `initial_state"),
        ("ppo", NetworkConfig(encoder=Growing, recurrent="own"), "one step must give as many numbers as it takes"),
        ("ppo", NetworkConfig(encoder=Lone, recurrent="own"), r"gave Tensor; it must give \(features, state\)"),
        ("ppo", NetworkConfig(encoder=Unbatched, recurrent="own"), r"must be a dict of tensors \[2, ...\]"),
        ("ppo", NetworkConfig(encoder=Forgetful), "or to 'own' and give the encoder initial_state"),
        ("dqn", NetworkConfig(encoder=Lstm, recurrent="own"), "DQN learns no policy with a hidden state"),
        ("muzero", NetworkConfig(encoder=Lstm, recurrent="own"), "in an algorithm that has a memory"),
        ("dreamer", NetworkConfig(encoder=Lstm, recurrent="own"), "has a memory of its own"),
        (
            "decision_transformer",
            NetworkConfig(encoder=Lstm, recurrent="own"),
            "in an algorithm that has a memory",
        ),
    ],
)
def test_a_memory_that_nobody_would_carry_is_refused(name, network, message):
    kind: Any = ALGORITHMS[name]
    with pytest.raises(ConfigError, match=message):
        kind(TensorSpec((3,)), DiscreteSpec(num=2), tiny_config(kind, network=network))


class Whole(nn.Module):
    """A network with a head, of `width` numbers."""

    has_head = True
    width = 2

    def __init__(self, observation_spec: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(observation_spec.size, self.width)

    def forward(self, observation: Tensor) -> Tensor:
        return self.layer(observation)


def wide(width: int) -> type[Whole]:
    return type(f"Whole{width}", (Whole,), {"width": width})


BOX = BoundedSpec((3,), minimum=np.full(3, -1.0), maximum=np.full(3, 1.0))
HEADS: dict[str, Any] = {
    **dict.fromkeys(("dqn", "pqn", "sarsa", "discrete_cql"), 2),
    "c51": 2 * 51,
    "qr_dqn": 2 * 50,
    **{name: {"policy": 2, "value": 1} for name in ("ppo", "a2c", "impala", "trpo")},
    **dict.fromkeys(("reinforce", "behaviour_cloning", "evolution_strategies"), 2),
    **{name: {"actor": 3} for name in ("ddpg", "td3", "td3_bc")},
    **{name: {"actor": 6} for name in ("sac", "redq")},
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_of_ones_own_is_used_as_it_is_in_every_algorithm(name):
    kind: Any = ALGORITHMS[name]
    sizes = HEADS[name]
    network = {part: wide(size) for part, size in sizes.items()} if isinstance(sizes, dict) else wide(sizes)
    config = tiny_config(kind, network=NetworkConfig(hidden_sizes=(8,)))
    action_spec = BOX if isinstance(sizes, dict) and "actor" in sizes else DiscreteSpec(num=2)
    algorithm = kind(TensorSpec((3,)), action_spec, config, network=network)
    own = next(part for part in algorithm.policy.network.modules() if isinstance(part, Whole))
    seen = torch.rand(4, 3)
    given: Any = algorithm.policy.network
    given = given.outputs(seen) if hasattr(given, "outputs") else given(seen)
    given = given[0] if isinstance(given, tuple) else given
    torch.testing.assert_close(given.flatten(1), own(seen))
    weights = sum(parameter.numel() for parameter in algorithm.policy.network.parameters())
    assert weights == sum(parameter.numel() for parameter in own.parameters()), "nothing was added"


def test_trained_weights_act_from_the_first_step_and_are_trained_further():
    teacher = Whole(TensorSpec((3,)))
    with torch.no_grad():
        teacher.layer.weight.copy_(torch.tensor([[1.0, 0, 0], [0, 1.0, 0]]))
        teacher.layer.bias.zero_()
    algorithm = DQN(TensorSpec((3,)), DiscreteSpec(num=2), DQNConfig(normalize_observation=False), network=teacher)
    assert algorithm.policy([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).tolist() == [0, 1]
    assert {id(parameter) for parameter in teacher.parameters()} == set(
        map(id, algorithm.model.component["q"].parameters())
    )


@pytest.mark.parametrize(
    ("name", "network", "message"),
    [
        ("dqn", wide(3), "gives 3 numbers, but here 2 are needed"),
        ("ppo", wide(2), "has_head, so that it has no features for a value"),
        ("iqn", wide(2), "layers of the algorithm follow"),
        ("rainbow", wide(2 * 51), "layers of the algorithm follow"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(name, network, message):
    kind: Any = ALGORITHMS[name]
    with pytest.raises(ConfigError, match=message):
        kind(TensorSpec((3,)), DiscreteSpec(num=2), network=network)


def test_a_memory_may_have_the_head_as_well():
    """Action values of a replayed memory: what the user's module says is what the policy maximises."""

    class Values(Lstm):
        has_head = True

        def __init__(self, observation_spec: Any) -> None:
            super().__init__(observation_spec)
            self.head = nn.Linear(SIZE, observation_spec.size)

        def forward(self, observation: Tensor, state: Any) -> tuple[Tensor, dict[str, Tensor]]:
            y, state = super().forward(observation, state)
            return self.head(y), state

    with environment("Recall", 2) as env:
        network = NetworkConfig(recurrent="own", encoder=lambda spec: Values(spec))
        with pytest.raises(ConfigError, match=r"gives \d+ numbers, but here 2 are needed"):
            made("r2d2", env, network)
    kind: Any = ALGORITHMS["r2d2"]
    algorithm = kind(TensorSpec((2,)), DiscreteSpec(num=2), tiny_config(kind, network=network))
    own = next(part for part in algorithm.network.modules() if isinstance(part, Values))
    state, seen = algorithm.policy.initial_state(2), torch.rand(2, 2)
    assert torch.equal(algorithm.network(seen, state)[0], own(seen, state)[0])
