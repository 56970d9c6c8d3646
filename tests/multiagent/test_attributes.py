"""Tasks that change while many agents learn, and several of them in one run."""

import csv
import json

import numpy as np
import pytest
import torch

import palaestra
from palaestra import EnvConfig
from palaestra.core import ConfigError, DiscreteSpec, TensorSpec, restart, transition
from palaestra.core import termination as ended
from palaestra.distributed import CollectorFactory
from palaestra.multiagent import AgentSpec, MultiAgentEnv, MultiAgentEnvs, MultiAgentStep, create_multi_agent_envs
from palaestra.training import Callback
from tests.multiagent.test_resume import equal, flat

LEVELED = "tests.multiagent.test_attributes:Leveled"
NAMES = ("left", "right")


class Leveled(MultiAgentEnv):
    """Two agents see the level as it is now, and earn it; an episode ends after as many steps."""

    def __init__(self, level=2, dies=-1):
        self.level, self.dies, self.total = level, dies, 0

    @property
    def agents(self):
        return dict.fromkeys(NAMES, AgentSpec(TensorSpec((1,)), DiscreteSpec(num=2)))

    def begin_episode(self, seed):
        self.steps = 0
        return self._said(restart)

    def advance(self, actions):
        self.steps, self.total = self.steps + 1, self.total + 1
        if self.total == self.dies:
            raise RuntimeError("this one failed")
        over = self.steps >= self.level
        return self._said(lambda seen: (ended if over else transition)(seen, float(self.level)), over)

    def _said(self, kind, over=False):
        return MultiAgentStep({name: kind(np.array([self.level], np.float32)) for name in NAMES}, over)


class Faster(Leveled):
    """Another task of the same agents."""


class Alone(Leveled):
    @property
    def agents(self):
        return {"left": super().agents["left"]}


class Around(MultiAgentEnv):
    """A wrapper with a property of its own, which passes on whatever else is asked for."""

    def __init__(self, env):
        self.env, self.gain = env, 1.0

    def __getattr__(self, name):
        return getattr(self.env, name)

    @property
    def agents(self):
        return self.env.agents

    def begin_episode(self, seed):
        return self.env.begin_episode(seed)

    def advance(self, actions):
        return self.env.advance(actions)


def made(changes=None, seeds=(1, 2)):
    return create_multi_agent_envs(EnvConfig(name=LEVELED, num_envs=len(seeds), **(changes or {})), lane_seeds=seeds)


def levels(envs, steps):
    """What is seen in so many steps: 10 times the step type, and the level."""
    shown = []
    for _ in range(steps):
        actions = [dict.fromkeys(NAMES, 0) if lane.steps >= 0 and not lane.over else {} for lane in envs._lanes]
        seen = [outcome.time_steps["left"] for outcome in envs.step(actions)]
        shown.append([10 * int(step.step_type) + int(step.observation[0]) for step in seen])
    return shown


def test_an_attribute_is_there_from_the_next_episode_on():
    with made() as envs:
        envs.reset()
        assert levels(envs, 1) == [[12, 12]]
        envs.set_attr("level", 3, [1])
        assert envs.get_attr("level") == [2, 2]  # the running episode keeps its own
        assert [row[1] for row in levels(envs, 6)] == [22, 3, 13, 13, 23, 3]
        assert envs.get_attr("level") == [2, 3]


def test_restored_environments_have_the_attributes_of_their_episodes():
    """F25: what a running episode began with, what waits for the next one, and what was set in vain."""
    with made() as envs, made(seeds=(7, 8)) as other, made() as never:
        untouched = never.state_dict()
        envs.set_attr("level", 3)
        envs.reset()
        levels(envs, 1)
        envs.set_attr("level", 4)
        state = json.loads(json.dumps(envs.state_dict(), default=np.ndarray.tolist))
        expected = levels(envs, 9)
        assert [row[0] for row in expected] == [13, 23, 4, 14, 14, 14, 24, 4, 14]
        other.set_attr("dies", 99)
        levels(other, 4)
        assert other.get_attr("dies") == [99, 99]
        other.load_state_dict(state)
        assert other.get_attr("dies") == [-1, -1]
        assert levels(other, 9) == expected
        other.load_state_dict(untouched)
        assert other.get_attr("level") == [2, 2]


def test_a_replaced_worker_goes_on_with_the_attributes():
    """`lane_state` is what the next incarnation of a roll-out worker begins with."""
    with made() as envs, made(seeds=(7, 8)) as other:
        envs.set_attr("level", 3, [1])
        other.load_lane_state(envs.lane_state())
        assert [row[1] for row in levels(other, 4)] == [3, 13, 13, 23]


def test_an_environment_that_is_made_again_has_the_attributes():
    with made({"on_fault": "restart", "kwargs": {"dies": 5}}) as envs:
        envs.set_attr("level", 9)
        envs.reset()
        assert [row[0] for row in levels(envs, 5)] == [19] * 4 + [9]
        assert (len(envs.faults), envs.get_attr("level")) == (2, [9, 9])


def test_what_wraps_an_environment_may_have_the_attribute():
    env = Around(Leveled())
    with MultiAgentEnvs([lambda: env], lane_seeds=[1]) as envs:
        envs.set_attr("gain", 2.0)
        envs.set_attr("level", 3)
        envs.reset()
        assert (envs.get_attr("gain"), envs.get_attr("level")) == ([2.0], [3])
        assert (env.gain, env.env.level, "level" in vars(env)) == (2.0, 3, False)


