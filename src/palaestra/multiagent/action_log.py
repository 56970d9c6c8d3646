"""`ActionLog`: the actions of a world's running episode, agent by agent, small enough for every checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from palaestra.core import numpy_dtype, spec_leaves
from palaestra.envs.nest import flatten, unflatten
from palaestra.multiagent.world import AgentSpec

__all__ = ["ActionLog"]


class ActionLog:
    """Keeps who did what in which step of an episode.

    Args:
        agents: what each one's actions look like.
    """

    def __init__(self, agents: Mapping[str, AgentSpec]) -> None:
        self._specs = {name: spec.action for name, spec in agents.items()}
        self._dtypes = {
            name: [numpy_dtype(leaf.dtype) for leaf in spec_leaves(spec).values()] for name, spec in self._specs.items()
        }
        self.clear()

    def clear(self) -> None:
        """Begins a new episode."""
        self._length = 0
        self._when: dict[str, list[int]] = {name: [] for name in self._specs}
        self._leaves: dict[str, list[list[np.ndarray]]] = {name: [] for name in self._specs}

    def add(self, actions: Mapping[str, Any]) -> dict[str, Any]:
        """Notes the actions of a step.

        Args:
            actions: by agent.

        Returns:
            Copies of them in the dtypes of their specs, which a world may change.
        """
        taken: dict[str, Any] = {}
        for name, action in actions.items():
            spec = self._specs[name]
            leaves = [
                np.array(leaf, dtype) for leaf, dtype in zip(flatten(action, spec), self._dtypes[name], strict=True)
            ]
            self._when[name].append(self._length)
            self._leaves[name].append(leaves)
            taken[name] = unflatten((leaf.copy()[()] for leaf in leaves), spec)
        self._length += 1
        return taken

    def steps(self) -> Iterator[dict[str, Any]]:
        """The actions of every step so far, by agent."""
        table: list[dict[str, Any]] = [{} for _ in range(self._length)]
        for name, when in self._when.items():
            for step, leaves in zip(when, self._leaves[name], strict=True):
                table[step][name] = unflatten((leaf[()] for leaf in leaves), self._specs[name])
        return iter(table)

    def state(self) -> dict[str, Any]:
        """Everything, as JSON values and arrays."""
        agents = {
            name: {
                "when": np.array(when, np.int64),
                **{
                    str(leaf): np.stack([row[leaf] for row in self._leaves[name]])
                    for leaf in range(len(self._dtypes[name]))
                },
            }
            for name, when in self._when.items()
            if when
        }
        return {"length": self._length, "agents": agents}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of a log of the same agents.
        """
        self.clear()
        self._length = int(state["length"])
        for name, saved in state["agents"].items():
            self._when[name] = [int(step) for step in saved["when"]]
            columns = [np.asarray(saved[str(leaf)]) for leaf in range(len(self._dtypes[name]))]
            self._leaves[name] = [[column[row] for column in columns] for row in range(len(self._when[name]))]
