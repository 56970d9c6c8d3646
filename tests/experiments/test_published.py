"""Tests of `palaestra verify`: published rows, trained again."""

import json
import os
import signal
from dataclasses import replace

import pytest

from benchmarks.learning import queue
from benchmarks.learning.rows import ROWS, Row
from palaestra.core import ConfigError
from palaestra.envs import decided
from palaestra.experiments import load_config, machine_kind, published_rows, train_published, verify
from palaestra.experiments.published import PublishedRow
from palaestra.training import Callback, StoppedError
from tests.cli.parts import exit_code, output

ROW = Row("ppo", "CartPole-v1", 256, seeds=2)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A row of two short seeds, written by the queue of the benchmark."""
    folder = tmp_path_factory.mktemp("published")
    origin = {"command": "", "date": "", "versions": {}, "hardware": {}, "revision": "abc"}
    for seed in (0, 1):
        made = train_published(ROW.algorithm, ROW.env, seed, folder / "runs", trainer__total_env_steps=ROW.env_steps)
        queue.add(folder, queue.Job(ROW, seed), made, origin)
    return folder


@pytest.fixture
def changed(results, tmp_path):
    """Writes the row again, every seed changed by a function."""

    def change(function):
        record = json.loads((results / f"{ROW.name}.json").read_text())
        for seed in record["seeds"]:
            function(seed)
        (tmp_path / f"{ROW.name}.json").write_text(json.dumps(record))
        return tmp_path

    return change


@pytest.mark.slow
def test_a_row_of_other_settings_is_trained_with_them(tmp_path):
    """Settings of whole parts, `env` and `algorithm`, as results keep them."""
    row = ROWS["ppo_Recall_64-steps-LSTM"]
    settings = json.loads(json.dumps(dict(row.settings)))
    settings["algorithm"] |= {"unroll_length": 8, "mini_batch_length": 8}
    made = train_published(row.algorithm, row.env, 0, tmp_path, **settings, trainer__total_env_steps=64)
    (config,) = tmp_path.glob("*/config.yaml")
    assert load_config(config).env.kwargs == {"num_cues": 4, "delay": 64}
    assert 0 <= made["final"]["last"]["return_mean"] <= 1
    queue.add(tmp_path, queue.Job(row, 0), made, {"command": "", "revision": "abc"})
    (found,) = published_rows(tmp_path).values()
    assert found.settings["env"]["kwargs"] == {"num_cues": 4, "delay": 64}
    assert found.settings["trainer__total_env_steps"] == row.env_steps


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits(results, capsys):
    found = verify(ROW.name, seeds=[1], results=results)
    assert (found.verdict, found.ok, found.seeds[1]["bits"]) == ("same bits", True, "same")
    assert exit_code("verify", ROW.name, "--seeds", "0", "--results", str(results)) == 0
    said = output(capsys)
    assert "seed 0 has been trained" in said
    assert f"{ROW.name} verified: the weights are the published ones, bit for bit" in said


@pytest.mark.slow
def test_a_row_of_many_agents_has_a_hash_for_each_policy(tmp_path):
    row = Row("dqn", "palaestra.multiagent:Meeting", 200, seeds=1, settings={"agents": {"sharing": "separate"}})
    made = train_published(row.algorithm, row.env, 0, tmp_path, **row.settings, trainer__total_env_steps=row.env_steps)
    assert len(set(made["final"]["last"]["weights_sha256"].values())) == 3
    queue.add(tmp_path, queue.Job(row, 0), made, {"command": "", "revision": "abc"})
    found = verify(row.name, results=tmp_path)
    assert (found.verdict, found.seeds[0]["bits"]) == ("same bits", "same")


@pytest.mark.slow
def test_a_row_that_was_trained_in_lanes_has_the_same_bits_in_a_batch(tmp_path):
    """What published HalfCheetah's rows is stepped in a batch by now."""
    pytest.importorskip("mujoco.batch", reason="needs MuJoCo 3.17 or later")
    settings = {"env__max_episode_steps": 50, "algorithm__num_epochs": 2}
    row = Row("ppo", "HalfCheetah-v5", 4096, seeds=1, settings=settings)
    own = {**settings, "trainer__total_env_steps": row.env_steps, "env__vectorization": "serial"}
    made = train_published(row.algorithm, row.env, 0, tmp_path / "runs", **own)
    (config,) = (tmp_path / "runs").glob("*/config.yaml")
    assert load_config(config).env.vectorization == "serial"
    assert decided(replace(load_config(config).env, vectorization="auto")).vectorization == "batch"
    queue.add(tmp_path, queue.Job(row, 0), made, {"command": "", "revision": "abc"})
    assert verify(row.name, results=tmp_path).verdict == "same bits"


