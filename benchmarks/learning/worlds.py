"""Worlds that are tables, with their best return: `World` is the environment of one, `WORLDS` are twenty of them."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import torch

from palaestra.core import DiscreteSpec, TensorSpec
from palaestra.envs import TensorEnvironment

BEST = 2.5
"""Rewards are scaled so that this lies between random actions and the best, whatever the world."""
_MIXED = (6364136223846793005, 1442695040888963407)
_MANY = 100  # beliefs of a world, after which new ones are the nearest of these


@dataclass(frozen=True, eq=False)
class Table:
    """A Markov decision process of S states and A actions. Episodes end by chance, so returns are not discounted."""

    next_probs: np.ndarray
    """[S, A, S]; what is missing to 1 ends the episode."""
    reward: np.ndarray
    """[S, A] expected."""
    start: np.ndarray
    """[S] probabilities."""
    features: np.ndarray
    """[S, F] float32: what is seen of a state."""
    reward_noise: float = 0.0
    """Rewards are uniform around what is expected, by so much on either side."""

    @cached_property
    def best(self) -> float:
        """The expected return of the best policy, by value iteration."""
        return float(self.start @ self.values().max(-1))

    def values(self) -> np.ndarray:
        """[S, A] of actions after which the best are chosen."""
        q = np.zeros(self.reward.shape)
        while True:
            after = self.reward + self.next_probs @ q.max(-1)
            if np.abs(after - q).max() < 1e-10:
                return after
            q = after

    def value_of(self, policy: Any) -> float:
        """The expected return of a policy: actions [S], or probabilities [S, A]."""
        chosen = np.asarray(policy)
        probs = np.eye(self.reward.shape[1])[chosen] if chosen.ndim == 1 else chosen
        moves = np.einsum("sa,sat->st", probs, self.next_probs)
        returns = np.linalg.solve(np.eye(len(moves)) - moves, (probs * self.reward).sum(-1))
        return float(self.start @ returns)

    @cached_property
    def random(self) -> float:
        """The expected return of random actions."""
        return self.value_of(np.full(self.reward.shape, 1 / self.reward.shape[1]))

    def scaled(self) -> "Table":
        """With rewards in the unit of which `BEST` is the distance from random actions to the best."""
        unit = BEST / (self.best - self.random)
        return dataclasses.replace(self, reward=self.reward * unit, reward_noise=self.reward_noise * unit)


def chain(length: int, slip: float = 0.1, end: float = 0.04) -> Table:
    """To the right one reward is far away, to the left a small one is near."""
    moves, reward = np.zeros((length, 2, length)), np.zeros((length, 2))
    for state in range(length):
        for action, step in enumerate((-1, 1)):
            for sign, share in ((1, 1 - slip), (-1, slip)):
                moves[state, action, min(max(state + sign * step, 0), length - 1)] += share * (1 - end)
    reward[0, 0], reward[-1, 1] = 0.1, 1.0
    return Table(moves, reward, np.eye(length)[0], np.eye(length, dtype=np.float32))


def maze(size: int, seed: int, slip: float = 0.1, end: float = 0.02) -> Table:
    """A room with walls; the way from one corner to the opposite one, in four directions."""
    generator = np.random.default_rng(seed)
    while True:
        free = generator.random((size, size)) > 0.25
        free[0, 0] = free[-1, -1] = True
        cells = [tuple(map(int, cell)) for cell in np.argwhere(free)]
        if (size - 1, size - 1) in _reached(cells):
            break
    index = {cell: number for number, cell in enumerate(cells)}
    goal, count, directions = index[size - 1, size - 1], len(cells), ((0, 1), (1, 0), (0, -1), (-1, 0))
    moves, reward = np.zeros((count, 4, count)), np.full((count, 4), -0.02)
    for cell, state in index.items():
        for action in range(4):
            for turn, share in ((0, 1 - slip), (1, slip / 2), (3, slip / 2)):
                step = directions[(action + turn) % 4]
                after = index.get((cell[0] + step[0], cell[1] + step[1]), state)
                moves[state, action, after] += share * (1 - end)
        reward[state] += moves[state, :, goal]
    moves[:, :, goal] = 0.0  # arriving ends the episode
    return Table(moves, reward, np.eye(count)[index[0, 0]], np.eye(count, dtype=np.float32))


def _reached(cells: Sequence[Any]) -> set[Any]:
    found, waiting = set[Any](), [(0, 0)]
    while waiting:
        if (cell := waiting.pop()) in cells and cell not in found:
            found.add(cell)
            waiting += [(cell[0] + a, cell[1] + b) for a, b in ((0, 1), (1, 0), (0, -1), (-1, 0))]
    return found


def bandit(contexts: int, arms: int, seed: int, end: float = 0.1) -> Table:
    """What an arm pays depends on a context that changes at random; noise is as large as the differences."""
    generator = np.random.default_rng(seed)
    moves = np.full((contexts, arms, contexts), (1 - end) / contexts)
    pays = generator.permuted(np.linspace(-0.5, 0.5, arms)[None].repeat(contexts, 0), axis=1)
    start = np.full(contexts, 1 / contexts)
    return Table(moves, pays, start, np.eye(contexts, dtype=np.float32), reward_noise=0.5)


def hidden(moves: np.ndarray, seen: np.ndarray, reward: np.ndarray, start: np.ndarray, end: float = 0.05) -> Table:
    """What hides its state, seen as the belief of a filter; beliefs closer than 0.005 are one.

    Args:
        moves: [A, S, S] probabilities.
        seen: [A, S, Z] probabilities of what is observed in the state after an action.
        reward: [S, A].
        start: [S] the belief at first.
        end: probability that a step ends the episode.
    """
    beliefs, entries = [start], list[tuple[int, int, int, float]]()
    state = 0
    while state < len(beliefs):
        for action in range(len(moves)):
            after = beliefs[state] @ moves[action]
            for sign in range(seen.shape[-1]):
                together = after * seen[action, :, sign]
                if (chance := together.sum()) < 1e-12:
                    continue
                distances = np.abs(np.array(beliefs) - together / chance).max(-1)
                number = int(np.argmin(distances))
                if distances[number] > 0.005 and len(beliefs) < _MANY:
                    number = len(beliefs)
                    beliefs.append(together / chance)
                entries.append((state, action, number, chance))
        state += 1
    table = np.zeros((len(beliefs), len(moves), len(beliefs)))
    for state, action, number, chance in entries:
        table[state, action, number] += chance * (1 - end)
    features = np.array(beliefs)
    return Table(table, features @ reward, np.eye(len(beliefs))[0], features.astype(np.float32))


def tiger(doors: int, right: float) -> Table:
    """Behind one of the doors is a tiger; listening (the first action) hears it there, more often than elsewhere.

    Kaelbling et al. 1998, https://doi.org/10.1016/S0004-3702(98)00023-X, section 5.1, with smaller rewards.
    """
    moves = np.concatenate([np.eye(doors)[None], np.full((doors, doors, doors), 1 / doors)])
    heard = np.full((doors, doors), (1 - right) / (doors - 1))
    np.fill_diagonal(heard, right)
    seen = np.concatenate([heard[None], np.full((doors, doors, doors), 1 / doors)])
    reward = np.full((doors, doors + 1), 0.5)
    reward[:, 0] = -0.05
    reward[range(doors), range(1, doors + 1)] = -2.0
    return hidden(moves, seen, reward, np.full(doors, 1 / doors))


def obscure(states: int, actions: int, signs: int, seed: int) -> Table:
    """Random transitions, signs and rewards, of which any state is seen through signs alone."""
    generator = np.random.default_rng(seed)
    moves = generator.dirichlet(np.full(states, 0.3), (actions, states))
    seen = generator.dirichlet(np.full(signs, 0.5), (actions, states))
    return hidden(moves, seen, generator.random((states, actions)) - 0.5, np.full(states, 1 / states), end=0.1)


_MAKERS: dict[str, Callable[[], Table]] = {
    **{f"chain-{length}": lambda length=length: chain(length) for length in (4, 6, 8, 10, 12)},
    **{f"maze-{n}-{seed}": lambda n=n, seed=seed: maze(n, seed) for n in (4, 5, 6) for seed in (1, 2)},
    **{f"bandit-{c}-{a}": lambda c=c, a=a: bandit(c, a, 10 * c + a) for c, a in ((2, 3), (3, 5), (5, 4), (8, 3))},
    "tiger-2": lambda: tiger(2, 0.85),
    "tiger-2-dim": lambda: tiger(2, 0.7),
    "tiger-3": lambda: tiger(3, 0.8),
    "obscure-1": lambda: obscure(3, 2, 2, 1),
    "obscure-2": lambda: obscure(4, 3, 3, 2),
}
WORLDS: dict[str, Table] = {name: make().scaled() for name, make in _MAKERS.items()}


@final
class World(TensorEnvironment):
    """One of `WORLDS`.

    Args:
        batch_size: B.
        name: which.
        options: of every environment of tensors.
    """

    num_random = 2

    def __init__(self, batch_size: int, *, name: str, **options: Any) -> None:
        self.table = WORLDS[name]
        moves = np.concatenate([self.table.next_probs, 1 - self.table.next_probs.sum(-1, keepdims=True)], -1)
        self._until = torch.from_numpy(moves.cumsum(-1))  # [S, A, S + 1]; the last is the end
        self._reward, self._start = torch.from_numpy(self.table.reward), torch.from_numpy(self.table.start.cumsum())
        self._features = torch.from_numpy(self.table.features)
        super().__init__(batch_size, **options)

    @property
    def observation_spec(self) -> TensorSpec:
        return TensorSpec(self.table.features.shape[1:])

    @property
    def action_spec(self) -> DiscreteSpec:
        return DiscreteSpec(num=self.table.reward.shape[1])

    @property
    def reward_spec(self) -> TensorSpec:
        return TensorSpec(())

    def fresh(self, uniform: torch.Tensor) -> dict[str, torch.Tensor]:
        place = torch.searchsorted(self._start, uniform[:, 0].double()).clamp(max=len(self._start) - 1)
        return {"place": place, "key": (uniform[:, 1].double() * 2**53).long()}

    def transition(
        self, state: dict[str, torch.Tensor], action: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        place, key = state["place"], state["key"]
        draws = list[torch.Tensor]()
        for _ in range(2):
            key = key * _MIXED[0] + _MIXED[1]
            draws.append(((key >> 33) & (2**31 - 1)).double() / 2**31)
        after = (self._until[place, action] <= draws[0][:, None]).sum(-1).clamp(max=self._until.shape[-1] - 1)
        over = after == self._until.shape[-1] - 1
        reward = self._reward[place, action] + self.table.reward_noise * (2 * draws[1] - 1)
        return {"place": torch.where(over, place, after), "key": key}, reward.float(), over

    def observe(self, state: dict[str, torch.Tensor]) -> torch.Tensor:
        return self._features[state["place"]]
