"""Tests of transitions in the field's usual layout: `palaestra.buffers.from_arrays`, and `ReplayBuffer.add`."""

import contextlib
import math

import gymnasium
import numpy as np
import pytest
import torch

from palaestra import EnvConfig, NetworkConfig, create_environment
from palaestra.algorithms import SAC, SACConfig
from palaestra.buffers import ReplayBuffer, from_arrays
from palaestra.core import DiscreteSpec, Offline, ShapeError, TensorSpec, TimeStep
from palaestra.testing.buffers import FIRST, LAST, MID
from tests.devices import pretend_device

SPECS = {"observation_spec": TensorSpec((1,)), "action_spec": DiscreteSpec(num=9)}


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
        ({"reward": [1.0, 1.0]}, "obs have the shape"),
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


@pytest.mark.parametrize("near", [True, False])
def test_tensors_are_taken_as_arrays_are(near):
    """Those that carry gradients, and those of other devices, too: they were refused, or failed inside numpy."""
    data = {name: torch.tensor(values) for name, values in gapped().items()}
    with contextlib.nullcontext("cpu") if near else pretend_device() as device:
        given = {name: one.to(device) for name, one in data.items()}
        given |= {name: given[name].float().requires_grad_() for name in ("obs", "reward", "next_obs")}
        buffer, added = from_arrays(given, **SPECS), ReplayBuffer(40, 1, **SPECS)
        for row in zip(*given.values(), strict=True):
            added.add(*row)
    assert drawn_from(buffer) == drawn_from(added) == drawn_from(from_arrays(gapped(), **SPECS))


def drawn_from(buffer):
    """All transitions that can be drawn, as (obs, action, reward, next_obs, continues)."""
    rows = buffer.windows(np.asarray(buffer.starts(1)), 1)
    fields = (rows.observation, rows.action, rows.reward[1], rows.next_observation, rows.discount[1])
    return list(zip(*(field.flatten().tolist() for field in fields), strict=True))


def test_a_buffer_takes_transitions_of_plain_loops_one_at_a_time_in_any_lane():
    """An episode that ends, one that is cut off, a gap where a transition is missing, and another loop in between."""
    given = [
        (0, 1, 5.0, 1, 0, 0),
        (1, 2, 6.0, 2, 1, 0),
        (3, 3, 7.0, 4, 0, 1),
        (5, 4, 8.0, 6, 0, 0),
        (8, 5, 9.0, 9, 0, 0),
    ]
    buffer = ReplayBuffer(40, 2, **SPECS)
    for obs, action, reward, next_obs, terminated, truncated in given:
        buffer.add([obs], action, reward, np.array([next_obs]), bool(terminated), bool(truncated))
        buffer.add([obs + 100.0], action, reward, [next_obs + 100.0], terminated, truncated, lane=1)
    expected = [(o, a, r, n, 1.0 - t) for o, a, r, n, t, _ in given]
    assert drawn_from(buffer) == expected + [(o + 100, a, r, n + 100, c) for o, a, r, n, c in expected]


def gapped():
    """Episodes of 3, 5 and 2 transitions that end by flags, of which the second lacks its third transition."""
    numbers = [0, 1, 2, 10, 11, 13, 14, 20, 21]
    ends = [number in (2, 14, 21) for number in numbers]
    columns = [
        [[n] for n in numbers],
        [n % 9 for n in numbers],
        [1.0] * 9,
        [[n + 1] for n in numbers],
        ends,
        [False] * 9,
    ]
    return dict(zip(("obs", "action", "reward", "next_obs", "terminated", "truncated"), columns, strict=True))


def test_parts_beside_a_gap_are_no_episodes_and_their_transitions_stay(caplog):
    """They had returns of 2 and 2, as if the episode of 5 had been two that began and ended there."""
    buffer = from_arrays(gapped(), **SPECS)
    assert caplog.text.count("1 times transitions are missing") == 1
    added = ReplayBuffer(40, 1, **SPECS)
    for row in zip(*gapped().values(), strict=True):
        added.add(*row)
    for one in (buffer, added):
        assert [len(rows) - 1 for rows in one.episodes()] == [3, 2]
        kinds = one.take("step_type", one.in_time_order(0)).tolist()
        assert kinds == [FIRST, MID, MID, LAST, MID, MID, LAST, MID, MID, LAST, FIRST, MID, LAST]
        assert [row[0] for row in drawn_from(one)] == [row[0] for row in gapped()["obs"]]
        assert [row[3] for row in drawn_from(one)] == [row[0] for row in gapped()["next_obs"]]
        drawn = one.draw(Offline(mini_batch_size=64, mini_batch_length=2, returns=True), torch.Generator())
        inside = (drawn.observation[0, :, 0] >= 10) & (drawn.observation[0, :, 0] < 20)
        assert torch.equal(drawn.return_to_go.isnan(), inside) and inside.any()
        assert drawn.episode_stats[:3, 0].tolist() == [2.0, 2.0, 3.0]
    whole = from_arrays(gapped(), **SPECS, gaps_end=True)
    assert [len(rows) - 1 for rows in whole.episodes()] == [3, 2, 2, 2]


