"""The window, the check that both sides did the same work, and the report of the speed benchmark."""

import contextlib
import itertools
import json
from pathlib import Path

import gymnasium
import pytest
import torch

from benchmarks.record import ROOT, provenance, publish
from benchmarks.speed import (
    compare,
    distributed,
    minatar,
    peak,
    peer_cleanrl,
    peers,
    revision,
    revisions,
    roofline,
    start_up,
)
from benchmarks.speed.window import Window
from benchmarks.speed.workloads import WORKLOADS

ORIGIN = provenance("python -m benchmarks.speed ppo")


class Machine:
    """One iteration a second; the first `waiting` iterations make no optimizer step."""

    def __init__(self, waiting):
        self.now, self.waiting = 0.0, waiting
        self.window = Window(self.counters, warmup_s=3.0, window_s=5.0, clock=lambda: self.now)

    def counters(self):
        iterations = int(self.now)
        return {
            "env_steps": 1024 * iterations,
            "updates": 16 * max(0, iterations - self.waiting),
            "iterations": iterations,
        }

    def run(self):
        while not self.window.tick():
            self.now += 1.0
        return self.window.result


@pytest.mark.parametrize("waiting", [0, 10])
def test_the_window_begins_a_warm_up_after_the_first_optimizer_step(waiting):
    machine = Machine(waiting)
    assert machine.run() == {
        "window_s": 5.0,
        "env_steps": 5 * 1024,
        "updates": 80,
        "iterations": 5,
        "env_steps_per_s": 1024.0,
        "updates_per_s": 16.0,
    }
    assert machine.now == waiting + 1 + 3 + 5


def result(speed, **changes):
    work = {"env_steps": 10_240, "updates": 160, "iterations": 10, "threads": 1}
    return {
        "env_steps_per_s": speed,
        "updates_per_s": speed / 64,
        "first_update_extra_s": speed / 1000,
        **work,
        **changes,
    }


@pytest.mark.parametrize(("variant", "steps"), [("peer", 10_240), ("eager", 10_240), ("eager", 10_000)])
def test_the_same_work_passes(variant, steps):
    assert compare.other_work(WORKLOADS["ppo"], variant, result(1.0, env_steps=steps)) is None


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("eager", {"updates": 150}),
        ("peer", {"updates": 170}),
        ("peer", {"env_steps": 10_000}),
        ("eager", {"env_steps": 11_000}),
        ("compiled", {"threads": 2}),
    ],
)
def test_other_work_is_measured_once_more_and_then_ends_the_benchmark(variant, changes, monkeypatch):
    answers = {name: itertools.repeat(result(1.0)) for name in WORKLOADS["ppo"].variants}
    monkeypatch.setattr(compare, "run_once", lambda _, name, plan: next(answers[name]))
    plan = compare.Plan(1, 0.0, 0.0, {}, "")
    answers[variant] = iter([result(1.0, **changes), result(2.0)])
    assert compare.run_rounds("ppo", plan)[variant] == [result(2.0)]
    answers[variant] = itertools.repeat(result(1.0, **changes))
    with pytest.raises(SystemExit, match=f"{variant} did other work"):
        compare.run_rounds("ppo", plan)


