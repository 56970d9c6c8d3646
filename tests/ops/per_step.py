"""Functions of time at gamma 1: the discounts of the trajectories in these tests have a factor for each step."""

from functools import partial

from palaestra import ops

discounted_returns = partial(ops.discounted_returns, gamma=1.0)
gae = partial(ops.gae, gamma=1.0)
lambda_returns = partial(ops.lambda_returns, gamma=1.0)
n_step_returns = partial(ops.n_step_returns, gamma=1.0)
n_step_targets = partial(ops.n_step_targets, gamma=1.0)
vtrace = partial(ops.vtrace, gamma=1.0)
