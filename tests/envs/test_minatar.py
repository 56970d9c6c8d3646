"""Tests of `palaestra.envs.worlds.minatar`: situations worked out by hand, and games of the package MinAtar 1.0.15."""

import zlib

import numpy as np
import pytest
import torch

from palaestra.core import ConfigError
from palaestra.envs import MinAtarBreakout, MinAtarSpaceInvaders

NOTHING, LEFT, RIGHT, FIRE = 0, 1, 2, 3


def started(kind, num_envs=1, **options):
    env = kind(num_envs, **{"lane_seeds": list(range(num_envs)), "sticky_action_prob": 0.0, **options})
    return env, env.reset()


def played(env, *actions):
    return [env.step(torch.full((env.batch_size,), action)) for action in actions][-1]


def put(env, **state):
    """Changes the state of the only game."""
    for name, value in state.items():
        env.lanes.state[name][0] = torch.as_tensor(value)


def cells(*places):
    picture = torch.zeros(10, 10, dtype=torch.bool)
    for row, column in places:
        picture[row, column] = True
    return picture


def seen(step, kind, thing):
    """Where a kind of thing is seen, as (row, column)."""
    return [tuple(place) for place in step.observation[0, :, :, kind.channels.index(thing)].nonzero().tolist()]


# -- Breakout


def test_a_ball_begins_at_a_side_of_the_fourth_row_and_comes_down():
    env, step = started(MinAtarBreakout, 64)
    ball = step.observation[..., 1].nonzero()
    assert set(map(tuple, ball[:, 1:].tolist())) == {(3, 0), (3, 9)}
    assert step.observation[..., 3].sum().item() == 64 * 30
    below = played(env, NOTHING).observation[..., 1].nonzero()[:, 1:]
    assert set(map(tuple, below.tolist())) == {(4, 1), (4, 8)}


def ball(**state):
    env, _ = started(MinAtarBreakout)
    put(env, **{"paddle": 4, "struck": False, "bricks": cells((1, 0)), **state})
    return env


def test_a_paddle_hit_in_its_middle_mirrors_the_ball():
    step = played(ball(x=4, y=8, dx=1, dy=1), NOTHING)
    assert (seen(step, MinAtarBreakout, "ball"), step.step_type.item()) == ([(8, 5)], 1)


def test_a_paddle_hit_at_its_corner_sends_the_ball_back():
    env = ball(x=3, y=8, dx=1, dy=1)
    assert seen(played(env, NOTHING), MinAtarBreakout, "ball") == [(8, 4)]
    assert seen(played(env, NOTHING), MinAtarBreakout, "ball") == [(7, 3)]


def test_a_ball_that_is_missed_ends_the_game():
    step = played(ball(x=1, y=8, dx=1, dy=1), NOTHING)
    assert (step.step_type.item(), step.discount.item(), step.reward.item()) == (2, 0.0, 0.0)
    assert seen(step, MinAtarBreakout, "paddle") == [(9, 4)]


def test_a_brick_pays_1_and_only_the_first_of_those_touched_in_a_row():
    env = ball(x=5, y=4, dx=1, dy=-1, bricks=cells((3, 6), (5, 7), (1, 0)))
    first, second = played(env, NOTHING), played(env, NOTHING)
    assert (first.reward.item(), seen(first, MinAtarBreakout, "ball")) == (1.0, [(4, 6)])
    assert (second.reward.item(), seen(second, MinAtarBreakout, "ball")) == (0.0, [(5, 7)])
    assert seen(second, MinAtarBreakout, "brick") == [(1, 0), (5, 7)]


def test_walls_and_the_ceiling_mirror_the_ball():
    env = ball(x=9, y=5, dx=1, dy=1)
    assert seen(played(env, NOTHING), MinAtarBreakout, "ball") == [(6, 9)]
    assert seen(played(env, NOTHING), MinAtarBreakout, "ball") == [(7, 8)]
    env = ball(x=3, y=0, dx=1, dy=-1)
    assert seen(played(env, NOTHING), MinAtarBreakout, "ball") == [(0, 4)]
    assert seen(played(env, NOTHING), MinAtarBreakout, "ball") == [(1, 5)]


def test_all_bricks_come_back_when_the_ball_comes_down_and_none_is_left():
    step = played(ball(x=4, y=8, dx=1, dy=1, bricks=cells()), NOTHING)
    assert len(seen(step, MinAtarBreakout, "brick")) == 30


def test_a_paddle_moves_a_cell_at_a_time_and_stops_at_walls():
    env, _ = started(MinAtarBreakout)
    for action, column in ((LEFT, 3), (RIGHT, 4), (RIGHT, 5), (NOTHING, 5)):
        assert seen(played(env, action), MinAtarBreakout, "paddle") == [(9, column)]
    put(env, paddle=0, y=3, dy=1, x=5)
    assert seen(played(env, LEFT), MinAtarBreakout, "paddle") == [(9, 0)]


# -- Space Invaders


def invaders(**state):
    env, _ = started(MinAtarSpaceInvaders)
    put(env, **state)
    return env


def test_a_shot_rises_a_cell_a_frame_and_the_next_one_is_five_frames_later():
    env, _ = started(MinAtarSpaceInvaders)
    assert seen(played(env, FIRE), MinAtarSpaceInvaders, "friendly_bullet") == [(8, 5)]
    assert seen(played(env, *[FIRE] * 4), MinAtarSpaceInvaders, "friendly_bullet") == [(4, 5)]
    step = played(env, FIRE)  # the first one is where the lowest aliens are
    assert (step.reward.item(), seen(step, MinAtarSpaceInvaders, "friendly_bullet")) == (1.0, [(8, 5)])
    assert (3, 5) not in seen(step, MinAtarSpaceInvaders, "alien")


