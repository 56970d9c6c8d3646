"""Tests of `alphazero` and `muzero`: their targets and losses, one row after another, as the papers have them."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

import palaestra
from palaestra import Batch, RunSeeds
from palaestra.algorithms import AlphaZero, AlphaZeroConfig, MuZero, MuZeroConfig
from palaestra.core import ConfigError, DiscreteSpec, TensorSpec
from palaestra.envs import TensorEnvironment, TicTacToe
from palaestra.nn import NetworkConfig, PlanningNetwork
from tests.algorithms.parts import collected

SMALL = NetworkConfig(hidden_sizes=(8,), activation="relu")
MIRROR = "palaestra.envs:TicTacToe.mirror"
STEPS = [  # two sequences of rows: step type, discount
    [(1, 1), (1, 1), (2, 0), (0, 1), (1, 1), (1, 1), (1, 1)],
    [(0, 1), (1, 1), (1, 1), (2, 1), (0, 1), (1, 1), (2, 0)],
]


def rows(num_actions: int, observation: Tensor | Batch) -> Batch:
    generator = torch.Generator().manual_seed(3)
    kinds = torch.tensor(STEPS).transpose(0, 1)  # [L+1, N, 2]
    length = len(kinds) - 1
    action = {
        "choice": torch.randint(num_actions, (length, 2), generator=generator),
        "policy": torch.rand(length, 2, num_actions, generator=generator).softmax(-1),
        "value": torch.rand(length, 2, generator=generator),
    }
    return Batch.of(
        {
            "observation": observation,
            "step_type": kinds[..., 0].int(),
            "discount": kinds[..., 1].float(),
            "reward": torch.rand(length + 1, 2, generator=generator) * (kinds[..., 0] > 0),
            "action": Batch.of(action),
        }
    )


@torch.no_grad()
def own_values(network: PlanningNetwork, batch: Batch) -> Tensor:
    return network.values(network.predict(batch["observation"]).atoms)


def muzero() -> MuZero:
    config = MuZeroConfig(
        network=SMALL, model_steps=2, td_steps=3, state_size=4, gamma=0.9, max_return=5.0, num_atoms=7
    )
    return MuZero(TensorSpec((3,)), DiscreteSpec(num=2), config, RunSeeds(1))


def scaled(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 0.001 * x


def two_atoms(x: float, most: float, count: int) -> np.ndarray:
    """Equation of appendix F: the mean of the two atoms is the scaled number."""
    atoms = np.linspace(-scaled(most), scaled(most), count)
    place = np.clip(scaled(x), atoms[0], atoms[-1])
    probs = np.zeros(count)
    above = min(max(int(np.searchsorted(atoms, place)), 1), count - 1)
    share = (place - atoms[above - 1]) / (atoms[above] - atoms[above - 1])
    probs[above - 1], probs[above] = 1 - share, share
    return probs


def test_targets_of_values_are_the_two_atoms_beside_them_and_values_lead_back():
    network = muzero().policy.network
    returns = torch.tensor([-5.0, -0.3, 0.0, 0.2, 1.7, 4.9, 80.0])
    probs = network.targets(returns)
    for row, value in zip(probs, returns.tolist(), strict=True):
        np.testing.assert_allclose(row, two_atoms(value, 5.0, 7), atol=1e-5)
    back = network.values(probs.clamp(min=1e-30).log())
    torch.testing.assert_close(back, returns.clamp(-5, 5), rtol=1e-5, atol=1e-5)


def test_the_targets_of_muzero_end_with_their_episode():
    algorithm = muzero()
    batch = rows(2, torch.rand(7, 2, 3))
    for parameter in algorithm.target_network.parameters():  # no longer what the policy acts with
        parameter.mul_(1.5)
    found = algorithm.preprocess(batch, None)
    value, reward = own_values(algorithm.target_network, batch), batch.reward

    def target(n: int, t: int) -> float:
        """Three rewards and the slow copy's value then, or of where it was cut off; else nothing."""
        total, weight = 0.0, 1.0
        for i in range(3):
            if STEPS[n][t + i][0] == 2:
                return total + weight * float(value[t + i, n]) * STEPS[n][t + i][1]
            total += weight * float(reward[t + i + 1, n])
            weight *= 0.9 * STEPS[n][t + i + 1][1]
            if not weight:
                return total
        return total + weight * float(value[t + 3, n])

    assert found.valid.tolist() == [[1.0, 1.0]]
    assert found.value_target[:, 0].tolist() == pytest.approx([target(0, 0), target(0, 1), 0.0])
    assert found.value_target[:, 1].tolist() == pytest.approx([target(1, 0), target(1, 1), target(1, 2)])
    assert found.policy_weight.tolist() == [[1, 1], [1, 1], [0, 1]]
    assert found.value_weight.tolist() == [[1, 1], [1, 1], [1, 1]]
    torch.testing.assert_close(found.reward, reward[1:3])
    torch.testing.assert_close(found.search_policy, batch.action["policy"][:3])


