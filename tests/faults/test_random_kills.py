"""A run whose actors, policy host and gradient workers are killed at random."""

import os
import random
import signal
import time
from typing import Any

import pytest

from palaestra import NetworkConfig, Trainer, TrainerConfig, evaluate
from palaestra.core import POLICY
from palaestra.distributed import DistributedPolicyManager, GradientWorkers
from palaestra.envs import EnvConfig
from palaestra.runtime import ProcessRuntime, RestartPolicy
from tests.algorithms.parts import environment
from tests.distributed.actors import make_algorithm, server
from tests.training.parts import Hooks

CATCH = EnvConfig(name="palaestra.envs.tiny:Catch", kwargs={"num_rows": 6, "num_columns": 3}, num_envs=16)
KILLS = 50
LIMIT_S = 180.0


class Killer:
    """Kills a random worker of a runtime now and then, whatever it is doing."""

    def __init__(self, runtime: ProcessRuntime, pause_s: float) -> None:
        self.victims: list[str] = []
        self._runtime, self._pause_s, self._last_s = runtime, pause_s, time.monotonic()
        self._random = random.Random(0)

    def __call__(self, *_: Any) -> None:
        if len(self.victims) == KILLS or time.monotonic() - self._last_s < self._pause_s:
            return
        seats = list(self._runtime._alive.values())
        if seats:
            seat = self._random.choice(seats)
            os.kill(seat.process.pid, signal.SIGKILL)
            self.victims.append(seat.worker.name)
            self._last_s = time.monotonic()


@pytest.mark.fault
@pytest.mark.slow
def test_fifty_random_kills_end_no_run_and_lose_nothing_unnamed():
    """F14, F17: no hang, every fragment used once or named, every update made once, and the run learns."""
    settings = {"learning_rate": 3e-3, "unroll_length": 20, "num_epochs": 1, "mini_batch_sequences": None}
    algorithm = make_algorithm("impala", CATCH, network=NetworkConfig(hidden_sizes=(32,)), **settings)
    with ProcessRuntime(RestartPolicy(max_restarts=1000, backoff_s=0.01, max_backoff_s=0.05)) as runtime:
        collect = server(runtime, algorithm, CATCH, actors=2)
        workers = GradientWorkers({POLICY: algorithm}, runtime, 2)
        manager = DistributedPolicyManager({POLICY: algorithm}, runtime, gradient_workers=workers)
        asked, give = [], collect.group.give
        collect.group.give = lambda *args, **kwargs: (asked.append(args), give(*args, **kwargs))[1]
        kill = Killer(runtime, pause_s=LIMIT_S / 2 / KILLS)
        config = TrainerConfig(total_env_steps=10**9, time_limit_s=LIMIT_S)
        trainer = Trainer(collect, manager, config)

        def enough(trainer: Trainer, _: Any) -> None:
            kill()
            if len(kill.victims) == KILLS and trainer.collector.env_steps > 60_000:
                trainer.stop("everything was killed often enough")

        trainer.callbacks.append(Hooks(iteration_ended=enough))
        began = time.monotonic()
        result = trainer.run()
        assert time.monotonic() - began < LIMIT_S + 30
        busy = len(collect.group.busy)
    assert result.status == "stopped"
    assert len(kill.victims) == KILLS
    assert {name.split("-")[0] for name in kill.victims} == {"actor", "policy", "grad"}
    used = sum(collect.lags.values())
    assert len(asked) == used + len(collect.dropped) + collect.metrics()["workers/waiting_fragments"] + busy
    assert len({dropped[:3] for dropped in collect.dropped}) == len(collect.dropped)
    assert algorithm.policy_version == used
    assert algorithm.num_gradient_steps == used
    with environment(CATCH, 16, 9) as env:
        assert evaluate(algorithm.policy, env, episodes=200).return_mean > 0.7
