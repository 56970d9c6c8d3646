"""Asynchronous training of many agents: actors that wait for nobody, several policies, one rule about lags."""

import contextlib
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from palaestra import Trainer, preset
from palaestra.buffers.writer import StreamWriter
from palaestra.core import StepType
from palaestra.distributed.worker import Fragment
from palaestra.experiments.build import make_learner
from palaestra.experiments.config import config_from_mapping
from palaestra.runtime import ProcessRuntime
from tests.distributed.actors import Overtaken
from tests.distributed.parts import QUICK, Mortal, local
from tests.multiagent.test_collector import lanes_of, seen_of

WORLD = "tests.multiagent.parts:RandomWorld"
AGENTS = {"even_0": "even", "even_1": "even", "odd_0": "odd", "odd_1": "odd"}


def trainer_on(runtime, monkeypatch, algorithm, *, policies=None, total=100_000, **pace) -> Trainer:
    """A run of two policies, each of two agents, as the command line makes it, on a runtime of the test."""
    base = preset(algorithm, WORLD)
    small = {"unroll_length": 6, "network": {"hidden_sizes": [8]}}
    small |= {"capacity": 4000, "learning_starts": 0} if algorithm == "dqn" else {}
    settings = {
        "env": {"num_envs": 4, "kwargs": {"revive": True}},
        "algorithm": small,
        "agents": {"mapping": AGENTS, "policies": policies or {}},
        "trainer": {"total_env_steps": total},
        "distributed": {"runtime": "local", "num_workers": 2, "mode": "async", "backoff_s": 0.01},
        "asynchronous": pace,
    }
    learner = make_learner(config_from_mapping(type(base), settings, base=base))
    monkeypatch.setattr("palaestra.experiments.learner.make_runtime", lambda config: contextlib.nullcontext(runtime))
    with learner.collecting({}) as made:
        return Trainer(made.collector, learner.manager, learner.config.trainer)


def taken_by(server: Any) -> list[tuple[int, Fragment]]:
    """Every fragment that is taken out of the queue, with its lag then."""
    found: list[tuple[int, Fragment]] = []
    lag_of = server.lag

    def noted(fragment: Fragment) -> int:
        found.append((lag_of(fragment), fragment))
        return found[-1][0]

    server.lag = noted
    return found


def rows_of(fragment: Fragment, policy: str) -> int:
    """Actions of a policy in a fragment that count: those on a row that ends an episode do not."""
    pieces = [rows for _, rows in fragment.pieces.get(policy, ())]
    return sum(int((rows.step_type[:-1] != StepType.LAST).sum()) for rows in pieces)


@pytest.mark.parametrize("max_lag", [1, None])
def test_every_policy_learns_from_exactly_what_max_lag_allows(max_lag, monkeypatch):
    """MARO-10, MARO-11, MARO-12: several policies and a slow actor; what is old is dropped, counted and named."""
    with Overtaken("actor-1", every=6) as runtime:
        trainer = trainer_on(runtime, monkeypatch, "ppo", max_lag=max_lag)
        server, learned = trainer.collector, Counter[str]()
        taken = taken_by(server)
        for name, source in server.sources.items():

            def drawn(plan: Any, generator: Any, name: str = name, draw: Any = source.draw) -> Any:
                batch = draw(plan, generator)
                learned[name] += int(batch.valid.sum())
                return batch

            source.draw = drawn
        for _ in range(20):
            trainer.train_iter()
    fresh = [(lag, one) for lag, one in taken if max_lag is None or lag <= max_lag]
    assert len(fresh) == 20
    assert server.lags == Counter(lag for lag, _ in fresh)
    assert max(lag for lag, _ in taken) > 4, "the slow actor is not slow"
    assert len(server.dropped) == len(taken) - len(fresh)
    assert all(f"max_lag is {max_lag}" in one.reason for one in server.dropped)
    assert learned == {name: sum(rows_of(one, name) for _, one in fresh) for name in ("even", "odd")}
    assert server.env_steps == sum(one.info.env_steps for _, one in fresh)
    assert all(algorithm.policy_version > 8 for algorithm in trainer.algorithms.values())


def crossings(server: Any) -> tuple[int, int]:
    """Neighbouring rows of all streams; and those of them that do not belong together."""
    pairs = wrong = 0
    for _, rows in itertools.chain(*(lanes_of(buffer) for buffer in server.buffers.values())):
        kinds, seen = rows.step_type.numpy(), seen_of(rows)
        joined = (kinds[:-1] != StepType.LAST) & (kinds[1:] != StepType.FIRST)
        pairs += joined.sum()
        wrong += (joined & (seen[1:, 1] != seen[:-1, 1] + 1)).sum()
    return int(pairs), int(wrong)


@pytest.mark.parametrize("joined", [False, True])
def test_no_transition_of_any_agent_leads_over_a_dropped_fragment(joined, monkeypatch):
    """MARO-12: agents count their own time steps; also those that did nothing in the fragment after the gap."""
    if joined:
        monkeypatch.setattr(StreamWriter, "end_streams", lambda writer, env_id=None: None)
    with local() as runtime:
        trainer = trainer_on(runtime, monkeypatch, "dqn", fragment_steps=3)
        turns = itertools.cycle([True, False, True])
        monkeypatch.setattr(trainer.collector._pace, "fresh", lambda lag: next(turns))
        for _ in range(30):
            trainer.train_iter()
    assert len(trainer.collector.dropped) > 10
    pairs, wrong = crossings(trainer.collector)
    assert pairs > 150
    assert (wrong > 0) == joined


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
        assert crossings(trainer.collector)[1] == 0


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
    assert [one[:2] for one in server.dropped] == [(call.worker, call.incarnation) for call in killer.victims]
    assert [fault.worker for fault in server.faults] == [call.worker for call in killer.victims]
    assert all(algorithm.policy_version > 5 for algorithm in trainer.algorithms.values())
    if algorithm == "dqn":
        pairs, wrong = crossings(server)
        assert pairs > 200
        assert wrong == 0
        assert np.isfinite([episode.episode_return for episode in server.drain()]).all()
