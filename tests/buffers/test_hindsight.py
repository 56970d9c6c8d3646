"""Tests of `palaestra.buffers.HindsightSampler`."""

import numpy as np
import pytest
import torch

from palaestra.buffers import HindsightSampler, PrioritizedSampler, ReplayBuffer
from palaestra.core import Batch, ConfigError, DiscreteSpec, ShapeError, TensorSpec, TimeStep
from palaestra.testing.buffers import FIRST, LAST, MID
from tests.buffers.model import filled, generator, replay

GOAL = 1000.0  # that nobody reaches
SPEC = {"observation": TensorSpec((2,)), "achieved_goal": TensorSpec((1,)), "desired_goal": TensorSpec((1,))}


def reward(achieved, desired, info):
    """0 at the goal, else -1, as in the environments of the paper."""
    assert info == {}
    return -(np.abs(achieved - desired)[..., 0] > 0.5).astype(np.float32)


def arrived(kind, lane, t):
    """Every step of both lanes reaches a goal of its own, 100 * lane + t."""
    goals = torch.tensor([[100.0 * b + t] for b in range(lane)])
    observation = Batch(observation=goals.repeat(1, 2), achieved_goal=goals, desired_goal=torch.full((lane, 1), GOAL))
    return TimeStep(
        step_type=torch.full((lane,), kind, dtype=torch.int32),
        reward=torch.full((lane,), -1.0 if kind != FIRST else 0.0),
        discount=torch.ones(lane),
        observation=observation,
    )


def walked(sampler, episode=10, steps=45, capacity=60, last=1.0, **memory):
    """Two lanes in episodes of equal length, whose last rows have this discount."""
    specs = {"observation_spec": SPEC, "action_spec": DiscreteSpec(num=2), **memory}
    buffer, state = ReplayBuffer(capacity, 2, sampler=sampler, **specs), Batch(h=torch.zeros(2)) if memory else None
    buffer.open(arrived(FIRST, 2, 0))
    for t in range(1, steps):
        place = t % (episode + 1)
        kind = FIRST if place == 0 else LAST if place == episode else MID
        time_step = arrived(kind, 2, t)
        if kind == LAST:
            time_step = time_step._replace(discount=torch.full((2,), last))
        buffer.append(torch.zeros(2, dtype=torch.int64), time_step, state=state)
    return buffer


def reached(observation):
    return observation.achieved_goal.flatten() % 100, observation.achieved_goal.flatten() // 100


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_new_goals_are_reached_in_the_same_episode(strategy, n_step):
    """Andrychowicz et al. section 4.5; rewards and both observations agree with the new goal, ring wrap included."""
    buffer = walked(HindsightSampler(reward, strategy=strategy, share=1.0))
    drawn = buffer.draw(replay(mini_batch_size=3000, n_step=n_step), generator())
    goal, lane = drawn.observation.desired_goal.flatten() % 100, drawn.observation.desired_goal.flatten() // 100
    time, own_lane = reached(drawn.observation)
    newest = 44
    first, last = time - time % 11, torch.clamp(time - time % 11 + 10, max=newest)
    assert torch.equal(lane, own_lane)
    assert torch.equal(drawn.next_observation.desired_goal, drawn.observation.desired_goal)
    oldest = newest - 30
    expected = {
        "future": lambda t, begin, end: set(range(t + 1, end + 1)),
        "final": lambda t, begin, end: {end},
        "episode": lambda t, begin, end: set(range(max(begin, oldest) + 1, end + 1)),
    }[strategy]
    for t in set(time.tolist()):
        i = time == t
        allowed = expected(int(t), int(first[i][0]), int(last[i][0]))
        found = set(goal[i].int().tolist())
        assert found <= allowed
        assert len(found) == len(allowed) or i.sum() < 20 * len(allowed)
    for k in range(1, n_step + 1):
        inside = time + k <= last
        hit = (time + k == goal)[inside]
        assert torch.equal(drawn.reward[k][inside], hit.float() - 1)
    assert torch.equal(drawn.discount, torch.ones(n_step + 1, 3000))


