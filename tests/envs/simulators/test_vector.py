"""Vector environments of tensors, by one stand-in for each library: its methods, keys and ways to end, without physics.

Every stand-in is the same world: lane i counts; it falls (a task is over) at a count of `FALLS[i]`, and is cut off
after `LIMIT` steps. An observation is the count, so what an episode ended with is not what the next one begins with.
"""

import math
import types

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import palaestra
from palaestra.core import Batch, ConfigError, EnvError
from palaestra.envs import EnvConfig, create_environment
from palaestra.envs.simulators.vector import TorchVectorEnvironment

LIMIT, FALLS = 4, (2, 99, 4)  # lane 2 falls in the very step of the limit
MADE = []


class _World:
    device = "cpu"
    num_envs = 3

    def __init__(self, num_envs=3, **kwargs):
        self.num_envs, self.kwargs, self.seeds = num_envs, kwargs, []
        self.count = torch.zeros(num_envs)
        self.falls = torch.tensor([FALLS[lane % 3] for lane in range(num_envs)])
        MADE.append(self)

    def moved(self, actions):
        assert actions.shape == (self.num_envs, 2)
        self.count += 1
        return self.count == self.falls, self.count == LIMIT

    def begin(self, lanes):
        self.count[lanes] = 0.0


class IsaacLab(_World):
    """Isaac Lab at 02dc5f7461a6 (2025), `source/isaaclab/isaaclab/envs/manager_based_rl_env.py`: five values, resets
    within the step, groups by name, means of episodes in `extras["log"]`; spaces of Gymnasium without bounds."""

    def __init__(self, num_envs=3, finite=False):
        super().__init__(num_envs)
        self.cfg = types.SimpleNamespace(is_finite_horizon=finite)
        group = spaces.Box(-np.inf, np.inf, (1,))
        self.single_observation_space = spaces.Dict({"policy": group, "critic": group})
        self.single_action_space = spaces.Box(-np.inf, np.inf, (2,))
        self.obs_buf = {"policy": torch.zeros(num_envs, 1), "critic": torch.zeros(num_envs, 1)}
        self.extras = {}

    def observed(self):
        self.obs_buf["policy"][:, 0] = self.count
        self.obs_buf["critic"][:, 0] = -self.count
        return self.obs_buf

    def reset(self, seed=None, env_ids=None, options=None):
        self.seeds.append(seed)
        self.begin(slice(None))
        self.extras["log"] = {}
        return self.observed(), self.extras

    def step(self, action):
        terminated, time_outs = self.moved(action)
        reward = self.count.clone()
        self.begin(terminated | time_outs)
        self.extras["log"] = {"Episode_Reward/alive": torch.tensor(2.5)} if (terminated | time_outs).any() else {}
        return self.observed(), reward, terminated, time_outs, self.extras


class Mjlab(IsaacLab):
    """mjlab 1.6.0, `mjlab/envs/manager_based_rl_env.py` and `mjlab/utils/spaces.py`: as Isaac Lab, with spaces of its
    own, the groups `actor` and `critic`, and `cfg.auto_reset = False`, where the last observation is returned."""

    def __init__(self, num_envs=3, auto_reset=False):
        super().__init__(num_envs)
        self.cfg = types.SimpleNamespace(is_finite_horizon=False, auto_reset=auto_reset)
        self.single_action_space = types.SimpleNamespace(shape=(2,), dtype="float32", low=-math.inf, high=math.inf)
        self.single_observation_space = types.SimpleNamespace(spaces={})
        self.obs_buf = {"actor": torch.zeros(num_envs, 1), "critic": torch.zeros(num_envs, 1)}
        self.pending = torch.zeros(num_envs, dtype=torch.bool)

    def observed(self):
        self.obs_buf["actor"][:, 0] = self.count
        self.obs_buf["critic"][:, 0] = -self.count
        return self.obs_buf

    def reset(self, *, seed=None, env_ids=None, options=None):
        self.seeds.append(seed)
        self.begin(slice(None) if env_ids is None else env_ids)
        self.pending[:] = False
        return self.observed(), self.extras

    def step(self, action):
        if self.pending.any():
            raise RuntimeError("Environments must be reset via reset(env_ids=...)")
        terminated, time_outs = self.moved(action)
        self.pending = terminated | time_outs
        return self.observed(), self.count.clone(), terminated, time_outs, self.extras


