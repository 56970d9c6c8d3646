"""What goes on between an actor and its buffer: choices, and the rows that they led to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Choice", "Row", "pack_choices", "pack_rows", "stacked", "unpack_choices", "unpack_rows"]


@dataclass(slots=True)
class Choice:
    """An action of a lane, and all that it was chosen by."""

    observation: list[np.ndarray]
    """Leaves."""
    action: list[np.ndarray]
    """Leaves, as the policy sampled it."""
    state: list[np.ndarray]
    """Leaves of the policy's memory before it chose; none without memory."""
    first: bool
    """Whether an episode began with the observation."""
    version: int
    """Of the policy."""
    info: list[np.ndarray] | None = None
    """What the policy says about its choice, once it was asked."""


@dataclass(slots=True)
class Row:
    """A time step of a lane on its way to a buffer."""

    lane: int
    """Which."""
    step_type: int
    """See `StepType`."""
    discount: float
    """Continuation."""
    observation: list[np.ndarray]
    """Leaves."""
    reward: np.ndarray
    """One number, or [G] of a team."""
    choice: Choice | None
    """The action that led here; `None` with FIRST."""
    waiting: list[int] = field(default_factory=list)
    """Members of the team whose rewards will still be added; 0 where the lane is one agent's."""


def stacked(rows: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Leaves of several rows, each [n, ...].

    Args:
        rows: leaves of each; at least one row.
    """
    return [np.stack(leaf) for leaf in zip(*rows, strict=True)]


def pack_choices(choices: Sequence[Choice]) -> dict[str, Any]:
    """Choices as JSON values and a few arrays.

    Args:
        choices: any number.
    """
    told = [choice for choice in choices if choice.info is not None]
    return {
        "first": [choice.first for choice in choices],
        "version": [choice.version for choice in choices],
        "told": [choice.info is not None for choice in choices],
        "observation": stacked([choice.observation for choice in choices]),
        "action": stacked([choice.action for choice in choices]),
        "state": stacked([choice.state for choice in choices]),
        "info": stacked([choice.info or [] for choice in told]),
    }


def unpack_choices(packed: Mapping[str, Any]) -> list[Choice]:
    """What `pack_choices` was given.

    Args:
        packed: from it.
    """
    columns = {name: [np.asarray(leaf) for leaf in packed[name]] for name in ("observation", "action", "state", "info")}
    choices: list[Choice] = []
    infos = 0
    for row, told in enumerate(packed["told"]):
        info = [leaf[infos] for leaf in columns["info"]] if told else None
        infos += told
        seen, action, state = ([leaf[row] for leaf in columns[name]] for name in ("observation", "action", "state"))
        choices.append(Choice(seen, action, state, packed["first"][row], packed["version"][row], info))
    return choices


def pack_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows as JSON values and a few arrays.

    Args:
        rows: any number.
    """
    return {
        "lane": [row.lane for row in rows],
        "step_type": [row.step_type for row in rows],
        "discount": [row.discount for row in rows],
        "waiting": [row.waiting for row in rows],
        "chosen": [row.choice is not None for row in rows],
        "observation": stacked([row.observation for row in rows]),
        "reward": stacked([[row.reward] for row in rows]),
        "choices": pack_choices([row.choice for row in rows if row.choice is not None]),
    }


def unpack_rows(packed: Mapping[str, Any]) -> list[Row]:
    """What `pack_rows` was given.

    Args:
        packed: from it.
    """
    observation = [np.asarray(leaf) for leaf in packed["observation"]]
    rewards = [np.asarray(leaf) for leaf in packed["reward"]]
    choices = iter(unpack_choices(packed["choices"]))
    rows: list[Row] = []
    for number, (lane, kind, discount) in enumerate(
        zip(packed["lane"], packed["step_type"], packed["discount"], strict=True)
    ):
        choice = next(choices) if packed["chosen"][number] else None
        seen, reward = [leaf[number] for leaf in observation], np.array(rewards[0][number])
        rows.append(Row(lane, kind, discount, seen, reward, choice, list(packed["waiting"][number])))
    return rows
