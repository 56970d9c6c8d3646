"""Tests of films: writing on pictures, and several of them as one."""

import numpy as np
import pytest

from palaestra.analysis.films import labelled, side_by_side

pytest.importorskip("PIL")


def test_text_stands_in_the_corner_and_leaves_the_rest_alone():
    frame = np.full((120, 200, 3), 200, np.uint8)
    written = labelled(frame, ["step 3", "reward 1"])
    assert (written.shape, written.dtype) == (frame.shape, frame.dtype)
    changed = (written != frame).any(-1)
    assert changed[:40, :60].any()
    assert not changed[60:].any()
    assert not changed[:, 120:].any()
    assert (frame == 200).all()


def test_episodes_lie_side_by_side_and_wait_for_the_longest():
    films = [[np.full((2, 4, 3), color, np.uint8) for color in colors] for colors in ([10], [20, 21, 22])]
    frames = side_by_side([*films, films[0]])
    assert [frame.shape for frame in frames] == [(4, 8, 3)] * 3
    assert frames[2][:2, :4].max() == frames[2][:2, :4].min() == 10  # the first ended at once
    assert (frames[2][:2, 4:] == 22).all()
    assert (frames[2][2:, :4] == 10).all()
    assert (frames[2][2:, 4:] == 0).all()  # nobody plays there


def test_one_episode_fills_the_picture():
    frame = np.ones((2, 4, 3), np.uint8)
    assert [picture.tolist() for picture in side_by_side([[frame]])] == [frame.tolist()]
