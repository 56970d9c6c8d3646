"""Tests of `palaestra.config.dimensions`: what a search tries, and how it is named."""

import pytest

from palaestra.config.config import ExperimentConfig, config_from_mapping
from palaestra.config.dimensions import require_comparable, settings_with, with_values
from palaestra.core import ConfigError, Linear
from palaestra.experiments import preset, search_space


def test_the_space_has_rates_sizes_discounts_and_ends_of_schedules():
    space = {one.path: one for one in search_space(preset("dqn", "Acrobot-v1"))}
    assert space["algorithm.gamma"].scale == "log_below_one" and space["algorithm.gamma"].high < 1
    assert space["algorithm.mini_batch_size"].scale == "power_of_two"
    assert space["algorithm.epsilon.end"].scale == "log" and "algorithm.epsilon.fraction" in space
    assert "algorithm.capacity" not in space and not any("priority" in path for path in space)
    changed = search_space(preset("dqn", "Acrobot-v1"), {"algorithm.gamma": (0.9, 0.95), "algorithm.n_step": None})
    ranges = {one.path: (one.low, one.high) for one in changed}
    assert ranges["algorithm.gamma"] == (0.9, 0.95) and "algorithm.n_step" not in ranges


def test_ends_of_schedules_are_searched_within_the_bounds_of_their_setting():
    """From a tenth to ten times: of a number without an upper bound up to 2, of a share up to 1."""
    found = (search_space(preset(*names)) for names in (("evolution_strategies", "CartPole-v1"), ("dqn", "Acrobot-v1")))
    rates, shares = ({one.path: (one.low, one.high) for one in space} for space in found)
    assert rates["algorithm.learning_rate.start"] == pytest.approx((0.02, 2.0))
    assert shares["algorithm.epsilon.end"][1] <= 1 and "algorithm.epsilon.start" not in shares


def test_every_corner_of_the_space_is_a_configuration():
    for algorithm, env in [
        ("dqn", "Acrobot-v1"),
        ("ppo", "CartPole-v1"),
        ("sac", "Pendulum-v1"),
        ("a2c", "CartPole-v1"),
    ]:
        config = preset(algorithm, env)
        for end in ("low", "high"):
            with_values(config, {one.path: getattr(one, end) for one in search_space(config)})


def test_numbers_of_a_schedule_are_put_into_it():
    config, drawn = preset("dqn", "X-v0"), {"algorithm.epsilon.end": 0.1, "algorithm.epsilon.fraction": 0.5}
    assert with_values(config, drawn).algorithm.epsilon == Linear(1.0, 0.1, 0.5)
    assert settings_with(config, drawn) == {"algorithm.epsilon": Linear(1.0, 0.1, 0.5)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm.gama": (0, 1)}, r"no number that can be searched — did you mean space\.algorithm\.gamma\?"),
        ({"algorithm.epsilon": (0, 1)}, r"searched; there are: space\.algorithm\.epsilon\.end, [^,]*fraction$"),
        ({"algorithm.gamma": (0.9,)}, "lowest and the highest"),
        ({"algorithm.gamma": (0.9, 1.5)}, "fit its scale"),
        ({"algorithm.learning_rate.start": (0, 0.1)}, "fit its scale"),
        ({"algorithm.mini_batch_size": (65, 127)}, "no power of two"),
    ],
)
def test_wrong_ranges_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        search_space(preset("dqn", "CartPole-v1"), changes)


def test_a_logarithmic_range_may_begin_anywhere_above_zero():
    (rate,) = (
        one
        for one in search_space(preset("dqn", "CartPole-v1"), {"algorithm.learning_rate.start": (1e-30, 0.1)})
        if one.path == "algorithm.learning_rate.start"
    )
    assert (rate.low, rate.high) == (1e-30, 0.1)


WORKERS = {"env__num_envs": 4, "distributed__runtime": "local", "distributed__num_workers": 4}
LIMIT, SCHEDULE = "env.max_episode_steps", {"algorithm__tau": "linear(0.1, 0.01)"}


@pytest.mark.parametrize(
    ("settings", "path", "ends", "message"),
    [
        ({}, "algorithm.tau", (0.001, 2), r"space.algorithm.tau is 0.001 to 2, but .*tau is 2.0; it must lie in \[0"),
        (SCHEDULE, "algorithm.tau.end", (0.01, 3), r"space.algorithm.tau.end is .*tau is .*; it must lie in \[0, 1\]"),
        (SCHEDULE, "algorithm.tau.fraction", (0.1, 1.5), r"fraction 1.5; it must lie in \(0, 1\]"),
        ({LIMIT: 100}, LIMIT, (16, 200), "returns of .*=16 and of .*=100 cannot be compared; give env.max_"),
        ({LIMIT: 64}, LIMIT, (64, 130), "returns of .*=128 and of .*=64 cannot be compared"),
    ],
)
def test_a_range_of_what_its_setting_cannot_be_or_of_other_tasks_is_refused(settings, path, ends, message):
    """A trial of each tau above 1 was a failure, and the shortest episodes would have won."""
    config = config_from_mapping(ExperimentConfig, settings, base=preset("sac", "Pendulum-v1"))
    space = [one for one in search_space(config, {path: ends}) if one.path == path]
    with pytest.raises(ConfigError, match=message):
        require_comparable(config, space)


@pytest.mark.parametrize(
    ("settings", "path", "ends"), [(WORKERS, "env.num_envs", (1, 4)), ({}, "algorithm.unroll_length", (1, 1 << 21))]
)
def test_a_range_that_may_fit_other_draws_is_searched(settings, path, ends):
    """One lane cannot be shared by four workers, and so long an unroll is beyond the env steps of this run."""
    config = config_from_mapping(ExperimentConfig, settings, base=preset("sac", "Pendulum-v1"))
    (one,) = (one for one in search_space(config, {path: ends}) if one.path == path)
    with pytest.raises(ConfigError):
        [with_values(config, {path: end}) for end in one.ends]
    require_comparable(config, [one])
