"""AlphaZero and MuZero in a game where a player may move twice in a row, against a solver that tries every move."""

import functools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from palaestra import Collector, EnvConfig, NetworkConfig, RunSeeds, create_environment, evaluate
from palaestra.algorithms import AlphaZero, AlphaZeroConfig, MuZero, MuZeroConfig
from palaestra.core import Batch, ConfigError, DiscreteSpec, TensorSpec
from palaestra.envs import TensorEnvironment
from palaestra.nn import SearchSettings, gumbel_search

NAME = "tests.algorithms.test_moving_twice:Pile"
MOST = 7


class Pile(TensorEnvironment):
    """Take one to three of a pile; who takes one moves again, and who takes the last has lost."""

    num_random = 1

    @property
    def observation_spec(self) -> Any:
        mask = TensorSpec((3,), torch.bool)
        return {"left": TensorSpec((MOST + 1,)), "player": DiscreteSpec(num=2), "action_mask": mask}

    @property
    def action_spec(self) -> Any:
        return DiscreteSpec(num=3)

    def fresh(self, uniform: Tensor) -> dict[str, Tensor]:
        left = (uniform[:, 0] * (MOST - 2)).long() + 3
        return {"left": left, "player": torch.zeros_like(left)}

    def transition(self, state: dict[str, Tensor], action: Tensor) -> Any:
        taken = torch.minimum(action.long() + 1, state["left"])
        left = state["left"] - taken
        player = torch.where(taken == 1, state["player"], 1 - state["player"])
        return {"left": left, "player": player}, -(left == 0).float(), left == 0

    def observe(self, state: dict[str, Tensor]) -> Any:
        code = torch.nn.functional.one_hot(state["left"].clamp(min=0), MOST + 1).float()
        mask = torch.arange(1, 4) <= state["left"].unsqueeze(-1).clamp(min=1)
        return Batch.of({"left": code, "player": state["player"], "action_mask": mask})

    def state_of(self, observation: Any) -> dict[str, Tensor]:
        return {"left": observation["left"].argmax(-1), "player": observation["player"]}


@functools.cache
def worth(left: int) -> float:
    """Of a pile, to who moves."""
    return max(value for _, value in moves(left))


def moves(left: int) -> Iterator[tuple[int, float]]:
    for taken in range(1, min(3, left) + 1):
        rest = left - taken
        yield taken - 1, -1.0 if not rest else worth(rest) if taken == 1 else -worth(rest)


def piles() -> tuple[Any, list[set[int]]]:
    left = torch.arange(1, MOST + 1)
    best = [{action for action, value in moves(n) if value == worth(n)} for n in left.tolist()]
    return {"left": left, "player": torch.arange(MOST) % 2}, best


def algorithm(**settings: Any) -> AlphaZero:
    env = Pile(1)
    config = AlphaZeroConfig(simulator=NAME, network=NetworkConfig(hidden_sizes=(16,), activation="relu"), **settings)
    return AlphaZero(env.observation_spec, env.action_spec, config, RunSeeds(0))


@torch.no_grad()
def test_a_search_finds_the_moves_of_the_solver():
    state, best = piles()
    assert [n for n in range(1, MOST + 1) if worth(n) < 0] == [1, 2]  # where players take turns 1, 5 and 9
    network: Any = algorithm().policy.network
    torch.nn.init.zeros_(network.network.mlp.layers[-1].weight)
    torch.nn.init.zeros_(network.network.mlp.layers[-1].bias)

    def found(**changes: Any) -> list[int]:
        for name, value in changes.items():
            setattr(network, name, value)
        root = network.root(network.simulator.observe(state))
        return gumbel_search(root, network.expand, SearchSettings(200, value_scale=1.0)).action.tolist()

    right = [action in one for action, one in zip(found(), best, strict=True)]
    assert all(right)
    wrong = [action in one for action, one in zip(found(says_player=False), best, strict=True)]
    assert not all(wrong), "the mutant: players take turns"


