"""Tests of `palaestra.core.device`, and of the pretend device that other tests compute on."""

import numpy as np
import pytest
import torch

from palaestra.core import Batch, ConfigError, TimeStep, available_devices, device_of, require_device, to_device
from tests.devices import FarTensor, pretend_device


def test_a_nest_moves_as_a_whole_and_keeps_its_kinds():
    nest = (TimeStep(reward=torch.ones(2), observation=Batch(x=torch.zeros(2, 3))), {"n": 3, "none": None, "empty": ()})
    with pretend_device() as device:
        step, rest = to_device(nest, device)
        assert isinstance(step, TimeStep)
        assert isinstance(step.observation, Batch)
        assert (step.reward.device.type, step.observation.x.device.type) == (device, device)
        assert rest == nest[1]
        assert device_of(step) == device_of(step.observation) == torch.device(device)
        back = to_device(step, "cpu")
        assert (type(back.reward), back.reward.tolist()) == (torch.Tensor, [1.0, 1.0])


def test_what_is_there_is_not_copied():
    x = torch.zeros(2)
    assert to_device({"x": x}, "cpu")["x"] is x


def test_a_nest_without_tensors_is_on_the_cpu():
    assert {device_of(nest) for nest in ((), {}, Batch.of({}), None, 3)} == {torch.device("cpu")}


def test_devices_are_checked_by_name():
    """What was given, what is there, what to do."""
    assert "cpu" in available_devices()
    assert require_device("cpu") == torch.device("cpu")
    for name in ("cuda:77", "tpu", ""):
        with pytest.raises(
            ConfigError, match=rf"run.device is '{name}', but this process can compute on cpu.*give one"
        ):
            require_device(name, "run.device")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_explained():
    with pytest.raises(ConfigError, match=r"torch (was installed without CUDA|finds no GPU)"):
        require_device("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch with CUDA")
def test_the_first_gpu_is_cuda():
    assert require_device("cuda") == torch.device("cuda", 0)


def test_the_pretend_device_refuses_what_a_gpu_refuses():
    here, random = torch.ones(3), torch.Generator()
    with pretend_device() as device:
        there = here.to(device)
        assert isinstance(there, FarTensor)
        assert (there + there).tolist() == [2.0, 2.0, 2.0]
        assert (there * torch.tensor(2.0)).device.type == device  # one number may come from anywhere
        for mixed in (lambda: there + here, lambda: torch.stack([there.sum(), here.sum()])):
            with pytest.raises(RuntimeError, match="expected all tensors on one device"):
                mixed()
        with pytest.raises(RuntimeError, match=r"\.numpy\(\) is not supported"):
            there.numpy()
        with pytest.raises(RuntimeError):
            np.asarray(there)
        with pytest.raises(RuntimeError, match="the generator is of another device"):
            torch.empty(2, device=device).normal_(generator=random)
        with pytest.raises(RuntimeError, match="the generator is of another device"):
            torch.rand(2, generator=torch.Generator(device))
