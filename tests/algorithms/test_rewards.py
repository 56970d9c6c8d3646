"""Vectors of rewards: weights, and constraints with Lagrange multipliers."""

import json
import math
import shutil

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import palaestra
from palaestra import Collector, EnvConfig, Trainer, TrainerConfig, create_environment
from palaestra.algorithms import ALGORITHMS, RewardConfig, RewardWeights
from palaestra.algorithms.parts import kept_besides
from palaestra.core import Batch, ConfigError, Linear, OnPolicy, Prioritized, Replay
from palaestra.core.schedule import schedule_value
from palaestra.experiments import collect_data
from palaestra.policies import Phase
from tests.cli.parts import exit_code

BARGAIN = "tests.algorithms.test_rewards:Bargain"


class Bargain(gymnasium.Env):
    """Action 1 gains 1 and costs 1; action 0 gains 0.2 for nothing. Ten steps."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    reward_space = gymnasium.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        reward = [1.0, -1.0] if action else [0.2, 0.0]
        return np.ones(1, np.float32), np.array(reward, np.float32), self.steps == 10, False, {}


SETTINGS = {
    "ppo": {"unroll_length": 32, "learning_rate": 0.003},
    "a2c": {"unroll_length": 16, "learning_rate": 0.003},
    "dqn": {"learning_starts": 100, "learning_rate": 0.01, "mini_batch_size": 32, "unroll_length": 4},
    "discrete_sac": {"learning_starts": 100, "mini_batch_size": 32, "learning_rate": 0.01, "unroll_length": 4},
    "trpo": {"unroll_length": 32},
}


def trained(name, rewards, env_steps, **settings):
    """An algorithm after so many env steps in `Bargain`."""
    kind = ALGORITHMS[name]
    with create_environment(EnvConfig(name=BARGAIN, num_envs=8), seed=1) as env:
        config = kind.config_class(**{**SETTINGS[name], **settings}, rewards=rewards)
        algorithm = kind(env.observation_spec, env.action_spec, config)
        Trainer(Collector.of(env, algorithm), algorithm, TrainerConfig(total_env_steps=env_steps)).run()
    return algorithm


def learned(run):
    """All that the newest checkpoint of a run keeps of its algorithm."""
    newest = sorted((run / "checkpoints").glob("step_*"))[-1]
    return {key: value for file in newest.glob("algorithm*.safetensors") for key, value in load_file(file).items()}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("weights", "best"), [((1.0, 0.5), 1), ((1.0, 2.0), 0)])
def test_weights_decide_what_is_learned(name, weights, best):
    """Action 1 is worth 1 - w, action 0 is worth 0.2."""
    algorithm = trained(name, RewardConfig(weights=weights), 2000)
    with algorithm.policy.in_phase(Phase.EVAL):
        assert algorithm.policy(torch.ones(1, 1)).tolist() == [best]


def test_a_multiplier_rises_until_its_constraint_holds():
    """A cost of 0.3 a step is allowed. Action 1 has that probability where 1 - w - 0.2 is the entropy cost times its
    logit."""
    rewards = RewardConfig(weights=(1.0, 0.0), thresholds=(None, -0.3), multiplier_learning_rate=0.05)
    algorithm = trained("a2c", rewards, 14_000, learning_rate=0.01, entropy_cost=0.2, gamma=0.0)
    expected = 0.8 - 0.2 * math.log(0.3 / 0.7)
    assert algorithm.rewards.value.tolist() == pytest.approx([1.0, expected], abs=0.05)
    probability = algorithm.policy.distribution(torch.ones(1, 1)).probs[0, 1].detach()
    assert float(probability) == pytest.approx(0.3, abs=0.1)


def test_multipliers_see_transitions_inside_episodes_only():
    """The row after a LAST row has no reward, and a row that is not valid none that counts."""
    weights = RewardWeights(RewardConfig(weights=(1.0, 0.0), thresholds=(None, 0.0), multiplier_learning_rate=1.0))
    reward = torch.tensor([[9.0, 9.0], [1.0, -2.0], [2.0, -4.0], [0.0, 0.0], [3.0, -90.0]])[:, None]
    step_type, valid = torch.tensor([0, 1, 2, 0, 1])[:, None], torch.tensor([1, 1, 1, 0])[:, None]
    drawn = Batch.of({"reward": reward, "step_type": step_type, "valid": valid})
    drawn = weights.learned_from(drawn, OnPolicy(unroll_length=4), 0.0)
    assert drawn["reward"][:, 0].tolist() == [9, 1, 2, 0, 3]  # by the weights before they move
    assert weights.value.tolist() == [1, 3]


def test_multipliers_stay_where_nothing_is_known():
    """An unroll without a row that counts is no mean of 0."""
    weights = RewardWeights(RewardConfig(weights=(1.0, 0.5), thresholds=(None, 0.0), multiplier_learning_rate=1.0))
    drawn = {"reward": torch.ones(3, 1, 2), "step_type": torch.ones(3, 1).int(), "valid": torch.zeros(2, 1)}
    weights.learned_from(Batch.of(drawn), OnPolicy(unroll_length=2), 0.0)
    assert weights.value.tolist() == [1, 0.5]


def constrained():
    return RewardWeights(RewardConfig(weights=(1, 0), thresholds=(None, 0.0), multiplier_learning_rate=1.0))


def test_multipliers_see_later_episodes_of_a_sequence_and_not_what_only_leads_up_to_it():
    """As the losses of algorithms with a memory do; `valid` ends with the first episode."""
    reward, step_type = torch.zeros(7, 1, 2), torch.tensor([0, 1, 2, 0, 1, 1, 2])[:, None]
    reward[1:, 0, 1] = torch.tensor([-50.0, -60.0, 0.0, -1.0, -2.0, -3.0])
    drawn = {"reward": reward, "step_type": step_type, "valid": torch.tensor([0, 0, 0, 0, 0, 0])[:, None]}
    drawn |= {"index": torch.zeros(1), "state": torch.zeros(1, 1, 1)}
    weights, plan = constrained(), Replay(unroll_length=1, mini_batch_length=4, burn_in=2)
    weights.learned_from(Batch.of(drawn), plan, 0.0)
    assert weights.value.tolist() == [1, 2]
    drawn["step_type"] = torch.tensor([1, 2, 1, 0, 1, 1, 2])[:, None]  # behind a gap, another episode goes on
    weights = constrained()
    weights.learned_from(Batch.of(drawn), plan, 0.0)
    assert weights.value.tolist() == [1, 2]


def test_multipliers_see_the_first_reward_of_a_window():
    """Rows behind it are the first of other windows, and behind the end of an episode come none of its own."""
    weights = constrained()
    reward = torch.tensor([[7.0, -70.0], [1.0, -2.0], [3.0, -90.0]])[:, None]
    drawn = {"reward": reward, "step_type": torch.tensor([[1], [2], [0]]), "next_observation": torch.zeros(1)}
    weights.learned_from(Batch.of(drawn), Replay(unroll_length=1, n_step=2), 0.0)
    assert weights.value.tolist() == [1, 2]


@pytest.mark.parametrize("beta", [1.0, 0.4, Linear(0.5, 1.0)])
def test_rows_that_are_drawn_by_priority_count_as_if_all_were_drawn_equally_often(beta):
    """Half of all rows cost 2; they are drawn nine times as often."""
    weights, probability = constrained(), torch.tensor([0.18] * 9 + [0.02])
    costs = torch.tensor([-2.0] * 9 + [0.0])
    reward = torch.stack((torch.zeros(2, 10), costs.expand(2, 10)), -1)
    importance = (10 * probability) ** -schedule_value(beta, 0.5)
    drawn = {"reward": reward, "next_observation": torch.zeros(10), "weight": importance / importance.max()}
    weights.learned_from(Batch.of(drawn), Replay(unroll_length=1, prioritized=Prioritized(beta=beta)), 0.5)
    assert weights.value.tolist() == pytest.approx([1, 1])


def test_constraints_on_rows_drawn_by_priority_need_their_weights():
    config = ALGORITHMS["dqn"].config_class(
        rewards=RewardConfig(weights=(1.0, 0.0), thresholds=(None, -0.3)), prioritized=True, priority_beta=0.0
    )
    with create_environment(EnvConfig(name=BARGAIN)) as env:
        algorithm = ALGORITHMS["dqn"](env.observation_spec, env.action_spec, config)
        with pytest.raises(ConfigError, match=r"let algorithm\.priority_beta stay above 0"):
            algorithm.require_reward(env.reward_spec)


@pytest.mark.parametrize("name", ["a2c", "trpo", "ppg", "evolution_strategies"])
def test_every_algorithm_says_how_rewards_are_weighted(name):
    kind = ALGORITHMS[name]
    with create_environment(EnvConfig(name=BARGAIN, num_envs=2)) as env:
        config = kind.config_class(rewards=RewardConfig(weights=(1.0, 0.5)))
        algorithm = kind(env.observation_spec, env.action_spec, config)
        collector = Collector.of(env, algorithm)
        collector.unroll(12)
        metrics = algorithm.update(collector.buffer).metrics
    assert [float(metrics[f"reward_weight/{number}"]) for number in range(2)] == [1.0, 0.5]


def test_a_constrained_run_resumes_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rewards = ("--algorithm.rewards.weights", "1", "0", "--algorithm.rewards.thresholds", "none", "-0.3")
    short = ("--trainer.total-env-steps", "96", "--trainer.checkpoint-every-steps", "40", "--run.no-tensorboard")
    options = ("--env.num-envs", "2", "--algorithm.unroll-length", "8", *rewards, *short)
    for name in ("whole", "again"):
        assert exit_code("train", "ppo", BARGAIN, *options, "--run.name", name) == 0
    for newer in sorted(tmp_path.glob("runs/again/checkpoints/step_*"))[1:]:
        shutil.rmtree(newer)
    assert exit_code("resume", "runs/again") == 0
    whole, again = (learned(tmp_path / "runs" / name) for name in ("whole", "again"))
    for key, value in whole.items():
        assert torch.equal(again[key], value), key
    assert any("reward_weights" in key and float(value[1]) > 0 for key, value in whole.items())
    rows = [json.loads(line) for line in (tmp_path / "runs/whole/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["eval/return_mean"] == rows[-1]["eval/info/reward_0"]  # what has no threshold
    info = json.loads((tmp_path / "runs/whole/run.json").read_text())
    assert info["best_return"] == rows[-1]["eval/return_mean"]  # of the newest policy, whatever came before
    assert rows[-1]["eval/info/reward_0"] in (2, 10)
    assert rows[-1]["learning/reward_weight/0"] == 1 and rows[-1]["learning/reward_weight/1"] > 0


def test_the_best_policy_is_the_best_by_the_weights(tmp_path, monkeypatch):
    """What costs most by the plain sum is best where costs count nothing."""
    monkeypatch.chdir(tmp_path)
    rewards = ("--algorithm.rewards.weights", "1", "0")
    short = ("--trainer.total-env-steps", "2000", "--trainer.eval-every-steps", "500", "--run.no-tensorboard")
    options = ("--env.num-envs", "8", "--algorithm.learning-rate", "0.01", *rewards, *short, "--run.name", "run")
    assert exit_code("train", "a2c", BARGAIN, *options) == 0
    found = palaestra.experiments.evaluate_run("runs/run", episodes=4)
    assert (found.return_mean, found.parts["reward_1"]) == (10, -10)


def test_weights_cannot_change_in_a_run_that_continues(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"algorithm__rewards__weights": (1.0, 0.0), "trainer__total_env_steps": 64, "trainer__eval_episodes": 0}
    palaestra.train("a2c", BARGAIN, **settings, run__name="run", run__tensorboard=False)
    with pytest.raises(ConfigError, match=r"algorithm.rewards.weights cannot change in a run that continues"):
        palaestra.resume("run", algorithm__rewards__weights=(5.0, 7.0), trainer__total_env_steps=128)


def test_vectors_of_data_are_learned_from_by_their_weights(tmp_path):
    """Data of numbers do not fit, which is said before anything starts."""
    data, numbers = str(tmp_path / "vectors"), str(tmp_path / "numbers")
    collect_data(None, EnvConfig(name=BARGAIN), data, steps=60)
    collect_data(None, EnvConfig(name=f"{__name__}:Plain"), numbers, steps=60)
    settings = {"trainer__total_env_steps": 20, "run__directory": str(tmp_path / "runs"), "run__tensorboard": False}
    settings |= {"algorithm__rewards__weights": (1.0, 0.5), "algorithm__mini_batch_size": 8}
    assert palaestra.train("discrete_cql", BARGAIN, offline__data=data, **settings).result.status == "done"
    with pytest.raises(ConfigError, match=r"its rewards have the shape \(\), but \(2,\) are needed"):
        palaestra.train("discrete_cql", BARGAIN, offline__data=numbers, **settings)


def always_one(observation):
    """A rule for `Bargain`."""
    return torch.ones(len(observation), dtype=torch.int64)


def test_what_does_not_look_at_rewards_needs_no_weights(tmp_path):
    """Behaviour cloning and DAgger were refused without some; returns of evaluations are plain sums."""
    collect_data(None, EnvConfig(name=BARGAIN), tmp_path / "vectors", steps=60)
    settings = {"trainer__total_env_steps": 40, "run__directory": str(tmp_path / "runs"), "run__tensorboard": False}
    settings |= {"algorithm__mini_batch_size": 8, "trainer__eval_episodes": 2}
    own = {"behaviour_cloning": {"offline__data": str(tmp_path / "vectors")}}
    own["dagger"] = {"algorithm__teacher": f"{__name__}:always_one"}
    for name, given in own.items():
        done = palaestra.train(name, BARGAIN, **settings, **given)
        assert done.result.status == "done"
        assert np.sum(done.result.evaluation.rewards, 1).tolist() == pytest.approx(done.result.evaluation.returns)


class Plain(Bargain):
    """Its rewards are numbers."""

    reward_space = None

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, float(reward.sum()), *rest


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": (1.0,), "thresholds": (None, -1.0)}, "rewards.thresholds has 2 entries and rewards.weights 1"),
        ({"weights": (1.0, -1.0), "thresholds": (None, 0.5)}, "a multiplier begins at 0 or above"),
        ({"weights": (1.0, math.nan)}, "must be finite numbers; given was nan"),
        ({"multiplier_learning_rate": 0.0}, "it must be greater than 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        RewardConfig(**settings)


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        (BARGAIN, [], "shape [2], and PPO maximises one number; say what each of them counts"),
        (
            BARGAIN,
            ["--algorithm.rewards.weights", "1"],
            "has 1 entries, but the environment's rewards have the shape [2]",
        ),
        ("CartPole-v1", ["--algorithm.rewards.weights", "1", "2"], "one weight for each reward of a vector"),
    ],
)
def test_weights_that_do_not_fit_the_environment_are_refused(env, options, message, tmp_path, capsys):
    assert exit_code("train", "ppo", env, *options, "--run.directory", str(tmp_path)) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("n_step", [1, 3])
def test_vectors_from_before_wrappers_are_summed_number_by_number(n_step):
    """`env.untransformed` beside replay."""
    reward = torch.rand(n_step + 1, 4, 2)
    rows = {
        "untransformed": Batch(observation=torch.rand(n_step + 1, 4, 3), reward=reward),
        "discount": torch.ones(n_step + 1, 4),
        "step_type": torch.ones(n_step + 1, 4, dtype=torch.int32),
        "next_observation": torch.rand(4, 3),
    }
    kept = kept_besides(Batch.of(rows), 0.9)["untransformed"]
    weights = 0.9 ** torch.arange(n_step).view(-1, 1, 1)
    torch.testing.assert_close(kept.reward, (reward[1:] * weights).sum(0))
