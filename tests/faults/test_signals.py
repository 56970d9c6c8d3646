"""Ctrl-C, twice, SIGTERM and SIGHUP, on a real process with a terminal (F22)."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from palaestra.core import load_tensors
from palaestra.training import CheckpointStore
from tests.faults.parts import TIMEOUT_S, Terminal, logged, steps_of

ENDLESSLY = ("--trainer.total-env-steps", "50000000", "--trainer.log-every-steps", "1000", "--run.no-tensorboard")
QUICKLY = ("--trainer.eval-every-steps", "0", "--trainer.checkpoint-every-steps", "3000", "--run.name", "run")


def trained(folder: Path, *options: str) -> tuple[str, ...]:
    return ("train", "ppo", "CartPole-v1", "--env.num-envs", "4", *ENDLESSLY, *QUICKLY, *options)


def check_saved(run: Path) -> int:
    """The newest checkpoint is valid and is where the run stopped."""
    step, state = CheckpointStore(run / "checkpoints").load_newest()
    assert not list((run / "checkpoints").glob("*.corrupt"))
    assert not list((run / "checkpoints").glob(".tmp-*"))
    assert state["collect"]["env_steps"] == step
    return step


@pytest.mark.parametrize("vectorization", ["serial", pytest.param("process", marks=pytest.mark.fault)])
def test_ctrl_c_saves_and_ends_with_130_and_the_run_goes_on_until_sigterm_ends_it_with_143(
    tmp_path, wait_until, vectorization
):
    """F22: the terminal sends Ctrl-C to every process; workers leave it to the trainer, and none is left behind."""
    run = tmp_path / "runs" / "run"
    with Terminal(*trained(tmp_path, "--env.vectorization", vectorization), folder=tmp_path) as terminal:
        wait_until(lambda: terminal.read() and len(logged(run)) >= 2, TIMEOUT_S, what="two rows of metrics")
        terminal.type("\x03")
        wait_until(terminal.ended, TIMEOUT_S, what="the end of the process")
        text = terminal.read()
        assert terminal.process.returncode == 130, text
        wait_until(lambda: not terminal.orphans(), what="the end of every worker")
    assert "Traceback" not in text
    assert "╭" in text
    assert "palaestra resume runs/run" in text
    stopped_at = check_saved(run)
    assert f"stopped after {stopped_at:,} env steps; saved" in text

    with Terminal("resume", "last", folder=tmp_path) as terminal:
        wait_until(
            lambda: terminal.read() and logged(run)[-1]["env_steps"] > stopped_at + 2000, TIMEOUT_S, what="more rows"
        )
        terminal.process.send_signal(signal.SIGTERM)
        wait_until(terminal.ended, TIMEOUT_S, what="the end of the process")
        assert terminal.process.returncode == 143, terminal.read()
        wait_until(lambda: not terminal.orphans(), what="the end of every worker")
    assert check_saved(run) > stopped_at


@pytest.mark.fault
@pytest.mark.parametrize("vectorization", ["serial", pytest.param("process", marks=pytest.mark.fault)])
def test_ctrl_c_twice_stops_at_once_with_the_last_checkpoint_intact(tmp_path, wait_until, vectorization):
    """F22: while the first waits for the iteration to end, which it does not."""
    run, waited = tmp_path / "runs" / "run", tmp_path / "waited"
    arguments = (
        *("train", "dqn", "tests.faults.parts:Gate", "--env.kwargs", "folder", str(tmp_path), *ENDLESSLY, *QUICKLY),
        *("--algorithm.network.hidden-sizes", "8", "--trainer.checkpoint-every-steps", "200"),
        *("--algorithm.learning-starts", "100000000", "--env.vectorization", vectorization),
    )
    with Terminal(*arguments, folder=tmp_path) as terminal:
        wait_until(lambda: terminal.read() and steps_of(run), TIMEOUT_S, what="a checkpoint")
        (tmp_path / "closed").touch()
        wait_until(waited.exists, TIMEOUT_S, what="a step that does not end")
        terminal.type("\x03")
        count = int(waited.read_text() or 0)
        wait_until(lambda: int(waited.read_text() or 0) > count + 5, TIMEOUT_S, what="more waiting")
        assert not terminal.ended()
        before = steps_of(run)
        terminal.type("\x03")
        wait_until(terminal.ended, 60.0, what="the end of the process")
        assert terminal.process.returncode == 130
        assert "at once, by a second signal; the last checkpoint, if there is one, is intact" in terminal.read()
        wait_until(lambda: not terminal.orphans(), what="the end of every worker")
    assert steps_of(run) == before
    assert check_saved(run) == before[-1]


@pytest.mark.fault
@pytest.mark.parametrize("where", [("--env.vectorization", "process"), ("--distributed.runtime", "process")])
def test_sigterm_to_every_process_of_a_run_saves_and_ends_with_143(where, tmp_path, wait_until):
    """F22: as services and schedulers send it; workers leave it to the trainer."""
    run = tmp_path / "runs" / "run"
    with Terminal(*trained(tmp_path, *where), folder=tmp_path) as terminal:
        wait_until(lambda: terminal.read() and len(logged(run)) >= 2, TIMEOUT_S, what="two rows of metrics")
        os.killpg(terminal.process.pid, signal.SIGTERM)
        wait_until(terminal.ended, TIMEOUT_S, what="the end of the process")
        assert terminal.process.returncode == 143, terminal.read()
        wait_until(lambda: not terminal.orphans(), what="the end of every worker")
    assert check_saved(run) >= logged(run)[-1]["env_steps"]
    assert not list((run / "faults").iterdir())


@pytest.mark.fault
@pytest.mark.usefixtures("hears_hangups")
@pytest.mark.parametrize("where", [("--env.vectorization", "process"), ("--distributed.runtime", "process")])
def test_a_closed_terminal_saves_and_ends_with_129(where, tmp_path, wait_until):
    """F22: each process is sent SIGHUP, and what is printed fails from then on; a shell sends another SIGHUP."""
    run = tmp_path / "runs" / "run"
    with Terminal(*trained(tmp_path, *where), folder=tmp_path) as terminal:
        wait_until(lambda: terminal.read() and len(logged(run)) >= 2, TIMEOUT_S, what="two rows of metrics")
        terminal.hang_up()
        os.killpg(terminal.process.pid, signal.SIGHUP)
        wait_until(terminal.ended, TIMEOUT_S, what="the end of the process")
        assert terminal.process.returncode == 129
        wait_until(lambda: not terminal.orphans(), what="the end of every worker")
    assert check_saved(run) >= logged(run)[-1]["env_steps"]
    assert not list((run / "faults").iterdir())


@pytest.mark.fault
@pytest.mark.usefixtures("hears_hangups")
def test_a_closed_terminal_saves_all_seeds_and_ends_with_129(tmp_path, wait_until, monkeypatch):
    """F22: their parent hears of it and passes it on, though it can no more draw how they are."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # it still tries to
    options = ("--seeds", "2", "--run.num-threads", "1", "--run.no-compile")
    group = [tmp_path / "runs" / "run" / f"seed_{seed}" for seed in (0, 1)]
    with Terminal(*trained(tmp_path, *options), folder=tmp_path) as terminal:
        wait_until(lambda: terminal.read() and any(map(logged, group)), TIMEOUT_S, what="a row of metrics")
        terminal.hang_up()
        wait_until(terminal.ended, TIMEOUT_S, what="the end of the process")
        assert terminal.process.returncode == 129
    begun = [run for run in group if logged(run)]  # one core: the second has not
    assert all(check_saved(run) >= logged(run)[-1]["env_steps"] for run in begun)


