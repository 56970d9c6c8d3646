"""Property: a leaf of integers, of whatever dtype and bounds, arrives as it was emitted, and networks see its range."""

from fractions import Fraction
from typing import Any

import gymnasium
import hypothesis.extra.numpy as arrays
import numpy as np
import torch
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palaestra.envs import GymEnvironment, LaneEnvironment, SerialDriver
from palaestra.nn import Encoder
from palaestra.nn.encoder import LARGEST_RANGE

DTYPES = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


@st.composite
def leaves(draw: Any) -> tuple[spaces.Box, np.ndarray]:
    """A box of integers whose elements have bounds of their own, or all the same, and a value inside."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    limits = np.iinfo(dtype)
    near = st.integers(max(int(limits.min), -300), min(int(limits.max), 300))
    ends = st.one_of(near, st.integers(int(limits.min), int(limits.max)), st.sampled_from([limits.min, limits.max]))
    shape = draw(arrays.array_shapes(max_dims=2, max_side=4))
    own = draw(st.booleans())
    count = int(np.prod(shape)) if own else 1
    pairs = [sorted((int(draw(ends)), int(draw(ends)))) for _ in range(count)]
    bounds = (np.array([pair[end] for pair in pairs], dtype).reshape(shape if own else ()) for end in (0, 1))
    low, high = (np.broadcast_to(bound, shape) for bound in bounds)
    picks = [draw(st.integers(int(a), int(b))) for a, b in zip(low.flat, high.flat, strict=True)]
    return spaces.Box(low, high, shape, dtype), np.array(picks, dtype).reshape(shape)


class Shows(gymnasium.Env):
    """Shows one value for ever."""

    def __init__(self, space: spaces.Box, value: np.ndarray) -> None:
        self.observation_space = spaces.Dict({"leaf": space})
        self.action_space = spaces.Discrete(2)
        self.value = value

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"leaf": self.value}, {}


def expected(value: int, low: int, high: int, known: bool) -> float:
    """By hand: the range as 0 to 1, or as -1 to 1 if it has negative numbers; without a range the number itself."""
    if not known:
        return float(value)
    share = Fraction(value - low, max(high - low, 1))
    return float(2 * share - 1 if low < 0 else share)


@settings(max_examples=60, deadline=None)
@given(leaves())
@example((spaces.Box(0, 2**63, (1,), np.uint64), np.array([2**63], np.uint64)))  # was seen as -2^63
def test_integers_of_every_dtype_and_bounds_arrive_and_are_seen_by_their_range(leaf):
    space, value = leaf
    with LaneEnvironment(SerialDriver([GymEnvironment(Shows(space, value))]), lane_seeds=[1]) as env:
        seen = env.reset().observation
        assert np.array_equal(seen.leaf[0].numpy(), value) and seen.leaf.numpy().dtype == value.dtype
        encoder = Encoder(env.observation_spec)
    code = encoder(seen).detach().double().reshape(-1)
    whole = [int(x) for x in value.flat], [int(x) for x in space.low.flat], [int(x) for x in space.high.flat]
    for found, x, low, high in zip(code.tolist(), *whole, strict=True):
        wanted = expected(x, low, high, max(abs(low), abs(high)) <= LARGEST_RANGE)
        assert abs(found - wanted) <= 1e-5 * max(1.0, abs(wanted)), (x, low, high)
    assert torch.isfinite(code).all()


def test_a_cast_that_loses_nothing_is_logged_once(caplog):
    """F7."""

    class Whole(gymnasium.Env):
        observation_space, action_space = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.array([3]), {}

        def step(self, action):
            return np.array([4]), 0.0, False, False, {}

    caplog.set_level("INFO", "palaestra")
    with LaneEnvironment(SerialDriver([lambda: GymEnvironment(Whole())] * 2), lane_seeds=[1, 2]) as env:
        seen = [env.reset(), *(env.step(torch.zeros(2, dtype=torch.int64)) for _ in range(3))]
    assert [(row.observation.dtype, row.observation[0].item()) for row in seen] == [
        (torch.float32, n) for n in (3, 4, 4, 4)
    ]
    assert caplog.text.count("observation comes as int64 and its space says float32; it is cast in every step") == 1
