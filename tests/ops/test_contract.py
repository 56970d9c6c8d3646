"""What every function of `palaestra.ops` promises: true annotations, whole graphs, no dependency on the test tools."""

import subprocess
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import optree
import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor
from torch.testing import assert_close

from palaestra import ops
from tests.ops.trajectories import random_trajectory

NUM_STEPS, NUM_LANES = 9, 3
VALUE, REWARD, DISCOUNT, STEP_TYPE = (
    x.float() if x.is_floating_point() else x for x in random_trajectory(0, NUM_STEPS, NUM_LANES)
)
TIME = (VALUE, REWARD, DISCOUNT, STEP_TYPE)
LOG_RATIO = torch.linspace(-1, 1, NUM_STEPS * NUM_LANES).reshape(NUM_STEPS, NUM_LANES)
VALID = ops.valid_starts(STEP_TYPE)
LOGITS = torch.linspace(-2, 2, 12).reshape(NUM_LANES, 4)
MASK = torch.tensor([[1, 1, 0, 1]] * NUM_LANES)
MOMENTS = ops.moments_of(LOGITS)

# name: (positional arguments, keyword arguments) of one right call
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "approximate_kl": ((LOG_RATIO, VALID), {}),
    "categorical_projection": ((LOGITS.softmax(-1), torch.linspace(-2, 2, 4), REWARD[0], DISCOUNT[0]), {}),
    "centered_ranks": ((LOG_RATIO[0],), {}),
    "check_action_mask": ((MASK,), {}),
    "clipped_surrogate": ((LOG_RATIO, LOG_RATIO), {"epsilon": 0.2}),
    "clipped_value_error": ((LOG_RATIO, LOG_RATIO, LOG_RATIO), {"epsilon": 0.2}),
    "conjugate_gradient": ((lambda vector: 2 * vector, VALUE[0]), {"num_steps": 3}),
    "discounted_returns": ((REWARD, DISCOUNT, STEP_TYPE, VALUE), {"gamma": 0.99}),
    "double_q_target": ((LOGITS, LOGITS, REWARD[0], DISCOUNT[0], MASK), {}),
    "episode_returns": ((REWARD, STEP_TYPE), {}),
    "expectile_loss": ((LOG_RATIO,), {"expectile": 0.7}),
    "explained_variance": ((LOG_RATIO, REWARD[1:], VALID), {}),
    "gae": (TIME, {"gamma": 0.99, "lambda_": 0.9}),
    "greedy_action": ((LOGITS, MASK), {}),
    "huber": ((LOG_RATIO,), {"delta": 1.0}),
    "importance_ratio": ((LOG_RATIO,), {}),
    "lambda_returns": (TIME, {"gamma": 0.99, "lambda_": 0.9}),
    "masked_mean": ((LOG_RATIO, VALID.float()), {}),
    "mean_of": ((LOG_RATIO,), {}),
    "merge": ((MOMENTS, MOMENTS), {}),
    "moments_of": ((LOG_RATIO, (0, 1)), {}),
    "n_step_end": ((STEP_TYPE,), {}),
    "n_step_returns": (TIME, {"gamma": 0.99, "n": 3}),
    "n_step_targets": ((REWARD, DISCOUNT, STEP_TYPE), {"gamma": 0.99}),
    "policy_gradient": ((LOG_RATIO, LOG_RATIO), {}),
    "q_target": ((LOGITS, REWARD[0], DISCOUNT[0]), {}),
    "quantile_huber": ((LOGITS, LOGITS[:, :3], torch.linspace(0.1, 0.9, 4)), {"delta": 0.5}),
    "remembered_starts": ((STEP_TYPE,), {}),
    "reverse_linear_recurrence": ((REWARD, DISCOUNT, VALUE[0]), {}),
    "reverse_linear_steps": ((REWARD[1:], DISCOUNT[1:], VALUE), {"n": 3}),
    "row_weights": ((VALID.float(),), {}),
    "squared_errors": ((LOG_RATIO, REWARD[0]), {}),
    "standardize": ((LOG_RATIO, VALID), {}),
    "symexp": ((LOG_RATIO,), {}),
    "symlog": ((LOG_RATIO,), {}),
    "td_target": ((VALUE[1], REWARD[1], DISCOUNT[1]), {}),
    "two_hot": ((LOG_RATIO, torch.linspace(-2, 2, 5)), {}),
    "valid_starts": ((STEP_TYPE,), {}),
    "variance": ((MOMENTS,), {}),
    "vtrace": ((*TIME, LOG_RATIO), {"gamma": 0.99, "clip": ops.VTraceClip(lambda_=0.9)}),
    "weighted_sum": ((LOG_RATIO, VALID.float()), {}),
}


def categorical(logits: Tensor, mask: Tensor, action: Tensor) -> tuple[Tensor, ...]:
    policy = ops.Categorical(logits, mask)
    return policy.log_prob(action), policy.entropy(), policy.mode(), policy.kl(ops.Categorical(2 * logits, mask))


def gaussian(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, ...]:
    policy = ops.DiagonalGaussian(mean, log_std)
    return policy.log_prob(action), policy.entropy(), policy.mode(), policy.kl(ops.DiagonalGaussian(2 * mean, log_std))


def compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


def test_every_public_function_is_in_the_table_of_calls():
    functions = {name for name, value in vars(ops).items() if isinstance(value, FunctionType)}
    assert functions - {"elo_ratings", "mean_interval", "t_quantile"} == CALLS.keys()  # which compute in NumPy


