"""What every algorithm promises of its settings: each number and each switch changes something."""

import functools
import math
import types
import typing
from typing import Any, Union

import numpy as np
import pytest
import torch

from palaestra import NetworkConfig
from palaestra.algorithms import ALGORITHMS, GradientAlgorithm
from palaestra.core import Linear, Offline, Range, TimeStep, tree_map, tree_paths
from palaestra.core.settings import members_of
from palaestra.testing.algorithms import different, parameters, shaken, whole_state
from tests.algorithms.parts import CASES, SETTINGS, collector_for, environment, make, tiny_config

BASE: dict[str, Any] = {"gradient_steps": 2, "max_grad_norm": 0.01, "entropy_cost": 0.01, "epsilon": 0.2}
"""What makes limits bind, and costs count."""
MEMORY = {"network": NetworkConfig(hidden_sizes=(8,), recurrent="gru", recurrent_size=6)}
SYMMETRY = {"symmetry": f"{__name__}:mirror", "symmetry_cost": 0.5}
WITH: dict[str, dict[str, Any]] = {
    "beta": {"teacher": f"{__name__}:still"},
    "burn_in": MEMORY,
    "mini_batch_length": MEMORY,
    "num_epochs": {"gradient_steps": 1, "prioritized": False},
    "num_line_steps": {"target_kl": 5.0},
    "priority_alpha": {"prioritized": True},
    "priority_beta": {"prioritized": True},
    "symmetric_rows": SYMMETRY,
    "symmetry_cost": SYMMETRY,
}
"""What has to be set for a setting to count."""
OTHER: dict[str, Any] = {
    "beta": 0.1,
    "dual_clip": 1.5,
    "epsilon": 0.9,
    "exploration_return": 7.0,
    "free_nats": 2.0,
    "least_value_range": 0.5,
    "longest_noise": 2,
    "max_weight": 0.01,
    "mini_batch_length": 3,
    "num_acting_fractions": 1,
    "num_considered": 2,
    "num_epochs": 3,
    "num_line_steps": 1,
    "rho_clip": 2.0,
    "target_entropy": -0.5,
    "target_kl": 1e-6,
    "target_period": 2,
    "target_return": 7.0,
    "value_clip": 0.01,
    "weight_decay": 0.1,
}
"""Second values, where half of a number, one more of a count and the other side of a switch would not do."""


def mirror(observation: Any, action: Any) -> tuple[Any, Any]:
    return -observation, -action


def still(observation: Any) -> Any:
    return np.zeros((len(observation), 2))


def second(name: str, value: Any) -> Any:
    """Another value that a setting may have."""
    if name in OTHER:
        return OTHER[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, Linear):
        return 0.3 * (value.start + value.end)
    return value + 1 if isinstance(value, int) else 0.5 * value


def numbers_of(name: str) -> list[str]:
    """Names of the settings that are numbers, schedules or switches, or may be."""
    hints = typing.get_type_hints(ALGORITHMS[name].config_class)
    return [name for name, hint in hints.items() if {hint, *_options(hint)} & {int, float, bool}]


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) is Union else ()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_number_has_a_range(name):
    """What is out of it is refused by its name, and no search looks there."""
    hints = typing.get_type_hints(ALGORITHMS[name].config_class, include_extras=True)
    numbers = {key: hint for key, hint in hints.items() if {int, float} & {*members_of(hint)}}
    ranges = {
        key: [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Range)]
        for key, hint in numbers.items()
    }
    assert [key for key, found in ranges.items() if not found] == []


class Kept:
    """Rows to draw from that stay as they are: no priorities are written back."""

    def __init__(self, buffer: Any) -> None:
        self.draw = buffer.draw

    def write_back(self, index: Any, priority: Any) -> None:
        pass


class Compared:
    """An algorithm beside others that differ from it in one setting, and learn from the same rows."""

    def __init__(self, name: str) -> None:
        kinds = [kind for algorithm, kind in CASES if algorithm == name]
        self.name, self.kind = name, "continuous" if "continuous" in kinds else kinds[0]
        self.env = environment(self.kind)
        self.made, self.learned = functools.cache(self._made), functools.cache(self._learned)
        self.collector = collector_for(self.env, self._made())
        self.collector.unroll(12)
        rows: Any = self.collector.buffer.newest(12)
        seen = tree_map(lambda leaf: leaf.flatten(0, 1), rows.observation)
        self.step = TimeStep(reward=torch.zeros(rows.step_type.numel()), observation=seen)

    def counts(self, changed: str) -> bool:
        """Whether a setting changes what data is asked for, a network, what is learned, or how it acts then."""
        besides = WITH.get(changed, {})
        first = self._config(besides)
        changes = [tuple(one.items()) for one in (besides, {**besides, changed: second(changed, vars(first)[changed])})]
        plans = [self._config(dict(one)).plan for one in changes]
        if plans[0] != plans[1]:
            return True
        shapes = [{key: value.shape for key, value in parameters(self.made(*one)).items()} for one in changes]
        if shapes[0] != shapes[1]:
            return True
        states = [self.learned(*one) for one in changes]
        return states[0].keys() != states[1].keys() or bool(different(*states))

    def _config(self, changes: Any) -> Any:
        return tiny_config(ALGORITHMS[self.name], **{**SETTINGS.get(self.kind, {}), **BASE, **changes})

    def _made(self, *changes: Any) -> Any:
        return make(self.name, self.env, **{**SETTINGS.get(self.kind, {}), **BASE, **dict(changes)})

    def _learned(self, *changes: Any) -> dict[str, Any]:
        """All that it holds and says after an update, and how it acts then; at first it is not the policy that acted.

        What learns from data makes another one, of own steps.
        """
        algorithm = shaken(self.made(*changes))
        if isinstance(algorithm, GradientAlgorithm):
            algorithm.num_gradient_steps = math.lcm(*algorithm.term_periods.values()) - 1  # all terms are due
        rows: Any = Kept(self.collector.buffer)
        info = algorithm.update(rows)
        if isinstance(algorithm.plan, Offline) and not algorithm.imitates:
            algorithm.plan = algorithm.plan.online()
            algorithm.update(rows)
        acted = algorithm.policy.act(self.step, algorithm.policy.initial_state(len(self.step.reward)))
        return tree_paths({"acted": acted.action}) | info.metrics | whole_state(algorithm)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_number_and_each_switch_changes_something(name):
    compared = Compared(name)
    same = compared.learned(("gradient_steps", BASE["gradient_steps"]))
    assert not different(compared.learned(), same), "by equal settings"
    nothing = [setting for setting in numbers_of(name) if not compared.counts(setting)]
    assert not nothing
