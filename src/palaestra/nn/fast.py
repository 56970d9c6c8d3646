"""Everything private of PyTorch that this library uses, each piece with a public one that gives the same numbers.

Which of the two is taken is decided once, when this module is imported, by what this version of PyTorch has. The public
way costs 10 to 60 microseconds more for each gradient step, which small networks notice.
"""

import functools
import gc
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan as _scan
from torch.nn.functional import linear
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.utils._pytree import tree_map

__all__ = ["MovableModule", "call", "can_compile", "compiled_method", "compiler_missing", "scan", "submodules"]

_engine: Any = getattr(getattr(torch.autograd, "Variable", None), "_execution_engine", None)
_KERNELS: dict[bool, Any] = {
    False: getattr(torch, "_fused_adam_", None),
    True: getattr(torch, "_fused_adamw_", None),
}


class _FastLinear(nn.Linear):
    """`nn.Linear`, called as such; its own parameters are found without a search."""

    def forward(self, input: Tensor) -> Tensor:
        table = self._parameters
        weight = table.get("weight")
        if weight is None or "bias" not in table:  # parametrized
            return super().forward(input)
        return linear(input, weight, table["bias"])


Linear: type[nn.Linear] = _FastLinear if isinstance(getattr(nn.Linear(1, 1), "_parameters", None), dict) else nn.Linear


def public_call(module: nn.Module, x: Any) -> Any:
    """`call` by PyTorch's public way.

    Args:
        module: of one input.
        x: the input.
    """
    return module(x)


_modules: Any = nn.modules.module
_HOOKS = tuple(f"_{kind}_hooks" for kind in ("forward", "forward_pre", "backward", "backward_pre"))
_OF_ALL: list[Any] = [getattr(_modules, f"_global{name}", None) for name in _HOOKS]
_all_forward, _all_forward_pre, _all_backward, _all_backward_pre = _OF_ALL


def _quick_call(module: Any, x: Any) -> Any:
    """`module(x)`, hooks included; where there are none, without the way there, as long as a small layer takes.

    Args:
        module: of one input.
        x: the input.
    """
    own = module.__dict__  # an attribute of a module is searched for, which takes as long as all of this
    if (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "_compiled_call_impl" in own
        or _all_forward
        or _all_forward_pre
        or _all_backward
        or _all_backward_pre
    ):
        return module(x)
    return module.forward(x)


_has_all = all(hasattr(nn.Identity(), name) for name in (*_HOOKS, "_compiled_call_impl")) and None not in _OF_ALL
call: Callable[[nn.Module, Any], Any] = _quick_call if _has_all else public_call


def public_submodules(module: nn.Module) -> Mapping[str, Any]:
    """`submodules` by PyTorch's public way.

    Args:
        module: whose they are.
    """
    return dict(module.named_children())


def _table_of_submodules(module: nn.Module) -> Mapping[str, Any]:
    """The modules right inside one, by name, without a search.

    Args:
        module: whose they are.
    """
    return module._modules


submodules: Callable[[nn.Module], Mapping[str, Any]] = (
    _table_of_submodules if isinstance(getattr(nn.Identity(), "_modules", None), dict) else public_submodules
)
"""The modules right inside one, by name: `module.name` searches for as long as an activation takes."""


class MovableModule(nn.Module):
    """A module that learns when it was moved: `.to`, `.cuda` and those of a module around it all end in `_apply`."""

    def moved(self) -> None:
        """After a move to another device or type."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.moved()
        return self


def public_gradients(loss: Tensor, parameters: Sequence[Tensor], retain_graph: bool) -> Sequence[Tensor | None]:
    """`differentiate` by PyTorch's public function.

    Args:
        loss: a scalar.
        parameters: what it is differentiated by.
        retain_graph: whether another loss shares this one's graph.
    """
    return torch.autograd.grad(loss, parameters, retain_graph=retain_graph, allow_unused=True)


def _engine_gradients(loss: Tensor, parameters: Sequence[Tensor], retain_graph: bool) -> Sequence[Tensor | None]:
    if torch.compiler.is_compiling():
        return public_gradients(loss, parameters, retain_graph)
    one = torch.ones_like(loss)
    return _engine.run_backward((loss,), (one,), retain_graph, False, tuple(parameters), True, accumulate_grad=False)


differentiate = _engine_gradients if hasattr(_engine, "run_backward") else public_gradients
"""Gradients of a scalar, `None` for a parameter that it does not depend on: (loss, parameters, retain_graph).

