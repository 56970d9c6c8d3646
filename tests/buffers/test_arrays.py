"""Tests of `palaestra.buffers.from_arrays`: transitions in the field's usual layout."""

import gymnasium
import numpy as np
import pytest

from palaestra.buffers import from_arrays
from palaestra.core import DiscreteSpec, ShapeError, TensorSpec


def test_transitions_of_a_plain_loop_become_the_rows_that_they_were():
    """What gymnasium's step returned, in arrays; a transition is missing between the episodes 1 and 2."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=12)
    env.action_space.seed(1)
    columns = {name: [] for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated")}
    for episode in range(4):
        observation, _ = env.reset(seed=episode)
        over = False
        while not over:
            action = env.action_space.sample()
            after, reward, terminated, truncated, _ = env.step(action)
            for name, value in zip(columns, (observation, action, reward, after, terminated, truncated), strict=True):
                columns[name].append(value)
            observation, over = after, terminated or truncated
    del columns["truncated"][20], columns["terminated"][20]
    for name in ("obs", "action", "reward", "next_obs"):
        del columns[name][20]
    data = {name: np.array(values) for name, values in columns.items()}
    specs = {"observation_spec": TensorSpec((4,)), "action_spec": DiscreteSpec(num=2)}
    buffer = from_arrays(data, **specs)
    drawn = buffer.windows(np.asarray(buffer.starts(1)), 1)
    assert len(drawn.action) == len(data["obs"])  # every transition, each once
    assert np.array_equal(drawn.observation.numpy(), data["obs"])
    assert np.array_equal(drawn.next_observation.numpy(), data["next_obs"])
    assert np.array_equal(drawn.action.numpy(), data["action"])
    assert np.array_equal(drawn.discount[1].numpy() == 0, data["terminated"])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"reward": [1.0, 1.0]}, "2 rewards, 1 of terminated and 1 of truncated"),
        ({"next_obs": None}, "the data lack next_obs; needed are obs, action"),
        ({"obs": [[1.0]]}, "obs"),
    ],
)
def test_arrays_that_are_no_transitions_are_refused(changed, words):
    data = {"obs": np.zeros((1, 4)), "action": [0], "reward": [1.0], "next_obs": np.zeros((1, 4))}
    data |= {"terminated": [False], "truncated": [False], **changed}
    data = {name: value for name, value in data.items() if value is not None}
    with pytest.raises(ShapeError, match=words):
        from_arrays(data, observation_spec=TensorSpec((4,)), action_spec=DiscreteSpec(num=2))
