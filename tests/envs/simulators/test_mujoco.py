"""MuJoCo in batches: Gymnasium's bits, exact resume, tasks of one's own, and what cannot be."""

import sys

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import palaestra
from palaestra.core import ConfigError, EnvError, PalaestraError
from palaestra.envs import BatchEnvironment, EnvConfig, MujocoBatch, create_environment, decided
from palaestra.envs.simulators.mujoco import shared_models
from palaestra.envs.simulators.mujoco_tasks import TASKS
from palaestra.runs import RunDirectory, lineage
from palaestra.testing import BatchContract
from palaestra.training import Callback

pytest.importorskip("mujoco.batch", reason="needs MuJoCo 3.17 or later")
FIELDS = ("step_type", "reward", "discount", "observation", "prev_action", "env_id")
XML = """<mujoco><worldbody><body><joint name="hinge" type="hinge" axis="0 1 0" damping="0.1"/>
<geom size="0.05" fromto="0 0 0 0 0 0.5" type="capsule"/></body></worldbody>
<actuator><motor joint="hinge" gear="2" ctrlrange="-1 1"/></actuator></mujoco>"""


def made(name, vectorization, num_envs=3, **settings):
    config = EnvConfig(name=name, num_envs=num_envs, vectorization=vectorization, **{"info": ("*",), **settings})
    return create_environment(config, seed=3)


def actions(env, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    low, high = (torch.tensor(np.array(bound)) for bound in env.action_spec.bounds)
    return torch.rand(steps, env.batch_size, *low.shape, generator=generator) * (high - low) + low


def differences(ours, theirs):
    found = [name for name in FIELDS if not torch.equal(getattr(ours, name), getattr(theirs, name))]
    assert set(ours.env_info.keys()) == set(theirs.env_info.keys())
    infos = [key for key, column in ours.env_info.items() if not np.array_equal(column, theirs.env_info[key], True)]
    return found + infos


def compared(name, steps, num_envs=3, **settings):
    """How many episodes ended in equal steps."""
    ends = 0
    threads = settings.pop("num_threads", 2)
    lanes = made(name, "serial", num_envs, **settings)
    batch = made(name, "batch", num_envs, num_threads=threads, **settings)
    with lanes, batch:
        assert (lanes.observation_spec, lanes.action_spec) == (batch.observation_spec, batch.action_spec)
        assert not differences(lanes.reset(), batch.reset())
        for step, action in enumerate(actions(lanes, steps)):
            expected, found = lanes.step(action), batch.step(action)
            assert not differences(expected, found), f"step {step}: {differences(expected, found)}"
            ends += int((expected.step_type == 2).sum())
    return ends


@pytest.mark.parametrize("name", sorted(TASKS))
def test_the_bits_are_those_of_gymnasium(name):
    """Observations, rewards, ends, actions and `info`, over the ends of episodes."""
    assert compared(name, 130, max_episode_steps=50) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TASKS))
@pytest.mark.parametrize(("num_envs", "num_threads"), [(1, 1), (8, 4), (64, 2)])
def test_ten_thousand_rows_have_the_bits_of_gymnasium(name, num_envs, num_threads):
    """With the registered time limit, for other numbers of lanes and threads."""
    compared(name, 10_000 // num_envs + 1, num_envs, num_threads=num_threads)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("Ant-v5", {"include_cfrc_ext_in_observation": False, "main_body": "torso", "healthy_z_range": (0.3, 0.9)}),
        ("Humanoid-v5", {"include_cvel_in_observation": False, "terminate_when_unhealthy": False}),
        ("Hopper-v5", {"exclude_current_positions_from_observation": False, "frame_skip": 2, "healthy_reward": 2.0}),
        ("HalfCheetah-v5", {"reset_noise_scale": 0.3, "forward_reward_weight": 2.0, "ctrl_cost_weight": 0.5}),
    ],
)
def test_settings_of_the_constructor_mean_the_same(name, kwargs):
    compared(name, 80, kwargs=kwargs, max_episode_steps=30)


class _Contract(BatchContract):
    name = ""

    def batch(self, seeds=(1, 2), num_threads=1):
        return TASKS[self.name](len(seeds), lane_seeds=seeds, max_episode_steps=25, num_threads=num_threads)

    def elsewhere(self):
        return self.batch(num_threads=2)


class TestHopper(_Contract):
    name = "Hopper-v5"


class TestAnt(_Contract):
    """Whose velocity is measured from a place that the state of the simulation does not have."""

    name = "Ant-v5"


class Swing(MujocoBatch):
    """A pole that is to stand up: a task of one's own, from an XML."""

    xml = XML

    def __init__(self, batch_size, **settings):
        settings = {"max_episode_steps": 20, **settings}
        super().__init__(batch_size, self.xml, 5, observation_space=Box(-np.inf, np.inf, (3,), np.float64), **settings)

    def states(self, lanes, seeds):
        qpos = np.stack([np.random.default_rng(seed).uniform(3, 3.2, self.model.nq) for seed in seeds])
        return qpos, np.zeros((len(lanes), self.model.nv))

    def observe(self):
        angle = self.field("qpos")
        return np.concatenate((np.cos(angle), np.sin(angle), self.field("qvel")), axis=1)

    def outcome(self, action):
        height = np.cos(self.field("qpos")[:, 0])
        return height - 0.01 * np.square(action).sum(axis=1), height > 0.999


