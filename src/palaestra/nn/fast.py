"""Everything private of PyTorch that this library uses, each piece with a public one that gives the same numbers.

Which of the two is taken is decided once, when this module is imported, by what this version of PyTorch has. The public
way costs 10 to 60 microseconds more for each gradient step, which small networks notice.
"""

import functools
import gc
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Self

import optree
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan as _scan
from torch.nn.functional import linear
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.utils._pytree import tree_leaves, tree_map

__all__ = [
    "MovableModule",
    "Recorded",
    "call",
    "can_compile",
    "checked_method",
    "compiled_method",
    "compiler_missing",
    "in_graph",
    "recorded_calls",
    "scan",
    "times_changed",
]

_engine: Any = getattr(getattr(torch.autograd, "Variable", None), "_execution_engine", None)


def public_call(owner: nn.Module, name: str, x: Any) -> Any:
    """`call` by PyTorch's public way.

    Args:
        owner: whose part is called.
        name: of the part.
        x: its input.
    """
    return getattr(owner, name)(x)


def public_through(
    owner: nn.Module, name: str, x: Tensor, activation: Callable[[Tensor], Tensor], num_activations: int
) -> Tensor:
    """`through` by PyTorch's public way.

    Args:
        owner: whose layers they are.
        name: of the list of them.
        x: the input of the first.
        activation: of what a layer gives.
        num_activations: so many of the first layers have it.
    """
    for number, layer in enumerate(getattr(owner, name)):
        x = layer(x)
        if number < num_activations:
            x = activation(x)
    return x


_modules: Any = nn.modules.module
_HOOKS = tuple(f"_{kind}_hooks" for kind in ("forward", "forward_pre", "backward", "backward_pre"))
_OF_ALL: list[Any] = [getattr(_modules, f"_global{name}", None) for name in _HOOKS]
_all_forward, _all_forward_pre, _all_backward, _all_backward_pre = _OF_ALL


def _quick_call(owner: Any, name: str, x: Any) -> Any:
    """A part of a module, called with its one input; without hooks, without the way there: as long as a small layer.

    Args:
        owner: whose part is called.
        name: of the part.
        x: its input.
    """
    module = owner._modules[name]
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


def _quickly_through(
    owner: Any, name: str, x: Tensor, activation: Callable[[Tensor], Tensor], num_activations: int
) -> Tensor:
    for number, layer in enumerate(owner._modules[name]._modules.values()):
        own = layer.__dict__
        if (
            type(layer) is not nn.Linear  # parametrized, or of another kind
            or own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or own["_backward_hooks"]
            or own["_backward_pre_hooks"]
            or "_compiled_call_impl" in own
            or _all_forward
            or _all_forward_pre
            or _all_backward
            or _all_backward_pre
        ):
            x = layer(x)
        else:
            parameters = own["_parameters"]
            x = linear(x, parameters["weight"], parameters["bias"])
        if number < num_activations:
            x = activation(x)
    return x


_plain = nn.Linear(1, 1, device="meta")  # draws nothing
_has_all = all(hasattr(_plain, name) for name in (*_HOOKS, "_compiled_call_impl")) and None not in _OF_ALL
_has_all = _has_all and all(isinstance(getattr(_plain, name, None), dict) for name in ("_modules", "_parameters"))
call: Callable[[nn.Module, str, Any], Any] = _quick_call if _has_all else public_call
through: Callable[..., Tensor] = _quickly_through if _has_all else public_through
"""What a list of layers makes of an input, one after another, with an activation after the first so many."""

_autocast: Any = getattr(torch._C, "_is_any_autocast_enabled", None)
has_autocast: Callable[[], bool] = _autocast or (lambda: True)
"""Whether products may be in less than single precision here, on any device: most often asked where they are not."""


class MovableModule(nn.Module):
    """A module that learns when it was moved: `.to`, `.cuda` and those of a module around it all end in `_apply`."""

    moves = 0
    """Counts moves after which its tensors may be others."""

    def moved(self) -> None:
        """After a move to another device or type."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.moves += 1
        self.moved()
        return self


def public_gradients(loss: Any, one: Any, retain_graph: bool, create_graph: bool, by: Any, *_: Any, **__: Any) -> Any:
    """`differentiate` by PyTorch's public function."""
    return torch.autograd.grad(loss, by, one, retain_graph, create_graph, allow_unused=True)


