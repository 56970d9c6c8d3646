"""Tests of `palaestra.experiments.offline`: training from loaded data, alone or beside one's own."""

import dataclasses
import json
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import palaestra
from palaestra import EnvConfig, preset
from palaestra.buffers import MixtureSource, ReplayBuffer, to_minari
from palaestra.config.presets import tuned
from palaestra.core import POLICY, BoundedSpec, CheckpointError, ConfigError, DiscreteSpec, TensorSpec
from palaestra.experiments import DataConfig, dry_run, evaluate_run, write_report
from palaestra.rollout import OfflineData
from palaestra.runs.lineage import for_new_run
from palaestra.runs.single import SingleLearner
from palaestra.testing.buffers import FIRST, LAST, MID
from palaestra.training import Callback
from tests.algorithms.parts import ATTENTION, slow_but_of
from tests.buffers.model import step
from tests.experiments.data import HYBRID, PENDULUM, SEQUENCES, SMALL, saved


def config_of(algorithm, data, env=PENDULUM, **offline):
    base = preset(algorithm, env.name)
    return dataclasses.replace(base, env=env, offline=DataConfig(data=data, **offline))


def loaded(algorithm, data, **offline):
    config = config_of(algorithm, data, **offline)
    learner = SingleLearner(config)
    return learner.load_data(), learner


# -- whole runs


@pytest.mark.parametrize(
    "name", slow_but_of(("behaviour_cloning", "td3_bc"), ["behaviour_cloning", "cql", "iql", "td3_bc", "rebrac", "fql"])
)
def test_an_offline_algorithm_trains_from_a_folder(name, tmp_path):
    """Issue 6: offline and imitation, with evaluations, checkpoints, policy and report; its clock is its updates."""
    data = saved(tmp_path / "data")
    done = palaestra.train(name, "Pendulum-v1", offline__data=data, run__directory=str(tmp_path / "runs"), **SMALL)
    assert (done.result.status, done.result.env_steps) == ("done", 60)
    assert {path.stem for path in (done.directory / "evals").iterdir()} == {"30", "60"}
    assert evaluate_run(done.directory, episodes=2).episodes == 2
    assert evaluate_run(done.directory, episodes=2, which="last").episodes == 2  # needs no data
    assert (done.directory / "report.html").is_file()
    assert palaestra.load_config(done.directory / "config.yaml").offline == DataConfig(data=data)