def reset_by_itself(ends):
    """What a vector environment of Gymnasium gives by default: after each end a row from it to the next beginning."""
    obs = np.arange(12.0)[:, None]
    flags = np.isin(np.arange(12), ends)
    columns = [obs, np.zeros(12, int), np.ones(12), obs + 1, flags, np.zeros(12, bool)]
    return dict(zip(("obs", "action", "reward", "next_obs", "terminated", "truncated"), columns, strict=True))


def test_rows_of_environments_that_reset_themselves_are_warned_of(caplog):
    """One false row per episode, from its end into the next episode, was learned from without a word."""
    given = reset_by_itself([2, 6, 9])
    from_arrays(given, **SPECS)
    assert caplog.text.count("after 3 ends of episodes the next row begins with") == 1
    caplog.clear()
    buffer = ReplayBuffer(40, 2, **SPECS)
    for row in zip(*given.values(), strict=True):
        buffer.add(*row)
        buffer.add(*row, lane=1)
    assert caplog.text.count("after 1 ends of episodes the next row begins with") == 1
    caplog.clear()
    right = {name: np.delete(values, [3, 7, 10], 0) for name, values in given.items()}
    added = ReplayBuffer(40, 1, **SPECS)
    for row in zip(*right.values(), strict=True):
        added.add(*row)
    assert len(from_arrays(right, **SPECS).episodes()) == len(added.episodes()) == 3
    still = {**given, "obs": given["obs"] * 0, "next_obs": given["obs"] * 0}  # a task of one state
    from_arrays(still, **SPECS)
    assert not caplog.records


def test_observations_that_are_dicts_may_be_given_row_by_row():
    """As a loop has them: the error said that parts were missing."""
    specs = {"observation_spec": {"x": TensorSpec((1,)), "more": {"y": TensorSpec(())}}}
    seen = [{"x": [float(n)], "more": {"y": float(-n)}} for n in range(4)]
    data = {"obs": seen[:3], "action": [0, 1, 2], "reward": [1.0] * 3, "next_obs": seen[1:]}
    data |= {"terminated": [0, 0, 1], "truncated": [0, 0, 0]}
    buffer = from_arrays(data, **specs, action_spec=DiscreteSpec(num=3))
    assert buffer.observation.more.y[:].tolist() == [0, -1, -2]
    with pytest.raises(ShapeError, match="obs do not have the parts of"):
        from_arrays({**data, "obs": [{"x": [0.0]}] * 3}, **specs, action_spec=DiscreteSpec(num=3))


def test_a_gap_at_the_end_leaves_what_has_no_end_open():
    data = {name: values[:6] for name, values in gapped().items()}
    buffer = from_arrays(data, **SPECS)
    assert [len(rows) - 1 for rows in buffer.episodes()] == [3]
    assert buffer.take("step_type", buffer.in_time_order(0)).tolist()[-2:] == [MID, MID]
    assert len(drawn_from(buffer)) == 6


def test_a_gap_joins_no_streams():
    """Where a stream broke off before the episode of the gap began, its FIRST row has to stay."""
    buffer = ReplayBuffer(40, 1, **SPECS)

    def seen(kind, value):
        return TimeStep(torch.tensor([kind], dtype=torch.int32), torch.ones(1), torch.ones(1), torch.tensor([[value]]))

    buffer.open(seen(FIRST, 0.0))
    buffer.append(torch.tensor([1]), seen(MID, 1.0))
    buffer.append(torch.tensor([0]), seen(FIRST, 5.0))
    buffer.add([5.0], 2, 1.0, [6.0], False)
    buffer.add([9.0], 3, 1.0, [10.0], False)
    assert [(row[0], row[3]) for row in drawn_from(buffer)] == [(0.0, 1.0), (5.0, 6.0), (9.0, 10.0)]


def test_a_transition_replaces_the_oldest_one_in_a_full_buffer():
    buffer = ReplayBuffer(3, 1, **SPECS)
    for number in range(8):
        buffer.add([number], number, 0.0, [number + 1], False)
    assert [row[1] for row in drawn_from(buffer)] == [5, 6, 7]