differentiate: Callable[..., Sequence[Tensor | None]] = getattr(_engine, "run_backward", public_gradients)
"""Gradients of a scalar, `None` for a parameter that it does not depend on: takes `(loss,), (ones_like(loss),),
retain_graph, False, parameters, True, accumulate_grad=False`.

`torch.autograd.grad` checks its arguments for longer than the backward pass of a small layer takes. Compiled code knows
only that."""


def public_flatten(tensors: Sequence[Tensor]) -> Tensor:
    """`flatten` by public operations.

    Args:
        tensors: of one type.
    """
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


_utils: Any = getattr(torch, "_utils", None)
flatten: Callable[[Sequence[Tensor]], Tensor] = getattr(_utils, "_flatten_dense_tensors", public_flatten)
"""Tensors as one vector."""


_together: tuple[Any, Any] = getattr(torch, "_foreach_norm", None), getattr(torch, "_foreach_mul", None)


def norms_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Euclidean norms, whose norm is that of all tensors: of each; compiled for a GPU, of eight in one vector.

    There each operation on a small tensor takes the same 1.5 microseconds. Where operations are recorded as they are,
    one gives all norms.

    Args:
        tensors: of any shapes.
    """
    if _together[0] is not None and recording():
        return _together[0](tensors)
    if torch.compiler.is_compiling() and tensors[0].is_cuda:
        tensors = [public_flatten(tensors[first : first + 8]) for first in range(0, len(tensors), 8)]
    return [torch.linalg.vector_norm(tensor) for tensor in tensors]


def scaled(tensors: Sequence[Tensor], factor: Tensor) -> list[Tensor]:
    """Each tensor times a factor; where operations are recorded, in one.

    Args:
        tensors: of any shapes.
        factor: 0-dim.
    """
    if _together[1] is not None and recording():
        return _together[1](tensors, factor)
    return [tensor * factor for tensor in tensors]


def times_changed(tensors: Sequence[Tensor]) -> list[int]:
    """How often each was changed in place, where this PyTorch says so.

    Args:
        tensors: of any shapes.
    """
    return [0 if tensor.is_inference() else getattr(tensor, "_version", 0) for tensor in tensors]


copy_all: Callable[[Sequence[Tensor], Sequence[Tensor]], Any] = getattr(
    torch, "_foreach_copy_", lambda mine, given: [a.copy_(b) for a, b in zip(mine, given, strict=True)]
)
"""Copies each of the second tensors into one of the first."""
_follow: Any = getattr(torch, "_foreach_lerp_", None)


def follow_all(mine: Sequence[Tensor], given: Sequence[Tensor], share: float | Tensor) -> None:
    """Moves each of the first tensors by a share of the way to one of the second; on a GPU in one operation.

    Args:
        mine: changed in place.
        given: one for each.
        share: in [0, 1]; 0-dim if it is a tensor.
    """
    if _follow is not None and not isinstance(share, Tensor):
        _follow(mine, given, share)
        return
    for tensor, value in zip(mine, given, strict=True):
        tensor.lerp_(value, share)


def public_adam_step(function: Any, *tensors: Any, **settings: Any) -> None:
    """`ADAM` by PyTorch's public functions, which raise the numbers of steps themselves."""
    parameters, gradients, means, squares, _, counts = tensors
    counts = [count - 1 for count in counts]
    function(parameters, list(gradients), means, squares, [], counts, fused=True, **settings)


_kernels: Any = getattr(torch, "_fused_adam_", None), getattr(torch, "_fused_adamw_", None)
if not all(_kernels):
    _kernels = partial(public_adam_step, adam), partial(public_adam_step, adamw)
