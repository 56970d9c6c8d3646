"""What a call of the public API sets for its process is afterwards as it was, also when the call fails."""

import gc
import importlib
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import palaestra
from palaestra import experiments
from palaestra.core import computing, left_as_found
from palaestra.nn import set_deterministic, set_products
from palaestra.training import Callback
from tests.experiments.parts import SMALL

SETTINGS = {**SMALL, "env__max_episode_steps": 20, "run__num_threads": 1}


def state() -> dict[str, Any]:
    """What is set for all of this process, as far as it can be asked."""
    signals = {number: signal.getsignal(number) for number in signal.valid_signals()}
    del signals[signal.SIGURG]  # the watchdog's, from the first environment on; without it that is ignored
    return {
        "variables": dict(os.environ),
        "folders": (os.getcwd(), [*sys.path], importlib.import_module("tempfile").tempdir),
        "signals": signals,
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "warnings": [*warnings.filters],
        "logging": (logging.root.level, [*logging.root.handlers], logging.root.manager.disable),
        "garbage": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0),
        "processes": multiprocessing.get_start_method(allow_none=True),
        "draws": (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()),
        "numpy": (np.geterr(), np.get_printoptions()),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "kernels": (torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark),
        "products": (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32),
        "tiny numbers are 0": bool(torch.tensor([1e-40]).mul(1.0) == 0),
        "defaults": (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()),
    }


@pytest.fixture
def program(monkeypatch) -> Iterator[None]:
    """A program with settings of its own."""
    for name in ("PALAESTRA_TOLD", "CUBLAS_WORKSPACE_CONFIG", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("high")
    torch.set_flush_denormal(True)
    torch.set_num_threads(2)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.set_flush_denormal(False)


class Fails(Callback):
    """Ends a run by an error."""

    def iteration_ended(self, trainer: Any, updates: Any) -> None:
        """See `Callback`."""
        assert torch.are_deterministic_algorithms_enabled()  # which the program asked for, and the run did not
        raise RuntimeError("on purpose")


def test_what_calls_set_is_put_back(program, tmp_path):
    env = palaestra.EnvConfig(name="CartPole-v1", max_episode_steps=20)
    before = state()

    def unchanged(what: str) -> None:
        now = state()
        differing = {name: (was, now[name]) for name, was in before.items() if now[name] != was}
        assert not differing, f"{what} changed {differing}"

    def trained(name: str, **more: Any) -> Any:
        given: dict[str, Any] = {**SETTINGS, "run__directory": str(tmp_path), "run__name": name, **more}
        return palaestra.train("ppo", "CartPole-v1", **given)

    palaestra.create_environment(env).close()
    unchanged("create_environment")
    run = trained("run", run__deterministic=True).directory
    unchanged("train")
    with pytest.raises(RuntimeError, match="on purpose"):
        trained("fails", callbacks=[Fails()])
    unchanged("train, which failed,")
    with pytest.raises(palaestra.ConfigError):
        trained("refused", algorithm__unroll_length=0)
    unchanged("train, which refused,")
    palaestra.resume(run, trainer__total_env_steps=128)
    unchanged("resume")
    palaestra.evaluate_run(run, episodes=2)
    unchanged("evaluate_run")
    palaestra.film_run(run, tmp_path / "film.gif")
    unchanged("film_run")
    palaestra.load_policy(run / "policy")
    unchanged("load_policy")
    palaestra.diagnose(run, episodes=1)
    unchanged("diagnose")
    experiments.collect_data(policy := experiments.policy_of_run(run), env, tmp_path / "data", steps=100)
    data = experiments.data_of(policy, str(tmp_path / "data"), env)
    experiments.evaluate_offline(policy, data, gamma=0.9, updates=4, members=2)
    unchanged("evaluate_offline")
    palaestra.export(run, format="torch", directory=tmp_path / "exported")
    unchanged("export")


def test_what_a_process_starts_by_is_put_back_and_the_outermost_does_it():
    def starts() -> None:
        with left_as_found():
            multiprocessing.get_start_method()  # which sets it, as whatever starts a process does
        assert multiprocessing.get_start_method(allow_none=True) is not None
        raise RuntimeError("on purpose")

    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(None, force=True)
    with pytest.raises(RuntimeError, match="on purpose"):
        left_as_found()(starts)()
    assert multiprocessing.get_start_method(allow_none=True) is None
    multiprocessing.set_start_method(before, force=True)


def test_calls_in_two_threads_share_their_process_and_the_last_one_puts_back(program):
    """`serve` in a thread put back what a run beside it had just set."""
    inside, may_end = threading.Event(), threading.Event()

    @left_as_found()
    def serves() -> None:
        inside.set()
        assert may_end.wait(60)

    other = threading.Thread(target=serves)
    other.start()
    assert inside.wait(60)
    threads = torch.get_num_threads()
    with left_as_found():
        set_deterministic(True)
        torch.set_num_threads(1)
        may_end.set()
        other.join()
        assert torch.get_deterministic_debug_mode() == 2
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"]
    assert torch.get_deterministic_debug_mode() == 1
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    assert torch.get_num_threads() == threads


def test_products_of_a_gpu_are_put_back(program, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    with left_as_found():
        set_products("float32", torch.device("cuda"))
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("highest", False)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("high", True)


def test_what_an_environment_sets_for_its_process_stays(program):
    """Its module is imported once: the second call found a screen asked for, and workers that fork."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(None, force=True)
    try:
        with left_as_found():
            os.environ["SDL_VIDEODRIVER"] = "dummy"
            multiprocessing.set_start_method("spawn")
            torch.set_float32_matmul_precision("medium")
            computing.set_variable("SDL_VIDEODRIVER", "x11")
        assert os.environ["SDL_VIDEODRIVER"] == "dummy"
        assert multiprocessing.get_start_method(allow_none=True) == "spawn"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        multiprocessing.set_start_method(before, force=True)


def test_an_import_draws_nothing_from_the_global_generator_of_torch():
    code = "import torch; before = torch.get_rng_state(); import palaestra; palaestra.train"
    code += "; assert torch.equal(before, torch.get_rng_state())"
    subprocess.run([sys.executable, "-c", code], check=True)