@pytest.mark.parametrize(
    ("changed", "options", "words"),
    [
        ({"obs": [0.0, 1.0]}, {}, r"obs have the shape \(2,\), but \(1,\)"),
        ({"action": 0.5}, {}, "action are float64, but int64"),
        ({"lane": 2}, {}, "2"),
        ({}, {"info_spec": {"log_prob": TensorSpec(())}}, "rows keep log_prob besides"),
    ],
)
def test_what_is_no_transition_is_refused_and_changes_nothing(changed, options, words):
    buffer = ReplayBuffer(9, 1, **SPECS, **options)
    given = {"obs": [0.0], "action": 1, "reward": 1.0, "next_obs": [1.0], "terminated": False, **changed}
    with pytest.raises(ShapeError, match=words):
        buffer.add(**given)
    assert len(buffer) == 0


def test_sac_learns_from_the_transitions_of_a_plain_loop():
    """One step from a target: the reward is how near the action is to what is seen, and the best return is 0."""
    space = create_environment(EnvConfig(name="Pendulum-v1"))
    action_spec = space.action_spec
    space.close()
    config = SACConfig(
        network=NetworkConfig(hidden_sizes=(32, 32), activation="relu"), mini_batch_size=64, learning_rate=3e-3
    )
    algorithm = SAC(TensorSpec((1,)), action_spec, config)
    policy = algorithm.policy
    buffer = ReplayBuffer(5_000, 1, observation_spec=policy.observation_spec, action_spec=policy.raw_action_spec)
    generator = np.random.default_rng(0)

    def played(learning, deterministic):
        obs = generator.uniform(-1, 1, 1).astype(np.float32)
        step = policy.act(TimeStep(observation=torch.from_numpy(obs)[None]), deterministic=deterministic)
        distance = float(abs(policy.env_action(step.action)[0, 0] - 1.5 * obs[0]))
        if learning:
            buffer.add(obs, step.action[0], -distance, obs, True)
        return -distance

    before = np.mean([played(False, True) for _ in range(50)])
    for number in range(500):
        played(True, False)
        if number >= 64:
            algorithm.update(buffer)
    after = np.mean([played(False, True) for _ in range(50)])
    assert after > before / 2 and after > -0.35


PLAIN = {"observation_spec": TensorSpec((2,)), "action_spec": DiscreteSpec(num=3)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"terminated": "False"}, "terminated are <U5, but bool is needed"),
        ({"terminated": math.nan}, "terminated are float64, but bool is needed"),
        ({"truncated": 0.99}, "truncated are float64, but bool is needed"),
        ({"truncated": {}}, "truncated are object, but bool is needed"),
        ({"action": 5}, "action have the value 5, which is none of DiscreteSpec"),
        ({"action": -1}, "action have the value -1"),
        ({"action": None}, "action are object, but int64 is needed"),
        ({"reward": "1"}, "reward are <U1, but float32 is needed"),
        ({"reward": math.nan}, "reward have the value nan"),
        ({"reward": 1e300}, r"reward have the value 1e\+300.*; give numbers that float32 holds, or none"),
        ({"next_obs": [math.inf, 0.0]}, "next_obs have the value inf"),
    ],
)
def test_values_that_no_transition_has_are_refused(wrong, message):
    """They were taken without a word: a text counted as an end, and an action of its own made learning fail later."""
    right = {"obs": [0.0, 0.0], "action": 1, "reward": 1.0, "next_obs": [0.0, 1.0], "terminated": 0, "truncated": False}
    ReplayBuffer(10, 1, **PLAIN).add(**right)
    with pytest.raises(ShapeError, match=message):
        ReplayBuffer(10, 1, **PLAIN).add(**{**right, **wrong})
    with pytest.raises(ShapeError, match=message):
        from_arrays({name: [value] for name, value in {**right, **wrong}.items()}, **PLAIN)


def test_sums_of_sums_of_row_numbers_are_not_taken_modulo():
    """TS-21: of one lane it would be right, and of two another row."""
    buffer = ReplayBuffer(20, 1, **PLAIN)
    for number in range(10):
        buffer.add([number, 0.0], 0, 0.0, [number + 1, 0.0], False)
    _, index = buffer.sample(4, generator=torch.Generator())
    for rows in (index, np.asarray(index).view(type(index)) if isinstance(index, np.ndarray) else index):
        with pytest.raises(TypeError, match="following"):
            (rows + 1 + 1) % len(buffer)
