"""Broken environments in roll-out workers on Ray: what the run is told of each."""

import functools
import importlib.util
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from palaestra.core import PalaestraError
from palaestra.distributed import CollectorFactory, RolloutManager, RolloutWorker, acting_weights
from palaestra.envs import EnvConfig, create_environment
from palaestra.runtime import RayRuntime, RemoteError, RestartPolicy, Result, WorkerDiedError
from tests.distributed.runs import make_manager
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

    def draw(self, mode: str) -> None:
        with create_environment(EnvConfig(name="tests.faults.broken:Broken", kwargs={"mode": mode})) as env:
            env.reset()
            env.render()

    def play(self, mode: str) -> int:
        variants: Any = ({"kwargs": {"mode": "fine"}}, {"kwargs": {"mode": mode}})
        env = EnvConfig(
            name="tests.faults.broken:Broken", num_envs=2, variants=variants, timeout_s=2.0, reset_timeout_s=20.0
        )
        worker = RolloutWorker(CollectorFactory(env=env, num_workers=1, algorithm=functools.partial(ppo_for, env)), 0)
        return worker.collect(6, acting_weights(worker._parts.policies), episodes=False, random=()).info.env_steps


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
    assert str(error).startswith("stage (Ray actor) died: ")
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


def manager_of(runtime: RayRuntime, mode: str) -> RolloutManager:
    """Of two workers on Ray, each with two environments; the last one is broken everywhere but in this process."""
    fine: Any = {"kwargs": {"mode": "fine"}}
    variants = (fine, fine, fine, {"kwargs": {"mode": mode, "home": os.getpid()}})
    env = EnvConfig(
        name="tests.faults.broken:Broken", num_envs=4, variants=variants, timeout_s=2.0, reset_timeout_s=4.0
    )
    make = functools.partial(ppo_for, EnvConfig(name=env.name, num_envs=4))
    return make_manager(runtime, make(), env, make, num_workers=2, min_workers=2)


@pytest.mark.parametrize("mode", ["made_raises", "made_hangs", "reset_raises", "reset_hangs"])
def test_an_environment_that_cannot_begin_ends_the_run_with_its_name(mode, runtime):
    """D2, D12: worker, environment and cause; a hang within `reset_timeout_s`, not within that of the workers."""
    started = time.monotonic()
    with RayRuntime(RestartPolicy(max_restarts=1, backoff_s=0.0)) as few, pytest.raises(PalaestraError) as failed:
        manager_of(few, mode).unroll(6)
    said = str(failed.value)
    assert "rollout-1" in said
    assert "environment 3 " in said  # of the run; it is the second of its worker
    assert "environment 1 " not in said
    assert ("broken in " if mode.endswith("raises") else "did not answer in time and was interrupted") in said
    assert ("could not be made" if mode.startswith("made") else "in episode 0 (seed ") in said
    assert f'_fault("{mode.partition("_")[0]}")' in said
    assert time.monotonic() - started < SOON
    assert failed.value.exit_code == 3


@pytest.mark.parametrize("mode", ["close_raises", "close_hangs"])
def test_an_environment_that_cannot_be_closed_is_named_when_its_run_is_over(mode, runtime, caplog):
    """D12: what was learned stands, and the worker's own error is logged."""
    manager = manager_of(runtime, mode)
    assert manager.unroll(6).env_steps == 4 * 6
    started = time.monotonic()
    for worker in manager.group.workers:
        runtime.stop(worker.id, timeout_s=30.0)
    (said,) = [record.getMessage() for record in caplog.records if "close" in record.getMessage()]
    assert said.startswith("rollout-1: close raised EnvError")
    assert "environment 3 " in said
    assert "when it was closed in episode 0 (seed " in said
    assert ("broken in close" if mode == "close_raises" else "did not answer in time and was interrupted") in said
    assert time.monotonic() - started < 30.0


def test_what_drawing_raises_is_named(runtime):
    """D12: environment, episode and cause."""
    stage = runtime.start(Stage, name="painter")
    (result,) = runtime.wait([runtime.call(stage, "draw", "render_raises")], timeout_s=SOON)
    said = str(result.error)
    assert said.startswith("painter: draw raised EnvError")
    assert "environment 0 raised ValueError when it was drawn in episode 0 (seed " in said
    assert "broken in render" in said
