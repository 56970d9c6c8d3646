"""The contract of `Environment`: every vectorisation times environments of every kind.

A row of `VECTORISATIONS` enrols a way to step environments, a row of `WORLDS` an environment.
"""

import functools
import importlib.util
import inspect
import itertools
import multiprocessing
import os

import numpy as np
import pytest
import torch

import palaestra.envs
from palaestra.core import RunSeeds, check_time_step, load_tensors, save_tensors, spec_leaves, tree_paths
from palaestra.envs import (
    BatchedWrapper,
    BatchEnvironment,
    Driver,
    Environment,
    EnvironmentWrapper,
    FirstReadyEnvironment,
    GymEnvironment,
    LaneEnvironment,
    NativeVectorEnvironment,
    ProcessDriver,
    SerialDriver,
    TensorEnvironment,
    ThreadDriver,
    load,
)
from palaestra.testing.environments import assert_same, played, random_actions
from tests.envs.worlds import Recorder, StepRecorder

SIZE = 3
SEEDS = [RunSeeds(17).integer("environments", lane) for lane in range(SIZE)]

WORLDS = {
    "CartPole": functools.partial(load, "CartPole-v1", max_episode_steps=25),
    "Pendulum": functools.partial(load, "Pendulum-v1", max_episode_steps=9),
    "Bandit": functools.partial(load, "palaestra.envs.tiny:Bandit", kwargs={"noise": 1.0}),
    "Catch": functools.partial(load, "palaestra.envs.tiny:Catch"),
    "Endless": functools.partial(load, "palaestra.envs.tiny:Endless", max_episode_steps=5, kwargs={"random": True}),
    "Nested": functools.partial(load, "tests.envs.worlds:Nested", max_episode_steps=11),
    "Switches": functools.partial(load, "tests.envs.worlds:Switches"),
    "wrapped": functools.partial(load, "CartPole-v1", max_episode_steps=25, wrappers=(EnvironmentWrapper,)),
}


def serial(make, size=SIZE, seeds=SEEDS):
    return LaneEnvironment(SerialDriver([make(env_id=lane) for lane in range(size)]), lane_seeds=seeds)


def process(make, workers, size=SIZE, seeds=SEEDS):
    factories = [functools.partial(make, env_id=lane) for lane in range(size)]
    return LaneEnvironment(ProcessDriver(factories, num_workers=workers), lane_seeds=seeds)


def thread(make, size=1, seeds=SEEDS[:1]):
    assert (size, len(seeds)) == (1, 1)
    return LaneEnvironment(ThreadDriver(functools.partial(make, env_id=0)), lane_seeds=seeds)


def first_ready(make, seeds=SEEDS):
    """All of them are waited for, so that the rows come in the order of the lanes."""
    groups = [
        LaneEnvironment(ProcessDriver([functools.partial(make, env_id=lane)]), lane_seeds=[seeds[lane]])
        for lane in range(SIZE)
    ]
    return FirstReadyEnvironment(groups, num_ready=SIZE)


def native(make, mode):
    import gymnasium

    def bare():
        env = make()
        while not isinstance(env, GymEnvironment):
            env = env.env
        return gymnasium.wrappers.TimeLimit(env.gym_env, 12)

    vector_env = gymnasium.vector.SyncVectorEnv([bare] * SIZE, autoreset_mode=mode)
    return NativeVectorEnvironment(vector_env, lane_seeds=SEEDS)


VECTORISATIONS = {
    "serial": serial,
    "process-1": functools.partial(process, workers=1),
    "process-2": functools.partial(process, workers=2),
    "process-3": functools.partial(process, workers=3),
    "thread": thread,
    "first-ready": first_ready,
    "native-next-step": functools.partial(native, mode="NextStep"),
}
EXACT = [name for name in VECTORISATIONS if name.startswith(("serial", "process"))]

everywhere = pytest.mark.parametrize("vectorisation", VECTORISATIONS)
exactly = pytest.mark.parametrize("vectorisation", EXACT)
every_world = pytest.mark.parametrize("world", WORLDS)


def leaves(value):
    """Every tensor of a tree by its path."""
    return {} if isinstance(value, tuple) and not value else tree_paths(value)


