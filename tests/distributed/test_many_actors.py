"""Asynchronous training of many agents: actors that wait for nobody, several policies, one rule about lags."""

import contextlib
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from palaestra import Trainer, preset
from palaestra.buffers.writer import StreamWriter
from palaestra.config.config import config_from_mapping
from palaestra.core import Replay, StepType
from palaestra.distributed.worker import Fragment
from palaestra.runs.build import make_learner
from palaestra.runtime import ProcessRuntime
from tests.distributed.actors import Overtaken, asynchronous
from tests.distributed.parts import QUICK, Mortal, local

WORLD = "tests.multiagent.parts:RandomWorld"
AGENTS = {"even_0": "even", "even_1": "even", "odd_0": "odd", "odd_1": "odd"}


def trainer_on(runtime, monkeypatch, algorithm, *, policies=None, total=100_000, shards=None, **pace) -> Trainer:
    """A run of two policies, each of two agents, as the command line makes it, on a runtime of the test."""
    base = preset(algorithm, WORLD)
    small = {"unroll_length": 6, "network": {"hidden_sizes": [8]}}
    small |= {"capacity": 4000, "learning_starts": 0} if algorithm == "dqn" else {}
    settings = {
        "env": {"num_envs": 4, "kwargs": {"revive": True}},
        "algorithm": small,
        "agents": {"mapping": AGENTS, "policies": policies or {}},
        "trainer": {"total_env_steps": total},
        "distributed": {
            "runtime": "local",
            "num_workers": 2,
            "mode": "async",
            "backoff_s": 0.01,
            "replay_shards": shards,
        },
        "asynchronous": pace,
    }
    learner = make_learner(config_from_mapping(type(base), settings, base=base))
    monkeypatch.setattr("palaestra.runs.learner.make_runtime", lambda config: contextlib.nullcontext(runtime))
    with learner.collecting({}) as made:
        return Trainer(made.collector, learner.manager, learner.config.trainer)


def taken_by(server: Any) -> list[tuple[dict[str, int], Fragment]]:
    """Every fragment that is taken out of the queue, with the lag of each policy's rows then."""
    found: list[tuple[dict[str, int], Fragment]] = []
    lags_of = server.lags_of

    def noted(fragment: Fragment) -> dict[str, int]:
        found.append((lags_of(fragment), fragment))
        return found[-1][0]

    server.lags_of = noted
    return found


def learned_by(server: Any) -> Counter[str]:
    """Rows that each policy learns from, counted as they are drawn."""
    learned = Counter[str]()
    for name, source in server.sources.items():

        def drawn(plan: Any, generator: Any, name: str = name, draw: Any = source.draw) -> Any:
            batch = draw(plan, generator)
            learned[name] += int(batch.valid.sum())
            return batch

        source.draw = drawn
    return learned


def rows_of(fragment: Fragment, policy: str) -> int:
    """Actions of a policy in a fragment that count: those on a row that ends an episode do not."""
    pieces = [rows for _, rows in fragment.pieces.get(policy, ())]
    return sum(int((rows.step_type[:-1] != StepType.LAST).sum()) for rows in pieces)


@pytest.mark.parametrize(
    ("max_lag", "max_lags"), [(1, {}), (None, {}), (None, {"odd": 1}), (1, {"even": None}), (3, {"odd": 0})]
)
def test_every_policy_learns_from_exactly_what_its_max_lag_allows(max_lag, max_lags, monkeypatch):
    """MARO-10, MARO-11, MARO-12: a slow actor; what is too old for a policy is dropped for it alone, counted, named."""
    bounds = {"even": max_lag, "odd": max_lag, **max_lags}
    with Overtaken("actor-1", every=6) as runtime:
        trainer = trainer_on(runtime, monkeypatch, "ppo", max_lag=max_lag, max_lags=max_lags)
        server = trainer.collector
        taken, learned = taken_by(server), learned_by(server)
        for _ in range(20):
            trainer.train_iter()
    old = [
        [name for name, lag in lags.items() if lag > (bounds[name] or 0) and bounds[name] is not None]
        for lags, _ in taken
    ]
    fresh = [(lags, one) for (lags, one), names in zip(taken, old, strict=True) if len(names) < max(len(lags), 1)]
    assert len(fresh) == 20
    assert max(max(lags.values()) for lags, _ in taken) > 4, "the slow actor is not slow"
    partly = [
        tuple(names) if len(names) < len(lags) else () for (lags, _), names in zip(taken, old, strict=True) if names
    ]
    assert [one.policies for one in server.dropped] == partly
    assert all(one.worker == "actor-1" for one in server.dropped if one.policies)
    assert server.dropped_of == Counter(itertools.chain(*old))
    for name in ("even", "odd"):
        used = [one for (_, one), names in zip(taken, old, strict=True) if name not in names]
        assert learned[name] == sum(rows_of(one, name) for one in used)
        assert all(f"max_lag is {bounds[name]}" in one.reason for one in server.dropped if name in one.policies)
        assert (server.metrics()[f"workers/dropped/{name}"] > 1) == (bounds[name] is not None)
        assert trainer.algorithms[name].policy_version > 8
    assert server.env_steps == sum(one.info.env_steps for _, one in fresh)
    assert any(partly) == (bounds["even"] != bounds["odd"])


