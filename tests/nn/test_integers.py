"""What networks see of integers: their bounds decide, and their dtype does not."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import palaestra.algorithms as algorithms
from palaestra import Collector, RunSeeds, evaluate
from palaestra.core import BoundedSpec, TensorSpec, load_tensors, save_tensors
from palaestra.core.files import fingerprint
from palaestra.envs import GymEnvironment, LaneEnvironment, SerialDriver
from palaestra.nn import Encoder, network_summary
from palaestra.policies import load_policy, save_policy

DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)


@st.composite
def boxes(draw):
    """A dtype, bounds that it can hold, and a number between them."""
    dtype = draw(st.sampled_from(DTYPES))
    limits = torch.iinfo(dtype)
    numbers = st.integers(max(limits.min, -(2**31) + 4), min(limits.max, 2**31 - 4))
    low, value, high = sorted(draw(st.lists(numbers, min_size=3, max_size=3)))
    return dtype, low, value, high


@settings(max_examples=200, deadline=None)
@given(boxes(), st.sampled_from([(), (2,), (2, 3), (1, 6, 6)]))
def test_integers_are_seen_by_their_own_range_in_every_dtype_and_shape(box, shape):
    dtype, low, value, high = box
    spec = BoundedSpec(shape, dtype, minimum=np.array(low), maximum=np.array(high))
    least = -1.0 if low < 0 else 0.0
    expected = least + (value - low) / max(high - low, 1) * (1 - least)
    if len(shape) == 3 and dtype == torch.uint8:  # a picture: the network below sees the code
        rows = torch.full((1, *shape), value, dtype=dtype)
        bound = Encoder(BoundedSpec(shape, torch.uint8, minimum=np.array(0), maximum=np.array(255)))
        ours = Encoder(spec)
        ours.load_state_dict(bound.state_dict() | {k: v for k, v in ours.state_dict().items() if "integers" in k})
        assert_close(ours(rows), bound.root.network(torch.full((1, *shape), expected)), atol=1e-4, rtol=1e-4)
        return
    seen = Encoder(spec)(torch.tensor(np.full((5, *shape), value, spec.minimum.dtype)))
    assert_close(seen, torch.full((5, spec.size), expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bounds_as_wide_as_those_of_large_dtypes_are_none(dtype):
    limits = torch.iinfo(dtype)
    low, high = np.array(limits.min), np.array(limits.max, np.uint64 if dtype == torch.uint64 else np.int64)
    spec = BoundedSpec((1,), dtype, minimum=low, maximum=high)
    seen = Encoder(spec)(torch.tensor(np.array([[7]], spec.minimum.dtype))).item()
    assert seen == 7 if limits.bits > 16 else abs(seen) < 0.1


def test_every_element_has_its_own_range():
    spec = BoundedSpec((3,), torch.int64, minimum=np.array([0, -5, 300]), maximum=np.array([10, 5, 500]))
    assert_close(Encoder(spec)(torch.tensor([[5, 0, 400]])), torch.tensor([[0.5, 0.0, 0.5]]))


def test_the_line_of_a_network_says_what_it_sees_of_integers():
    flags = BoundedSpec((4,), torch.uint8, minimum=np.array(0), maximum=np.array(1))
    assert network_summary(Encoder(flags)).startswith("integers 0 to 1 as 0 to 1 → 4")


class Cue(gymnasium.Env):
    """One step: naming which of four flags is up pays 1; chance is 0.25."""

    def __init__(self, dtype, high):
        self.observation_space = spaces.Box(0, high, (4,), dtype)
        self.action_space = spaces.Discrete(4)

    def _seen(self):
        self.up = int(self.np_random.integers(4))
        flags = np.zeros(4, self.observation_space.dtype)
        flags[self.up] = self.observation_space.high[0]
        return flags

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        paid = float(action == self.up)
        return self._seen(), paid, True, False, {}


@pytest.mark.parametrize(("dtype", "high"), [(np.uint8, 1), (np.int64, 10**6)])
def test_flags_and_large_integers_are_learned_from_as_floats_are(dtype, high):
    def lanes(first):
        return LaneEnvironment(
            SerialDriver([GymEnvironment(Cue(dtype, high)) for _ in range(8)]), lane_seeds=range(first, first + 8)
        )

    env = lanes(0)
    config = algorithms.PPOConfig(unroll_length=32, mini_batch_size=64, learning_rate=3e-3)
    algorithm = algorithms.PPO(env.observation_spec, env.action_spec, config, RunSeeds(0))
    collector = Collector.of(env, algorithm)
    while collector.env_steps < 3000:
        collector.unroll(32)
        algorithm.update(collector.buffer)
    assert evaluate(algorithm.policy, lanes(100), episodes=100).return_mean > 0.9


@pytest.mark.parametrize("shape", [(4,), (1, 8, 8)])
def test_policies_of_versions_without_the_code_act_as_they_did(shape, tmp_path):
    """They saw bytes divided by 255, whatever the bounds, and have nothing of the code among their weights."""
    flags = BoundedSpec(shape, torch.uint8, minimum=np.array(0), maximum=np.array(1))
    config = algorithms.PPOConfig()
    action = BoundedSpec((2,), minimum=np.array(-1.0), maximum=np.array(1.0))
    policy = algorithms.PPO(flags, action, config, RunSeeds(0)).policy
    save_policy(policy, tmp_path)
    weights = load_tensors(tmp_path / "weights.safetensors")
    save_tensors(tmp_path / "weights.safetensors", {k: v for k, v in weights.items() if ".integers." not in k})
    description = (tmp_path / "policy.json").read_text()
    old, new = weights_hash(description), fingerprint(tmp_path / "weights.safetensors")["sha256"]
    (tmp_path / "policy.json").write_text(description.replace(old, new))
    loaded = load_policy(tmp_path)
    rows = torch.randint(0, 2, (6, *shape), dtype=torch.uint8)
    bytes_policy = algorithms.PPO(TensorSpec(shape, torch.uint8), action, config, RunSeeds(0)).policy
    with torch.no_grad():
        assert torch.equal(loaded.network(rows)[0], bytes_policy.network(rows)[0])
        assert not torch.allclose(loaded.network(rows)[0], policy.network(rows)[0])
    save_policy(loaded, tmp_path / "again")
    with torch.no_grad():
        assert torch.equal(load_policy(tmp_path / "again").network(rows)[0], loaded.network(rows)[0])


def weights_hash(description):
    return description.rpartition('"weights_sha256": "')[2].partition('"')[0]
