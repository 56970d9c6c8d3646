"""Tests of `palaestra.algorithms.exploration_bonus` and `exploration_bonuses`."""

import gymnasium
import numpy as np
import pytest
import torch
from torch.testing import assert_close

import palaestra
from palaestra import Collector, EnvConfig
from palaestra.algorithms import BonusConfig, ExplorationBonus
from palaestra.algorithms.algorithm import UpdateInfo
from palaestra.core import Batch, ConfigError, StepType, load_tensors, save_tensors
from palaestra.experiments import load_config, read_metrics
from palaestra.nn import OptimizerOption
from palaestra.testing.algorithms import different, parameters
from tests.algorithms.parts import Masked, collected, environment, make
from tests.experiments.parts import trained

CASES = pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ppo", "discrete"),
        ("ppo", "continuous"),
        ("ppo", "composite"),
        ("ppo", "recurrent"),
        ("dqn", "masked"),
        ("sac", "continuous"),
        ("r2d2", "recurrent"),
        ("a2c", "discrete"),
        ("impala", "composite"),
        ("reinforce", "recurrent"),
        ("sarsa", "discrete"),
    ],
)
BONUSES = pytest.mark.parametrize("bonus", ["rnd", "icm"])


def with_bonus(name, kind, bonus, seed=3, **changes):
    return collected(name, kind, seed=seed, bonus=BonusConfig(kind=bonus, hidden_sizes=(8,), feature_size=4), **changes)


@CASES
@BONUSES
def test_any_algorithm_takes_a_bonus(name, kind, bonus):
    """Its networks learn beside the algorithm's, in the same minibatches; what is fixed stays."""
    algorithm, collector = with_bonus(name, kind, bonus)
    assert "bonus" in algorithm.model.optimizers
    before, fixed = parameters(algorithm), algorithm.bonus.fixed.state_dict()
    fixed = {key: value.clone() for key, value in fixed.items() if key.startswith("target")}
    info = algorithm.update(collector.buffer)
    trained = {f"component.{key}" for key in algorithm.model.optimizers["bonus"].names}
    assert trained <= set(different(before, parameters(algorithm)))
    assert all(torch.equal(value, algorithm.bonus.fixed.state_dict()[key]) for key, value in fixed.items())
    assert info.metrics["bonus_mean"] > 0
    assert {"bonus", "gradient_norm/bonus"} <= info.metrics.keys()


@BONUSES
def test_a_run_with_a_bonus_resumes_bit_for_bit(bonus, tmp_path):
    """F25: running statistics and networks of the bonus are part of the model's state."""
    algorithm, collector = with_bonus("ppo", "discrete", bonus)
    algorithm.update(collector.buffer)
    collector.unroll(12)
    save_tensors(tmp_path / "state.safetensors", algorithm.state_tensors())
    save_tensors(tmp_path / "buffer.safetensors", collector.buffer.state_tensors())
    other, twin = with_bonus("ppo", "discrete", bonus, seed=9)
    other.load_state_tensors(load_tensors(tmp_path / "state.safetensors"))
    twin.buffer.load_state_tensors(load_tensors(tmp_path / "buffer.safetensors"))
    assert algorithm.update(collector.buffer).metrics == other.update(twin.buffer).metrics
    assert not different(parameters(algorithm), parameters(other))


@BONUSES
def test_the_bonus_is_part_of_the_reward_where_an_action_led_somewhere(bonus):
    """Rows that lead from an episode's end to the next beginning get none; the stored rewards stay as they are."""
    algorithm, collector = with_bonus("ppo", "discrete", bonus)
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
    stored = drawn.reward.clone()
    rewarded, mean = algorithm.bonus.rewarded(drawn)
    gained = rewarded.reward - drawn.reward
    assert torch.equal(drawn.reward, stored)
    assert not gained[0].any()
    assert (gained[1:][drawn.valid == 1] > 0).all()
    begins = drawn.step_type[1:] == StepType.FIRST
    assert begins.any()
    assert not gained[1:][begins].any()
    assert_close(mean, gained[1:][drawn.valid == 1].mean())


@BONUSES
def test_bonuses_are_measured_in_their_running_standard_deviation(bonus):
    algorithm, collector = with_bonus("ppo", "discrete", bonus)
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
    gained = algorithm.bonus.rewarded(drawn)[0].reward[1:] - drawn.reward[1:]
    assert_close(
        gained[drawn.valid == 1].std(correction=0), torch.tensor(algorithm.bonus.config.weight), rtol=1e-3, atol=0
    )


@BONUSES
def test_a_bonus_is_bounded_where_all_that_was_seen_is_alike(bonus):
    """There is no deviation to divide by; the mean tells what size novelty has."""
    algorithm, collector = with_bonus("ppo", "discrete", bonus)
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
    drawn = drawn.replace(observation=torch.ones_like(drawn.observation), action=torch.zeros_like(drawn.action))
    gained = algorithm.bonus.rewarded(drawn)[0].reward[1:] - drawn.reward[1:]
    assert_close(gained[drawn.valid == 1].mean(), torch.tensor(10 * algorithm.bonus.config.weight), rtol=1e-3, atol=0)


