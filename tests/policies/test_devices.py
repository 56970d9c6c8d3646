"""Tests of policies on a device: whoever asks need not know where they are."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from palaestra.core import (
    Batch,
    BoundedSpec,
    DiscreteSpec,
    MultiDiscreteSpec,
    TensorSpec,
    TimeStep,
    device_of,
    to_device,
)
from palaestra.nn import NetworkConfig
from palaestra.policies import ActionRange, CategoricalPolicy, GaussianPolicy, RandomPolicy, load_policy, save_policy
from tests.devices import pretend_device

OBSERVATION = TensorSpec((4,))
BOX = BoundedSpec((2,), minimum=np.array([0.0, -1.0]), maximum=np.array([2.0, 1.0]))
MEMORY = NetworkConfig(hidden_sizes=(8,), recurrent="gru", recurrent_size=6)


def steps(rows=3):
    kinds = torch.tensor([0, 1, 0][:rows], dtype=torch.int32)
    return TimeStep(step_type=kinds, observation=torch.arange(4.0 * rows).reshape(rows, 4) / 10)


@torch.no_grad()
def test_an_answer_comes_back_to_where_the_question_was():
    policy = GaussianPolicy.build(OBSERVATION, BOX)
    expected = policy.act(steps(), deterministic=True)
    with pretend_device() as device:
        policy.to(device)
        assert policy.device.type == policy.generator.device.type == device
        here = policy.act(steps(), deterministic=True).action
        there = policy.act(to_device(steps(), device), deterministic=True).action
        assert (type(here), there.device.type) == (torch.Tensor, device)
        assert torch.equal(here, expected.action)
        assert there.tolist() == here.tolist()
        said = policy.behaviour(steps().observation, here).log_prob
        assert type(said) is torch.Tensor
        assert device_of(policy.behaviour(to_device(steps().observation, device), there)).type == device
        assert policy.env_action(there).tolist() == policy.env_action(here).tolist()
        assert policy(np.zeros(4, np.float32)).shape == (2,)
        policy.to("cpu")
        assert policy.device == torch.device("cpu")
        assert torch.equal(policy.act(steps(), deterministic=True).action, expected.action)


def test_a_memory_follows_its_policy_and_begins_anew_with_episodes():
    policy = CategoricalPolicy.build(OBSERVATION, DiscreteSpec(num=3), MEMORY)
    zeros = policy.initial_state(3)
    state = zeros.map(lambda leaf: leaf + 1)
    expected = policy.act(steps(), state, deterministic=True)
    with pretend_device() as device:
        policy.to(device)
        for home in ("cpu", device):
            for kept in (state, to_device(state, device)):
                step = policy.act(to_device(steps(), home), kept, deterministic=True)
                assert device_of(step.state) == device_of(step.action) == torch.device(home)
                assert_close(to_device(dict(step.state.items()), "cpu"), dict(expected.state.items()))
        assert device_of(policy.initial_state(3)) == torch.device("cpu")
        action, log_prob = policy.sample(to_device(steps().observation, device))
        assert action.device.type == log_prob.device.type == device


def test_masks_are_looked_at_where_they_are():
    spec = {"x": OBSERVATION, "action_mask": BoundedSpec((3,), torch.int8, np.array(0), np.array(1))}
    policy = CategoricalPolicy.build(spec, DiscreteSpec(num=3))
    mask = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.int8)
    step = TimeStep(step_type=steps().step_type, observation=Batch(x=steps().observation, action_mask=mask))
    with pretend_device() as device:
        policy.to(device)
        assert policy.act(step).action.tolist() == [1, 0, 2]
        far = step._replace(observation=to_device(step.observation, device))  # as a collector has it
        assert policy.act(far).action.tolist() == [1, 0, 2]


def test_pictures_choices_and_numbers_are_seen_on_a_device_as_on_the_cpu():
    spec = {
        "picture": BoundedSpec((3, 36, 36), torch.uint8, np.array(0), np.array(255)),
        "choice": DiscreteSpec(num=4),
        "choices": MultiDiscreteSpec(nvec=(2, 3)),
        "numbers": OBSERVATION,
    }
    policy = GaussianPolicy.build(spec, BOX, NetworkConfig(hidden_sizes=(8,)), normalize=True)
    observation = Batch(
        picture=torch.randint(255, (3, 3, 36, 36), dtype=torch.uint8),
        choice=torch.tensor([0, 3, 1]),
        choices=torch.tensor([[0, 2], [1, 0], [1, 1]]),
        numbers=steps().observation,
    )
    expected = policy.act(steps()._replace(observation=observation), deterministic=True).action
    with pretend_device() as device:
        step = policy.to(device).act(steps()._replace(observation=observation), deterministic=True)
        assert_close(step.action, expected)


@pytest.mark.parametrize("spec", [DiscreteSpec(num=3), BOX], ids=["discrete", "box"])
def test_chance_draws_from_the_generator_that_it_is_given(spec):
    random, twin = RandomPolicy(OBSERVATION, spec), RandomPolicy(OBSERVATION, spec)
    twin.seed(5)
    with pretend_device() as device:
        random.draw_from(torch.Generator(device).manual_seed(5))
        action = random.act(steps()).action
        assert type(action) is torch.Tensor
        assert torch.equal(action, twin.act(steps()).action)


def test_bounds_follow_actions():
    spec_range = ActionRange(BOX)
    raw = torch.tensor([[0.5, 3.0]])
    with pretend_device() as device:
        assert spec_range(raw.to(device)).tolist() == spec_range(raw).tolist() == [[1.5, 1.0]]


def test_a_policy_from_a_device_is_kept_as_any_other(tmp_path):
    policy = GaussianPolicy.build(OBSERVATION, BOX, normalize=True)
    expected = policy(np.ones(4, np.float32))
    with pretend_device() as device:
        save_policy(policy.to(device), tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    assert loaded.device == torch.device("cpu")
    assert_close(loaded(np.ones(4, np.float32)), expected)
