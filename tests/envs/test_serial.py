"""Tests of `palaestra.envs.stepping.serial`."""

import functools
import multiprocessing
import os

import numpy as np
import pytest
import torch
from gymnasium import spaces

from palaestra.core import Batch, EnvError, ShapeError, SpecError
from palaestra.envs import FaultPolicy, GymEnvironment, LaneEnvironment, SerialDriver, load
from palaestra.envs.contract.attributes import remake
from palaestra.envs.wrappers import EpisodicLife
from tests.envs.worlds import Counter, Doubled, Drawing, Faulty, Nested, Pid, Reusing, Shifty, counter, layered
from tests.envs.wrappers.worlds import Game

ZEROS = torch.zeros(2, dtype=torch.int64)


def test_environments_run_in_this_process():
    """ALF-01."""
    before = len(multiprocessing.active_children())
    env = LaneEnvironment(SerialDriver([layered("Pid")]))
    env.reset()
    info = env.step(torch.zeros(1, dtype=torch.int64)).env_info
    assert int(info.pid) == os.getpid()
    assert len(multiprocessing.active_children()) == before


def test_lanes_that_end_are_reset_alone():
    """ALF-33."""
    env = LaneEnvironment(SerialDriver([counter({2: "terminated"}), counter({3: "truncated"})]), lane_seeds=[1, 2])
    steps = [env.step(ZEROS + 1) for _ in range(5)]
    assert torch.stack([step.step_type for step in steps]).tolist() == [[0, 0], [1, 1], [2, 1], [0, 2], [1, 0]]
    assert torch.stack([step.discount for step in steps]).tolist() == [[1, 1], [1, 1], [0, 1], [1, 1], [1, 1]]
    assert torch.stack([step.reward for step in steps]).tolist() == [[0, 0], [10, 10], [20, 20], [0, 30], [10, 0]]
    assert torch.stack([step.prev_action for step in steps]).tolist() == [[0, 0], [1, 1], [1, 1], [0, 1], [1, 0]]


def test_the_last_row_shows_the_true_final_observation():
    env = LaneEnvironment(SerialDriver([counter({2: "terminated"})]), lane_seeds=[1])
    seen = [env.step(ZEROS[:1]).observation[0, 0].item() for _ in range(4)]
    assert seen == [0, 1, 2, 0]


def test_a_reset_abandons_running_episodes_and_counts_on():
    env = LaneEnvironment(SerialDriver([counter(), counter()]), lane_seeds=[1, 2])
    env.reset()
    env.step(ZEROS)
    assert env.reset().step_type.tolist() == [0, 0]
    assert env.state_dict()["episode"].tolist() == [1, 1]


def test_time_steps_can_be_kept():
    env = LaneEnvironment(SerialDriver([GymEnvironment(Reusing()), GymEnvironment(Reusing())]))
    ones = torch.ones(2, 1)
    steps = [env.reset(), *(env.step(ones) for _ in range(3))]
    assert [step.observation[0].item() for step in steps] == [0, 1, 2, 3]
    # the environment zeroes the action it is given: neither ours nor what we report may change
    assert ones.tolist() == [[1.0], [1.0]]
    assert steps[-1].prev_action.tolist() == [[1.0], [1.0]]


def test_changing_what_was_returned_does_no_harm():
    env, twin = (LaneEnvironment(SerialDriver([counter(noisy=True)] * 1), lane_seeds=[1]) for _ in range(2))
    for one in (env, twin):
        one.reset()
    for _ in range(3):
        step = env.step(ZEROS[:1])
        step.observation.zero_()
        step.prev_action.fill_(2)
        twin.step(ZEROS[:1])
    a, b = env.state_dict(), twin.state_dict()
    assert a["digest"] == b["digest"]
    assert a["action"].tolist() == b["action"].tolist()


def test_nested_data_are_batches_and_info_comes_and_goes():
    """ALF-16, ALF-20."""
    env = LaneEnvironment(SerialDriver([GymEnvironment(Nested()) for _ in range(3)]), lane_seeds=[1, 2, 3])
    first = env.reset()
    assert isinstance(first.observation, Batch)
    assert first.observation.body.shape == (3, 2, 3)
    assert first.observation.body.dtype == torch.float64
    assert first.observation.pair["0"].dtype == torch.uint8
    assert first.env_info.fresh.tolist() == [1, 1, 1]
    action = Batch(move=torch.ones(3, 2), gear=torch.tensor([0, 1, 2]))
    second = env.step(action)
    assert second.reward.tolist() == [2, 3, 4]
    assert second.prev_action.gear.tolist() == [0, 1, 2]
    assert sorted(second.env_info.keys()) == ["deep/x", "speed"]
    assert second.env_info["deep/x"].dtype == torch.float64
    assert list(env.observation_spec["pair"]) == ["0", "1"]


