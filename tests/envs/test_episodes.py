"""Tests of `palaestra.envs.contract.episodes`."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from palaestra.core import DiscreteSpec, TensorSpec, episode_seed
from palaestra.envs.contract.episodes import EpisodeLog, digest


@given(st.lists(st.lists(st.booleans(), min_size=2, max_size=2), max_size=300))
def test_the_log_holds_the_actions_of_the_running_episode_whatever_ended_before(ends):
    """Against a list for every lane: through growth and the dropping of old rows."""
    log = EpisodeLog([5, 6], DiscreteSpec(num=1000))
    log.send([np.zeros(2, np.int64)])
    lists: list[list[int]] = [[], []]
    numbers = [0, 0]
    for clock, over in enumerate(ends):
        log.due = [lane for lane in range(2) if over[lane]]
        seeds = log.send([np.array([2 * clock, 2 * clock + 1])])
        for lane in range(2):
            if over[lane]:
                numbers[lane] += 1
                lists[lane] = []
            else:
                lists[lane].append(2 * clock + lane)
        assert seeds == {lane: episode_seed(5 + lane, numbers[lane]) for lane in range(2) if over[lane]}
        assert [log.steps(lane) for lane in range(2)] == [len(actions) for actions in lists]
    state = log.state_dict(["a", "b"])
    assert state["action"].tolist() == [*lists[0], *lists[1]]
    assert state["episode"].tolist() == numbers
    again = EpisodeLog([0, 0], DiscreteSpec(num=1000))
    episodes = again.episodes_of(state)
    assert [list(episode.actions) for episode in episodes] == lists
    again.restore(episodes, [])
    restored = again.state_dict(["a", "b"])
    assert all(np.array_equal(restored[key], state[key]) for key in state)


def test_memory_is_bounded_by_the_longest_running_episode():
    log = EpisodeLog([1], TensorSpec((3,)))
    for clock in range(10_000):
        log.due = [0] if clock % 50 == 0 else []
        log.send([np.zeros((1, 3), np.float32)])
    assert len(log._rows[0]) <= 256


def test_the_digest_is_of_what_a_batch_would_store():
    spec = {"a": TensorSpec((2,)), "b": TensorSpec(())}
    observation = {"a": np.array([1.0, 2.0]), "b": 3}
    found = digest(observation, spec, 0.1)
    assert found == digest({"a": np.array([1, 2], np.float32), "b": np.float32(3)}, spec, np.float32(0.1))
    assert found != digest({"a": np.array([1.0, 2.5]), "b": 3}, spec, 0.1)
    assert found != digest(observation, spec, 0.2)
    assert digest(observation, spec, 0.0) == digest(observation, spec, -0.0)
    assert digest(observation, spec, 0.0, 2) == digest(observation, spec, np.zeros(2), 2)
