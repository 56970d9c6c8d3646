"""Several policies in one trainer: plans, schedules, metrics, checkpoints by policy name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from palaestra import Collector, Trainer, TrainerConfig
from palaestra.core import ConfigError, NonFiniteError
from palaestra.rollout import CollectInfo
from palaestra.training import SimplePolicyManager
from tests.algorithms.parts import environment, make
from tests.training.parts import Recorder, trainer


class SideBySide:
    """Collectors of several policies, each in environments of its own: the simplest `DataCollector` of several."""

    def __init__(self, collectors: dict[str, Collector]) -> None:
        self.collectors = collectors
        self.num_lanes = next(iter(collectors.values())).num_lanes
        self.randoms: list[frozenset[str]] = []

    @property
    def env_steps(self) -> int:
        return sum(collector.env_steps for collector in self.collectors.values())

    @property
    def buffers(self) -> dict[str, Any]:
        return {name: collector.buffer for name, collector in self.collectors.items()}

    sources = buffers
    unfinished = False

    def unroll(self, length: float, *, random: Any = ()) -> CollectInfo:
        self.randoms.append(frozenset(random))
        infos = {n: c.unroll(length, random=random if n in random else ()) for n, c in self.collectors.items()}
        rows = {name: info.rows for name, info in infos.items()}
        return CollectInfo(sum(info.env_steps for info in infos.values()), max(rows.values()), rows_of=rows)

    def pause(self) -> None: ...

    def drain(self) -> list[Any]:
        return [episode for collector in self.collectors.values() for episode in collector.drain()]

    def state(self) -> dict[str, Any]:
        return {name: collector.state() for name, collector in self.collectors.items()}

    def load_state(self, state: Any) -> None:
        for name, collector in self.collectors.items():
            collector.load_state(state[name])


def two(total: int = 200, loggers: Any = (), **settings: Any) -> Trainer:
    """PPO and DQN in one trainer."""
    algorithms, collectors = {}, {}
    for seed, (name, kind) in enumerate({"left": "ppo", "right": "dqn"}.items()):
        env = environment("discrete", 3, seed)
        algorithms[name] = make(kind, env, seed, **(settings if kind == "ppo" else {"learning_starts": 30}))
        collectors[name] = Collector.of(env, algorithms[name])
    config = TrainerConfig(total_env_steps=total, log_every_steps=50)
    return Trainer(SideBySide(collectors), SimplePolicyManager(algorithms), config, loggers=loggers)  # type: ignore[arg-type]


def test_policies_of_different_algorithms_learn_in_one_loop():
    recorder = Recorder()
    made = two(loggers=[recorder])
    made.run()
    assert all(algorithm.policy_version > 1 for algorithm in made.algorithms.values())
    last = recorder.rows[-1]
    assert {"learning/left/entropy", "learning/right/q_mean"} <= last.keys()
    assert last["gradient_steps"] == sum(a.num_gradient_steps for a in made.algorithms.values())
    assert made.collector.randoms[0] == {"right"} and made.collector.randoms[-1] == set()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"several policies \(left, right\); use `algorithms`"):
        _ = made.algorithm


def test_several_policies_resume_bit_for_bit():
    whole, cut = two(400), two(400)
    whole.run()
    while cut.collector.env_steps < 150:
        cut.train_iter()
    state = cut.state()
    assert {"algorithm.left", "algorithm.right", "buffer.left", "buffer.right"} < state.keys()
    again = two(400)
    again.load_state(state)
    again.run()
    for name, algorithm in whole.algorithms.items():
        other = again.algorithms[name].model.state_dict()
        assert all(torch.equal(value, other[key]) for key, value in algorithm.model.state_dict().items())


def test_a_policy_that_fails_does_not_stop_the_others():
    made, fine = two(), []

    def fails(source: Any) -> Any:
        raise NonFiniteError("nan")

    made.algorithms["left"].begin_update = fails  # type: ignore[method-assign]
    made.algorithms["right"].begin_update = fine.append  # type: ignore[method-assign]
    results = made.learner.update(dict(made.collector.sources))
    assert isinstance(results["left"], NonFiniteError)
    assert fine == [made.collector.sources["right"]]


def test_unrolls_of_different_lengths_cannot_be_followed_in_one_run():
    env = environment("discrete", 3, 0)
    algorithms = {name: make("ppo", env, 0, unroll_length=length) for name, length in {"a": 4, "b": 8}.items()}
    with pytest.raises(ConfigError, match="their unroll_length is a: 4, b: 8"):
        Trainer(Collector.of(env, algorithms["a"]), SimplePolicyManager(algorithms))
    with pytest.raises(ConfigError, match="at least one policy"):
        SimplePolicyManager({})


def test_one_policy_needs_no_name():
    made = trainer("ppo")
    assert list(made.algorithms) == ["policy"] and made.algorithm is made.algorithms["policy"]
    assert {"algorithm", "buffer"} < made.state().keys()