@pytest.mark.parametrize("end", [0, 1, 2, 5])
def test_what_follows_a_truncation_is_unknown_and_what_follows_a_termination_is_nothing(end):
    algorithm = muzero()
    kinds = [(1, 1)] * end + [(2, 1), (0, 1)] + [(1, 1)] * (5 - end)
    ended = [(1, 1)] * end + [(2, 0), (0, 1)] + [(1, 1)] * (5 - end)
    stack = torch.tensor([kinds, ended]).transpose(0, 1)
    batch = rows(2, torch.rand(7, 2, 3)).replace(step_type=stack[..., 0].int(), discount=stack[..., 1].float())
    found = algorithm.preprocess(batch, None)
    assert found.value_weight[:, 0].tolist() == [float(k < end) for k in range(3)]
    assert found.reward_weight[:, 0].tolist() == [float(k < end) for k in range(2)]
    assert found.value_weight[:, 1].tolist() == [1, 1, 1]
    assert found.reward_weight[:, 1].tolist() == [1, 1]
    for n in range(2):
        assert found.policy_weight[:, n].tolist() == [float(k < end) for k in range(3)]
        assert found.valid[:, n].tolist() == [float(end > 0)]
    assert [float(value) == 0 for value in found.value_target[:, 1]] == [k >= end for k in range(3)]
    assert [float(reward) == 0 for reward in found.reward[:, 1]] == [k >= end for k in range(2)]


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_nothing_is_learned_across_a_fragment_that_breaks_off(broken):
    """A row that FIRST follows, though it is no LAST: a crash, or what a resumed run begins anew."""
    algorithm = muzero()
    kinds = torch.ones(7, 2, dtype=torch.int32)
    kinds[broken + 1, 0] = 0
    batch = rows(2, torch.rand(7, 2, 3)).replace(step_type=kinds, discount=torch.ones(7, 2))
    found = algorithm.preprocess(batch, None)
    goes_on = [float(k < broken) for k in range(3)]
    assert found.policy_weight[:, 0].tolist() == found.value_weight[:, 0].tolist() == goes_on
    assert found.reward_weight[:, 0].tolist() == goes_on[:2]
    assert found.valid.tolist() == [[goes_on[0], 1.0]]
    assert found.value_weight[:, 1].tolist() == [1, 1, 1]