@pytest.mark.fault
def test_sigterm_to_every_process_saves_what_shards_hold(tmp_path, wait_until):
    """F22: they write their rows themselves, and are asked to after the signal has reached them."""
    run, shards = tmp_path / "runs" / "run", ("--distributed.runtime", "process", "--distributed.replay-shards", "2")
    verb = ("train", "dqn", "CartPole-v1", "--env.num-envs", "4", *ENDLESSLY, *QUICKLY, *shards)
    with Terminal(*verb, folder=tmp_path) as terminal:
        wait_until(lambda: terminal.read() and len(logged(run)) >= 2, TIMEOUT_S, what="two rows of metrics")
        os.killpg(terminal.process.pid, signal.SIGTERM)
        wait_until(terminal.ended, TIMEOUT_S, what="the end of the process")
        assert terminal.process.returncode == 143, terminal.read()
    check_saved(run)
    _, state = CheckpointStore(run / "checkpoints").load_newest()
    index, rows = state["buffer"]["index"], 0
    for shard in state["buffer"]["shards"].values():
        assert not shard["damaged"]
        for key in json.loads(shard["segments"])["keys"]:
            [file] = Path(shard["directory"]).glob(f"segment-{key}*")
            rows += load_tensors(file)["field.reward"].numel()
    assert rows >= int(index["count"].sum()) > 0  # the newest are counted with the next step


