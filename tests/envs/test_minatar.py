"""Tests of the games of MinAtar: situations worked out by hand, and games of the package MinAtar 1.0.15."""

import random
import zlib

import numpy as np
import pytest
import torch

from palaestra.core import ConfigError
from palaestra.envs import MinAtarAsterix, MinAtarBreakout, MinAtarFreeway, MinAtarSeaquest, MinAtarSpaceInvaders

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


# -- what comes from the sides


def one_thing(x, *, gold, **state):
    """Asterix with a thing in the player's row, the fifth of eight."""
    env, _ = started(MinAtarAsterix)
    there, places = torch.zeros(8, dtype=torch.bool), torch.zeros(8, dtype=torch.int32)
    there[4], places[4] = True, x
    put(env, there=there, places=places, gold=there & gold, **state)
    return env


def test_a_treasure_pays_and_an_enemy_ends_the_game_where_one_walks_into_it_or_it_comes():
    for x, button, timer in ((5, 0, 3), (4, 1, 3), (4, 0, 0)):
        step = played(one_thing(x, gold=True, move_timer=timer), button)
        assert (step.reward.item(), step.discount.item(), step.observation[..., 3].any().item()) == (1.0, 1.0, False)
        step = played(one_thing(x, gold=False, move_timer=timer), button)
        assert (step.reward.item(), step.discount.item()) == (0.0, 0.0)


def test_things_become_faster_and_more_after_a_hundred_frames_unless_that_is_off():
    for ramps, speeds in ((True, (9, 4)), (False, (10, 5))):
        env, _ = started(MinAtarAsterix, difficulty_ramping=ramps)
        put(env, ramp_timer=-1, ramp_index=1)
        played(env, NOTHING)
        assert (env.lanes.state["spawn_speed"].item(), env.lanes.state["move_speed"].item()) == speeds


def test_the_top_of_the_freeway_pays_and_cars_draw_their_speeds_anew():
    env, _ = started(MinAtarFreeway, 200)
    before = env.lanes.state["speeds"].clone()
    assert sorted(before.unique().tolist()) == [1, 2, 3, 4, 5]
    env.lanes.state["y"].fill_(1)
    env.lanes.state["move_timer"].fill_(0)
    step = played(env, 1)
    assert step.reward.sum().item() == 200.0
    assert (step.observation[..., 0].nonzero()[:, 1] == 9).all()
    assert 0.1 < (env.lanes.state["speeds"] == before).float().mean().item() < 0.3


def test_a_car_sends_the_chicken_back():
    env, _ = started(MinAtarFreeway)
    put(env, y=3, move_timer=2, places=torch.full((8,), 3), steps=torch.ones(8), timers=torch.zeros(8))
    step = played(env, NOTHING)
    assert (seen(step, MinAtarFreeway, "chicken"), step.reward.item(), step.discount.item()) == ([(9, 4)], 0.0, 1.0)


def test_a_game_on_the_freeway_is_cut_off_after_2501_frames():
    env, _ = started(MinAtarFreeway)
    env.lanes.progress.steps.fill_(2499)
    assert played(env, NOTHING).step_type.item() == 1
    step = played(env, NOTHING)
    assert (step.step_type.item(), step.discount.item()) == (2, 1.0)


def diving(**state):
    env, _ = started(MinAtarSeaquest)
    put(env, **{"y": 1, "at_surface": False, **state})
    return env


@pytest.mark.parametrize(
    ("aboard", "paid", "left", "continues"), [(0, 0, 0, 0), (2, 0, 1, 1), (6, 5, -1, 1), (-1, 0, -2, 1)]
)
def test_at_the_surface_a_diver_leaves_and_six_are_paid_by_the_oxygen_that_is_left(aboard, paid, left, continues):
    env = diving(divers_aboard=aboard, oxygen=119)
    step = played(env, 2)
    assert (step.reward.item(), step.discount.item()) == (paid, continues)
    assert env.lanes.state["divers_aboard"].item() == left
    assert env.lanes.state["oxygen"].item() == (200 if continues else 119)


def test_without_oxygen_the_game_ends():
    assert played(diving(y=4, oxygen=1), NOTHING).discount.item() == 1.0
    assert played(diving(y=4, oxygen=0), NOTHING).discount.item() == 0.0


def test_a_shot_takes_the_oldest_fish_of_a_cell_before_a_submarine():
    env = diving(y=4, x=5, facing=1)
    enemies = torch.zeros(7, 32, dtype=torch.int32)
    enemies[:, :3] = torch.tensor([[1, 6, 4, 1, 5, 9, 1], [1, 6, 4, 1, 4, 9, 0], [1, 6, 4, 1, 3, 9, 0]]).T
    put(env, enemies=enemies)
    step = played(env, 5)
    assert step.reward.item() == 1.0
    assert env.lanes.state["enemies"][0, 0, :3].tolist() == [1, 1, 0]


# -- all


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


def chosen(kind, frames):
    """Buttons: most upwards on the freeway; divers are collected for 150 frames before the surface is allowed."""
    draw = random.Random(5)
    for frame in range(frames):
        button = draw.randrange(6)
        up = kind is MinAtarFreeway or (kind is MinAtarSeaquest and frame % 200 > 150)
        yield 2 if up and draw.random() < 0.6 else 0 if kind is MinAtarSeaquest and not up and button == 2 else button


@pytest.mark.parametrize(
    ("kind", "paid", "hit", "pictures"),
    [(MinAtarAsterix, 4, 35, 4168410934), (MinAtarFreeway, 3, 0, 181082746), (MinAtarSeaquest, 4, 175, 3429144891)],
)
def test_500_frames_are_those_of_the_package_with_the_same_luck(kind, paid, hit, pictures):
    """Recorded with the package's random numbers replaced by those of the game; what ends a game is counted only, so
    that enemies become as fast and many as they can. Its games agreed for 60,000 frames of each."""
    env, _ = started(kind, minimal_action_set=False)
    state, found, over, checksum = env.lanes.state, 0, 0, 0
    for button in chosen(kind, 500):
        state, reward, ended = env.transition(state, torch.tensor([button]))
        found, over = found + int(reward), over + int(ended)
        checksum = zlib.crc32(np.packbits(env.observe(state)[0].numpy()).tobytes(), checksum)
    assert (found, over, checksum) == (paid, hit, pictures)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [MinAtarBreakout, MinAtarSpaceInvaders, MinAtarAsterix, MinAtarFreeway, MinAtarSeaquest]
)
def test_a_compiled_game_is_the_same_game(kind):
    plain, compiled = started(kind, 3)[0], started(kind, 3, compile=True)[0]
    for frame in range(60):
        action = torch.tensor([frame % 3, frame // 2 % 3, frame // 3 % 3])
        one, other = plain.step(action), compiled.step(action)
        assert torch.equal(one.observation, other.observation)
        assert torch.equal(one.reward, other.reward)
        assert torch.equal(one.step_type, other.step_type)


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