def test_a_share_keeps_its_goal():
    buffer = walked(HindsightSampler(reward, share=0.8))
    drawn = buffer.draw(replay(mini_batch_size=4000), generator())
    old = drawn.observation.desired_goal.flatten() == GOAL
    assert old.float().mean() == pytest.approx(0.2, abs=0.03)
    assert (drawn.reward[1][old] == -1).all()
    assert (buffer.observation.desired_goal[np.arange(20)] == GOAL).all()  # what is stored stays


def test_reaching_a_goal_may_end_the_episode():
    def terminated(achieved, desired, info):
        return reward(achieved, desired, info) == 0

    buffer = walked(HindsightSampler(reward, strategy="final", share=1.0, terminated=terminated))
    drawn = buffer.draw(replay(mini_batch_size=500), generator())
    assert torch.equal(drawn.discount[1] == 0, drawn.reward[1] == 0)
    assert (drawn.reward[1] == 0).any()


def test_sequences_and_priorities_work_with_it():
    buffer = walked(HindsightSampler(reward, share=1.0, base=PrioritizedSampler()))
    drawn = buffer.draw(replay(mini_batch_size=64, mini_batch_length=3), generator())
    goals = drawn.observation.desired_goal
    assert ((goals == goals[:1]) | (goals == GOAL)).all()  # of the episode that it begins in, or of a later one
    assert (goals[0] < GOAL).all()
    assert drawn.weight.tolist() == [1.0] * 64
    buffer.write_back(drawn.index[:1], torch.tensor([5.0]))
    twin = walked(HindsightSampler(reward, share=1.0, base=PrioritizedSampler()))
    twin.load_state_tensors(buffer.state_tensors())
    assert torch.equal(*(b.draw(replay(), generator(2)).observation.desired_goal for b in (buffer, twin)))
    buffer.set_progress(1.0)
    assert buffer.sampler.base.beta == 1.0


def test_rows_of_later_episodes_in_a_sequence_keep_their_goals():
    """What only the first episode has reached is nothing that a later one was about."""
    buffer = walked(HindsightSampler(reward, share=1.0))
    drawn = buffer.draw(replay(mini_batch_size=200 * 15, mini_batch_length=15), generator())
    goals, achieved = drawn.observation.desired_goal[..., 0], drawn.observation.achieved_goal[..., 0]
    ends = drawn.step_type == LAST
    ends[0] = False
    first = ends.cumsum(0) - ends.long() == 0
    assert first.any() and not first.all()
    assert (goals[~first] == GOAL).all() and (goals[first] != GOAL).all()
    moved, came = drawn.step_type[1:] != FIRST, goals[1:] == achieved[1:]
    assert torch.equal((drawn.reward[1:] == 0)[first[1:] & moved], came[first[1:] & moved])
    assert (drawn.reward[1:][~first[1:] & moved] == -1).all()


def test_a_sequence_that_begins_at_the_end_of_an_episode_is_about_the_next_one():
    """As may be where only some rows have a hidden state: of 10 to 24, the steps after 21 are of one more episode."""
    sampler = HindsightSampler(reward, strategy="final", share=1.0)
    buffer = walked(sampler, capacity=120, state_spec={"h": TensorSpec(())}, state_period=10)
    drawn = buffer.draw(replay(mini_batch_size=200, mini_batch_length=15), generator())
    goals = drawn.observation.desired_goal[:, drawn.step_type[0] == LAST, 0]
    assert goals.numel() and set((goals[:12] % 100).flatten().tolist()) == {21}
    assert (goals[12:] == GOAL).all()


