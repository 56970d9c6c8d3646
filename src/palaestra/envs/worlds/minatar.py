"""The games of MinAtar as tensors, thousands at a time: `MinAtarBreakout`, `MinAtarSpaceInvaders`, and what all share.

Young and Tian 2019, https://arxiv.org/abs/1903.03176: Atari games with rules of a few lines, on 10 x 10 cells, for
experiments that would take days with the originals. Written from the rules; a game of the package `MinAtar` 1.0.15 is
the same for the same actions.
"""

from abc import abstractmethod
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from palaestra.core import ConfigError, DiscreteSpec, TensorSpec
from palaestra.envs.contract.tensor import State, TensorEnvironment, mixed

__all__ = ["MinAtarBreakout", "MinAtarSpaceInvaders"]

SIZE = 10
BUTTONS = "nlurdf"
"""Nothing, left, up, right, down, fire: what all six actions are in their order."""
_LEFT, _RIGHT, _FIRE = (BUTTONS.index(name) for name in "lrf")


class MinAtarGame(TensorEnvironment):
    """A picture of 10 x 10 cells with a channel for each kind of thing; rewards are of the score.

    Args:
        batch_size: how many games, B.
        sticky_action_prob: with which chance the button that was pressed before is pressed again, whatever the action.
        difficulty_ramping: whether a game becomes harder the longer it lasts, where it has such a rule.
        minimal_action_set: whether actions are those alone that do something in this game, or all six buttons.
        options: of `TensorEnvironment`; there is no time limit unless `max_episode_steps` gives one.
    """

    num_random = 2
    channels: ClassVar[tuple[str, ...]]
    """Meaning of each channel."""
    buttons: ClassVar[str]
    """Those that do something."""

    def __init__(
        self,
        batch_size: int,
        *,
        sticky_action_prob: float = 0.1,
        difficulty_ramping: bool = True,
        minimal_action_set: bool = True,
        **options: Any,
    ) -> None:
        if not 0 <= sticky_action_prob <= 1:
            raise ConfigError(f"sticky_action_prob is {sticky_action_prob}; it is a probability, in [0, 1]")
        self._sticky, self._ramps = sticky_action_prob, difficulty_ramping
        self._actions = self.buttons if minimal_action_set else BUTTONS
        numbers = [BUTTONS.index(name) for name in self._actions]
        self._button_of = torch.tensor(numbers, dtype=torch.int32, device=options.get("device", "cpu"))
        super().__init__(batch_size, **options)

    @property
    def observation_spec(self) -> TensorSpec:
        """[10, 10, C]: rows from the top, columns from the left, and whether that kind of thing is there."""
        return TensorSpec((SIZE, SIZE, len(self.channels)), torch.bool)

    @property
    def action_spec(self) -> DiscreteSpec:
        """Which button to press: those of `buttons`, or all six."""
        return DiscreteSpec(num=len(self._actions))

    @abstractmethod
    def _begun(self, draw: Tensor) -> State:
        """The game at its start, by a number [B] in [0, 1)."""

    @abstractmethod
    def _played(self, state: State, button: Tensor) -> tuple[State, Tensor, Tensor]:
        """What changes when a button [B] is pressed, the reward (int [B]) and whether the game is over (bool [B])."""

    def fresh(self, uniform: Tensor) -> State:
        """The first pictures.

        Args:
            uniform: [B, 2] in [0, 1): where things begin, and what later luck is made of.
        """
        luck = (uniform[:, 1] * 2**24).to(torch.int32)
        return {"luck": luck, "pressed": torch.zeros_like(luck), **self._begun(uniform[:, 0])}

    def transition(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """One frame.

        Args:
            state: of the games.
            action: which button, [B].
        """
        luck = mixed(state["luck"] - 1640531527)
        sticks = ((luck >> 8) & 0xFFFFFF).to(torch.float32) * 2.0**-24 < self._sticky
        button = torch.where(sticks, state["pressed"], self._button_of[action.long()])
        after, reward, over = self._played(state, button)
        return {**state, "luck": luck, "pressed": button, **after}, reward.to(torch.float32), over


@final
class MinAtarBreakout(MinAtarGame):
    """A ball, a paddle below it, and three rows of bricks above, each of which pays 1.

    The ball moves along diagonals. The paddle sends it back, mirrored if it is hit in its middle, else to where it came
    from; a brick is gone with the first touch, and while the ball stays among bricks it breaks no second one. When the
    last brick is gone and the ball comes down, all are there again. A ball that is missed ends the game.

    Options are `sticky_action_prob`, `minimal_action_set` and those of `TensorEnvironment`.

    Examples:
        >>> env = MinAtarBreakout(2, lane_seeds=[1, 2])
        >>> env.reset().observation.shape, env.action_spec.num
        (torch.Size([2, 10, 10, 4]), 3)
    """

    channels = ("paddle", "ball", "trail", "brick")
    buttons = "nlr"

    def _begun(self, draw: Tensor) -> State:
        right = (draw >= 0.5).to(torch.int32)
        x, y = right * 9, torch.full_like(right, 3)
        rows = torch.arange(SIZE, device=draw.device)
        bricks = ((rows >= 1) & (rows <= 3)).view(1, SIZE, 1).expand(len(draw), SIZE, SIZE).clone()
        return {
            "paddle": torch.full_like(right, 4),
            "x": x,
            "y": y,
            "dx": 1 - 2 * right,
            "dy": torch.ones_like(right),
            "trail_x": x.clone(),
            "trail_y": y.clone(),
            "struck": torch.zeros_like(right, dtype=torch.bool),
            "bricks": bricks,
        }

    def _played(self, state: State, button: Tensor) -> tuple[State, Tensor, Tensor]:
        paddle = _moved(state["paddle"], button)
        x, y, dx, dy, bricks = state["x"], state["y"], state["dx"], state["dy"], state["bricks"]
        new_x, new_y = x + dx, y + dy
        wall = (new_x < 0) | (new_x > 9)
        new_x, dx = new_x.clamp(0, 9), torch.where(wall, -dx, dx)
        ceiling = new_y < 0
        new_y = new_y.clamp(min=0)
        cell = one(new_y).unsqueeze(2) & one(new_x).unsqueeze(1)  # [B, 10, 10]
        touches = (bricks & cell).flatten(1).any(1) & ~ceiling
        breaks = touches & ~state["struck"]
        bricks = bricks & ~(cell & breaks.view(-1, 1, 1))
        low = (new_y == 9) & ~ceiling & ~touches
        cleared = low & ~bricks.flatten(1).any(1)
        rows = torch.arange(SIZE, device=x.device).view(1, SIZE, 1)
        bricks = bricks | (cleared.view(-1, 1, 1) & (rows >= 1) & (rows <= 3))
        middle = low & (x == paddle)
        corner = low & ~middle & (new_x == paddle)
        after = {
            "paddle": paddle,
            "x": new_x,
            "y": torch.where(breaks | middle | corner, y, new_y),
            "dx": torch.where(corner, -dx, dx),
            "dy": torch.where(ceiling | breaks | middle | corner, -dy, dy),
            "trail_x": x,
            "trail_y": y,
            "struck": touches,
            "bricks": bricks,
        }
        return after, breaks, low & ~middle & ~corner

    def observe(self, state: State) -> Tensor:
        """The picture [B, 10, 10, 4].

        Args:
            state: of the games.
        """
        ball = one(state["y"]).unsqueeze(2) & one(state["x"]).unsqueeze(1)
        trail = one(state["trail_y"]).unsqueeze(2) & one(state["trail_x"]).unsqueeze(1)
        return torch.stack([_at_the_bottom(state["paddle"]), ball, trail, state["bricks"]], -1)


@final
class MinAtarSpaceInvaders(MinAtarGame):
    """A cannon below a block of aliens, each of which pays 1 when it is shot.

    The aliens move to a side until one of them reaches it, then down and to the other; the fewer they are, the more
    often. Every tenth frame the one nearest to the cannon shoots. The cannon shoots at most every fifth frame. A bullet
    or an alien that hits the cannon, or aliens that have come all the way down, end the game. When all are shot, the
    next ones come, and with ramping they move a bit more often, up to twice as often as the first.

    Options are `sticky_action_prob`, `difficulty_ramping`, `minimal_action_set` and those of `TensorEnvironment`.

    Examples:
        >>> env = MinAtarSpaceInvaders(2, lane_seeds=[1, 2])
        >>> env.reset().observation.shape, env.action_spec.num
        (torch.Size([2, 10, 10, 6]), 4)
    """

    channels = ("cannon", "alien", "alien_left", "alien_right", "friendly_bullet", "enemy_bullet")
    buttons = "nlrf"

    def _begun(self, draw: Tensor) -> State:
        zero = torch.zeros(len(draw), dtype=torch.int32, device=draw.device)
        nothing = torch.zeros(len(draw), SIZE, SIZE, dtype=torch.bool, device=draw.device)
        return {
            "cannon": zero + 5,
            "shots": nothing,
            "bullets": nothing.clone(),
            "aliens": nothing | _wave(nothing),
            "direction": zero - 1,
            "interval": zero + 12,
            "move_timer": zero + 12,
            "bullet_timer": zero + 10,
            "shot_timer": zero.clone(),
        }

    def _played(self, state: State, button: Tensor) -> tuple[State, Tensor, Tensor]:
        aliens, direction, interval = state["aliens"], state["direction"], state["interval"]
        cannon, bottom = _moved(state["cannon"], button), torch.zeros_like(aliens[:, :1])
        fires = (button == _FIRE) & (state["shot_timer"] == 0)
        shot = one(state["cannon"]) & fires.unsqueeze(1)
        shots = torch.cat([state["shots"][:, 1:9], shot.unsqueeze(1), bottom], 1)
        bullets = torch.cat([bottom, state["bullets"][:, :9]], 1)
        here = one(cannon)
        over = (here & (bullets[:, 9] | aliens[:, 9])).any(1)

        count = aliens.flatten(1).sum(1, dtype=torch.int32)
        moves = state["move_timer"] == 0
        left, right = aliens[:, :, 0].any(1), aliens[:, :, 9].any(1)
        turns = moves & torch.where(direction < 0, left, right)
        over = over | (turns & aliens[:, 9].any(1))
        sideways = torch.where(direction.view(-1, 1, 1) < 0, aliens.roll(-1, 2), aliens.roll(1, 2))
        aliens = torch.where(turns.view(-1, 1, 1), aliens.roll(1, 1), aliens)
        aliens = torch.where((moves & ~turns).view(-1, 1, 1), sideways, aliens)
        over = over | (moves & (here & aliens[:, 9]).any(1))

        shoots = state["bullet_timer"] == 0
        bullets = bullets | (_nearest(aliens, cannon) & shoots.view(-1, 1, 1))
        killed = aliens & shots
        aliens = aliens & ~killed
        cleared = ~aliens.flatten(1).any(1)
        harder = cleared & (interval > 6) if self._ramps else torch.zeros_like(cleared)
        after = {
            "cannon": cannon,
            "shots": shots & ~killed,
            "bullets": bullets,
            "aliens": aliens | (cleared.view(-1, 1, 1) & _wave(aliens)),
            "direction": torch.where(turns, -direction, direction),
            "interval": interval - harder.to(torch.int32),
            "move_timer": torch.where(moves, torch.minimum(count, interval), state["move_timer"]) - 1,
            "bullet_timer": torch.where(shoots, 10, state["bullet_timer"]) - 1,
            "shot_timer": (torch.where(fires, 5, state["shot_timer"]) - 1).clamp(min=0),
        }
        return after, killed.flatten(1).sum(1, dtype=torch.int32), over

    def observe(self, state: State) -> Tensor:
        """The picture [B, 10, 10, 6].

        Args:
            state: of the games.
        """
        aliens, to_the_left = state["aliens"], (state["direction"] < 0).view(-1, 1, 1)
        kinds = [aliens, aliens & to_the_left, aliens & ~to_the_left, state["shots"], state["bullets"]]
        return torch.stack([_at_the_bottom(state["cannon"]), *kinds], -1)


def _moved(position: Tensor, button: Tensor) -> Tensor:
    """A step to the left or to the right, as far as there is room."""
    return (position + (button == _RIGHT).to(torch.int32) - (button == _LEFT).to(torch.int32)).clamp(0, SIZE - 1)


def one(place: Tensor) -> Tensor:
    """[B, 10], true at the place."""
    return torch.arange(SIZE, dtype=torch.int32, device=place.device) == place.unsqueeze(1)


def _at_the_bottom(place: Tensor) -> Tensor:
    """[B, 10, 10], true at the place in the lowest row."""
    rows = torch.arange(SIZE, device=place.device) == SIZE - 1
    return rows.view(1, SIZE, 1) & one(place).unsqueeze(1)


def _wave(like: Tensor) -> Tensor:
    """[1, 10, 10], true where the aliens of a new wave are."""
    places = torch.arange(SIZE, device=like.device)
    return (places < 4).view(1, SIZE, 1) & ((places >= 2) & (places <= 7)).view(1, 1, SIZE)


def _nearest(aliens: Tensor, cannon: Tensor) -> Tensor:
    """[B, 10, 10], true at the lowest alien of the column that is nearest to the cannon; of two, of the left one."""
    columns = torch.arange(SIZE, dtype=torch.int32, device=aliens.device)
    away = columns - cannon.unsqueeze(1)
    distance = torch.where(aliens.any(1), 2 * away.abs() + (away > 0).to(torch.int32), 99)
    column = one(distance.argmin(1).to(torch.int32)).unsqueeze(1) & aliens
    lowest = torch.where(column, columns.view(1, SIZE, 1), -1).amax((1, 2))
    return column & one(lowest).unsqueeze(2)
