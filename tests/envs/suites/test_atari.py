"""Tests of `palaestra.envs.suites.atari`."""

import functools
import importlib.util
import itertools

import numpy as np
import pytest
import torch

from palaestra.core import ConfigError, check_time_step
from palaestra.envs import EnvConfig, create_environment, load

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="the extra `atari`")

PLAIN = {"noop_max": 0, "use_fire_reset": False, "repeat_action_probability": 0.0}
"""Nothing random: the C++ pool and the Python layers then play the very same game."""


def batch(name="ALE/Pong-v5", num_envs=1, limit=None, vectorization="native", **kwargs):
    config = EnvConfig(
        name=name, num_envs=num_envs, vectorization=vectorization, max_episode_steps=limit, kwargs=kwargs
    )
    return create_environment(config, lane_seeds=range(7, 7 + num_envs))


def play(env, steps, seed=0):
    rng = np.random.default_rng(seed)
    actions = [torch.from_numpy(rng.integers(0, env.action_spec.num, env.batch_size)) for _ in range(steps)]
    return [env.reset(), *(env.step(action) for action in actions)]


@pytest.mark.slow
@pytest.mark.parametrize(("game", "steps"), [("Pong", 220), ("Breakout", 110)])
def test_the_pool_and_the_python_layers_play_the_same_game(game, steps):
    """One set of arguments, two implementations: an episode is equal up to rounding, and so is its end.

    The picture of the very frame of the limit is left out: the pool draws it differently.
    """
    make = functools.partial(batch, f"ALE/{game}-v5", limit=steps, **PLAIN)
    with make() as pool, make(vectorization="serial") as layers:
        assert pool.observation_spec == layers.observation_spec
        assert pool.action_spec == layers.action_spec
        streams = play(pool, steps, seed=1), play(layers, steps, seed=1)
    assert any(step.reward.item() for step in streams[0])
    assert streams[0][steps].truncated.item()
    for one, two in zip(*streams, strict=True):
        assert one.step_type.tolist() == two.step_type.tolist()
        assert one.discount.tolist() == two.discount.tolist()
        assert one.reward.tolist() == two.reward.tolist()
        newest = slice(0, 3) if one.step_type.item() == 2 else slice(0, 4)
        assert (one.observation[0, newest].int() - two.observation[0, newest].int()).abs().max() <= 1
        assert torch.equal(one.env_info.lives, two.env_info.lives)


@pytest.mark.parametrize("vectorization", ["native", "serial"])
def test_an_episode_begins_with_one_frame_and_zeros(vectorization):
    """What `stacked` in the spec promises to buffers, also with FIRE pressed and after an episode."""
    with batch(vectorization=vectorization, limit=12) as env:
        stream = play(env, 30)
    assert env.observation_spec.stacked == 4
    firsts = [step for step in stream if step.step_type.item() == 0]
    assert len(firsts) > 1
    for first in firsts:
        assert not first.observation[0, :3].any()
        assert first.observation[0, 3].any()
    for before, after in itertools.pairwise(stream):
        if after.step_type.item() != 0:
            assert torch.equal(before.observation[0, 1:], after.observation[0, :3])


@pytest.mark.parametrize("vectorization", ["native", "serial"])
def test_the_frame_limit_truncates(vectorization):
    """ALF-26, ALF-28: 10 env steps of 4 frames; the game would go on."""
    with batch(vectorization=vectorization, limit=10, **PLAIN) as env:
        stream = play(env, 11)
    assert [int(step.step_type) for step in stream] == [0, *[1] * 9, 2, 0]
    assert [float(step.discount) for step in stream] == [1.0] * 12


