"""Normalised observations, and time steps from before wrappers, of environments that are stepped as one."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import palaestra
from palaestra import Collector, EnvConfig, create_environment
from palaestra.core import EnvError, TimeStep, restart
from palaestra.envs import BatchedWrapper, GymEnvironment, LaneEnvironment, NativeVectorEnvironment, SerialDriver
from palaestra.envs.tiny import TensorCartPole
from palaestra.envs.wrappers import NormalizeAction, NormalizeObservation, NormalizeReward, ScaleReward
from tests.cli.parts import exit_code
from tests.envs.test_batched import counters, stream
from tests.envs.worlds import Counter

POOL = f"{__name__}:counting_pool"
TENSORS = "palaestra.envs.tiny:TensorCartPole"
WRAPPERS = ("NormalizeObservation(clip=3)", "ScaleReward(scale=0.5)")
LOOKS: list[int] = []


class counting_pool(gymnasium.vector.SyncVectorEnv):  # noqa: N801 - as functions of other libraries are called
    """Lane 0 terminates after two steps."""

    native = True

    def __init__(self, num_envs: int) -> None:
        inner = counters(num_envs)
        super().__init__(inner.env_fns, autoreset_mode="SameStep")


def test_alf_46_a_batch_is_normalised_as_single_environments_are():
    """ALF-46: bit for bit, each lane by what it has seen itself, over the ends of its episodes."""
    pool = NormalizeObservation(NativeVectorEnvironment(counters(), lane_seeds=[1, 2]), clip=1.6)
    ends: list[Any] = [{2: "terminated"}, {}]
    single = [NormalizeObservation(GymEnvironment(Counter(end)), clip=1.6) for end in ends]
    lanes = LaneEnvironment(SerialDriver(single), lane_seeds=[1, 2])
    assert pool.observation_spec == lanes.observation_spec
    assert torch.equal(pool.reset().observation, lanes.reset().observation)
    action = torch.zeros(2, dtype=torch.int64)
    steps = [(pool.step(action), lanes.step(action)) for _ in range(20)]
    assert all(torch.equal(one.observation, other.observation) for one, other in steps)
    assert len({one.observation[1, 0].item() for one, _ in steps}) > 3
    pool.close()


def test_alf_46_what_is_observed_last_counts_where_lanes_reset_within_the_step():
    """ALF-46: and is normalised before what the next episode shows."""
    env = NormalizeObservation(NativeVectorEnvironment(counters(mode="SameStep"), lane_seeds=[1, 2]), clip=9.0)
    env.reset()
    env.step(torch.zeros(2, dtype=torch.int64))
    env.step(torch.zeros(2, dtype=torch.int64))
    assert env.lane_arrays["count"].tolist() == [4, 3]  # 0, 1, 2 and 0 again
    assert env.ended is not None
    assert env.ended.observation[0, 0].item() == pytest.approx(1 / np.std([0, 1, 2]))
    assert env.lane_arrays["mean."][0, 0].item() == pytest.approx(np.mean([0, 1, 2, 0]))
    env.close()


def test_alf_46_statistics_of_a_batch_are_resumed_exactly():
    """ALF-46, F25."""
    config = EnvConfig(name=TENSORS, num_envs=3, wrappers=(*WRAPPERS, "FrameStack(num_frames=2)"))
    with create_environment(config, seed=1) as env, create_environment(config, seed=2) as other:
        env.reset()
        stream(env, 7)
        state = env.state_dict()
        expected = stream(env, 20, seed=5)
        stream(other, 2)
        other.load_state_dict(state)
        for one, two in zip(expected, stream(other, 20, seed=5), strict=True):
            assert all(torch.equal(one[field], two[field]) for field in range(6))


def test_alf_19_a_batch_of_tensors_has_the_untransformed_time_step():
    """ALF-19: raw under every wrapper, with what the environment itself would have shown."""
    config = EnvConfig(name=TENSORS, num_envs=2, wrappers=WRAPPERS, untransformed=True)
    with create_environment(config, lane_seeds=[1, 2]) as env:
        bare = TensorCartPole(2, lane_seeds=[1, 2])
        pairs = [(env.reset(), bare.reset()), *zip(stream(env, 40), stream(bare, 40), strict=True)]
        assert env.untransformed_spec == {"observation": bare.observation_spec, "reward": bare.reward_spec}
    for step, raw in pairs:
        assert torch.equal(step.untransformed.observation, raw.observation)
        assert torch.equal(step.untransformed.reward, raw.reward)
        assert torch.equal(step.untransformed.step_type, raw.step_type)
        assert torch.equal(step.reward, raw.reward * 0.5)
        assert step.untransformed.untransformed == ()
    assert not torch.equal(pairs[5][0].observation, pairs[5][1].observation)


class LookingDQN(palaestra.DQN):
    """Finds rewards and observations from before the wrappers in replayed rows."""

    def losses(self, batch: Any) -> Any:
        raw = batch.untransformed
        assert torch.equal(batch.reward, raw.reward / 2)
        assert batch.observation.abs().max() <= 3
        if batch.observation.shape[-1] == 2:  # the counter: what comes next is the last of an episode, not a first one
            assert torch.equal(raw.next_observation[..., 0], raw.observation[..., 0] + 1)
        LOOKS.append(int((batch.observation != raw.observation).sum()))
        return super().losses(batch)


@pytest.mark.parametrize("name", [TENSORS, POOL])
@pytest.mark.parametrize("where", [(), ("--distributed.runtime", "local", "--distributed.num-workers", "2")])
def test_alf_19_losses_read_what_was_there_before_the_wrappers_of_a_batch(name, where, tmp_path, monkeypatch):
    """ALF-19: from the command line; tensors, a pool that resets within the step; here and in workers."""
    monkeypatch.chdir(tmp_path)
    LOOKS.clear()
    options = ("--env.untransformed", "--env.wrappers", *WRAPPERS, "--env.num-envs", "4", "--run.no-tensorboard")
    options += ("--trainer.total-env-steps", "80", "--trainer.eval-episodes", "0", "--algorithm.learning-starts", "8")
    options += ("--algorithm.network.hidden-sizes", "8", *where)
    assert exit_code("train", f"{__name__}:LookingDQN", name, *options) == 0
    assert sum(LOOKS) > 5


class Forgetful(BatchedWrapper):
    """Returns time steps of its own."""

    def change(self, time_step: TimeStep) -> TimeStep:
        return restart(time_step.observation)


def test_alf_19_a_wrapper_that_loses_it_is_named():
    """ALF-19."""
    config = EnvConfig(name=TENSORS, wrappers=(f"{__name__}:Forgetful",), untransformed=True)
    with create_environment(config) as env, pytest.raises(EnvError, match=r"of a Forgetful has no `untransformed`"):
        env.reset()


def test_alf_19_rows_of_a_batch_without_the_option_keep_nothing_more():
    """ALF-19."""
    env = ScaleReward(TensorCartPole(2, lane_seeds=[1, 2]), scale=0.5)
    collector = Collector.of(env, palaestra.DQN(env.observation_spec, env.action_spec))
    collector.collect(n_step=10)
    assert "untransformed" not in collector.buffer.sample(0, torch.Generator())[0]


class Echo(gymnasium.Env):
    """Pays the action that it executes."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-0.5, 0.5, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action[0]), False, False, {}