def test_the_report_has_the_median_ratio_of_the_rounds_and_whether_each_bar_is_met():
    runs = {
        "eager": [result(s) for s in (31_000.0, 14_500.0, 32_000.0)],
        "peer": [result(s) for s in (10_000.0, 5_000.0, 10_000.0)],
        "compiled": [result(s) for s in (24_000.0, 13_000.0, 24_000.0)],
        "cleanrl": [result(s) for s in (4_000.0, 2_600.0, 4_000.0)],
        "torchrl": [result(s) for s in (4_000.0, 4_000.0, 4_000.0)],
        "tianshou": [result(s) for s in (4_000.0, 4_000.0, 4_000.0)],
        "sample_factory": [result(s) for s in (4_000.0, 4_000.0, 4_000.0)],
    }
    record = compare.make_record("ppo", runs, ORIGIN, {"stable-baselines3": "2.9.2"})
    summary = record["summary"]
    assert summary["ratios"]["eager"]["median"] == 3.1
    assert summary["bars"] == {"eager": {"least": 3.0, "met": True}, "compiled": {"least": 5.0, "met": False}}
    assert summary["compile_s"] == {"cold": 24.0, "cached": 18.5, "met": False}
    text = compare.markdown(record)
    assert "it took 24.0 s, 18.5 s from its cache (bar 3: **not met**)." in text
    assert "| Palaestra | 31,000 | 14,500 to 32,000 | 3.10 | 3.10, 2.90, 3.20 | 3.0 | yes |" in text
    assert "| Palaestra, `--compile` | 24,000 | 13,000 to 24,000 | 2.40 | 2.40, 2.60, 2.40 | 5.0 | **no** |" in text
    assert "| CleanRL | 4,000 | 2,600 to 4,000 | 0.40 |" in text
    assert (
        "Beside CleanRL: Palaestra 7.75 (5.58 to 8.00), Palaestra, `--compile` 6.00 (5.00 to 6.00; bar 5.0: met)."
        in text
    )
    assert "`--compile` 6.00 (3.25 to 6.00; bar 12.0: **not met**)." in text
    assert "stable-baselines3 2.9.2" in text
    assert ORIGIN["command"] in text


def test_one_round_has_no_cached_compilation():
    runs = {variant: [result(1000.0)] for variant in WORKLOADS["ppo"].variants}
    record = compare.make_record("ppo", runs, ORIGIN, {})
    assert record["summary"]["compile_s"] == {"cold": 1.0, "cached": None, "met": False}
    assert "it took 1.0 s." in compare.markdown(record)


def test_the_start_up_report_compares_within_rounds():
    seconds = {"import torch": [1.0, 2.0], "import palaestra": [1.4, 2.6], "first step": [3.0, 6.0]}
    summary = start_up.evaluate(seconds)
    assert summary["ratio"]["median"] == pytest.approx(1.35)
    assert [bar["met"] for bar in summary["bars"].values()] == [True, False]
    assert "| 1.35 (1.40, 1.30) | ratio below 1.5 | yes |" in start_up.markdown({**ORIGIN, "summary": summary})


def test_the_table_of_minatar_has_the_ratios_of_the_rounds_and_its_bar():
    def sides(pqn, dqn):
        return {"pqn": [{"env_steps_per_s": s} for s in pqn], "dqn": [{"env_steps_per_s": s} for s in dqn]}

    runs = {"Breakout": sides([9000.0, 12000.0, 4000.0], [1500.0, 1500.0, 1000.0]), "Other": sides([4900.0], [1000.0])}
    text = minatar.markdown({**ORIGIN, "start": 100_000, "runs": runs})
    row = "| Breakout | 9,000 (4,000 to 12,000) | 1,500 (1,000 to 1,500) | 6.0 (4.0 to 8.0) | 5 (met) |"
    assert row in text
    assert "| 4.9 (4.9 to 4.9) | 5 (**not met**) |" in text


def test_a_peer_environment_with_other_versions_is_refused(tmp_path, monkeypatch):
    python = tmp_path / "sb3" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    found = {**peers.PEERS["sb3"].packages, **peers.versions(peers.SHARED)}
    monkeypatch.setattr(peers, "installed", lambda *_: found)
    assert peers.installed_peer(tmp_path, "sb3") == (python, found)
    monkeypatch.setattr(peers, "installed", lambda *_: {**found, "torch": "1.0.0"})
    with pytest.raises(SystemExit, match=r"torch 1\.0\.0 instead of"):
        peers.installed_peer(tmp_path, "sb3")


