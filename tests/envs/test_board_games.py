"""Tests of `palaestra.envs.worlds.board_games`: against rules in plain Python, and known numbers of positions."""

import dataclasses

import numpy as np
import pytest
import torch

from palaestra.core import ConfigError
from palaestra.envs import ConnectFour, EnvConfig, TicTacToe, create_environment
from palaestra.policies import RandomPolicy

GAMES = {TicTacToe: 3, ConnectFour: 4}


def line_of(board: np.ndarray, length: int) -> bool:
    rows, columns = board.shape
    for row in range(rows):
        for column in range(columns):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + down * i, column + right * i) for i in range(length)]
                if all(0 <= r < rows and 0 <= c < columns and board[r, c] for r, c in cells):
                    return True
    return False


@pytest.mark.parametrize("kind", GAMES)
def test_games_are_those_of_rules_in_plain_python(kind):
    env = kind(20, lane_seeds=list(range(20)))
    policy = RandomPolicy(env.observation_spec, env.action_spec)
    policy.seed(1)
    step = env.reset()
    boards = np.zeros((20, 2, kind.rows, kind.columns), np.float32)
    finished = won = 0
    for _ in range(120):
        action = policy.act(step).action
        begun, step = step, env.step(action)
        for lane in range(20):
            if begun.step_type[lane] == 2:
                boards[lane] = 0
                expected = (0, 0.0, 1.0)
            else:
                place = int(action[lane])
                if kind is TicTacToe:
                    row, column = divmod(place, 3)
                else:
                    row, column = int(boards[lane].sum((0, 1))[place]), place
                assert not boards[lane, :, row, column].any()
                boards[lane, 0, row, column] = 1
                wins = line_of(boards[lane, 0], GAMES[kind])
                over = wins or boards[lane].sum() == kind.rows * kind.columns
                finished, won = finished + over, won + wins
                boards[lane] = boards[lane, ::-1].copy()
                expected = (2 if over else 1, float(wins), 0.0 if over else 1.0)
            assert (int(step.step_type[lane]), float(step.reward[lane]), float(step.discount[lane])) == expected
        np.testing.assert_array_equal(step.observation["observation"].numpy(), boards)
        taken = boards.sum(1)
        free = taken.reshape(20, -1) == 0 if kind is TicTacToe else taken.sum(1) < kind.rows
        np.testing.assert_array_equal(step.observation["action_mask"].numpy(), free)
    assert finished >= won > 10


@pytest.mark.parametrize("kind", GAMES)
def test_a_move_that_is_not_allowed_loses(kind):
    env = kind(1, lane_seeds=[1])
    env.reset()
    last = None
    for _ in range(kind.rows if kind is ConnectFour else 1):
        last = env.step(torch.tensor([0]))
        assert not last.last
    last = env.step(torch.tensor([0]))
    assert (float(last.reward), float(last.discount)) == (-1.0, 0.0)


def test_tic_tac_toe_has_as_many_positions_and_games_as_are_known():
    """5,478 positions, the empty one included; 255,168 games: both are known from full enumeration by others."""
    env = TicTacToe(1)
    count, games = 1, 0
    own, other, ways = torch.zeros(1, 9), torch.zeros(1, 9), torch.ones(1)
    while len(own):
        action = torch.arange(9).repeat(len(own))
        many = {"own": own.repeat_interleave(9, 0), "other": other.repeat_interleave(9, 0)}
        free = (many["own"] + many["other"]).gather(-1, action[:, None]).squeeze(-1) == 0
        state, _, over = env.transition({name: leaf[free] for name, leaf in many.items()}, action[free])
        weight = ways.repeat_interleave(9)[free]
        games += int(weight[over].sum())
        boards = torch.cat([state["own"], state["other"]], -1)
        unique, inverse = boards.unique(dim=0, return_inverse=True)
        count += len(unique)
        ended = torch.zeros(len(unique), dtype=torch.bool).index_put((inverse,), over)
        ways = torch.zeros(len(unique)).index_add_(0, inverse, weight)[~ended]
        own, other = unique[~ended].split(9, -1)
    assert (count, games) == (5478, 255168)


@pytest.mark.parametrize("kind", GAMES)
def test_an_observation_tells_the_state(kind):
    env = kind(4, lane_seeds=[1, 2, 3, 4])
    policy = RandomPolicy(env.observation_spec, env.action_spec)
    step = env.reset()
    for _ in range(5):
        step = env.step(policy.act(step).action)
    found = env.state_of(step.observation)
    for name, leaf in env.lanes.state.items():
        assert torch.equal(found[name], leaf)


