"""Worker processes of environments that die, or are left without a caller, between two steps."""

import os
import signal

import pytest
import torch

from palaestra.envs import FaultPolicy, LaneEnvironment, ProcessDriver
from palaestra.envs.stepping.worker import Seat
from tests.envs.test_process import TWO, ZEROS, repeat, talkative


@pytest.mark.fault
@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_dies_between_steps_does_not_keep_a_run_from_saving(times):
    """F3: under `restart` and `drop` the next step replaces it; a resumed run begins new episodes there.

    A second save, with no step between, asks a worker whose end is known.
    """
    env = LaneEnvironment(ProcessDriver(TWO, num_workers=2, faults=FaultPolicy(on_fault="restart", backoff_s=0)))
    env.reset()
    repeat(env, 3)
    os.kill(env.driver.worker_pids[1], signal.SIGKILL)
    saved = [env.state_dict() for _ in range(times)][-1]
    step = env.step(ZEROS)
    assert (step.step_type.tolist(), [fault.kind for fault in env.faults]) == ([1, 0], ["died"])
    with LaneEnvironment(ProcessDriver(TWO, num_workers=2)) as again:
        again.load_state_dict(saved)
        assert again.step(ZEROS).step_type.tolist() == [1, 0]
    env.close()


@pytest.mark.parametrize("where", ["collect", "hear"])
def test_after_ctrl_c_the_next_step_is_the_next_one(monkeypatch, where):
    """F22: the answer to the step that was interrupted is not taken for that of the next."""
    with LaneEnvironment(ProcessDriver([talkative], num_workers=1)) as env:
        env.reset()
        with monkeypatch.context() as patch:
            patch.setattr(env.driver if where == "collect" else Seat, where, _interrupted)
            with pytest.raises(KeyboardInterrupt):
                repeat(env, 3)
        first = env.reset()
        assert (first.step_type.tolist(), first.observation[0, 0]) == ([0], 0)
        for number in range(1, 5):
            assert env.step(torch.zeros(1, dtype=torch.int64)).observation[0, 0] == number


def _interrupted(*_):
    raise KeyboardInterrupt
