"""Stumbles of a first day, each by the command that a new user typed."""

import gymnasium
import numpy as np
import pytest
import torch

import palaestra
from palaestra import PPO, PPOConfig, RunSeeds
from palaestra.cli import commands
from palaestra.config.config import config_from_mapping
from palaestra.core import ConfigError, DiscreteSpec, EnvError, TensorSpec
from palaestra.envs import EnvConfig, NativeVectorEnvironment, create_environment
from palaestra.envs.check import check
from palaestra.experiments import ExperimentConfig
from palaestra.training import ConsoleLogger
from tests.cli.parts import exit_code, output

BOX = gymnasium.spaces.Box(-1, 1, (2,), np.float32)


class Points(gymnasium.vector.VectorEnv):
    """A batch of environments that is a class of its own."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = BOX, gymnasium.spaces.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(BOX, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions):
        flags = np.zeros(self.num_envs, bool)
        return np.zeros((self.num_envs, 2), np.float32), np.ones(self.num_envs), flags, flags, {}


class Robot(gymnasium.Env):
    """Gives rewards of shape (1,)."""

    observation_space, action_space = BOX, gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        observation = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return observation, np.ones(1, np.float32), False, False, {}


@pytest.mark.parametrize(
    ("algorithm", "typed", "suggested"),
    [
        ("ppo", "--lr", "--algorithm.learning-rate"),
        ("ppo", "--clip_range", "--algorithm.clip"),
        ("ppo", "--algorithm.clip_range", "--algorithm.clip"),
        ("ppo", "--n_steps", "--algorithm.unroll-length"),
        ("ppo", "--ent_coef", "--algorithm.entropy-cost"),
        ("sac", "--ent_coef", "--algorithm.initial-temperature"),
        ("ppo", "--policy_kwargs", "--algorithm.network"),
        ("dqn", "--algorithm.buffer_size", "--algorithm.capacity"),
        ("ppo", "--algorithm.hidden-sizes", "--algorithm.network.hidden-sizes"),
        ("ppo", "--env.max-steps", "--env.max-episode-steps"),
        ("ppo", "--trainer.lr", "--algorithm.learning-rate"),
    ],
)
def test_names_of_other_libraries_lead_to_ours(algorithm, typed, suggested, capsys):
    assert exit_code("train", algorithm, "CartPole-v1", typed, "3") == 2
    assert f"unknown option {typed} — did you mean {suggested}?" in output(capsys)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("enjoy last", "unknown verb 'enjoy'; it is `palaestra play last` here"),
        ("test", "unknown verb 'test'; it is `palaestra eval last --episodes 100` here"),
        ("run dqn Acrobot-v1 -n 9", "unknown verb 'run'; it is `palaestra train dqn Acrobot-v1` here"),
        ("train PPO CartPole-v1", "unknown algorithm 'PPO' — did you mean 'ppo'?"),
        ("train TD3BC Pendulum-v1", "did you mean 'td3_bc'?"),
        ("train DreamerV3 CartPole-v1", "did you mean 'dreamer'?"),
        ("train a3c CartPole-v1", "unknown algorithm 'a3c' — did you mean 'a2c'?"),
        (
            "train GAIL Hopper-v5",
            "part that other algorithms take: palaestra train ppo ENV --algorithm.bonus.kind gail",
        ),
        ("train ppo Breakout-v0", "did you mean 'ALE/Breakout-v5'?"),
        ("train ppo PongNoFrameskip-v4", "did you mean 'ALE/Pong-v5'?"),
        ("train ppo HalfCheetah-v3", "did you mean 'HalfCheetah-v5'?"),
        ("train ppo MinAtar/Breakout-v1", "'palaestra.envs:MinAtarBreakout'"),
        ("tune TQC Pendulum-v1", "did you mean 'quantile_sac'?"),
        ("tune ppo CartPole-v1 --fresh-seeds 1", "--fresh-seeds is 1; it must be at least 2"),
    ],
)
def test_verbs_and_algorithms_of_other_libraries_lead_to_ours(typed, message, capsys):
    assert exit_code(*typed.split()) == 2
    assert message in output(capsys)


def test_other_words_for_verbs_lead_to_verbs_that_exist():
    assert set(commands.ELSEWHERE.values()) <= set(commands.COMMANDS)
    assert not set(commands.ELSEWHERE) & set(commands.COMMANDS)


def test_python_is_told_as_well():
    with pytest.raises(ConfigError, match=r"unknown key lr — did you mean 'algorithm.learning_rate'"):
        config_from_mapping(ExperimentConfig, {"lr": 3e-4})


def test_what_other_libraries_call_in_python_is_answered_with_the_call():
    env = create_environment(EnvConfig(name="CartPole-v1", num_envs=1), seed=0)
    with env, pytest.raises(ConfigError, match=r"give a policy, such as .* load_policy\('RUN/policy'\)"):
        palaestra.evaluate("runs/last", env)  # pyright: ignore[reportArgumentType]
    policy = PPO(TensorSpec((4,), torch.float32), DiscreteSpec(num=2), PPOConfig(), RunSeeds(0)).policy
    with pytest.raises(ConfigError, match=r"the action for an observation is policy\(observation\)"):
        policy.predict([0.0] * 4, deterministic=True)
    with pytest.raises(ConfigError, match="was given a CategoricalPolicy; give its path or name"):
        palaestra.evaluate_run(policy)  # pyright: ignore[reportArgumentType]


def test_titles_are_neither_emoji_nor_markup():
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, width=80, emoji=False)
    panel = ConsoleLogger("ppo on my_pkg:Robot:robot:[bold]", 100, console)._panel(
        {"env_steps": 1, "time/env_steps_per_s": 1, "episodes": 0, "policy_version": 1}
        | {f"time/{part}": 0.2 for part in ("environment", "inference", "storing", "learning", "waiting")}
    )
    console.print(panel)
    assert "my_pkg:Robot:robot:[bold]" in console.file.getvalue()


def test_a_vector_environment_need_not_be_called_native():
    config = EnvConfig(name="tests.cli.test_first_day:Points", num_envs=3)
    with create_environment(config) as env:
        assert isinstance(env, NativeVectorEnvironment)
        assert env.reset().reward.shape == (3,)


def test_check_env_looks_into_a_vector_environment_lane_by_lane(capsys):
    assert exit_code("check-env", "tests.cli.test_first_day:Points", "--env.kwargs", "num_envs", "2") == 0
    assert "in lane 0" in output(capsys)


def test_a_reward_of_shape_1_is_a_warning():
    report = check(EnvConfig(name="tests.cli.test_first_day:Robot", max_episode_steps=20))
    assert report.ok
    assert "got shape (1,)" in " ".join(str(report).split()) or "shape (1,)" in str(report)


def test_a_class_after_pettingzoo_is_told_to_stand_alone(capsys):
    pytest.importorskip("pettingzoo")
    assert exit_code("train", "ppo", "pettingzoo:my_pkg.zoo:Rendezvous") == 2
    text = output(capsys)
    assert "a class of your own is 'my_pkg.zoo:Rendezvous' alone" in text
    assert len(text) < 300


def test_an_environment_of_many_agents_without_render_is_named():
    pettingzoo = pytest.importorskip("pettingzoo")
    from palaestra.multiagent import from_pettingzoo

    class Unseen(pettingzoo.ParallelEnv):
        possible_agents = agents = ("a",)

        def observation_space(self, agent):
            return BOX

        def action_space(self, agent):
            return gymnasium.spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            return {"a": np.zeros(2, np.float32)}, {"a": {}}

    with pytest.raises(EnvError, match="draws no pictures"):
        from_pettingzoo(Unseen()).render()


def test_an_evaluation_that_takes_too_long_is_left_out_and_the_run_goes_on(tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.chdir(tmp_path)
    short = ("--trainer.total-env-steps", "64", "--run.no-tensorboard", "--algorithm.unroll-length", "16")
    limit = ("--trainer.eval-time-limit-s", "0.05", "--env.num-envs", "2")
    assert exit_code("train", "ppo", "palaestra.envs.tiny:Endless", *short, *limit) == 0
    assert "there is no evaluation at 64 env steps: only 0 of" in caplog.text
