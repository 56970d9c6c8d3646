"""What every test shares: one thread, checked array shapes, and waiting by polling."""

import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from multiprocessing import forkserver
from typing import Any

import hypothesis
import jaxtyping
import pytest
import torch

# Two test processes share two cores; and one thread adds floating-point numbers in one order. Programs that tests start
# inherit the variable: threads that wait for a busy core make them many times slower.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Ten thousand tests and PyTorch stay to the end; to look through them for garbage took a quarter of the time."""
    import palaestra.analysis.measure  # not before the hook below

    palaestra.analysis.measure.MEASURED_S = 0.05  # of each dry run; a second says no more about what is tested
    gc.collect()
    gc.freeze()
    if "PYTEST_XDIST_WORKER" in os.environ:  # of many tests: hundreds of workers would each import half a second long
        forkserver.set_forkserver_preload(["palaestra.distributed", "tests.algorithms.parts", "tests.envs.worlds"])
        forkserver.ensure_running()


# The key that signs the runs of this user is one for the tests, not the user's.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="palaestra-tests-")

# Tests start hundreds of programs; each would compile the whole library anew where the environment forbids to keep it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts the tests in the background makes them, and all that they start, deaf to Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What a test writes has to outlive its process, not a power cut: flushing disks took a tenth of every short run.
os.fsync = lambda descriptor: None

# Shapes and dtypes annotated in `ops/` are checked where everything that computes with them is tested in small; runs,
# commands and pages after them would check the same a million times more. Otherwise the annotations cost nothing.
jaxtyping.install_import_hook("palaestra.ops", "beartype.beartype")
CHECKED = {"algorithms", "contracts", "nn", "ops", "policies"}
"""Folders of tests."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if sys.platform != "linux" and item.get_closest_marker("needs_linux"):
        pytest.skip("needs Linux")
    jaxtyping.config.update("jaxtyping_disable", item.nodeid.split("/")[1] not in CHECKED)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[Any], list[Any]]:
    """No doctests are in tests; to look for them in 450 files takes a second in each process."""
    return [found for found in (yield) if type(found) is pytest.Module]


# Every run of the tests sees the same examples; a busy machine is not a failure.
hypothesis.settings.register_profile("palaestra", derandomize=True, deadline=None)
hypothesis.settings.load_profile("palaestra")

WaitUntil = Callable[..., None]


@pytest.fixture
def no_ctrl_c() -> None:
    """A handler of Ctrl-C, as a run has it: a `KeyboardInterrupt` of its own is then the environment's."""
    signal.signal(signal.SIGINT, lambda number, frame: None)


@pytest.fixture(autouse=True)
def process_as_it_was() -> Generator[None]:
    """No test sees what a run chose to compute with, or the handlers that a stopped command leaves."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    from palaestra.core.computing import prefer_onednn  # not before the hook above

    prefer_onednn(False)
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture
def hears_hangups() -> None:
    """The test, and what it starts, hears of SIGHUP, which `nohup make test` makes all deaf to."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `process_as_it_was` puts it back


def _wait_until(
    condition: Callable[[], object], timeout_s: float = 60.0, *, poll_s: float = 0.01, what: str = ""
) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(
                f"waited {timeout_s} s in vain for {what or getattr(condition, '__name__', condition)}"
            )
        time.sleep(poll_s)


@pytest.fixture(scope="session")
def wait_until() -> WaitUntil:
    """`wait_until(condition, timeout_s, what="...")` polls until the condition holds, and fails at the deadline.

    The one way a test waits: nothing sleeps for a fixed time.
    """
    return _wait_until


@pytest.fixture
def unchecked_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns the checks of annotated shapes off, for a test of the error that users get."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
