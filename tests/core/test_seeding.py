"""Tests of `palaestra.core.seeding`."""

import threading
from typing import get_args

import pytest
import torch

from palaestra.core import (
    ConfigError,
    RunSeeds,
    SeedName,
    episode_seed,
    seeded_initialisation,
)

NAMES = get_args(SeedName)


def lane_seeds(run_seed: int, lanes: int = 64) -> list[int]:
    return [RunSeeds(run_seed).integer("environments", lane) for lane in range(lanes)]


def test_every_environment_of_a_run_has_another_seed():
    """ALF-55."""
    seeds = lane_seeds(0, 1000)
    assert len(set(seeds)) == 1000
    assert len({episode_seed(seed, 0) for seed in seeds}) == 1000


def test_the_same_run_seed_gives_the_same_seeds_in_the_same_order():
    """ALF-56."""
    assert lane_seeds(3) == lane_seeds(3)
    # Written down, so that a change that would break the repetition of old runs does not pass unseen.
    assert lane_seeds(0, 2) == [3721064357544978052, 1972919436384569406]
    assert episode_seed(7, 0) == 837153010


def test_neighbouring_runs_share_no_lane_seed():
    """ALF-55, ALF-56: with ALF's `seed + i`, runs 0 and 1 had all but one environment in common."""
    seen = [seed for run in range(50) for seed in lane_seeds(run)]
    assert len(set(seen)) == len(seen)
    mutant = [run + lane for run in range(50) for lane in range(64)]
    assert len(set(mutant)) < len(mutant) / 20


def test_nobody_draws_from_the_stream_of_another():
    seeds = RunSeeds(0)
    numbers = {
        (name, i): torch.randint(2**62, (4,), generator=seeds.generator(name, i)) for name in NAMES for i in (0, 1)
    }
    assert len({tuple(number.tolist()) for number in numbers.values()}) == len(numbers)
    assert torch.equal(numbers["noise", 0], torch.randint(2**62, (4,), generator=RunSeeds(0).generator("noise")))


def test_episode_seeds_follow_from_lane_and_number_alone():
    """ALF-56: so a restarted worker goes on with the same stream; and every simulator accepts 31 bits."""
    seeds = [episode_seed(lane, episode) for lane in lane_seeds(0, 8) for episode in range(500)]
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 0
    assert max(seeds) < 2**31


@pytest.mark.parametrize("seed", [-1, 0.5, "1", None])
def test_impossible_run_seeds_are_refused(seed):
    with pytest.raises(ConfigError, match="it must be an integer of at least 0"):
        RunSeeds(seed)


def test_an_unknown_consumer_is_refused():
    with pytest.raises(ValueError, match=r"nothing named 'environment' draws .* did you mean 'environments'"):
        RunSeeds(0).integer("environment")  # pyright: ignore[reportArgumentType]


def test_threads_that_build_side_by_side_draw_what_they_would_alone():
    with seeded_initialisation(1):
        alone = [torch.rand(2), torch.rand(2)]
    entered = threading.Event()

    def build_other():
        with seeded_initialisation(2):
            entered.set()

    other = threading.Thread(target=build_other)
    with seeded_initialisation(1):
        drawn = [torch.rand(2)]
        other.start()
        assert not entered.wait(0.2)
        drawn.append(torch.rand(2))
    other.join()
    assert entered.is_set()
    torch.testing.assert_close(drawn, alone, rtol=0, atol=0)


def test_initialisation_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    with seeded_initialisation(5):
        first = torch.rand(3)
    with seeded_initialisation(5):
        assert torch.equal(torch.rand(3), first)
    with seeded_initialisation(6):
        assert not torch.equal(torch.rand(3), first)
    assert torch.equal(torch.random.get_rng_state(), before)
