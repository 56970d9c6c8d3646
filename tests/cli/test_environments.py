"""`palaestra venv create`: what is installed, and which families exclude each other."""

import shlex

import pytest

from palaestra.cli.environments import compatible, families, library
from tests.cli.parts import exit_code


def test_what_is_to_be_installed_is_shown(tmp_path, capsys):
    assert exit_code("venv", "create", "robotics", "--dry-run", "--folder", str(tmp_path / "new")) == 0
    shown = capsys.readouterr().out
    assert "gymnasium-robotics==1.4.2 mujoco==3.11.0" in shown and shlex.join(library()) in shown
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["robotics", "metaworld"], "robotics was run with mujoco 3.11.0, metaworld with 3.3.0"),
        (["dm-control", "mjlab"], "dm-control and mjlab exclude each other"),
        (["robotic"], "did you mean 'robotics'"),
    ],
)
def test_families_that_exclude_each_other_are_refused_by_name(names, message, capsys):
    assert exit_code("venv", "create", *names, "--dry-run") == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_is_none_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("here")
    assert exit_code("venv", "create", "robotics", "--folder", str(tmp_path)) == 2
    assert "is no Python environment" in capsys.readouterr().err


def test_families_that_go_together_are_installed_once():
    known = {name: facts["packages"] for name, facts in families().items()}
    both = compatible({name: known[name] for name in ("robotics", "mjlab")})
    assert both.count("mujoco==3.11.0") == 1
    assert not any("+" in one for one in library())  # the local part of a version is on no index
