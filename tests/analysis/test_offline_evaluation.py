"""Tests of `palaestra.analysis.offline_evaluation`: fitted Q evaluation beside a value that is known."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import palaestra
from palaestra import EnvConfig
from palaestra.analysis.offline_evaluation import _Data, _Values, interval_of_members
from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, ConfigError, DiscreteSpec, MultiBinarySpec, TensorSpec
from palaestra.envs import create_environment
from palaestra.experiments import collect_data, data_of, evaluate_offline, export_data, find_run, policies_of_run
from palaestra.policies import Policy, RandomPolicy
from palaestra.rollout import origin_of
from tests.cli.parts import exit_code
from tests.experiments.data import PENDULUM, saved

GAMMA = 0.9


def trained(algorithm: str, env: str, folder: Path, **settings: Any) -> Path:
    """A short run."""
    small = {
        "algorithm__network__hidden_sizes": (8,),
        "env__max_episode_steps": 10,
        "trainer__total_env_steps": 40,
        "trainer__eval_episodes": 0,
        "run__tensorboard": False,
    }
    return palaestra.train(algorithm, env, run__directory=str(folder), run__name="run", **small | settings).directory


def policy_of(run: Path) -> Policy:
    [policy] = policies_of_run(find_run(run), "last")[1].values()
    return policy


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """One that was hardly trained."""
    return policy_of(trained("td3", "Pendulum-v1", tmp_path_factory.mktemp("runs")))


def truth(policy, env: EnvConfig) -> float:
    """The mean discounted return of 100 episodes without noise."""
    with create_environment(dataclasses.replace(env, max_episode_steps=101).for_evaluation(100), seed=9) as made:
        step, total = made.reset(), torch.zeros(100)
        for t in range(100):
            step = made.step(policy.env_action(policy.act(step, deterministic=True).action))
            total += GAMMA**t * step.reward
    return float(total.mean())


@pytest.mark.slow
def test_the_interval_holds_the_true_value_and_that_of_chance_lies_outside(policy, tmp_path):
    """Of a policy that swings up, by what it did with exploration noise; a value of 0 would be perfect."""
    settings = {"trainer__total_env_steps": 2_000, "env__max_episode_steps": 200}
    settings["algorithm__network__hidden_sizes"] = (256, 256)
    better = policy_of(trained("sac", "Pendulum-v1", tmp_path, **settings))
    env = EnvConfig(name="Pendulum-v1")
    collect_data(better, env, tmp_path / "data", steps=5_000, seed=1)
    found = {
        name: evaluate_offline(one, str(tmp_path / "data"), gamma=GAMMA, updates=3_000).value
        for name, one in {"better": better, "untrained": policy}.items()
    }
    true = truth(better, env)
    assert found["better"].low <= true <= found["better"].high
    assert found["better"].high - found["better"].low < abs(true)
    assert found["untrained"].value < found["better"].value


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_the_value_of_a_reward_of_one_at_every_step_is_known(gamma, tmp_path):
    """1 / (1 - gamma) in CartPole while the pole stands: here a limit of 5 steps cuts every episode, and none falls."""
    env = EnvConfig(name="CartPole-v1", max_episode_steps=5)
    collect_data(None, env, tmp_path / "data", steps=200)
    policy = policy_of(trained("dqn", "CartPole-v1", tmp_path))
    found = evaluate_offline(policy, str(tmp_path / "data"), gamma=gamma, updates=400, members=4)
    assert found.value.value == pytest.approx(1 / (1 - gamma), rel=0.03)
    assert found.settled
    assert found.episodes == 40
    assert found.steps == 200
    assert str(found).endswith(f"discounted by {gamma:g}, from 200 steps of 40 episodes")


def test_an_estimate_that_still_moves_is_no_interval(tmp_path, capsys):
    """12.56 [8.36, 16.75] was printed where 99 was right: values spread by few steps in few updates."""
    collect_data(None, EnvConfig(name="CartPole-v1", max_episode_steps=5), tmp_path / "data", steps=200)
    run = trained("dqn", "CartPole-v1", tmp_path)
    words = ("data", "evaluate", str(run), str(tmp_path / "data"), "--which", "last", "--gamma", "0.99")
    assert exit_code(*words, "--updates", "200", "--members", "3") == 0
    said = capsys.readouterr().out
    assert "still rising" in said and "give more --updates" in said and "[" not in said
    assert exit_code(*words, "--updates", "200", "--members", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["settled"] is False


class OneStep(gymnasium.Env):
    """Every episode is one step with a reward of 1, and ends where it began."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 1.0, True, False, {}


