"""Tests of `palaestra.algorithms.parts.transitions`: what windows of replayed rows become."""

import torch

from palaestra.algorithms.parts import kept_besides, member_transitions
from palaestra.core import Batch, StepType

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST


def column(*numbers: float) -> torch.Tensor:
    """Rows [n+1, 1] of one window."""
    return torch.tensor(numbers)[:, None]


def test_of_a_team_that_was_cut_off_only_those_who_still_acted_go_on():
    """The window of three steps ends with its episode after two; the row behind is of the next one."""
    windows = Batch.of(
        {
            "observation": torch.zeros(1, 2),
            "action": torch.zeros(1, 2),
            "next_observation": Batch.of({"alive": torch.tensor([[1.0, 0.0]])}),
            "reward": torch.tensor([[9.0, 9.0], [1.0, 2.0], [4.0, 6.0], [9.0, 9.0]])[:, None],
            "discount": column(1.0, 1.0, 1.0, 1.0),
            "step_type": column(MID, MID, LAST, FIRST).int(),
            "index": torch.zeros(1),
        }
    )
    found = member_transitions(windows, 0.5)
    assert found.bootstrap.tolist() == [[0.25, 0.0]]
    assert found.reward.tolist() == [[3.0, 5.0]]


def test_of_a_window_what_the_environment_said_of_its_action_is_kept():
    """Its first row reports on the action before, and the last on one that is learned from elsewhere."""
    rows = {
        "next_observation": torch.zeros(1, 2),
        "env_info": Batch.of({"cost": column(10.0, 20.0, 30.0, 40.0)}),
    }
    assert kept_besides(Batch.of(rows), 0.9)["env_info"].cost.tolist() == [20.0]