class ManiSkill(_World):
    """ManiSkill 3 at 07e17a0a42c1, `mani_skill/vector/wrappers/gymnasium.py`: five values, nested observations, and
    what an episode ended with in `infos["final_observation"]`, for all lanes; actions between bounds."""

    single_action_space = spaces.Box(-1, 1, (2,), np.float32)

    def observed(self):
        return {"agent": {"qpos": self.count[:, None].clone()}, "extra": {"goal": torch.ones(self.num_envs, 2)}}

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.begin(slice(None) if options is None else options["env_idx"])
        return self.observed(), {}

    def step(self, actions):
        terminated, truncated = self.moved(actions)
        reward, done, info = self.count.clone(), terminated | truncated, {}
        observation = self.observed()
        if done.any():
            final = observation
            observation, info = self.reset(options={"env_idx": done.nonzero()[:, 0]})
            info |= {"final_observation": final, "_final_observation": done, "final_info": {}, "_final_info": done}
        return observation, reward, terminated, truncated, info


class Genesis(_World):
    """Genesis at 06c6743d0d96, `examples/locomotion/go2_env.py`: four values, `time_outs` as float32, no seed, `reset`
    gives `None` as extras, and the same buffers in every step."""

    num_actions = 2

    def __init__(self, num_envs=3):
        super().__init__(num_envs)
        self.obs_buf, self.rew_buf, self.extras = torch.zeros(num_envs, 1), torch.zeros(num_envs), {"observations": {}}

    def reset(self):
        self.begin(slice(None))
        self.obs_buf[:, 0] = self.count
        return self.obs_buf, None

    def step(self, actions):
        fallen, late = self.moved(actions)
        self.extras["time_outs"] = late.float()
        self.rew_buf[:] = self.count
        self.begin(fallen | late)
        self.extras["episode"] = {"rew_alive": 2.5}
        self.obs_buf[:, 0] = self.count
        return self.obs_buf, self.rew_buf, (fallen | late).int(), self.extras


class RslRl(_World):
    """rsl-rl-lib 5.5.1, `rsl_rl/env/vec_env.py`: `get_observations`, four values, dones as integers, and no `reset`;
    its `TensorDict` iterates over rows."""

    num_actions, max_episode_length = 2, LIMIT

    def get_observations(self):
        class TensorDict:
            def __init__(self, groups):
                self.groups = groups

            def keys(self):
                return self.groups.keys()

            def items(self):
                return self.groups.items()

            def __getitem__(self, name):
                return self.groups[name]

            def __iter__(self):
                raise AssertionError("iterates over rows")

        return TensorDict({"policy": self.count[:, None].clone(), "critic": torch.zeros(self.num_envs, 3)})

    def step(self, actions):
        fallen, late = self.moved(actions)
        reward = self.count.clone()
        self.begin(fallen | late)
        return self.get_observations(), reward, (fallen | late).long(), {"time_outs": late & ~fallen, "log": {}}


def played(env, steps=5):
    """Step types, rewards, observations; and (lane, reward, discount, last observation) of each episode that ended."""
    rows, ended = [env.reset()], []
    for _ in range(steps):
        rows.append(env.step(torch.full((env.batch_size, 2), 0.5)))
        if (last := env.ended) is not None:
            assert last.step_type.tolist() == [2] * len(last.env_id)
            assert last.prev_action.tolist() == [[0.5, 0.5]] * len(last.env_id)
            values = last.observation["agent"]["qpos"] if isinstance(last.observation, Batch) else last.observation
            ended += zip(
                last.env_id.tolist(), last.reward.tolist(), last.discount.tolist(), values[:, 0].tolist(), strict=True
            )
    return rows, ended


def counts(rows):
    found = [
        row.observation["agent"]["qpos"] if isinstance(row.observation, Batch) else row.observation for row in rows
    ]
    return [count[:, 0].tolist() for count in found]


# (lane, reward, discount): lane 0 falls twice; lane 1 is cut off; lane 2 falls at the limit, and that is an end.
ENDS = [(0, 2.0, 0.0), (0, 2.0, 0.0), (1, 4.0, 1.0), (2, 4.0, 0.0)]
SHOWS_THE_LAST = {ManiSkill, Mjlab}
# Four values cannot say both, and Genesis says `time_outs` there.
CUT = {Genesis: [*ENDS[:3], (2, 4.0, 1.0)]}


@pytest.mark.parametrize("kind", [IsaacLab, Mjlab, ManiSkill, Genesis, RslRl])
def test_ends_limits_groups_and_resets_of_a_library(kind):
    """And nothing that was returned is written to again."""
    env = TorchVectorEnvironment(kind(), lane_seeds=[1, 2, 3])
    rows, ended = played(env)
    assert [row.step_type.tolist() for row in rows] == [[0] * 3, [1] * 3, [0, 1, 1], [1] * 3, [0] * 3, [1] * 3]
    assert [end[:3] for end in ended] == CUT.get(kind, ENDS)
    assert [end[3] for end in ended] == ([2, 2, 4, 4] if kind in SHOWS_THE_LAST else [1, 1, 3, 3])
    assert counts(rows) == [[0] * 3, [1] * 3, [0, 2, 2], [1, 3, 3], [0] * 3, [1] * 3]
    assert [row.reward.tolist() for row in rows[3:]] == [[1, 3, 3], [0] * 3, [1] * 3]
    assert all(row.prev_action[row.step_type == 0].eq(0).all() for row in rows)
    if kind in (IsaacLab, Genesis):
        name = "Episode_Reward/alive" if kind is IsaacLab else "rew_alive"
        env.reset()
        env.step(torch.zeros(3, 2))
        env.step(torch.zeros(3, 2))
        assert env.ended.env_info[name].tolist() == [2.5]


