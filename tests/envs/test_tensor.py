"""Tests of `palaestra.envs.contract.tensor`, with the pole on a cart as the task."""

import math

import gymnasium
import numpy as np
import pytest
import torch

from palaestra.core import (
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    EnvError,
    ShapeError,
    SpecError,
    TensorSpec,
    check_time_step,
    load_tensors,
    save_tensors,
)
from palaestra.envs import EnvConfig, TensorEnvironment, create_environment
from palaestra.envs.tiny import CartPoleSwingUp, TensorCartPole

SEEDS = [11, 22, 33]


def play(env, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    actions = torch.randint(0, 2, (steps, 64), generator=generator)[:, : env.batch_size]
    return [env.reset(), *(env.step(action) for action in actions)]


def test_the_task_is_that_of_gymnasium():
    """Same dynamics, reward and end, from the same state: to the precision of float32."""
    gym_env = gymnasium.make("CartPole-v1").unwrapped
    env = TensorCartPole(1, lane_seeds=[5])
    for end, bound in (("minimum", gym_env.observation_space.low), ("maximum", gym_env.observation_space.high)):
        np.testing.assert_allclose(getattr(env.observation_spec, end), bound, rtol=1e-6)
    first = env.reset()
    gym_env.reset(seed=0)
    gym_env.state = tuple(first.observation[0].tolist())
    for step in range(500):
        action = step % 3 % 2
        expected, reward, terminated, *_ = gym_env.step(np.int64(action))
        found = env.step(torch.tensor([action]))
        np.testing.assert_allclose(found.observation[0].numpy(), expected, rtol=1e-4, atol=1e-5)
        assert (float(found.reward), float(found.discount)) == (reward, 1.0 - terminated)
        if terminated:
            break
    assert terminated


@pytest.mark.parametrize("steps", [0, 30])
def test_the_contract_of_time_steps(steps):
    """ALF-13 to ALF-18, ALF-26, ALF-27, ALF-33, ALF-46: LAST is followed by FIRST, whose action is ignored."""
    env = TensorCartPole(3, lane_seeds=SEEDS, max_episode_steps=steps)
    stream = play(env, 120)
    before = None
    truncated = terminated = 0
    for step in stream:
        check_time_step(step)
        assert (step.step_type.dtype, step.reward.dtype, step.discount.dtype) == (torch.int32, *[torch.float32] * 2)
        first = step.first
        assert torch.equal(first, torch.ones(3, dtype=torch.bool) if before is None else before.last)
        assert not step.reward[first].any()
        assert not step.prev_action[first].any()
        assert (step.reward[~first] == 1).all()
        assert (step.observation[first].abs() <= 0.05).all()
        truncated, terminated = truncated + int(step.truncated.sum()), terminated + int(step.terminated.sum())
        before = step
    assert terminated > 3
    assert bool(truncated) == bool(steps)


def test_streams_are_reproducible_and_do_not_depend_on_the_other_lanes():
    """ALF-55, ALF-56."""
    whole, one = play(TensorCartPole(3, lane_seeds=SEEDS), 60), play(TensorCartPole(1, lane_seeds=SEEDS[:1]), 60)
    for ours, theirs in zip(whole, one, strict=True):
        assert torch.equal(ours.observation[:1], theirs.observation)
    starts = torch.cat([step.observation[step.first] for step in whole])
    assert len({tuple(row) for row in starts.tolist()}) == len(starts) > 6
    assert abs(float(starts.mean())) < 0.02


def test_a_restored_environment_goes_on_exactly(tmp_path):
    """F25: the state itself is saved."""
    one, two = TensorCartPole(3, lane_seeds=SEEDS), TensorCartPole(3)
    play(one, 17)
    save_tensors(tmp_path / "state", one.state_dict())
    two.load_state_dict(load_tensors(tmp_path / "state"))
    for step in range(40):
        action = torch.tensor([step % 2, 0, 1])
        ours, theirs = one.step(action), two.step(action)
        assert torch.equal(ours.observation, theirs.observation)
        assert torch.equal(ours.step_type, theirs.step_type)
    with pytest.raises(EnvError, match="of 3 environments and this has 2"):
        TensorCartPole(2).load_state_dict(one.state_dict())


def test_what_was_returned_is_nobodys_but_the_callers():
    one, two = (TensorCartPole(3, lane_seeds=SEEDS) for _ in range(2))
    one.reset().observation.zero_()
    two.reset()
    action = torch.tensor([1, 0, 1])
    kept = one.step(action)
    assert torch.equal(kept.observation, two.step(action).observation)
    copy = kept.observation.clone()
    kept.prev_action.fill_(0)
    assert action.tolist() == [1, 0, 1]
    one.step(action)
    assert torch.equal(kept.observation, copy)


@pytest.mark.slow
def test_a_compiled_step_does_the_same():
    one, two = TensorCartPole(64, lane_seeds=range(64), compile=True), TensorCartPole(64, lane_seeds=range(64))
    for ours, theirs in zip(play(one, 30), play(two, 30), strict=True):
        torch.testing.assert_close(ours.observation, theirs.observation, rtol=1e-4, atol=1e-5)
        assert torch.equal(ours.step_type, theirs.step_type)


def test_mistakes_are_named():
    env = TensorCartPole(3, lane_seeds=SEEDS)
    with pytest.raises(SpecError, match="environment 1 has value 2"):
        env.step(torch.tensor([0, 2, 0]))
    with pytest.raises(ShapeError, match=r"expected \(3,\)"):
        env.step(torch.tensor([0, 1]))
    with pytest.raises(EnvError, match="without send"):
        env.recv()
    env.send(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(EnvError, match="twice"):
        env.send(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ConfigError, match="at least 1"):
        TensorCartPole(0)
    with pytest.raises(SpecError, match="each needs one of its own"):
        TensorCartPole(2, lane_seeds=[1, 1])


def test_a_batched_environment_is_made_by_its_name():
    """ALF-46."""
    config = EnvConfig(name="palaestra.envs.tiny:TensorCartPole", num_envs=16, kwargs={"max_episode_steps": 500})
    with create_environment(config, seed=1) as env:
        assert (env.batch_size, env.reset().observation.shape) == (16, (16, 4))


class Drift(TensorEnvironment):
    """Moves by its action; `odd` names what does not fit."""

    num_random = 1
    odd = ""
    action_spec = BoundedSpec((1,), minimum=np.array(-1.0), maximum=np.array(1.0))
    observation_spec = TensorSpec((1,))

    def fresh(self, uniform):
        return {"x": uniform}

    def transition(self, state, action):
        reward = action if self.odd == "reward" else action[:, 0]
        over = reward if self.odd == "over" else state["x"][:, 0] > 100
        return {"x": state["x"] + action}, reward, over

    def observe(self, state):
        return state["x"].repeat(1, 2) if self.odd == "observation" else state["x"] + 0


def drift(**attributes):
    return type("Drift", (Drift,), attributes)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"odd": "reward"}, r"the reward of Drift has shape \[3, 1\] .* expected \[3\] and torch.float32"),
        ({"odd": "observation"}, r"the observation of Drift has shape \[3, 2\] .* expected \[3, 1\]"),
        ({"odd": "over"}, r"whether the task is over of Drift .* dtype torch.float32, expected \[3\] and torch.bool"),
        ({"num_random": None}, "must say num_random"),
        ({"action_spec": {"a": DiscreteSpec(num=2)}}, "needs actions of one array"),
    ],
)
def test_a_task_that_does_not_fit_its_specs_is_refused_when_it_is_made(attributes, words):
    """F7."""
    with pytest.raises((SpecError, ConfigError), match=words):
        drift(**attributes)(3, lane_seeds=SEEDS)


