"""Tests of what the actions of data are, as executed or a policy's raw ones, and of which bounds."""

import dataclasses

import numpy as np
import pytest
import torch

import palaestra
from palaestra import Collector, RunSeeds, create_environment, preset
from palaestra.algorithms import DQN, IQL, SAC, TD3, TD3BC
from palaestra.analysis import data_of, evaluate_offline
from palaestra.buffers import MixtureSource, ReplayBuffer, from_arrays, other_actions, with_actions
from palaestra.core import BoundedSpec, ConfigError, DiscreteSpec, ShapeError, TensorSpec
from palaestra.experiments import DataConfig, dry_run, export_minari
from palaestra.policies import raw_actions
from palaestra.rollout import OfflineData, origin_of
from palaestra.runs.data import read_for
from palaestra.runs.single import SingleLearner
from palaestra.training import Trainer, TrainerConfig
from tests.algorithms.parts import KINDS
from tests.experiments.data import PENDULUM, saved

SEEN, TORQUE = TensorSpec((3,)), BoundedSpec((1,), minimum=np.array([-2.0]), maximum=np.array([2.0]))
HALF = BoundedSpec((1,), minimum=np.array([-1.0]), maximum=np.array([1.0]))


def policy_of(kind, spec=TORQUE):
    return kind(SEEN, spec, seeds=RunSeeds(0)).policy


def rows(actions, spec):
    """A buffer with executed actions."""
    n = len(actions)
    data = {"obs": np.zeros((n, 3)), "action": actions, "reward": np.zeros(n), "next_obs": np.zeros((n, 3))}
    data |= {"terminated": np.zeros(n, bool), "truncated": np.arange(n) == n - 1}
    return from_arrays(data, observation_spec=SEEN, action_spec=spec)


def untold(folder, spec, action=0.5, origin=None):
    """A folder of an earlier version: it says nothing of what its actions are."""
    buffer = with_actions(rows(np.full((3, 1), action), spec), spec, lambda action: action)
    buffer.save(folder, origin=origin)
    return str(folder)


def executed(policy, buffer):
    return policy.env_action(buffer.take("action", np.arange(3))).flatten().tolist()


@pytest.mark.parametrize("kind", [IQL, SAC])
@pytest.mark.parametrize("spec", [TORQUE, TensorSpec((1,))])
def test_executed_actions_are_executed_ones_whatever_their_spec_looks_like(kind, spec, tmp_path):
    """Without bounds they were taken for a Gaussian policy's raw ones: it acted twice as strongly as the data."""
    rows([[2.0], [1.0], [-0.5]], spec).save(tmp_path / "data")
    policy = policy_of(kind)
    assert executed(policy, read_for(policy, str(tmp_path / "data"), None)) == [2.0, 1.0, -0.5]


def test_actions_without_bounds_lie_within_those_of_the_environment(tmp_path):
    rows([[2.0], [2.5]], TensorSpec((1,))).save(tmp_path / "data")
    with pytest.raises(ConfigError, match=r"in lane 0, row 1, action is 2\.5, not of BoundedSpec"):
        read_for(policy_of(IQL), str(tmp_path / "data"), None)


@pytest.mark.parametrize("kind", [SAC, TD3, IQL])
def test_actions_of_other_bounds_are_refused_by_every_algorithm(kind, tmp_path):
    """Raw ones, too: SAC samples in [-1, 1] everywhere, and what was executed was half of what it is here."""
    rows([[1.0], [0.5]], HALF).save(tmp_path / "executed")
    told = r"its actions are one: BoundedSpec\(.*minimum=-1.0.*, but the environment's are one: .*minimum=-2.0"
    with pytest.raises(ConfigError, match=told + r".*`palaestra.buffers.with_actions`"):
        read_for(policy_of(kind), str(tmp_path / "executed"), None)
    wide = BoundedSpec((1,), minimum=np.array([-3.0]), maximum=np.array([3.0]))
    for name, spec in (("own", TORQUE), ("other", wide)):
        raw = policy_of(kind, spec).raw_action_spec
        made = with_actions(rows([[1.0], [0.5], [0.0]], raw), raw, lambda action: action, executed_spec=spec)
        made.save(tmp_path / name)
    assert executed(policy_of(kind), read_for(policy_of(kind), str(tmp_path / "own"), None)) == [2.0, 1.0, 0.0]
    with pytest.raises(ConfigError, match=r"its actions are .*, raw ones of one: .*minimum=-3.0, .*minimum=-2.0"):
        read_for(policy_of(kind), str(tmp_path / "other"), None)