`torch.autograd.grad` checks its arguments for longer than the backward pass of a small layer takes."""


def public_flatten(tensors: Sequence[Tensor]) -> Tensor:
    """`flatten` by public operations.

    Args:
        tensors: of one type.
    """
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


_utils: Any = getattr(torch, "_utils", None)
flatten: Callable[[Sequence[Tensor]], Tensor] = getattr(_utils, "_flatten_dense_tensors", public_flatten)
"""Tensors as one vector."""


def public_adam_step(
    parameters: list[Tensor],
    gradients: Sequence[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: Tensor,
    *,
    decoupled: bool,
    **settings: Any,
) -> None:
    """`adam_step` by PyTorch's public functions.

    Args:
        parameters: all of one device and type; changed in place.
        gradients: one for each.
        means: exponential moving averages of gradients.
        squares: those of their squares.
        steps: 0-dim, this step's number, from 1.
        decoupled: whether weight decay is AdamW's.
        settings: `lr`, `beta1`, `beta2`, `weight_decay` and `eps`.
    """
    counts = [steps - 1 for _ in parameters]  # these raise the numbers themselves
    settings |= {"amsgrad": False, "maximize": False}
    (adamw if decoupled else adam)(parameters, list(gradients), means, squares, [], counts, fused=True, **settings)


def _kernel_adam_step(
    parameters: list[Tensor],
    gradients: Sequence[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: Tensor,
    *,
    decoupled: bool,
    **settings: Any,
) -> None:
    counts = [steps] * len(parameters)
    kernel = _KERNELS[decoupled]
    kernel(parameters, gradients, means, squares, [], counts, amsgrad=False, maximize=False, **settings)


adam_step = _kernel_adam_step if all(_KERNELS.values()) else public_adam_step
"""A step of Adam or AdamW in place; see `public_adam_step`, which sorts its arguments for six times as long."""


def compiled_method(owner: Any, method: Any, example: Any) -> Callable[[Any], Any]:
    """A method as compiled code for arguments like the example.

    What belongs to the owner has to stay the same objects, for where this version of PyTorch allows it nothing is
    checked, and a call leads to the graph at once: the way through `torch.compile`'s own dispatch costs a sixth of a
    small gradient step.

    Args:
        owner: whose method it is.
        method: a function of the owner and one argument.
        example: an argument.
    """
    own = FunctionType(method.__code__.replace(), method.__globals__, method.__name__)
    bound = MethodType(own, owner)
    if not _compiles_ahead():
        return torch.compile(bound, fullgraph=True, dynamic=False)
    options: Any = {"guard_filter_fn": lambda guards: [False] * len(guards)}
    step: Any = torch.compile(bound, fullgraph=True, dynamic=False, options=options, backend=_inductor)
    with _no_garbage_collection():
        graph = step.aot_compile(((example,), {}))
    graph.disable_guard_check()
    return partial(graph, owner)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Nearly all of the many objects that tracing makes live on; to look for others takes a fifth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def scan(step: Callable[[Any, Tensor], tuple[Any, Any]], carried: Any, xs: Tensor) -> tuple[Any, Any]:
    """A loop over rows; compiled code runs it without Python and compiles its body once. Not for gradients.

    Args:
        step: of what is carried and one row, gives what is carried on and what is kept of this row, nests of tensors.
        carried: at the start.
        xs: [T, ...].

    Returns:
        What is carried at the end, and what was kept, leaves [T, ...].
    """
    if len(xs) == 1 or not torch.compiler.is_compiling():
        every = list[Any]()
        for x in xs:
            carried, kept = step(carried, x)
            every.append(kept)
        return carried, tree_map(lambda *leaves: torch.stack(leaves), *every)

    def copied(carried: Any, x: Tensor) -> tuple[Any, Any]:  # which a scan demands of what is one tensor twice
        return tree_map(torch.clone, step(carried, x))

    return _scan(copied, tree_map(torch.clone, carried), xs)


def _inductor(graph: Any, example: Any, **options: Any) -> Any:
    """The backend of `torch.compile`, whose cache on disk finds what an earlier process compiled.

    A graph that is compiled ahead has a random name, which is part of its key there: without it, a second run begins in
    half the time. With C++ around the kernels, a step of small networks takes a fifth less time. A tanh made of an
    exponential takes half the time of the library's, and is off by a rounding of 1.
    """
    from torch._inductor.compile_fx import compile_fx  # takes seconds

    graph._backend_id = None
    settings: dict[str, Any] = {"size_asserts": False, "cpp_wrapper": True, "cpp.use_decompose_tanh": True}
    # The key holds the code of a loop's body, as it does for the subgraphs that PyTorch caches by itself.
    loops = {f"torch.ops.higher_order.{name}": "" for name in ("scan", "while_loop")}
    return compile_fx(graph, example, config_patches={**settings, "unsafe_marked_cacheable_functions": loops})


@functools.cache
def _compiles_ahead() -> bool:
    """Lets gradients be part of a graph; whether graphs without guards can be had. Not at import: it takes seconds."""
    if can_compile():
        torch._dynamo.config.trace_autograd_ops = True
        _trust_instructions()
    return hasattr(torch.compile(lambda x: x), "aot_compile")


def _trust_instructions() -> None:
    """Vector instructions that the processor has and the compiler accepts are taken without PyTorch's own test.

    That test compiles a library for each kind and loads each in a new process: 4 to 14 seconds in a first run, and one
    or two in every other.
    """
    from torch._inductor import config, cpp_builder, cpu_vec_isa

    if getattr(config.cpp, "vec_isa_ok", True) is not None:  # somebody has said it, or it cannot be said
        return
    config.cpp.vec_isa_ok = True
    try:
        flags = cpu_vec_isa.pick_vec_isa().build_arch_flags().split()
        command = [cpp_builder.get_cpp_compiler(), *flags, "-x", "c++", "-E", os.devnull]
        accepted = subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except (AttributeError, OSError, RuntimeError, subprocess.SubprocessError):
        accepted = False
    if not accepted:  # an old compiler: PyTorch finds out which it knows
        config.cpp.vec_isa_ok = None
        cpu_vec_isa.valid_vec_isa_list.cache_clear()


def compiler_missing() -> str:
    """What this machine lacks to compile; empty where it lacks nothing."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return "a C++ compiler and none was found"
    return "" if can_compile() else f"PyTorch 2.13, and this is {torch.__version__}"


def can_compile() -> bool:
    """Whether gradients can be part of a graph; without a look into what takes a second to import."""
    return torch.__version__ >= "2.13"  # compared by numbers
