"""Tests of `palaestra.envs.tiny.FourRooms`."""

import numpy as np
from gymnasium.utils.env_checker import check_env

from palaestra.envs import load
from palaestra.envs.tiny import FourRooms


def at(env, x, y):
    env.reset(seed=0)
    env.unwrapped._place = np.array([x, y], np.float32)
    return env


def moved(env, *directions):
    for direction in directions:
        observation, *_ = env.step(np.array(direction, np.float32))
    return observation["observation"]


def test_gymnasiums_own_checker_agrees():
    check_env(FourRooms(), skip_render_check=True)


def test_episodes_begin_in_the_first_room_and_end_in_the_last():
    """Where a run starts, and where it is to go: the rooms less a tenth beside the walls in the middle, and outside."""
    env = FourRooms()
    seen = [env.reset(seed=seed)[0] for seed in range(200)]
    starts, goals = (np.array([one[name] for one in seen]) for name in ("observation", "desired_goal"))
    assert -0.9 <= starts.min() < -0.88 and -0.12 < starts.max() <= -0.1
    assert 0.1 <= goals.min() < 0.12 and 0.88 < goals.max() <= 0.9


def test_walls_stop_a_move_and_doors_let_it_through():
    right, up = [(1, 0)] * 10, [(0, 1)] * 10
    assert -0.01 < moved(at(FourRooms(), -0.2, -0.9), *right)[0] < 0
    assert moved(at(FourRooms(), -0.2, -0.5), *right)[0] > 0.25
    assert -0.01 < moved(at(FourRooms(), -0.9, -0.2), *up)[1] < 0
    assert moved(at(FourRooms(), -0.5, -0.2), *up)[1] > 0.25
    assert moved(at(FourRooms(), -0.9, -0.9), *([(-1, -1)] * 10)).tolist() == [-1, -1]


def test_a_wall_holds_on_both_sides_and_wherever_a_step_ends():
    env = at(FourRooms(), 0.05, 0.9)
    for _ in range(5):
        assert moved(env, (-1, 0))[0] > 0
    assert moved(at(FourRooms(speed=0.5), -0.2, -0.9), (1, 0), (1, 0), (1, 0))[0] < 0


def test_the_shortest_way_leads_through_two_doors_and_pays_one():
    """Towards a door, through it, towards the next: the return of a rule that knows the way is 1."""
    env = FourRooms()
    for seed in range(10):
        observation, _ = env.reset(seed=seed)
        goal, total = observation["desired_goal"], 0.0
        waypoints = [np.array([-0.5, -0.05]), np.array([-0.5, 0.4]), np.array([0.05, 0.5]), goal]
        waypoints.insert(2, np.array([-0.3, 0.5]))
        for waypoint in waypoints:
            for _ in range(60):
                gap = (waypoint - observation["observation"]) / 0.05
                if total or np.abs(gap).max() < 0.3:
                    break
                observation, reward, terminated, _, _ = env.step(np.clip(gap, -1, 1).astype(np.float32))
                total += reward
                assert terminated == (reward == 1)
        assert total == 1


def test_chance_does_not_find_the_goal():
    env = load("palaestra.envs.tiny:FourRooms", max_episode_steps=200)
    env.seed(3)
    rng = np.random.default_rng(0)
    rewards = [0.0]
    for _ in range(30):
        step = env.reset()
        while not step.last:
            step = env.step(rng.uniform(-1, 1, 2).astype(np.float32))
            rewards.append(float(step.reward))
    assert sum(rewards) <= 1


def test_rewards_of_many_goals_at_once():
    """As hindsight computes them."""
    env = FourRooms(radius=0.1)
    achieved = np.array([[0.0, 0.0], [0.5, 0.5]], np.float32)
    assert env.compute_reward(achieved, achieved + np.float32(0.05), {}).tolist() == [1, 1]
    assert env.compute_reward(achieved, achieved[::-1], {}).tolist() == [0, 0]


def test_the_picture_shows_walls_goal_and_point():
    env = at(FourRooms(), -0.5, -0.5)
    picture = env.render()
    assert picture.shape == (256, 256, 3) and picture.dtype == np.uint8
    colours = {tuple(colour) for colour in picture.reshape(-1, 3).tolist()}
    assert {(255, 255, 255), (128, 128, 128), (40, 160, 60), (30, 80, 220)} <= colours


def test_the_picture_has_a_cross_of_walls_two_cells_wide_with_four_doors():
    cells = at(FourRooms(), -0.9, -0.9).render()[::4, ::4]
    walls, middle = (cells == 128).all(-1), len(cells) // 2
    assert (walls == walls.T).all() and (walls == walls[::-1, ::-1]).all()
    crossed = np.flatnonzero(walls.sum(0) > 2)
    assert crossed.tolist() == [middle - 1, middle] and 0 < (~walls[:, middle]).sum() < middle
