"""Tests of `palaestra.policies.policy`: what every policy does."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from palaestra.core import (
    Batch,
    BoundedSpec,
    DiscreteSpec,
    MultiBinarySpec,
    NonFiniteError,
    ShapeError,
    SpecError,
    StepType,
    TensorSpec,
    TimeStep,
)
from palaestra.nn import NetworkConfig
from palaestra.policies import (
    CategoricalPolicy,
    DeterministicPolicy,
    EpsilonGreedy,
    GaussianPolicy,
    Phase,
    PolicyStep,
    RandomPolicy,
    ValueGreedyPolicy,
)

VECTOR = TensorSpec((4,))
BOX = BoundedSpec((2,), minimum=np.array([-1.0, 0.0]), maximum=np.array([1.0, 4.0]))
TWO = DiscreteSpec(num=2)
MASKED = {"x": VECTOR, "action_mask": MultiBinarySpec((3,))}
SMALL = NetworkConfig(hidden_sizes=(8,))
POLICIES = {
    "categorical": lambda: CategoricalPolicy.build(VECTOR, TWO, SMALL),
    "gaussian": lambda: GaussianPolicy.build(VECTOR, BOX, SMALL),
    "value-greedy": lambda: ValueGreedyPolicy.build(VECTOR, TWO, SMALL, exploration=EpsilonGreedy(2, 0.5)),
    "random": lambda: RandomPolicy(VECTOR, TWO),
}
MASKED_POLICIES = {
    "categorical": lambda: CategoricalPolicy.build(MASKED, DiscreteSpec(num=3), SMALL),
    "value-greedy": lambda: ValueGreedyPolicy.build(
        MASKED, DiscreteSpec(num=3), SMALL, exploration=EpsilonGreedy(3, 1.0)
    ),
    "random": lambda: RandomPolicy(MASKED, DiscreteSpec(num=3)),
}


def each(policies):
    return pytest.mark.parametrize("make", policies.values(), ids=policies.keys())


def steps(observation, step_type=None):
    count = len(observation)
    kinds = torch.full((count,), StepType.MID, dtype=torch.int32) if step_type is None else torch.tensor(step_type)
    return TimeStep(kinds, torch.zeros(count), torch.ones(count), observation)


def rows(count=6, seed=0):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


# -- phases


@pytest.mark.parametrize(
    ("phase", "training", "updating"),
    [(Phase.COLLECT, True, False), (Phase.UPDATE, True, True), (Phase.EVAL, False, False)],
)
def test_a_phase_says_training_and_updating(phase, training, updating):
    """TS-16."""
    policy = POLICIES["categorical"]()
    with policy.in_phase(phase):
        assert (policy.phase, policy.training, policy.updating) == (phase, training, updating)
        assert policy.network.training == training  # parts such as dropout follow


def test_train_and_eval_are_phases():
    policy = POLICIES["categorical"]()
    assert policy.eval().phase is Phase.EVAL
    assert policy.train().phase is Phase.COLLECT
    torch.nn.ModuleList([policy]).eval()
    assert policy.phase is Phase.EVAL


@pytest.mark.parametrize("before", Phase)
def test_the_phase_before_returns_even_after_an_exception(before):
    """TS-17."""
    policy = POLICIES["value-greedy"]()

    def fail():
        with policy.in_phase(Phase.UPDATE):
            assert policy.updating
            raise RuntimeError("in the middle of an update")

    with policy.in_phase(before):
        with pytest.raises(RuntimeError, match="in the middle"):
            fail()
        assert policy.phase is before
        assert policy.updating == (before is Phase.UPDATE)
        assert policy.network.training == (before is not Phase.EVAL)


def test_phases_nest():
    policy = POLICIES["categorical"]()
    with policy.in_phase(Phase.UPDATE):
        with policy.in_phase(Phase.EVAL):
            assert not policy.network.training
        assert policy.phase is Phase.UPDATE
        assert policy.network.training
    assert policy.phase is Phase.COLLECT


def test_acting_without_a_phase_uses_the_one_the_policy_is_in():
    """TS-17: no exploration while updating, although epsilon is 1."""
    policy = ValueGreedyPolicy.build(VECTOR, DiscreteSpec(num=50), SMALL, exploration=EpsilonGreedy(50, 1.0))
    greedy = policy.greedy(rows())
    assert not torch.equal(policy.act(steps(rows())).action, greedy)
    for phase in (Phase.UPDATE, Phase.EVAL):
        with policy.in_phase(phase):
            assert torch.equal(policy.act(steps(rows())).action, greedy)


# -- acting


@each(POLICIES)
def test_a_step_has_an_action_a_state_and_info_for_every_lane(make):
    """TS-18, TS-19."""
    policy = make()
    step = policy.act(steps(rows()), policy.initial_state(6), phase=Phase.COLLECT)
    assert isinstance(step, PolicyStep)
    assert step.action.shape[0] == 6
    assert step.state == ()
    for row in policy.env_action(step.action):
        assert policy.action_spec.problem(row) is None


@each(POLICIES)
def test_acting_keeps_no_graph(make):
    policy = make()
    assert not policy.act(steps(rows()), phase=Phase.COLLECT).action.requires_grad
    with torch.inference_mode():
        assert policy.act(steps(rows()), phase=Phase.COLLECT).action.shape[0] == 6


@each(POLICIES)
def test_the_same_seed_gives_the_same_actions(make):
    policy = make()

    def actions(seed):
        policy.seed(seed)
        return [policy.act(steps(rows()), phase=Phase.COLLECT).action.tolist() for _ in range(5)]

    assert actions(3) == actions(3)
    assert actions(3) != actions(4)


@each(POLICIES)
def test_acting_draws_nothing_from_the_global_generator(make):
    policy, before = make(), torch.random.get_rng_state()
    policy.act(steps(rows()), phase=Phase.COLLECT)
    policy(rows(), deterministic=False)
    assert torch.equal(torch.random.get_rng_state(), before)


@each(POLICIES)
def test_a_deep_copy_goes_on_with_the_same_noise(make):
    policy = make()
    policy.act(steps(rows()), phase=Phase.COLLECT)
    twin = copy.deepcopy(policy)
    assert twin.generator is not policy.generator
    for _ in range(3):
        ours, theirs = (each.act(steps(rows()), phase=Phase.COLLECT).action for each in (policy, twin))
        assert torch.equal(ours, theirs)


@each(MASKED_POLICIES)
@given(data=st.data())
def test_f8_a_forbidden_action_is_never_chosen(make, data):
    """F8: whatever the mask, the weights and the phase; and a masked policy can still choose every allowed action."""
    masks = data.draw(
        st.lists(st.lists(st.booleans(), min_size=3, max_size=3).filter(any), min_size=1, max_size=8), label="masks"
    )
    mask = torch.tensor(masks).to(data.draw(st.sampled_from([torch.bool, torch.int8]), label="dtype"))
    policy = make()
    policy.seed(data.draw(st.integers(0, 2**32), label="seed"))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(data.draw(st.sampled_from([0.0, 1.0, 1e4]), label="scale of the weights"))
    observation = Batch(x=rows(len(masks)), action_mask=mask)
    for phase in Phase:
        for deterministic in (False, True):
            action = policy.act(steps(observation), phase=phase, deterministic=deterministic).action
            assert mask.bool().gather(-1, action[:, None]).all()
    assert mask.bool().gather(-1, torch.as_tensor(policy(observation))[:, None]).all()


@each(MASKED_POLICIES)
def test_every_allowed_action_is_chosen_sometimes(make):
    policy = make()
    observation = Batch(x=rows(1).expand(200, 4), action_mask=torch.tensor([[1, 0, 1]]).expand(200, 3))
    assert set(policy.act(steps(observation), phase=Phase.COLLECT).action.tolist()) == {0, 2}


@each(MASKED_POLICIES)
def test_a_mask_that_allows_nothing_is_an_error_while_the_episode_goes_on(make):
    policy = make()
    observation = Batch(x=rows(2), action_mask=torch.tensor([[1, 1, 1], [0, 0, 0]]))
    with pytest.raises(SpecError, match="none of the 3 actions in row 1"):
        policy.act(steps(observation), phase=Phase.COLLECT)
    last = steps(observation, step_type=[StepType.MID, StepType.LAST])
    assert policy.act(last, phase=Phase.COLLECT).action[0] in range(3)


def test_an_unmasked_policy_would_choose_the_forbidden_action():
    # The mutant of the tests above: the same weights without the mask.
    policy = MASKED_POLICIES["value-greedy"]()
    free = policy.q_values(Batch(x=rows())).argmax(-1)
    mask = torch.ones(6, 3, dtype=torch.bool).scatter(-1, free[:, None], False)
    chosen = policy.greedy(Batch(x=rows(), action_mask=mask))
    assert (chosen != free).all()


# -- for users


@each(POLICIES)
@pytest.mark.parametrize("leading", [(), (1,), (5,), (2, 3)], ids=str)
def test_calling_a_policy_gives_the_environments_action(make, leading):
    policy = make()
    observation = np.zeros((*leading, 4), np.float32)
    action = policy(observation)
    assert action.shape == (*leading, *policy.action_spec.shape)
    assert policy.action_spec.problem(np.reshape(action, (-1, *policy.action_spec.shape))[0]) is None
    if not isinstance(policy, RandomPolicy):
        assert np.array_equal(policy(torch.zeros(*leading, 4)), action)
        assert np.array_equal(policy(observation.tolist()), action)


def test_an_episode_runs_without_a_collector():
    """TS-20."""
    policy, position, actions = POLICIES["categorical"](), np.zeros(4), []
    while abs(position[0]) < 3:
        batch = Batch(observation=[position])  # adds dimension 0
        action = policy(batch.observation, deterministic=False)[0]
        actions.append(int(action))
        position = position + np.array([2 * action - 1, 0, 0, 0])
    assert set(actions) <= {0, 1}


def test_calling_a_policy_explores_nothing_and_leaves_its_phase():
    policy = ValueGreedyPolicy.build(VECTOR, DiscreteSpec(num=50), SMALL, exploration=EpsilonGreedy(50, 1.0))
    expected = policy.greedy(rows()).numpy()
    assert np.array_equal(policy(rows()), expected)
    assert np.array_equal(policy(rows(), deterministic=False), expected)
    assert policy.phase is Phase.COLLECT


def test_nests_may_be_dicts_tuples_or_batches():
    spec = {"x": VECTOR, "rest": (DiscreteSpec(num=3), TensorSpec((1,)))}
    policy = CategoricalPolicy.build(spec, TWO, SMALL)
    x, room, height = np.zeros((2, 4)), np.array([0, 2]), np.ones((2, 1))
    as_dict = policy({"x": x, "rest": (room, height)})
    as_batch = policy(Batch(x=x, rest=Batch(**{"0": room, "1": height})))
    assert as_dict.shape == (2,)
    assert np.array_equal(as_dict, as_batch)
    assert policy({"x": x[0], "rest": (room[0], height[0])}).shape == ()


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"x": np.zeros((2, 4)), "n": np.zeros(3, np.int64)}, r"'n' has shape \(3,\); its spec needs \(2,\)"),
        ({"x": np.zeros((2, 5)), "n": np.zeros(2, np.int64)}, r"'x' has shape \(2, 5\); its spec needs \(2, 4\)"),
        ({"x": np.zeros((2, 4))}, "is a dict without the entry 'n'"),
    ],
    ids=["leading", "shape", "missing"],
)
def test_observations_that_do_not_fit_are_named(observation, message):
    policy = CategoricalPolicy.build({"x": VECTOR, "n": DiscreteSpec(num=2)}, TWO, SMALL)
    with pytest.raises(ShapeError, match=message):
        policy(observation)


@pytest.mark.parametrize(
    ("spec", "observation", "message"),
    [
        (DiscreteSpec(num=3, start=5), 99, "is 99; its spec needs whole numbers from 5 to 7 as torch.int64"),
        (DiscreteSpec(num=3, start=5), 5.7, "is 5.7; its spec needs whole numbers"),
        (TensorSpec((2,), torch.uint8), [-1, 300], r"is \[-1, 300\]; its spec needs whole numbers as torch.uint8"),
        (VECTOR, [[1.0, 2.0], [3.0]], "the observation is ragged"),
        (TensorSpec((3, 2, 4)), np.zeros((3, 2)), r"has shape \(3, 2\); its spec needs \(3, 2, 4\), with or without"),
    ],
    ids=["category", "fraction", "wrapped", "ragged", "flat"],
)
def test_numbers_that_are_none_of_the_spec_are_refused(spec, observation, message):
    with pytest.raises(ShapeError, match=message):
        RandomPolicy(spec, TWO)(observation)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int64, np.float32, np.bool_])
def test_whole_numbers_of_every_type_are_taken(kind):
    assert RandomPolicy(DiscreteSpec(num=3), TWO)(kind(1)).shape == ()
    box = BoundedSpec((2,), torch.int32, minimum=np.array(0), maximum=np.array(9))
    assert RandomPolicy(box, TWO)(np.ones((3, 2), kind)).shape == (3,)


def test_rows_of_a_tuple_are_not_taken_for_its_parts():
    with pytest.raises(ShapeError, match="without the entry '0'"):
        RandomPolicy((TensorSpec(()),) * 3, TWO)(np.zeros((5, 3)))


@pytest.mark.parametrize("given", [1, np.array(1), np.ones(3, np.int64)])
def test_a_number_in_a_batch_is_an_observation(given):
    assert RandomPolicy(DiscreteSpec(num=3), TWO)(Batch(obs=given)).act.shape == np.shape(given)


def test_a_part_without_numbers_is_taken():
    spec = {"a": TensorSpec((3,)), "none": TensorSpec((0,))}
    policy = CategoricalPolicy.build(spec, DiscreteSpec(num=2), NetworkConfig(hidden_sizes=(4,)))
    assert policy({"a": np.zeros(3, np.float32), "none": np.zeros(0, np.float32)}) in (0, 1)


def test_a_part_without_anything_is_passed_over():
    assert RandomPolicy({"nothing": {}, "x": VECTOR}, TWO)({"nothing": {}, "x": np.zeros((2, 4))}).shape == (2,)


def test_a_key_may_hold_a_dot_or_be_a_number():
    policy = CategoricalPolicy.build({"a.b": VECTOR, "1": TensorSpec((2,))}, TWO, SMALL)
    assert policy({"a.b": np.zeros((3, 4)), 1: np.zeros((3, 2))}).shape == (3,)


def test_read_only_observations_are_taken():
    observation = np.zeros((3, 4), np.float32)
    observation.flags.writeable = False
    assert POLICIES["categorical"]()(observation).shape == (3,)


def test_observations_and_actions_are_cast_to_their_specs():
    assert POLICIES["categorical"]()(np.zeros((3, 4), np.float64)).dtype == np.int64
    assert POLICIES["gaussian"]()(np.zeros((3, 4), np.float64)).dtype == np.float32


@pytest.mark.parametrize("given", ["abc", None, [None, 1.0], np.array(["a", "b"])], ids=str)
def test_what_is_no_observation_is_named(given):
    with pytest.raises(ShapeError, match=r"the observation is .*; numbers of shape \(2,\) are needed"):
        RandomPolicy(TensorSpec((2,)), DiscreteSpec(num=2))(given)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_an_observation_that_is_not_finite_is_refused(value):
    with pytest.raises(NonFiniteError, match="a policy needs finite numbers"):
        RandomPolicy(TensorSpec((2,)), DiscreteSpec(num=2))([0.0, value])


class Noisy(nn.Linear):
    """Does something else while it is trained."""

    def forward(self, input):
        return super().forward(input) + (torch.rand(self.out_features) if self.training else 0.0)


def test_a_policy_that_is_called_is_not_in_training():
    """`policy(observation)` is for use, whatever phase of training the policy is in."""
    policy = DeterministicPolicy.build(TensorSpec((4,)), BOX, NetworkConfig(encoder=lambda spec: Noisy(4, 8)))
    assert policy.phase is Phase.COLLECT
    chosen = [policy(np.ones(4, np.float32)).tolist() for _ in range(5)]
    assert all(action == chosen[0] for action in chosen)
    assert policy.phase is Phase.COLLECT and policy.training
