"""Worlds that are tables: what is best in them, and that the environment is the table."""

import itertools

import numpy as np
import pytest
import torch

from benchmarks.learning.tabular import ALGORITHMS, missed, page, settings
from benchmarks.learning.worlds import WORLDS, Table, World, bandit, chain, maze, tiger
from palaestra.algorithms import ALGORITHMS as KNOWN


@pytest.mark.parametrize("world", [chain(4), bandit(2, 3, 1), tiger(2, 0.95)], ids=["chain", "bandit", "tiger"])
def test_the_best_return_is_that_of_the_best_of_all_policies(world: Table):
    """Value iteration beside every deterministic policy, each by a linear system."""
    count, actions = world.reward.shape
    policies = itertools.product(range(actions), repeat=min(count, 5))
    tried = [world.value_of(np.array([*policy, *[0] * (count - len(policy))])) for policy in policies]
    best = world.value_of(world.values().argmax(-1))
    assert best == pytest.approx(world.best)
    assert max(tried) <= best + 1e-9
    if count <= 5:
        assert max(tried) == pytest.approx(best)


def test_a_mutant_of_the_solver_would_be_found():
    """In a chain the far reward is the best, and a policy that takes the near one misses nearly all."""
    world = WORLDS["chain-4"]
    assert missed("chain-4", world.best) == 0 and missed("chain-4", world.random) == pytest.approx(1.0)
    assert missed("chain-4", world.value_of(np.zeros(4, int))) > 0.5
    assert (world.values().argmax(-1) == 1).all()


def test_with_two_doors_one_listens_until_one_is_sure_enough():
    """Belief 1/2: listening; after signs of one side only: the other door."""
    world = tiger(2, 0.85)
    best = world.values().argmax(-1)
    for belief, action in zip(world.features, best, strict=True):
        sure = belief.max()
        assert action == 0 if sure < 0.8 else action == 0 or belief[action - 1] == belief.min()
    assert {0, 1, 2} == set(best.tolist())


def test_there_are_twenty_and_probabilities_are_some():
    assert len(WORLDS) == 20
    for world in WORLDS.values():
        rows = world.next_probs.sum(-1)
        assert (world.next_probs >= 0).all() and (rows <= 1 + 1e-9).all() and (rows < 1).any()
        assert world.best - world.random == pytest.approx(2.5) and abs(world.best) < 8
    assert maze(4, 1).features.shape == maze(4, 1).next_probs.shape[:1] * 2


def test_episodes_of_the_environment_have_the_return_that_the_table_says():
    """The best policy of a maze, in 400 lanes."""
    env = World(400, name="maze-4-1", lane_seeds=list(range(400)))
    best = torch.from_numpy(env.table.values().argmax(-1))
    step, returns, over = env.reset(), torch.zeros(400), torch.zeros(400, dtype=torch.bool)
    while not over.all():
        place = step.observation.argmax(-1)
        step = env.step(best[place])
        returns += step.reward * ~over
        over |= step.last
    error = returns.std() / 20
    assert abs(float(returns.mean()) - env.table.best) < 4 * float(error)


def test_every_algorithm_has_settings_of_its_own_fields():
    for name in ALGORITHMS:
        fields = KNOWN[name].config_class.__dataclass_fields__
        assert set(settings(name)["algorithm"]) <= set(fields), name


def test_the_page_says_what_was_not_run():
    record = {
        "returns": {"chain-4": {"dqn": {"0": WORLDS["chain-4"].best, "1": WORLDS["chain-4"].random}}},
        "command": "x", "date": "2026-01-01", "hardware": {"cpu": "c", "cores": 2, "system": "s"},
        "versions": {}, "revision": None,
    }  # fmt: skip
    text = page(record)
    assert "0 of the 1 cells that were run are within 2%; there are 320. The 1 that miss more: 1 of dqn." in text
    assert text.count("not run") == 319 and "100.0%" in text