def test_nothing_follows_a_termination(tmp_path):
    """Worth 1; 10 if the state in which an episode terminated had a value."""
    name = f"{__name__}:OneStep"
    collect_data(None, EnvConfig(name=name), tmp_path / "data", steps=200)
    policy = policy_of(trained("dqn", name, tmp_path))
    found = evaluate_offline(policy, str(tmp_path / "data"), gamma=GAMMA, updates=400, members=4)
    assert found.value.value == pytest.approx(1, rel=0.03)


class Halves(OneStep):
    """And every other episode pays nothing."""

    action_space = spaces.Discrete(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.number = getattr(self, "number", -1) + 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float(self.number % 2), *rest


def test_the_interval_is_that_of_a_mean_over_the_episodes(tmp_path):
    """Of 40 with a deviation of 0.5 each: 1.96 * 0.5 / sqrt(40). The bootstrap weighs them anew for each member."""
    name = f"{__name__}:Halves"
    collect_data(None, EnvConfig(name=name), tmp_path / "data", steps=40)
    policy = policy_of(trained("dqn", name, tmp_path))
    found = evaluate_offline(policy, str(tmp_path / "data"), gamma=0.0, updates=150)
    assert found.episodes == 40
    assert found.value.value == pytest.approx(0.5, abs=0.05)
    assert (found.value.high - found.value.low) / 2 == pytest.approx(0.155, rel=0.4)


def test_few_members_know_little_of_their_spread():
    """Of 0 and 2: 12.706 √1.5 √2; the normal quantile was eight times too small."""
    found = interval_of_members(torch.tensor([0.0, 2.0]))
    assert (found.low, found.high) == pytest.approx((1 - 22.008, 1 + 22.008), abs=1e-2)


def test_members_that_drew_no_first_step_say_nothing_of_what_episodes_are_worth(tmp_path):
    """Of 12 episodes 10 lack theirs; one member in nine draws none that has one, and counted as worth 0."""
    env = EnvConfig(name="CartPole-v1", max_episode_steps=9, num_envs=12)
    collect_data(None, env, tmp_path / "whole", steps=48)  # 4 of each, in which no pole falls
    whole = ReplayBuffer.load(tmp_path / "whole")
    cut = ReplayBuffer(None, 12, **whole.options)
    for lanes, rows in ((slice(0, 10), whole.newest(3)), (slice(10, 12), whole.newest(4))):
        cut.extend(rows.map(lambda leaf, lanes=lanes: leaf[:, lanes]), list(range(12))[lanes])
    cut.save(tmp_path / "cut")
    policy = policy_of(trained("dqn", "CartPole-v1", tmp_path))
    found = evaluate_offline(policy, str(tmp_path / "cut"), gamma=0.0, updates=400)
    assert found.episodes == 2
    assert found.value.value == pytest.approx(1, rel=0.05)
    assert found.value.high - found.value.low < 0.2


def test_the_same_seed_gives_the_same_bits(policy, tmp_path):
    data = str(saved(tmp_path / "data"))
    values = [evaluate_offline(policy, data, gamma=GAMMA, updates=20, members=3, seed=seed).value for seed in (0, 0, 1)]
    assert values[0] == values[1] != values[2]


def test_what_cannot_be_told_is_refused(policy, tmp_path):
    data = str(saved(tmp_path / "data"))
    with pytest.raises(ConfigError, match=r"gamma is 1.0; it must be at least 0 and below 1"):
        evaluate_offline(policy, data, gamma=1.0)
    with pytest.raises(ConfigError, match="at least 2 members"):
        evaluate_offline(policy, data, members=1)
    collect_data(None, dataclasses.replace(PENDULUM, max_episode_steps=50), tmp_path / "one", steps=20)
    with pytest.raises(ConfigError, match="first steps of 1 episodes"):
        evaluate_offline(policy, str(tmp_path / "one"))
    collect_data(None, EnvConfig(name="CartPole-v1"), tmp_path / "other", steps=20)
    with pytest.raises(ConfigError, match="does not fit"):
        evaluate_offline(policy, str(tmp_path / "other"))
    memory = {"algorithm__network__recurrent": "lstm", "algorithm__unroll_length": 20}
    remembering = policy_of(trained("a2c", "Pendulum-v1", tmp_path, **memory))
    with pytest.raises(ConfigError, match="has a memory"):
        evaluate_offline(remembering, data)


def test_chance_can_be_asked_about_as_any_policy(tmp_path):
    """Of lanes side by side, whose last episodes are cut."""
    env = dataclasses.replace(PENDULUM, num_envs=3)
    collect_data(None, env, tmp_path / "data", steps=60)
    with create_environment(env) as made:
        chance = RandomPolicy(made.observation_spec, made.action_spec)
    found = evaluate_offline(chance, str(tmp_path / "data"), gamma=0.5, updates=50, members=3)
    assert found.value.high < 0


def test_a_command_says_what_a_run_is_worth(tmp_path, capsys):
    run = trained("sac", "Pendulum-v1", tmp_path)
    data = str(saved(tmp_path / "data"))
    capsys.readouterr()
    words = ("data", "evaluate", str(run), data, "--which", "last", "--updates", "20", "--members", "3")
    assert exit_code(*words) == 0
    assert "discounted by 0.99" in capsys.readouterr().out  # the run's own
    assert exit_code(*words, "--gamma", "0.5", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["gamma"] == 0.5
    assert record["value"]["low"] < record["value"]["value"] < record["value"]["high"]


def test_a_policy_of_a_checkpoint_explores_as_it_did_then(tmp_path):
    """Epsilon at the end of its schedule; `data collect --which last` explored as at the start."""
    learner, policies = policies_of_run(find_run(trained("dqn", "CartPole-v1", tmp_path)), "last")
    [policy] = policies.values()
    [algorithm] = learner.algorithms.values()
    assert policy.exploration.epsilon == pytest.approx(algorithm.config.epsilon.end)


def test_data_that_begins_inside_an_episode_has_no_transition_over_the_end_of_a_lane(tmp_path):
    """A ring that was full: the open row of a lane is no start, and what follows is of another lane."""
    small = {
        "algorithm__capacity": 80,
        "algorithm__learning_starts": 0,
        "env__num_envs": 4,
        "env__max_episode_steps": 9,
    }
    run = trained("dqn", "CartPole-v1", tmp_path, **small | {"trainer__total_env_steps": 400})
    export_data(run, tmp_path / "data")
    data = _Data(policy_of(run), ReplayBuffer.load(tmp_path / "data"))
    following = data.transitions + 1
    assert following.max() < len(data.rows)
    lanes = data.rows % 4
    assert (lanes[following] == lanes[data.transitions]).all()


def test_actions_count_as_the_environment_executes_them(tmp_path):
    """A Gaussian's mean may lie outside of the box: 1 and 5 are the same there, and so is their value."""
    saved(tmp_path / "data", PENDULUM)
    policy: Any = policy_of(trained("ppo", "Pendulum-v1", tmp_path))
    found = []
    for mean in (1.0, 5.0):
        with torch.no_grad():
            policy.network.mean.mlp.layers[-1].weight.zero_()
            policy.network.mean.mlp.layers[-1].bias.fill_(mean)
        found.append(evaluate_offline(policy, str(tmp_path / "data"), gamma=GAMMA, updates=20).value)
    assert found[0] == found[1]


def test_values_do_not_see_which_actions_are_allowed():
    spec = {"action_mask": MultiBinarySpec((3,)), "position": TensorSpec((2,))}
    values = _Values(RandomPolicy(spec, DiscreteSpec(num=3)), 2)
    position, action = torch.ones(4, 2), torch.tensor([0, 1, 2, 0])
    found = [
        values(Batch(observation=Batch(action_mask=allowed, position=position), action=action))
        for allowed in (torch.zeros(4, 3, dtype=torch.int8), torch.ones(4, 3, dtype=torch.int8))
    ]
    assert torch.equal(*found)


def test_data_of_another_task_is_named(policy, tmp_path, caplog):
    """What is wanted is the return of the task, whatever a run was trained on."""
    data, shaped = str(saved(tmp_path / "data")), dataclasses.replace(PENDULUM, train_kwargs={"g": 5.0})
    with pytest.raises(ConfigError, match=r"the data .* has the environment .*, this run 'Other-v1'"):
        data_of(policy, data, EnvConfig(name="Other-v1"))
    for env in (PENDULUM, shaped):
        data_of(policy, data, env)
    assert not caplog.records
    ReplayBuffer.load(data).save(tmp_path / "shaped", origin=origin_of(shaped))
    read = data_of(policy, str(tmp_path / "shaped"), shaped)
    assert "the rewards 'of training, with" in caplog.text
    assert "in rewards of the data" in caplog.text
    assert evaluate_offline(policy, read, gamma=GAMMA, updates=1, members=2).episodes == 6