def test_lanes_that_are_measured_share_a_model():
    """Their meshes, of 80 MB for a humanoid, were counted for each lane; otherwise each batch may change its own."""
    with shared_models():
        first, second = Swing(1).model, Swing(2).model
    assert first is second and Swing(1).model is not first


class TestSwing(BatchContract):
    def batch(self, seeds=(1, 2)):
        return Swing(len(seeds), lane_seeds=seeds)


class Varied(Swing):
    """Masses of its own in each episode, and the height of the pole's body as MuJoCo computes it."""

    def __init__(self, batch_size, **settings):
        super().__init__(batch_size, **settings)
        self._places, self._masses = self.field("xipos"), self.expand("body_mass")
        self._mass = self._masses.copy()

    def states(self, lanes, seeds):
        self._masses[lanes] = [np.random.default_rng(seed + 1).uniform(0.5, 4.0) * self._mass[0] for seed in seeds]
        self.batch.set_const()
        return super().states(lanes, seeds)

    def observe(self):
        return np.concatenate((self.field("qpos"), self.field("qvel"), self._places[:, 1, 2:]), axis=1)


class TestVaried(BatchContract):
    def batch(self, seeds=(1, 2)):
        return Varied(len(seeds), lane_seeds=seeds)


def test_what_steps_compute_is_there_from_the_first_row_on_or_refused():
    """An array that MuJoCo's batch is asked for after a step is all zeros until the next."""

    class Late(Varied):
        def observe(self):
            return np.concatenate((super().observe()[:, :2], self.field("xpos")[:, 1, 2:]), axis=1)

    angle, _, height = Varied(1, lane_seeds=[1]).reset().observation[0].tolist()
    assert height == pytest.approx(0.25 * np.cos(angle), abs=1e-9)
    with pytest.raises(ConfigError, match=r'xpos is computed by steps.* self.field\("xpos"\)'):
        Late(1, lane_seeds=[1]).reset()


def test_motors_without_a_range_are_not_held_at_zero():
    class Free(Swing):
        xml = XML.replace('ctrlrange="-1 1"', "")

    assert Free.xml != XML
    spec = Free(1).action_spec
    assert np.isneginf(spec.minimum).all() and np.isposinf(spec.maximum).all()


class _Hanging(Swing):
    def states(self, lanes, seeds):
        return np.full((len(lanes), 1), 3.0), np.zeros((len(lanes), 1))


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_each_lane_may_have_masses_of_its_own(factor):
    """`expand`: what domain randomisation needs."""
    env = _Hanging(2, lane_seeds=[1, 2])
    env.expand("body_mass")[1] *= factor
    env.batch.set_const()
    env.reset()
    for _ in range(5):
        rows = env.step(torch.ones(2, 1)).observation
    assert torch.equal(rows[0], rows[1]) == (factor == 1.0)


class StopsEarly(Callback):
    def iteration_ended(self, trainer, updates):
        if trainer.collector.env_steps > 50:
            trainer.stop("to be resumed")


def test_a_run_is_the_same_in_lanes_and_in_a_batch_and_after_a_resume(tmp_path, monkeypatch):
    """The very weights: so no receipt of a run changes with `vectorization`, and one of before goes on in lanes."""
    settings = {
        "env__num_envs": 4,
        "env__max_episode_steps": 20,
        "algorithm__unroll_length": 16,
        "algorithm__mini_batch_size": 32,
        "trainer__total_env_steps": 128,
        "trainer__eval_episodes": 0,
    }
    weights = {}
    recorded = {"serial": "serial", "auto": "batch", "resumed": "batch", "before": "auto"}
    more = {"resumed": {"env__num_threads": 3}, "before": {}}  # threads are a batch's
    for kind, vectorization in recorded.items():
        settings |= {"run__directory": str(tmp_path / kind)}
        settings["env__vectorization"] = "serial" if kind == "serial" else "auto"
        stop = (StopsEarly(),) if kind in more else ()
        with monkeypatch.context() as patched:
            if kind == "before":
                patched.setattr(lineage, "decided", lambda config: config)
            run = palaestra.train("ppo", "Hopper-v5", callbacks=stop, **settings)
        assert RunDirectory(run.directory).config.env.vectorization == vectorization
        if kind in more:
            assert run.result.env_steps < 128
            run = palaestra.resume(run.directory, **more[kind])
        assert run.result.env_steps >= 128
        weights[kind] = run.policy.state_dict()
    for name, expected in weights["serial"].items():
        for kind in recorded:
            assert torch.equal(weights[kind][name], expected), (kind, name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "CartPole-v1"}, "MuJoCo's tasks of version 5, and 'CartPole-v1' is none"),
        ({"name": "HalfCheetah-v4"}, "did you mean 'HalfCheetah-v5'"),
        ({"kwargs": {"nonsense": 1}}, "nonsense"),
        ({"gym_wrappers": ("ClipReward",)}, "are for single environments"),
        ({"on_fault": "restart"}, "fail as one"),
        ({"vectorization": "serial", "num_threads": 2}, "only vectorization=batch has them"),
    ],
)
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        create_environment(EnvConfig(**{"name": "HalfCheetah-v5", "vectorization": "batch", **settings}))