def test_later_episodes_in_a_sequence_end_as_they_did():
    """They were not about the new goal: not to have reached it is no reason to go on."""

    def terminated(achieved, desired, info):
        return reward(achieved, desired, info) == 0

    buffer = walked(HindsightSampler(reward, strategy="final", share=1.0, terminated=terminated), last=0.0)
    drawn = buffer.draw(replay(mini_batch_size=200 * 15, mini_batch_length=15), generator())
    ends = drawn.step_type == LAST
    ends[0] = False  # a sequence that begins at the end of an episode is of the next one
    later = ends & (ends.cumsum(0) == 2)
    assert later.any()
    assert (drawn.observation.desired_goal[later] == GOAL).all()
    assert (drawn.discount[later] == 0).all()


def test_what_else_ends_an_episode_still_does():
    """A fall ends it whatever the goal is; the old goal, once it is not the goal any more, does not."""

    def terminated(achieved, desired, info):
        return reward(achieved, desired, info) == 0

    fell = walked(HindsightSampler(reward, strategy="episode", share=1.0, terminated=terminated), last=0.0)
    drawn = fell.draw(replay(mini_batch_size=500), generator())
    ends = drawn.step_type[1] == LAST
    assert ends.any() and (drawn.discount[1][ends] == 0).all()
    always = HindsightSampler(reward, share=1.0, terminated=lambda achieved, desired, info: (desired == GOAL)[..., 0])
    drawn = walked(always, last=0.0).draw(replay(mini_batch_size=500), generator())
    assert (drawn.discount[1] == 1).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="strategy='past'"):
        HindsightSampler(reward, strategy="past")
    with pytest.raises(ConfigError, match=r"share=2"):
        HindsightSampler(reward, share=2)
    buffer, _ = filled(20, 2, 9)
    buffer.sampler = HindsightSampler(reward)
    with pytest.raises(ShapeError, match="needs observations with the keys"):
        buffer.draw(replay(), generator())
    with pytest.raises(ShapeError, match=r"reward\(achieved_goal, desired_goal, info\) gave shape \(\) .* all rows"):
        walked(HindsightSampler(lambda achieved, desired, info: 0.0)).draw(replay(), generator())


def test_stacks_of_goals_are_refused():
    sampler = HindsightSampler(reward, share=1.0)
    buffer = ReplayBuffer(60, 2, observation_spec=SPEC, action_spec=DiscreteSpec(num=2), stack_num=3, sampler=sampler)
    buffer.open(arrived(FIRST, 2, 0))
    for t in range(1, 20):
        buffer.append(torch.zeros(2, dtype=torch.int64), arrived(MID, 2, t))
    with pytest.raises(ShapeError, match=r"needs goals of one axis, and these are \(3, 1\)"):
        buffer.draw(replay(mini_batch_size=8), generator())


def test_rewards_of_several_numbers_are_computed_anew():
    def both(achieved, desired, info):
        single = reward(achieved, desired, info)
        return np.stack([single, 2 * single], axis=-1)

    specs = {"observation_spec": SPEC, "action_spec": DiscreteSpec(num=2), "reward_spec": TensorSpec((2,))}
    buffer = ReplayBuffer(60, 2, **specs, sampler=HindsightSampler(both, strategy="final", share=1.0))
    for t in range(11):
        time_step = arrived(FIRST if t == 0 else LAST if t == 10 else MID, 2, t)
        time_step = time_step._replace(reward=time_step.reward[:, None].repeat(1, 2))
        if t:
            buffer.append(torch.zeros(2, dtype=torch.int64), time_step)
        else:
            buffer.open(time_step)
    drawn = buffer.draw(replay(mini_batch_size=200), generator())
    there = reached(drawn.observation)[0] == 9  # the next row is the last, whose goal the episode reached
    assert there.any() and not there.all()
    assert drawn.reward[1].tolist() == [[0.0, 0.0] if at_goal else [-1.0, -2.0] for at_goal in there.tolist()]
    buffer.sampler = HindsightSampler(reward, share=1.0)
    with pytest.raises(ShapeError, match=r"gave shape \(1, 256\) .* give \(1, 256, 2\)"):
        buffer.draw(replay(mini_batch_size=256), generator())
