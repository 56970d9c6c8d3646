"""With which other settings a run goes on, with which it does not, and what that makes of it."""

import dataclasses
import json

import pytest
import torch

import palaestra
from palaestra.config.config import config_from_mapping
from palaestra.core import CheckpointError, ConfigError
from palaestra.experiments import ExperimentConfig, RunDirectory, changes_between, list_runs, preset
from palaestra.runs.lineage import _computes_exactly, changed_config
from tests.experiments.parts import CHAIN, config_of, trained

MEETING = "palaestra.multiagent:Meeting"


def begun(folder, algorithm="ppo", env=CHAIN, **settings):
    """The directory of a run that has not begun."""
    base = preset(algorithm, env)
    return RunDirectory.create(
        config_from_mapping(ExperimentConfig, {"run__directory": str(folder)} | settings, base=base)
    )


def rule(observation):
    """A teacher."""
    return torch.zeros(len(observation), dtype=torch.int64)


def test_an_entry_that_is_none_is_not_one_that_is_missing(tmp_path):
    """It would be no change otherwise: not on the record, and not refused."""
    run = begun(tmp_path, env__kwargs={"length": 5})
    other = config_from_mapping(ExperimentConfig, {"env__kwargs": {"length": 5, "seed": None}}, base=run.config)
    assert changes_between(run.config, other) == {"env.kwargs.seed": (None, None)} == changes_between(other, run.config)
    with pytest.raises(ConfigError, match=r"env\.kwargs\.seed cannot change in a run that continues"):
        changed_config(run, {"env__kwargs": {"seed": None}})
    fields = changes_between(preset("ppo", CHAIN), preset("dqn", CHAIN))
    assert (None, None) not in fields.values()  # what an algorithm lacks is no difference


@pytest.mark.parametrize(
    ("algorithm", "env", "changed"),
    [
        ("ppo", CHAIN, {"algorithm__normalize_return": True}),
        ("ppo", CHAIN, {"algorithm__normalize_observation": True}),
        ("qmix", MEETING, {"algorithm__mixing": "sum"}),
        ("qmix", MEETING, {"algorithm__mixing_size": 8}),
        ("fql", "Pendulum-v1", {"algorithm__action_chunk": 2}),
        ("flash_sac", "Pendulum-v1", {"algorithm__actor_hidden_sizes": (8,)}),
        ("dreamer", CHAIN, {"algorithm__mini_batch_length": 8}),
    ],
)
def test_what_a_checkpoint_is_shaped_by_is_refused_at_once(tmp_path, algorithm, env, changed):
    (name,) = changed
    with pytest.raises(ConfigError, match=rf"{name.replace('__', '.')} cannot change in a run that continues"):
        changed_config(begun(tmp_path, algorithm, env), changed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm__bonus__weight": 0.3}, "has settings and no kind"),
        ({"robot__max_batch_size": 7}, "settings of robot are for robots"),
    ],
)
def test_what_does_nothing_is_refused_of_a_run_that_continues_unless_it_had_it(tmp_path, settings, message):
    run = begun(tmp_path)
    with pytest.raises(ConfigError, match=message):
        changed_config(run, settings)
    had = begun(tmp_path, run__name="had", **settings)  # as older versions have begun it
    assert changed_config(had, {"algorithm__gamma": 0.5}).algorithm.gamma == 0.5


def test_a_teacher_stays_and_its_path_begins_at_the_root(tmp_path, monkeypatch):
    run = begun(tmp_path, "dagger", algorithm__teacher=f"{__name__}:rule")
    with pytest.raises(ConfigError, match=r"dagger needs algorithm\.teacher"):
        changed_config(run, {"algorithm__teacher": None})
    (tmp_path / "moved").mkdir()
    monkeypatch.chdir(tmp_path)
    changed = changed_config(run, {"algorithm__teacher": "moved"})
    assert getattr(changed.algorithm, "teacher") == str((tmp_path / "moved").resolve())  # noqa: B009