# Gymnasium's vector environments have no vector rewards.
@pytest.mark.parametrize(
    ("vectorisation", "world"),
    [pair for pair in itertools.product(VECTORISATIONS, WORLDS) if pair != ("native-next-step", "Switches")],
)
def test_the_contract_of_time_steps(vectorisation, world):
    """ALF-13 to ALF-18, ALF-27, ALF-33, ALF-42."""
    with VECTORISATIONS[vectorisation](WORLDS[world]) as env:
        stream, size = played(env, 40), env.batch_size
        specs = spec_leaves(env.observation_spec), spec_leaves(env.action_spec)
        reward_shape = (size, *env.reward_spec.shape)
    for before, after in zip([None, *stream], stream, strict=False):
        check_time_step(after)
        assert after.step_type.dtype == torch.int32
        assert (after.reward.dtype, tuple(after.reward.shape)) == (torch.float32, reward_shape)
        assert (after.discount.dtype, tuple(after.discount.shape)) == (torch.float32, (size,))
        assert after.env_id.tolist() == list(range(size))
        assert after.untransformed == ()
        first = after.first
        assert torch.equal(first, torch.ones(size, dtype=torch.bool) if before is None else before.last)
        assert not after.reward[first].any()
        for paths, value in zip(specs, (after.observation, after.prev_action), strict=True):
            found = leaves(value)
            assert len(found) == len(paths)
            for spec, leaf in zip(paths.values(), found.values(), strict=True):
                assert all(spec.problem(row) is None for row in leaf) or value is after.prev_action
                assert (leaf.dtype, tuple(leaf.shape)) == (spec.dtype, (size, *spec.shape))
                assert value is after.observation or not leaf[first].any()
    kinds = torch.stack([step.step_type for step in stream])
    assert (kinds == 2).sum() > size


@everywhere
@pytest.mark.parametrize("world", ["CartPole", "Nested"])
def test_what_was_returned_is_never_written_to_again(vectorisation, world):
    with VECTORISATIONS[vectorisation](WORLDS[world]) as env:
        actions = random_actions(env)
        kept = []
        for _ in range(20):
            step = env.step(next(actions))
            kept.append((step, {key: leaf.clone() for key, leaf in leaves(step).items()}))
    for step, copies in kept:
        found = leaves(step)
        assert all(torch.equal(found[key].nan_to_num(0.5), copy.nan_to_num(0.5)) for key, copy in copies.items())


def simulator(name: str, package: str, steps: int, **kwargs):
    """A world of an optional package; its tests are skipped where that is missing."""
    missing = pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")
    return pytest.param(functools.partial(load, name, max_episode_steps=steps, **kwargs), marks=missing, id=name)


REAL = [
    *(pytest.param(make, id=name) for name, make in WORLDS.items()),
    simulator("HalfCheetah-v5", "mujoco", 20),
    simulator("ALE/Pong-v5", "ale_py", 20, kwargs={"frameskip": 4}),
]


@pytest.mark.parametrize("make", REAL)
def test_every_vectorisation_gives_every_environment_the_same_stream_bit_for_bit(make):
    """ALF-47, ALF-48, ALF-56, acceptance scenario 2: serial, thread and process with any number of workers."""
    with serial(make) as env:
        expected = played(env, 45)
        specs = spec_leaves(env.observation_spec), spec_leaves(env.action_spec)
    for workers in (1, 2, 3):
        with process(make, workers) as env:
            assert (spec_leaves(env.observation_spec), spec_leaves(env.action_spec)) == specs
            for ours, theirs in zip(played(env, 45), expected, strict=True):
                assert_same(ours, theirs)
    # a thread steps one environment, whose stream is that of its lane in a batch of one
    with serial(make, 1, SEEDS[:1]) as one, thread(make) as two:
        for ours, theirs in zip(played(one, 45), played(two, 45), strict=True):
            assert_same(ours, theirs)


@everywhere
@pytest.mark.parametrize("world", ["CartPole", "Catch", "Nested"])
def test_seeds_are_distinct_and_reproducible(vectorisation, world):
    """ALF-55, ALF-56, acceptance scenario 2."""
    make = VECTORISATIONS[vectorisation]
    with make(WORLDS[world]) as one, make(WORLDS[world]) as two:
        streams = played(one, 30), played(two, 30)
    for ours, theirs in zip(*streams, strict=True):
        assert_same(ours, theirs)
    if world != "Catch":
        rows = next(iter(leaves(streams[0][0].observation).values()))
        assert len({tuple(row.reshape(-1).tolist()) for row in rows}) == len(rows)