def test_extras_of_a_peer_are_installed_and_its_version_is_looked_at(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(peers.subprocess, "run", lambda command, check: asked.append([str(part) for part in command]))
    monkeypatch.setattr(peers, "installed", lambda _, names: dict.fromkeys(names, "1.2.3"))
    _, found = peers.environment(tmp_path, "other", {"some[extra]": "1.2.3"}, ())
    assert asked[-1][-1] == "some[extra]==1.2.3"
    assert found == {"some": "1.2.3"}


def test_tasks_that_are_left_out_keep_their_rows(tmp_path):
    rows = [{"task": task, "value": 1.0} for task in ("sleep", "rllib", "cheetah", "call")]
    path = tmp_path / "distributed.json"
    assert distributed.kept(path, ["rllib"]) == []
    record = {"date": "2026-11-21T10:00:00", "revision": "abc", "hardware": {"cpu": "EPYC"}, "rows": rows}
    path.write_text(json.dumps(record))
    left = distributed.kept(path, ["rllib"])
    assert [row["task"] for row in left] == ["cheetah", "call"]
    assert {(row["date"], row["revision"], row["cpu"]) for row in left} == {("2026-11-21", "abc", "EPYC")}


def test_peers_are_installed_outside_the_tree(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert peers.default_directory() == tmp_path / "palaestra" / "peers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert peers.default_directory() == Path.home() / ".cache" / "palaestra" / "peers"


def test_a_result_elsewhere_leaves_the_documentation_as_it_is(tmp_path):
    page = ROOT / "docs/concepts/faults.md"
    before = page.read_text()
    publish(tmp_path / "faults.md", "| other |", "docs/concepts/faults.md")
    assert (tmp_path / "faults.md").read_text() == "| other |\n"
    assert page.read_text() == before


@pytest.mark.slow
def test_two_checkouts_measure_in_turns_and_ratios_are_taken_within_rounds():
    speeds = revisions.run("step serial CartPole-v1 2", {"old": ROOT, "new": ROOT}, 2, 0.02, "wall")
    assert {name: list(map(len, rounds)) for name, rounds in speeds.items()} == {"old": [1, 1], "new": [1, 1]}
    assert all(speed > 0 for rounds in speeds.values() for turns in rounds for speed in turns)
    old, new = [[10.0, 10.0, 10.0], [20.0], [10.0]], [[10.0, 10.0, 99.0], [19.0], [9.0]]
    summary = revisions.evaluate({"old": old, "new": new})
    assert summary["ratio"] == {"median": 0.95, "low": 0.9, "high": 1.0}
    assert not summary["met"]
    sides = {"revisions": {"old": "abc", "new": "def"}, "rounds": 3, "clock": "wall"}
    text = revisions.markdown({**ORIGIN, **sides, "summary": {"buffer add": summary}})
    assert "| buffer: append 8 rows | 10.0 | 10.0 | 0.950 | 0.900 to 1.000 | **no** |" in text


@pytest.mark.parametrize("workload", ["train ppo eager", "tensor 8", "step tensor 0", "buffer construct"])
def test_every_kind_of_workload_can_be_built(workload):
    try:
        revision.call_of(workload)()
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.slow
def test_the_products_of_an_iteration_are_those_that_its_layers_need():
    """DQN, minibatches of 128 rows, layers of 120 and 84: values and targets are two passes, gradients one more."""
    counts = roofline.products_of("dqn")

    def made(*shapes):
        return sum(
            count for product, count in counts.items() if product.arguments[-2:] == tuple(map(torch.Size, shapes))
        )

    assert made((128, 120), (120, 84)) == 2  # forward
    assert made((84, 128), (128, 120)) + made((120, 128), (128, 84)) == 1  # the layer's weight
    assert made((128, 84), (84, 120)) == 1  # its input
    assert all(product.flops > 0 and product.best_s() > 0 for product in counts)


def test_a_peer_does_not_normalise_what_ours_leaves_as_it_is():
    env, wrappers = gymnasium.make("Pendulum-v1"), gymnasium.wrappers
    with contextlib.ExitStack() as stack:
        peer_cleanrl.without_normalization(stack)
        wrapped = wrappers.TransformObservation(wrappers.NormalizeObservation(env), lambda observation: observation)
        assert wrappers.TransformReward(wrappers.NormalizeReward(wrapped, gamma=0.9), float) is env
    assert isinstance(wrappers.NormalizeObservation(env), gymnasium.Wrapper)


def test_peak_memory_says_after_how_many_steps():
    text = peak.markdown(json.loads((peak.RESULTS / "peak.json").read_text()))
    assert "| SAC HalfCheetah-v5, 4,000 env steps into a buffer for 10^6 rows |" in text
    assert text in (peak.RESULTS / "peak.md").read_text()
