"""`UnrollTogether`: the members of a population act in environments of tensors side by side, as one batch."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from palaestra.algorithms import Together
from palaestra.core import Batch, ConfigError, TimeStep, tree_map
from palaestra.envs import TensorEnvironment
from palaestra.rollout.collector import Collector
from palaestra.rollout.compiled import CompiledStep

__all__ = ["UnrollTogether"]


class _SideBySide:
    """Policies of M members as one whose rows are those of all: what `CompiledStep` needs of a policy."""

    def __init__(self, together: Together) -> None:
        self._policies = [member.policy for member in together.members]
        self._functional, self._values = together.functional, together.whole.values
        first, self.version, self.moves = self._policies[0], 0, 0
        self.observation_spec, self.generator, self.exploration = first.observation_spec, None, first.exploration
        self.env_action = together.pattern.policy.env_action
        self.acting: Sequence[int] = range(len(self._policies))
        """Members whose random numbers are drawn."""
        self._draws: list[Callable[[], Tensor]] = []

    def modules(self) -> Iterator[torch.nn.Module]:
        """Of all members' policies."""
        return itertools.chain.from_iterable(policy.modules() for policy in self._policies)

    def acting_noise(self, observation: Tensor) -> Callable[[], Tensor]:
        own = observation.unflatten(0, (len(self._policies), -1))
        self._draws = [policy.acting_noise(mine) for policy, mine in zip(self._policies, own, strict=True)]
        return self._drawn

    def _drawn(self) -> Tensor:
        some = {place: self._draws[place]() for place in self.acting}
        filler = some[self.acting[0]]
        return torch.cat([some.get(place, filler) for place in range(len(self._draws))])

    def act_with(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        count = len(self._policies)
        own = observation.unflatten(0, (count, -1)), noise.unflatten(0, (count, -1))
        action, described = vmap(self._acted)(self._values, *own)
        return action.flatten(0, 1), {name: value.flatten(0, 1) for name, value in described.items()}

    def _acted(self, values: dict[str, Tensor], observation: Tensor, noise: Tensor) -> Any:
        return functional_call(self._functional, values, ("act_with", observation, noise), tie_weights=False)


@final
class UnrollTogether:
    """Acts and steps for the collectors of all members as soon as the first of them asks.

    Each collector keeps its own environments, which are put where the common ones have come to, and draws its own
    random numbers, so that it goes on alone at any time.

    Args:
        together: the members.
        collectors: of each, in environments of tensors, and policies that act with random numbers drawn before.
        env: as many environments as all of them have, which get their seeds.
        compiles: whether an unroll is one compiled call.

    Raises:
        ConfigError: environments or policies are others.
    """

    def __init__(
        self, together: Together, collectors: Sequence[Collector], env: TensorEnvironment, *, compiles: bool
    ) -> None:
        self.require(collectors[0])
        self._collectors, self._policy = list(collectors), _SideBySide(together)
        side_by_side: Any = self._policy
        self._step = CompiledStep(env, side_by_side, compiles=compiles)
        self._lanes = env.batch_size // len(collectors)
        seeds = np.concatenate([one.env.state_dict()["lane_seed"] for one in collectors])
        env.load_lane_state(env.lane_state() | {"lane_seed": seeds})
        self._ready: dict[int, tuple[Batch, TimeStep, Any]] = {}
        for place, collector in enumerate(collectors):
            collector.compile(_Share(self, place))

    @staticmethod
    def require(collector: Collector) -> None:
        """Refuses what cannot act side by side with others.

        Args:
            collector: of a member.

        Raises:
            ConfigError: names it.
        """
        if CompiledStep.of(collector.env, collector.policy) is None:
            raise ConfigError(
                f"members of a population act as one batch of tensors, and here a {type(collector.policy).__name__} "
                f"acts in a {type(collector.env).__name__}; train runs of their own, or take a TensorEnvironment, and "
                "a policy without a memory that draws its actions or is epsilon-greedy"
            )

    def expect(self, places: Sequence[int]) -> None:
        """Says who will ask for the next unroll.

        Args:
            places: of those members.
        """
        self._policy.acting, self._ready = list(places), {}

    def unroll(self, place: int, rows: int, stop: Callable[[], bool]) -> tuple[Batch, TimeStep]:
        """`CompiledStep.unroll` of a member.

        Args:
            place: of the member.
            rows: steps; the same for all of an unroll.
            stop: asked before each call; ends the unroll of all early.
        """
        if not self._ready:
            self._unroll(rows, stop)
        mine, newest, lanes = self._ready[place]
        env: Any = self._collectors[place].env
        env.lanes = lanes
        if not mine.is_empty():
            version = torch.full_like(mine["policy_version"], self._collectors[place].policy.version)
            mine = mine.replace(policy_version=version)
        return mine, newest

    def _unroll(self, rows: int, stop: Callable[[], bool]) -> None:
        acting, count = self._policy.acting, len(self._collectors)
        current = {place: self._collectors[place].current() for place in acting}
        envs: dict[int, Any] = {place: self._collectors[place].env for place in acting}
        some, env = acting[0], self._step.env  # of members that do not act, there are somebody else's lanes
        env.lanes = _cat([envs.get(place, envs[some]).lanes for place in range(count)])
        fields = _cat([tuple(current.get(place, current[some])[:5]) for place in range(count)])
        unrolled, newest = self._step.unroll(TimeStep(*fields, env_id=torch.arange(env.batch_size)), rows, stop)
        for place in acting:
            own = slice(place * self._lanes, (place + 1) * self._lanes)
            mine: Any = tree_map(lambda leaf, own=own: leaf[:, own], unrolled)
            after, lanes = tree_map(lambda leaf, own=own: leaf[own], (tuple(newest[:5]), env.lanes))
            self._ready[place] = mine, TimeStep(*after, env_id=current[place].env_id), lanes


class _Share:
    """What a member's collector asks."""

    def __init__(self, whole: UnrollTogether, place: int) -> None:
        self._whole, self._place = whole, place

    def unroll(self, time_step: TimeStep, rows: int, stop: Callable[[], bool]) -> tuple[Batch, TimeStep]:
        return self._whole.unroll(self._place, rows, stop)


def _cat(parts: Sequence[Any]) -> Any:
    return tree_map(lambda *leaves: torch.cat(leaves), *parts)
