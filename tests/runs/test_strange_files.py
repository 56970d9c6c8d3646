"""Any file of a run or of a data folder in whose place lies something else: each command ends soon, and names it."""

import json
import os
import random
import resource
import shutil
import signal
from pathlib import Path

import pytest

from palaestra.experiments import RunDirectory
from tests.cli.parts import exit_code, output, train

DEADLINE_S = 20
MOST_BYTES = 600 << 20


def pipe(path):
    os.mkfifo(path)


def endless(path):
    path.symlink_to("/dev/zero")


def device(path):
    path.symlink_to("/dev/full")


def deep(path):
    path.write_text("[" * 5_000)


def huge_number(path):
    path.write_text("{" + f'"seed": {"9" * 5_000}' + "}")


def no_text(path):
    path.write_bytes(bytes(range(128, 256)) * 8)


DAMAGES = (pipe, endless, device, deep, huge_number, no_text)
OF_A_RUN = {
    "eval": ("eval", "RUN", "--episodes", "1"),
    "resume": ("resume", "RUN", "--until", "64"),
    "report": ("report", "RUN"),
    "diagnose": ("diagnose", "RUN"),
    "stats": ("stats", "RUN"),
    "list": ("list", "runs", "--root", "."),
    "share": ("share", "RUN", "--output", "shared", "--episodes", "2", "--no-film"),
}
OF_DATA = {
    "train": ("train", "td3_bc", "Pendulum-v1", "--offline.data", "RUN", "--trainer.total-env-steps", "8"),
    "minari": ("data", "minari", "RUN", "x/y-v0"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train("--trainer.checkpoint-every-steps", "16", "--trainer.eval-every-steps", "16", "--run.directory", ".")
        (folder / "run/faults/0001.json").write_text(json.dumps({"kind": "EnvError", "message": "it fell"}))
        assert exit_code("data", "collect", "random", "Pendulum-v1", "data", "--steps", "400") == 0
    return folder


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def ends(made, name, damage, commands, mine, capsys):
    """Replaces one file, and calls each command on a copy."""
    for verb, words in commands.items():
        for copy in ("copy", "shared"):
            shutil.rmtree(copy, ignore_errors=True)
        folder = shutil.copytree(made, Path("copy"))
        if not mine and (folder / "run.json").exists():
            RunDirectory(folder).write_info({"signature": None})
        (folder / name).unlink()
        damage(folder / name)
        capsys.readouterr()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.alarm(DEADLINE_S)
        try:
            code = exit_code(*("copy" if word == "RUN" else word for word in words))
        finally:
            signal.alarm(0)
        said, case = output(capsys), f"{verb} with {damage.__name__} for {name}"
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MOST_BYTES, case
        assert code in (0, 1, 2, 5), f"{case}: {code} {said}"  # 1: `diagnose` has found something
        assert code < 2 or name.split("/")[-1] in said, f"{case}: {said}"


@pytest.fixture
def stopped(monkeypatch, tmp_path):
    """What waits for a pipe is stopped, and fails."""

    def stop(*_):
        raise AssertionError(f"nothing happened for {DEADLINE_S} s")

    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.signal(signal.SIGALRM, before)


def cases(folder, damages=DAMAGES):
    return [(name, damage, mine) for name in files(folder) for damage in damages for mine in (True, False)]


def test_any_file_of_a_run_may_be_something_else(made, stopped, capsys):
    every = cases(made / "run")
    for number, (name, damage, mine) in enumerate(random.Random(0).sample(every, 21)):
        verb = [*OF_A_RUN][number % len(OF_A_RUN)]
        ends(made / "run", name, damage, {verb: OF_A_RUN[verb]}, mine, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_every_file_of_a_run_may_be_everything_else(made, stopped, capsys, damage):
    for name, _, mine in cases(made / "run", [damage]):
        ends(made / "run", name, damage, OF_A_RUN, mine, capsys)


@pytest.mark.parametrize("damage", [pipe, endless, deep, huge_number])
def test_a_description_of_data_may_be_something_else(made, stopped, capsys, damage):
    ends(made / "data", "manifest.json", damage, OF_DATA, True, capsys)


@pytest.mark.slow
def test_every_file_of_data_may_be_everything_else(made, stopped, capsys):
    for name, damage, mine in cases(made / "data"):
        ends(made / "data", name, damage, OF_DATA, mine, capsys)
