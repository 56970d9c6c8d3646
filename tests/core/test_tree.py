"""Tests of `palaestra.core.tree`: trees, devices, and the pretend device that other tests compute on."""

import numpy as np
import pytest
import torch

from palaestra.core import (
    Batch,
    ConfigError,
    ShapeError,
    TimeStep,
    available_devices,
    device_of,
    require_device,
    to_device,
    tree_leaves,
    tree_map,
    tree_paths,
    tree_select,
    tree_split,
)
from tests.devices import FarTensor, pretend_device

TREE = {
    "b": (torch.arange(3), [np.zeros((3, 2))]),
    "a": TimeStep(reward=torch.ones(3), observation=Batch(z=np.ones(3))),
}


def test_trees_keep_their_kinds_and_the_order_of_their_fields():
    """Of batches as of dicts; what is empty stays empty."""
    doubled = tree_map(lambda x, y: x + y, TREE, TREE)
    assert list(doubled) == ["b", "a"]
    assert (type(doubled["a"]), doubled["a"].prev_action, doubled["a"].reward.tolist()) == (TimeStep, (), [2, 2, 2])
    assert list(tree_map(abs, Batch(b=-1, a=-2, none=None)).items()) == [("b", 1), ("a", 2), ("none", None)]
    assert tree_map(lambda x, y: (x, y), Batch(a=1, b=2), Batch(b=3, a=4)).a == (1, 4)


def test_leaves_are_named_by_their_path():
    assert list(tree_paths(TREE)) == ["a.1", "a.3.z", "b.0", "b.1.0"]
    assert [id(leaf) for leaf in tree_leaves(TREE)] == [id(leaf) for leaf in tree_paths(TREE).values()]
    assert tree_paths(3) == {"": 3}


def test_rows_are_selected_and_split():
    parts = tree_split(TREE, [1, 0, 2])
    assert [len(part["b"][0]) for part in parts] == [1, 0, 2]
    for last, whole in zip(tree_leaves(parts[2]), tree_leaves(TREE), strict=True):
        assert type(last) is type(whole)
        np.testing.assert_array_equal(last, whole[1:])
    assert tree_select(TREE, [2, 0])["b"][0].tolist() == [2, 0]


def test_trees_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match=r"leaf 'a' has 3 rows, but parts of \[1, 1\] rows were asked for"):
        tree_split({"a": torch.zeros(3)}, [1, 1])


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