def test_a_simulation_that_explodes_is_named():
    """MuJoCo resets it without an exception."""
    with made("HalfCheetah-v5", "batch") as env:
        env.reset()
        env.step(torch.zeros(3, 6))
        env.batch.bind("qpos")[1] = np.nan
        with pytest.raises(EnvError, match=r"environment 1 became unstable \(episode 0, step 2\)"):
            env.step(torch.zeros(3, 6))


class Counting(BatchEnvironment):
    """Counts to 3, or does what it is told."""

    wrong = ""

    def __init__(self, batch_size, **settings):
        super().__init__(batch_size, Box(0, 3, (1,)), Box(0, 1, ()), **settings)
        self.count = np.zeros((batch_size, 1), np.float32)

    def fresh(self, lanes, seeds):
        self.count[lanes] = 0

    def transition(self, lanes, action):
        if self.wrong == "raises":
            raise ValueError("broken")
        self.count[lanes, 0] += 1
        reward = np.full(len(lanes), np.nan if self.wrong == "nan" else 1.0)
        return reward, self.count[lanes, 0] == 3

    def observe(self):
        return self.count[0] if self.wrong == "shape" else self.count

    def rows(self):
        return {"count": self.count}

    def set_rows(self, rows):
        self.count = rows["count"]


class TestCounting(BatchContract):
    def batch(self, seeds=(1, 2)):
        return Counting(len(seeds), lane_seeds=seeds)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("raises", "Counting raised ValueError when environment 0 was at episode 0, step 1: broken"),
        ("nan", "environment 0 emitted reward = nan"),
        ("shape", r"Counting observes shape \(1,\) and dtype float32, expected \(2, 1\)"),
    ],
)
def test_what_a_batch_of_ones_own_does_wrong_is_said(wrong, message):
    env = Counting(2, lane_seeds=[0, 1])
    env.reset()
    env.wrong = wrong
    with pytest.raises(PalaestraError, match=message):
        env.step(torch.zeros(2))
    env.wrong = ""
    assert env.step(torch.zeros(2)).first.all()  # which lanes were stepped is not known


def test_a_batch_that_changes_its_actions_does_not_change_what_was_done():
    class Halving(Counting):
        def transition(self, lanes, action):
            action *= 0.5
            return super().transition(lanes, action)

    env = Halving(2, lane_seeds=[0, 1])
    env.reset()
    assert env.step(torch.ones(2)).prev_action.tolist() == [1.0, 1.0]


def test_episodes_can_be_ended_from_outside():
    env = Counting(2, lane_seeds=[0, 1])
    env.reset()
    env.step(torch.zeros(2))
    env.end_episodes(torch.tensor([True, False]))
    assert env.step(torch.zeros(2)).step_type.tolist() == [0, 1]


@pytest.mark.parametrize(
    "layers",
    [
        ("EpisodeStatistics", "NormalizeReward"),
        ("ScaleReward(scale=0.3)", "NormalizeObservation", "NormalizeReward", "FrameStack", "EpisodeStatistics"),
        ("ClipReward", "EpisodeStatistics", "TimeAwareDiscount", "NormalizeAction", "SparseReward"),
    ],
)
def test_layers_have_the_same_bits(layers):
    """Rewards come to all of them before they are rounded, and roots are rounded correctly (torch's are not)."""
    assert compared("Hopper-v5", 150, max_episode_steps=30, info=(), wrappers=layers) >= 15


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, "batch"),
        ({"wrappers": ("NormalizeReward",), "info": ("*",), "kwargs": {"frame_skip": 2}}, "batch"),
        ({"num_envs": 1}, "auto"),
        ({"vectorization": "serial"}, "serial"),
        ({"vectorization": "process"}, "process"),
        ({"name": "CartPole-v1"}, "auto"),
        ({"gym_wrappers": ("ClipReward",)}, "auto"),
        ({"wrappers": ("RandomNoop(maximum=3)",)}, "auto"),
        ({"on_fault": "restart"}, "auto"),
        ({"timeout_s": 5.0}, "auto"),
        ({"strict": True}, "auto"),
        ({"chaos": "nan:0.01"}, "auto"),
        ({"variants": ({"kwargs": {"frame_skip": 4}},)}, "auto"),
        ({"kwargs": {"render_mode": "human"}}, "auto"),
    ],
)
def test_a_new_run_of_several_is_stepped_in_a_batch_where_that_can_be(settings, kind):
    """`auto` is decided once, and what was asked for is obeyed."""
    assert decided(EnvConfig(**{"name": "Hopper-v5", "num_envs": 4, **settings})).vectorization == kind


def test_without_batches_a_new_run_is_stepped_in_lanes(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco.batch", None)
    assert decided(EnvConfig(name="Hopper-v5", num_envs=4)).vectorization == "auto"
