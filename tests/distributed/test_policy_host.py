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
    mode, products = torch.get_deterministic_debug_mode(), torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    yield
    torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = convolutions


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_host_has_the_kernels_of_the_process_that_made_its_factory(mode, as_before):
    """`run.deterministic` held for the driver alone; a host runs in a process that begins without."""
    torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)
    make = host_factory(several("ppo")[0])(0)
    torch.use_deterministic_algorithms(False)
    assert isinstance(make(), PolicyHost)
    assert torch.get_deterministic_debug_mode() == mode


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