@exactly
@every_world
def test_a_restored_environment_goes_on_exactly(vectorisation, world, tmp_path):
    """F25: by replay, also from a serial environment's checkpoint, through a file."""
    make = VECTORISATIONS[vectorisation]
    with serial(WORLDS[world]) as one, make(WORLDS[world], seeds=[4, 5, 6]) as two:
        assert two.resume == "exact"
        for cut in (0, 1, 17):
            played(one, cut)
            save_tensors(tmp_path / "state", one.state_dict())
            two.load_state_dict(load_tensors(tmp_path / "state"))
            ours, theirs = two.state_dict(), one.state_dict()
            assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
            actions = random_actions(one, seed=cut)
            for _ in range(15):
                action = next(actions)
                assert_same(one.step(action), two.step(action))


@exactly
def test_an_environment_saved_before_its_first_step_starts_at_the_beginning(vectorisation):
    make = VECTORISATIONS[vectorisation]
    with make(WORLDS["CartPole"]) as one, make(WORLDS["CartPole"], seeds=[4, 5, 6]) as two:
        two.load_state_dict(one.state_dict())
        assert_same(one.reset(), two.reset())


@everywhere
def test_a_step_before_any_reset_starts_the_first_episodes(vectorisation):
    with VECTORISATIONS[vectorisation](WORLDS["Catch"]) as env:
        assert env.step(next(random_actions(env))).step_type.tolist() == [0] * env.batch_size


@everywhere
def test_the_last_observation_is_the_true_final_one(vectorisation):
    with VECTORISATIONS[vectorisation](WORLDS["Catch"]) as env:
        stream = played(env, 9)
    final = stream[9]
    assert final.step_type.tolist() == [2] * env.batch_size
    assert final.discount.tolist() == [0] * env.batch_size
    # the ball has arrived in the last row
    board = final.observation.reshape(-1, 10, 5)
    assert not board[:, :-1].any()


@everywhere
def test_an_episode_that_is_cut_off_keeps_its_discount(vectorisation):
    """ALF-26, ALF-28, ALF-30."""
    with VECTORISATIONS[vectorisation](WORLDS["Endless"]) as env:
        stream = played(env, 30)
    last = torch.stack([step.last for step in stream])
    discount = torch.stack([step.discount for step in stream])
    assert last.any()
    assert (discount == 1).all()


def test_one_environment_in_this_process_starts_no_other():
    """ALF-01."""
    before = {child.pid for child in multiprocessing.active_children()}
    env = serial(functools.partial(load, "tests.envs.worlds:Pid"), 1, SEEDS[:1])
    env.reset()
    assert int(env.step(torch.zeros(1, dtype=torch.int64)).env_info.pid) == os.getpid()
    assert {child.pid for child in multiprocessing.active_children()} == before


def test_actions_flow_inwards_and_time_steps_outwards():
    """ALF-34, ALF-35, ALF-43, ALF-44."""
    notes: list[str] = []
    env = load(
        "CartPole-v1",
        gym_wrappers=[lambda env: Recorder(env, "gym 1", notes), lambda env: Recorder(env, "gym 2", notes)],
        wrappers=[lambda env: StepRecorder(env, "step 1", notes), lambda env: StepRecorder(env, "step 2", notes)],
    )
    batch = LaneEnvironment(SerialDriver([env]))
    batch.reset()
    batch.step(torch.zeros(1, dtype=torch.int64))
    inwards = ["step 2", "step 1", "gym 2", "gym 1"]
    assert notes == [f"{name} down" for name in inwards] + [f"{name} up" for name in reversed(inwards)]


def test_every_vectorisation_of_the_package_is_enrolled():
    public = [kind for kind in vars(palaestra.envs).values() if isinstance(kind, type) and not inspect.isabstract(kind)]
    kinds = {kind for kind in public if issubclass(kind, Environment) or kind.__name__.endswith("Driver")}
    bases = (TensorEnvironment, BatchEnvironment)
    games = {kind for kind in kinds if issubclass(kind, bases) and kind not in bases}
    kinds -= {Driver, BatchedWrapper, *games}
    enrolled = set()
    for make in VECTORISATIONS.values():
        with make(WORLDS["Bandit"]) as env:
            enrolled |= {type(env), type(getattr(env, "driver", env))}
    assert enrolled == kinds
    # their contracts are in envs/test_batched.py, envs/test_tensor.py and envs/simulators/
    assert inspect.isabstract(TensorEnvironment)
