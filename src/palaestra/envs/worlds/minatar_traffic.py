"""The games of MinAtar whose things come in from the sides: `MinAtarAsterix`, `MinAtarFreeway` and `MinAtarSeaquest`.

Written from the rules, as those in `minatar`: a game of the package `MinAtar` 1.0.15 is the same for the same actions
and the same luck. Lists of the package are rows of numbers here, the newest first.
"""

from typing import Any, final

import torch
from torch import Tensor

from palaestra.envs.contract.tensor import State, mixed
from palaestra.envs.worlds.minatar import BUTTONS, SIZE, MinAtarGame, one

__all__ = ["MinAtarAsterix", "MinAtarFreeway", "MinAtarSeaquest"]

_LEFT, _UP, _RIGHT, _DOWN, _FIRE = (BUTTONS.index(name) for name in "lurdf")


@final
class MinAtarAsterix(MinAtarGame):
    """A player among eight rows, through which treasures and enemies come; a treasure pays 1, an enemy ends the game.

    A row holds one thing at a time. With ramping they come and move more often about every hundred frames, up to each
    frame.

    Options are `sticky_action_prob`, `difficulty_ramping`, `minimal_action_set` and those of `TensorEnvironment`.

    Examples:
        >>> env = MinAtarAsterix(2, lane_seeds=[1, 2])
        >>> env.reset().observation.shape, env.action_spec.num
        (torch.Size([2, 10, 10, 4]), 5)
    """

    channels = ("player", "enemy", "trail", "gold")
    buttons = "nlurd"

    def _begun(self, draw: Tensor) -> State:
        zero = torch.zeros(len(draw), dtype=torch.int32, device=draw.device)
        rows = torch.zeros(len(draw), 8, dtype=torch.int32, device=draw.device)
        return {
            "x": zero + 5,
            "y": zero + 5,
            "there": rows.bool(),
            "places": rows,
            "steps": rows + 1,
            "gold": rows.bool(),
            "spawn_speed": zero + 10,
            "spawn_timer": zero + 10,
            "move_speed": zero + 5,
            "move_timer": zero + 5,
            "ramp_timer": zero + 100,
            "ramp_index": zero.clone(),
        }

    def _played(self, state: State, button: Tensor) -> tuple[State, Tensor, Tensor]:
        x, y = _walked(state["x"], state["y"], button, top=1)
        there, places, steps, gold = state["there"], state["places"], state["steps"], state["gold"]
        side, is_gold, which = _lucky(state["luck"], 3).unbind(1)
        spawns, empty = state["spawn_timer"] == 0, ~there
        count = (which * empty.sum(1)).to(torch.int32) + 1
        new = empty & (empty.cumsum(1) == count.unsqueeze(1)) & spawns.unsqueeze(1)
        right = (side < 0.5).unsqueeze(1)
        there, places = there | new, torch.where(new, _either(right, 0, 9), places)
        steps = torch.where(new, _either(right, 1, -1), steps)
        gold = torch.where(new, (is_gold < 1 / 3).unsqueeze(1), gold)

        row = one(y - 1)[:, :8]
        meets = row & there & (places == x.unsqueeze(1))
        found, over = meets & gold, (meets & ~gold).any(1)
        there = there & ~found
        moves = (state["move_timer"] == 0).unsqueeze(1)
        places = torch.where(moves & there, places + steps, places)
        there = there & (places >= 0) & (places <= 9)
        meets = row & there & moves & (places == x.unsqueeze(1))
        over = over | (meets & ~gold).any(1)
        reward = (found | (meets & gold)).any(1).to(torch.int32)

        spawn_speed, move_speed, index = state["spawn_speed"], state["move_speed"], state["ramp_index"]
        ramps = (spawn_speed > 1) | (move_speed > 1) if self._ramps else torch.zeros_like(over)
        waits = state["ramp_timer"] >= 0
        harder = ramps & ~waits
        after = {
            "x": x,
            "y": y,
            "there": there & ~(meets & gold),
            "places": places,
            "steps": steps,
            "gold": gold,
            "spawn_speed": spawn_speed - (harder & (spawn_speed > 1)).to(torch.int32),
            "spawn_timer": torch.where(spawns, spawn_speed, state["spawn_timer"]) - 1,
            "move_speed": move_speed - (harder & (move_speed > 1) & (index % 2 == 1)).to(torch.int32),
            "move_timer": torch.where(moves[:, 0], move_speed, state["move_timer"]) - 1,
            "ramp_timer": torch.where(harder, 100, state["ramp_timer"] - (ramps & waits).to(torch.int32)),
            "ramp_index": index + harder.to(torch.int32),
        }
        return after, reward, over

    def observe(self, state: State) -> Tensor:
        """The picture [B, 10, 10, 4].

        Args:
            state: of the games.
        """
        there, places, gold = state["there"], state["places"], state["gold"]
        rows = torch.arange(1, 9, dtype=torch.int32, device=there.device).expand_as(places)
        trail = _cells(there, places - state["steps"], rows)
        player = one(state["y"]).unsqueeze(2) & one(state["x"]).unsqueeze(1)
        return torch.stack([player, _cells(there & ~gold, places, rows), trail, _cells(there & gold, places, rows)], -1)


