"""Tests of DDPG, TD3 and TD3+BC: targets, delays, noise, and what each term trains."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from palaestra.algorithms import parts
from palaestra.policies import Phase
from tests.algorithms.parts import collected, first_minibatch
from tests.algorithms.replayed import constant, made, prepared, windows

MID, LAST = 1, 2


@pytest.mark.parametrize("name", ["ddpg", "td3", "td3_bc"])
@pytest.mark.parametrize(
    ("discount", "kind", "target"),
    [(1.0, MID, 2.0 + 0.9 * 3.0), (1.0, LAST, 2.0 + 0.9 * 3.0), (0.0, LAST, 2.0)],
)
def test_a_time_limit_is_bootstrapped_from_and_a_termination_is_not(name, discount, kind, target):
    """ALF-26, ALF-28: the target critics say 3 and, where there is a second, 5."""
    algorithm = made(name, gamma=0.9)
    members = 1 if name == "ddpg" else 2
    constant(algorithm.target_critic, [3.0, 5.0][:members])
    constant(algorithm.critic, [0.0, 1.0][:members])
    batch = prepared(algorithm, 2.0, discount, kind)
    assert_close(parts.deterministic_target(algorithm, batch), torch.full((3,), target))
    expected = target**2 + ((target - 1) ** 2 if members == 2 else 0)
    assert algorithm.losses(batch).terms["critic"].item() == pytest.approx(expected, rel=1e-5)


def test_target_noise_is_clipped_and_the_action_stays_in_range():
    """TD3, equation (14)."""
    algorithm = made("td3", target_noise_std=2.0, target_noise_clip=0.5)
    noise = prepared(algorithm, 0.0, 1.0).noise
    assert noise.abs().max() <= 0.5
    constant(algorithm.target_actor, 50.0)  # tanh says 1
    seen = []
    original = algorithm.target_critic.forward
    algorithm.target_critic.forward = lambda x, action: seen.append(action) or original(x, action)
    batch = prepared(algorithm, 0.0, 1.0).replace(noise=torch.full((3, 1), 0.4))
    parts.deterministic_target(algorithm, batch)
    assert_close(seen[0], torch.ones(3, 1))


@pytest.mark.parametrize(("normalize", "dtype"), [(False, torch.float32), (True, torch.float64)])
def test_observations_in_double_precision_are_converted_once_unless_they_are_normalised(normalize, dtype):
    # A normaliser subtracts a mean first; rounded to single precision before, a clock that says 10^9 would stand still.
    algorithm = made("td3", torch.float64, normalize_observation=normalize)
    drawn = windows(0.0, 1.0)
    drawn.update(observation=drawn.observation.double(), next_observation=drawn.next_observation.double())
    source: Any = SimpleNamespace(draw=lambda plan, generator: drawn)
    minibatch = first_minibatch(algorithm, source)
    assert minibatch.observation.dtype == minibatch.next_observation.dtype == dtype
    assert drawn.observation.dtype == torch.float64
    assert algorithm.losses(minibatch).terms["critic"].dtype == torch.float32


@pytest.mark.parametrize("name", ["td3", "td3_bc"])
def test_the_actor_and_all_targets_move_at_every_second_step_only(name):
    """TD3, algorithm 1: the delay d."""
    algorithm, collector = collected(name, "continuous", policy_period=2, gradient_steps=1, normalize_observation=False)
    components = algorithm.model.component

    def state(component: str) -> list[torch.Tensor]:
        return [p.detach().clone() for p in components[component].parameters()]

    moved = []
    for _ in range(4):
        before = {component: state(component) for component in components}
        algorithm.update(collector.buffer)
        after = {component: state(component) for component in components}
        moved.append({c for c in before if not all(map(torch.equal, before[c], after[c]))})
    assert moved[0] == moved[2] == {"critic"}
    assert moved[1] == moved[3] == {"actor", "critic", "target_actor", "target_critic"}


@pytest.mark.parametrize("name", ["ddpg", "td3", "td3_bc"])
def test_the_actor_term_trains_the_actor_alone(name):
    """The deterministic policy gradient goes through the critic and stops at the actor's parameters."""
    algorithm = made(name, **({} if name == "ddpg" else {"policy_period": 1}))
    batch = prepared(algorithm, 1.0, 1.0)
    together = algorithm.gradients(batch).values
    critic = {k: v for k, v in together.items() if k.startswith("critic.")}
    alone = algorithm.model.get_gradients(algorithm.losses(batch).terms["critic"], ["critic"])
    for key, gradient in alone.items():
        assert_close(critic[key], gradient)
    assert any(v.any() for k, v in together.items() if k.startswith("actor."))


def test_td3_follows_its_first_critic():
    algorithm = made("td3", policy_period=1)
    batch = prepared(algorithm, 1.0, 1.0)
    before = algorithm.losses(batch).terms["actor"]
    with torch.no_grad():
        algorithm.critic.layers[0].bias[1] += 100.0
    assert_close(algorithm.losses(batch).terms["actor"], before)
    with torch.no_grad():
        algorithm.critic.layers[0].bias[0] += 100.0
    assert_close(algorithm.losses(batch).terms["actor"], before - 100.0)


def test_without_value_weight_td3_bc_is_behaviour_cloning():
    """Fujimoto and Gu, equation (3): what is left is the squared distance to the data's actions, here 0.5."""
    algorithm = made("td3_bc", value_weight=0.0, policy_period=1, normalize_observation=False)
    constant(algorithm.policy.network, 0.0)
    assert algorithm.losses(prepared(algorithm, 1.0, 1.0)).terms["actor"].item() == pytest.approx(0.25)


def test_the_weight_of_values_does_not_depend_on_the_rewards_scale():
    """Equation (5): alpha over the mean size of Q; values of 4 and of 400 count alike."""
    terms = []
    for scale in (4.0, 400.0):
        algorithm = made("td3_bc", value_weight=2.0, policy_period=1, normalize_observation=False)
        constant(algorithm.policy.network, 0.0)
        constant(algorithm.critic, scale)
        terms.append(algorithm.losses(prepared(algorithm, 1.0, 1.0)).terms["actor"].item())
    assert terms == pytest.approx([0.25 - 2.0] * 2, rel=1e-5)


@pytest.mark.parametrize("name", ["ddpg", "td3"])
def test_noise_is_added_while_collecting(name):
    algorithm, collector = collected(name, "continuous", exploration_std=0.5)
    step = collector.env.reset()
    collect = algorithm.policy.act(step, phase=Phase.COLLECT).action
    update = algorithm.policy.act(step, phase=Phase.UPDATE).action
    assert not torch.allclose(collect, update)
    assert_close(update, algorithm.policy.action(step.observation).detach())
