"""What of JAX environments needs no JAX: refusals, spaces, and batches that cut episodes off themselves."""

import importlib.util
import types

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import palaestra
from palaestra.core import ConfigError
from palaestra.envs import BatchEnvironment, EnvConfig, create_environment
from palaestra.envs.simulators.jax import space_of


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jax:gymnix:CartPole-v1", "did you mean 'gymnax'.*give jax:PACKAGE:ENV with one of gymnax, brax"),
        ("jax:gymnax", "give jax:PACKAGE:ENV"),
        ("jax:jaxmarl:MPE_simple_spread_v3", "several agents that act at once"),
        (
            "jax:gymnax:CartPole-v1",
            r"needs jax and gymnax and six, which is not installed: pip install 'gymnax>=1.0' six",
        ),
        ("jax:playground:CartpoleBalance", r"needs jax and mujoco_playground.*pip install playground"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name, message, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=message):
        create_environment(EnvConfig(name=name, num_envs=2))


def test_one_alone_is_refused():
    with pytest.raises(ConfigError, match="exists as a pool only; use create_environment"):
        palaestra.envs.load("jax:gymnax:CartPole-v1")


def said(**more):
    return types.SimpleNamespace(**more)


@pytest.mark.parametrize(
    ("dtype", "shape", "what", "expected"),
    [
        (np.float32, (2,), None, Box(-np.inf, np.inf, (2,), np.float32)),
        (np.float32, (2,), said(low=-1.0, high=np.array([1.0, 2.0])), Box(np.float32([-1, -1]), np.float32([1, 2]))),
        (np.uint8, (3,), said(minimum=0, maximum=8), Box(0, 8, (3,), np.uint8)),
        (
            np.int32,
            (3,),
            said(num_values=np.array([2, 3, 4])),
            Box(np.zeros(3, np.int32), np.int32([1, 2, 3]), dtype=np.int32),
        ),
        (np.int32, (), said(n=5), Discrete(5)),
        (np.int32, (), said(n=4000), Box(0, 3999, (), np.int32)),
        (np.int32, (2,), None, Box(-np.inf, np.inf, (2,), np.float32)),
        (np.int32, (2,), said(low=0, high=2**31 - 1), Box(-np.inf, np.inf, (2,), np.float32)),
        (np.bool_, (6, 7), None, Box(0, 1, (6, 7), np.int8)),
    ],
)
def test_spaces_have_the_shapes_of_the_program_and_the_bounds_of_the_package(dtype, shape, what, expected):
    assert space_of(said(dtype=np.dtype(dtype), shape=shape), what, "jax:some:task") == expected


def test_nests_are_dicts():
    leaf = said(dtype=np.dtype(np.int32), shape=())
    made = space_of({"grid": leaf, "at": {"row": leaf}}, said(spaces={"grid": said(n=3)}), "jax:some:task")
    assert made == Dict({"grid": Discrete(3), "at": Dict({"row": Box(-np.inf, np.inf, (), np.float32)})})


class _Cut(BatchEnvironment):
    """Lane 0 is over in step 2, lane 1 cut off in step 3 by the simulator, both of it in step 3 of lane 2."""

    def __init__(self):
        super().__init__(3, Box(0, 9, (1,)), Discrete(2), lane_seeds=[0, 1, 2])
        self.count = np.zeros(3)

    def fresh(self, lanes, seeds):
        self.count[lanes] = 0

    def transition(self, lanes, action):
        self.count[lanes] += 1
        return np.ones(len(lanes)), self.count[lanes] == np.array([2, 99, 3])[lanes]

    def truncated(self):
        return self.count == 3

    def observe(self):
        return self.count[:, None]

    def rows(self):
        return {"count": self.count}

    def set_rows(self, rows):
        self.count = rows["count"]


def test_a_simulator_may_cut_episodes_off_itself():
    """What it says of lanes that begin is not looked at."""
    env = _Cut()
    env.reset()
    rows = [env.step(torch.zeros(3, dtype=torch.int64)) for _ in range(4)]
    assert [row.step_type.tolist() for row in rows] == [[1, 1, 1], [2, 1, 1], [0, 2, 2], [1, 0, 0]]
    assert [row.discount.tolist() for row in rows] == [[1, 1, 1], [0, 1, 1], [1, 1, 0], [1, 1, 1]]
    assert rows[2].observation.tolist() == [[0], [3], [3]]