@torch.no_grad()
def test_the_loss_of_muzero_is_that_of_the_paper():
    """Equation (1), one row and one step after another."""
    algorithm = muzero()
    batch = algorithm.preprocess(rows(2, torch.rand(7, 2, 3)), None)
    model, total = algorithm.policy.network, 0.0
    for n in range(2):
        state = model.encode(batch.observation[0, n])
        for k in range(3):
            share = 1.0 if k == 0 else 0.5
            said = model.of_state(state)
            target = two_atoms(float(batch.value_target[k, n]), 5.0, 7)
            value = -(target * said.atoms.log_softmax(-1).numpy()).sum()
            policy = -(batch.search_policy[k, n] * said.logits.log_softmax(-1)).sum()
            total += share * (0.5 * value * float(batch.value_weight[k, n]))
            total += share * float(policy) * float(batch.policy_weight[k, n])
            if k < 2:
                state, atoms, _ = model.step(state, batch.action[k, n])
                target = two_atoms(float(batch.reward[k, n]), 5.0, 7)
                error = -(target * atoms.log_softmax(-1).numpy()).sum()
                total += 0.5 * error * float(batch.reward_weight[k, n])
    assert float(algorithm.losses(batch).terms["network"]) == pytest.approx(total / 2, rel=1e-4)


def test_half_of_the_gradient_goes_through_each_step_of_the_model():
    algorithm = muzero()
    batch = algorithm.preprocess(rows(2, torch.rand(7, 2, 3)), None)
    model = algorithm.policy.network
    seen: list[Tensor] = []
    original = model.encode

    def encode(observation: Tensor) -> Tensor:
        seen.append(original(observation).detach().requires_grad_())
        return seen[-1]

    model.encode = encode
    only_last = batch.replace(
        policy_weight=torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]),
        value_weight=torch.zeros_like(batch.value_weight),
        reward_weight=torch.zeros_like(batch.reward_weight),
    )
    (found,) = torch.autograd.grad(algorithm.losses(only_last).terms["network"], seen[-1])
    state = seen[-1]
    for action in batch.action:
        state, _, _ = model.step(state, action)
    policy = -(batch.search_policy[-1] * model.of_state(state).logits.log_softmax(-1)).sum(-1)
    (whole,) = torch.autograd.grad(policy.mean() / 2, seen[-1])
    torch.testing.assert_close(found, whole / 2)  # in two steps, behind what is said after the first


def alphazero(**settings) -> AlphaZero:
    env = TicTacToe(1)
    config = AlphaZeroConfig(simulator="palaestra.envs:TicTacToe", network=SMALL, trace_decay=0.5, **settings)
    return AlphaZero(env.observation_spec, env.action_spec, config, RunSeeds(1))


@torch.no_grad()
def test_the_values_of_alphazero_change_sides_with_every_move(monkeypatch):
    """Lambda-returns with a discount of -1: what the other player gains is lost."""
    algorithm = alphazero()
    monkeypatch.setattr(algorithm.policy.network, "require_agreement", lambda rows: None)  # of no real game
    boards = {"observation": torch.zeros(7, 2, 2, 3, 3), "action_mask": torch.ones(7, 2, 9, dtype=torch.bool)}
    batch = rows(9, Batch.of(boards))
    found = algorithm.preprocess(batch, None)
    value, reward = batch.action["value"], batch.reward
    own = own_values(algorithm.policy.network, batch)
    cut_off = (batch.step_type == 2) & (batch.discount != 0)
    value, last = torch.where(cut_off[:-1], own[:-1], value), own[-1]

    def target(n: int, t: int) -> float:
        if t == 6:
            return float(last[n])
        if STEPS[n][t][0] == 2:
            return float(value[t, n])
        after = float(value[t + 1, n]) if t < 5 else float(last[n])
        return float(reward[t + 1, n]) - STEPS[n][t + 1][1] * (0.5 * after + 0.5 * target(n, t + 1))

    for n in range(2):
        assert found.value_target[:, n].tolist() == pytest.approx([target(n, t) for t in range(6)], rel=1e-5)
        assert found.valid[:, n].tolist() == [float(kind != 2) for kind, _ in STEPS[n][:6]]