@BONUSES
def test_what_was_seen_often_is_no_longer_new(bonus):
    """After training on one transition its novelty is a small part of that of a transition never seen."""
    with environment("discrete") as env:
        algorithm = make("ppo", env, bonus=BonusConfig(kind=bonus))
    x = torch.zeros(2, env.observation_spec.shape[0])
    x[0, 0], x[1, -1] = 1.0, 1.0
    action = torch.tensor([0, 2])
    known = Batch.of({"observation": x[:1], "action": action[:1], "next_observation": x[:1] * 0.5})
    for _ in range(300):
        algorithm.model.step(algorithm.bonus.loss(Batch.of({"bonus": known})))
    with torch.no_grad():
        old, new = algorithm.bonus.novelty(x, action, torch.stack((x[0] * 0.5, x[1]))).tolist()
    assert old < 0.05 * new


def ready(bonus):
    """A bonus that has learned a little, and rows of which one does not count."""
    algorithm, collector = with_bonus("ppo", "discrete", bonus)
    algorithm.update(collector.buffer)
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
    rows = algorithm.bonus.transitions(drawn, torch.Generator())
    return algorithm.bonus, rows, drawn.valid * (torch.arange(drawn.valid.shape[1]) > 0)


def test_the_loss_of_curiosity_is_that_of_a_plain_transcription():
    """Pathak et al. 2017, (2) to (7), gradients included: features learn what was done, not what is easy to foresee."""
    bonus, rows, valid = ready("icm")
    features, inverse, dynamics = (bonus.trained[name] for name in ("features", "inverse", "dynamics"))
    before, after = (features(bonus.fixed["normalizer"](x)) for x in (rows.observation, rows.next_observation))
    logits = inverse(torch.cat((before, after), -1))[0]
    likely = logits.log_softmax(-1).gather(-1, rows.action.long().unsqueeze(-1)).squeeze(-1)
    foreseen = dynamics(Batch.of({"features": before.detach(), "action": rows.action}))
    surprise = ((foreseen - after.detach()) ** 2).mean(-1) / 2
    expected = ((-0.8 * likely + 0.2 * surprise) * valid).sum() / valid.sum()
    found = bonus.loss(Batch.of({"bonus": rows, "valid": valid}))
    assert_close(found, expected)
    every = list(bonus.trained.parameters())
    assert_close(torch.autograd.grad(found, every), torch.autograd.grad(expected, every))


def test_the_loss_of_distillation_is_that_of_a_plain_transcription():
    """Burda et al. 2019, section 2.2: of what came of an action."""
    bonus, rows, valid = ready("rnd")
    seen = bonus.fixed["normalizer"](rows.next_observation)
    errors = ((bonus.trained["predictor"](seen) - bonus.fixed["target"](seen)) ** 2).mean(-1)
    assert_close(bonus.loss(Batch.of({"bonus": rows, "valid": valid})), (errors * valid).sum() / valid.sum())
    far = rows.replace(observation=rows.observation + 1)
    assert_close(bonus.novelty(seen * 0, rows.action, seen), errors)
    assert_close(bonus.loss(Batch.of({"bonus": far})), errors.mean())


@BONUSES
def test_rows_that_lead_nowhere_are_in_no_statistic(bonus):
    """The first observation of an episode did not come of an action."""
    gained, counts = [], []
    for size in (0.0, 100.0):
        algorithm, collector = with_bonus("ppo", "discrete", bonus)
        drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
        begins = (drawn.step_type == StepType.FIRST).unsqueeze(-1)
        begins[0] = False
        drawn = drawn.replace(observation=torch.where(begins, drawn.observation + size, drawn.observation))
        rewarded, _ = algorithm.bonus.rewarded(drawn)
        gained.append((rewarded.reward - drawn.reward)[1:][drawn.valid == 1])
        statistics = [algorithm.bonus.fixed["scale"].moments.count]
        if "normalizer" in algorithm.bonus.fixed:
            statistics += [x for key, x in algorithm.bonus.fixed["normalizer"].state_dict().items() if "count" in key]
        counts.append([float(x) for x in statistics])
        assert set(counts[-1]) == {float(drawn.valid.sum())}
    assert begins.any()
    if bonus == "rnd":  # curiosity looks at where an action began, too
        assert_close(gained[0], gained[1])


def test_windows_of_several_steps_are_refused():
    """Their middle observations are not drawn, so the novelty in between is unknown."""
    with pytest.raises(ConfigError, match="needs n_step=1 and was given n_step=3"):
        with_bonus("dqn", "discrete", "rnd", n_step=3)