def crossings(server: Any) -> dict[str, tuple[int, int]]:
    """By policy, how many transitions there are; and those of them whose two rows do not belong together."""
    found: dict[str, tuple[int, int]] = {}
    for name, buffer in server.buffers.items():
        if len(buffer):
            windows = buffer.draw(Replay(unroll_length=1, num_epochs=1), torch.Generator())
            before, after = (
                one if name == "even" else one.seen for one in (windows.observation, windows.next_observation)
            )
            found[name] = len(before), int((after[:, 1] != before[:, 1] + 1).sum())
    return found


@pytest.mark.parametrize(
    ("policies", "shards", "joined"),
    [
        (("even", "odd"), None, False),
        (("odd",), None, False),
        (("odd",), None, True),
        (("odd",), 3, False),
    ],
)
def test_no_transition_of_any_agent_leads_over_dropped_rows(policies, shards, joined, monkeypatch):
    """MARO-12: agents count their own time steps; also those that did nothing in the fragment after the gap."""
    if joined:
        monkeypatch.setattr(StreamWriter, "end_streams", lambda writer, env_id=None: None)
    with local() as runtime:
        pace = {"fragment_steps": 3, "max_lags": dict.fromkeys(policies, 100)}
        trainer = trainer_on(runtime, monkeypatch, "dqn", shards=shards, **pace)
        server, turns = trainer.collector, itertools.cycle([0, 101, 100])
        lags_of = server.lags_of
        monkeypatch.setattr(server, "lags_of", lambda fragment: dict.fromkeys(lags_of(fragment), next(turns)))
        for _ in range(30):
            trainer.train_iter()
        found = crossings(server)
    assert len(server.dropped) > 10
    assert set(server.dropped_of) == set(policies)
    for name, (pairs, wrong) in found.items():
        assert pairs > 75
        assert (wrong > 0) == (joined and name in policies)


@pytest.mark.parametrize("policies", [{}, {"odd": {"algorithm": "dqn", "learning_starts": 50}}, {"odd": "random"}])
def test_policies_of_several_kinds_learn_side_by_side(policies, monkeypatch):
    """MARO-01, MARO-19: on-policy, from a replay buffer, and rules; each by its own plan, and the pace of the first."""
    with local() as runtime:
        trainer = trainer_on(runtime, monkeypatch, "ppo", policies=policies, total=300)
        result = trainer.run()
    assert result.status == "done"
    assert set(trainer.algorithms) == ({"even"} if "random" in policies.values() else {"even", "odd"})
    assert all(algorithm.policy_version > 4 for algorithm in trainer.algorithms.values())
    if isinstance(policies.get("odd"), dict):
        assert len(trainer.collector.buffers["odd"]) > 100
        assert crossings(trainer.collector)["odd"][1] == 0


@pytest.mark.fault
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_an_actor_of_many_agents_is_killed_and_replaced(algorithm, monkeypatch):
    """MARO-10, F14: kill -9 of real processes; their fragments are dropped and named, and streams stay whole."""
    with ProcessRuntime(QUICK) as runtime:
        trainer = trainer_on(runtime, monkeypatch, algorithm, total=500)
        killer = Mortal(runtime, "collect", times=2, skip=4)
        result, server = trainer.run(), trainer.collector
    assert result.status == "done"
    assert len(killer.victims) == 2
    killed = sorted((call.worker, call.incarnation) for call in killer.victims)
    assert sorted(one[:2] for one in server.dropped) == killed
    assert sorted((fault.worker, fault.incarnation) for fault in server.faults) == killed
    assert all(algorithm.policy_version > 5 for algorithm in trainer.algorithms.values())
    if algorithm == "dqn":
        found = crossings(server).values()
        assert sum(pairs for pairs, _ in found) > 200
        assert all(wrong == 0 for _, wrong in found)
        assert np.isfinite([episode.episode_return for episode in server.drain()]).all()


def test_a_paused_unroll_that_replays_tells_what_it_has_counted():
    """F25: its rows are in the buffer and its env steps counted, so a checkpoint is of its episodes, too."""
    with local() as runtime:
        collect = asynchronous(runtime, "dqn", gradient_steps=8).collector
        collect._pace.enough = lambda taken, env_steps: False
        take, calls = collect.group.take, itertools.count()

        def interrupted(**named: Any) -> Any:
            if collect.env_steps or next(calls) == 100:
                collect.pause()
            return take(**named)

        collect.group.take = interrupted
        info = collect.unroll(8)
        assert collect.unfinished
        assert info.env_steps == collect.env_steps > 0
        assert info.episodes
        assert collect.state()["ahead"] is not None


def test_rows_of_agents_that_are_not_there_are_not_counted(monkeypatch):
    """F20: so many rows are drawn for each one that is written, however many agents are dead or wait."""
    with local() as runtime:
        trainer = trainer_on(runtime, monkeypatch, "dqn", samples_per_insert=8.0, fragment_steps=4)
        for _ in range(60):
            trainer.train_iter()
        written = sum(map(len, trainer.collector.buffers.values()))
    drawn = sum(one.num_gradient_steps * one.plan.mini_batch_size for one in trainer.algorithms.values())
    assert drawn == pytest.approx(8.0 * written, rel=0.15)
