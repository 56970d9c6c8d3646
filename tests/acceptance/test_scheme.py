"""Acceptance scenario 3 with the real trainer: each stored step is used exactly as often as the plan says."""

import itertools
from collections import Counter

import pytest

from palaestra import Collector, Trainer, TrainerConfig
from palaestra.core import ConfigError, Offline, OnPolicy, Plan, Replay
from palaestra.rollout import OfflineData
from tests.acceptance.parts import CountingAlgorithm
from tests.rollout.worlds import Numbered
from tests.training.parts import rows_trained

LENGTHS = [7, 3, 100, 11]


def trained(plan: Plan, iterations: int, lengths: list[int] = LENGTHS) -> tuple[Trainer, CountingAlgorithm, Numbered]:
    """A trainer after so many iterations on steps that are numbered; lane b's are 1000 b, 1000 b + 1, ..."""
    env, algorithm = Numbered(lengths), CountingAlgorithm(plan)
    made = Trainer(Collector.of(env, algorithm), algorithm, TrainerConfig(total_env_steps=10**6))
    for _ in range(iterations):
        made.train_iter()
    return made, algorithm, env


def stored(rows: int, lanes: int = 4) -> set[int]:
    """The numbers of the rows that have an action after so many rows of each lane."""
    return {1000 * lane + row for lane in range(lanes) for row in range(rows)}


def in_order(algorithm: CountingAlgorithm) -> bool:
    """Whether neighbours in a sequence are neighbours in time, in every minibatch."""
    sequences = (column for seen in algorithm.seen for column in seen.flatten(1).T.tolist())
    return all(after == before + 1 for column in sequences for before, after in itertools.pairwise(column))


def test_s3_one_gradient_step_on_each_unroll_and_every_row_is_used_once():
    """Scenario 3: ALF-02, ALF-05, ALF-07, ALF-11: A2C; at the end of each iteration the counters agree."""
    made, algorithm, env = trained(OnPolicy(unroll_length=6), 0)
    for iteration in range(1, 6):
        made.train_iter()
        assert algorithm.optimizer_steps == made.algorithm.num_gradient_steps == iteration
        assert algorithm.visits == dict.fromkeys(stored(6 * iteration), 1)
        assert rows_trained(made) == made.collector.env_steps == sum(map(len, env.actions))


@pytest.mark.parametrize(
    ("unroll", "lanes", "size", "length", "steps"),
    [
        (8, 4, None, None, 1),  # as many sequences as environments, the whole unroll
        (8, 4, 2, None, 2),
        (8, 4, 2, 4, 4),
        (9, 4, 2, 4, 4),  # the ninth row is cut off
        (33, 8, 32, 1, 8),  # 264 rows: 8 minibatches of 33
        (10, 4, 9, 1, 4),  # 40 rows in 9s: 4 minibatches of 10
        (5, 4, 100, 1, 1),  # a minibatch larger than what there is
    ],
)
def test_s3_the_whole_unroll_is_gone_through_so_many_times(unroll, lanes, size, length, steps):
    """Scenario 3: ALF-08, ALF-10: U times ceil(N / mbs) steps, every row U times, in time order, shuffled anew."""
    plan = OnPolicy(unroll_length=unroll, num_epochs=3, mini_batch_size=size, mini_batch_length=length)
    made, algorithm, _ = trained(plan, 2, [100] * lanes)
    used = unroll // (length or unroll) * (length or unroll)
    expected = {1000 * lane + start + row for lane in range(lanes) for start in (0, unroll) for row in range(used)}
    assert algorithm.visits == dict.fromkeys(expected, 3)
    assert algorithm.optimizer_steps == 2 * 3 * steps
    assert rows_trained(made) == 2 * 3 * used * lanes  # no episode ends here
    if length != 1:
        assert in_order(algorithm)
    if steps > 1:
        orders = [
            [seen.flatten().tolist() for seen in algorithm.seen[k : k + steps]] for k in range(0, 6 * steps, steps)
        ]
        assert all(a != b for a, b in itertools.combinations(orders[:3], 2))
    assert max(seen.numel() for seen in algorithm.seen) - min(seen.numel() for seen in algorithm.seen) <= (
        length or unroll
    )


