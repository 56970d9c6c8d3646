"""What there is: algorithms with the spaces and features that each supports, found out by asking each of them."""

import dataclasses
import inspect
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra.algorithms import ALGORITHMS, GradientAlgorithm
from palaestra.core import (
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpecTree,
    TensorSpec,
)
from palaestra.experiments.config import algorithm_class
from palaestra.experiments.learner import attempt
from palaestra.experiments.presets import PRESETS
from palaestra.multiagent import AgentSpec, team_specs

__all__ = ["AlgorithmEntry", "algorithm_catalogue", "algorithm_source"]

_BOX = BoundedSpec((2,), minimum=np.full(2, -1.0), maximum=np.full(2, 1.0))
_ACTIONS: dict[str, SpecTree] = {
    "discrete": DiscreteSpec(num=3),
    "box": _BOX,
    "multi-discrete": MultiDiscreteSpec(nvec=(2, 3)),
    "multi-binary": MultiBinarySpec((2,)),
    "nested": {"move": _BOX, "choice": DiscreteSpec(num=2)},
}
_IMAGE = BoundedSpec((36, 36, 3), torch.uint8, minimum=np.array(0), maximum=np.array(255))
_OBSERVATIONS: dict[str, SpecTree] = {
    "vector": TensorSpec((4,)),
    "image": _IMAGE,
    "nested": {"image": _IMAGE, "vector": TensorSpec((4,))},
}


@dataclass(frozen=True)
class AlgorithmEntry:
    """One algorithm and what it can do."""

    name: str
    """On the command line."""
    summary: str
    """What it does, in a sentence."""
    data: str
    """What it learns from: `on-policy`, `replay` or `offline`."""
    actions: tuple[str, ...]
    """Action spaces: `discrete`, `box`, `multi-discrete`, `multi-binary`, `nested`."""
    observations: tuple[str, ...]
    """Observation spaces: `vector`, `image`, `nested`."""
    features: tuple[str, ...]
    """What it can do besides: `memory`, its network can have one; `n-step`, it can sum rewards before bootstrapping;
    `priorities`, it can replay rows by their error; `bonus`, it takes an exploration bonus; `gradient workers`, these
    can share a minibatch; `team`, it learns for a team of agents, and the spaces are those of a member."""
    tuned_for: tuple[str, ...]
    """Environments with settings of their own."""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


def algorithm_catalogue() -> list[AlgorithmEntry]:
    """Every algorithm, made with its default settings for one space of each kind: what can be made is supported.

    Examples:
        >>> [entry.actions for entry in algorithm_catalogue() if entry.name == "dqn"]
        [('discrete',)]
    """
    return [_entry(name) for name in sorted(ALGORITHMS)]


def _entry(name: str) -> AlgorithmEntry:
    kind: Any = ALGORITHMS[name]
    vector = _OBSERVATIONS["vector"]
    made = {action: _attempt(kind, vector, spec) for action, spec in _ACTIONS.items()}
    actions = tuple(action for action, algorithm in made.items() if algorithm is not None)
    plan = next((algorithm.plan for algorithm in made.values() if algorithm is not None), None)
    spec = _ACTIONS[actions[0]] if actions else _ACTIONS["discrete"]
    return AlgorithmEntry(
        name=name,
        summary=(inspect.getdoc(kind) or "").splitlines()[0],
        data="replay" if plan is None else plan.data,
        actions=actions,
        observations=tuple(key for key, shape in _OBSERVATIONS.items() if _attempt(kind, shape, spec) is not None),
        features=_features(kind),
        tuned_for=tuple(env for algorithm, env in PRESETS if algorithm == name),
    )


def _attempt(kind: Any, observation_spec: SpecTree, action_spec: SpecTree) -> Any:
    """An algorithm for these spaces, or for a team of two with them; `None` if it refuses."""
    if not kind.team:
        return attempt(kind, observation_spec, action_spec)
    try:
        team = team_specs(AgentSpec(observation_spec, action_spec), 2)
    except ConfigError:
        return None
    return attempt(kind, *team)


def _features(kind: Any) -> tuple[str, ...]:
    settings = {field.name for field in dataclasses.fields(kind.config_class)}
    has = {
        "memory": kind.recurrent,
        "n-step": "n_step" in settings,
        "priorities": "prioritized" in settings,
        "bonus": "bonus" in settings and not kind.team,
        "gradient workers": issubclass(kind, GradientAlgorithm),
        "team": kind.team,
    }
    return tuple(feature for feature, there in has.items() if there)


def algorithm_source(name: str) -> Path:
    """The file that is an algorithm.

    Args:
        name: of the library, or `my_package:MyAlgorithm`.

    Raises:
        ConfigError: there is none of this name, or it was not written in a file.
    """
    try:
        return Path(inspect.getsourcefile(algorithm_class(name)) or "")
    except TypeError as error:
        raise ConfigError(f"the algorithm {name!r} has no source file: {error}") from error