@pytest.mark.parametrize(
    ("spec", "action", "words"),
    [
        (Drift.action_spec, [[0.0], [7.0], [0.0]], r"environment 1 has value 7.0 at index \[0\], expected a number in"),
        (Drift.action_spec, [[0.0], [0.0], [float("nan")]], "environment 2 has value nan"),
        (DiscreteSpec(num=3, start=1), [1, 4, 2], r"environment 1 has value 4, expected an integer in \[1, 3\]"),
        (DiscreteSpec(num=3, start=1), [1.0, 1.0, 1.0], "dtype torch.float32, expected torch.int64"),
    ],
)
def test_actions_that_do_not_exist_are_refused(spec, action, words):
    """F8."""
    discrete = isinstance(spec, DiscreteSpec)
    move = {"transition": lambda self, state, action: (state, action.float(), action < 0)} if discrete else {}
    env = drift(action_spec=spec, **move)(3, lane_seeds=SEEDS)
    assert env.reset().prev_action.eq(0).all()
    with pytest.raises(SpecError, match=words):
        env.step(torch.tensor(action))


@pytest.mark.parametrize(
    ("leaf", "change"),
    [("action", lambda state, action: action.mul_(2)), (r"state\['x'\].*", lambda state, action: state["x"].add_(1))],
    ids=["action", "state"],
)
def test_a_transition_that_changes_what_it_is_given_is_refused(leaf, change):
    """The action of a row was no longer the one that the policy had taken."""

    class Pushy(TensorCartPole):
        def transition(self, state, action):
            change(state, action)
            return super().transition(state, action)

        def observe(self, state):
            return state["x"].unsqueeze(-1).expand(-1, 4)  # rows before would change with it

    with pytest.raises(SpecError, match=f"transition of Pushy changes {leaf}, which others hold, too; make new"):
        Pushy(2, lane_seeds=[1, 2])


