"""Tests of `palaestra.runs.data`: data sets from runs, policies and chance."""

import dataclasses

import gymnasium
import pytest
import torch

import palaestra
from palaestra import EnvConfig, preset
from palaestra.buffers import ReplayBuffer, from_minari
from palaestra.core import CheckpointError, ConfigError, DiscreteSpec, ShapeError, StepType, TensorSpec, TimeStep
from palaestra.experiments import DataConfig, collect_data, export_data, export_minari, find_run, policy_of_run
from palaestra.multiagent import AgentsConfig
from palaestra.runs.datasets import collect_by_chance
from palaestra.runs.team import TeamLearner
from palaestra.training import CheckpointStore
from tests.experiments.data import HYBRID, PENDULUM, SMALL, saved
from tests.experiments.parts import trained


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run of SAC with two environments."""
    folder = str(tmp_path_factory.mktemp("runs"))
    settings = SMALL | HYBRID | {"env__num_envs": 2}
    return palaestra.train("sac", "Pendulum-v1", run__directory=folder, run__name="run", **settings).directory


def test_chance_makes_data_in_the_units_of_the_environment(tmp_path):
    summary = collect_data(None, PENDULUM, tmp_path / "data", steps=60, seed=1)
    buffer = ReplayBuffer.load(tmp_path / "data")
    assert (summary.steps, summary.episodes) == (60, 6)
    rows = buffer.starts(1)
    assert len(rows) == 60
    assert 1.5 < float(buffer.take("action", rows).abs().max()) <= 2.0
    returns = [float(buffer.take("reward", rows[1:]).sum()) for rows in buffer.episodes()]
    assert summary.return_mean == pytest.approx(sum(returns) / 6)


def test_the_same_seed_gives_the_same_data(tmp_path):
    """And another seed other data."""
    one, two, other = (
        ReplayBuffer.load(saved(tmp_path / name, seed=seed)) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert torch.equal(one[one.in_time_order(0)[:-1]].action, two[two.in_time_order(0)[:-1]].action)
    assert torch.equal(one[one.in_time_order(0)].observation, two[two.in_time_order(0)].observation)
    assert not torch.equal(one[one.in_time_order(0)].observation, other[other.in_time_order(0)].observation)


@pytest.mark.parametrize("env", [PENDULUM, EnvConfig(name="palaestra.multiagent:Meeting")])
def test_data_whose_folder_was_taken_meanwhile_is_kept_beside_it(env, tmp_path, monkeypatch, caplog):
    """It was lost when it was there at last."""
    monkeypatch.setattr("palaestra.runs.datasets.require_new", lambda *_, **__: None)
    (tmp_path / "data").mkdir()
    (tmp_path / "data_2").write_text("another's")
    summary = collect_by_chance(env, AgentsConfig(), tmp_path / "data", steps=20)
    assert f"{tmp_path / 'data'} has come to exist meanwhile; the data is in {tmp_path / 'data_3'}" in caplog.text
    assert str(summary.path).startswith(f"{tmp_path / 'data_3'}")
    assert [*(tmp_path / "data").iterdir()] == []
    assert [*(tmp_path / "data_3").rglob("buffer.json")]


def test_a_folder_for_data_that_cannot_be_written_is_gone(tmp_path, monkeypatch):
    def full(*_, **__):
        raise CheckpointError("no space left")

    monkeypatch.setattr(ReplayBuffer, "save", full)
    with pytest.raises(CheckpointError):
        collect_data(None, PENDULUM, tmp_path / "data", steps=20)
    assert [*tmp_path.iterdir()] == []


def test_several_environments_are_lanes(tmp_path):
    summary = collect_data(None, dataclasses.replace(PENDULUM, num_envs=3), tmp_path / "data", steps=60)
    buffer = ReplayBuffer.load(tmp_path / "data")
    assert buffer.num_lanes == 3
    assert summary.steps >= 60


def test_data_has_the_rewards_of_the_task(tmp_path):
    """What is for training alone, such as normalised rewards, is left out."""
    env = EnvConfig(name="CartPole-v1", train_wrappers=("NormalizeReward",))
    collect_data(None, env, tmp_path / "data", steps=40)
    buffer = ReplayBuffer.load(tmp_path / "data")
    rows = buffer.starts(1)
    assert set(buffer.take("reward", buffer.next(rows)).tolist()) == {1.0}


def test_the_policy_of_a_run_makes_data(run, tmp_path):
    """Its actions are executed ones, so that any other algorithm can learn from them."""
    directory = find_run(run)
    for which in ("best", "last"):
        policy = policy_of_run(directory, which)
        collect_data(policy, directory.config.env.for_evaluation(1), tmp_path / which, steps=30)
        buffer = ReplayBuffer.load(tmp_path / which)
        assert buffer.options["action_spec"] == policy.action_spec
        assert len(buffer.starts(1)) == 30


def test_a_policy_with_a_memory_makes_data_too(tmp_path):
    done = trained(
        tmp_path,
        algorithm__network__recurrent="gru",
        algorithm__network__recurrent_size=4,
        algorithm__mini_batch_length=8,
    )
    directory = find_run(done.directory)
    env = directory.config.env.for_evaluation(2)
    assert collect_data(policy_of_run(directory), env, tmp_path / "data", steps=20).steps >= 20


@pytest.mark.slow
def test_the_replay_buffer_of_a_run_is_exported(run, tmp_path):
    """The rows of the newest checkpoint, with a SAC action of 0.5 as the torque 1."""
    summary = export_data(run, tmp_path / "data")
    buffer = ReplayBuffer.load(tmp_path / "data")
    _, state = CheckpointStore(run / "checkpoints").load_newest()
    assert (summary.steps, buffer.num_lanes) == (60, 2)
    stored = state["buffer"]["field.observation"]
    assert torch.equal(buffer[buffer.in_time_order(1)].observation, torch.as_tensor(stored)[: len(stored), 1])
    raw, executed = torch.as_tensor(state["buffer"]["field.action"]), buffer[buffer.in_time_order(0)[:-1]]
    acted = executed.step_type != 2
    assert torch.allclose(executed.action[acted], 2 * raw[: len(acted), 0][acted])
    again = palaestra.train(
        "iql", "Pendulum-v1", offline__data=str(tmp_path / "data"), run__directory=str(tmp_path), **SMALL
    )
    assert again.result.status == "done"


def test_a_folder_says_where_its_rows_come_from(tmp_path):
    """The task with its wrappers, and whether rewards are the task's; nothing of an environment without a name."""
    env = EnvConfig(
        name="CartPole-v1", wrappers=("ScaleReward(scale=2.0)",), train_wrappers=("NormalizeReward",), num_envs=2
    )
    task = {
        "environment": "CartPole-v1",
        "task": "CartPole-v1 env.max_episode_steps=500 ScaleReward(scale=2.0)",
        "rewards": "of the task",
    }
    collect_data(None, env, tmp_path / "collected", steps=10)
    assert ReplayBuffer.load(tmp_path / "collected").origin == task
    settings = SMALL | HYBRID | {"env__max_episode_steps": None, "trainer__eval_episodes": 1}
    settings |= {"env__wrappers": env.wrappers, "env__train_wrappers": env.train_wrappers}
    done = palaestra.train("dqn", "CartPole-v1", run__directory=str(tmp_path / "runs"), **settings)
    export_data(done.directory, tmp_path / "exported")
    found = ReplayBuffer.load(tmp_path / "exported").origin
    assert found == task | {"rewards": "of training, with NormalizeReward"}
    given = EnvConfig(name=lambda: gymnasium.make("CartPole-v1"))
    collect_data(None, given, tmp_path / "given", steps=10)
    assert ReplayBuffer.load(tmp_path / "given").origin == {"rewards": "of the task"}