def test_seeds_are_those_of_the_run_and_another_one_follows_a_resume():
    env = TorchVectorEnvironment(IsaacLab(), lane_seeds=[1, 2, 3])
    env.reset()
    saved = env.state_dict()
    again = TorchVectorEnvironment(IsaacLab(), lane_seeds=[1, 2, 3])
    again.load_state_dict(saved)
    assert again.step(torch.zeros(3, 2)).step_type.tolist() == [0, 0, 0]
    assert env.vector_env.seeds[0] == again.vector_env.seeds[0] != again.vector_env.seeds[1]


def test_a_finite_horizon_makes_limits_ends():
    env = TorchVectorEnvironment(IsaacLab(finite=True))
    assert {end[2] for end in played(env)[1]} == {0.0}


def test_groups_and_bounds_can_be_chosen(caplog):
    env = TorchVectorEnvironment(IsaacLab(), groups=["policy", "critic"], clip_actions=2.0)
    assert sorted(env.reset().observation.keys()) == ["critic", "policy"]
    assert env.action_spec.bounds[1].tolist() == [2.0, 2.0]
    with pytest.raises(ConfigError, match="no group 'teacher' of observations; there are policy, critic"):
        TorchVectorEnvironment(IsaacLab(), groups=["teacher"])
    TorchVectorEnvironment(RslRl())
    assert "networks see the group policy, not critic" in caplog.text


class _Three(Genesis):
    def step(self, actions):
        return super().step(actions)[:3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_Three, r"step gave tuple of 3; four or five values are needed"),
        (lambda: types.SimpleNamespace(num_envs=2), "neither single_action_space nor num_actions"),
    ],
)
def test_what_does_not_fit_is_named(make, message):
    with pytest.raises((ConfigError, EnvError), match=message):
        played(TorchVectorEnvironment(make()))


class Single(gymnasium.Env):
    """No vector environment."""


def nameless(num_envs):
    return Single()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Single", "it is one environment of Gymnasium's: name it 'tests.envs.simulators.test_vector:Single', without"),
        ("played", "a vector environment takes num_envs"),
        ("nameless", "made a Single, which does not say its num_envs: it is no vector environment"),
    ],
)
def test_what_is_no_vector_environment_is_named_before_it_is_stepped(name, told):
    with pytest.raises(ConfigError, match=told):
        create_environment(EnvConfig(name=f"vector:tests.envs.simulators.test_vector:{name}", num_envs=2))


def test_a_simulator_that_is_not_named_as_one_is_told_how():
    with pytest.raises(ConfigError, match=r"'num_envs'; a simulator of tensors is named vector:my_module:make"):
        create_environment(EnvConfig(name="tests.envs.simulators.test_vector:needy", num_envs=2))


def needy(num_envs):
    return IsaacLab()


def test_it_trains_by_its_name(tmp_path):
    """Also where a simulator is made by a function; arguments are handed on."""
    name = f"vector:{__name__}:ManiSkill"
    with create_environment(EnvConfig(name=name, num_envs=2, kwargs={"robot": "panda"})) as env:
        assert (env.batch_size, env.vector_env.kwargs) == (2, {"robot": "panda"})
    settings = {"env__num_envs": 4, "trainer__total_env_steps": 64, "algorithm__unroll_length": 8}
    MADE.clear()
    run = palaestra.train("ppo", name, run__directory=str(tmp_path), trainer__eval_episodes=0, **settings)
    assert run.result.env_steps >= 64
    assert len(MADE) <= 2


def test_values_may_see_the_group_of_the_critic(tmp_path):
    """What a simulator knows and a robot does not; the policy that is saved asks for its own group alone."""
    settings = {"env__num_envs": 4, "trainer__total_env_steps": 32, "algorithm__unroll_length": 8}
    settings |= {"env__kwargs": {"groups": ["policy", "critic"]}, "algorithm__network__policy_sees": ("policy",)}
    name = f"vector:{__name__}:IsaacLab"
    run = palaestra.train("ppo", name, run__directory=str(tmp_path), trainer__eval_episodes=0, **settings)
    assert set(run.policy.observation_spec) == {"policy"}
