"""Values travel as messages and arrive as they were."""

import numpy as np
import pytest
import torch

from palaestra.runtime.messages import decode, encode


@pytest.mark.parametrize(
    "tensor",
    [
        torch.from_numpy(np.array(1.0, np.float32)[None]),  # one element, stride 0
        torch.tensor(2.0),
        torch.zeros(0, 3),
        torch.arange(12).reshape(3, 4).T,
        torch.ones(1).expand(5),
        torch.tensor([True, False]),
        torch.ones(3, dtype=torch.bfloat16),
    ],
    ids=["stride 0", "no dimension", "empty", "transposed", "expanded", "bool", "bfloat16"],
)
def test_tensors_of_every_layout_arrive_as_they_were(tensor):
    arrived = decode(encode({"x": tensor}))["x"]
    assert arrived.dtype is tensor.dtype and arrived.shape == tensor.shape
    assert torch.equal(arrived, tensor)