def children(terminal, what):
    """Process ids of children whose command line has these bytes."""
    terminal.read()
    pids = Path(f"/proc/{terminal.process.pid}/task/{terminal.process.pid}/children").read_text().split()
    return [pid for pid in pids if what in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.fault
@pytest.mark.needs_linux
def test_ctrl_c_while_another_process_evaluates_saves(tmp_path, wait_until):
    """F22: it reaches that process as well, whose evaluation is left out; the update at that time goes on."""
    run = tmp_path / "runs" / "run"
    evaluation = ("--trainer.eval-async", "--trainer.eval-every-steps", "200", "--trainer.eval-episodes", "100000")
    with Terminal(*trained(tmp_path, *evaluation, "--algorithm.num-epochs", "500"), folder=tmp_path) as terminal:
        wait_until(lambda: children(terminal, b"palaestra: evaluation"), TIMEOUT_S, what="the process that evaluates")
        [pid] = children(terminal, b"palaestra: evaluation")
        busy = psutil.Process(int(pid))
        wait_until(lambda: terminal.read() and busy.cpu_times().user > 10, TIMEOUT_S, what="10 s of it")
        terminal.type("\x03")
        wait_until(terminal.ended, TIMEOUT_S, what="the end of the process")
        text = terminal.read()
        assert terminal.process.returncode == 130, text
        wait_until(lambda: not terminal.orphans(), what="the end of that process")
    assert f"stopped after {check_saved(run):,} env steps; saved" in text


@pytest.mark.fault
@pytest.mark.needs_linux
def test_the_process_that_evaluates_ends_with_a_run_that_is_killed(tmp_path, wait_until):
    """F16."""
    evaluation = ("--trainer.eval-async", "--trainer.eval-every-steps", "200", "--trainer.eval-episodes", "2")
    with Terminal(*trained(tmp_path, *evaluation), folder=tmp_path) as terminal:
        wait_until(lambda: children(terminal, b"palaestra: evaluation"), TIMEOUT_S, what="the process that evaluates")
        [pid] = children(terminal, b"palaestra: evaluation")
        run = tmp_path / "runs" / "run"
        wait_until(lambda: terminal.read() and list(run.glob("evals/*.json")), TIMEOUT_S, what="an evaluation")
        terminal.process.kill()
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), 20.0, what="its end")


@pytest.mark.fault
@pytest.mark.parametrize("where", [("--env.vectorization", "process"), ("--distributed.runtime", "process")])
def test_ctrl_c_while_workers_are_started_is_no_fault(where, tmp_path, wait_until):
    """F22: it reaches the fork server as well, which imports the library at that time."""

    with Terminal(*trained(tmp_path, *where), folder=tmp_path) as terminal:
        wait_until(lambda: children(terminal, b"forkserver"), TIMEOUT_S, what="the fork server")
        terminal.type("\x03")
        wait_until(terminal.ended, TIMEOUT_S, what="the end of the process")
        text = terminal.read()
        assert terminal.process.returncode == 130, text
        assert "Traceback" not in text
        wait_until(lambda: not terminal.orphans(), what="the end of every worker")
    assert not list(tmp_path.glob("runs/*/faults/*"))


@pytest.mark.fault
def test_a_pipe_gets_lines_without_control_codes(tmp_path, wait_until):
    """The same command in a pipe: plain lines, and the interrupted run says how to go on."""
    from tests.faults.parts import command

    text = command(
        *("train", "ppo", "palaestra.envs.tiny:Chain", "--env.max-episode-steps", "5"),
        *("--trainer.total-env-steps", "600", "--trainer.log-every-steps", "200", "--run.name", "run"),
        folder=tmp_path,
    )
    assert "\x1b" not in text
    assert "/ 600 env steps" in text
    assert "evaluation  " in text
    assert "next        palaestra play runs/run" in text


@pytest.mark.fault
@pytest.mark.needs_linux
def test_ctrl_c_twice_while_the_library_is_loaded_is_no_traceback(tmp_path, wait_until):
    """D12: before the run directory exists; the second strikes while the first is said, or the process ends."""
    with Terminal(*trained(tmp_path), folder=tmp_path) as terminal:
        maps = Path(f"/proc/{terminal.process.pid}/maps")
        wait_until(lambda: "libtorch" in maps.read_text(), TIMEOUT_S, what="torch to be loaded")
        terminal.type("\x03")
        terminal.type("\x03")
        wait_until(terminal.ended, TIMEOUT_S, what="the end of the process")
        text = terminal.read()
    assert terminal.process.returncode in (130, -signal.SIGINT), text
    assert "Traceback" not in text
    assert "KeyboardInterrupt" not in text
