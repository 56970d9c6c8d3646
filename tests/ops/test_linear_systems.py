"""Tests of `palaestra.ops.linear`."""

import torch
from torch.testing import assert_close

from palaestra.ops import conjugate_gradient

GENERATOR = torch.Generator().manual_seed(0)
ROOT = torch.randn(6, 6, generator=GENERATOR, dtype=torch.float64)
MATRIX = ROOT @ ROOT.T + torch.eye(6, dtype=torch.float64)
RIGHT = torch.randn(6, generator=GENERATOR, dtype=torch.float64)


def product(vector):
    return MATRIX @ vector


def test_as_many_steps_as_unknowns_solve_the_system():
    assert_close(conjugate_gradient(product, RIGHT, num_steps=6), torch.linalg.solve(MATRIX, RIGHT))


def test_the_identity_is_solved_in_one_step_and_more_change_nothing():
    """A mutant without the guard divides 0 by 0 in the second step."""
    for num_steps in (1, 5):
        assert_close(conjugate_gradient(lambda vector: vector, RIGHT, num_steps=num_steps), RIGHT)
    assert not conjugate_gradient(product, torch.zeros_like(RIGHT), num_steps=3).any()


def test_every_step_lessens_the_energy():
    """Hestenes and Stiefel, theorem 6:1; steepest descent, the mutant with beta 0, is worse after as many steps."""

    def energy(x):
        return float(0.5 * x @ MATRIX @ x - RIGHT @ x)

    energies = [energy(conjugate_gradient(product, RIGHT, num_steps=n)) for n in range(6)]
    assert energies == sorted(energies, reverse=True)
    x = torch.zeros_like(RIGHT)
    for _ in range(4):
        residual = RIGHT - MATRIX @ x
        x = x + (residual @ residual) / (residual @ MATRIX @ residual) * residual
    assert energies[4] < energy(x) - 1e-3