def test_pettingzoo_s_wrappers_pass_on_what_they_do_not_have():
    pytest.importorskip("pettingzoo")
    with create_multi_agent_envs(EnvConfig(name="pettingzoo:classic/tictactoe-v3")) as envs:
        envs.set_attr("screen_height", 77)
        envs.reset()
        layer = envs._lanes[0].env._env
        assert layer.unwrapped.screen_height == 77
        assert "screen_height" not in vars(layer)


def test_what_cannot_be_set_is_refused():
    with made() as envs:
        with pytest.raises(ConfigError, match=r"environment 0 has no attribute 'levle' — did you mean 'level'"):
            envs.set_attr("levle", 3)
        with pytest.raises(ConfigError, match=r"which a checkpoint cannot hold"):
            envs.set_attr("level", torch.ones(1))
        with pytest.raises(ConfigError, match=r"there is no environment 2: there are 2"):
            envs.set_attr("level", 3, [2])


class Harder(Callback):
    """A curriculum: environment 1 gets harder after 40 env steps, both after 90."""

    def iteration_began(self, trainer):
        steps = trainer.collector.env_steps
        if 40 <= steps < 90:
            trainer.collector.set_env_attr("level", 3, [1])
        if steps >= 90:
            trainer.collector.set_env_attr("level", 5)


SETTINGS = {
    "algorithm__unroll_length": 8,
    "algorithm__network__hidden_sizes": (8,),
    "env__num_envs": 2,
    "run__callbacks": ("tests.multiagent.test_attributes:Harder",),
    "run__tensorboard": False,
    "run__name": "run",
    "trainer__eval_episodes": 0,
}


def episodes(run):
    return list(csv.DictReader((run.directory / "episodes.csv").read_text().splitlines()))


def train(directory, total, **changes):
    return palaestra.train(
        "a2c", LEVELED, run__directory=str(directory), trainer__total_env_steps=total, **{**SETTINGS, **changes}
    )


def test_a_resumed_run_with_a_curriculum_equals_an_uninterrupted_one(tmp_path):
    """F25, from outside: a callback of a run of many agents changes the task, before and after an interruption."""
    whole = train(tmp_path / "whole", 160)
    broken = train(tmp_path / "broken", 70)
    again = palaestra.resume(broken.directory, trainer__total_env_steps=160)
    states = [
        palaestra.training.CheckpointStore(run.directory / "checkpoints").load_newest()[1] for run in (whole, again)
    ]
    ours, theirs = (
        {k: v for part in set(state) - {"trainer"} for k, v in flat(state[part]).items() if "rows_left" not in k}
        for state in states
    )
    assert ours.keys() == theirs.keys()
    assert not [key for key, value in ours.items() if not equal(value, theirs[key])]
    lengths = {int(row["length"]) for row in episodes(again)}
    assert lengths == {2, 3, 5}


def test_workers_have_the_attributes_that_were_set(tmp_path):
    run = train(tmp_path, 160, distributed__runtime="local", distributed__num_workers=2)
    lengths = {int(row["length"]) for row in episodes(run)}
    assert lengths == {2, 3, 5}


VARIANTS = ({"kwargs": {"level": 3}}, {"name": "tests.multiagent.test_attributes:Faster", "kwargs": {"level": 5}})


@pytest.mark.parametrize("workers", [None, 2])
def test_a_run_trains_and_evaluates_every_variant(workers, tmp_path):
    """Every worker has one environment, and the variant that is its turn among all."""
    changes = {"env__variants": VARIANTS, "run__callbacks": (), "trainer__eval_episodes": 4}
    if workers:
        changes |= {"distributed__runtime": "local", "distributed__num_workers": workers}
    run = train(tmp_path, 48, **changes)
    lengths = {(int(row["env_id"]), int(row["length"])) for row in episodes(run)}
    assert lengths == {(0, 3), (1, 5)}
    rows = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    evaluated = next(row for row in reversed(rows) if "eval/return_mean" in row)
    assert [evaluated[f"eval/info/return_of_variant_{number}"] for number in (0, 1)] == [2 * 3 * 3, 2 * 5 * 5]


def test_workers_share_variants_as_one_process_has_them():
    """Of one agent, too: three variants over workers of two environments."""
    variants = tuple({"kwargs": {"level": level}} for level in (1, 2, 3))
    factory = CollectorFactory(env=EnvConfig(num_envs=6, variants=variants), num_workers=3, algorithm=dict)
    shares = [factory.share(worker)[0] for worker in range(3)]
    found = [share.of_lane(lane).kwargs["level"] for share in shares for lane in range(2)]
    assert found == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ((*VARIANTS, VARIANTS[0]), "env.num_envs is 2, and env.variants has 3 entries"),
        (({"max_episode_steps": 3},), "env.max_episode_steps is 3, but"),
        (({"kwargs": {}}, {"name": "tests.multiagent.test_attributes:Alone"}), "environment 1 has other agents"),
    ],
)
def test_variants_that_do_not_fit_are_refused(variants, message, tmp_path):
    with pytest.raises(palaestra.core.PalaestraError, match=message):
        train(tmp_path, 48, env__variants=variants)
