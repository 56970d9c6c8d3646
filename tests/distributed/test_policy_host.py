"""`PolicyHost`: what a process that learns for another one computes with."""

import pytest
import torch

from palaestra.distributed import PolicyHost
from palaestra.distributed.policy_host import host_factory
from tests.distributed.parts import several

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch with CUDA")


@pytest.fixture
def as_before():
    """Puts back what is set for all of this process."""
    deterministic, products = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = convolutions


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_host_has_the_kernels_of_the_process_that_made_its_factory(deterministic, as_before):
    """`run.deterministic` held for the driver alone; a host runs in a process that begins without."""
    torch.use_deterministic_algorithms(deterministic)
    make = host_factory(several("ppo")[0])(0)
    torch.use_deterministic_algorithms(False)
    assert isinstance(make(), PolicyHost)
    assert torch.are_deterministic_algorithms_enabled() is deterministic


@needs_cuda
@pytest.mark.parametrize(("products", "rounds"), [("high", True), ("highest", False)])
def test_a_host_on_a_gpu_multiplies_with_the_precision_of_that_process(products, rounds, as_before):
    """TF32 or not, of products and of convolutions."""
    algorithms = {name: one.to("cuda") for name, one in several("ppo")[0].items()}
    torch.set_float32_matmul_precision(products)
    make = host_factory(algorithms)(0)
    torch.set_float32_matmul_precision("highest" if rounds else "high")
    torch.backends.cudnn.allow_tf32 = not rounds
    make()
    assert torch.get_float32_matmul_precision() == products
    assert torch.backends.cudnn.allow_tf32 is rounds
