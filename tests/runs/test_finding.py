"""Which run a name stands for, and what is said where it stands for none, or for several."""

import pytest

from palaestra.core import CheckpointError, ConfigError
from palaestra.experiments import evaluate_run, find_run, find_runs
from palaestra.runs.records import write_evaluation
from tests.experiments.parts import written
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
