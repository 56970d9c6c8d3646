"""End-to-end acceptance scenarios 1, 3 (in part), 4 and 10 of the requirements."""

import itertools

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from palaestra.buffers import ReplayBuffer
from palaestra.compat import create_algorithm_func
from palaestra.core import (
    Batch,
    ConfigError,
    DiscreteSpec,
    ExperienceSet,
    OnPolicy,
    Replay,
    StepType,
    TensorSpec,
    TimeStep,
    Transitions,
    check_time_step,
    done_of,
    experiences_from_rows,
    game_over_of,
    restart,
    rows_from_experiences,
    rows_from_transitions,
    termination,
    transition,
    transitions_from_rows,
    truncation,
)
from palaestra.ops import gae, masked_mean, n_step_targets, td_target, valid_starts
from tests.acceptance.parts import ClonedAlgorithm, CountingAlgorithm, CountingSource, counting_model
from tests.buffers.model import filled
from tests.core.nests import assert_same

FIRST, MID, LAST = (int(kind) for kind in StepType)
GAMMA, LAMBDA = 0.9, 0.8


# -- scenario 1


def trajectory():
    """Two episodes and the beginning of a third: one terminated after 3 actions, one truncated after 2."""
    steps = [
        restart(np.float32([0.1, np.nan])),
        transition(np.float32([1.1, -0.0]), 1.0, prev_action=3),
        transition(np.float32([2.1, 1e-40]), 2.0, prev_action=1),
        termination(np.float32([3.1, 5.0]), 4.0, prev_action=2),
        restart(np.float32([4.1, 0.0])),
        transition(np.float32([5.1, 0.5]), 8.0, prev_action=4),
        truncation(np.float32([6.1, 0.6]), 16.0, prev_action=1),
        restart(np.float32([7.1, 0.7])),
        transition(np.float32([8.1, 0.8]), 32.0, prev_action=2),
    ]
    return TimeStep(
        step_type=np.array([step.step_type for step in steps], np.int32),
        reward=np.array([step.reward for step in steps], np.float32),
        discount=np.array([step.discount for step in steps], np.float32),
        observation=np.stack([step.observation for step in steps]),
        prev_action=np.array([step.prev_action or 0 for step in steps]),
    )


def as_batch(rows):
    fields = ("step_type", "reward", "discount", "observation", "prev_action")
    return Batch({name: getattr(rows, name) for name in fields})


def test_s1_one_trajectory_goes_through_all_four_views_and_back():
    """Scenario 1: ALF-13..18, ALF-23..28, PARL-05, PARL-06: transition, TimeStep, done and game_over, bit-equal."""
    rows = trajectory()
    check_time_step(rows)
    # from TimeStep rows to transitions, with `done`, and back
    transitions = transitions_from_rows(rows)
    done = done_of(rows.step_type)
    acted = np.flatnonzero(rows.step_type[:-1] != LAST)
    assert (transitions.terminated | transitions.truncated).tolist() == done[acted].tolist()
    gym = [
        (observation, action, reward, bool(end), next_observation, {"TimeLimit.truncated": bool(cut)})
        for observation, action, reward, end, next_observation, cut in zip(
            transitions.observation,
            transitions.action,
            transitions.reward,
            done[acted],
            transitions.next_observation,
            transitions.truncated,
            strict=True,
        )
    ]
    observation, action, reward, ended, next_observation, info = map(list, zip(*gym, strict=True))
    cut = np.array([entry["TimeLimit.truncated"] for entry in info])
    again = Transitions(observation, action, reward, np.array(ended) & ~cut, cut, next_observation)
    assert_same(as_batch(rows_from_transitions(again)), as_batch(rows))
    # from TimeStep rows to experiences with `game_over`, and back
    experiences = experiences_from_rows(rows)
    game_over = experiences.game_over.tolist()
    assert game_over == game_over_of(rows.step_type).tolist() == [0, 0, 0, 1, 0, 0, 1, 0, 0]
    assert game_over[1:] == [int(flag) for flag in done]
    assert all(game_over[t] == 0 for t in np.flatnonzero(rows.step_type == FIRST))
    assert_same(as_batch(rows_from_experiences(experiences)), as_batch(rows))
    # all the way round
    assert_same(transitions_from_rows(rows_from_experiences(experiences)), transitions)


