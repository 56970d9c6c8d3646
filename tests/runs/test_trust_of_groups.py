"""Groups of strangers, what connects with the reader's account, and the reader's key (F12)."""

import json
import secrets
import sys
import threading
from types import SimpleNamespace

import pytest

from palaestra.core import ConfigError, importing, trust
from palaestra.experiments import find_runs, seeds, together
from palaestra.runs.trust import require_services, require_trust, sign
from tests.experiments.parts import rows_of, written


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A group of two runs, which this user has made."""
    monkeypatch.setattr(importing, "_trusted", set())
    for seed in (0, 1):
        written(tmp_path / "g", rows_of([1.0]), f"seed_{seed}", run__seed=seed)
    (tmp_path / "g/group.json").write_text('{"format": 1, "seeds": [0, 1]}')
    return tmp_path / "g"


def edit(run):
    """Makes a run that of a stranger."""
    with (run / "config.yaml").open("a") as file:
        file.write("\n# edited\n")


def test_f12_links_to_folders_in_a_group_of_a_stranger_are_refused(group, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (group / "videos").symlink_to(tmp_path / "elsewhere")
    assert len(find_runs([group])) == 2, "this user's own"
    edit(group / "seed_1")
    with pytest.raises(ConfigError, match="videos is a link, through which a stranger's run could reach your files"):
        find_runs([group])


def test_f12_a_run_does_not_become_a_group_by_a_file_in_it(group, tmp_path):
    edit(run := group / "seed_1")
    (run / "group.json").write_text("{}")
    (run / "inner").mkdir()
    (run / "inner/link").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="link is a link"):
        find_runs([group])


def test_f12_code_in_the_folder_of_a_group_is_not_the_readers_own(group, monkeypatch):
    (group / "beside_runs.py").touch()
    monkeypatch.chdir(group)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert importing.in_run(group)
    assert not importing.is_trusted("beside_runs:make", "/theirs")


@pytest.mark.parametrize("trusted", [False, True])
def test_f12_the_process_of_a_seed_trusts_what_its_parent_trusts(group, monkeypatch, trusted):
    started = []
    monkeypatch.setattr(
        seeds, "subprocess", SimpleNamespace(Popen=lambda command, **_: started.append(command), STDOUT=1, PIPE=1)
    )
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.chdir(group.parent)
    if trusted:
        trust(group)
    seeds.SeedProcess(find_runs([group])[0]).start()
    ((_, safe, _, _, asked, *path),) = started
    assert (safe, path) == ("-P", [str(group.parent), *sys.path[1:]]), "nothing else is first on its path"
    monkeypatch.setattr(importing, "_trusted", set())
    monkeypatch.setattr(together, "threading", SimpleNamespace(Thread=lambda **_: threading.Thread()))
    monkeypatch.setattr(together, "RunDirectory", lambda run: pytest.fail(f"{run} is opened"))
    monkeypatch.setattr(together, "StopSignals", _ended)
    assert together.seed_process(asked, *path) == ConfigError.exit_code
    assert importing.trusts(json.loads(asked)["runs"][0]) == trusted
    assert sys.path == path


def _ended(**_):
    raise ConfigError("before it has begun")


@pytest.mark.parametrize("name", ["jax:json:CartPole-v1", "envpool:json:CartPole-v1", "pettingzoo:json:tool"])
def test_what_a_library_calls_its_environments_is_no_code(tmp_path, name):
    require_trust({"env": {"name": name, "variants": [{"name": name}]}}, tmp_path)
    with pytest.raises(ConfigError, match="names code that is neither part of palaestra"):
        require_trust({"run": {"callbacks": [name]}}, tmp_path)


def test_f12_a_strangers_run_does_not_tell_services_with_the_readers_account(tmp_path):
    require_trust({"run": {"loggers": ["wandb"]}}, tmp_path)  # looking at it tells nobody
    with pytest.raises(ConfigError, match=r"would connect with your account to wandb"):
        require_services(["wandb"], tmp_path)
    require_services([], tmp_path)


def test_f12_a_key_that_another_process_has_made_meanwhile_is_the_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def meanwhile(size):
        (tmp_path / "palaestra/key").write_bytes(b"k" * size)
        return b"m" * size

    monkeypatch.setattr(secrets, "token_bytes", meanwhile)
    signed = sign(b"config")
    assert (tmp_path / "palaestra/key").read_bytes() == b"k" * 32
    assert signed == sign(b"config")
    assert [path.name for path in (tmp_path / "palaestra").iterdir()] == ["key"]
