"""Tests of `palaestra.envs.tiny`: the closed forms in the docstrings are right."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from palaestra.core import ConfigError
from palaestra.envs.tiny import Backdrop, Bandit, Catch, Chain, Endless, Recall


@pytest.mark.parametrize("kind", [Backdrop, Bandit, Chain, Catch, Endless, Recall])
def test_gymnasiums_own_checker_agrees(kind):
    check_env(kind(), skip_render_check=True)


def play(env, policy, gamma, seed=0, limit=1000):
    observation, _ = env.reset(seed=seed)
    value, weight = 0.0, 1.0
    for _ in range(limit):
        observation, reward, terminated, _, _ = env.step(policy(observation))
        value, weight = value + weight * reward, weight * gamma
        if terminated:
            break
    return value


def test_bandit_pays_in_proportion_to_the_arm():
    assert [play(Bandit(5), lambda _, arm=arm: np.int64(arm), 0.9) for arm in range(5)] == [0, 0.25, 0.5, 0.75, 1]
    noisy = [play(Bandit(2, noise=0.5), lambda _: np.int64(1), 1.0, seed) for seed in range(400)]
    assert abs(np.mean(noisy) - 1) < 0.1
    assert abs(np.std(noisy) - 0.5) < 0.1


@pytest.mark.parametrize("num_states", [1, 2, 5])
def test_chain_is_worth_gamma_to_the_distance(num_states):
    assert play(Chain(num_states), lambda _: np.int64(1), 0.9) == pytest.approx(0.9 ** (num_states - 1))
    assert play(Chain(num_states), lambda _: np.int64(0), 0.9) == 0


def test_catch_can_always_be_won_in_nine_steps():
    def follow(observation):
        board = observation.reshape(10, 5)
        ball, paddle = board[:-1].any(0).argmax(), board[-1].argmax()
        return np.int64(1 + np.sign(int(ball) - int(paddle)))

    for seed in range(20):
        assert play(Catch(), follow, 0.9, seed) == pytest.approx(0.9**8)
    still = [play(Catch(), lambda _: np.int64(1), 1.0, seed) for seed in range(200)]
    assert np.mean(np.array(still) == 1) == pytest.approx(1 / 5, abs=0.1)


@pytest.mark.parametrize("random", [False, True])
def test_endless_is_worth_one_over_one_minus_gamma(random):
    assert play(Endless(random), lambda _: np.int64(0), 0.9) == pytest.approx(1 / (1 - 0.9))


def test_a_picture_of_catch_shows_the_board():
    board, picture = Catch(10, 5), Catch(10, 5, num_pixels=64)
    check_env(picture, skip_render_check=True)
    for step in range(9):
        table = board.reset(seed=3)[0] if step == 0 else board.step(np.int64(2))[0]
        seen = picture.reset(seed=3)[0] if step == 0 else picture.step(np.int64(2))[0]
        assert seen.shape == (64, 64, 1)
        cells = [[seen[int((r + 0.5) * 6.4), int((c + 0.5) * 12.8), 0] for c in range(5)] for r in range(10)]
        assert (np.array(cells) == 255 * table.reshape(10, 5)).all()
    with pytest.raises(ConfigError, match="every cell needs at least one"):
        Catch(10, 5, num_pixels=9)


def test_recall_pays_the_cue_and_nothing_else():
    remembered = []

    def recall(observation):
        remembered.extend(np.flatnonzero(observation[:-1]).tolist())
        return np.int64(remembered[-1])

    assert [play(Recall(3, delay=4), recall, 0.9, seed) for seed in range(5)] == pytest.approx([0.9**4] * 5)
    constant = [play(Recall(3), lambda _: np.int64(1), 1.0, seed) for seed in range(300)]
    assert np.mean(constant) == pytest.approx(1 / 3, abs=0.08)


def test_recall_pays_a_number_by_how_near_it_is_to_the_cue():
    paid = {}
    for seed in range(10):
        for answer in (-1.0, 0.5, 1.0):
            env = Recall(2, delay=2, continuous=True)
            cue = int(env.reset(seed=seed)[0].argmax())
            rewards = [env.step(np.array([answer], np.float32))[1] for _ in range(3)]
            paid[cue, answer] = rewards
    assert {key: rewards[-1] for key, rewards in paid.items()} == {
        (0, -1.0): 1.0,
        (0, 0.5): 0.25,
        (0, 1.0): 0.0,
        (1, -1.0): 0.0,
        (1, 0.5): 0.75,
        (1, 1.0): 1.0,
    }
    assert all(rewards[:-1] == [0.0, 0.0] for rewards in paid.values())


def test_recall_shows_every_cue_the_same_afterwards():
    """So a policy without memory has the same distribution of answers for all cues, 1/k of them right."""
    seen = {}
    for seed in range(20):
        env = Recall(2, delay=2)
        first, _ = env.reset(seed=seed)
        seen.setdefault(first.tobytes(), set()).add(tuple(env.step(np.int64(0))[0].tobytes() for _ in range(2)))
    assert len(seen) == 2
    assert len(set.union(*seen.values())) == 1


def test_backdrop_shows_in_how_readings_change_what_the_walker_did_and_hardly_where_it_is():
    env = Backdrop(noise=0.0)
    first, _ = env.reset(seed=1)
    right, back = env.step(np.int64(0))[0], env.step(np.int64(1))[0]
    assert np.allclose(first, back, atol=1e-6) and not np.allclose(first, right, atol=0.01)
    other, _ = env.reset(seed=2)
    assert np.allclose(env.step(np.int64(0))[0] - other, right - first, atol=1e-6), "the same move, the same change"
    starts = np.stack([env.reset(seed=seed)[0] for seed in range(300)])
    assert starts.std() == pytest.approx(1, abs=0.05) and abs(starts.mean()) < 0.05


def test_backdrop_pays_on_one_place_that_does_not_depend_on_the_seed():
    def walk(seed):
        env = Backdrop()
        env.reset(seed=seed)
        moves = [2] * 9 + [1] * 9  # to the upper left corner, then row by row
        for row in range(10):
            moves += [0 if row % 2 == 0 else 1] * 9 + [3]
        for action in moves:
            _, reward, terminated, _, _ = env.step(np.int64(action))
            assert terminated == (reward == 1)
            if terminated:
                return tuple(env._place)
        return None

    assert {walk(seed) for seed in range(10)} == {(3, 6)}


def test_a_backdrop_stays_and_its_noise_has_the_size_that_was_asked_for():
    """Readings of one place differ by noise alone, of another episode by the backdrop as well."""
    env = Backdrop(num_sensors=4000, backdrop=3.0, noise=0.3)
    scale = np.sqrt(1 + 3.0**2 + 0.3**2)
    env.reset(seed=0)
    for _ in range(10):
        env.step(np.int64(0))
    still = [env.step(np.int64(0))[0] * scale for _ in range(2)]  # at the wall
    assert np.std(still[1] - still[0]) == pytest.approx(np.sqrt(2) * 0.3, rel=0.1)
    env.reset(seed=1)
    for _ in range(10):
        env.step(np.int64(0))
    other = env.step(np.int64(0))[0] * scale
    assert np.std(other - still[0]) > 3.0
