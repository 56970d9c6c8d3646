"""Comparisons of what a buffer hands out with the model in `tests.buffers.model`."""

import itertools
from collections.abc import Iterable

import pytest

from palaestra.buffers import ReplayBuffer, Unroll, Windows
from palaestra.ops import n_step_targets
from tests.buffers.model import FIRST, GAMMA, LAST, Lane, Row, World


def check_contents(buffer: ReplayBuffer, world: World) -> None:
    """Number of rows, and every row of every lane in time order."""
    assert len(buffer) == sum(len(lane.rows) for lane in world.lanes)
    rows = min(len(lane.rows) for lane in world.lanes)
    if rows:
        check_unroll(buffer.newest(rows), [(lane, len(lane.rows) - rows) for lane in world.lanes])


def check_unroll(unroll: Unroll, starts: Iterable[tuple[Lane, int]], *, one_episode: bool = False) -> None:
    """Columns of an unroll against the streams that begin at given positions."""
    for b, (lane, start) in enumerate(starts):
        steps = len(unroll.action)
        rows = lane.stream[start : start + steps + 1]
        held = len(rows)  # a sequence may begin near the newest row, and a lane may be shorter
        assert unroll.observation[:held, b].tolist() == [row.serial for row in rows]
        assert unroll.step_type[:held, b].tolist() == [row.kind for row in rows]
        assert unroll.reward[:held, b].tolist() == [row.reward for row in rows]
        assert unroll.discount[:held, b].tolist() == [row.discount for row in rows]
        assert unroll.action[: held - 1, b].tolist() == [row.action for row in rows[:-1]]
        assert unroll.policy_version[: held - 1, b].tolist() == [row.version for row in rows[:-1]]
        assert unroll.valid[: held - 1, b].tolist() == valid(rows, one_episode=one_episode)
        assert not unroll.valid[held - 1 :, b].any()


def valid(rows: list[Row], *, one_episode: bool) -> list[float]:
    """Which rows may be learned from; with `one_episode`, only those before the first end after row 0."""
    flags = [row.kind != LAST and following.kind != FIRST for row, following in itertools.pairwise(rows)]
    begin = int(rows[0].kind == LAST)
    return [float(flag and (all(flags[begin:i]) or not one_episode)) for i, flag in enumerate(flags)]


def check_windows(windows: Windows, world: World, n_step: int, *, fixed: bool = False) -> None:
    """Every window against a sum that walks along its lane."""
    targets = n_step_targets(windows.reward, windows.discount, windows.step_type, gamma=GAMMA)
    for i, serial in enumerate(windows.observation.tolist()):
        lane, start = world.find(serial)
        assert start in lane.starts(n_step, fixed=fixed)
        total, discount, last = lane.target(start, n_step)
        assert windows.action[i] == lane.stream[start].action
        assert windows.next_observation[i] == last.serial
        assert targets.reward[i].item() == pytest.approx(total, rel=1e-5)
        assert targets.bootstrap[i].item() == pytest.approx(discount, rel=1e-5)