def test_info_that_one_lane_reports_is_nan_in_the_others():
    env = LaneEnvironment(SerialDriver([layered("Pid"), layered("Counter")]))
    env.reset()
    assert torch.isnan(env.step(ZEROS).env_info.pid).tolist() == [False, True]
    assert LaneEnvironment(SerialDriver([layered("Counter")])).reset().env_info == ()


@pytest.mark.parametrize("action", [torch.zeros(3, dtype=torch.int64), torch.zeros(2, 1), 0])
def test_an_action_of_the_wrong_shape_is_refused(action):
    with pytest.raises(ShapeError, match=r"expected \(2,\)"):
        LaneEnvironment(SerialDriver([counter(), counter()])).step(action)


def test_a_discrete_action_that_does_not_exist_is_refused_before_the_environment_sees_it():
    """F8."""
    gym_env = Counter()
    env = LaneEnvironment(SerialDriver([GymEnvironment(gym_env)]))
    env.reset()
    for bad in (-1, 3):
        with pytest.raises(SpecError, match=f"environment 0 has value {bad}"):
            env.step(torch.tensor([bad]))
    assert gym_env.actions == []


def test_actions_of_another_dtype_are_cast():
    env = LaneEnvironment(SerialDriver([load("Pendulum-v1")]))
    env.reset()
    assert env.step(torch.zeros(1, 1, dtype=torch.float64)).prev_action.dtype == torch.float32
    assert env.step(torch.zeros(1, 1, requires_grad=True)).reward.shape == (1,)


def test_a_failure_names_the_lane_and_the_others_go_on_with_new_episodes():
    """F1."""
    envs = [counter(), GymEnvironment(Faulty("raise", at=2))]
    env = LaneEnvironment(SerialDriver(envs), lane_seeds=[1, 2])
    env.reset()
    env.step(ZEROS)
    with pytest.raises(EnvError, match=r"environment 1 raised KeyError in episode 0 \(seed \d+\), at step 2"):
        env.step(ZEROS)
    assert env.step(ZEROS).step_type.tolist() == [0, 0]
    assert env.state_dict()["episode"].tolist() == [1, 1]


def test_an_iterator_that_runs_out_in_an_environment_is_no_quiet_end():
    class Exhausted(Counter):
        def step(self, action):
            return next(iter(()))

    env = LaneEnvironment(SerialDriver([counter(), GymEnvironment(Exhausted())]))
    env.reset()
    with pytest.raises(EnvError, match=r"(?s)environment 1 .*StopIteration"):
        env.step(ZEROS)


def test_a_state_saved_after_a_failure_starts_new_episodes():
    env = LaneEnvironment(SerialDriver([counter(), GymEnvironment(Faulty("raise", at=1))]), lane_seeds=[1, 2])
    env.reset()
    with pytest.raises(EnvError):
        env.step(ZEROS)
    twin = LaneEnvironment(SerialDriver([counter(), counter()]), lane_seeds=[3, 4])
    twin.load_state_dict(env.state_dict())
    assert twin.step(ZEROS).step_type.tolist() == [0, 0]
    assert twin.state_dict()["episode"].tolist() == [1, 1]


@pytest.mark.parametrize("lane", [0, 1])
def test_a_shape_that_changes_within_an_episode_is_named_and_not_broadcast(lane):
    """F7."""
    envs = [counter(), counter()]
    envs[lane] = GymEnvironment(Shifty())
    env = LaneEnvironment(SerialDriver(envs))
    env.reset()
    env.step(ZEROS)
    with pytest.raises(EnvError, match=rf"environment {lane} .*shape \(1,\), expected \(2,\)"):
        env.step(ZEROS)


def test_send_and_recv_come_in_pairs():
    env = LaneEnvironment(SerialDriver([counter()]))
    with pytest.raises(EnvError, match="without send"):
        env.recv()
    env.send(ZEROS[:1])
    with pytest.raises(EnvError, match="twice"):
        env.send(ZEROS[:1])
    with pytest.raises(EnvError, match="between"):
        env.state_dict()
    assert env.recv().step_type.tolist() == [0]


