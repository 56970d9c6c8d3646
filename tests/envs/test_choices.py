"""Choices in several dimensions, choices that begin elsewhere than at 0, and boxes of integers as actions."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import palaestra
from palaestra import EnvConfig
from palaestra.core import ConfigError, DiscreteSpec, MultiDiscreteSpec, SpecError
from palaestra.envs import GymEnvironment, NativeVectorEnvironment, check, load, plain_choices
from palaestra.envs.contract.spaces import plain
from palaestra.policies import save_policy

SPACES = {
    "start": spaces.MultiDiscrete([2, 3], start=[5, -1]),
    "matrix": spaces.MultiDiscrete([[2, 2], [2, 2]], start=[[1, 1], [0, 0]]),
    "box": spaces.Box(np.array([0, -1]), np.array([1, 1]), (2,), np.int64),
    "small box": spaces.Box(-1, 1, (1,), np.int8),
    "number": spaces.Box(2, 4, (), np.uint8),
    "nest": spaces.Dict(
        z=spaces.Tuple([spaces.MultiDiscrete([2, 2], start=[3, 3]), spaces.Discrete(2)]),
        a=spaces.Box(0, 1, (1,), np.int32),
    ),
}


PLAIN = ("palaestra.envs:plain_choices",)


class Told(gymnasium.Env):
    """Shows an action, and pays 1 for it, else the share of its elements that are right; an episode is one step."""

    def __init__(self, kind: str) -> None:
        self.action_space = SPACES[kind]
        self.observation_space = spaces.MultiDiscrete([[2, 2]], start=[[4, 4]])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.cue = int(self.np_random.integers(2))
        return np.full((1, 2), 4 + self.cue), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        leaves = [np.ravel(leaf) for leaf in _leaves(action)]
        ends = [np.ravel(leaf) for leaf in _leaves(_end(self.action_space, self.cue))]
        right = np.mean(np.concatenate(leaves) == np.concatenate(ends))
        return np.full((1, 2), 4 + self.cue), float(right), True, False, {}


def _leaves(nest: Any) -> list[Any]:
    if isinstance(nest, dict | tuple):
        return [leaf for part in (nest.values() if isinstance(nest, dict) else nest) for leaf in _leaves(part)]
    return [nest]


def _end(space: Any, cue: int) -> Any:
    """The smallest action, or the largest."""
    match space:
        case spaces.Dict():
            return {key: _end(child, cue) for key, child in space.items()}
        case spaces.Tuple():
            return tuple(_end(child, cue) for child in space)
        case spaces.Box():
            return space.high if cue else space.low
        case spaces.MultiDiscrete():
            return space.start + (space.nvec - 1) * cue
    return space.start + (space.n - 1) * cue


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("nest", "ppo"),
        ("number", "dqn"),
        *(
            pytest.param(kind, algorithm, marks=pytest.mark.slow)
            for kind, algorithm in [*((kind, "ppo") for kind in SPACES if kind != "nest"), ("small box", "dqn")]
        ),
    ],
)
def test_every_kind_of_choice_is_learned(kind, algorithm, tmp_path):
    """Refused before: two dimensions, another start, boxes of integers as actions (and as what is seen)."""
    settings = {"dqn": {"learning_starts": 32}, "ppo": {"unroll_length": 64, "mini_batch_size": 64}}[algorithm]
    found = palaestra.train(
        algorithm,
        f"{__name__}:Told",
        env__kwargs={"kind": kind},
        env__gym_wrappers=PLAIN,
        env__num_envs=4,
        trainer__total_env_steps={"dqn": 640, "ppo": 2_560}[algorithm],
        trainer__eval_episodes=20,
        run__tensorboard=False,
        run__directory=str(tmp_path / "run"),
        algorithm__learning_rate=3e-3,
        algorithm__network__hidden_sizes=(32,),
        **{f"algorithm__{name}": value for name, value in settings.items()},
    )
    assert found.result.evaluation is not None and found.result.evaluation.return_mean >= 0.95


@pytest.mark.parametrize("vectorization", ["serial", "process"])
def test_batches_of_them_are_stepped_and_check_env_is_content(vectorization):
    told = {"name": f"{__name__}:Told", "kwargs": {"kind": "matrix"}, "gym_wrappers": PLAIN}
    config = EnvConfig(num_envs=2, vectorization=vectorization, **told)
    with palaestra.create_environment(config) as env:
        assert env.action_spec == env.observation_spec.__class__(nvec=(2, 2, 2, 2))
        env.reset()
        time_step = env.step(torch.tensor([[0, 0, 1, 1], [1, 0, 1, 0]]))
        assert time_step.prev_action.tolist() == [[0, 0, 1, 1], [1, 0, 1, 0]]
        assert (time_step.observation < 2).all() and time_step.reward.tolist() == [0.5, 0.5]
    assert check(config, steps=20).ok


def test_specs_say_what_is_chosen():
    made = {kind: load(f"{__name__}:Told", kwargs={"kind": kind}, gym_wrappers=PLAIN) for kind in SPACES}
    specs = {kind: env.action_spec for kind, env in made.items()}
    assert specs["start"] == MultiDiscreteSpec(nvec=(2, 3)) and specs["box"] == MultiDiscreteSpec(nvec=(2, 3))
    assert specs["small box"] == DiscreteSpec(num=3) == specs["number"]
    assert list(specs["nest"]) == ["z", "a"]  # the order of the space


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_boxes_of_every_dtype_and_their_ends(dtype):
    limits = np.iinfo(dtype)
    for low, high in [(limits.max - 3, limits.max), (limits.min, limits.min + 2), (3, 3)]:
        flat, translate = plain(spaces.Box(low, high, (2, 2), dtype), actions=True)
        assert translate is not None and flat.nvec.tolist() == [int(high) - int(low) + 1] * 4
        for choice, value in ((np.zeros(4, np.int64), low), (flat.nvec - 1, high)):
            action = translate(choice)
            assert action.dtype == dtype and action.shape == (2, 2) and (action == value).all()
    wide = spaces.Box(limits.min, limits.max, (32,), dtype)
    assert plain(wide, actions=True) == (wide, None)


@pytest.mark.parametrize("kind", SPACES)
def test_a_policy_acts_in_the_environment_that_it_learned_in(kind, tmp_path):
    """Choices were counted from 0 without a word, so that a saved policy gave others than its environment has."""
    with pytest.raises((ConfigError, SpecError), match=r"--env.gym-wrappers palaestra.envs:plain_choices"):
        palaestra.train("ppo", f"{__name__}:Told", env__kwargs={"kind": kind}, run__directory=str(tmp_path))
    env = plain_choices(Told(kind))
    spec = GymEnvironment(env)
    policy = palaestra.PPO(spec.observation_spec, spec.action_spec).policy
    save_policy(policy, tmp_path / "policy")
    observation, _ = env.reset(seed=0)
    action = palaestra.load_policy(tmp_path / "policy")(observation)
    assert env.action_space.contains(action)
    env.step(action)


def test_what_cannot_be_chosen_is_refused_with_the_way_out():
    class Wide(Told):
        def __init__(self) -> None:
            super().__init__("start")
            self.action_space = spaces.Box(0, 10_000, (2,), np.int64)

    env = GymEnvironment(plain_choices(Wide()))
    with pytest.raises(ConfigError, match=r"No policy takes boxes of integers; --env.gym-wrappers"):
        palaestra.PPO(env.observation_spec, env.action_spec)
    with pytest.raises(SpecError, match="vectorization=serial or process") as caught:
        NativeVectorEnvironment(gymnasium.vector.SyncVectorEnv([lambda: Told("matrix")]))
    assert len(str(caught.value)) < 400  # it printed all elements