@pytest.mark.parametrize("length", [2.5, 0.5, 0.3])
def test_s3_a_fractional_unroll_length_uses_every_row_once(length):
    """Scenario 3: ALF-04, ALF-05, ALF-10: an iteration without a new row learns nothing, and nothing twice."""
    made, algorithm, _ = trained(OnPolicy(unroll_length=length), 40)
    assert algorithm.visits == dict.fromkeys(stored(int(40 * length + 1e-9)), 1)
    assert algorithm.optimizer_steps == made.algorithm.policy_version <= 40


def test_s3_what_is_not_cleared_is_gone_through_again_until_it_falls_out():
    """Scenario 3: ALF-08: `clear=False` keeps the newest rows, and each iteration uses every one of them U times."""
    plan = OnPolicy(unroll_length=5, num_epochs=2, mini_batch_size=4, mini_batch_length=1, clear=False, capacity=4 * 15)
    made, algorithm, _ = trained(plan, 0)
    for iteration in range(1, 7):
        algorithm.seen.clear()
        made.train_iter()
        kept = range(max(0, 5 * iteration - 15), 5 * iteration)
        assert algorithm.visits == dict.fromkeys({1000 * lane + row for lane in range(4) for row in kept}, 2)


@pytest.mark.parametrize("settings", [{"clear": False}, {"capacity": 100}])
def test_s3_keeping_and_capacity_belong_together(settings):
    with pytest.raises(ConfigError, match="clear=False needs a capacity"):
        OnPolicy(unroll_length=5, **settings)


@pytest.mark.parametrize("length", [1, 4])
def test_s3_a_sample_is_drawn_once_an_iteration_and_divided(length):
    """Scenario 3: ALF-06, ALF-09, ALF-11: exactly U steps of so many rows; env steps ≪ rows trained on."""
    plan = Replay(unroll_length=1, gradient_steps=5, mini_batch_size=8, mini_batch_length=length, learning_starts=40)
    made, algorithm, _ = trained(plan, 0, [100] * 4)
    before = []
    for _ in range(60):
        steps = algorithm.optimizer_steps
        made.train_iter()
        if algorithm.optimizer_steps == steps:
            before.append(made.collector.env_steps)
        else:
            assert algorithm.optimizer_steps == steps + 5
    assert before[-1] == 40  # ALF-10: nothing is trained before
    assert sum(algorithm.visits.values()) == 5 * 8 * length * (60 - len(before)) == rows_trained(made)
    assert rows_trained(made) > 5 * made.collector.env_steps
    assert all(seen.shape[:2] == ((8, 1) if length == 1 else (length, 8)) for seen in algorithm.seen)
    if length > 1:
        assert in_order(algorithm)
    assert set(algorithm.visits) <= stored(60)


def test_s3_an_offline_run_learns_from_what_is_there_and_counts_updates():
    """Scenario 3: no unroll, no env step; the clock of budget, schedules and metrics is the number of updates."""
    collector = Collector.of(Numbered(LENGTHS), CountingAlgorithm(Replay(unroll_length=1, capacity=200)))
    collector.collect(n_step=120)
    rows = len(collector.buffer)
    algorithm = CountingAlgorithm(Offline(gradient_steps=3, mini_batch_size=16))
    made = Trainer(OfflineData(collector.buffer), algorithm, TrainerConfig(total_env_steps=50))
    result = made.run()
    assert (result.status, result.env_steps) == ("done", 50)
    assert algorithm.optimizer_steps == 150
    assert rows_trained(made) == 150 * 16
    assert len(collector.buffer) == rows
    visits = Counter(algorithm.visits.values())
    assert min(visits) > 0
    assert made.progress == 1.0
