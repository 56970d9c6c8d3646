"""Tests of `palaestra.envs.contract.attributes`: attributes of environments that are set while they are stepped."""

import contextlib
import os
import signal

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from palaestra import Collector, EnvConfig, TrainerConfig, create_environment
from palaestra.algorithms import A2C, A2CConfig
from palaestra.core import ConfigError, DiscreteSpec, EnvError, TensorSpec
from palaestra.envs import EnvironmentWrapper, NativeVectorEnvironment, TensorEnvironment, TimeLimit
from palaestra.training import Callback, CheckpointStore, Trainer

WAYS = {
    "serial": {},
    "thread": {"vectorization": "thread", "num_envs": 1},
    "process": {"vectorization": "process", "num_workers": 1},
    "first ready": {"vectorization": "process", "num_workers": 2, "num_ready": 2},
}


class Leveled(gymnasium.Env):
    """Observes its level as it is now; an episode ends after as many steps. Dies in a step where `dies` says so."""

    def __init__(self, level=2, dies=-1):
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.level, self.dies, self.total = level, dies, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.array([self.level], np.float32), {}

    def step(self, action):
        self.steps += 1
        self.total += 1
        if self.total == self.dies:
            raise RuntimeError("this one failed")
        return np.array([self.level], np.float32), 1.0, self.steps >= self.level, False, {}


def config(**changes):
    return EnvConfig(**{"name": "tests.envs.test_attributes:Leveled", "num_envs": 2, **changes})


def levels(env, steps):
    """What environments show in so many steps: 10 times the step type, and the level."""
    action = torch.zeros(env.batch_size, dtype=torch.int64)
    rows = [env.step(action) for _ in range(steps)]
    order = [torch.argsort(row.env_id) for row in rows]
    return [
        (10 * row.step_type + row.observation[:, 0].int())[by].tolist() for row, by in zip(rows, order, strict=True)
    ]


@pytest.mark.parametrize("way", WAYS)
def test_an_attribute_is_there_from_the_next_episode_on(way):
    with create_environment(config(**WAYS[way]), seed=1) as env:
        last = env.batch_size - 1
        env.reset()
        assert [row[last] for row in levels(env, 1)] == [12]
        env.set_attr("level", 3, [last])
        assert env.get_attr("level", [last]) == [2]  # the running episode keeps its own
        assert [row[last] for row in levels(env, 6)] == [22, 3, 13, 13, 23, 3]
        assert env.get_attr("level")[last] == 3
        if last:
            assert env.get_attr("level") == [2, 3]


@pytest.mark.parametrize("way", ["serial", "process", "killed"])
def test_an_attribute_is_there_in_the_episode_that_a_restart_begins(way):
    """It failed in its step, or its worker was killed, after the attribute was set."""
    kwargs = {"level": 9, "dies": -1 if way == "killed" else 3}
    settings = {**WAYS.get(way, WAYS["process"]), "num_envs": 1, "kwargs": kwargs, "on_fault": "restart"}
    with create_environment(config(**settings), seed=1) as env:
        env.reset()
        env.step(torch.zeros(1, dtype=torch.int64))
        env.set_attr("level", 5)
        if way == "killed":
            os.kill(env.driver.worker_pids[0], signal.SIGKILL)
        shown = next(row for (row,) in levels(env, 4) if row < 10)  # of a FIRST step
        assert shown == 5 and env.get_attr("level") == [5]


@pytest.mark.parametrize("way", ["serial", "thread", "process"])
def test_a_restored_batch_has_the_attributes_of_its_episodes(way):
    """What a running episode began with, what waits for the next one, and what was set in vain."""
    with create_environment(config(**WAYS[way]), seed=1) as env, create_environment(config(**WAYS[way])) as other:
        env.set_attr("level", 3)
        env.reset()
        levels(env, 1)
        env.set_attr("level", 4)
        state = env.state_dict()
        expected = levels(env, 9)
        assert [row[0] for row in expected] == [13, 23, 4, 14, 14, 14, 24, 4, 14]
        other.set_attr("dies", 99)
        levels(other, 4)
        other.load_state_dict(state)
        assert other.get_attr("dies") == [-1] * other.batch_size
        assert levels(other, 9) == expected


