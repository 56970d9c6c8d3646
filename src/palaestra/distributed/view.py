"""`WorkersView`: how workers are, in every row of metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from palaestra.training import Callback

if TYPE_CHECKING:
    from palaestra.distributed.policy_server import PolicyServer
    from palaestra.distributed.rollout_manager import RolloutManager
    from palaestra.training import Trainer

__all__ = ["WorkersView"]


@final
class WorkersView(Callback):
    """Adds the metrics of a `RolloutManager` or `PolicyServer` to every row of metrics.

    Args:
        manager: of the workers.
    """

    def __init__(self, manager: RolloutManager | PolicyServer) -> None:
        self._manager = manager

    def logged(self, trainer: Trainer, row: dict[str, float]) -> None:
        """See `Callback.logged`."""
        row |= self._manager.metrics()