@pytest.mark.slow
def test_other_bits_on_the_same_kind_of_machine_are_a_failure(changed, capsys):
    folder = changed(lambda seed: seed["final"]["last"].update(weights_sha256="0"))
    assert exit_code("verify", ROW.name, "--seeds", "0", "--results", str(folder), "--json") == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["verdict"], record["ok"], record["within"]) == ("other bits", False, True)


@pytest.mark.slow
def test_on_another_machine_the_interval_decides(changed, monkeypatch):
    def elsewhere(seed):
        seed["machine"]["processor"] = "another"
        seed["final"]["last"]["weights_sha256"] = "0"

    folder = changed(elsewhere)
    found = verify(ROW.name, seeds=[0], results=folder)
    assert found.verdict == "within the interval"
    assert found.seeds[0]["bits"].startswith("another kind of machine (processor: another then, ")
    assert "verified by the return alone" in str(found)


def test_an_interval_is_wider_for_fewer_seeds_and_can_fail(monkeypatch):
    """Published: 100 ± 4 over 5 seeds. One new seed: 100 ± 4 √6 = 9.80; five new ones: 100 ± 4 √2 = 5.66."""
    final = {"final": {"last": {"return_mean": 100.0}}}
    row = PublishedRow("r", "ppo", "e", {}, dict.fromkeys(range(5), final), 100.0, 4.0, "abc")
    monkeypatch.setattr("palaestra.experiments.published.published_rows", lambda results: {"r": row})
    here = {"final": {"last": {"return_mean": 94.0, "weights_sha256": "1"}}, "machine": {}}
    monkeypatch.setattr("palaestra.experiments.published.train_published", lambda *_, **__: here)
    one, five = verify("r", seeds=[0]), verify("r")
    assert one.interval == pytest.approx((90.20, 109.80), abs=0.01)
    assert five.interval == pytest.approx((94.34, 105.66), abs=0.01)
    assert [one.verdict, five.verdict] == ["within the interval", "outside the interval"]
    assert not five.ok
    assert one.seeds[0]["bits"] == "no hash was published"
    row = replace(row, half_width=None)
    assert (verify("r").verdict, verify("r").within) == ("nothing", None)
    row = replace(row, half_width=0.0)
    assert (verify("r").verdict, verify("r").within) == ("nothing", None), "what never varied has no interval"
    here["final"]["last"]["return_mean"] = 100.0
    assert verify("r").verdict == "within the interval"


class Interrupts(Callback):
    """Presses Ctrl-C once."""

    def logged(self, trainer, row):
        os.kill(os.getpid(), signal.SIGINT)


def test_training_that_is_interrupted_says_nothing(tmp_path):
    """A part of it is no receipt, neither for nor against the published numbers."""
    settings = {"trainer__total_env_steps": 4096, "trainer__log_every_steps": 512, "trainer__eval_episodes": 1}
    with pytest.raises(StoppedError, match="not whole") as stopped:
        train_published("ppo", "CartPole-v1", 0, tmp_path, **settings, run__callbacks=(f"{__name__}:Interrupts",))
    assert stopped.value.exit_code == 130


def test_rows_and_seeds_that_are_not_there_are_named(results, tmp_path, capsys):
    with pytest.raises(ConfigError, match=r"no published row 'ppo_CartPole-v2' — did you mean 'ppo_CartPole-v1'"):
        verify("ppo_CartPole-v2", results=results)
    with pytest.raises(ConfigError, match=r"has no published seed 7; there are 0, 1"):
        verify(ROW.name, seeds=[0, 7], results=results)
    with pytest.raises(ConfigError, match=r"an installed package has none. Run this in a checkout"):
        published_rows(tmp_path / "none")
    assert exit_code("verify", "--list", "--results", str(results), "--json") == 0
    assert exit_code("verify", "--results", str(results), "--json", "--list") == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == second == [{"row": ROW.name, "env_steps": 256, "seeds": 2, "hashes": True}]


def test_every_committed_row_can_be_trained_again(capsys):
    """What is committed says what it is a result of; rows of other libraries are not ours to verify."""
    rows = published_rows()
    known = {name: row for name, row in ROWS.items() if not row.peer}
    assert set(rows) <= set(known)
    assert len(rows) > 50
    for name, row in rows.items():
        budget = {"trainer__total_env_steps": known[name].env_steps, "run__compile": known[name].compile}
        expected = {**json.loads(json.dumps(known[name].settings)), **budget}
        assert (row.algorithm, row.env, row.settings) == (known[name].algorithm, known[name].env, expected)
    assert rows["ppo_CartPole-v1"].has_hashes
    assert machine_kind()["versions"]["torch"]
    assert exit_code("verify", "--list") == 0
    assert "ppo_CartPole-v1" in output(capsys)