def test_an_unknown_bonus_is_named():
    with pytest.raises(
        ConfigError, match=r"bonus\.kind is 'rdn'; it must be rnd, icm, gail or airl, or your own as my_package:MyBonus"
    ):
        BonusConfig(kind="rdn")
    with pytest.raises(ConfigError, match=r"bonus\.weight is 0"):
        BonusConfig(weight=0.0)


def test_observations_of_a_bonus_are_clipped_at_five_standard_deviations():
    """Burda et al. 2019, section 2.4."""
    algorithm, _ = with_bonus("ppo", "discrete", "rnd")
    assert algorithm.bonus.fixed["normalizer"].clip == 5.0


def test_the_optimizer_of_a_bonus_can_be_chosen():
    options = {"bonus": OptimizerOption("sgd", {"lr": 0.5})}
    algorithm, _ = collected("ppo", "discrete", bonus=BonusConfig(kind="rnd", weight=1.0), optimizers=options)
    assert algorithm.model.optimizers["bonus"].option.cls == "sgd"


def test_later_episodes_of_a_sequence_have_their_bonus_too():
    """A memory learns from every episode in a sequence, so a bonus for the first alone would bias its targets."""
    settings = {"bonus": BonusConfig(kind="rnd"), "mini_batch_length": 12, "burn_in": 0}
    algorithm, collector = collected("r2d2", "recurrent", **settings)
    collector.unroll(24)
    drawn = algorithm.draw(collector.buffer)
    rewarded = algorithm._rewarded(drawn, UpdateInfo(1, 0, 0))
    learned = algorithm.preprocess(rewarded, collector.buffer).valid > 0
    assert (learned & (drawn.valid == 0)).any()
    assert ((rewarded.reward - drawn.reward)[1:][learned] != 0).all()


class Reconstruction(ExplorationBonus):
    """Novel is what cannot be told from four numbers yet."""

    def __init__(self, config, observation_spec, action_spec):
        super().__init__(config, observation_spec)
        size = observation_spec.size
        self.trained["autoencoder"] = torch.nn.Sequential(torch.nn.Linear(size, 4), torch.nn.Linear(4, size))

    def novelty(self, observation, action, next_observation):
        return self.errors(observation, action, next_observation)

    def errors(self, observation, action, next_observation):
        return (self.trained["autoencoder"](next_observation) - next_observation).square().mean(-1)


class OfAnotherCall(Reconstruction):
    def __init__(self, config, observation_spec):
        super().__init__(config, observation_spec, None)


def nothing(config, observation_spec, action_spec):
    """Makes no bonus."""


def test_a_bonus_of_ones_own_is_named_and_goes_on_after_a_resume(tmp_path):
    """The page said to write a class that no algorithm could be given."""
    name = f"{__name__}:Reconstruction"
    run = trained(tmp_path, algorithm__bonus__kind=name, algorithm__bonus__weight=0.2)
    again = palaestra.resume(run.directory, trainer__total_env_steps=160)
    assert load_config(again.directory / "config.yaml").algorithm.bonus.kind == name
    rows = read_metrics(again.directory)
    assert all(row["learning/bonus_mean"] > 0 for row in (rows[1], rows[-1]))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("palaestra.algorithms:PPO", "a LearnedReward is needed"),
        (OfAnotherCall, r"is called as OfAnotherCall\(config, observation_spec, action_spec\): .*takes 3"),
        (f"{__name__}:nothing", "makes a NoneType; a LearnedReward is needed"),
    ],
)
def test_what_is_no_bonus_is_refused_with_what_is_needed(kind, why):
    with pytest.raises(ConfigError, match=why):
        with_bonus("ppo", "discrete", kind)


class FloatMask(Masked):
    """The mask is a box of floats, and the only one."""

    def __init__(self):
        super().__init__()
        mask, self.place = gymnasium.spaces.Box(0, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)
        self.observation_space = gymnasium.spaces.Dict(action_mask=mask, place=self.place)

    def _observation(self):
        mask = super()._observation()["action_mask"].astype(np.float32)
        return {"action_mask": mask, "place": int(mask[0])}


@pytest.mark.parametrize("kind", ["rnd", "icm", "gail"])
def test_a_mask_of_floats_is_no_number_to_normalise(kind):
    """Such environments were refused, by the name of a setting that nobody had given."""
    env = environment(EnvConfig(name=f"{__name__}:FloatMask"))
    algorithm = make("ppo", env, bonus=BonusConfig(kind=kind, hidden_sizes=(8,)))
    assert "normalizer" not in algorithm.bonus.fixed
    collector = Collector.of(env, algorithm)
    collector.unroll(12)
    if kind == "gail":
        seen = env.reset().observation
        rows = {"observation": seen, "action": torch.zeros(3, dtype=torch.int64), "next_observation": seen}
        algorithm.bonus.imitate(Batch.of(rows))
    assert algorithm.update(collector.buffer).metrics["bonus_mean"] > 0
