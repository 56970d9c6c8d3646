"""Tests of `palaestra.training.health`: crafted runs that go wrong, and runs that do not."""

import json
import logging
import shutil
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from palaestra.algorithms import C51Config, FlashSACConfig, MuZeroConfig, PPOConfig, RewardScale, XQCConfig
from palaestra.training import CheckpointStore, Health
from tests.training.parts import Recorder, trainer

CALM = {
    "learning/kl": 0.01,
    "learning/entropy": 0.6,
    "learning/explained_variance": 0.4,
    "learning/gradient_norm/ppo": 1.0,
    "learning/q_mean": 5.0,
    "discounted_return_mean": 8.0,
    "return_mean": 20.0,
    "episodes": 10.0,
}

CONFIG = PPOConfig()


def warned(rows: list[dict[str, float]], *, lanes: int = 1, on_data: int = 0, **options: Any) -> list[str]:
    """The warnings that rows of metrics lead to."""
    collector = SimpleNamespace(num_lanes=lanes, updates_made=on_data)
    scale = {name: options.pop(name) for name in ("reward_scale",) if name in options}
    kept = {"config": options.pop("config", CONFIG), "bonus": options.pop("bonus", None)}
    learner = SimpleNamespace(rewards=None, **kept, **scale)
    algorithms = {options.pop("named", "policy"): learner}
    health, run = Health(**options), SimpleNamespace(algorithms=algorithms, collector=collector)
    for number, row in enumerate(rows, start=1):
        row = {"env_steps": 1000 * number, **row}
        health.logged(cast(Any, run), row)
        assert row["health/warnings"] == len(health.warnings)
    return health.warnings


def test_a_calm_run_is_not_warned_of():
    """F24: nor one whose entropy falls because it has learned."""
    assert warned([CALM] * 50) == []
    assert warned([CALM, *[CALM | {"learning/entropy": 0.001, "return_mean": 20.0 + k} for k in range(20)]]) == []


def test_the_entropy_of_a_density_may_be_below_zero():
    """F24: six continuous actions with a standard deviation of 0.14 have an entropy of -3.5 from the start."""
    narrow = CALM | {"learning/entropy": -3.5}
    assert warned([narrow, *[narrow | {"return_mean": 10.0}] * 20]) == []


def test_an_agent_whose_returns_are_all_perfect_is_not_warned_of():
    """F24: values need not explain the variance of returns that have none."""
    solved = CALM | {"return_mean": 500.0, "learning/explained_variance": -3.0}
    assert warned([CALM, *[solved] * 20]) == []
    assert len(warned([CALM, *[CALM | {"learning/explained_variance": -3.0}] * 20])) == 1


def test_returns_that_are_all_0_have_nothing_that_a_value_could_explain():
    """Issue 51: MAPPO in a game whose sum is 0 was told to raise `value_cost`, beside what is the matter."""
    bad = CALM | {"return_mean": 0.0, "learning/explained_variance": -29.0}
    assert warned([bad] * 20) == []
    (text,) = warned([bad] * 5 + [bad | {"return_mean": -1.0}] * 5)
    assert "after 8,000 env steps the explained variance is -29" in text


def test_a_run_on_data_alone_counts_updates_and_misses_no_episodes():
    bad = {"env_steps": 200_000, "learning/q_mean": 300.0, "discounted_return_mean": 8.0}
    (text,) = warned([bad] * 3, unit="updates")
    assert text.startswith("after 200,000 updates the mean action value is 3e+02")


@pytest.mark.parametrize(
    ("bad", "symptom", "cause"),
    [
        ({"learning/kl": 0.9}, "the mean KL of an update is 0.9", "lower algorithm.learning_rate; lower algorithm.num"),
        (
            {"learning/entropy": 0.001, "return_mean": 10.0},
            "the entropy fell from 0.6 to 0.001",
            "raise algorithm.entropy_cost",
        ),
        ({"learning/explained_variance": -3.0}, "the explained variance is -3", "the scale of rewards"),
        ({"learning/gradient_norm/ppo": 900.0}, "the gradient of 'ppo' is 9e+02 long, usually 1", "the loss explodes"),
        (
            {"learning/q_mean": -4000.0},
            "the mean action value is -4e+03, discounted returns are 8",
            "action values diverge. Try: lower algorithm.learning_rate; scale rewards down",
        ),
    ],
)
def test_a_symptom_that_persists_is_warned_of_once_with_likely_causes(bad, symptom, cause):
    """F24: after three rows; one bad row, or two, is noise."""
    calm = [CALM] * 10
    assert warned([*calm, CALM | bad, CALM | bad, *calm]) == []
    (text,) = warned([*calm, *[CALM | bad] * 20])
    assert text.startswith(f"after 13,000 env steps {symptom}")
    assert "Likely:" in text
    assert cause in text


