"""Tests of `palaestra.experiments.run` and `palaestra.runs.run_directory`."""

import dataclasses
import errno
import functools
import importlib
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import palaestra
import palaestra.envs.tiny
from palaestra import ExperimentConfig, RunSeeds, load_policy
from palaestra.config.config import config_from_mapping
from palaestra.core import CheckpointError, ConfigError, NonFiniteError
from palaestra.experiments import (
    RunDirectory,
    evaluation_environment,
    find_run,
    list_runs,
    make_algorithm,
    preset,
    read_evaluations,
)
from palaestra.policies import save_policies
from palaestra.training import CheckpointStore
from tests.faults.parts import differences
from tests.training.parts import Recorder

SMALL: dict[str, Any] = {
    "env__max_episode_steps": 6,
    "env__num_envs": 2,
    "trainer__total_env_steps": 96,
    "trainer__eval_every_steps": 40,
    "trainer__eval_episodes": 4,
    "algorithm__unroll_length": 8,
    "run__tensorboard": False,
}
CHAIN = "palaestra.envs.tiny:Chain"


def trained(folder: Path, name: str = "run", **settings: Any) -> palaestra.RunResult:
    env = settings.pop("env__name", CHAIN)
    return palaestra.train("ppo", env, run__directory=str(folder), run__name=name, **(SMALL | settings))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run, to look at."""
    return trained(tmp_path_factory.mktemp("runs"), run__tensorboard=True, run__seed=4)


def test_a_run_directory_holds_everything(done):
    """DESIGN.md section 9."""
    names = {path.name for path in done.directory.iterdir()}
    assert {"config.yaml", "run.json", "metrics.jsonl", "episodes.csv", "checkpoints", "policy", "evals"} <= names
    assert {"videos", "plots", "tensorboard", "faults"} <= names
    assert list((done.directory / "tensorboard").iterdir())
    config = palaestra.load_config(done.directory / "config.yaml")
    assert (config.algorithm_name, config.env.name, config.run.seed) == ("ppo", CHAIN, 4)
    assert config.trainer.total_env_steps == 96


def test_run_json_says_where_the_run_comes_from_and_how_it_ended(done):
    info = json.loads((done.directory / "run.json").read_text())
    assert info["status"] == "done"
    assert info["seed"] == 4
    assert info["env_steps"] == done.result.env_steps
    assert {"python", "torch", "numpy", "gymnasium", "palaestra"} <= info["versions"].keys()
    assert {"command", "hardware", "git", "threads", "started"} <= info.keys()


def test_evaluations_are_files_named_by_env_steps(done):
    files = sorted((done.directory / "evals").iterdir(), key=lambda path: int(path.stem))
    assert [int(path.stem) // 40 for path in files] == [1, 2, 2]
    assert int(files[-1].stem) == done.result.env_steps
    record = json.loads(files[-1].read_text())
    assert record["episodes"] == 4
    assert record["return_mean"] == done.result.evaluation.return_mean
    assert record["deterministic"] is True


def test_the_result_is_a_policy_that_acts(done):
    assert done.result.status == "done"
    assert done.policy([1.0, 0.0, 0.0, 0.0, 0.0]) in (0, 1)


def test_evaluation_seeds_are_never_training_seeds():
    """REQUIREMENTS section 6: an evaluation environment must not reuse a training environment's seed."""
    config = preset("ppo", "CartPole-v1")
    training = {RunSeeds(seed).integer("environments", lane) for seed in range(5) for lane in range(64)}
    evaluation: set[int] = set()
    for seed in range(5):
        env, lanes = evaluation_environment(config, seed, 8)
        env.close()
        evaluation |= set(lanes)
    assert len(evaluation) == 5 * 8
    assert not training & evaluation


def test_the_artefact_is_the_best_policy_so_far(tmp_path, monkeypatch):
    """Not the last: returns of the evaluations are 1, 3, 2 here."""
    module = importlib.import_module("palaestra.runs.learner")
    returns = iter([1.0, 3.0, 2.0])
    versions = []
    original = module.evaluate

    def evaluate(policy: Any, *args: Any, **kwargs: Any) -> Any:
        versions.append({key: value.clone() for key, value in policy.state_dict().items()})
        return dataclasses.replace(original(policy, *args, **kwargs), return_mean=next(returns))

    monkeypatch.setattr(module, "evaluate", evaluate)
    run = trained(tmp_path)
    kept = load_policy(run.directory / "policy").state_dict()
    assert all(torch.equal(kept[key], versions[1][key]) for key in kept)
    assert not all(torch.equal(kept[key], versions[2][key]) for key in kept)