def test_what_is_stored_is_what_the_search_found():
    algorithm, collector = collected("alphazero", "game")
    rows = collector.buffer.recent("action", 12)
    mask = collector.buffer.recent("observation", 12)["action_mask"]
    running = collector.buffer.recent("step_type", 12) != 2
    torch.testing.assert_close(rows["policy"].sum(-1), torch.ones(12, 3))
    assert rows["policy"][running & True].masked_select(~mask[running]).abs().max() < 1e-6
    assert mask.gather(-1, rows["choice"].unsqueeze(-1)).squeeze(-1)[running].all()
    assert algorithm.policy.env_action(rows).dtype == torch.int64


def test_a_game_that_breaks_off_is_no_other_task():
    """A row that FIRST follows, though it is no LAST: what a lost worker leaves behind."""
    algorithm, collector = collected("alphazero", "game")
    batch = collector.buffer.draw(algorithm.plan, torch.Generator())
    fresh, seen = TicTacToe(1).reset().observation, batch.observation
    begun = {key: torch.cat([seen[key][:-1], fresh[key].expand_as(seen[key][-1])[None]]) for key in seen.keys()}  # noqa: SIM118
    kinds, reward, discount = (batch[name].clone() for name in ("step_type", "reward", "discount"))
    kinds[-1], reward[-1], discount[-1] = 0, 0.0, 1.0
    broken = batch.replace(observation=Batch.of(begun), step_type=kinds, reward=reward, discount=discount)
    assert not algorithm.preprocess(broken, None).valid[-1].any()


def test_every_other_sequence_is_learned_from_in_the_mirror():
    _, collector = collected("alphazero", "game")
    plain, both = alphazero(mini_batch_length=4), alphazero(mini_batch_length=4, symmetry=MIRROR)
    batch = collector.buffer.draw(plain.plan, torch.Generator())
    one, other = plain.preprocess(batch, None), both.preprocess(batch, None)
    assert torch.equal(one.value_target, other.value_target)
    assert torch.equal(one.valid, other.valid)
    for seen, image in ((one.search_policy, other.search_policy), (one.observation["action_mask"], None)):
        image = other.observation["action_mask"] if image is None else image
        assert torch.equal(image[:, ::2], seen[:, ::2])
        flipped = seen[:, 1::2].unflatten(-1, (3, 3)).flip(-1).flatten(-2)
        assert torch.equal(image[:, 1::2], flipped)
        assert not torch.equal(flipped, seen[:, 1::2])
    boards = one.observation["observation"], other.observation["observation"]
    assert torch.equal(boards[1][:, 1::2], boards[0][:, 1::2].flip(-1))
    assert torch.equal(boards[1][:, ::2], boards[0][:, ::2])


def test_a_mirror_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="failed with observations and actions of this environment"):
        alphazero(symmetry="palaestra.envs:ConnectFour.mirror")


def test_a_simulator_has_to_be_there_and_to_see_what_the_environment_shows():
    """F27: an impossible pair."""
    env = TicTacToe(1)
    with pytest.raises(ConfigError, match=r"name it as algorithm.simulator, or learn a model of the task: muzero"):
        AlphaZero(env.observation_spec, env.action_spec, AlphaZeroConfig())
    with pytest.raises(ConfigError, match="a search needs to begin where the environment is"):
        AlphaZero(TensorSpec((4,)), env.action_spec, AlphaZeroConfig(simulator="palaestra.envs:TicTacToe"))
    with pytest.raises(ConfigError, match="state_of, whose observation tells"):
        AlphaZero(env.observation_spec, env.action_spec, AlphaZeroConfig(simulator="palaestra.envs:TimeLimit"))
    with pytest.raises(ConfigError, match="at least 2 atoms"):
        alphazero(num_atoms=1)


def no_size():
    return TicTacToe(1)


def one_pole(size=1):
    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize(
    ("function", "words"),
    [(no_size, "cannot be made with 1 game: too many positional"), (one_pole, "made a TimeLimit, without state_of")],
)
def test_a_function_that_makes_no_simulator_is_refused(function, words):
    """It was a TypeError."""
    env = TicTacToe(1)
    config = AlphaZeroConfig(simulator=f"{__name__}:{function.__name__}", network=SMALL)
    with pytest.raises(ConfigError, match=f"the simulator '{config.simulator}' {words}.*; planning .* muzero"):
        AlphaZero(env.observation_spec, env.action_spec, config, RunSeeds(1))


