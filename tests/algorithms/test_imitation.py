"""Tests of `palaestra.algorithms.imitation`: rewards learned from demonstrations."""

import gymnasium
import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid
from torch.testing import assert_close

from palaestra import Collector, EnvConfig
from palaestra.algorithms import BonusConfig
from palaestra.core import Batch, ConfigError, load_tensors, save_tensors
from palaestra.core.tree import tree_map
from palaestra.testing.algorithms import different, parameters
from tests.algorithms.parts import collected, environment, make

KINDS = pytest.mark.parametrize("kind", ["gail", "airl"])


def imitating(kind, space="continuous", name="ppo", seed=3, **changes):
    """An algorithm that imitates its own first rows, with other actions where these are floats; and its collector."""
    bonus = BonusConfig(kind=kind, hidden_sizes=(8,), **changes)
    algorithm, collector = collected(name, space, seed=seed, bonus=bonus)
    drawn = algorithm.draw(collector.buffer)
    algorithm.bonus.imitate(Batch.of({"observation": 0, "action": 0, "next_observation": 0}))
    rows = super(type(algorithm.bonus), algorithm.bonus).transitions(drawn, torch.Generator())
    if "next_observation" not in drawn:
        rows = tree_map(lambda leaf: leaf.flatten(0, 1), rows)
    action = tree_map(lambda leaf: -leaf if leaf.dtype.is_floating_point else leaf, rows["action"])
    algorithm.bonus.imitate(rows.replace(action=action))
    return algorithm, collector, drawn


def plain_f(bonus, observation, action, after):
    """g of GAIL, g(s, a) + γ h(s') − h(s) of AIRL."""
    g = bonus.trained["reward"](Batch.of({"observation": observation, "action": action})).squeeze(-1)
    if bonus.config.kind == "gail":
        return g
    h = bonus.trained["potential"]
    return g + (0.99 * h(after) - h(observation)).squeeze(-1)


def inputs(bonus, policy, rows):
    """What f sees."""
    executed = policy.env_action(rows["action"])
    return bonus.normalized(rows["observation"]), executed, bonus.normalized(rows["next_observation"])


def plain_logit(bonus, policy, rows):
    """log D − log(1 − D) of each row, as both papers write it."""
    f = plain_f(bonus, *inputs(bonus, policy, rows))
    if bonus.config.kind == "gail":
        return f
    return f - policy.distribution(rows["observation"]).log_prob(rows["action"]).detach()


@KINDS
@pytest.mark.parametrize("space", ["continuous", "discrete", "composite", "masked"])
def test_the_discriminator_is_that_of_a_plain_transcription(kind, space):
    """Ho and Ermon 2016, algorithm 1, line 4; Fu et al. 2018, equation (4) and algorithm 1, line 6."""
    algorithm, _, drawn = imitating(kind, space, gradient_penalty=0.0)
    bonus = algorithm.bonus
    bonus.rewarded(drawn)  # statistics of observations
    rows = bonus.transitions(drawn, torch.Generator().manual_seed(1))
    here, there = (plain_logit(bonus, algorithm.policy, part) for part in (rows, rows["demonstrated"]))
    expected = -0.5 * logsigmoid(there) - 0.5 * logsigmoid(-here)
    assert_close(bonus.losses(rows), expected)
    valid = drawn.valid * (torch.arange(drawn.valid.shape[1]) > 0)
    found = bonus.loss(Batch.of({"bonus": rows, "valid": valid}))
    wanted = (expected * valid).sum() / valid.sum()
    assert_close(found, wanted)
    weights = list(bonus.trained.parameters())
    assert_close(torch.autograd.grad(found, weights), torch.autograd.grad(wanted, weights))


@pytest.mark.parametrize("space", ["masked", "composite"])
def test_no_network_of_the_discriminator_sees_which_actions_are_allowed(space):
    algorithm, _, drawn = imitating("gail", space)
    rows = algorithm.bonus.transitions(drawn, torch.Generator())
    seen = rows["observation"]
    mask = tree_map(lambda leaf: 1 - leaf.int(), seen["action_mask"])
    other = rows.replace(observation=seen.replace(action_mask=mask))
    assert torch.equal(algorithm.bonus.rewards(other, drawn.valid), algorithm.bonus.rewards(rows, drawn.valid))


@KINDS
def test_the_penalty_of_slopes_is_that_of_a_plain_transcription(kind):
    """Gulrajani et al. 2017, equation (3), as Kostrikov et al. 2019 use it: of all that f is made of."""
    algorithm, _, drawn = imitating(kind, gradient_penalty=3.0)
    bonus = algorithm.bonus
    rows = bonus.transitions(drawn, torch.Generator().manual_seed(1))
    here, there = (
        inputs(bonus, algorithm.policy, part)[: 2 if kind == "gail" else 3] for part in (rows, rows["demonstrated"])
    )
    share = rows["mix"].unsqueeze(-1)
    between = [(share * a + (1 - share) * b).requires_grad_() for a, b in zip(here, there, strict=True)]
    f = plain_f(bonus, *between[:2], between[-1])
    slopes = torch.autograd.grad(f.sum(), between, create_graph=True)
    penalty = 1.5 * (torch.cat(slopes, -1).norm(dim=-1) - 1) ** 2
    logits = [plain_logit(bonus, algorithm.policy, part) for part in (rows, rows["demonstrated"])]
    expected = penalty - 0.5 * logsigmoid(-logits[0]) - 0.5 * logsigmoid(logits[1])
    found = bonus.losses(rows)
    assert_close(found, expected)
    weights = list(bonus.trained.parameters())
    given = (torch.autograd.grad(loss.mean(), weights, allow_unused=True) for loss in (found, expected))
    assert_close(*given)