# -- the pole that has to be lifted


def swing_up(x, angle, speed, turn, frames):
    env = CartPoleSwingUp(1, lane_seeds=[0], frames_per_step=frames)
    numbers = {"x": x, "angle": angle, "speed": speed, "turn": turn}
    return env, {name: torch.tensor([value], dtype=torch.float64) for name, value in numbers.items()}


def energy(state):
    """Of a cart of 1 kg and a rod of 0.1 kg and 1 m, J, with the speed of the rod's middle written out."""
    angle, speed, turn = state["angle"], state["speed"], state["turn"]
    across, up = speed + 0.5 * turn * angle.cos(), -0.5 * turn * angle.sin()
    rod = 0.05 * (across**2 + up**2) + 0.5 * (0.1 / 12) * turn**2
    return float(0.5 * speed**2 + rod + 0.1 * 9.81 * 0.5 * angle.cos())


def test_a_swinging_pole_loses_energy_to_friction_alone():
    env, state = swing_up(0.0, 2.0, 0.1, 1.0, frames=1)
    none, lost = torch.zeros(1, 1, dtype=torch.float64), 0.0
    before = energy(state)
    for _ in range(200):
        lost += 0.01 * float(5e-4 * state["speed"] ** 2 + 2e-6 * state["turn"] ** 2)
        state = env.transition(state, none)[0]
    assert before - energy(state) == pytest.approx(lost, rel=0.02)
    assert lost > 1e-5
    pushed = env.transition(state, none + 1.0)[0]
    work = 10 * float(pushed["x"] - state["x"])
    assert energy(pushed) - energy(state) == pytest.approx(work, rel=1e-3)


def test_a_hanging_pole_swings_with_the_period_of_small_angles():
    """Of a rod on a free cart: the centre of mass stays, so that ω² = m l g (M + m) / ((M + m) I - (m l)²)."""
    env, state = swing_up(0.0, math.pi + 0.01, 0.0, 0.0, frames=1)
    omega = math.sqrt(0.05 * 9.81 * 1.1 / (1.1 * 0.1 / 3 - 0.05**2))
    quarter = round(math.pi / 2 / omega / 0.01)
    for _ in range(quarter):
        state = env.transition(state, torch.zeros(1, 1, dtype=torch.float64))[0]
    assert abs(float(state["angle"]) - math.pi) < 0.0005


def test_the_rewards_of_the_swing_up_are_those_of_the_suite():
    """One for a pole that stands still in the middle; its four factors; and the ends of the rail."""
    still = torch.zeros(1, 1, dtype=torch.float64)
    for numbers, action, expected in [
        ((0.0, 0.0, 0.0, 0.0), 0.0, 1.0),
        ((0.0, math.pi, 0.0, 0.0), 0.0, 0.0),
        ((1.0, 0.0, 0.0, 0.0), 0.0, (1 + 0.1**0.25) / 2),
        ((0.0, 0.0, 0.0, 5.0), 0.0, 0.55),
        ((0.0, 0.0, 0.0, 0.0), 1.0, 0.8),
    ]:
        env, state = swing_up(*numbers, frames=1)
        reward = float(env.transition(state, still + action)[1])
        assert reward == pytest.approx(expected, abs=0.03), numbers
    env, state = swing_up(1.79, math.pi, 3.0, 0.0, frames=8)
    after, reward, over = env.transition(state, still)
    assert float(after["x"]) <= 1.8 and float(after["speed"]) < 1.0 and not over.any()
    with pytest.raises(ConfigError, match="at least 1 frame"):
        CartPoleSwingUp(1, frames_per_step=0)
