"""Pure functions, one equation each: returns, advantages, targets, loss terms, distributions, statistics.

Functions of time take time-major `[T+1, B]` arrays `(value, reward, discount, step_type)`: row t is time step t, and
its reward and discount belong to the action taken at row t - 1. The discount is gamma times continuation.
`palaestra.ops.episode_ends` says what an episode end means; nothing else in the code base does.
"""

from palaestra.ops.advantages import VTrace, VTraceClip, gae, vtrace
from palaestra.ops.distributions import Categorical, DiagonalGaussian, check_action_mask
from palaestra.ops.episode_ends import n_step_end, valid_starts
from palaestra.ops.evolution import centered_ranks, episode_returns
from palaestra.ops.joint import Joint, MultiBernoulli, MultiCategorical
from palaestra.ops.linear_systems import conjugate_gradient
from palaestra.ops.losses import (
    approximate_kl,
    clipped_surrogate,
    expectile_loss,
    explained_variance,
    huber,
    masked_mean,
    policy_gradient,
    row_weights,
    squared_errors,
    weighted_sum,
)
from palaestra.ops.recurrence import reverse_linear_recurrence, reverse_linear_steps
from palaestra.ops.return_distributions import categorical_projection, quantile_huber
from palaestra.ops.returns import NStep, discounted_returns, lambda_returns, n_step_returns, n_step_targets
from palaestra.ops.squashed import SquashedGaussian
from palaestra.ops.statistics import Moments, merge, moments_of, standardize, variance
from palaestra.ops.targets import double_q_target, greedy_action, q_target, td_target

__all__ = [
    "Categorical",
    "DiagonalGaussian",
    "Joint",
    "Moments",
    "MultiBernoulli",
    "MultiCategorical",
    "NStep",
    "SquashedGaussian",
    "VTrace",
    "VTraceClip",
    "approximate_kl",
    "categorical_projection",
    "centered_ranks",
    "check_action_mask",
    "clipped_surrogate",
    "conjugate_gradient",
    "discounted_returns",
    "double_q_target",
    "episode_returns",
    "expectile_loss",
    "explained_variance",
    "gae",
    "greedy_action",
    "huber",
    "lambda_returns",
    "masked_mean",
    "merge",
    "moments_of",
    "n_step_end",
    "n_step_returns",
    "n_step_targets",
    "policy_gradient",
    "q_target",
    "quantile_huber",
    "reverse_linear_recurrence",
    "reverse_linear_steps",
    "row_weights",
    "squared_errors",
    "standardize",
    "td_target",
    "valid_starts",
    "variance",
    "vtrace",
    "weighted_sum",
]