@pytest.mark.parametrize("kind", GAMES)
def test_a_random_opponent_answers_every_move_and_begins_half_of_the_games(kind):
    env = kind(400, lane_seeds=list(range(400)), opponent="random")
    policy = RandomPolicy(env.observation_spec, env.action_spec)
    step = env.reset()
    began = step.observation["observation"].sum((1, 2, 3))
    assert set(began.tolist()) == {0.0, 1.0}
    assert 150 < began.sum() < 250
    moves = step.observation["observation"][:, 1].flatten(1).argmax(-1)[began > 0]
    assert len(moves.unique()) == env.action_spec.num, "every first move is drawn"
    rewards: list[torch.Tensor] = []
    for _ in range(30):
        before, step = step, env.step(policy.act(step).action)
        grown = step.observation["observation"].sum((1, 2, 3)) - before.observation["observation"].sum((1, 2, 3))
        assert set(grown[step.step_type == 1].tolist()) == {2.0}
        rewards.append(step.reward[step.last])
    ends = torch.cat(rewards)
    assert set(ends.tolist()) >= {-1.0, 1.0}
    assert ends.mean().abs() < 0.15, "two players who play alike"


@pytest.mark.parametrize("kind", GAMES)
def test_games_begin_after_each_number_of_random_moves_as_often(kind):
    env = kind(1000, lane_seeds=list(range(1000)), random_moves=3)
    stones = env.reset().observation["observation"].sum((2, 3))  # [B, 2]
    counts = stones.sum(-1).long().bincount()
    assert len(counts) == 4
    assert counts.min() > 200
    assert ((stones[:, 1] - stones[:, 0] == 0) | (stones[:, 1] - stones[:, 0] == 1)).all(), "players take turns"
    assert len(env.reset().observation["observation"].flatten(1).unique(dim=0)) > 50


def test_no_random_move_ends_a_game():
    env = TicTacToe(2000, lane_seeds=list(range(2000)), random_moves=9)
    observation = env.reset().observation
    assert observation["action_mask"].any(-1).all()
    boards = observation["observation"].flatten(2)
    lines = torch.tensor([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])
    assert not boards[:, :, lines].all(-1).any()


@pytest.mark.parametrize("kind", GAMES)
def test_a_game_in_the_mirror_goes_on_as_the_mirror_of_the_game(kind):
    env = kind(200, lane_seeds=list(range(200)), random_moves=6)
    state = env.state_of(env.reset().observation)
    mask = env.observe(state)["action_mask"]
    action = (torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) * mask).argmax(-1)
    image, counterpart = kind.mirror(env.observe(state), action)
    assert (image["observation"] != env.observe(state)["observation"]).any()
    after, *given = env.transition(state, action)
    after_image, *found = env.transition(env.state_of(image), counterpart)
    wanted, plan = kind.mirror(env.observe(after), {"choice": action, "policy": mask.float(), "value": given[0]})
    assert all(torch.equal(env.observe(after_image)[name], leaf) for name, leaf in wanted.items())
    assert all(map(torch.equal, found, given))
    assert torch.equal(plan["choice"], counterpart)
    assert torch.equal(plan["value"], given[0])
    assert torch.equal(plan["policy"].bool(), image["action_mask"])


@pytest.mark.parametrize("kind", GAMES)
def test_games_by_name_have_the_seeds_and_the_time_limit_of_the_run(kind):
    """F25: options that a class hands on reach the environment as well."""
    config = EnvConfig(name=f"palaestra.envs:{kind.__name__}", num_envs=20, max_episode_steps=2)
    config = dataclasses.replace(config, kwargs={"opponent": "random"})
    streams = []
    for seed in (1, 1, 2):
        with create_environment(config, seed=seed) as env:
            steps = [env.reset()]
            for _ in range(6):
                steps.append(env.step(steps[-1].observation["action_mask"].long().argmax(-1)))
        streams.append(torch.stack([step.observation["observation"] for step in steps]))
        assert steps[2].last.all()
    assert torch.equal(streams[0], streams[1])
    assert not torch.equal(streams[0], streams[2])


def test_an_opponent_that_is_not_known_is_refused():
    with pytest.raises(ConfigError, match="give random, or nothing"):
        TicTacToe(1, opponent="perfect")
    with pytest.raises(ConfigError, match="without an opponent"):
        TicTacToe(1, opponent="random", random_moves=2)