def test_a_replaced_worker_goes_on_with_the_attributes():
    """`lane_state` is what the next incarnation of a roll-out worker begins with."""
    with create_environment(config(), seed=1) as env, create_environment(config(), seed=2) as other:
        env.set_attr("level", 3, [1])
        other.load_lane_state(env.lane_state())
        assert [row[1] for row in levels(other, 4)] == [3, 13, 13, 23]


@pytest.mark.parametrize("way", ["serial", "process"])
def test_an_environment_that_is_made_again_has_the_attributes(way):
    """After a fault, with `on_fault=restart`."""
    ways = {**WAYS[way], "on_fault": "restart", "kwargs": {"dies": 5}}
    with create_environment(config(**ways), seed=1) as env:
        env.set_attr("level", 9)
        env.reset()
        assert [row[0] for row in levels(env, 5)] == [19] * 4 + [9]
        assert len(env.faults) == 2
        assert env.get_attr("level") == [9, 9]


def killed(env):
    with contextlib.suppress(ProcessLookupError):
        os.kill(env.driver.worker_pids[1], signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "on_fault"), [("get", "restart"), ("get", "drop"), ("reset", "restart"), ("set", "drop")]
)
def test_a_worker_that_is_gone_may_be_noticed_between_steps(by, on_fault, monkeypatch):
    """F3: by whoever asks it for something first; what `on_fault` says is done all the same."""
    settings = {"vectorization": "process", "num_workers": 2, "on_fault": on_fault, "kwargs": {"level": 9}}
    with create_environment(config(**settings), seed=1) as env:
        env.reset()
        levels(env, 1)
        if by == "reset":
            env.send(torch.zeros(2, dtype=torch.int64))
        if by == "set":
            env.set_attr("level", 5)
            ask = env.driver._ask  # it is there when environments are chosen, and dies before it is asked
            monkeypatch.setattr(env.driver, "_ask", lambda *given: (killed(env), ask(*given))[1])
        else:
            killed(env)
        if by == "get":
            assert env.get_attr("level") == [9, 9 if on_fault == "restart" else None]
            assert levels(env, 2) == ([[19, 9], [19, 19]] if on_fault == "restart" else [[19, 9], [19, 9]])
        else:
            assert env.reset().step_type.tolist() == [0, 0]
            assert len(levels(env, 2)) == 2
        assert {fault.handled for fault in env.faults} == {on_fault}


class Windy(TensorEnvironment):
    """Moves with the wind."""

    num_random, observation_spec, action_spec = 1, TensorSpec((1,)), DiscreteSpec(num=2)
    wind = 1.0

    def fresh(self, uniform):
        return {"place": uniform}

    def transition(self, state, action):
        place = state["place"] + self.wind
        return {"place": place}, place[:, 0], place[:, 0] > 99

    def observe(self, state):
        return state["place"].clone()


class Gain(EnvironmentWrapper):
    """Multiplies rewards."""

    gain = 1.0

    def advance(self, action):
        time_step = self.env.advance(action)
        return time_step._replace(reward=self.gain * time_step.reward)


def test_a_wrapper_may_have_the_attribute():
    with create_environment(config(wrappers=("tests.envs.test_attributes:Gain",)), seed=1) as env:
        env.set_attr("gain", 5)
        env.reset()
        assert env.step(torch.zeros(2, dtype=torch.int64)).reward.tolist() == [5, 5]