def test_s1_targets_follow_the_table_of_episode_ends():
    """Scenario 1: ALF-22..26, TS-22: TD, GAE and n-step targets of the rows are those of the transitions."""
    rows = trajectory()
    value = torch.arange(10.0, 19.0)  # V of each row
    reward, step_type = torch.from_numpy(rows.reward), torch.from_numpy(rows.step_type)
    discount = torch.from_numpy(rows.discount)
    valid = valid_starts(step_type)
    assert valid.tolist() == [True, True, True, False, True, True, False, True]  # LAST rows are not learned
    # TD(0), from the transitions' own flags: bootstrap unless the episode terminated, also where it was truncated
    transitions = transitions_from_rows(rows).to_torch()
    index = valid.nonzero().squeeze(-1)
    expected = transitions.reward + GAMMA * ~transitions.terminated * value[index + 1]
    assert_close(td_target(value[1:], reward[1:], GAMMA * discount[1:])[index], expected)
    assert expected[2] == 4.0  # terminated: the value of the final observation is not used
    assert expected[4] == pytest.approx(16.0 + GAMMA * 16.0)  # truncated: it is
    # GAE with λ = 0 is the same target; with λ it stops at every end
    delta = torch.zeros(8).index_put((index,), expected - value[index])
    columns = [x[:, None] for x in (value, reward, discount, step_type)]
    assert_close(gae(*columns, gamma=GAMMA, lambda_=0.0)[:, 0], delta)
    advantage, carried = torch.zeros(8), 0.0
    for t in reversed(range(8)):
        carried = float(delta[t]) + GAMMA * LAMBDA * carried * float(rows.discount[t + 1]) * bool(valid[t])
        advantage[t] = carried = carried * bool(valid[t])
    assert_close(gae(*columns, gamma=GAMMA, lambda_=LAMBDA)[:, 0], advantage)
    # three steps from row 0 end at row 3, three from row 1 end there too, with nothing of the next episode
    for start, total, factor, steps in [
        (0, 1 + 0.9 * 2 + 0.81 * 4, 0.0, 3),
        (1, 2 + 0.9 * 4, 0.0, 2),
        (4, 8 + 0.9 * 16, 0.81, 2),
    ]:
        window = [x[start : start + 4] for x in columns[1:]]
        result = n_step_targets(*window, gamma=GAMMA)
        assert (result.reward.item(), result.bootstrap.item(), result.steps.item()) == (
            pytest.approx(total),
            pytest.approx(factor),
            steps,
        )
    # the loss mask is 0 on LAST rows: what stands there does not matter
    error = torch.where(valid, delta, torch.full((8,), 1e6))
    assert_close(masked_mean(error, valid.float()), delta[valid].mean())


def test_s1_a_buffer_hands_out_the_transitions_of_the_rows_it_was_given():
    """Scenario 1: TS-07, TS-22: storage of rows and reading of transitions agree with the converters, bit by bit."""
    rows = as_batch(trajectory()).to_torch()
    buffer = ReplayBuffer(8, 1, observation_spec=TensorSpec((2,)), action_spec=DiscreteSpec(num=5))
    steps = [TimeStep(**{k: v for k, v in rows[t : t + 1].items()}) for t in range(9)]  # noqa: C416
    buffer.open(steps[0])
    for step in steps[1:]:
        buffer.append(step.prev_action, step)
    index = np.flatnonzero(valid_starts(rows.step_type).numpy())
    windows = buffer.windows(index, 1)
    transitions = transitions_from_rows(trajectory()).to_torch()
    handed_out = Batch(
        observation=windows.observation,
        action=windows.action,
        reward=windows.reward[1],
        terminated=windows.discount[1] == 0,
        truncated=(windows.step_type[1] == LAST) & (windows.discount[1] != 0),
        next_observation=windows.next_observation,
    )
    assert_same(handed_out, Batch(transitions))


# -- scenario 3


def on_policy(**named):
    return OnPolicy(**{"unroll_length": 8, **named})