@final
class MinAtarFreeway(MinAtarGame):
    """A chicken at the bottom, and eight lanes of cars between it and the top, which pays 1 and begins anew.

    It moves at most every third frame, and a car sends it back. A car moves once in one to five frames; all draw their
    speeds and directions again when the top is reached.

    Options are `sticky_action_prob`, `minimal_action_set` and those of `TensorEnvironment`. A game lasts 2,501 frames
    (`max_episode_steps`): the package calls that an end, here it is a time limit.

    Examples:
        >>> env = MinAtarFreeway(2, lane_seeds=[1, 2])
        >>> env.reset().observation.shape, env.action_spec.num, env.step_limit
        (torch.Size([2, 10, 10, 7]), 3, 2501)
    """

    channels = ("chicken", "car", "speed1", "speed2", "speed3", "speed4", "speed5")
    buttons = "nud"

    def __init__(self, batch_size: int, *, max_episode_steps: int = 2501, **options: Any) -> None:
        super().__init__(batch_size, max_episode_steps=max_episode_steps, **options)

    def _begun(self, draw: Tensor) -> State:
        speeds, steps = _cars((draw * 2**24).to(torch.int32))
        zero = torch.zeros(len(draw), dtype=torch.int32, device=draw.device)
        return {
            "y": zero + 9,
            "move_timer": zero + 3,
            "places": torch.zeros_like(speeds),
            "timers": speeds.clone(),
            "speeds": speeds,
            "steps": steps,
        }

    def _played(self, state: State, button: Tensor) -> tuple[State, Tensor, Tensor]:
        y, timer = state["y"], state["move_timer"]
        walks = ((button == _UP) | (button == _DOWN)) & (timer == 0)
        y = torch.where(walks, torch.where(button == _UP, y - 1, y + 1).clamp(0, 9), y)
        top = y == 0
        speeds, steps = _cars(state["luck"])
        anew = top.unsqueeze(1)
        speeds, steps = torch.where(anew, speeds, state["speeds"]), torch.where(anew, steps, state["steps"])
        timers = torch.where(anew, speeds, state["timers"])
        moves = timers == 0
        places = torch.where(moves, (state["places"] + steps) % SIZE, state["places"])
        y = torch.where(top, 9, y)
        hit = (one(y - 1)[:, :8] & ((state["places"] == 4) | (moves & (places == 4)))).any(1)
        after = {
            "y": torch.where(hit, 9, y),
            "move_timer": (torch.where(walks, 3, timer) - 1).clamp(min=0),
            "places": places,
            "timers": torch.where(moves, speeds, timers - 1),
            "speeds": speeds,
            "steps": steps,
        }
        return after, top.to(torch.int32), torch.zeros_like(top)

    def observe(self, state: State) -> Tensor:
        """The picture [B, 10, 10, 7].

        Args:
            state: of the games.
        """
        places, speeds = state["places"], state["speeds"]
        rows = torch.arange(1, 9, dtype=torch.int32, device=places.device).expand_as(places)
        behind = (places - state["steps"]) % SIZE
        chicken = one(state["y"]).unsqueeze(2) & one(torch.full_like(state["y"], 4)).unsqueeze(1)
        trails = [_cells(speeds == speed, behind, rows) for speed in range(1, 6)]
        return torch.stack([chicken, _cells(speeds > 0, places, rows), *trails], -1)


