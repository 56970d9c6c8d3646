"""Tests of `Callback.stepped`: the hook for every env step."""

import pytest
import torch

from palaestra.core import ConfigError, StepType, TimeStep
from palaestra.testing.algorithms import different, parameters
from tests.training.parts import Hooks, trainer


@pytest.mark.parametrize("compiled", [False, True])
def test_a_callback_is_called_after_each_env_step_with_its_rows(compiled):
    """What it is shown adds up to the env steps; all that a run does is as without it."""
    seen: list[TimeStep] = []
    hooks = Hooks(stepped=lambda trainer, time_step: seen.append(time_step))
    made, plain = trainer("ppo", total=60, callbacks=[hooks]), trainer("ppo", total=60)
    if compiled:
        made.collector.compile(object())  # would fail if it were called
    made.run()
    plain.run()
    rows = torch.stack([time_step.step_type for time_step in seen])
    assert int((rows != StepType.FIRST).sum()) == made.collector.env_steps
    assert all(time_step.reward.shape == (3,) for time_step in seen)
    assert not different(parameters(made.algorithm), parameters(plain.algorithm))


def test_a_callback_may_end_a_run_in_an_env_step():
    made = trainer("ppo", total=600, callbacks=[Hooks(stepped=lambda trainer, time_step: trainer.stop("seen enough"))])
    assert made.run().reason == "seen enough"
    assert made.collector.env_steps < 600


def test_env_steps_that_are_made_elsewhere_are_refused_by_name():
    made = trainer("ppo", callbacks=[Hooks(stepped=lambda trainer, time_step: None)])
    made.collector = RowsOfOthers()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigError, match="Hooks has a hook stepped, but RowsOfOthers makes no env steps"):
        made.run()


class RowsOfOthers:
    """What a run collects with whose workers are in other processes, as far as its start asks."""

    unfinished = False