@torch.no_grad()
def test_returns_change_sides_where_the_other_player_moves_next(monkeypatch):
    """By hand, of one game of six moves: one row after the other, backwards."""
    learner = algorithm(trace_decay=0.5)
    monkeypatch.setattr(learner.policy.network, "require_agreement", lambda rows: None)  # boards are left out
    player, reward = [0, 0, 1, 1, 1, 0], [0.0, 0.0, 0.0, 0.0, 0.0, -1.0]
    value = torch.tensor([0.1, -0.2, 0.3, 0.4, -0.5, 0.6])
    observation = {
        "left": torch.zeros(7, 1, MOST + 1),
        "player": torch.tensor([*player, 1]).unsqueeze(-1),
        "action_mask": torch.ones(7, 1, 3, dtype=torch.bool),
    }
    batch = Batch.of(
        {
            "observation": Batch.of(observation),
            "action": Batch.of({"value": value.unsqueeze(-1), "policy": torch.full((6, 1, 3), 1 / 3)}),
            "reward": torch.tensor([0.0, *reward]).unsqueeze(-1),
            "discount": torch.tensor([1.0] * 6 + [0.0]).unsqueeze(-1),
            "step_type": torch.tensor([0, 1, 1, 1, 1, 1, 2]).unsqueeze(-1),
        }
    )
    expected = [-1.0]
    for t in reversed(range(5)):
        sign = 1.0 if player[t] == player[t + 1] else -1.0
        expected.insert(0, sign * (0.5 * float(value[t + 1]) + 0.5 * expected[0]))
    found = learner.preprocess(batch, None).value_target[:, 0]  # pyright: ignore[reportArgumentType]
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.slow
def test_it_learns_the_game():
    """By four simulations the policy must know what it cannot see."""
    env = create_environment(EnvConfig(name=NAME, num_envs=16), seed=0)
    learner = algorithm(num_simulations=8, learning_rate=5e-3, unroll_length=8, mini_batch_length=4)
    collector = Collector.of(env, learner)
    for _ in range(100):
        collector.unroll(8)
        learner.update(collector.buffer)
    state, best = piles()
    network: Any = learner.policy.network
    said = network.root(network.simulator.observe(state))
    signs = torch.tensor([worth(n) for n in state["left"].tolist()])
    assert (said.value.sign() == signs).float().mean() >= 0.85
    assert evaluate(learner.policy, env, episodes=16).episodes == 16
    assert len(best) == MOST


def muzero(**settings: Any) -> MuZero:
    env = Pile(1)
    settings = {"network": NetworkConfig(hidden_sizes=(32,), activation="relu")} | settings
    config = MuZeroConfig(alternating=True, max_return=1.0, num_atoms=21, gamma=1.0, **settings)
    return MuZero(env.observation_spec, env.action_spec, config, RunSeeds(0))


def test_a_model_of_turns_has_to_see_whose_turn_it_is():
    """F27: what the network does not see was taken for the same player all the time."""
    with pytest.raises(ConfigError, match="policy_sees leaves out 'player', which says who moves next; add it"):
        muzero(network=NetworkConfig(hidden_sizes=(8,), policy_sees=("left",)))
    assert muzero(network=NetworkConfig(hidden_sizes=(8,), policy_sees=("left", "player")))


@pytest.mark.parametrize("shape", [(1,), (2,)])
def test_who_moves_next_is_one_number(shape):
    """F27: the shape of a `Box`; the first update ended with an error about tensors."""
    seen = {"left": TensorSpec((3,)), "player": TensorSpec(shape)}
    config = MuZeroConfig(alternating=True, max_return=1.0)
    with pytest.raises(ConfigError, match=r"'player' of an observation says who moves next.*give one number"):
        MuZero(seen, DiscreteSpec(num=2), config, RunSeeds(0))
    assert MuZero(seen, DiscreteSpec(num=2), MuZeroConfig(max_return=1.0), RunSeeds(0))