def test_where_bounds_are_one_raw_actions_are_executed_ones_whatever_the_folder_says(tmp_path):
    """And a dtype is no unit: Shimmy's environments have float64 actions."""
    double = dataclasses.replace(HALF, dtype=torch.float64)
    for kind, spec in ((IQL, TensorSpec((1,))), (IQL, HALF), (SAC, HALF), (SAC, TensorSpec((1,)))):
        for own in (HALF, double):
            rows([[1.0], [0.5], [-0.25]], spec).save(tmp_path / f"{kind.__name__}{spec}{own}")
            policy = policy_of(kind, own)
            found = read_for(policy, str(tmp_path / f"{kind.__name__}{spec}{own}"), None)
            assert executed(policy, found) == [1.0, 0.5, -0.25]
    for kind, spec in ((IQL, TensorSpec((1,))), (SAC, HALF)):
        folder = untold(tmp_path / kind.__name__, spec)
        assert executed(policy_of(kind, HALF), read_for(policy_of(kind, HALF), folder, None)) == [0.5] * 3


def test_choices_that_begin_elsewhere_are_refused(tmp_path):
    rows([0, 2], DiscreteSpec(num=3)).save(tmp_path / "data")
    with pytest.raises(ConfigError, match=r"its actions are one: .*start=0\), but the environment's are .*start=5\)"):
        read_for(policy_of(DQN, DiscreteSpec(num=3, start=5)), str(tmp_path / "data"), None)


def test_folders_say_what_was_executed(tmp_path):
    """Also a collector's own buffer, saved by hand, whose actions are raw."""
    assert ReplayBuffer.load(saved(tmp_path / "collected")).options["executed_spec"] == TORQUE
    with create_environment(PENDULUM, seed=1) as env:
        sac = SAC(env.observation_spec, env.action_spec, seeds=RunSeeds(0))
        collector = Collector.of(env, sac)
        collector.collect(n_step=20)
    collector.buffer.save(tmp_path / "raw")
    kept = ReplayBuffer.load(tmp_path / "raw")
    assert (kept.options["executed_spec"], kept.options["action_spec"]) == (TORQUE, sac.policy.raw_action_spec)
    read = read_for(sac.policy, str(tmp_path / "raw"), PENDULUM)
    assert torch.equal(read.take("action", np.arange(10)), collector.buffer.take("action", np.arange(10)))
    pytest.importorskip("minari")
    with pytest.raises(ConfigError, match=r"the buffer's actions are raw.*`palaestra data export`"):
        export_minari(tmp_path / "raw", "pendulum/raw-v0")


@pytest.mark.parametrize(("kind", "spec"), [(IQL, TensorSpec((1,))), (SAC, HALF)])
def test_a_folder_that_does_not_say_it_is_refused_by_new_runs_alone(kind, spec, tmp_path):
    """Its actions may be raw or executed; a run that began with it goes on with what it took them for."""
    policy, task = policy_of(kind), origin_of(PENDULUM)
    plain = untold(tmp_path / "plain", spec)
    same = untold(tmp_path / "same", spec, origin=task)  # what lies in it was collected there, raw or not
    for folder in (plain, same):
        assert executed(policy, read_for(policy, folder, PENDULUM, new=False)) == [1.0, 1.0, 1.0]
        with pytest.raises(ConfigError, match=r"does not say whether its actions, one: .* are raw.*with_actions\("):
            read_for(policy, folder, PENDULUM)
    assert executed(policy, read_for(policy, untold(tmp_path / "clear", TORQUE), None)) == [0.5, 0.5, 0.5]
    for convert, found in ((policy.env_action, 1.0), (lambda action: action, 0.5)):
        with_actions(ReplayBuffer.load(plain), TORQUE, convert).save(tmp_path / str(found))
        assert executed(policy, read_for(policy, str(tmp_path / str(found)), None)) == [found] * 3


def test_all_that_is_new_refuses_such_a_folder(tmp_path):
    folder = untold(tmp_path / "data", TensorSpec((1,)))
    given = {"offline__data": folder, "run__directory": str(tmp_path / "runs")}
    config = dataclasses.replace(preset("iql", "Pendulum-v1"), offline=DataConfig(data=folder))
    for begin in (
        lambda: palaestra.train("iql", "Pendulum-v1", **given),
        lambda: palaestra.train("iql", "Pendulum-v1", seeds=2, **given),
        lambda: dry_run(config),
        lambda: data_of(policy_of(IQL), folder, PENDULUM),
    ):
        with pytest.raises(ConfigError, match="does not say whether its actions"):
            begin()
    assert SingleLearner(config).load_data()