class Numbers(gymnasium.Env):
    """Observation and action are one number each, of no axis."""

    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.float32(self.np_random.uniform(-1, 1)), {}

    def step(self, action):
        return np.float32(self.np_random.uniform(-1, 1)), 1.0, self.np_random.random() < 0.2, False, {}


@pytest.mark.parametrize(("name", "kind"), [("ppo", "gail"), ("ppo", "airl"), ("sac", "gail")])
def test_slopes_of_numbers_without_an_axis_are_penalised_too(name, kind):
    """The penalty asked for an axis that they have not."""
    env = environment(EnvConfig(name=f"{__name__}:Numbers"))
    algorithm = make(name, env, bonus=BonusConfig(kind=kind, hidden_sizes=(8,), gradient_penalty=3.0))
    shown = torch.rand(6, generator=torch.Generator().manual_seed(1))
    rows = {"observation": shown, "action": shown.unsqueeze(-1), "next_observation": shown.flip(0)}
    algorithm.bonus.imitate(Batch.of(rows))
    collector = Collector.of(env, algorithm)
    collector.unroll(12)
    metrics = algorithm.update(collector.buffer).metrics
    assert 0 < metrics["gradient_norm/bonus"] < float("inf")


@KINDS
def test_rewards_are_the_discriminators_and_not_the_environments(kind):
    """−log(1 − D), or log D − log(1 − D), of actions that led somewhere."""
    algorithm, _, drawn = imitating(kind)
    rewarded, mean = algorithm.bonus.rewarded(drawn.replace(reward=drawn.reward + 100))
    with torch.no_grad():
        logit = plain_logit(algorithm.bonus, algorithm.policy, algorithm.bonus.transitions(drawn, torch.Generator()))
    expected = -logsigmoid(-logit) if kind == "gail" else logit
    counts = drawn.valid == 1
    assert counts.any()
    assert not counts.all()
    assert_close(rewarded.reward[1:][counts], expected[counts])
    assert not rewarded.reward[1:][~counts].any()
    assert_close(mean, expected[counts].mean())


def test_observations_are_normalised_by_what_both_have_seen_in_equal_parts():
    """By the policy's alone, all that the demonstrator does beyond 5 deviations of them would look the same."""
    algorithm, _, drawn = imitating("gail")
    bonus = algorithm.bonus
    seen = 100 + torch.arange(30.0).reshape(10, 3)
    bonus.imitate(Batch.of({"observation": seen, "action": torch.zeros(10, 2), "next_observation": seen}))
    for _ in range(2):
        bonus.rewarded(drawn)
    after = drawn.observation[1:][drawn.valid == 1].double()
    moments = bonus.fixed["normalizer"].moments
    assert moments.count == 4 * len(after)
    assert_close(moments.mean, (after.mean(0) + seen.double().mean(0)) / 2)
    second = (after.square().mean(0) + seen.double().square().mean(0)) / 2
    assert_close(moments.m2 / moments.count, second - moments.mean.square())
    assert (bonus.normalized(seen).diff(dim=0) > 0).all()


@KINDS
def test_a_run_that_imitates_resumes_bit_for_bit(kind, tmp_path):
    algorithm, collector, drawn = imitating(kind)
    seen = drawn.observation
    rows = Batch.of({"observation": seen[:-1], "action": -drawn.action, "next_observation": seen[1:]})
    shown = tree_map(lambda leaf: leaf.flatten(0, 1).clone(), rows)  # what was drawn is written over
    algorithm.bonus.imitate(shown)
    collector.unroll(12)
    algorithm.update(collector.buffer)
    collector.unroll(12)
    save_tensors(tmp_path / "state.safetensors", algorithm.state_tensors())
    save_tensors(tmp_path / "buffer.safetensors", collector.buffer.state_tensors())
    other, twin = collected("ppo", "continuous", seed=9, bonus=algorithm.bonus.config)
    other.bonus.imitate(shown)
    other.load_state_tensors(load_tensors(tmp_path / "state.safetensors"))
    twin.buffer.load_state_tensors(load_tensors(tmp_path / "buffer.safetensors"))
    assert algorithm.update(collector.buffer).metrics == other.update(twin.buffer).metrics
    assert not different(parameters(algorithm), parameters(other))


@pytest.mark.parametrize(("name", "space"), [("sac", "continuous"), ("dqn", "masked"), ("r2d2", "recurrent")])
def test_algorithms_that_replay_imitate_too(name, space):
    algorithm, collector, _ = imitating("gail", space, name)
    before = parameters(algorithm)
    info = algorithm.update(collector.buffer)
    changed = different(before, parameters(algorithm))
    assert {f"component.{key}" for key in algorithm.model.optimizers["bonus"].names} <= set(changed)
    assert info.metrics["bonus_mean"] > 0


def test_what_cannot_be_imitated_is_refused_with_what_to_give():
    with pytest.raises(ConfigError, match=r"airl needs .* SquashedGaussianPolicy does not say; give gail"):
        collected("sac", "continuous", bonus=BonusConfig(kind="airl"))
    with pytest.raises(ConfigError, match="with a memory alone; give gail"):
        collected("ppo", "recurrent", bonus=BonusConfig(kind="airl"))
    algorithm, collector = collected("ppo", "continuous", bonus=BonusConfig(kind="gail"))
    with pytest.raises(ConfigError, match=r"needs demonstrations: name some by offline\.data"):
        algorithm.update(collector.buffer)