@torch.no_grad()
def test_a_model_that_is_learned_says_whether_the_same_player_moves_again():
    """Its targets and its error by hand; and what a search makes of what it says."""
    learner = muzero(model_steps=2, td_steps=2, state_size=4)
    network: Any = learner.policy.network
    player = torch.tensor([0, 1, 1, 0, 0]).unsqueeze(-1)
    left = torch.nn.functional.one_hot(torch.tensor([6, 3, 2, 1, 0]), MOST + 1).float().unsqueeze(1)
    observation = {"left": left, "player": player, "action_mask": torch.ones(5, 1, 3, dtype=torch.bool)}
    policy = torch.full((4, 1, 3), 1 / 3)
    batch = Batch.of(
        {
            "observation": Batch.of(observation),
            "action": Batch.of({"choice": torch.tensor([2, 0, 0, 0]).unsqueeze(-1), "policy": policy}),
            "reward": torch.tensor([0.0, 0.25, 0.5, 0.0, -1.0]).unsqueeze(-1),
            "discount": torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]).unsqueeze(-1),
            "step_type": torch.tensor([0, 1, 1, 1, 2]).unsqueeze(-1),
        }
    )
    made: Any = learner.preprocess(batch, None)  # pyright: ignore[reportArgumentType]
    value = network.values(network.predict(batch["observation"]).atoms)[:, 0].tolist()  # the slow copy begins equal
    # 0 -> 1 changes sides, 1 -> 2 does not, 2 -> 3 does, 3 -> the end
    expected = [0.25 - (0.5 + value[2]), 0.5 + (0.0 - value[3]), 0.0 - (-1.0)]
    assert made.value_target[:, 0].tolist() == pytest.approx(expected)
    assert made.again[:, 0].tolist() == [0.0, 1.0]

    state = network.encode(made.observation[0])
    errors, weights = [], [1.0, 0.5]
    for step in range(2):
        state, _, again = network.step(state, made.action[step])
        chance = again.sigmoid().item()
        errors.append(weights[1] * -math.log(chance if made.again[step] else 1 - chance))
    found = learner.losses(made)
    assert float(found.metrics["player_error"]) == pytest.approx(sum(errors), rel=1e-5)
    others = [float(found.metrics[name]) for name in ("reward_error", "policy_error", "player_error")]
    whole = sum(others) + 0.5 * float(found.metrics["value_error"])
    assert float(found.terms["network"]) == pytest.approx(whole, rel=1e-5)

    last = network.dynamics.layers[-1]
    for logit, discount in ((20.0, 1.0), (-20.0, -1.0), (0.0, 0.0)):
        last.weight[-1], last.bias[-1] = 0.0, logit
        assert network.expand({"state": state}, made.action[0]).discount.item() == pytest.approx(discount, abs=1e-6)


@pytest.mark.slow
def test_muzero_learns_the_game():
    """By a model that it has learned: who takes one moves again."""
    env = create_environment(EnvConfig(name=NAME, num_envs=16), seed=0)
    learner = muzero(model_steps=3, td_steps=3, num_simulations=16, learning_rate=3e-3, mini_batch_sequences=64)
    collector = Collector.of(env, learner)
    for _ in range(200):
        collector.unroll(8)
        learner.update(collector.buffer)
    state, best = piles()
    observation = Pile(1).observe(state)
    action = learner.policy.choose(observation, (), False, True).action["choice"].tolist()
    assert all(one in right for one, right in zip(action, best, strict=True))
    network: Any = learner.policy.network
    again = network.step(network.encode(observation), torch.zeros(MOST, dtype=torch.int64))[2][2:, 0]
    other = network.step(network.encode(observation), torch.full((MOST,), 2))[2][3:, 0]
    assert (again > 0).all() and (other < 0).all()