@pytest.mark.parametrize("action", [[[1]], [[1.0]], np.ones((1, 1)), torch.ones(1, 1, dtype=torch.int64)])
def test_actions_of_any_kind_of_numbers_are_mapped_around_a_batch_as_around_one(action):
    one = LaneEnvironment(SerialDriver([NormalizeAction(GymEnvironment(Echo()))]), lane_seeds=[1])
    pool = NormalizeAction(NativeVectorEnvironment(gymnasium.vector.SyncVectorEnv([Echo]), lane_seeds=[1]))
    for env in (one, pool):
        env.reset()
        assert env.step(action).reward.tolist() == [0.5]


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_alf_46_the_last_reward_counts_where_all_lanes_end_in_one_step(mode):
    """ALF-46: exact rewards go with their rows; those of the first ones, which are 0, are not taken for the last."""
    pool = gymnasium.make_vec("CartPole-v1", 2, "sync", vector_kwargs={"autoreset_mode": mode}, max_episode_steps=3)
    env = ScaleReward(NormalizeReward(NativeVectorEnvironment(pool, lane_seeds=[1, 2])), scale=2.0)
    env.reset()
    while env.ended is None:
        step = env.step(torch.zeros(2, dtype=torch.int64))
    assert len(env.ended.reward) == 2 and env.env.ended is not None
    assert env.ended.reward.tolist() == (2 * env.env.ended.reward).tolist() != [0.0, 0.0]
    assert step.reward.tolist() == [0.0, 0.0]
    env.close()
