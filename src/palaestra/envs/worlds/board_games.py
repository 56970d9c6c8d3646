"""Games of two players on a board, thousands at a time: `TicTacToe` and `ConnectFour`."""

import functools
from abc import abstractmethod
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch

from palaestra.core import ACTION_MASK, Batch, BoundedSpec, ConfigError, DiscreteSpec, TensorSpec
from palaestra.envs.contract.tensor import State, TensorEnvironment, mixed

__all__ = ["ConnectFour", "TicTacToe"]

_STEPS = ((0, 1), (1, 0), (1, 1), (1, -1))


class _LineGame(TensorEnvironment):
    """Players take turns to place a stone; who first has a line of them wins.

    Every observation is that of the player who moves next: its own stones and the other's. A reward is that of the
    player who moved: 1 for a line, 0 else; -1 for a move that is not allowed, which loses the game. So what the next
    observation is worth counts negative: that is what `alternating` says to algorithms which plan.

    With an opponent, every observation and reward is that of the one player who is left; -1 is for the other's line.

    Args:
        batch_size: B.
        opponent: who makes every other move: `random`, which makes the first of every other game; by default nobody.
        random_moves: a game begins after 0 to so many random moves, each number as often, so that who plays against
            itself sees positions that it would not choose. Fewer where the game would be over.
        options: of `TensorEnvironment`.
    """

    num_random = 2
    rows: ClassVar[int]
    columns: ClassVar[int]
    length: ClassVar[int]
    """Stones of a line."""

    def __init__(
        self, batch_size: int, *, opponent: Literal["random"] | None = None, random_moves: int = 0, **options: Any
    ) -> None:
        if opponent not in (None, "random"):
            raise ConfigError(f"opponent is {opponent!r}; give random, or nothing to move for both players")
        if random_moves < 0 or (random_moves and opponent):
            raise ConfigError(
                f"random_moves is {random_moves} and opponent {opponent!r}; give 0 or more, without an opponent"
            )
        self._opponent, self._random_moves = opponent, random_moves
        super().__init__(batch_size, **options)

    @property
    def observation_spec(self) -> dict[str, TensorSpec]:
        """`observation` [2, rows, columns]: 1 at the stones of who moves next, and of the other; and `action_mask`."""
        board = (2, self.rows, self.columns)
        stones = BoundedSpec(board, minimum=np.zeros(board, np.float32), maximum=np.ones(board, np.float32))
        return {"observation": stones, ACTION_MASK: TensorSpec((self._num,), torch.bool)}

    @property
    def action_spec(self) -> DiscreteSpec:
        """Spec of the place for a stone."""
        return DiscreteSpec(num=self._num)

    @property
    @abstractmethod
    def _num(self) -> int:
        """Actions."""

    @abstractmethod
    def _place(self, taken: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The cell [B] where the stone comes to lie, and whether that is allowed [B], on a board [B, cells]."""

    @abstractmethod
    def _allowed(self, taken: torch.Tensor) -> torch.Tensor:
        """[B, A] on a board [B, cells]."""

    def fresh(self, uniform: torch.Tensor) -> State:
        """Empty boards; or with random moves made; or with the first stone of the opponent, where that begins.

        Args:
            uniform: [B, 2] in [0, 1): who begins, or how many moves are random; and what is drawn for them.
        """
        empty = uniform.new_zeros(len(uniform), self.rows * self.columns)
        state = {"own": empty, "other": empty.clone()}
        luck = (uniform[:, 1] * 2**24).to(torch.int32)
        if self._opponent is None:
            return self._opened(state, uniform[:, 0] * (self._random_moves + 1), luck)
        answered, _, _ = self._move(state, self._drawn(state, luck))
        begins = (uniform[:, :1] < 0.5).to(torch.float32)
        return {"own": empty, "other": answered["other"] * begins, "luck": mixed(luck)}

    def _opened(self, state: State, moves: torch.Tensor, luck: torch.Tensor) -> State:
        """After random moves, as many as fit below each number."""
        goes_on = torch.ones_like(moves, dtype=torch.bool)
        for number in range(1, self._random_moves + 1):
            moved, _, over = self._move(state, self._drawn(state, luck))
            goes_on = goes_on & (moves >= number) & ~over
            state = {name: torch.where(goes_on.unsqueeze(-1), moved[name], stones) for name, stones in state.items()}
            luck = mixed(luck)
        return state

    def transition(self, state: State, action: torch.Tensor) -> tuple[State, torch.Tensor, torch.Tensor]:
        """One stone, and the answer of the opponent, if there is one.

        Args:
            state: stones of who moves and of the other, each [B, cells].
            action: [B].
        """
        moved, reward, over = self._move(state, action)
        if self._opponent is None:
            return moved, reward, over
        answered, gain, ended = self._move(moved, self._drawn(moved, state["luck"]))
        stays = over.unsqueeze(-1)
        after = {
            "own": torch.where(stays, moved["other"], answered["own"]),
            "other": torch.where(stays, moved["own"], answered["other"]),
            "luck": mixed(state["luck"]),
        }
        return after, torch.where(over, reward, -gain), over | ended

    def _move(self, state: State, action: torch.Tensor) -> tuple[State, torch.Tensor, torch.Tensor]:
        """One stone; then the other player moves."""
        own, other = state["own"], state["other"]
        cell, legal = self._place(own + other, action)
        own = own.scatter(-1, cell.unsqueeze(-1), 1.0)
        lines = _lines(self.rows, self.columns, self.length).to(own.device)
        won = (own @ lines > self.length - 0.5).any(-1) & legal
        full = (own + other).sum(-1) > self.rows * self.columns - 0.5
        reward = won.to(torch.float32) - (~legal).to(torch.float32)
        return {"own": other, "other": own}, reward, won | full | ~legal

    def _drawn(self, state: State, luck: torch.Tensor) -> torch.Tensor:
        """One of the moves that are allowed, by a number."""
        allowed = self._allowed(state["own"] + state["other"]).long()
        place = (luck & 0xFFFFFF) % allowed.sum(-1).clamp(min=1)
        return ((allowed.cumsum(-1) == place.unsqueeze(-1) + 1) & (allowed > 0)).long().argmax(-1)

    def observe(self, state: State) -> Any:
        """Both players' stones, and where one can be placed.

        Args:
            state: stones, each [B, cells].
        """
        own, other = state["own"], state["other"]
        board = torch.stack([own, other], 1).unflatten(-1, (self.rows, self.columns))
        return Batch.of({"observation": board, ACTION_MASK: self._allowed(own + other)})

    def state_of(self, observation: Any) -> State:
        """The state that looks like this, which is all that a search needs.

        Args:
            observation: with `observation` [B, 2, rows, columns].
        """
        own, other = observation["observation"].flatten(2).unbind(1)
        return {"own": own, "other": other}

    @classmethod
    def mirror(cls, observation: Any, action: Any) -> tuple[Any, Any]:
        """Left for right, as `algorithm.symmetry` takes it.

        Args:
            observation: leaves [N, ...].
            action: choices [N], or the raw actions of a `SearchPolicy`.
        """
        seen = {"observation": observation["observation"].flip(-1), ACTION_MASK: cls._flipped(observation[ACTION_MASK])}
        if isinstance(action, torch.Tensor):
            return seen, cls._counterpart(action)
        plan = {"choice": cls._counterpart(action["choice"]), "policy": cls._flipped(action["policy"])}
        return seen, {**plan, "value": action["value"]}

    @classmethod
    def _flipped(cls, numbers: torch.Tensor) -> torch.Tensor:
        """[N, A] numbers of actions, which are rows of columns, or columns alone."""
        return numbers.unflatten(-1, (-1, cls.columns)).flip(-1).flatten(-2)

    @classmethod
    def _counterpart(cls, choice: torch.Tensor) -> torch.Tensor:
        column = choice % cls.columns
        return choice - column + (cls.columns - 1 - column)


@final
class TicTacToe(_LineGame):
    """Three stones in a line, on 3 x 3 cells; an action is a cell.

    Examples:
        >>> env = TicTacToe(2)
        >>> env.reset().observation["action_mask"].shape
        torch.Size([2, 9])
    """

    rows, columns, length = 3, 3, 3

    @property
    def _num(self) -> int:
        return self.rows * self.columns

    def _place(self, taken: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cell = action.long()
        return cell, taken.gather(-1, cell.unsqueeze(-1)).squeeze(-1) < 0.5

    def _allowed(self, taken: torch.Tensor) -> torch.Tensor:
        return taken < 0.5


@final
class ConnectFour(_LineGame):
    """Four stones in a line, on 6 x 7 cells; an action is a column, where the stone falls onto the others.

    Examples:
        >>> env = ConnectFour(2)
        >>> env.reset().observation["action_mask"].shape
        torch.Size([2, 7])
    """

    rows, columns, length = 6, 7, 4

    @property
    def _num(self) -> int:
        return self.columns

    def _place(self, taken: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        column = action.long()
        height = self._heights(taken).gather(-1, column.unsqueeze(-1)).squeeze(-1)
        return height.clamp(max=self.rows - 1) * self.columns + column, height < self.rows

    def _allowed(self, taken: torch.Tensor) -> torch.Tensor:
        return self._heights(taken) < self.rows

    def _heights(self, taken: torch.Tensor) -> torch.Tensor:
        return taken.unflatten(-1, (self.rows, self.columns)).sum(1).long()


@functools.cache
def _lines(rows: int, columns: int, length: int) -> torch.Tensor:
    """[cells, L] 1 where a cell belongs to a line."""
    found: list[torch.Tensor] = []
    for row in range(rows):
        for column in range(columns):
            for down, right in _STEPS:
                cells = [(row + down * i, column + right * i) for i in range(length)]
                if all(0 <= r < rows and 0 <= c < columns for r, c in cells):
                    line = torch.zeros(rows * columns)
                    line[[r * columns + c for r, c in cells]] = 1.0
                    found.append(line)
    return torch.stack(found, 1)
