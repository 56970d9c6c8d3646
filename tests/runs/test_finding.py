"""Which run a name stands for, and what is said where it stands for none, or for several."""

import shutil
from pathlib import Path

import pytest

from palaestra.core import CheckpointError, ConfigError
from palaestra.experiments import RunDirectory, evaluate_run, find_run, find_runs, list_runs
from palaestra.runs.lineage import for_new_run, fork_run
from palaestra.runs.records import write_evaluation
from tests.experiments.parts import config_of, written
from tests.runs.test_kept_return import result


@pytest.fixture
def group(tmp_path):
    """Of three runs in a folder with an older one; the second has the best evaluation."""
    written(tmp_path, [], "alone")
    for seed, mean in enumerate([20.0, 50.0, 30.0]):
        run = written(tmp_path / "g", [], f"seed_{seed}")
        write_evaluation(run.path, 40, result(mean, best=True))
    (tmp_path / "g/group.json").write_text('{"format": 1, "seeds": [0, 1, 2]}')
    return tmp_path / "g"


@pytest.mark.parametrize("find", [find_run, lambda name, root: evaluate_run(name, root=root)])
@pytest.mark.parametrize("name", ["last", "g"])
def test_a_group_is_no_run_and_its_best_is_named(group, find, name):
    """`last` was the seed that began last, perhaps the worst."""
    assert len(find_runs([name], group.parent)) == 3
    of = f"{name} is the group {group} of 3 runs; name one of them, such as {group}/seed_1, which has the best"
    with pytest.raises(ConfigError) as refusal:
        find(name, group.parent)
    assert str(refusal.value).startswith(of)
    whole = "" if find is find_run else f"evaluation; all of them: palaestra.evaluate_runs([{str(group)!r}])"
    assert str(refusal.value).endswith(whole)


def test_of_a_group_without_evaluations_a_run_is_named_all_the_same(group):
    for file in group.glob("*/evals/*.json"):
        file.unlink()
    with pytest.raises(ConfigError, match=r"such as .*/seed_0$"):
        find_run("last", group.parent)


def test_the_last_is_a_run_that_began_after_a_group(group):
    new = written(group.parent, [], "new").path
    assert find_run("last", group.parent).path == new


def test_an_unknown_run_is_said_with_one_of_a_similar_name_or_the_newest(group):
    """F27: five of many read as the whole list."""
    root = group.parent
    for name, near in {"alon": "alone", "g/seed1": "g/seed_1", f"{root}/aloen": "alone"}.items():
        with pytest.raises(CheckpointError, match=f"there is no run '{name}' — did you mean '{near}'"):
            find_runs([name], root)
    for number in range(4):
        written(root, [], f"r{number}")
    newest = f"the newest 5 of 6 in {root} (palaestra list runs --all --root {root}): r3, r2, r1, r0, g"
    with pytest.raises(CheckpointError) as refusal:
        find_runs(["something else"], root)
    assert str(refusal.value) == f"there is no run 'something else'; {newest}"


def test_a_study_is_said_to_be_one_with_how_its_trials_are_named(tmp_path):
    """It was no run, and the newest runs of another folder were listed."""
    (tmp_path / "runs/member_0").mkdir(parents=True)
    (tmp_path / "study.json").touch()
    with pytest.raises(CheckpointError) as refusal:
        find_runs([tmp_path])
    start, end = (
        f"{tmp_path} is a study of `palaestra tune`, no run; give its trials, as {tmp_path}/runs/",
        "and settings",
    )
    assert str(refusal.value).startswith(f"{start}member_0 or {tmp_path}/runs/member_*; ")
    assert str(refusal.value).endswith(f"{tmp_path}/summary.md has their scores {end}")


def test_a_copy_of_a_run_is_no_other_seed(group, caplog):
    """`cp -r seed_0 seed_0.bak`, or a link to a seed, was another run in means and intervals."""
    for name in ("bak", "seed_0.bak", ".stversions"):
        shutil.copytree(group / "seed_0", group / name)
    (group / "seed_best").symlink_to("seed_1")
    whole = [group / f"seed_{seed}" for seed in range(3)]
    assert [run.path for run in find_runs([group, group / "seed_1"])] == whole
    assert [text.partition(" is a copy of ")[0] for text in caplog.messages] == [f"{group}/seed_0.bak", f"{group}/bak"]
    assert f"{group}/bak is a copy of {group}/seed_0 and is left out" in caplog.text
    (group / "seed_best").unlink()
    (group / "seed_2/run.json").unlink()  # older ones have no id
    assert len(find_runs([group, group / "seed_2"])) == 3
    assert {path.name for path in list_runs(group)} == {"seed_0", "seed_1", "seed_0.bak", "bak"}


def test_the_last_is_what_was_begun_last_whatever_files_have_changed_since(group):
    """A run that went on, `chmod -R`, `cp -r` and `rsync` made an old one the last."""
    begun = {"alone": "2025-12-01T10:00:00+01:00", "g/seed_0": "2025-12-01T09:30:00+00:00", "new": "nobody knows"}
    written(group.parent, [], "new")
    for name, started in begun.items():
        RunDirectory(group.parent / name).write_info({"started": started})
        (group.parent / name / "config.yaml").chmod(0o600)
    found = [str(path.relative_to(group.parent)) for path in list_runs(group.parent)]
    assert found == ["alone", "g/seed_0", "g/seed_1", "g/seed_2", "new"]
    shutil.rmtree(group.parent / "new")
    assert [run.path.parent for run in find_runs(["last"], group.parent)] == [group] * 3


def test_a_new_run_is_none_of_the_group_that_one_is_in(group, monkeypatch):
    """A fork of `seed_0` from inside became a member."""
    monkeypatch.chdir(group)
    RunDirectory("seed_0").checkpoints().save(5, {"trainer": {"step": 5}})
    assert fork_run(RunDirectory("seed_0")).path.resolve() == group.parent / "g_seed_0_fork"
    assert for_new_run(config_of(Path())).run.directory == ".."
