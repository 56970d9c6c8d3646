"""Updates whose gradient is not finite: skipped so often, kept for replay, and then the end."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from palaestra.algorithms import Algorithm
from palaestra.core import NonFiniteError, save_tensors, split_state

__all__ = ["SkippedUpdates"]

_log = logging.getLogger(__name__)
_MAX_DUMPS = 3


class SkippedUpdates:
    """Counts updates in a row that were not applied, and writes what they were made of.

    Args:
        most: how many in a row are survived.
        directory: where to write `non_finite_<gradient steps>/`; `None` writes nothing.
    """

    def __init__(self, most: int, directory: Path | None) -> None:
        self._most, self._directory = most, directory
        self.in_a_row = 0
        """Since the last update that was applied."""
        self.total = 0
        """Of the run."""

    def applied(self) -> None:
        """An update was applied."""
        self.in_a_row = 0

    def skip(self, error: NonFiniteError, algorithm: Algorithm[Any], env_steps: int) -> None:
        """An update was not applied.

        Args:
            error: that says why; its `batch` is kept.
            algorithm: with the parameters as they were before.
            env_steps: when.

        Raises:
            NonFiniteError: there were too many in a row.
        """
        self.in_a_row += 1
        self.total += 1
        kept = self._dump(error, algorithm, env_steps) if self.total <= _MAX_DUMPS else None
        where = f"; the batch and the parameters are in {kept}" if kept else ""
        if self.in_a_row > self._most:
            raise NonFiniteError(
                f"{error}{where}. {self.in_a_row} update(s) in a row were not finite and "
                f"trainer.max_skipped_updates is {self._most}"
            ) from error
        _log.warning("an update was skipped (%d in a row of at most %d): %s%s", self.in_a_row, self._most, error, where)

    def _dump(self, error: NonFiniteError, algorithm: Algorithm[Any], env_steps: int) -> Path | None:
        if self._directory is None:
            return None
        path = self._directory / f"non_finite_{algorithm.num_gradient_steps:010d}"
        try:
            path.mkdir(parents=True, exist_ok=True)
            values: dict[str, Any] = {}
            parts = {"algorithm": algorithm.state_tensors(), "batch": error.batch}
            for name, part in parts.items():
                values[name], tensors = split_state(part)
                save_tensors(path / f"{name}.safetensors", tensors)
            fault = {
                "error": str(error),
                "env_steps": env_steps,
                "gradient_steps": algorithm.num_gradient_steps,
                "policy_version": algorithm.policy_version,
                "state": values,
            }
            (path / "fault.json").write_text(json.dumps(fault, indent=2) + "\n")
        except OSError as failure:  # the fault itself matters more than its copy
            _log.warning("the batch of a non-finite update cannot be kept in %s: %s", path, failure)
            return None
        return path