@final
class MinAtarSeaquest(MinAtarGame):
    """A submarine that shoots fish and submarines, which pay 1 each, and picks up divers.

    Its oxygen lasts for 200 frames. At the surface it is filled again, for one diver, or for all if there are six,
    which pay up to 10, the more oxygen is left. Without a diver the surface ends the game, as do having no oxygen and
    whatever hits it. With ramping there are more and faster enemies with each time at the surface.

    As in the package, six divers count as minus one when they have left, so that the surface is safe the next time.

    Options are `sticky_action_prob`, `difficulty_ramping`, `minimal_action_set` and those of `TensorEnvironment`.

    Examples:
        >>> env = MinAtarSeaquest(2, lane_seeds=[1, 2])
        >>> env.reset().observation.shape, env.action_spec.num
        (torch.Size([2, 10, 10, 10]), 6)
    """

    channels = (
        *("sub_front", "sub_back", "friendly_bullet", "trail", "enemy_bullet", "enemy_fish", "enemy_sub"),
        *("oxygen_gauge", "diver_gauge", "diver"),
    )
    buttons = BUTTONS

    def _begun(self, draw: Tensor) -> State:
        zero = torch.zeros(len(draw), dtype=torch.int32, device=draw.device)
        board = torch.zeros(len(draw), SIZE, SIZE, dtype=torch.bool, device=draw.device)
        return {
            "x": zero + 5,
            "y": zero.clone(),
            "facing": zero - 1,
            "oxygen": zero + 200,
            "divers_aboard": zero.clone(),
            "at_surface": zero == 0,
            "shots": zero.view(-1, 1, 1).repeat(1, 4, 3),  # there, x, y, step; no more than two can be under way
            "divers": zero.view(-1, 1, 1).repeat(1, 5, 3),  # ..., timer; one comes in thirty frames, and stays sixty
            "enemies": zero.view(-1, 1, 1).repeat(1, 7, 32),  # ..., shot timer, is a submarine; none stays for longer
            "torpedoes_left": board,
            "torpedoes_right": board.clone(),
            "enemy_speed": zero + 20,
            "enemy_timer": zero + 20,
            "diver_timer": zero + 30,
            "move_speed": zero + 5,
            "ramp_index": zero.clone(),
            "shot_timer": zero.clone(),
        }

    def _played(self, state: State, button: Tensor) -> tuple[State, Tensor, Tensor]:
        speed = state["move_speed"]
        luck = _lucky(state["luck"], 5)
        comes, diver_comes = state["enemy_timer"] == 0, state["diver_timer"] == 0
        enemies = _with_enemy(state["enemies"], luck[:, :3], comes, speed)
        step, height = _either(luck[:, 3] < 0.5, 1, -1), _row(luck[:, 4])
        divers = _begins(state["divers"], diver_comes, _either(step > 0, 0, 9), height, step, 5)

        fires = (button == _FIRE) & (state["shot_timer"] == 0)
        shots = _begins(state["shots"], fires, state["x"], state["y"], state["facing"])
        x, y = _walked(state["x"], state["y"], button, top=0)
        facing = torch.where(button == _LEFT, -1, torch.where(button == _RIGHT, 1, state["facing"]))

        shots, enemies, reward = _shot(shots, enemies)
        divers, aboard = _picked_up(divers, x, y, state["divers_aboard"])
        submarines = enemies[:, 6] == 1
        shots, enemies, torpedoes, sunk, over = _moved(shots, enemies, submarines, speed, x, y)
        left, right = state["torpedoes_left"] | torpedoes[0], state["torpedoes_right"] | torpedoes[1]
        here = one(y).unsqueeze(2) & one(x).unsqueeze(1)
        over = over | (here & (left | right)).flatten(1).any(1)
        edge = torch.zeros_like(left[:, :, :1])
        left, right = torch.cat([left[:, :, 1:], edge], 2), torch.cat([edge, right[:, :, :9]], 2)
        over = over | (here & (left | right)).flatten(1).any(1)
        shots, enemies, _, paid, hit = _moved(shots, enemies, ~submarines, speed, x, y)
        reward, over = reward + sunk + paid, over | hit

        oxygen, index, enemy_speed = state["oxygen"], state["ramp_index"], state["enemy_speed"]
        deep = y > 0
        arrives = ~deep & ~state["at_surface"]
        over = over | (oxygen <= 0) | (arrives & (aboard == 0))
        rises = arrives & (aboard != 0)
        reward = reward + torch.where(rises & (aboard == 6), oxygen * 10 // 200, 0)
        harder = rises & ((enemy_speed > 1) | (speed > 2)) if self._ramps else torch.zeros_like(rises)
        after = {
            "x": x,
            "y": y,
            "facing": facing,
            "oxygen": torch.where(rises, 200, oxygen - deep.to(torch.int32)),
            "divers_aboard": torch.where(rises, torch.where(aboard == 6, -1, aboard - 1), aboard),
            "at_surface": ~deep & (state["at_surface"] | rises),
            "shots": shots,
            "divers": divers,
            "enemies": enemies,
            "torpedoes_left": left,
            "torpedoes_right": right,
            "enemy_speed": enemy_speed - (harder & (enemy_speed > 1)).to(torch.int32),
            "enemy_timer": (torch.where(comes, enemy_speed, state["enemy_timer"]) - 1).clamp(min=0),
            "diver_timer": (torch.where(diver_comes, 30, state["diver_timer"]) - 1).clamp(min=0),
            "move_speed": speed - (harder & (speed > 2) & (index % 2 == 1)).to(torch.int32),
            "ramp_index": index + harder.to(torch.int32),
            "shot_timer": (torch.where(fires, 5, state["shot_timer"]) - 1).clamp(min=0),
        }
        return after, reward, over

    def observe(self, state: State) -> Tensor:
        """The picture [B, 10, 10, 10].

        Args:
            state: of the games.
        """
        there, x, y, steps, _, _, submarine = state["enemies"].unbind(1)
        diver, diver_x, diver_y, diver_steps, _ = state["divers"].unbind(1)
        shot, shot_x, shot_y, _ = state["shots"].unbind(1)
        trail = _cells(there == 1, x - steps, y) | _cells(diver == 1, diver_x - diver_steps, diver_y)
        columns = torch.arange(SIZE, dtype=torch.int32, device=x.device)
        oxygen = columns < (state["oxygen"].clamp(min=0) * 10 // 200).unsqueeze(1)
        aboard = (columns >= 9 - state["divers_aboard"].unsqueeze(1)) & (columns < 9)
        bottom = (columns == 9).view(1, SIZE, 1)
        row = one(state["y"]).unsqueeze(2)
        kinds = [
            row & one(state["x"]).unsqueeze(1),
            row & one(state["x"] - state["facing"]).unsqueeze(1),
            _cells(shot == 1, shot_x, shot_y),
            trail,
            state["torpedoes_left"] | state["torpedoes_right"],
            _cells((there == 1) & (submarine == 0), x, y),
            _cells((there == 1) & (submarine == 1), x, y),
            bottom & oxygen.unsqueeze(1),
            bottom & aboard.unsqueeze(1),
            _cells(diver == 1, diver_x, diver_y),
        ]
        return torch.stack(kinds, -1)


def _lucky(luck: Tensor, count: int) -> Tensor:
    """[B, count] in [0, 1), by a frame's random bits [B]."""
    numbers = torch.arange(1, count + 1, dtype=torch.int32, device=luck.device)
    return ((mixed(luck.unsqueeze(1) + numbers * 40503) >> 8) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def _either(condition: Tensor, yes: int, no: int) -> Tensor:
    """One of two numbers."""
    return condition.to(torch.int32) * (yes - no) + no


def _row(draw: Tensor) -> Tensor:
    """Which of the eight rows between the outer ones, by a number in [0, 1)."""
    return (draw * 8).to(torch.int32) + 1


def _cars(luck: Tensor) -> tuple[Tensor, Tensor]:
    """How many frames each car [B, 8] waits, 1 to 5, and whether it moves to the left (-1) or to the right."""
    drawn = (_lucky(luck, 8) * 10).to(torch.int32)
    return drawn % 5 + 1, _either(drawn < 5, -1, 1)


def _walked(x: Tensor, y: Tensor, button: Tensor, *, top: int) -> tuple[Tensor, Tensor]:
    """A step in one of four directions, as far as there is room between `top` and the last row but one."""
    right, left, down, up = ((button == which).to(torch.int32) for which in (_RIGHT, _LEFT, _DOWN, _UP))
    return (x + right - left).clamp(0, 9), (y + down - up).clamp(top, 8)


def _cells(there: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """[B, 10, 10], true where those things [B, K] are that are there; outside the board they are nowhere."""
    index = torch.where(there & (x >= 0) & (x <= 9), y * SIZE + x, SIZE * SIZE).long()
    board = torch.zeros(len(x), SIZE * SIZE + 1, dtype=torch.bool, device=x.device)
    return board.scatter(1, index, True)[:, :-1].view(-1, SIZE, SIZE)


def _begins(things: Tensor, begins: Tensor, *values: Tensor | int) -> Tensor:
    """A row of things [B, fields, K] with a new one in front, where one begins; the last place is free by then."""
    new = torch.stack([begins.to(torch.int32) * 0 + value for value in (1, *values)], 1).to(torch.int32)
    return torch.where(begins.view(-1, 1, 1), torch.cat([new.unsqueeze(2), things[:, :, :-1]], 2), things)


def _first(found: Tensor) -> Tensor:
    """Only the first that is true along the last axis."""
    return found & (found.cumsum(-1) == 1)


def _with_enemy(enemies: Tensor, luck: Tensor, comes: Tensor, speed: Tensor) -> Tensor:
    """With a fish or a submarine more, unless something comes towards it in its row."""
    step, submarine, row = _either(luck[:, 0] < 0.5, 1, -1), (luck[:, 1] < 1 / 3).to(torch.int32), _row(luck[:, 2])
    there, _, y, steps = enemies[:, :4].unbind(1)
    towards = (there == 1) & (y == row.unsqueeze(1)) & (steps != step.unsqueeze(1))
    return _begins(enemies, comes & ~towards.any(1), _either(step > 0, 0, 9), row, step, speed, 10, submarine)


def _shot(shots: Tensor, enemies: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shots move, and each takes the oldest fish in its new cell, or else the oldest submarine."""
    shot, x, y, step = shots.unbind(1)
    x = x + shot * step
    flies = (shot == 1) & (x >= 0) & (x <= 9)
    there, enemy_x, enemy_y = enemies[:, :3].unbind(1)
    at = (x.unsqueeze(2) == enemy_x.unsqueeze(1)) & (y.unsqueeze(2) == enemy_y.unsqueeze(1))  # [B, shots, enemies]
    at = at & flies.unsqueeze(2) & (there == 1).unsqueeze(1)
    fish = at & (enemies[:, 6] == 0).unsqueeze(1)
    target = _first(torch.where(fish.any(2, keepdim=True), fish, at).flip(2)).flip(2)
    hits = target.any(2)
    shots = torch.stack([(flies & ~hits).to(torch.int32), x, y, step], 1)
    return shots, _without(enemies, target.any(1)), hits.sum(1, dtype=torch.int32)


def _without(things: Tensor, gone: Tensor) -> Tensor:
    """A row of things [B, fields, K] but for those that are gone [B, K]."""
    return torch.cat([(things[:, :1].bool() & ~gone.unsqueeze(1)).to(torch.int32), things[:, 1:]], 1)


def _picked_up(divers: Tensor, x: Tensor, y: Tensor, aboard: Tensor) -> tuple[Tensor, Tensor]:
    """Divers who are where the submarine is are picked up, before and after they move, while there is room for six."""
    there, places, height, step, timer = (list(field.unbind(1)) for field in divers.unbind(1))
    for i in range(len(there)):  # the newest first
        here = (there[i] == 1) & (height[i] == y)
        before = here & (places[i] == x) & (aboard < 6)
        moves = (there[i] == 1) & ~before & (timer[i] == 0)
        places[i] = places[i] + moves.to(torch.int32) * step[i]
        after = here & moves & (places[i] == x) & (aboard < 6)
        aboard = aboard + (before | after).to(torch.int32)
        inside = (places[i] >= 0) & (places[i] <= 9)
        there[i] = ((there[i] == 1) & ~before & ~after & inside).to(torch.int32)
        timer[i] = torch.where(moves, 5, timer[i] - 1)
    return torch.stack([torch.stack(field, 1) for field in (there, places, height, step, timer)], 1), aboard


def _moved(
    shots: Tensor, enemies: Tensor, kind: Tensor, speed: Tensor, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], Tensor, Tensor]:
    """Enemies of a kind [B, 32] move, swim into shots, of several the newest, and shoot.

    Returns:
        Shots and enemies as they are then, new torpedoes to the left and to the right, the reward, and whether one of
        them has hit the submarine.
    """
    there, places, height, step, timer, shot_timer, submarine = enemies.unbind(1)
    moving = kind & (there == 1)
    level = height == y.unsqueeze(1)
    before = moving & level & (places == x.unsqueeze(1))
    moves = moving & (timer == 0)
    places = torch.where(moves, places + step, places)
    inside = (places >= 0) & (places <= 9)
    after = moves & inside & level & (places == x.unsqueeze(1))
    shot, shot_x, shot_y, _ = shots.unbind(1)
    at = (shot_x.unsqueeze(2) == places.unsqueeze(1)) & (shot_y.unsqueeze(2) == height.unsqueeze(1))
    target = _first(at & (shot == 1).unsqueeze(2) & (moves & inside & ~after).unsqueeze(1))  # [B, shots, enemies]
    timer = torch.where(moves, speed.unsqueeze(1), torch.where(moving, timer - 1, timer))
    fires = moving & (submarine == 1) & (shot_timer == 0)
    shot_timer = torch.where(fires, 10, torch.where(moving, shot_timer - 1, shot_timer))
    there = ((there == 1) & ~(moves & ~inside)).to(torch.int32)
    enemies = torch.stack([there, places, height, step, timer, shot_timer, submarine], 1)
    torpedoes = (_cells(fires & (step < 0), places, height), _cells(fires & (step > 0), places, height))
    hits = target.any(2)
    over = (before | after).any(1)
    return _without(shots, hits), _without(enemies, target.any(1)), torpedoes, hits.sum(1, dtype=torch.int32), over