@pytest.mark.parametrize(
    ("plan", "minibatches", "rows_each"),
    [
        (on_policy(), 1, 8 * 6),  # ALF-07: A2C
        (on_policy(num_epochs=3, mini_batch_size=16, mini_batch_length=1), 9, 16),
        (on_policy(num_epochs=2, mini_batch_size=3, mini_batch_length=4), 8, 12),
        (on_policy(num_epochs=2, mini_batch_size=11, mini_batch_length=1), 8, 12),  # ALF-10: no tiny last one
        (on_policy(num_epochs=2, mini_batch_length=2), 8, 12),  # ALF-10: as many sequences as environments
    ],
    ids=["one step", "flat rows", "sequences", "uneven", "default size"],
)
def test_s3_the_whole_buffer_is_gone_through_so_many_times(plan, minibatches, rows_each):
    """Scenario 3: ALF-05, ALF-07, ALF-08, ALF-10, ALF-11: counting optimizer, counting source and visit counter."""
    buffer, world = filled(None, 6, 8)
    algorithm, source = CountingAlgorithm(plan), CountingSource(buffer)
    info = algorithm.update(source)
    assert source.draws == 1
    assert algorithm.optimizer_steps == info.gradient_steps == len(algorithm.seen) == minibatches
    rows = {row.serial for lane in world.lanes for row in lane.rows}
    assert algorithm.visits == dict.fromkeys(rows, plan.num_epochs)
    assert {seen.numel() for seen in algorithm.seen} == {rows_each}
    assert info.rows_trained == plan.num_epochs * sum(row.kind != LAST for lane in world.lanes for row in lane.rows)
    for seen in algorithm.seen:  # time order inside a sequence
        if seen.ndim == 2:
            for column in seen.T.tolist():
                lane, start = world.find(column[0])
                assert column == [row.serial for row in lane.stream[start : start + len(column)]]
    per_repeat = minibatches // plan.num_epochs
    orders = [
        torch.cat([x.flatten() for x in algorithm.seen[i * per_repeat :][:per_repeat]]).tolist()
        for i in range(plan.num_epochs)
    ]
    assert all(left != right for left, right in itertools.pairwise(orders))
    # one-time use: what was learned from is gone with the next row
    world.append(buffer)
    assert len(buffer) == 6


@pytest.mark.parametrize("length", [1, 4])
def test_s3_one_sample_is_divided_into_the_gradient_steps(length):
    """Scenario 3: ALF-06, ALF-09, ALF-11: one draw, exactly `gradient_steps` steps, and rows serve many iterations."""
    buffer, world = filled(400, 4, 80)
    plan = Replay(unroll_length=1, gradient_steps=5, mini_batch_size=8, mini_batch_length=length)
    algorithm, source = CountingAlgorithm(plan), CountingSource(buffer)
    trained, env_steps = 0, 0
    for iteration in range(1, 41):
        world.append(buffer)
        env_steps += 4
        trained += 5 * 8 * length
        algorithm.update(source)
        assert source.draws == iteration
        assert algorithm.optimizer_steps == 5 * iteration
    assert all(seen.shape[-1] == 8 for seen in algorithm.seen)
    assert sum(algorithm.visits.values()) == trained > 5 * env_steps
    assert max(algorithm.visits.values()) > 5  # many iterations learn from one row
    assert len(buffer) == 400


def test_s3_on_policy_steps_equal_the_rows_learned_from():
    """Scenario 3: ALF-11: with one pass, at any moment as many experiences were trained as rows that had an outcome."""
    buffer, world = filled(None, 3, 5)
    algorithm = CountingAlgorithm(on_policy(unroll_length=5))
    trained = algorithm.update(buffer).rows_trained
    for _ in range(4):
        for _ in range(5):
            world.append(buffer)
        trained += algorithm.update(buffer).rows_trained
    serials = algorithm.visits
    assert set(serials.values()) == {1}
    ends = sum(row.kind == LAST for lane in world.lanes for row in lane.rows)
    assert trained == len(serials) - ends


# -- scenario 4


