"""Tests of `palaestra.core.ExperienceSet`."""

import numpy as np
import pytest
import torch

from palaestra.core import Batch, ExperienceSet, ShapeError
from tests.core.nests import assert_same


def experiences(count=30):
    states = np.arange(2.0 * count).reshape(count, 2)
    return ExperienceSet(states, np.arange(count), np.ones(count), states + 2, {"td_error": np.arange(count) / 10})


def test_the_snippet_of_maro():
    """MARO-40, MARO-41: length, size, index, slice, stride, extend; every result is a set again."""
    states, actions, rewards, next_states = np.zeros((25, 2)), np.arange(25), np.ones(25), np.ones((25, 2))
    info = {"loss": np.zeros(25)}
    experience_set = ExperienceSet(states, actions, rewards, next_states, info)
    assert len(experience_set) == 25
    assert experience_set.size == 25
    experience_batch = experience_set[0]
    assert (experience_batch.size, experience_batch.actions.tolist()) == (1, [0])
    experience_batch = experience_set[0:5]
    assert experience_batch.actions.tolist() == [0, 1, 2, 3, 4]
    experience_batch = experience_set[0:20:5]
    assert experience_batch.actions.tolist() == [0, 5, 10, 15]
    experience_set.extend(experience_batch)
    assert experience_set.size == 29
    assert experience_set.info.loss.shape == (29,)


def test_whatever_an_index_gives_can_be_learned_from_and_put_back():
    """MARO-41."""
    whole = experiences()
    for index in (whole.actions % 2 == 0, 3, -1, np.int64(2), slice(2, 4), [1, 5], torch.tensor([0, 3])):
        part = whole[index]
        assert type(part) is ExperienceSet
        assert part.states.ndim == 2
        whole.extend(part)
    assert whole["actions"][:30].tolist() == list(range(30))
    assert [int(part.actions[0]) for part in experiences(3)] == [0, 1, 2]
    with pytest.raises(IndexError, match="transition 3 was asked for, but the set has 3"):
        experiences(3)[3]


def test_unequal_lengths_are_refused():
    """MARO-40: the message says every length."""
    with pytest.raises(ShapeError, match=r"'actions': 2, .*'rewards': 3, 'states': 3"):
        ExperienceSet(np.zeros((3, 2)), [1, 2], [1.0, 1.0, 1.0], np.zeros((3, 2)))
    with pytest.raises(ShapeError, match=r"'info.loss': 2"):
        ExperienceSet(np.zeros((3, 2)), [1, 2, 3], [1.0, 1.0, 1.0], np.zeros((3, 2)), {"loss": [1, 2]})
    with pytest.raises(ShapeError, match=r"rewards is 1\.0; an ExperienceSet needs one per transition"):
        ExperienceSet(np.zeros(2), 1, 1.0, np.zeros(2))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'next_states'"):
        ExperienceSet(np.zeros((1, 2)), [1], [1.0])


def test_extend_wants_the_same_fields():
    """MARO-41."""
    with pytest.raises(ShapeError, match="different fields"):
        experiences().extend(ExperienceSet(np.zeros((1, 2)), [1], [1.0], np.zeros((1, 2))))


def test_states_may_be_nests_and_info_may_be_missing():
    """MARO-40."""
    states = {"camera": torch.zeros(4, 3), "speed": np.zeros(4)}
    data = ExperienceSet(states, torch.zeros(4), torch.ones(4), states)
    assert data.info.is_empty()
    assert data[1:3].states.camera.shape == (2, 3)
    assert_same(ExperienceSet.cat([data[:2], data[2:]]), data)
    assert isinstance(data.map(lambda leaf: leaf[:2]), ExperienceSet)
    assert isinstance(Batch(data).rewards, torch.Tensor)