ADAM: dict[str, Callable[..., None]] = {"adam": _kernels[0], "adamw": _kernels[1]}
"""A step of Adam or AdamW in place, on lists of parameters, gradients, their averages, those of their squares, `[]` and
numbers of the step, from 1, with `lr`, `beta1`, `beta2`, `weight_decay`, `eps`, `amsgrad`, `maximize`, `found_inf`.

The public functions sort their arguments for six times as long."""


def _none(guards: Sequence[Any]) -> list[bool]:
    return [False] * len(guards)


def compiled_method(
    owner: Any, method: Any, example: Any, changed: Sequence[Tensor] = (), checked: Callable[[Any], list[bool]] = _none
) -> Callable[[Any], Any]:
    """A method as compiled code for arguments like the example.

    What belongs to the owner has to stay the same objects, for where this version of PyTorch allows it nothing is
    checked, and a call leads to the graph at once: the way through `torch.compile`'s own dispatch costs a sixth of a
    small gradient step. On a GPU it is `Recorded` as well, and that alone where this PyTorch cannot compile gradients.

    Args:
        owner: whose method it is.
        method: a function of the owner and one argument.
        example: an argument.
        changed: what a call changes besides its result.
        checked: says of PyTorch's guards, all that the code depends on, which are checked in each call.
    """
    if any(leaf.is_cuda for leaf in tree_leaves(example) if isinstance(leaf, Tensor)):
        example = _without_gaps(example)
        return Recorded(_compiled_or_not(owner, method, example, checked), example, changed)
    return _compiled_ahead(owner, method, example, checked)


def recorded_calls(
    owner: Any,
    method: Any,
    example: Any,
    cut: Callable[[Any], Sequence[Any]],
    changed: Sequence[Tensor],
    checked: Callable[[Any], list[bool]] = _none,
) -> Callable[[Any], Any]:
    """Several calls of a method on a GPU, each of which finds what the one before has changed, as one CUDA graph.

    Args:
        owner: whose method it is; see `compiled_method`.
        method: a function of the owner and one argument.
        example: all arguments in one.
        cut: gives each of them.
        changed: what a call changes besides its result.
        checked: see `compiled_method`.

    Returns:
        Takes all arguments in one, gives a list of results.
    """
    example = _without_gaps(example)
    call = _compiled_or_not(owner, method, cut(example)[0], checked)
    return Recorded(lambda given: [call(argument) for argument in cut(given)], example, changed)


def _without_gaps(example: Any) -> Any:
    """With strides of the copies that `Recorded` works on: code is compiled for those, and does not look at them."""
    leaves, structure = optree.tree_flatten(example)
    return structure.unflatten(leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves)


def _compiled_or_not(owner: Any, method: Any, example: Any, checked: Any) -> Callable[[Any], Any]:
    """For what is recorded, which needs no compiler."""
    return _compiled_ahead(owner, method, example, checked) if can_compile() else partial(method, owner)


def _compiled_ahead(owner: Any, method: Any, example: Any, checked: Any) -> Callable[[Any], Any]:
    if not _compiles_ahead():
        return checked_method(owner, method, checked)
    step = _compiled(owner, method, checked, backend=_inductor)
    with _no_garbage_collection():
        graph = step.aot_compile(((example,), {}))
    graph.disable_guard_check()
    return partial(graph, owner)


def checked_method(owner: Any, method: Any, noted: Callable[[Any], Any]) -> Any:
    """A method as compiled code that looks at all it depends on in each call; for what is part of a recording.

    Args:
        owner: whose method it is.
        method: a function of the owner and others.
        noted: is told of PyTorch's guards.
    """
    return _compiled(owner, method, lambda guards: [True for _ in noted(guards)])


def _compiled(owner: Any, method: Any, checked: Any, **backend: Any) -> Any:
    """With code of its own: PyTorch would take what it compiled for another owner."""
    bound = MethodType(FunctionType(method.__code__.replace(), method.__globals__, method.__name__), owner)
    return torch.compile(bound, fullgraph=True, dynamic=False, options={"guard_filter_fn": checked}, **backend)