@pytest.mark.parametrize("gamma", [0.97, torch.tensor(0.97)], ids=["number", "tensor"])
@pytest.mark.parametrize("name", [name for name, (_, options) in CALLS.items() if "gamma" in options])
def test_gamma_is_a_factor_of_every_discount(name, gamma):
    """ALF-22: bit for bit; the environment's discount marks ends, gamma is the algorithm's."""
    arguments, options = CALLS[name]
    scaled = tuple(gamma * x if x is DISCOUNT else x for x in arguments)
    apart, together = (
        getattr(ops, name)(*given, **{**options, "gamma": factor})
        for given, factor in ((arguments, gamma), (scaled, 1.0))
    )
    pairs = zip(apart, together, strict=True) if isinstance(apart, tuple) else [(apart, together)]
    assert all(torch.equal(one, other) for one, other in pairs)


def test_annotations_are_checked_in_these_tests():
    """So every call of every test proves the annotations of arguments and results; here, a wrong dtype."""
    with pytest.raises(TypeCheckError):
        ops.valid_starts(VALUE)


@pytest.mark.parametrize("name", CALLS)
def test_functions_change_no_argument(name):
    arguments, options = CALLS[name]
    tensors = [x for argument in arguments for x in (argument if isinstance(argument, tuple) else (argument,))]
    before = [x.clone() if isinstance(x, Tensor) else x for x in tensors]
    getattr(ops, name)(*arguments, **options)
    assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True) if isinstance(x, Tensor))


def in_double(value: Any) -> Any:
    """The same with every number in float64, also inside functions and tuples."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    return type(value)(*map(in_double, value)) if isinstance(value, ops.Moments) else value


def close_and_double(found: Any, single: Any) -> None:
    """Every number is float64, and what float32 gives but for its rounding."""
    if isinstance(found, tuple | list):
        for one, other in zip(found, single, strict=True):
            close_and_double(one, other)
    elif isinstance(found, Tensor):
        assert not found.is_floating_point() or found.dtype == torch.float64
        assert_close(found, single, check_dtype=False, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CALLS)
def test_float64_in_is_float64_out(name):
    arguments, options = CALLS[name]
    function = getattr(ops, name)
    found = function(*map(in_double, arguments), **{key: in_double(value) for key, value in options.items()})
    close_and_double(found, function(*arguments, **options))


DISTRIBUTIONS: dict[str, Callable[[Tensor], Any]] = {
    "Categorical": lambda logits: ops.Categorical(logits, MASK),
    "DiagonalGaussian": lambda logits: ops.DiagonalGaussian(logits, logits[0]),
    "SquashedGaussian": lambda logits: ops.SquashedGaussian(logits, logits),
    "MultiCategorical": lambda logits: ops.MultiCategorical(logits, (2, 2)),
    "MultiBernoulli": ops.MultiBernoulli,
    "Joint": lambda logits: ops.Joint({"a": ops.Categorical(logits), "b": ops.DiagonalGaussian(logits, logits)}),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_of_float64_are_float64(name):
    double, single = DISTRIBUTIONS[name](LOGITS.double()), DISTRIBUTIONS[name](LOGITS)
    action = single.sample(torch.Generator().manual_seed(0))
    given = optree.tree_map(in_double, action, namespace="palaestra")
    close_and_double(double.log_prob(given), single.log_prob(action))
    close_and_double(optree.tree_leaves(double.mode()), optree.tree_leaves(single.mode()))
    drawn = optree.tree_leaves(double.sample(torch.Generator().manual_seed(0)))
    assert all(not x.is_floating_point() or x.dtype == torch.float64 for x in drawn)
    for method in ("entropy", "kl"):
        if hasattr(single, method):
            arguments = [(DISTRIBUTIONS[name](2 * x),) if method == "kl" else () for x in (LOGITS.double(), LOGITS)]
            close_and_double(getattr(double, method)(*arguments[0]), getattr(single, method)(*arguments[1]))


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"check_action_mask"}))
def test_functions_are_one_graph(name):
    """Traced whole, without a break, and equal to the eager result."""
    arguments, options = CALLS[name]
    function = getattr(ops, name)
    assert_close(compiled(function, "eager")(*arguments, **options), function(*arguments, **options))


@pytest.mark.usefixtures("unchecked_shapes")
def test_distributions_are_one_graph():
    action = torch.tensor([0, 1, 3])
    assert_close(compiled(categorical, "eager")(LOGITS, MASK, action), categorical(LOGITS, MASK, action))
    assert_close(compiled(gaussian, "eager")(LOGITS, LOGITS[0], LOGITS + 1), gaussian(LOGITS, LOGITS[0], LOGITS + 1))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", ["gae", "vtrace", "clipped_surrogate"])
def test_compiled_functions_equal_the_eager_ones(name):
    arguments, options = CALLS[name]
    function = getattr(ops, name)
    assert_close(compiled(function, "inductor")(*arguments, **options), function(*arguments, **options))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
def test_compiled_categorical_gradients_equal_the_eager_ones():
    action = torch.tensor([0, 1, 3])

    def loss(logits: Tensor) -> Tensor:
        log_prob, entropy, _, kl = categorical(logits, MASK, action)
        return (clip(log_prob) - entropy + kl).sum()

    def clip(log_prob: Tensor) -> Tensor:
        return ops.clipped_surrogate(log_prob + 1.5, REWARD[1], epsilon=0.2)

    logits = LOGITS.clone().requires_grad_()
    expected = torch.autograd.grad(loss(logits), logits)
    assert_close(torch.autograd.grad(compiled(loss, "inductor")(logits), logits), expected)


def test_the_package_needs_no_test_tools():
    """`jaxtyping` is a development dependency: the package works, and reads as plain tensors, without it."""
    program = (
        "import sys; sys.modules['jaxtyping'] = None; import torch; from palaestra import ops; "
        "print(ops.valid_starts(torch.tensor([0, 1, 2, 0])).tolist())"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert result.stdout.strip() == "[True, True, False]", result.stderr