def test_s4_the_batch_snippets_run_as_they_are_printed(capsys):
    """Scenario 4: TS-02..06: Tianshou's two documented sessions, with their printed results."""
    data = Batch(a=4, b=[5, 5], c="2312312", d=("a", -2, -3))
    print(repr(data.b))
    data.b = np.array([3, 4, 5])
    print(data)
    data = Batch(obs={"index": np.zeros((2, 3))}, act=torch.zeros((2, 2)))
    data[:, 1] += 6
    print(data[-1])
    assert capsys.readouterr().out == (
        "array([5, 5])\n"
        "Batch(\n"
        "    a: 4,\n"
        "    b: array([3, 4, 5]),\n"
        "    c: '2312312',\n"
        "    d: array(['a', '-2', '-3'], dtype=object),\n"
        ")\n"
        "Batch(\n"
        "    obs: Batch(\n"
        "             index: array([0., 6., 0.]),\n"
        "         ),\n"
        "    act: tensor([0., 6.]),\n"
        ")\n"
    )


def test_s4_the_experience_set_snippet_runs(capsys):
    """Scenario 4: MARO-40, MARO-41: length, index, slice, stride, extend."""
    states, next_states = np.arange(60.0).reshape(30, 2), np.arange(60.0).reshape(30, 2) + 2
    actions, rewards, info = np.arange(30), np.ones(30), {"priority": np.linspace(0, 1, 30)}
    experience_set = ExperienceSet(states, actions, rewards, next_states, info)
    # length
    print(len(experience_set))
    # or
    print(experience_set.size)
    # index
    experience_batch = experience_set[0]
    assert experience_batch.states.tolist() == [[0, 1]]
    # slice
    experience_batch = experience_set[0:5]
    assert experience_batch.actions.tolist() == [0, 1, 2, 3, 4]
    # slice with stride
    experience_batch = experience_set[0:20:5]
    assert experience_batch.next_states.tolist() == [[2, 3], [12, 13], [22, 23], [32, 33]]
    # extend
    experience_set.extend(experience_batch)
    assert (experience_set.size, experience_set.info.priority.shape) == (34, (34,))
    assert capsys.readouterr().out == "30\n30\n"


# -- scenario 10


def learned(algorithm):
    """The output of its model for a fixed input."""
    return algorithm.model.component["net"](torch.ones(1, 1)).item()


def test_s10_algorithms_given_the_same_model_share_it():
    """Scenario 10: PARL-27, PARL-28, PARL-30, PARL-31: an update through A is visible in B, and in B's optimizer."""
    buffer, _ = filled(None, 2, 8)
    model = counting_model()
    first, second = CountingAlgorithm(on_policy(), model), CountingAlgorithm(on_policy(), model)
    before = learned(second)
    first.update(buffer)
    assert learned(first) == learned(second) != before
    second.update(buffer)
    assert first.optimizer_steps == second.optimizer_steps == 2


def test_s10_models_are_synchronised_without_naming_a_parameter():
    """Scenario 10: PARL-29, PARL-14: outputs differ before and are equal after; a model refuses itself."""
    buffer, _ = filled(None, 2, 8)
    first, second = (CountingAlgorithm(on_policy(), counting_model(seed)) for seed in (0, 1))
    assert learned(first) != learned(second)
    first.model.sync_to(second.model)
    assert learned(first) == learned(second)
    first.update(buffer)
    assert learned(first) != learned(second)
    with pytest.raises(ConfigError, match="cannot be synchronised with itself"):
        first.model.sync_to(first.model)


def test_s10_every_call_of_a_factory_makes_new_parameters():
    """Scenario 10: PARL-32: the document's function, for models and algorithms; and a clone that learns by itself."""
    buffer, _ = filled(None, 2, 8)
    algorithm_func = create_algorithm_func(counting_model, {"seed": 3}, ClonedAlgorithm, {"plan": on_policy()})
    first, second = algorithm_func(), algorithm_func()
    assert learned(first) == learned(second)  # the same seed, and nothing else in common
    memory = [{p.untyped_storage().data_ptr() for p in x.model.parameters()} for x in (first, second)]
    assert not memory[0] & memory[1]
    first.update(buffer)
    assert learned(first) != learned(second)
    twin = CountingAlgorithm(on_policy(), first.model.clone())
    assert (learned(twin), twin.optimizer_steps) == (learned(first), 1)
    for algorithm in (first, twin):
        buffer.writer.used = False  # as if these rows were new
        algorithm.update(buffer)
    assert learned(twin) == learned(first)  # the optimizer's memory was cloned too
    assert second.optimizer_steps == 0
