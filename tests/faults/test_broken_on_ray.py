"""Broken environments in roll-out workers on Ray: what the run is told of each."""

import functools
import importlib.util
import time
from collections.abc import Iterator
from typing import Any

import pytest

from palaestra.distributed import CollectorFactory, RolloutWorker, acting_weights
from palaestra.envs import EnvConfig
from palaestra.runtime import RayRuntime, RemoteError, RestartPolicy, Result, WorkerDiedError
from tests.distributed.test_processes import ppo_for
from tests.faults import broken

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'palaestra[ray]'"
    ),
]

SOON = 120.0
INTERRUPTED = ("sleep", "wait", "busy")
CANCELS = {"keyboard_interrupt"}  # Ray takes it for the cancellation of a task
GUARDED = ("os_exit_0", "os_exit_1")


class Stage:
    """An actor that makes a roll-out worker of two environments, the second broken, and has it collect."""

    def play(self, mode: str) -> int:
        variants: Any = ({"kwargs": {"mode": "fine"}}, {"kwargs": {"mode": mode}})
        env = EnvConfig(
            name="tests.faults.broken:Broken", num_envs=2, variants=variants, timeout_s=2.0, reset_timeout_s=20.0
        )
        worker = RolloutWorker(CollectorFactory(env=env, num_workers=1, algorithm=functools.partial(ppo_for, env)), 0)
        return worker.collect(acting_weights(worker._parts.policies), 6, episodes=False, random=()).info.env_steps


@pytest.fixture(scope="module")
def runtime() -> Iterator[RayRuntime]:
    with RayRuntime(RestartPolicy(max_restarts=100, backoff_s=0.0)) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def play(runtime: RayRuntime) -> Any:
    """Plays a mode, in an actor that is used again while it lives."""
    stages = [runtime.start(Stage, name="stage")]

    def played(mode: str) -> Result:
        (result,) = runtime.wait([runtime.call(stages[0], "play", mode)], timeout_s=SOON)
        if isinstance(result.error, WorkerDiedError):
            runtime.restart(stages[0])
        return result

    assert played("fine").unwrap() == 2 * 6
    return played


@pytest.mark.parametrize("mode", [*sorted(broken.RAISES.keys() - CANCELS), *broken.RETURNS, *GUARDED, *INTERRUPTED])
def test_an_environment_that_leaves_the_actor_alive_is_named(mode, play):
    """D2, D12, D16: environment, episode, step and cause, as in every other way of stepping."""
    said = {**dict.fromkeys(INTERRUPTED, "did not answer in time"), **dict.fromkeys(GUARDED, "called os._exit(")}
    words = said.get(mode) or (broken.RAISES | broken.RETURNS)[mode][1]
    error = play(mode).error
    assert isinstance(error, RemoteError), error
    assert "environment 1 " in str(error)
    assert "in episode 0 (seed " in str(error)
    assert f"at step {broken.STEP} with action " in str(error)
    assert words in str(error)
    assert error.exit_code in (3, 4)


@pytest.mark.parametrize("mode", ["segfault", "kill", "abort", "swallow", *CANCELS])
def test_an_environment_that_ends_the_actor_is_seen_at_once_and_the_actor_named(mode, play):
    """D2, F14: which actor, and how it ended; its manager begins another in its place."""
    started = time.monotonic()
    error = play(mode).error
    assert isinstance(error, WorkerDiedError), error
    assert str(error).startswith("stage (Ray actor, incarnation ")
    assert time.monotonic() - started < SOON / 2
    assert play("fine").unwrap() == 2 * 6


@pytest.mark.parametrize("mode", ["gil", "sigstop"])
def test_an_environment_that_stops_the_actor_is_ended_at_the_deadline(mode, runtime, play):
    """D2, F4: nobody waits longer than asked; killed, the actor is replaced."""
    stage = runtime.start(Stage, name=f"stage-{mode}")
    call = runtime.call(stage, "play", mode)
    started = time.monotonic()
    assert runtime.wait([call], timeout_s=40.0) == []
    assert time.monotonic() - started < 60
    runtime.restart(stage)
    (result,) = runtime.wait([runtime.call(stage, "play", "fine")], timeout_s=SOON)
    assert result.unwrap() == 2 * 6