def test_episodes_that_never_end_are_warned_of():
    """TS-26: after a hundred thousand steps."""
    assert warned([{"episodes": 0.0}] * 99) == []
    (text,) = warned([{"episodes": 0.0}] * 120)
    assert "no episode has ended" in text
    assert "env.max_episode_steps" in text


@pytest.mark.slow
def test_updates_that_go_much_too_far_are_noticed_in_a_real_run(caplog):
    """F24: a learning rate of 0.1 moves the policy out of every trust region."""
    health, recorder = Health(), Recorder()
    made = trainer("ppo", total=1500, log_every_steps=50, learning_rate=0.1, num_epochs=8, loggers=[recorder])
    made.callbacks.append(health)
    with caplog.at_level(logging.WARNING):
        made.run()
    assert any("the mean KL of an update" in text for text in health.warnings)
    assert "lower algorithm.learning_rate" in caplog.text
    assert recorder.rows[-1]["health/warnings"] == len(health.warnings)


def test_action_values_that_diverge_are_noticed_in_a_real_run_and_may_end_it():
    """F24: without a target network, at a learning rate of 30; optional stop."""
    health = Health(stop=True)
    made = trainer(
        "dqn",
        "discrete",
        total=4_000,
        log_every_steps=100,
        learning_rate=30.0,
        double=False,
        target_period=1,
        gamma=0.999,
        gradient_steps=20,
        callbacks=[health],
    )
    result = made.run()
    assert result.status == "stopped"
    assert any("action value" in text or "gradient" in text for text in health.warnings)
    assert result.reason == health.warnings[0]


@pytest.mark.parametrize("name", ["ppo", "dqn", "reinforce"])
def test_real_runs_that_are_fine_are_not_warned_of(name):
    """F24: no false alarms in the small runs of these tests."""
    health = Health()
    trainer(name, total=1200, log_every_steps=100, callbacks=[health]).run()
    assert health.warnings == []


@pytest.mark.slow
def test_a_resumed_run_knows_what_it_was_warned_of(tmp_path):
    """F24, F25: once for each symptom, in the whole run; its rows are those of the run that was never interrupted."""

    def made(total):
        recorder, store = Recorder(), CheckpointStore(tmp_path / "checkpoints")
        settings = {"learning_rate": 0.1, "num_epochs": 8, "loggers": [recorder], "callbacks": [Health()]}
        return trainer("ppo", total=total, log_every_steps=50, checkpoints=store, **settings), recorder

    whole, expected = made(1500)
    whole.run()
    shutil.rmtree(tmp_path / "checkpoints")
    first, before = made(700)
    first.run()
    second, after = made(1500)
    _, state = CheckpointStore(tmp_path / "checkpoints").load_newest()
    state["trainer"]["finished"] = False
    second.load_state(state)
    second.run()
    assert before.rows[-1]["health/warnings"] >= 1
    assert second.callbacks[0].warnings == whole.callbacks[0].warnings
    counts = [row["health/warnings"] for row in [*before.rows, *after.rows]]
    assert counts == [row["health/warnings"] for row in expected.rows]


def test_each_policy_of_many_agents_is_looked_at():
    """F24: its metrics are called after it; each symptom is warned of once for each policy."""
    two = {
        name.replace("/", f"/{policy}/", 1): CALM[name] for name in CALM if "/" in name for policy in ("red", "blue")
    }
    calm = {name: value for name, value in CALM.items() if "/" not in name} | two
    assert warned([calm] * 20) == []
    bad = calm | {"learning/red/kl": 0.9, "learning/blue/kl": 0.3, "learning/red/gradient_norm/ppo": 900.0}
    texts = warned([*[calm] * 10, *[bad] * 20])
    assert sorted(text.partition(" steps ")[2].partition(". ")[0] for text in texts) == [
        "the gradient of 'ppo' is 9e+02 long, usually 1 (policy 'red')",
        "the mean KL of an update is 0.3 (policy 'blue')",
        "the mean KL of an update is 0.9 (policy 'red')",
    ]


@pytest.mark.parametrize(
    ("value", "largest", "count"), [(90.0, 0.1, 0), (110.0, 0.1, 1), (390.0, 20.0, 0), (410.0, 20.0, 1)]
)
def test_values_are_too_large_beyond_a_hundred_and_beyond_twenty_times_the_returns(value, largest, count):
    """F24."""
    row = CALM | {"learning/q_mean": value, "discounted_return_mean": largest}
    assert len(warned([row] * 20)) == count


def test_values_of_other_rewards_than_are_logged_are_not_compared_with_these():
    row = CALM | {"learning/q_mean": 410.0}
    assert len(warned([row] * 20)) == 1
    assert warned([row] * 20, bonus=object()) == []


@pytest.mark.parametrize(
    ("config", "reached", "count"),
    [(C51Config(), 10.5, 1), (C51Config(), -11, 1), (C51Config(), 10, 0), (MuZeroConfig(), -201, 1), (CONFIG, 1e9, 0)],
)
def test_returns_beyond_the_range_of_values_are_warned_of(config, reached, count):
    """Wrong without a word: rewards of 900 and 1,000 are one to MuZero, whose values end at 200."""
    row = CALM | {"discounted_return_mean": reached}
    found = warned([row] * 5, config=config)
    assert len(found) == count and all("values reach from" in text for text in found)
    assert warned([row] * 5, config=config, bonus=object()) == []