FREE, DOUBLE = TensorSpec((1,)), dataclasses.replace(TORQUE, dtype=torch.float64)
UPWARDS = BoundedSpec((1,), minimum=0.0, maximum=np.inf)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((HALF, TORQUE), (TORQUE, TORQUE), False),
        ((FREE, TORQUE), (TORQUE, TORQUE), False),
        ((FREE, TORQUE), (FREE, FREE), False),
        ((HALF, TORQUE), (HALF, dataclasses.replace(TORQUE, maximum=np.array([3.0]))), False),
        ((HALF, TORQUE), (HALF, HALF), False),
        ((HALF, TORQUE), (TORQUE, None), False),
        ((DiscreteSpec(num=2), DiscreteSpec(num=2, start=3)), (DiscreteSpec(num=2, start=3), None), False),
        ((HALF, TORQUE), (HALF, None), True),
        ((HALF, TORQUE), (HALF, FREE), True),
        ((HALF, TORQUE), (HALF, DOUBLE), True),
        ((TORQUE, TORQUE), (FREE, FREE), True),
        ((FREE, HALF), (HALF, HALF), True),
        ((FREE, UPWARDS), (UPWARDS, UPWARDS), True),
        ((TORQUE, None), (TORQUE, None), True),
    ],
)
def test_what_goes_together_is_of_one_unit(one, other, same):
    """Unknown ones, of folders of earlier versions, go with what they look like; in [-1, 1] raw ones are executed."""
    parts = [{"action_spec": kept, "executed_spec": executed} for kept, executed in (one, other)]
    for first, second in (parts, parts[::-1]):
        assert (other_actions({"one": first, "the other": second}) == "") == same


def test_executed_and_raw_actions_come_together_by_what_the_message_says():
    """Both were appended and mixed without a word, and learned from raw: of each torque a policy saw another one."""
    policy = policy_of(SAC)
    done = rows([[2.0], [1.0], [-0.5]], TORQUE)
    raw = with_actions(
        done,
        policy.raw_action_spec,
        lambda action: raw_actions(action, policy.action_spec, policy.raw_action_spec),
        executed_spec=policy.action_spec,
    )
    back = with_actions(raw, policy.action_spec, policy.env_action, executed_spec=policy.action_spec)
    told = r"are BoundedSpec\(.*, as executed.*are BoundedSpec\(.*, raw ones of BoundedSpec.*with_actions"
    for one, other in ((done, raw), (raw, done)):
        joined = ReplayBuffer(None, 1, **one.options)
        joined.update(one)
        with pytest.raises(ShapeError, match="equal numbers are other actions"):
            joined.update(other)
        with pytest.raises(ShapeError, match=r"of buffer 0 are .*, and those of buffer 1 are"):
            MixtureSource([(one, 0.5), (other, 0.5)])
        assert len(joined) == len(one)
    joined = ReplayBuffer(None, 1, **done.options)
    joined.update(back)
    assert joined.action[:3].flatten().tolist() == [2.0, 1.0, -0.5]
    with pytest.raises(ShapeError, match=told):
        Trainer(OfflineData(done), TD3BC(SEEN, TORQUE), TrainerConfig(total_env_steps=1))
    Trainer(OfflineData(raw), TD3BC(SEEN, TORQUE), TrainerConfig(total_env_steps=1))


def test_a_policy_is_worth_by_a_buffer_what_it_is_by_its_folder(tmp_path):
    """Executed actions were taken for raw ones."""
    saved(tmp_path / "data")
    data = ReplayBuffer.load(tmp_path / "data")
    policy, few = policy_of(SAC, data.options["action_spec"]), {"gamma": 0.5, "updates": 3, "members": 2}
    assert evaluate_offline(policy, data, **few) == evaluate_offline(policy, str(tmp_path / "data"), **few)
    with pytest.raises(ConfigError, match="the data does not fit the policy: its actions are one: DiscreteSpec"):
        evaluate_offline(policy, rows([0, 2], DiscreteSpec(num=3)), **few)


def another(action):
    """Of the tiny environments with masks: an action that is forbidden at times."""
    return (action + 1) % 3 if isinstance(action, torch.Tensor) else action.replace(lever=action["lever"] % 3 + 1)


@pytest.mark.parametrize("kind", ["masked", "composite"])
def test_new_runs_alone_refuse_actions_that_masks_forbid(kind, tmp_path):
    """Their loss was infinite, and nothing said."""
    buffer = ReplayBuffer.load(saved(tmp_path / "data", KINDS[kind]))
    spec = buffer.options["action_spec"]
    with_actions(buffer, spec, another, executed_spec=spec).save(tmp_path / "wrong")
    base = dataclasses.replace(preset("behaviour_cloning", KINDS[kind].name), env=KINDS[kind])
    offline = [DataConfig(data=str(tmp_path / name)) for name in ("data", "wrong")]
    right, wrong = (SingleLearner(dataclasses.replace(base, offline=one)) for one in offline)
    assert right.load_data(new=True)
    said = r"in lane 0, row \d+, action is .*, which the observation's action_mask forbids"
    with pytest.raises(ConfigError, match=said):
        wrong.load_data(new=True)
    assert wrong.load_data()  # of a run that goes on
