"""Tests of `palaestra.distributed.TrainerAllocator`."""

import pytest

from palaestra.core import ConfigError
from palaestra.distributed import GradientWorkers, TrainerAllocator
from tests.distributed.parts import local, several


def sizes(allocation):
    return {name: len(workers) for name, workers in allocation.items()}


def test_workers_follow_experience_when_it_reverses():
    """MARO-28: 1:3 over four workers, then 3:1."""
    allocator = TrainerAllocator("by-experience", 4, ["a", "b"])
    assert sizes(allocator.allocate({"a": 100, "b": 300})) == {"a": 1, "b": 3}
    assert sizes(allocator.allocate({"a": 300, "b": 100})) == {"a": 3, "b": 1}


def test_workers_follow_the_number_of_agents_or_of_policies():
    """MARO-28."""
    by_agent = TrainerAllocator("by-agent", 6, ["a", "b"], agents={"a": 10, "b": 20})
    assert sizes(by_agent.allocate({"a": 1, "b": 0})) == {"a": 2, "b": 4}
    assert sizes(TrainerAllocator("by-policy", 6, ["a", "b", "c"]).allocate({"a": 9})) == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize(
    ("agents", "quotas"), [((24, 13, 13), (3, 1, 1)), ((13, 13, 24), (1, 1, 3)), ((31, 32, 37), (1, 2, 2))]
)
def test_a_worker_left_over_goes_where_most_was_rounded_off_and_one_too_many_comes_from_there(agents, quotas):
    """MARO-28: shares of 2.4, 1.3 and 1.3 are rounded to 4 of 5 workers, those of 1.55, 1.6 and 1.85 to 6."""
    allocator = TrainerAllocator("by-agent", 5, [*"abc"], agents=dict(zip("abc", agents, strict=True)))
    assert tuple(sizes(allocator.allocate()).values()) == quotas


@pytest.mark.parametrize("workers", range(1, 9))
@pytest.mark.parametrize("experience", [{}, {"a": 1}, {"a": 1, "b": 10_000, "c": 1}, {"a": 5, "b": 5, "c": 5, "d": 5}])
def test_every_policy_has_a_worker_and_every_worker_a_policy(workers, experience):
    """MARO-28: quotas of at least one, and nobody idle; policies share where workers are fewer than they."""
    policies = ["a", "b", "c", "d"]
    allocation = TrainerAllocator("by-experience", workers, policies).allocate(experience)
    assert all(allocation[name] for name in policies)
    assert all(len(set(mine)) == len(mine) for mine in allocation.values())
    assert {worker for mine in allocation.values() for worker in mine} == set(range(workers))
    assert sum(sizes(allocation).values()) == max(workers, len(policies))


def test_without_experience_all_policies_are_alike():
    assert sizes(TrainerAllocator("by-experience", 4, ["a", "b"]).allocate()) == {"a": 2, "b": 2}


def test_policies_that_learn_from_as_much_keep_their_workers():
    """MARO-28: a window is cut after a round of all, and not after ten updates of three policies."""
    algorithms, _ = several("ppo", "ppo", "ppo")
    with local() as runtime:
        allocator = TrainerAllocator("by-experience", 4, list(algorithms))
        workers = GradientWorkers(algorithms, runtime, 4, allocator=allocator)
        begun = workers.allocation
        for name in [*algorithms] * 20:
            workers.learned(name, 12)
            assert workers.allocation == begun


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match="did you mean 'by-agent'"):
        TrainerAllocator("by-agents", 2, ["a"])
    with pytest.raises(ConfigError, match="0 gradient workers cannot be shared among 1 policies"):
        TrainerAllocator("by-policy", 0, ["a"])
    with pytest.raises(ConfigError, match=r"number of agents of every policy.*'b'"):
        TrainerAllocator("by-agent", 2, ["a", "b"], agents={"a": 1})
