"""Roll-out workers in real processes: slow ones, killed ones, and a driver that is killed."""

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import palaestra
from palaestra import EnvConfig, Trainer, TrainerConfig
from palaestra.algorithms import ALGORITHMS
from palaestra.envs import probe_specs
from palaestra.experiments import read_faults
from palaestra.runtime import ProcessRuntime, RemoteError, RestartPolicy
from palaestra.training import CheckpointStore
from tests.algorithms.parts import tiny_config
from tests.distributed.runs import make_manager
from tests.experiments.parts import trained

PAYS = EnvConfig(name="tests.distributed.runs:Pays", num_envs=4)
STEP_S = 0.01
ROWS = 4


def ppo_for(env, **settings):
    algorithm = ALGORITHMS["ppo"]
    observation_spec, action_spec, _ = probe_specs(env)
    config = tiny_config(algorithm, **{"unroll_length": ROWS, **settings})
    return algorithm(observation_spec, action_spec, config, palaestra.RunSeeds(0))


def manager_of(runtime, **config):
    env = EnvConfig(name=PAYS.name, num_envs=4, kwargs={"step_s": STEP_S})
    make = functools.partial(ppo_for, env)
    return make_manager(runtime, make(), env, make, num_workers=4, slow_s=50 * STEP_S, **config)


@pytest.mark.fault
def test_one_slow_worker_delays_those_who_wait_for_it_and_nobody_else():
    """F18, MARO-03, MARO-04, MARO-05: a worker 50 times as slow as the other three."""
    slow_s = ROWS * 50 * STEP_S
    with ProcessRuntime() as runtime:
        strict = manager_of(runtime)
        strict.unroll(1)
        began = time.monotonic()
        strict.unroll(ROWS)
        assert time.monotonic() - began >= slow_s
    with ProcessRuntime() as runtime:
        loose = manager_of(runtime, min_finished_workers=3, grace_timeout_s=0.05)
        loose.unroll(1)
        began, unrolls = time.monotonic(), 0
        while loose.metrics()["workers/late"] == 0 or unrolls < 3:
            loose.unroll(ROWS)
            unrolls += 1
        while loose.metrics()["workers/late"] == 1:
            began = time.monotonic()
            assert loose.unroll(ROWS).env_steps > 0
            if loose.metrics()["workers/late"] == 1:  # nobody waited for it
                assert time.monotonic() - began < slow_s
        assert loose.dropped == []


@pytest.mark.fault
@pytest.mark.slow
def test_fifty_kills_lose_nothing_but_what_they_hit():
    """F14: kills at random moments; every fragment is used once or dropped by name, and the run learns meanwhile."""
    generator, kills, killed = random.Random(0), 50, 0
    env = EnvConfig(name=PAYS.name, num_envs=6, kwargs={"step_s": 0.002})
    make = functools.partial(ppo_for, env, unroll_length=10, learning_rate=0.01, mini_batch_size=4, num_epochs=4)
    with ProcessRuntime(RestartPolicy(max_restarts=100, backoff_s=0.01, max_backoff_s=0.1)) as runtime:
        algorithm = make()
        manager = make_manager(runtime, algorithm, env, make, num_workers=3, timeout_s=30.0)
        trainer = Trainer(manager, algorithm, TrainerConfig(total_env_steps=10**9))
        asked = calls_of(runtime, "collect")
        deadline, kill_at = time.monotonic() + 500, time.monotonic()
        while (
            killed < kills or mean_return(trainer) < 7 or len(manager.dropped) < kills
        ) and time.monotonic() < deadline:
            trainer.train_iter()
            victim = generator.choice(manager.group.workers)
            if killed < kills and victim.state == "idle" and time.monotonic() >= kill_at:
                manager.group.give(victim, "collect", 50, *manager.weights(), episodes=False, random=[])
                kill_at = time.monotonic() + generator.uniform(0.0, 0.1)
                os.kill(runtime._workers[victim.id].handle.process.pid, signal.SIGKILL)
                killed += 1
        metrics = manager.metrics()
    assert killed == kills
    assert metrics["workers/restarts"] >= kills
    assert len(set(asked)) == len(asked) == metrics["workers/fragments"] + metrics["workers/dropped"]
    assert len({dropped[:3] for dropped in manager.dropped}) == len(manager.dropped) == kills
    assert all("SIGKILL" in dropped.reason for dropped in manager.dropped)
    assert metrics["workers/duplicates"] == 0
    assert mean_return(trainer) >= 7  # of 8; chance gives 4


def calls_of(runtime, method):
    """The calls of a method that a runtime hands over from now on."""
    calls, submit = [], runtime.submit

    def submit_and_note(worker, call, request):
        if call.method == method:
            calls.append(call)
        submit(worker, call, request)

    runtime.submit = submit_and_note
    return calls


def mean_return(trainer):
    row = {name: value for metric in trainer.metrics for name, value in metric.result().items()}
    return row.get("return_mean", 0.0)  # none before an episode has ended


@pytest.mark.fault
@pytest.mark.needs_linux
def test_a_run_whose_driver_was_killed_leaves_nobody_behind_and_goes_on(tmp_path, wait_until):
    """F16: the newest checkpoint is whole, the workers are gone, and the resumed run ends as it should."""
    settings = {"trainer__total_env_steps": 4000, "trainer__checkpoint_every_steps": 200, "trainer__eval_episodes": 2}
    driver = subprocess.Popen([sys.executable, "-m", __name__, str(tmp_path), json.dumps(settings)], cwd=ROOT)
    try:
        store = CheckpointStore(tmp_path / "run" / "checkpoints")
        wait_until(lambda: len(store.steps()) > 1, 240.0, what="two checkpoints")
        children = descendants(driver.pid)
        assert len(children) >= 2
    finally:
        driver.kill()
        driver.wait()
    wait_until(lambda: not any(map(exists, children)), 60.0, what="the end of the workers")
    done = palaestra.resume(tmp_path / "run")
    assert done.result.status == "done"
    assert done.result.env_steps >= 4000


ROOT = Path(__file__).parents[2]


def exists(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid):
    """Processes below a process, however deep."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and exists(entry.name):
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


if __name__ == "__main__":
    palaestra.train(
        "ppo",
        "palaestra.envs.tiny:Chain",
        run__directory=sys.argv[1],
        run__name="run",
        run__tensorboard=False,
        env__max_episode_steps=6,
        env__num_envs=4,
        distributed__runtime="process",
        distributed__num_workers=2,
        algorithm__unroll_length=10,
        **json.loads(sys.argv[2]),
    )


def test_the_record_of_an_environment_that_failed_in_a_worker_says_where(tmp_path):
    """F1: environment, seed, episode, step and action, as where it is stepped by the run itself."""
    with pytest.raises(RemoteError, match="chaos: the environment raised") as caught:
        trained(tmp_path, env__chaos="raise@3#1", distributed__runtime="process", distributed__num_workers=2)
    [fault] = read_faults(tmp_path / "run")
    assert fault.kind == "EnvError"
    assert {"env_id": 1, "episode": 0, "step": 3, "handled": "raise"}.items() <= fault.details.items()
    assert fault.details["seed"] is not None
    assert fault.details["action"] in ("0", "1")
    assert any("--env.on-fault restart" in note for note in caught.value.__notes__)