GAME = {
    "algorithm__simulator": "palaestra.envs:TicTacToe",
    "algorithm__num_simulations": 2,
    "algorithm__unroll_length": 8,
    "algorithm__mini_batch_sequences": 4,
    "algorithm__mini_batch_length": 4,
    "algorithm__network__hidden_sizes": (8,),
    "env__num_envs": 4,
    "env__kwargs": {},  # else those of the preset
    "env__train_kwargs": {},
    "trainer__total_env_steps": 128,
    "trainer__eval_episodes": 0,
    "run__tensorboard": False,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"env__kwargs": {"opponent": "random"}},
        {"env__train_kwargs": {"opponent": "random", "random_moves": 0}},
        {"env__wrappers": ("ScaleReward(scale=0.1)",)},
    ],
    ids=["opponent", "opponent of training", "rewards"],
)
def test_a_task_that_goes_on_otherwise_than_the_simulator_is_refused(changes, tmp_path):
    """F27: its observations look the same; searches foresaw what never happens."""
    settings = GAME | changes | {"run__directory": str(tmp_path)}
    with pytest.raises(ConfigError, match="goes on otherwise than the simulator, TicTacToe without arguments"):
        palaestra.train("alphazero", "palaestra.envs:TicTacToe", **settings)


class Line(TensorEnvironment):
    """Steps to the left, none, or to the right; only a step to the right earns something."""

    num_random = 1
    observation_spec = TensorSpec((1,))
    action_spec = DiscreteSpec(num=3, start=-1, dtype=torch.int32)

    def fresh(self, uniform: Tensor) -> dict[str, Tensor]:
        return {"place": uniform[:, :1].round()}

    def transition(self, state: dict[str, Tensor], action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        assert action.dtype == torch.int32
        return {"place": state["place"] + action.unsqueeze(-1)}, (action > 0).float(), action.new_zeros(len(action)) > 0

    def observe(self, state: dict[str, Tensor]) -> Tensor:
        return state["place"].clone()

    def state_of(self, observation: Tensor) -> dict[str, Tensor]:
        return {"place": observation}


def test_a_search_tries_the_actions_that_the_environment_executes():
    """Those of a space that does not begin at 0."""
    env = Line(3)
    config = AlphaZeroConfig(simulator=f"{__name__}:Line", alternating=False, network=SMALL)
    policy = AlphaZero(env.observation_spec, env.action_spec, config, RunSeeds(0)).policy
    begun, choice = env.reset(), torch.arange(3)
    found = policy.network.expand({"place": begun.observation}, choice)
    plan = policy.act(begun).action
    step = env.step(policy.env_action(plan.replace(choice=choice)))
    assert torch.equal(found.state["place"], step.observation)
    assert found.reward.tolist() == step.reward.tolist() == [0, 0, 1]
    plan = Batch.of({"choice": choice[None], "policy": plan["policy"][None], "value": plan["value"][None]})
    names = ("observation", "step_type", "discount", "reward")
    rows = {name: torch.stack([getattr(begun, name), getattr(step, name)]) for name in names}
    policy.network.require_agreement(Batch.of({**rows, "action": plan}))


def test_games_that_only_begin_otherwise_than_those_of_the_simulator_are_taken(tmp_path):
    """Random first moves of training, as in its preset; and games of any time limit."""
    moves = {"env__kwargs": {"opponent": "random"}, "env__train_kwargs": {"opponent": None, "random_moves": 3}}
    settings = GAME | moves | {"env__max_episode_steps": 5, "run__directory": str(tmp_path)}
    done = palaestra.train("alphazero", "palaestra.envs:TicTacToe", **settings)
    assert done.result.env_steps >= 128