def test_only_all_environments_can_be_stepped():
    env = LaneEnvironment(SerialDriver([counter(), counter()]))
    env.send(ZEROS, torch.arange(2))
    env.recv()
    with pytest.raises(SpecError, match="leave env_id out"):
        env.send(ZEROS, torch.tensor([1]))


def test_environments_with_different_specs_are_refused():
    with pytest.raises(SpecError, match="environment 1 has the specs"):
        LaneEnvironment(SerialDriver([counter(), layered("Nested")]))
    with pytest.raises(SpecError, match="at least one"):
        LaneEnvironment(SerialDriver([]))


def test_seeds_must_be_different():
    """ALF-55."""
    with pytest.raises(SpecError, match="each needs one of its own"):
        LaneEnvironment(SerialDriver([counter(), counter()]), lane_seeds=[1, 1])


def test_a_state_of_another_size_is_refused():
    two, one = LaneEnvironment(SerialDriver([counter(), counter()])), LaneEnvironment(SerialDriver([counter()]))
    with pytest.raises(EnvError, match="of 2 environments and this has 1"):
        one.load_state_dict(two.state_dict())


def test_rendering_and_closing():
    with LaneEnvironment(SerialDriver([GymEnvironment(Drawing()), GymEnvironment(Drawing())])) as env:
        env.reset()
        env.step(ZEROS)
        assert env.render().tolist() == np.ones((2, 3, 3)).tolist()


class Closing(Counter):
    """Notes that it was closed, and raises an error."""

    def __init__(self, closed):
        super().__init__()
        self._closed = closed

    def close(self):
        self._closed.append(self)
        raise OSError(f"close number {len(self._closed)} failed")


def test_all_environments_are_closed_although_closing_one_fails():
    closed = []
    env = LaneEnvironment(SerialDriver([GymEnvironment(Closing(closed)) for _ in range(3)]))
    with pytest.raises(EnvError, match=r"(?s)environment 0 raised OSError when it was closed.*close number 1"):
        env.close()
    assert len(closed) == 3


class Spoiled(Reusing):
    """Emits NaN in step 3 and ever after."""

    def step(self, action):
        observation, *rest = super().step(action)
        if observation[0] >= 3:
            observation[0] = np.nan
        return observation, *rest


@pytest.mark.parametrize("layer", [GymEnvironment, lambda env: Doubled(GymEnvironment(env))])
def test_a_dropped_environment_shows_its_last_good_row_although_it_reuses_its_array(layer):
    faults = FaultPolicy(on_fault="drop", strict=True)
    env = LaneEnvironment(SerialDriver([layer(Reusing()), layer(Spoiled())], faults=faults))
    env.reset()
    actions = torch.zeros(2, 1)
    seen = [env.step(actions) for _ in range(5)]
    assert [step.observation[:, 0].tolist() for step in seen] == [[1, 1], [2, 2], [3, 2], [4, 2], [5, 2]]
    assert [step.step_type.tolist() for step in seen] == [[1, 1], [1, 1], [1, 0], [1, 0], [1, 0]]
    assert len(env.faults) == 1
    state = env.state_dict()
    for restore in (lambda: env.load_state_dict(state), lambda: env.load_lane_state(env.lane_state())):
        with pytest.raises(EnvError, match=r"environments \[1\] were dropped and cannot be restored"):
            restore()
    assert env.step(actions).step_type.tolist() == [1, 0]  # as before
    again = LaneEnvironment(SerialDriver([layer(Reusing()), layer(Spoiled())], faults=faults))
    again.load_state_dict(state)
    assert again.resume == "statistical"
    assert again.step(actions).step_type.tolist() == [1, 0]
    again.load_state_dict(again.state_dict())
    assert again.resume == "exact"


def test_the_row_shown_for_a_failure_right_after_a_restored_state_is_the_restored_one():
    faults = FaultPolicy(on_fault="drop")
    drivers = [SerialDriver([GymEnvironment(Reusing()), GymEnvironment(Spoiled())], faults=faults) for _ in range(2)]
    one, two = (LaneEnvironment(driver, lane_seeds=[1, 2]) for driver in drivers)
    one.reset()
    for _ in range(2):
        one.step(torch.zeros(2, 1))
    two.load_state_dict(one.state_dict())
    assert two.step(torch.zeros(2, 1)).observation[:, 0].tolist() == [3, 2]


