"""Training of ports in `examples/inventory`: here, on hosts, and how it is compared with the rules."""

import numpy as np
import pytest

from examples.inventory import hosts, training
from examples.inventory.report import best_rule, margin, markdown
from examples.inventory.rules import shortage
from examples.inventory.topology import FOUR_PORTS
from palaestra.runtime import LocalRuntime


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared", pytest.param("separate", marks=pytest.mark.slow)])
def test_ports_train_and_are_measured_on_the_held_out_episodes(kind, monkeypatch):
    """MARO-18: one policy for all ports, or one for each, by the mapping alone."""
    monkeypatch.setattr(training, "NUM_WORLDS", 4)
    seeds = [50_001, 50_002]
    run = training.train(kind, 0, held_out=seeds, env_steps=300)
    assert len(run["share_lost"]) == 2
    assert run["curve"][-1]["env_steps"] >= 300
    assert run["curve"][-1]["share_lost"] == pytest.approx(np.mean(run["share_lost"]))
    rule = training.reading().rule
    lost, ordered = shortage(rule, FOUR_PORTS, seeds[0])
    assert abs(run["share_lost"][0] - lost / ordered) < 0.05  # it began as the rule, and has learned for a step


def test_policies_before_any_update_lose_what_the_rule_loses():
    parts, seen = training.build("shared", 0, num_envs=1), training.reading()
    for parameter in parts.algorithms["ports"].policy.parameters():
        parameter.data.zero_()
    policies = {name: algorithm.policy for name, algorithm in parts.algorithms.items()}
    lost, ordered = shortage(seen.rule, FOUR_PORTS, 50_003)
    assert training.lost_with(policies, parts.policy_specs, [50_003], seen) == [lost / ordered]


@pytest.mark.slow
def test_hosts_learn_the_same_weights_and_workers_follow_experience():
    """MARO-26, MARO-28, MARO-29: a host for each port's policy, and gradient workers by experience."""
    done = hosts.compare(LocalRuntime, num_workers=6, num_envs=2, env_steps=500)
    assert done["hosts_difference"] == 0.0
    assert done["workers_difference"] < 1e-4
    for allocation in done["workers_by_policy"].values():
        assert sorted({worker for workers in allocation.values() for worker in workers}) == list(range(6))
        assert all(allocation.values())


def test_the_margin_is_beside_a_rule_and_over_seeds():
    lost = {"bad": [0.3, 0.5], "good": [0.2, 0.2], "bound": [0.1, 0.1]}
    runs = [{"share_lost": [0.1, 0.2]}, {"share_lost": [0.1, 0.1]}, {"share_lost": [0.15, 0.15]}]
    assert best_rule(lost | {"rolling plan": [0.15, 0.15]}) == "good"
    gain = margin(lost, runs, "good")
    assert gain.mean == pytest.approx((0.05 + 0.1 + 0.05) / 3)
    assert gain.half_width == pytest.approx(4.3027 * np.std([0.05, 0.1, 0.05], ddof=1) / np.sqrt(3), rel=1e-4)
    assert gain.sure == (gain.mean > gain.half_width)
    assert not margin(lost, [{"share_lost": [0.2, 0.25]}] * 2, "good").sure


def test_the_table_is_sorted_and_names_the_rival():
    lost = {"good": [0.2, 0.2], "bad": [0.3, 0.5], "bound": [0.1, 0.1]}
    runs = [{"share_lost": [0.1, 0.2], "wall_s": 60.0}, {"share_lost": [0.1, 0.1], "wall_s": 120.0}]
    names = [line.split("|")[1].strip() for line in markdown(lost, {"shared": runs}).splitlines()[2:]]
    assert names == ["bad", "good", "PPO, shared policies, 2 seeds", "bound"]