def test_a_fork_that_cannot_go_on_is_removed(tmp_path):
    run = trained(tmp_path).directory
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("hidden_sizes:\n    - 8", "hidden_sizes:\n    - 9"))
    assert RunDirectory(run).config.algorithm.network.hidden_sizes == (9,)
    with pytest.raises(CheckpointError):
        palaestra.resume(run, fork=True, trainer__total_env_steps=160)
    assert list_runs(tmp_path) == [run]


def test_environments_that_are_stepped_in_another_way_go_on_exactly(tmp_path):
    whole = trained(tmp_path, "whole", trainer__total_env_steps=160)
    part = trained(tmp_path, "part", trainer__total_env_steps=160, trainer__stop_at_return=-9)
    assert part.result.env_steps < 100
    other = {"env__vectorization": "process", "env__num_workers": 2}
    fork = palaestra.resume(part.directory, fork=True, trainer__stop_at_return=None, **other)
    assert (fork.directory / "episodes.csv").read_text() == (whole.directory / "episodes.csv").read_text()
    ours, theirs = (one.policy.state_dict() for one in (fork, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert RunDirectory(fork.directory).info["resume"] == "exact"
    back = {"env__vectorization": "serial", "env__num_workers": None}
    again = palaestra.resume(fork.directory, trainer__total_env_steps=240, **back)
    assert RunDirectory(again.directory).info["resume"] == "exact"
    with pytest.raises(ConfigError, match=r"env\.vectorization cannot change"):
        palaestra.resume(again.directory, trainer__total_env_steps=480, env__vectorization="native")


def test_a_rate_of_multipliers_may_change(tmp_path):
    run = begun(tmp_path, algorithm__rewards__weights=(1.0, 0.0), algorithm__rewards__thresholds=(None, -1.0))
    assert changed_config(run, {"algorithm__rewards__multiplier_learning_rate": 0.5})


def test_nobody_leaves_self_play(tmp_path):
    """Snapshots play in episodes that run: these would be nobody's."""
    run = trained(tmp_path, env__name=MEETING, env__max_episode_steps=None, agents__self_play__pool_size=2).directory
    with pytest.raises(ConfigError, match="snapshots play in its running episodes"):
        palaestra.resume(run, trainer__total_env_steps=192, agents__self_play__pool_size=0)
    assert palaestra.resume(run, trainer__total_env_steps=192, agents__self_play__pool_size=3).result.env_steps >= 192


def test_with_another_epsilon_evaluations_are_compared_anew(tmp_path):
    settings = {"trainer__eval_episodes": 2, "run__directory": str(tmp_path), "trainer__eval_every_steps": 32}
    settings |= {"env__max_episode_steps": 6, "algorithm__network__hidden_sizes": (8,)}
    run = palaestra.train("dqn", CHAIN, trainer__total_env_steps=64, run__name="run", **settings).directory
    newest = max((run / "evals").glob("*.json"), key=lambda path: int(path.stem))
    newest.write_text(json.dumps({**json.loads(newest.read_text()), "return_mean": 1e9, "best": True}))
    kept = (run / "policy/weights.safetensors").stat().st_mtime_ns
    assert palaestra.resume(run, trainer__total_env_steps=96).result.best_return == 1e9
    assert palaestra.resume(run, trainer__total_env_steps=128, trainer__eval_epsilon=0.5).result.best_return < 1e9
    assert RunDirectory(run).kept_return == RunDirectory(run).info["best_return"]
    assert (run / "policy/weights.safetensors").stat().st_mtime_ns > kept


def test_a_run_goes_on_exactly_only_with_the_sums_of_both_sessions(tmp_path):
    config = config_of(tmp_path)
    now = lambda **run: dataclasses.replace(config, run=dataclasses.replace(config.run, **run))  # noqa: E731
    assert _computes_exactly(now(), now())
    assert not _computes_exactly(now(compile=True), now(compile=False))
    assert not _computes_exactly(now(precision="bf16"), now())
    gpu = {"device": "cuda"}
    assert not _computes_exactly(now(**gpu), now(**gpu, deterministic=True))
    assert _computes_exactly(now(**gpu, deterministic=True), now(**gpu, deterministic=True))