def test_a_run_without_a_replay_buffer_has_nothing_to_export(tmp_path):
    done = trained(tmp_path)
    with pytest.raises(ConfigError, match=r"ppo keeps no replay buffer .* `palaestra data collect"):
        export_data(done.directory, tmp_path / "data")
    with pytest.raises(CheckpointError, match="there is no run 'nope'"):
        export_data("nope", tmp_path / "data", root=tmp_path)


def test_nothing_is_overwritten(run, tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        export_data(run, tmp_path / "data")
    with pytest.raises(ConfigError, match="exists already"):
        collect_data(None, PENDULUM, tmp_path / "data", steps=10)
    with pytest.raises(ConfigError, match="--steps is 0; it must be at least 1"):
        collect_data(None, PENDULUM, tmp_path / "new", steps=0)


def test_a_data_set_goes_to_minari(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    folder = saved(tmp_path / "data", steps=64)
    made = export_minari(folder, "pendulum/test-v0")
    assert (made.steps, made.episodes, made.left_out) == (60, 6, 4)
    assert ": 60 steps, 6 complete episodes, " in str(made) and ", 4 steps of others left out" in str(made)
    before = ReplayBuffer.load(folder)
    options = {name: before.options[name] for name in ("observation_spec", "action_spec")}
    after = from_minari("pendulum/test-v0", **options)
    assert len(after.episodes()) == 6
    assert torch.equal(before[before.episodes()[3]].reward[1:], after[after.episodes()[3]].reward[1:])
    with pytest.raises(ConfigError, match="Minari cannot write"):
        export_minari(folder, "pendulum/test-v0")


def test_pictures_do_not_go_to_minari(tmp_path, monkeypatch):
    """Of which it makes JPEG; nothing is written then."""
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    spec = TensorSpec((40, 40), torch.uint8)
    buffer = ReplayBuffer(4, 1, observation_spec=spec, action_spec=DiscreteSpec(num=2))
    for kind in (StepType.FIRST, StepType.LAST):
        seen = TimeStep(torch.tensor([kind], dtype=torch.int32), torch.zeros(1), torch.ones(1), spec.zeros(1))
        buffer.open(seen) if kind == StepType.FIRST else buffer.append(torch.tensor([0]), seen)
    buffer.save(tmp_path / "data")
    with pytest.raises(ConfigError, match=r"^Minari stores uint8 arrays such as observation .* as JPEG"):
        export_minari(tmp_path / "data", "catch/test-v0")
    assert not (tmp_path / "datasets").exists()


@pytest.mark.parametrize("mapping", [{"*": "policy"}, {"agent_0": "other", "*": "policy"}])
def test_of_many_agents_one_whose_policy_is_called_policy_has_its_folder(mapping, tmp_path):
    """Data went into the folder of all, or nowhere, and was looked for in one of its name."""
    env, agents = EnvConfig(name="palaestra.multiagent:Meeting"), AgentsConfig(mapping=mapping)
    made = collect_by_chance(env, agents, tmp_path / "data", steps=40)
    assert {name: part.path for name, part in made.parts.items()} == {
        name: str(tmp_path / "data" / name) for name in mapping.values()
    }
    base = dataclasses.replace(preset("discrete_cql", env.name), env=env, agents=agents)

    def found(folder):
        learner = TeamLearner(dataclasses.replace(base, offline=DataConfig(data=str(folder))))
        return {name: len(buffer) for name, buffer in learner.load_data(new=True).items()}

    whole = found(tmp_path / "data")
    assert whole.keys() == set(mapping.values())
    (tmp_path / "data" / "policy").rename(tmp_path / "older")  # as it was written before
    for name in set(whole) - {"policy"}:
        (tmp_path / "data" / name).rename(tmp_path / "older" / name)
    assert found(tmp_path / "older") == whole


def test_data_and_own_rows_keep_what_the_environment_says_besides_or_leave_it_out(tmp_path):
    """Of what only the data has, nothing is drawn; what only the run asks for is refused before it begins."""
    plain, info = EnvConfig(name="FrozenLake-v1"), EnvConfig(name="FrozenLake-v1", info=("prob",))
    for name, env in {"plain": plain, "info": info}.items():
        collect_data(None, env, tmp_path / name, steps=40)
    settings = {"offline__fraction": 0.5, "algorithm__learning_starts": 10, "trainer__total_env_steps": 20}
    settings |= {"run__directory": str(tmp_path), "trainer__eval_episodes": 0, "algorithm__mini_batch_size": 8}
    for data, kept, fits in (("info", ("prob",), True), ("info", (), True), ("plain", ("prob",), False)):
        given = {**settings, "offline__data": str(tmp_path / data), "env__info": kept}
        if fits:
            assert palaestra.train("dqn", "FrozenLake-v1", **given).result.status == "done"
        else:
            with pytest.raises(ShapeError, match=r"collect the data with the same env.info"):
                palaestra.train("dqn", "FrozenLake-v1", **given)