def test_a_run_is_evaluated_in_episodes_that_have_not_chosen_its_policy(done):
    """Each run in its own, by its seed and the given one; what a policy draws follows from it, too."""
    evaluated = functools.partial(palaestra.evaluate_run, str(done.directory))
    assert evaluated(episodes=4).seeds == [RunSeeds(1_000_004).integer("evaluation", lane) for lane in range(4)]
    assert evaluated(episodes=4, seed=0).seeds == done.result.evaluation.seeds, "those that have chosen it"
    drawn = [evaluated(episodes=8, deterministic=False, seed=seed) for seed in (1, 1, 2)]
    assert (drawn[0].deterministic, drawn[0].episodes) == (False, 8)
    assert drawn[0].returns == drawn[1].returns != drawn[2].returns


def test_equal_seeds_give_equal_runs_and_other_seeds_others(tmp_path):
    """F25, ALF-56: everything random derives from the one seed."""
    files = [
        (trained(tmp_path, str(number), run__seed=seed).directory / "episodes.csv").read_text()
        for number, seed in enumerate((1, 1, 2))
    ]
    assert files[0] == files[1] != files[2]


def test_a_run_that_is_resumed_at_its_end_stays_as_it_is(tmp_path):
    """F25: the same files, byte for byte, but for its record of being resumed."""
    run = trained(tmp_path)
    before = {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}
    again = palaestra.resume("run", root=tmp_path)
    assert again.result.env_steps == run.result.env_steps
    assert again.result.evaluation == run.result.evaluation
    after = {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}
    assert {path.name for path in after if before.get(path) != after[path]} <= {"run.json", "report.html"}


def learned(run: Path) -> dict[str, Any]:
    """What a run ended with, but for the time that it took."""
    state = CheckpointStore(run / "checkpoints").load_newest()[1]
    del state["trainer"]["seconds"]
    return state


@pytest.fixture
def unnoted():
    """A signal that nobody notes fails the test instead of ending its process."""

    def fail(number: int, frame: Any) -> None:
        pytest.fail(f"signal {number} was not noted")

    before = {number: signal.signal(number, fail) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_run_that_is_stopped_before_its_first_step_is_saved_and_goes_on(tmp_path, unnoted, algorithm, number, code):
    """F22: its directory is there from the line that names it, so a signal after that has something to save."""
    settings = {name: value for name, value in SMALL.items() if algorithm == "ppo" or "unroll" not in name}
    settings |= {"run__directory": str(tmp_path), "run__name": "stopped"}
    config = config_from_mapping(ExperimentConfig, settings, base=preset(algorithm, CHAIN))
    stopped = palaestra.run(config, on_start=lambda path: signal.raise_signal(number))
    assert (stopped.result.status, stopped.result.exit_code, stopped.result.env_steps) == ("interrupted", code, 0)
    assert RunDirectory(stopped.directory).info["status"] == "interrupted"
    again = palaestra.resume("stopped", root=tmp_path)
    whole = palaestra.run(dataclasses.replace(config, run=dataclasses.replace(config.run, name="whole")))
    assert again.result.status == "done"
    assert not differences(learned(again.directory), learned(whole.directory))


def test_a_run_without_any_checkpoint_begins_and_says_so(tmp_path, caplog):
    """F11: what it had logged is written again."""
    run = trained(tmp_path)
    rows, before = (run.directory / "metrics.jsonl").read_text().count("\n"), learned(run.directory)
    list(map(shutil.rmtree, run.directory.glob("checkpoints/*")))
    RunDirectory(run.directory).write_info({"status": "running", "env_steps": None, "saved": None})  # killed
    again = palaestra.resume("run", root=tmp_path)
    assert "stopped before its first checkpoint: it begins at env step 0" in caplog.text
    assert RunDirectory(run.directory).info["resumed_at"] == 0
    assert (run.directory / "metrics.jsonl").read_text().count("\n") == rows
    assert not differences(learned(again.directory), before)


def test_a_run_whose_checkpoints_are_all_damaged_never_begins_anew(tmp_path):
    """F11: never from scratch silently, and not at the second try either."""
    run = trained(tmp_path)
    for manifest in run.directory.glob("checkpoints/*/manifest.json"):
        manifest.write_text("damaged")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="no valid checkpoint"):
            palaestra.resume("run", root=tmp_path)


def test_loggers_of_ones_own_are_told(tmp_path):
    recorder = Recorder()
    run = palaestra.train(
        "ppo", CHAIN, loggers=[recorder], run__directory=str(tmp_path), **(SMALL | {"run__name": "run"})
    )
    assert recorder.calls == ["start", "close"]
    assert recorder.rows[-1]["env_steps"] == run.result.env_steps