def test_data_in_a_relative_folder_are_found_wherever_the_run_goes_on(tmp_path, monkeypatch):
    saved(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert for_new_run(config_of("td3_bc", "data")).offline.data == str(tmp_path / "data")
    assert for_new_run(config_of("td3_bc", "d4rl:data")).offline.data == f"d4rl:{tmp_path / 'data'}"
    for name in ("minari:data", "minari:D4RL/pen", str(tmp_path / "data")):
        assert for_new_run(config_of("td3_bc", name)).offline.data == name


def test_a_discrete_one_does_too(tmp_path):
    data = saved(tmp_path / "data", EnvConfig(name="CartPole-v1"))
    sizes = {key: value for key, value in SMALL.items() if key != "env__max_episode_steps"}
    done = palaestra.train(
        "discrete_cql", "CartPole-v1", offline__data=data, run__directory=str(tmp_path / "runs"), **sizes
    )
    assert done.result.status == "done"


def test_a_hybrid_run_trains_from_both(tmp_path):
    """Issue 6: ALF's offline_buffer scheme."""
    data = saved(tmp_path / "data")
    done = palaestra.train(
        "sac",
        "Pendulum-v1",
        offline__data=data,
        offline__fraction=0.25,
        run__directory=str(tmp_path / "runs"),
        **SMALL,
        **HYBRID,
    )
    assert (done.result.status, done.result.env_steps) == ("done", 60)
    write_report([done.directory], tmp_path / "report.html")


@pytest.mark.slow
def test_several_seeds_learn_from_the_same_data(tmp_path):
    done = palaestra.train(
        "td3_bc",
        "Pendulum-v1",
        seeds=2,
        offline__data=saved(tmp_path / "data"),
        run__directory=str(tmp_path / "runs"),
        **SMALL,
    )
    assert done.exit_code == 0


@pytest.mark.parametrize("name", ["cql", "sac"])
def test_a_dry_run_leaves_nothing_behind(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    estimate = dry_run(config_of(name, saved(tmp_path / "data")))
    assert estimate.updates > 1
    assert (estimate.checkpoint_bytes < 3 * (estimate.model_bytes + estimate.buffer_bytes)) == (name == "cql")
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


# -- what is drawn


@pytest.mark.parametrize(("fraction", "expected"), [(0.25, 64), (None, 128)])
def test_every_minibatch_has_the_fraction(fraction, expected, tmp_path):
    data, learner = loaded("sac", saved(tmp_path / "data"), fraction=fraction)
    algorithm = learner.algorithm
    with learner.collecting(data) as made:
        collector: Any = made.collector
        assert isinstance(collector.source, MixtureSource)
        collector.collect(n_step=30)
        drawn = collector.source.draw(algorithm.plan, torch.Generator().manual_seed(0))
    own = collector.buffer.positions.ring_size * collector.buffer.num_lanes
    assert int((drawn.index >= own).sum()) == expected
    assert len(drawn.index) == 256


def test_an_offline_algorithm_needs_no_training_environment(tmp_path):
    data, learner = loaded("td3_bc", saved(tmp_path / "data"))
    with learner.collecting(data) as made:
        assert isinstance(made.collector, OfflineData)


@pytest.mark.parametrize(("name", "raw"), [("sac", [-1.0, 1.0]), ("iql", None)])
def test_actions_come_in_the_units_of_the_policy(name, raw, tmp_path):
    """A saved 2 of Pendulum's torque in [-2, 2] is 1 for a policy that samples in [-1, 1] (decision 0003)."""
    folder = saved(tmp_path / "data")
    data, learner = loaded(name, folder)
    buffer, algorithm = data[POLICY], learner.algorithm
    assert buffer.options["action_spec"] == algorithm.policy.raw_action_spec
    before = ReplayBuffer.load(folder)
    rows = before.starts(1)
    assert torch.allclose(buffer.take("action", rows), before.take("action", rows) / 2)
    assert before.take("action", rows).abs().max() > 1.5
    if raw is not None:
        assert buffer.take("action", rows).abs().max() <= 1


def test_prioritized_plans_have_priorities_in_the_data_as_well(tmp_path):
    folder = saved(tmp_path / "data", EnvConfig(name="CartPole-v1"))
    config = dataclasses.replace(preset("rainbow", "CartPole-v1"), offline=DataConfig(data=folder))
    buffer = SingleLearner(config).load_data()[POLICY]
    assert type(buffer.sampler).__name__ == "PrioritizedSampler"


def test_a_minari_dataset_is_read_by_its_id(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    before = ReplayBuffer.load(saved(tmp_path / "data"))
    spaces = gymnasium.make("Pendulum-v1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        to_minari(
            before,
            "pendulum/random-v0",
            observation_space=spaces.observation_space,
            action_space=spaces.action_space,
        )
    buffer = loaded("iql", "minari:pendulum/random-v0")[0][POLICY]
    assert len(buffer.episodes()) == len(before.episodes()) == 6
    rows, again = before.episodes()[2], buffer.episodes()[2]
    assert torch.equal(before.take("observation", rows), buffer.take("observation", again))
    assert torch.allclose(before.take("action", rows[:-1]) / 2, buffer.take("action", again[:-1]))
    with pytest.raises(ConfigError, match=r"which cannot be loaded .*`minari download pendulum/none-v0`"):
        loaded("iql", "minari:pendulum/none-v0")


# -- what is refused


def filled(folder, action_spec, *, observation=3, action=None, reward_spec=None, lasts=False, value=0.0):
    """A saved buffer whose rows say nothing."""
    buffer = ReplayBuffer(
        8, 1, observation_spec=TensorSpec((observation,)), action_spec=action_spec, reward_spec=reward_spec
    )
    reward = torch.zeros(1, *(reward_spec.shape if reward_spec else ()))
    buffer.open(step([FIRST], torch.zeros(1, observation), reward, torch.ones(1)))
    given = torch.full((1, *action_spec.shape), action or 0, dtype=action_spec.dtype)
    for kind in [FIRST] if lasts else [MID, MID, LAST]:
        buffer.append(given, step([kind], torch.full((1, observation), value), reward, torch.ones(1)))
    buffer.save(folder)
    return str(folder)


TORQUE = BoundedSpec((1,), minimum=np.array([-2.0], np.float32), maximum=np.array([2.0], np.float32))


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (TORQUE, {"observation": 4}, r"its observations are .*\(4,\).* but .*\(3,\).* is needed"),
        (DiscreteSpec(num=2), {}, "its actions are one: DiscreteSpec.*`palaestra data export`"),
        (TORQUE, {"reward_spec": TensorSpec((2,))}, r"its rewards have the shape \(2,\), but numbers are needed"),
        (TORQUE, {"action": 2.5}, r"in lane 0, row 0, action is 2\.5, not of BoundedSpec"),
        (TORQUE, {"action": float("nan")}, "in lane 0, row 0, action is nan, not of BoundedSpec"),
        (TORQUE, {"value": float("inf")}, "in lane 0, row 1, observation is inf, not of finite numbers"),
        (TORQUE, {"lasts": True}, "is too short for cql: no row can be learned from"),
    ],
)
def test_data_that_does_not_fit_is_refused(spec, options, message, tmp_path):
    folder = filled(tmp_path / "data", spec, **options)
    with pytest.raises(ConfigError, match=message):
        loaded("cql", folder)


@pytest.mark.parametrize("action", [-2.0, -2.00002, 2.0, 2.00002])
def test_actions_at_a_bound_are_learned_from_and_rounding_is_forgiven(action, tmp_path):
    """A hundred-thousandth of 1 + |bound|, to both sides: 2.00003, and no more."""
    assert len(loaded("cql", filled(tmp_path / "data", TORQUE, action=action))[0][POLICY]) == 3
    with pytest.raises(ConfigError, match="in lane 0, row 0, action is "):
        loaded("cql", filled(tmp_path / "wrong", TORQUE, action=action + 5e-5 * np.sign(action)))


def test_actions_that_are_no_choice_are_refused(tmp_path):
    """F27."""
    folder = filled(tmp_path / "data", DiscreteSpec(num=2), observation=4, action=2)
    with pytest.raises(ConfigError, match=r"in lane 0, row 0, action is 2, not of DiscreteSpec"):
        palaestra.train("discrete_cql", "CartPole-v1", offline__data=folder, run__directory=str(tmp_path))


def test_a_folder_without_a_buffer_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no saved buffer: it has no buffer\.json"):
        loaded("cql", str(tmp_path))


def test_damaged_data_is_a_fault_of_the_storage(tmp_path):
    """F11: not a mistake in the configuration; exit code 5."""
    folder = tmp_path / "data"
    saved(folder)
    rows = bytearray((folder / "rows.safetensors").read_bytes())
    rows[-5] ^= 1
    (folder / "rows.safetensors").write_bytes(rows)
    with pytest.raises(CheckpointError, match=r"rows\.safetensors is missing or damaged"):
        loaded("cql", str(folder))


def test_a_policy_with_a_memory_cannot_use_data_without(tmp_path):
    data = saved(tmp_path / "data", EnvConfig(name="CartPole-v1"))
    config = dataclasses.replace(preset("r2d2", "CartPole-v1"), offline=DataConfig(data=data))
    with pytest.raises(ConfigError, match="r2d2 stores the memory of its policy with every step"):
        SingleLearner(config).load_data()


def test_nothing_is_left_where_the_data_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        palaestra.train("cql", "Pendulum-v1", offline__data="none", run__directory=str(tmp_path / "runs"), **SMALL)
    with pytest.raises(ConfigError, match="no such folder"):
        palaestra.train(
            "cql", "Pendulum-v1", seeds=2, offline__data="none", run__directory=str(tmp_path / "runs"), **SMALL
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_resuming_with_other_data_is_refused_and_moved_data_is_not(tmp_path):
    """F25: whether it is the same data is told by its fingerprint, not by its path."""
    data = saved(tmp_path / "data")
    done = palaestra.train("td3_bc", "Pendulum-v1", offline__data=data, run__directory=str(tmp_path / "runs"), **SMALL)
    with pytest.raises(ConfigError, match="a run resumes with the data that it began with"):
        palaestra.resume(done.directory, offline__data=saved(tmp_path / "other", seed=2), trainer__total_env_steps=70)
    (tmp_path / "data").rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match="no such folder"):
        palaestra.resume(done.directory, trainer__total_env_steps=70)
    again = palaestra.resume(done.directory, offline__data=str(tmp_path / "moved"), trainer__total_env_steps=70)
    assert again.result.env_steps == 70
    overrides = json.loads((done.directory / "run.json").read_text())["overrides"]
    assert overrides[-1]["changes"]["offline.data"] == [data, str(tmp_path / "moved")]


def test_every_offline_algorithm_has_settings_for_classic_control():
    families = {(name, env) for name, env in tuned() if name in ("behaviour_cloning", "cql", "iql", "td3_bc")}
    assert {("cql", "Pendulum-v1"), ("iql", "Pendulum-v1"), ("td3_bc", "Pendulum-v1")} <= families
    assert {("behaviour_cloning", "Pendulum-v1"), ("behaviour_cloning", "CartPole-v1")} <= families
    assert ("discrete_cql", "CartPole-v1") in tuned()


# -- from data to steps of its own


ONLINE = {"offline__fraction": 0.5, "offline__updates": 20}


@pytest.mark.parametrize(
    "name",
    slow_but_of(
        ("decision_transformer", "td3_bc", "sac"),
        ["cql", "decision_transformer", "iql", "rebrac", "td3_bc", "discrete_cql", "sac"],
    ),
)
def test_an_algorithm_goes_on_with_steps_of_its_own(name, tmp_path):
    """Issue 21: 20 updates on the data, then 40 env steps of two environments, learned from beside the data."""
    discrete = name == "discrete_cql"
    env = EnvConfig(name="CartPole-v1", max_episode_steps=10) if discrete else PENDULUM
    seen: dict[str, int] = {}

    class Watch(Callback):
        def iteration_ended(self, trainer, updates):
            source = trainer.collector.sources[POLICY]
            kind = "data" if isinstance(source, ReplayBuffer) else "both"
            seen[kind] = seen.get(kind, 0) + len(updates)

    more = HYBRID | {"algorithm__learning_starts": 30} if name == "sac" else {"env__num_envs": 2}
    if name == "decision_transformer":
        more |= {"algorithm__network": ATTENTION, "algorithm__mini_batch_length": 4}
    done = palaestra.train(
        name,
        env.name,
        callbacks=[Watch()],
        offline__data=saved(tmp_path / "data", env),
        run__directory=str(tmp_path / "runs"),
        **(SEQUENCES if name == "decision_transformer" else SMALL) | ONLINE | more,
    )
    assert (done.result.status, done.result.env_steps) == ("done", 60)
    assert seen["data"] == 20
    least = 16 if name == "decision_transformer" else 18  # of own steps it needs a sequence
    assert seen["both"] >= least  # one after each step of all environments but the first one or two, and after resets
    assert {path.stem for path in (done.directory / "evals").iterdir()} == {"30", "60"}
    again = palaestra.resume(done.directory, trainer__total_env_steps=70)
    assert again.result.env_steps == 70


@pytest.mark.slow
def test_an_offline_run_that_has_ended_goes_online(tmp_path):
    """F25: resumed with a fraction; what it has made are the updates on the data, and it collects from then on."""
    run, data = {"run__directory": str(tmp_path / "runs")}, saved(tmp_path / "data")
    done = palaestra.train("td3_bc", "Pendulum-v1", offline__data=data, **run, **SMALL)
    own: list[int] = []

    class Watch(Callback):
        def iteration_ended(self, trainer, updates):
            own.append(len(trainer.collector.buffers[POLICY]))

    more = {"callbacks": [Watch()], "trainer__total_env_steps": 90}
    gone_on = palaestra.resume(done.directory, offline__fraction=0.5, **more)
    assert (gone_on.result.status, gone_on.result.env_steps) == ("done", 90)
    assert (own[0], own[-1]) == (1, 32)  # 30 env steps, and a row after each of the episodes that have ended
    assert palaestra.load_config(done.directory / "config.yaml").offline == DataConfig(
        data=data, fraction=0.5, updates=60
    )
    assert palaestra.resume(done.directory, trainer__total_env_steps=95).result.env_steps == 95
    for back in ({"offline__fraction": None}, {"offline__updates": 0}):
        with pytest.raises(ConfigError, match=r"cannot become .* an offline run goes online by a fraction alone"):
            palaestra.resume(done.directory, trainer__total_env_steps=100, **back)


def test_what_collects_explores(tmp_path):
    data, learner = loaded("td3_bc", saved(tmp_path / "data"), fraction=0.5, updates=3)
    with learner.collecting(data) as made:
        collector: Any = made.collector
        for _ in range(3):
            assert collector.unroll(1).env_steps == 0
            assert isinstance(collector.sources[POLICY], ReplayBuffer)
        policy = learner.algorithm.policy
        assert collector.unroll(10).env_steps == 10
        buffer = collector.buffers[POLICY]
        rows = buffer.starts(1)
        planned = policy.action(buffer.take("observation", rows)).detach()
        noise = buffer.take("action", rows) - planned
        assert 0.01 < float(noise.std()) < 0.3
        assert isinstance(collector.sources[POLICY], MixtureSource)
        assert (collector.env_steps, collector.updates_made) == (13, 3)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("behaviour_cloning", {"fraction": 0.5}, "behaviour_cloning imitates its data, so that steps of its own"),
        ("td3_bc", {"updates": 5}, "leave out both, or give a fraction to go on with steps of one agent"),
        ("td3_bc", {"fraction": 0.5, "updates": 10**6}, "none is left for env steps"),
    ],
)
def test_what_cannot_go_on_says_why(name, settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        loaded(name, saved(tmp_path / "data"), **settings)


def test_updates_on_data_need_some():
    with pytest.raises(ConfigError, match=r"offline\.updates is 5, but there is no offline\.data"):
        DataConfig(updates=5)
