"""What computed a run is written down by each of its sessions, and decides whether a resume is called exact."""

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import palaestra
from palaestra.experiments import RunDirectory, machine_kind
from palaestra.runs.computed import computed_by, differences, how_exactly, processor, versions
from tests.cli.parts import exit_code, output
from tests.experiments.parts import trained


def recorded_elsewhere(run, **facts):
    """As if another machine had computed it."""
    file = run / "run.json"
    info = json.loads(file.read_text())
    info["versions"]["torch"], info["hardware"]["machine"] = "1.13.0", "arm64"
    file.write_text(json.dumps({**info, **facts}))


def test_f33_a_run_that_another_machine_computed_goes_on_and_says_so(tmp_path, monkeypatch, capsys):
    """Neither is it called exact later, nor in a fork; who computed which part can be looked up."""
    monkeypatch.chdir(tmp_path)
    run = RunDirectory(trained(tmp_path).directory)
    recorded_elsewhere(run.path)
    assert exit_code("resume", str(run.path), "--until", "128") == 0
    here, machine = torch.__version__, run.info["hardware"]["machine"]
    assert f"continued: with machine {machine} instead of arm64, and with torch {here} " in output(capsys)
    assert run.info["resume_reasons"][1] == f"with torch {here} instead of 1.13.0"
    assert run.info["versions"]["torch"] == here
    palaestra.resume(run.path, trainer__total_env_steps=160)
    assert run.info["resume"] == "continued"
    assert [(one["env_steps"], one["versions"]["torch"]) for one in run.info["sessions"]] == [(0, "1.13.0"), (96, here)]
    assert run.info["sessions"][1]["resume"] == "continued"
    fork = RunDirectory(palaestra.resume(run.path, fork=True, trainer__total_env_steps=192).directory)
    assert fork.info["resume"] == "continued"
    assert [one["env_steps"] for one in fork.info["sessions"]][:2] == [0, 96]
    assert len(fork.info["sessions"]) == 3


def test_f33_other_threads_are_said_as_well(tmp_path):
    run = RunDirectory(trained(tmp_path, run__num_threads=1).directory)
    palaestra.resume(run.path, trainer__total_env_steps=128, run__num_threads=2)
    assert (run.info["resume"], run.info["resume_reasons"]) == ("continued", ["with threads 2 instead of 1"])


def test_f33_a_session_that_saved_nothing_had_no_part_in_the_run(tmp_path):
    """It was killed before its first checkpoint; all is computed here."""
    run = RunDirectory(trained(tmp_path).directory)
    recorded_elsewhere(run.path, env_steps=None, saved=None)
    shutil.rmtree(run.path / "checkpoints")
    (run.path / "checkpoints").mkdir()
    palaestra.resume(run.path)
    assert (run.info["resume"], run.info["sessions"]) == ("exact", [])


def test_what_changes_no_bit_is_no_difference():
    now = computed_by()
    then = json.loads(json.dumps(now))
    then["hardware"] |= {"system": "an older kernel", "cores": 1, "memory_bytes": 1}
    assert differences(then, now) == {}
    then["versions"] = {"ale-py": "0.1"} | {name: one for name, one in then["versions"].items() if name != "numpy"}
    assert differences(then, now) == {}  # of what only one of them has nothing is known
    then["hardware"]["instructions"] = "none"
    assert list(differences(then, now)) == ["instructions"]
    kind = machine_kind()
    assert differences({**kind, "system": "Plan 9"}, kind) == {"system": ("Plan 9", kind["system"])}
    assert differences({}, now) == {}


def test_what_is_not_restored_outweighs_what_rounds_otherwise():
    now = computed_by()
    then = {**now, "threads": now["threads"] + 1}
    assert how_exactly([then], ["with new episodes"], now)["resume"] == "statistical"
    assert how_exactly([then], [], now)["resume"] == "continued"
    assert how_exactly([{**now, "resume": "statistical", "resume_reasons": ["so"]}], [], now) == {
        "resume": "statistical",
        "resume_reasons": ["so"],
    }
    assert how_exactly([], [], now) == {"resume": "exact", "resume_reasons": []}


def test_the_package_of_the_environment_has_its_version_written_down():
    assert "pettingzoo" in versions("pettingzoo:classic/tictactoe-v3")
    assert {"python", "torch", "numpy", "gymnasium", "palaestra"} <= versions("CartPole-v1").keys()
    assert versions("no_such_package:Env").keys() == versions().keys()


def test_another_gpu_or_other_versions_of_cuda_round_otherwise(monkeypatch):
    """That of the run's device alone; a run of an earlier version, which did not write it down, is not called other."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda at: "H100" if at == torch.device("cuda:1") else "A100")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    then, now = (computed_by(device=device) for device in ("cuda", "cuda:1"))
    assert how_exactly([then], [], now)["resume_reasons"] == ["with gpu H100 instead of A100"]
    assert how_exactly([then], [], then)["resume"] == "exact"
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91100)
    assert differences(then, computed_by(device="cuda")) == {"cudnn": ("91002", "91100")}
    del then["hardware"]["gpu"], then["versions"]["cudnn"]
    assert how_exactly([then], [], now)["resume"] == "exact"
    for device in ("cpu", "cuda:2"):
        assert "gpu" not in computed_by(device=device)["hardware"]


@pytest.mark.parametrize(
    ("system", "said", "model"),
    [
        ("linux", "processor\t: 0\nmodel name\t: EPYC\n\nprocessor\t: 1\nmodel name\t: other\n", "EPYC"),
        ("linux", "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "CPU implementer 0x41, CPU part 0xd0c"),
        ("linux", "nothing", "aarch64"),
        ("darwin", "Apple M3\n", "Apple M3"),
    ],
)
def test_a_processor_is_told_from_another_of_its_kind(system, said, model, monkeypatch):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "processor", lambda: "aarch64")
    monkeypatch.setattr(Path, "read_text", lambda path: said)
    monkeypatch.setattr(subprocess, "check_output", lambda command, text: said)
    assert processor.__wrapped__() == model