def test_a_configuration_can_be_handed_over_whole(tmp_path):
    """The two-level API: one call, or parts; here the configuration in between."""
    config = preset("dqn", CHAIN)
    config = dataclasses.replace(
        config, run=dataclasses.replace(config.run, directory=str(tmp_path), tensorboard=False)
    )
    run = palaestra.train("dqn", CHAIN, config=config, trainer__total_env_steps=30, env__max_episode_steps=5)
    assert run.result.env_steps == 30
    with pytest.raises(ConfigError, match="config was given a dict; give an ExperimentConfig"):
        palaestra.train("dqn", CHAIN, config={})


def test_a_run_that_fails_says_so(tmp_path):
    with pytest.raises(palaestra.core.PalaestraError):
        trained(tmp_path, env__name="tests.rollout.test_collector:Poisoned", env__kwargs={"reward": float("nan")})
    info = RunDirectory(tmp_path / "run").info
    assert info["status"] == "failed"
    assert "NonFiniteError" in info["error"]


def full_disk(*arguments: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_policy_that_cannot_be_kept_is_a_failed_save(tmp_path, monkeypatch, caplog):
    """F10: a loud warning; the policy of the next evaluation is kept, also where it is no better than that one."""
    kept, left = save_policies, [full_disk]
    monkeypatch.setattr("palaestra.runs.build.save_policies", lambda *args: (left.pop() if left else kept)(*args))
    assert trained(tmp_path).result.status == "done"
    assert "cannot be written: [Errno 28] No space left on device. Training continues unsaved" in caplog.text
    assert load_policy(tmp_path / "run" / "policy")


def test_policies_that_can_never_be_kept_end_the_run_with_5(tmp_path, monkeypatch):
    """F10: with more failures in a row than allowed, and the run says so."""
    monkeypatch.setattr("palaestra.runs.build.save_policies", full_disk)
    with pytest.raises(CheckpointError, match=r"evaluation in .* cannot be written: .*No space left"):
        trained(tmp_path, trainer__max_failed_saves=0)
    assert RunDirectory(tmp_path / "run").info["status"] == "failed"


@pytest.mark.parametrize("what", ["write_fault", "RunDirectory.write_info"])
def test_a_full_disk_never_replaces_the_first_cause(tmp_path, monkeypatch, caplog, what):
    """F10: neither where the fault is written nor where the end is."""
    write = RunDirectory.write_info

    def failing(*arguments: Any) -> None:
        if what == "write_fault" or arguments[1].get("error"):
            full_disk()
        write(*arguments)

    module = "records" if what == "write_fault" else "run_directory"
    monkeypatch.setattr(f"palaestra.runs.{module}.{what}", failing)
    with pytest.raises(NonFiniteError):
        trained(tmp_path, env__name="tests.rollout.test_collector:Poisoned", env__kwargs={"reward": float("nan")})
    assert "run ended could not be written: [Errno 28] No space left on device" in caplog.text


def test_what_is_no_name_is_refused():
    """F27: also from Python."""
    for algorithm in (None, palaestra.envs.tiny.Chain()):
        with pytest.raises(ConfigError, match=r"the algorithm is .*; give its name or its class, such as"):
            palaestra.train(algorithm, CHAIN)
    with pytest.raises(ConfigError, match=r"env.name is 3; give an id .*, an environment, or a class or function that"):
        palaestra.train("ppo", 3)


def test_a_mistake_makes_no_run_directory(tmp_path):
    """F27."""
    with pytest.raises(ConfigError, match="did you mean"):
        trained(tmp_path, trainer__total_env_step=3)
    with pytest.raises(ConfigError, match="does not fit"):
        palaestra.train("dqn", "Pendulum-v1", run__directory=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_threads_are_few_for_small_networks_and_as_asked_for_otherwise(monkeypatch):
    """DESIGN.md section 10."""
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    small = preset("ppo", "CartPole-v1")
    make_algorithm(small)
    make_algorithm(dataclasses.replace(small, run=dataclasses.replace(small.run, num_threads=3)))
    assert chosen == [1, 3]


def test_a_resumed_run_keeps_the_threads_that_were_measured(tmp_path, monkeypatch):
    """F25: others round sums otherwise, and the machine may be busier now."""
    monkeypatch.setattr("palaestra.runs.making.choose_threads", lambda config, _: config.run.num_threads or 2)
    run = trained(tmp_path, trainer__total_env_steps=8)
    assert json.loads((run.directory / "run.json").read_text())["threads"] == 2
    monkeypatch.setattr("palaestra.runs.making.choose_threads", lambda config, _: config.run.num_threads or 1)
    palaestra.resume(run.directory, trainer__total_env_steps=16)
    assert json.loads((run.directory / "run.json").read_text())["threads"] == 2


# -- finding runs


def test_runs_are_found_by_path_by_name_and_as_the_last(tmp_path):
    first, second = (trained(tmp_path, name, trainer__total_env_steps=8) for name in ("one", "two"))
    assert find_run("one", tmp_path).path == first.directory
    assert find_run(str(second.directory), "elsewhere").path == second.directory
    assert find_run("last", tmp_path).path == second.directory
    assert list_runs(tmp_path) == [first.directory, second.directory]


def test_a_run_that_does_not_exist_is_named_with_those_that_do(tmp_path):
    with pytest.raises(CheckpointError, match=r"no run 'last'; runs in .*: none yet; start one with"):
        find_run("last", tmp_path)
    trained(tmp_path, "this-one", trainer__total_env_steps=8)
    with pytest.raises(CheckpointError, match=r"no run 'that-one' — did you mean 'this-one'"):
        find_run("that-one", tmp_path)


def test_a_folder_without_a_configuration_is_no_run(tmp_path):
    first, second = trained(tmp_path, "one"), trained(tmp_path, "two")
    (second.directory / "config.yaml").unlink()
    assert find_run("last", tmp_path).path == first.directory


def test_evaluations_behind_the_checkpoint_are_forgotten_but_not_what_the_best_was(tmp_path):
    run = RunDirectory(trained(tmp_path).directory)
    last = max(steps for steps, _ in read_evaluations(run.path))
    text = json.loads((run.path / f"evals/{last}.json").read_text())
    (run.path / "evals/9999.json").write_text(json.dumps({**text, "return_mean": 12_345.0}))
    palaestra.resume(run.path, trainer__total_env_steps=run.env_steps + 8)
    assert 9999 not in [steps for steps, _ in read_evaluations(run.path)]
    assert run.kept_return == 12_345.0


def test_a_name_that_commands_take_for_an_option_is_refused():
    with pytest.raises(ConfigError, match="a name that is no path, no option and not 'last'"):
        palaestra.RunConfig(name="-dash")


def test_a_damaged_run_json_is_no_reason_to_lose_a_run(tmp_path):
    run = trained(tmp_path)
    (run.directory / "run.json").write_text('{"sta')
    assert palaestra.resume("run", root=tmp_path).result.status == "done"
    assert RunDirectory(run.directory).info["resume"] == "statistical"  # was config.yaml edited? it is not known
    palaestra.resume("run", root=tmp_path, trainer__total_env_steps=128)
    assert RunDirectory(run.directory).info["resume"] == "statistical"  # what it was not once, it is not any more


def test_directories_are_named_by_time_algorithm_environment_and_seed(tmp_path):
    run, env = palaestra.RunConfig(directory=str(tmp_path), seed=5), palaestra.EnvConfig(name="ALE/Pong-v5")
    assert RunDirectory.create(ExperimentConfig(run=run, env=env)).path.name.endswith("_ppo_ALE-Pong-v5_s5")


@pytest.mark.parametrize("name", ["a\0b", "red\x1b[31m", "\x7f", "two\nlines"])
def test_a_name_with_control_characters_is_refused(tmp_path, name):
    """D12."""
    with pytest.raises(ConfigError, match=r"run\.name is .*, which has control characters"):
        trained(tmp_path, name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing", ["compiler", "pytorch"])
def test_a_run_that_cannot_be_compiled_says_why_and_runs_without(missing, monkeypatch, caplog, tmp_path):
    module = importlib.import_module("palaestra.nn.fast")
    if missing == "compiler":
        monkeypatch.setattr(module.shutil, "which", lambda name: None)
    else:
        monkeypatch.setattr(module, "can_compile", lambda: False)
    trained(tmp_path, run__compile=True)
    said = {"compiler": "needs a C++ compiler", "pytorch": "needs PyTorch 2.11, and this is"}[missing]
    assert said in caplog.text


@pytest.mark.parametrize("normalizes", [True, False])
def test_a_run_that_continues_normalises_observations_as_it_began(tmp_path, normalizes):
    small = {"trainer__total_env_steps": 64, "algorithm__unroll_length": 16, "trainer__eval_episodes": 0}
    here = {"run__directory": str(tmp_path), "run__name": "one"}
    palaestra.train("ppo", "CartPole-v1", algorithm__normalize_observation=normalizes, **small, **here)
    changed = {"algorithm__normalize_observation": not normalizes, "trainer__total_env_steps": 128}
    with pytest.raises(ConfigError, match=r"algorithm\.normalize_observation cannot change in a run that continues"):
        palaestra.resume("one", root=tmp_path, **changed)