def test_values_of_many_agents_are_compared_with_what_an_agent_of_their_policy_earns():
    """F24: with many agents there was no discounted return, and neither warning ever came."""
    row = {name.replace("/", "/policy/", 1): value for name, value in CALM.items() if name != "discounted_return_mean"}
    bad = row | {"learning/policy/q_mean": 410.0}
    assert warned([bad] * 5, named="walkers") == [], "nothing is known of returns"
    row = {name.replace("policy", "walkers"): value for name, value in row.items()}
    row["info/walkers/discounted_return"] = 20.0
    assert warned([row] * 5, named="walkers") == []
    (text,) = warned([row | {"learning/walkers/q_mean": 410.0}] * 5, named="walkers")
    assert "the mean action value is 4.1e+02, discounted returns are 20 (policy 'walkers')" in text
    (text,) = warned([row] * 5, config=C51Config(), named="walkers")
    assert "discounted returns are 20, and values reach from -10 to 10 (policy 'walkers')" in text
    won = {"return_mean": 0.0, "info/a/return": 300.0, "info/b/return": -300.0, "info/walkers/discounted_return": -1.0}
    assert warned([row | won | {"learning/walkers/q_mean": 410.0}] * 5, named="walkers") == []


def test_a_resumed_run_ends_again_where_the_symptom_persists():
    """It went on for ever: the symptom had been warned of. It is in the metrics once."""
    bad, stopped = CALM | {"learning/kl": 0.9}, []
    run = SimpleNamespace(
        algorithms={"policy": SimpleNamespace(config=CONFIG, rewards=None)},
        collector=SimpleNamespace(num_lanes=1),
        stop=stopped.append,
    )

    def goes_on(health: Health, rows: list[dict[str, float]]) -> Health:
        for number, row in enumerate(rows, start=1):
            health.logged(cast(Any, run), row := {"env_steps": 1000 * number, **row})
            assert row["health/warnings"] == len(health.warnings)
        resumed = Health(stop=True)
        resumed.load_state(json.loads(json.dumps(health.state())))
        return resumed

    health = goes_on(Health(stop=True), [bad] * 3)
    assert len(stopped) == 1
    health = goes_on(health, [bad, bad, CALM, bad, bad])
    assert len(stopped) == 1, "it does not persist"
    health = goes_on(health, [CALM, bad, bad, bad])
    assert len(stopped) == 2 and stopped[1].startswith("after 4,000 env steps the mean KL")
    assert len(health.warnings) == 1


@pytest.mark.parametrize(
    ("config", "gamma", "reached", "advice"),
    [
        (XQCConfig(gamma=0.9999), 0.9999, -10_000.0, "lower algorithm.gamma"),  # of rewards of 1 the bound is 1,000
        (FlashSACConfig(min_return=0.0), 0.99, -90.0, "algorithm.min_return and algorithm.max_return one size"),
        (XQCConfig(), 0.99, -90.0, None),
    ],
)
def test_returns_beyond_the_range_of_scaled_values_are_warned_of(config, gamma, reached, advice):
    scale = RewardScale(5.0)
    rows = [CALM | {"discounted_return_mean": reached}] * 5
    assert warned(rows, config=config, reward_scale=scale) == []  # no rewards, no scale
    scale.merge(-torch.ones(8), gamma)
    found = warned(rows, config=config, reward_scale=scale)
    assert len(found) == (advice is not None) and all(advice in text for text in found)


def test_the_first_reward_of_a_sparse_task_is_no_explosion():
    """Before it, there is nothing that a gradient could come of."""
    still = CALM | {"return_mean": 0.0, "learning/gradient_norm/ppo": 1e-7}
    found = [still | {"return_mean": 0.1 * k, "learning/gradient_norm/ppo": 1.0} for k in range(1, 20)]
    assert warned([*[still] * 20, *found]) == []


@pytest.mark.parametrize(("lanes", "on_data", "count"), [(1, 0, 1), (128, 0, 0), (1, 90_000, 0)])
def test_episodes_have_as_long_as_their_environments_need(lanes, on_data, count):
    """Of 128, each has made a thousand steps by then; updates on data end no episode."""
    row = CALM | {"env_steps": 128_000, "episodes": 0.0}
    assert len(warned([row], lanes=lanes, on_data=on_data)) == count


def test_five_gradients_are_enough_to_know_what_is_usual():
    """Three long ones after them are warned of; after four, the first long one still counts as usual."""
    bad = CALM | {"learning/gradient_norm/ppo": 900.0}
    assert len(warned([*[CALM] * 5, *[bad] * 3])) == 1
    assert warned([*[CALM] * 4, *[bad] * 3]) == []