def test_aliens_move_when_their_time_has_come_and_turn_a_row_lower_at_a_side():
    env = invaders(aliens=cells((2, 0), (3, 1)), move_timer=0)
    turned = played(env, NOTHING)
    assert seen(turned, MinAtarSpaceInvaders, "alien_right") == [(3, 0), (4, 1)]
    assert seen(turned, MinAtarSpaceInvaders, "alien_left") == []
    assert env.lanes.state["move_timer"].item() == 1  # two aliens: every second frame
    assert seen(played(env, NOTHING), MinAtarSpaceInvaders, "alien") == [(3, 0), (4, 1)]
    assert seen(played(env, NOTHING), MinAtarSpaceInvaders, "alien") == [(3, 1), (4, 2)]


@pytest.mark.parametrize(("cannon", "column"), [(5, 4), (7, 8), (0, 4)])
def test_the_nearest_alien_shoots_the_left_one_of_two(cannon, column):
    step = played(invaders(aliens=cells((1, 4), (2, 4), (3, 8)), bullet_timer=0, cannon=cannon), NOTHING)
    assert seen(step, MinAtarSpaceInvaders, "enemy_bullet") == [({4: 2, 8: 3}[column], column)]


def test_a_bullet_an_alien_and_aliens_that_have_come_down_end_the_game():
    assert played(invaders(bullets=cells((8, 5))), NOTHING).discount.item() == 0.0
    assert played(invaders(bullets=cells((8, 5))), LEFT).discount.item() == 1.0
    assert played(invaders(aliens=cells((9, 4))), LEFT).discount.item() == 0.0
    assert played(invaders(aliens=cells((9, 0)), move_timer=0), NOTHING).discount.item() == 0.0


def test_the_next_wave_moves_more_often_down_to_twice_as_often():
    for before, ramps, after in ((12, True, 11), (6, True, 6), (12, False, 12)):
        env, _ = started(MinAtarSpaceInvaders, difficulty_ramping=ramps)
        put(env, aliens=cells((4, 2)), shots=cells((5, 2)), interval=before)
        step = played(env, NOTHING)
        assert (step.reward.item(), len(seen(step, MinAtarSpaceInvaders, "alien"))) == (1.0, 24)
        assert env.lanes.state["interval"].item() == after


# -- both


@pytest.mark.parametrize(
    ("kind", "paid", "ended", "pictures"),
    [
        (MinAtarBreakout, [65, 93, 139, 155, 183, 229, 245, 273, 319, 335, 363], 48, 403119244),
        (
            MinAtarSpaceInvaders,
            [
                *[12, 19, 49, 59, 71, 78, 86, 91, 102, 107, 119, 132, 180, 192],
                *[200, 227, 239, 251, 259, 264, 270, 288, 299, 313, 358, 371, 383, 389],
            ],
            2,
            2744131606,
        ),
    ],
)
def test_400_frames_are_those_of_the_package(kind, paid, ended, pictures):
    """Recorded with `sticky_action_prob=0`, balls that begin at the left, and these actions of the minimal set."""
    env, _ = started(kind)
    found, ends, checksum = [], 0, 0
    for frame in range(1, 401):
        if env.lanes.progress.steps.item() == 0 and kind is MinAtarBreakout:
            put(env, x=0, dx=1, trail_x=0)
        step = played(env, (frame * frame // 5 + frame // 3) % env.action_spec.num)
        checksum = zlib.crc32(np.packbits(step.observation[0].numpy()).tobytes(), checksum)
        found += [frame] * int(step.reward.item())
        if step.step_type.item() == 2:
            ends += 1
            played(env, NOTHING)
    assert (found, ends, checksum) == (paid, ended, pictures)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [MinAtarBreakout, MinAtarSpaceInvaders])
def test_a_compiled_game_is_the_same_game(kind):
    plain, compiled = started(kind, 3)[0], started(kind, 3, compile=True)[0]
    for frame in range(60):
        action = torch.tensor([frame % 3, frame // 2 % 3, frame // 3 % 3])
        one, other = plain.step(action), compiled.step(action)
        assert torch.equal(one.observation, other.observation)
        assert torch.equal(one.reward, other.reward)
        assert torch.equal(one.step_type, other.step_type)


PACKAGE = {}


def test_a_sticky_button_is_that_of_the_frame_before():
    env, _ = started(MinAtarBreakout, 4000, sticky_action_prob=0.25)
    step = played(env, NOTHING, LEFT)
    share = (step.observation[..., 9, 3, 0] == 0).float().mean().item()
    assert share == pytest.approx(0.25, abs=0.03)
    env, _ = started(MinAtarBreakout, 50, sticky_action_prob=1.0)
    assert played(env, LEFT, LEFT, LEFT).observation[:, 9, 4, 0].all()  # nothing was pressed before


def test_all_six_buttons_are_there_if_asked_for():
    env, _ = started(MinAtarSpaceInvaders, minimal_action_set=False)
    assert env.action_spec.num == 6
    assert seen(played(env, 5), MinAtarSpaceInvaders, "friendly_bullet") == [(8, 5)]
    assert seen(played(env, 2, 4), MinAtarSpaceInvaders, "cannon") == [(9, 5)]
    assert seen(played(env, 3), MinAtarSpaceInvaders, "cannon") == [(9, 6)]


def test_a_chance_is_a_number_from_0_to_1():
    with pytest.raises(ConfigError, match=r"sticky_action_prob is 1.5; it is a probability, in \[0, 1\]"):
        MinAtarBreakout(1, sticky_action_prob=1.5)
