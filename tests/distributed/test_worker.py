"""`RolloutWorker`: what a new life begins with."""

import functools
from typing import Any

import numpy as np
import pytest
import torch

from palaestra import PPO, EnvConfig, PPOConfig, RunSeeds
from palaestra.core import POLICY, EnvError
from palaestra.distributed import CollectorFactory, RolloutWorker, acting_weights
from palaestra.envs import probe_specs
from tests.faults.parts import differences

KINDS = {
    "serial": EnvConfig(name="CartPole-v1", num_envs=2),
    "native": EnvConfig(name="CartPole-v1", num_envs=2, vectorization="native"),
    "tensors": EnvConfig(name="palaestra.envs.tiny:TensorCartPole", num_envs=2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_life_sees_no_episode_of_an_earlier_one(kind):
    """F14: seeds go on where the last fragment ended, native pools and tensor environments included; each life is the
    same whenever it is lived."""
    env = KINDS[kind]
    observation_spec, action_spec, _ = probe_specs(env)
    make = functools.partial(PPO, observation_spec, action_spec, PPOConfig(unroll_length=8), RunSeeds(0))
    workers = CollectorFactory(env=env, algorithm=make, num_workers=1)
    weights = acting_weights({POLICY: make().policy})

    def life(position):
        worker = RolloutWorker(workers, 0)
        worker.begin(position)
        fragment = worker.collect(weights, 40, episodes=False, random=())
        worker.close()
        assert fragment.lanes is not None
        ((_, rows),) = fragment.pieces[POLICY]
        return rows["observation"], {"lanes": fragment.lanes}

    seen, position = [], None
    for number in range(3):
        observation, after = life(position)
        assert torch.equal(observation, life(position)[0]), number
        seen.append(observation)
        position = after
    starts = np.concatenate([observation[0].numpy() for observation in seen])
    assert len(np.unique(starts, axis=0)) == 6


def test_a_worker_that_was_asked_for_its_state_more_often_ends_in_the_same_one():
    """F25: a checkpoint that an interruption adds changes nothing that is saved later."""
    env = KINDS["serial"]
    observation_spec, action_spec, _ = probe_specs(env)
    make = functools.partial(PPO, observation_spec, action_spec, PPOConfig(unroll_length=8), RunSeeds(0))
    weights, states = acting_weights({POLICY: make().policy}), []
    for interrupted in (False, True):
        worker = RolloutWorker(CollectorFactory(env=env, algorithm=make, num_workers=1), 0)
        worker.begin(None)
        for number in range(4):
            worker.collect(weights, 10, episodes=False, random=())
            if interrupted and number == 1:
                worker.state()
        states.append(worker.state())
        worker.close()
    assert differences(*states) == []


@pytest.mark.parametrize("on_fault", ["raise", "restart"])
def test_an_environment_has_its_number_of_the_whole_run(on_fault):
    """F1: the fourth of four is the second environment of the second worker."""
    fine: Any = {"kwargs": {"mode": "fine"}}
    variants = (fine, fine, fine, {"kwargs": {"mode": "raise"}})
    env = EnvConfig(name="tests.faults.broken:Broken", num_envs=4, variants=variants, on_fault=on_fault)
    observation_spec, action_spec, _ = probe_specs(EnvConfig(name=env.name, kwargs={"mode": "fine"}))
    make = functools.partial(PPO, observation_spec, action_spec, PPOConfig(unroll_length=8), RunSeeds(0))
    worker = RolloutWorker(CollectorFactory(env=env, algorithm=make, num_workers=2), 1)
    weights = acting_weights({POLICY: make().policy})
    if on_fault == "raise":
        with pytest.raises(EnvError, match=r"^environment 3 raised ValueError in episode 0"):
            worker.collect(weights, 4, episodes=False, random=())
    else:
        (fault,) = worker.collect(weights, 4, episodes=False, random=()).faults
        assert (fault.env_id, fault.handled) == (3, "restart")
    worker.close()


def test_chaos_in_one_environment_of_the_run_is_chaos_in_that_one_of_its_worker():
    env = EnvConfig(name="CartPole-v1", num_envs=4, chaos="raise@2#3,nan@9")
    observation_spec, action_spec, _ = probe_specs(EnvConfig(name="CartPole-v1"))
    make = functools.partial(PPO, observation_spec, action_spec, PPOConfig(unroll_length=4), RunSeeds(0))
    workers = CollectorFactory(env=env, algorithm=make, num_workers=2)
    assert [workers.share(worker)[0].chaos for worker in range(2)] == ["nan@9", "raise@2#1,nan@9"]
    weights = acting_weights({POLICY: make().policy})
    quiet, struck = (RolloutWorker(workers, worker) for worker in range(2))
    for worker in (quiet, struck):
        worker.begin(None)
    assert quiet.collect(weights, 4, episodes=False, random=()).info.rows == 4
    with pytest.raises(EnvError, match=r"environment 3 .*chaos"):
        struck.collect(weights, 4, episodes=False, random=())
    for worker in (quiet, struck):
        worker.close()
