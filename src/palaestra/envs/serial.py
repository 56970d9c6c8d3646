"""`SerialEnvironment`: environments stepped one after another in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import numpy as np

from palaestra.core import ConfigError
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.episode_log import Episode
from palaestra.envs.faults import Failure, FaultPolicy
from palaestra.envs.lane_environment import Incident, LaneEnvironment, Outcome
from palaestra.envs.lanes import Lanes
from palaestra.envs.vector import batched_info

__all__ = ["SerialEnvironment"]


@final
class SerialEnvironment(LaneEnvironment):
    """Steps bare environments in this process: no sub-process exists, so a debugger works.

    The fastest choice for environments whose step takes less than about 10 microseconds. One that hangs or kills the
    process cannot be helped here; worker processes are for those.

    Args:
        envs: the outermost layers, or what makes them; one batch, all with equal specs.
        lane_seeds: one for each, from `RunSeeds.integer("environments", lane)`; fresh ones if left out.
        faults: what to do when one fails; `restart` needs what makes them.

    Raises:
        SpecError: no environments, other specs, or another number of seeds.
        ConfigError: environments that cannot be made again are to be restarted.

    Examples:
        >>> import torch
        >>> from palaestra.envs import load
        >>> env = SerialEnvironment([load("CartPole-v1"), load("CartPole-v1")], lane_seeds=[1, 2])
        >>> env.reset().step_type, env.step(torch.tensor([0, 1])).reward
        (tensor([0, 0], dtype=torch.int32), tensor([1., 1.]))
    """

    def __init__(
        self,
        envs: Sequence[SingleEnvironment | Callable[[], SingleEnvironment]],
        *,
        lane_seeds: Sequence[int] | None = None,
        faults: FaultPolicy = FaultPolicy(),  # noqa: B008 - frozen
    ) -> None:
        factories: list[Any] = [env for env in envs if callable(env)]
        if faults.on_fault == "restart" and len(factories) < len(envs):
            raise ConfigError(
                'on_fault="restart" makes environments again; give what makes them, such as partial(load, ...)'
            )
        made: list[Any] = [env() if callable(env) else env for env in envs]
        self._lanes = Lanes(made, factories, strict=faults.strict)
        super().__init__(self._lanes.specs, lane_seeds, len(made), faults)
        self._given: Iterable[Any] = ()

    def _submit(self, actions: list[np.ndarray], seeds: dict[int, int]) -> None:
        self._given = self._reader.per_lane(actions)

    def _collect(self) -> Outcome:
        rows, infos, failures = self._lanes.step(self._given, self._seeds)
        info = () if infos is None else batched_info(infos, self.batch_size)
        return rows, self._lanes.over, info, [Incident(failure) for failure in failures] if failures else ()

    def _give_up_step(self) -> None:
        self._given = ()

    def _restart(self, seeds: dict[int, int], *, fatal: bool) -> dict[int, list[np.ndarray]] | Incident:
        found: dict[int, list[np.ndarray]] = {}
        for lane, seed in seeds.items():
            restarted = self._lanes.restart(lane, seed)
            if isinstance(restarted, Failure):
                return Incident(restarted)
            found[lane] = restarted
        return found

    def _drop(self, lanes: list[int], *, fatal: bool) -> None:
        for lane in lanes:
            self._lanes.drop(lane)

    def _stop(self, because: str) -> None:
        self._ended_by = because
        self.close()

    def _digests(self) -> list[str]:
        return self._lanes.digests()

    def _load(self, episodes: Sequence[Episode]) -> list[int] | Incident:
        failure = self._lanes.load(episodes)
        return self._lanes.over if failure is None else Incident(failure)

    def render(self) -> np.ndarray:
        """A picture of environment 0."""
        return self._lanes.envs[0].render()

    def close(self) -> None:
        """Closes every environment."""
        self._lanes.close()