@pytest.mark.parametrize("vectorization", ["native", "serial"])
def test_a_lost_life_is_an_end_only_where_that_is_asked_for(vectorization):
    """ALF-25: Breakout has five lives, and a player that never moves loses them.

    In Python the next episode goes on with the next life; the pool begins a new game.
    """

    def ends(**kwargs):
        with batch("ALE/Breakout-v5", vectorization=vectorization, **kwargs) as env:
            env.reset()
            found = []
            for _ in range(260):
                step = env.step(torch.ones(1, dtype=torch.int64))  # FIRE
                check_time_step(step)
                if step.step_type.item() == 2:
                    found.append((float(step.discount), int(step.env_info.lives)))
        return found

    games = ends()
    assert set(games) == {(0.0, 0)}
    lives = ends(episodic_life=True)
    assert len(lives) > len(games)
    assert {discount for discount, _ in lives} == {0.0}
    assert [lives for _, lives in lives[:3]] == ([4, 3, 2] if vectorization == "serial" else [4, 4, 4])


@pytest.mark.parametrize("vectorization", ["native", "serial"])
def test_rewards_are_scores_unless_they_are_clipped(vectorization):
    def largest(**kwargs):
        with batch("ALE/Seaquest-v5", vectorization=vectorization, **PLAIN, **kwargs) as env:
            return max(step.reward.item() for step in play(env, 150, seed=3))

    assert largest() == 20
    assert largest(reward_clipping=True) == 1


def test_training_sees_clipped_rewards_and_evaluation_scores():
    """What a preset for Atari says, with the pool that both use."""
    config = EnvConfig(
        name="ALE/Seaquest-v5", vectorization="native", kwargs=PLAIN, train_kwargs={"reward_clipping": True}
    )
    for made, expected in ((config, 1), (config.for_evaluation(1), 20)):
        with create_environment(made, lane_seeds=[1]) as env:
            assert max(step.reward.item() for step in play(env, 150, seed=3)) == expected


def test_the_bare_game_is_there_as_well():
    assert load("ale_py:ALE/Pong-v5").observation_spec.shape == (210, 160, 3)


def test_sizes_and_wrappers_can_be_chosen():
    """ALF-44: our own wrappers go around the preprocessing."""
    kwargs = {"img_height": 40, "img_width": 36, "stack_num": 2}
    env = load("ALE/Pong-v5", kwargs=kwargs, wrappers=("FrameStack(num_frames=3)",))
    assert env.observation_spec.shape == (3, 2, 40, 36)
    with batch(**kwargs) as pool:
        assert (pool.observation_spec.shape, pool.observation_spec.stacked) == ((2, 40, 36), 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: batch("ALE/Pongg-v5"), "Pong"),
        (lambda: batch(colour="red"), "colour"),
        (
            lambda: batch(life_loss_info=True),
            "life_loss_info says .* has ended where .*give episodic_life",
        ),
        (lambda: load("ALE/Pong-v5", kwargs={"colour": "red"}), "cannot be made with the arguments"),
        (lambda: load("ALE/Pong-v5", kwargs={"grayscale": False}), "vectorization=native"),
    ],
)
def test_settings_that_do_not_fit_are_refused(make, words):
    """F27."""
    with pytest.raises(ConfigError, match=words):
        make()


def test_pictures_of_the_pool_are_not_copied_and_never_written_again(monkeypatch):
    """Each step's pictures are memory that the pool gave away: none is shared, and none changes, also after `close`."""
    env = batch(num_envs=2, **PLAIN)
    step, given = env.vector_env.step, []

    def recorded(actions):
        result = step(actions)
        given.append(result[0])
        return result

    monkeypatch.setattr(env.vector_env, "step", recorded)
    seen, copies = [], []
    for time_step in (env.reset(), *(env.step(torch.full((2,), number % 6)) for number in range(80))):
        seen.append(time_step.observation)
        copies.append(time_step.observation.clone())
    env.close()
    assert len({tensor.data_ptr() for tensor in seen}) == len(seen)
    assert [tensor.data_ptr() for tensor in seen[1:]] == [array.ctypes.data for array in given]
    assert all(torch.equal(one, two) for one, two in zip(seen, copies, strict=True))
    assert not torch.equal(copies[1], copies[80])
