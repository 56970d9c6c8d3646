"""The server that forks workers, killed while they start."""

import json
import multiprocessing.context
import os
import signal
from multiprocessing.forkserver import _forkserver

from tests.cli.parts import CHAIN, SHORT, exit_code, output


def test_a_fork_server_that_is_killed_while_workers_start_is_named_and_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    connect = _forkserver.connect_to_new_process

    def killed(files):
        _forkserver.ensure_running()
        os.kill(_forkserver._forkserver_pid, signal.SIGSTOP)
        found = connect(files)  # has asked, and waits for the answer
        os.kill(_forkserver._forkserver_pid, signal.SIGKILL)
        return found

    monkeypatch.setattr(multiprocessing.forkserver, "connect_to_new_process", killed)
    words = ("train", "ppo", *CHAIN, *SHORT, "--env.vectorization", "process", "--run.name", "run")
    assert exit_code(*words) == 3
    assert "could not be started: the process that forks workers was killed" in output(capsys)
    info = json.loads((tmp_path / "runs/run/run.json").read_text())
    assert info["status"] == "failed"
    record = json.loads((tmp_path / "runs/run/faults/0001.json").read_text())
    assert record["kind"] == "WorkerDiedError"
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert exit_code("resume", "runs/run") == 0