def test_batches_stepped_as_one_have_it_at_once_and_after_they_are_restored():
    """Tensor environments, layers around them, and pools."""
    envs = [TimeLimit(Windy(2, lane_seeds=[1, 2]), 50) for _ in range(2)]
    env, other = envs
    first, before = env.reset().observation, env.state_dict()
    env.set_attr("wind", 2.0)
    with pytest.raises(ConfigError, match="leave lanes out"):
        env.set_attr("wind", 2.0, [1])
    assert torch.equal(env.step(torch.zeros(2, dtype=torch.int64)).observation, first + 2)
    other.load_state_dict(env.state_dict())
    assert torch.equal(other.step(torch.zeros(2, dtype=torch.int64)).observation, first + 4)
    env.load_state_dict(before)
    assert (env.get_attr("wind"), other.get_attr("wind")) == ([1.0, 1.0], [2.0, 2.0])
    makers = [Leveled, Leveled]
    pools = [NativeVectorEnvironment(gymnasium.vector.SyncVectorEnv(makers), lane_seeds=[1, 2]) for _ in range(2)]
    pools[0].set_attr("level", 3)
    assert [row[0] for row in levels(pools[0], 5)] == [3, 13, 13, 23, 3]
    pools[1].load_state_dict(pools[0].state_dict())
    assert pools[1].get_attr("level") == [3, 3]
    pools[0].load_state_dict({"lane_seed": np.array([1, 2]), "resets": 1})
    assert pools[0].get_attr("level") == [2, 2]
    with pytest.raises(ConfigError, match="environment 0 has no attribute 'levle'; give the environment"):
        pools[0].set_attr("levle", 3)


def test_what_cannot_be_set_is_refused():
    with create_environment(config(), seed=1) as env:
        with pytest.raises(ConfigError, match=r"environment 0 has no attribute 'levle' — did you mean 'level'"):
            env.set_attr("levle", 3)
        with pytest.raises(ConfigError, match=r"which a checkpoint cannot hold .*; give numbers"):
            env.set_attr("level", torch.ones(1))
        with pytest.raises(ConfigError, match=r"lanes is \[2\],? and there is no environment 2: there are 2"):
            env.set_attr("level", 3, [2])
        env.reset()
        env.send(torch.zeros(2, dtype=torch.int64))
        with pytest.raises(EnvError, match="between send and recv"):
            env.set_attr("level", 3)


class Promote(Callback):
    """A curriculum: environment 1 gets harder after 24 env steps, both after 60."""

    def iteration_began(self, trainer):
        steps = trainer.collector.env_steps
        if 24 <= steps < 60:
            trainer.collector.set_env_attr("level", 3, [1])
        if steps >= 60:
            trainer.collector.set_env_attr("level", 5)


class EndAt(Callback):
    """Ends a run in the middle."""

    def iteration_ended(self, trainer, updates):
        if trainer.collector.env_steps >= 72:
            trainer.stop("for a test")


@pytest.mark.parametrize("way", ["serial", "process"])
def test_a_resumed_run_with_a_curriculum_equals_an_uninterrupted_one(way, tmp_path):
    """Attributes that a callback set are there again, in running episodes and in later ones."""
    runs = {}
    for name, ends in (("whole", []), ("broken", [EndAt()])):
        trainer = trained(way, tmp_path / name, [Promote(), *ends])
        runs[name] = trainer.run()
        trainer.collector.env.close()
    assert runs["broken"].status == "stopped"
    again = trained(way, tmp_path / "broken", [Promote()])
    again.load_state(CheckpointStore(tmp_path / "broken").load_newest()[1])
    assert again.run().env_steps == runs["whole"].env_steps
    assert again.collector.get_env_attr("level") == [5, 5]
    again.collector.env.close()
    whole, found = (CheckpointStore(tmp_path / name).load_newest()[1] for name in ("whole", "broken"))
    for part in ("algorithm", "buffer", "collect"):
        one, two = dict(flat(whole[part])), dict(flat(found[part]))
        assert one.keys() == two.keys()
        for key, value in one.items():
            assert torch.equal(value, two[key]) if isinstance(value, torch.Tensor) else np.all(value == two[key]), key


def trained(way, directory, callbacks):
    env = create_environment(config(**WAYS[way]), seed=1)
    algorithm = A2C(env.observation_spec, env.action_spec, A2CConfig(unroll_length=3))
    algorithm.policy.seed(1)
    return Trainer(
        Collector.of(env, algorithm),
        algorithm,
        TrainerConfig(total_env_steps=144),
        checkpoints=CheckpointStore(directory),
        callbacks=callbacks,
    )


def flat(tree, prefix=""):
    if hasattr(tree, "items"):
        for key, value in tree.items():
            yield from flat(value, f"{prefix}/{key}")
    else:
        yield prefix, tree