class LaterFault(Counter):
    """Raises in its 8th step over all instances; noise for the statistics to count."""

    taken = 0

    def step(self, action):
        LaterFault.taken += 1
        if LaterFault.taken == 8:
            raise KeyError("once")
        return super().step(action)


@pytest.mark.parametrize("wrapper", ["NormalizeObservation", "NormalizeReward"])
def test_running_statistics_outlive_a_restart(wrapper):
    """They go on from where the broken episode began."""
    LaterFault.taken = 0
    factory = functools.partial(load, "tests.envs.test_serial:LaterFault", max_episode_steps=5, wrappers=(wrapper,))
    env = LaneEnvironment(SerialDriver([factory], faults=FaultPolicy(on_fault="restart")))
    env.reset()
    for _ in range(5):
        env.step([0])
    before = env.driver.envs[0].snapshot()
    for _ in range(4):
        step = env.step([0])
    assert len(env.faults) == 1
    assert step.step_type.tolist() == [0]
    assert env.driver.envs[0].carried == {f"0:{wrapper}": before}


def test_what_cannot_be_carried_over_a_restart_is_named_in_the_log(caplog):
    games = [EpisodicLife(GymEnvironment(Game())) for _ in range(3)]
    games[0].begin(1)
    games[0].advance(2)
    games[0].begin(2)
    made = iter([EpisodicLife(counter()), games[1]])
    assert remake(games[0], lambda: next(made)) is games[1]
    assert "what the wrappers of environment 0 carried from earlier episodes (0:EpisodicLife) is lost" in caplog.text


def test_a_scalar_reward_may_come_as_an_array_of_one():
    class Wrapped(Pid):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, np.array([reward]), *rest

    env = LaneEnvironment(SerialDriver([GymEnvironment(Wrapped()), GymEnvironment(Wrapped())]))
    env.reset()
    assert env.step(ZEROS).reward.tolist() == [10, 10]


class Keys(Counter):
    """Several actions at once, of a small dtype."""

    def __init__(self, space):
        super().__init__()
        self.action_space = space


@pytest.mark.parametrize(
    ("space", "action", "words"),
    [
        (spaces.MultiBinary(3), [256, 0, 1], r"value 256 at index \[0\], expected an integer in \[0, 1\]"),
        (
            spaces.MultiDiscrete([3, 4], dtype=np.uint8),
            [0, 256],
            r"value 256 at index \[1\], expected an integer in \[0, 3\]",
        ),
        (
            spaces.MultiDiscrete([3, 4], dtype=np.uint8),
            [-256.0, 0],
            r"value -256.0 at index \[0\], expected an integer in \[0, 2\]",
        ),
    ],
)
def test_an_action_that_casting_would_change_is_refused(space, action, words):
    """F8: 256 would be executed as 0."""
    env = LaneEnvironment(SerialDriver([GymEnvironment(Keys(space))]))
    env.reset()
    with pytest.raises(SpecError, match=words):
        env.step(torch.tensor([action]))


@pytest.mark.parametrize("value", [0.5, -0.25, float("nan"), float("inf")])
def test_a_fraction_is_no_discrete_action(value):
    """F8."""
    env = LaneEnvironment(SerialDriver([counter(), counter()]), lane_seeds=[1, 2])
    env.reset()
    with pytest.raises(SpecError, match=f"the action for environment 1 has value {value}, expected an integer"):
        env.step(torch.tensor([1.0, value]))
    assert env.step(torch.tensor([1.0, 2.0])).prev_action.tolist() == [1, 2]


class Leaving(Counter):
    """Ends its process, if it can."""

    def step(self, action):
        if self.steps == 3:
            raise SystemExit(0)
        return super().step(action)


def test_an_environment_cannot_end_the_process_with_success():
    """F3."""
    env = LaneEnvironment(SerialDriver([GymEnvironment(Leaving())]), lane_seeds=[1])
    env.reset()
    for _ in range(3):
        env.step(ZEROS[:1])
    with pytest.raises(EnvError, match=r"raised SystemExit in episode 0 \(seed \d+\), at step 4 with action 0: 0\n"):
        env.step(ZEROS[:1])


@pytest.mark.parametrize("seed", [1.5, -1, 2**63, "1"])
def test_lane_seeds_are_whole_numbers_in_their_range(seed):
    with pytest.raises(SpecError, match="a lane seed is"):
        LaneEnvironment(SerialDriver([counter(), counter()]), lane_seeds=[7, seed])