class Recorded:
    """A function on a GPU as one CUDA graph: its operations are recorded once, and later begun all together.

    So a call takes what the GPU needs, and not what Python and the driver need to begin each of hundreds of operations.
    The function runs three times at first, and what it changes is put back.

    Args:
        function: of tensors, on one stream; waits for no number.
        example: its argument. Later ones have the same shapes and types, and may lie anywhere.
        changed: what a call changes besides its result.
        generator: on the GPU, from which the function draws: each call draws on, as it would otherwise.
    """

    is_running = False
    """Whether operations are being recorded."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        example: Any,
        changed: Sequence[Tensor] = (),
        generator: torch.Generator | None = None,
    ) -> None:
        leaves, structure = optree.tree_flatten(example)
        self._inputs: list[Any] = [leaf.clone() for leaf in leaves]
        given, device = structure.unflatten(self._inputs), self._inputs[0].device
        before = [tensor.clone() for tensor in changed]
        drawn: Any = None if generator is None else generator.get_state()
        aside: Any = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        self._graph: Any = torch.cuda.CUDAGraph()
        if generator is not None:
            self._graph.register_generator_state(generator)
        Recorded.is_running = True
        try:
            with _no_garbage_collection(), torch.cuda.device(device):
                with torch.cuda.stream(aside):
                    for _ in range(3):  # libraries prepare themselves, which cannot be recorded
                        function(given)
                torch.cuda.current_stream(device).wait_stream(aside)
                with torch.cuda.graph(self._graph, stream=aside):  # by default one of the first device that recorded
                    results, self._structure = optree.tree_flatten(function(given))
                    self._numbers: list[Any] = [leaf for leaf in results if _is_number(leaf)]
                    self._together = torch.stack(self._numbers) if self._numbers else None
            self._results: list[Any] = results
        finally:
            Recorded.is_running = False
            with torch.no_grad():
                for tensor, value in zip(changed, before, strict=True):
                    tensor.copy_(value)
            if generator is not None:
                generator.set_state(drawn)

    def __call__(self, given: Any) -> Any:
        """The function's result, in memory of its own.

        Args:
            given: its argument.
        """
        with torch.no_grad():
            copy_all(self._inputs, optree.tree_leaves(given))
            self._graph.replay()
            numbers = iter(() if self._together is None else self._together.clone().unbind())
            return self._structure.unflatten(
                next(numbers) if _is_number(leaf) else leaf.clone() if isinstance(leaf, Tensor) else leaf
                for leaf in self._results
            )


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and not leaf.ndim and leaf.is_cuda and leaf.dtype == torch.float32


def in_graph() -> bool:
    """Whether what runs becomes part of a graph, so that nothing in it may depend on a value."""
    return torch.compiler.is_compiling() or Recorded.is_running


def recording() -> bool:
    """Whether what runs is recorded as it is: nothing fuses its operations, so that one for many tensors pays."""
    return Recorded.is_running and not torch.compiler.is_compiling()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Nearly all of the many objects that tracing makes live on; to look for others takes a fifth of its time.

    Afterwards they count as old: passes over them, 0.2 to 0.7 s in all, would follow in the next updates.
    """
    was_enabled, none_frozen = gc.isenabled(), not gc.get_freeze_count()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if none_frozen:  # neither by the command line, which has only this run, nor by the user
            gc.unfreeze()  # into the oldest generation
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
        every: list[Any] = []  # which can be traced, as `list[Any]()` cannot
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
    on_cpu = all(leaf.is_cpu for leaf in example if isinstance(leaf, Tensor))  # on a GPU the call is recorded
    settings: dict[str, Any] = {"size_asserts": False, "cpp_wrapper": on_cpu, "cpp.use_decompose_tanh": True}
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


def compiler_missing(device: str = "cpu") -> str:
    """What this machine lacks to compile; empty where it lacks nothing.

    Args:
        device: where networks are: on a GPU, gradient steps are recorded where this PyTorch cannot compile them.
    """
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return "a C++ compiler and none was found"
    return "" if device != "cpu" or can_compile() else f"PyTorch 2.11, and this is {torch.__version__}"


def can_compile() -> bool:
    """Whether gradients can be part of a graph; without a look into what takes a second to import."""
    return torch.__version__ >= "2.11"  # compared by numbers
