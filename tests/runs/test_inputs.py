"""Policies and networks that see the action before, its reward and entries of `info`: `EnvConfig.inputs`."""

import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import palaestra
from palaestra import EnvConfig, create_environment
from palaestra.algorithms import ALGORITHMS
from palaestra.core import Batch, ConfigError
from palaestra.policies import load_policy
from palaestra.runs.making import attempt
from tests.cli.parts import exit_code, output

EPISODE = 5


class Honest(gymnasium.Env):
    """Its own observation says what a policy is to see besides: step, action and reward, zeros at first."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, continuous: bool = False) -> None:
        self.action_space: Any = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(0.0, 0.0), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward = float(np.float32(self.np_random.normal()))
        seen = self._seen(np.asarray(action).item(), reward)
        return seen, reward, False, self.steps == EPISODE, {"cost": 10 * self.steps}

    def _seen(self, action: float, reward: float) -> Any:
        return np.array([self.steps, action, reward], np.float32)


class Keyed(Honest):
    """The same as an entry of a dict, beside a mask of actions."""

    observation_space = spaces.Dict({"honest": Honest.observation_space, "action_mask": spaces.MultiBinary(3)})

    def _seen(self, action: float, reward: float) -> Any:
        return {"honest": super()._seen(action, reward), "action_mask": np.array([1, 0, 1], np.int8)}


def pool(num_envs: int) -> gymnasium.vector.VectorEnv:
    """Several, whose episodes begin within the step in which others ended."""
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return gymnasium.vector.SyncVectorEnv([Honest] * num_envs, autoreset_mode=mode)


NAME, ALL = f"{__name__}:Honest", ("prev_action", "reward", "env_info")
SEEN: list[int] = []


def require_true(observation: Any) -> None:
    """Whether what is seen besides is what the environment itself shows."""
    honest = observation.observation if "observation" in observation else observation.honest
    steps, action, reward = honest.unbind(-1)
    assert torch.equal(observation.prev_action.reshape(action.shape).float(), action)
    assert torch.equal(observation.reward, reward)
    assert torch.equal(observation.env_info.cost, 10 * steps)


class Checked(nn.Module):
    """A network that sees it, and looks at every single row."""

    def __init__(self, observation_spec: Any) -> None:
        super().__init__()
        assert list(observation_spec) == ["observation", *ALL]
        self.layer = nn.Linear(4, 6)

    def forward(self, observation: Any) -> Any:
        require_true(observation)
        SEEN.append(len(observation))
        columns = [observation.prev_action.reshape(-1, 1), observation.reward.unsqueeze(-1)]
        return self.layer(torch.cat([*columns, observation.observation[:, :2]], -1).float()).tanh()


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "way", ["serial", "thread", "native", "tensor", "keyed", pytest.param("first_ready", marks=pytest.mark.slow)]
)
def test_observations_of_any_kind_of_environment_have_what_the_time_step_has(way):
    """ALF-21: the fields of the time step beside the observation, zeros where an episode begins."""
    settings: dict[str, Any] = {"name": NAME, "num_envs": 2, "info": ("cost",), "inputs": ALL, "vectorization": way}
    settings |= {
        "thread": {"num_envs": 1},
        "native": {"name": f"{__name__}:pool"},
        "tensor": {"name": "palaestra.envs.tiny:TensorCartPole", "info": (), "inputs": ALL[:2]},
        "first_ready": {"vectorization": "process", "num_workers": 2, "num_ready": 1},
        "keyed": {"name": f"{__name__}:Keyed"},
    }.get(way, {})
    if way in ("tensor", "keyed"):
        settings["vectorization"] = "auto"
    with create_environment(EnvConfig(**settings), seed=3) as env:
        assert isinstance(env.observation_spec, dict)
        keys = list(env.observation_spec)
        assert keys == [*(["action_mask", "honest"] if way == "keyed" else ["observation"]), *settings["inputs"]]
        time_steps, ended = [env.reset()], []
        for number in range(12):
            rows = len(time_steps[-1].env_id)
            action = torch.full((rows,), number % 2 * (2 if way == "keyed" else 1))
            env.send(action, time_steps[-1].env_id if way == "first_ready" else None)
            time_steps.append(env.recv())
            ended += [] if env.ended is None else [env.ended]
    assert bool(ended) == (way == "native")
    for step in time_steps + ended:
        assert list(step.observation.keys()) == keys
        assert torch.equal(step.observation.prev_action, step.prev_action)
        assert torch.equal(step.observation.reward, step.reward)
        assert not step.observation.prev_action[step.first].any() and not step.observation.reward[step.first].any()
        if way != "tensor":
            require_true(step.observation)


CHECKED = ("--env.inputs", *ALL, "--env.info", "cost", "--env.num-envs", "2")
CHECKED += ("--algorithm.network", f"{__name__}:Checked")
SHORT = ("--trainer.total-env-steps", "96", "--trainer.eval-episodes", "2", "--run.no-tensorboard")
SHORT += ("--trainer.checkpoint-every-steps", "40")
REPLAY = ("--algorithm.learning-starts", "20", "--algorithm.mini-batch-size", "8")
WORKERS = ("--distributed.runtime", "local", "--distributed.num-workers", "2")
RUNS = {
    "ppo": ("--algorithm.network.recurrent", "gru", "--algorithm.unroll-length", "16"),
    "dqn": (*REPLAY, "--algorithm.n-step", "3", *WORKERS),
    "sac": (*REPLAY, "--env.kwargs", "continuous", "true"),
}


@pytest.mark.parametrize("algorithm", RUNS)
def test_every_row_that_a_network_sees_has_its_own_action_and_reward_before_it(algorithm, capsys):
    """ALF-21: acting, learning (unrolls, windows of n steps), evaluation, workers, resume, a saved policy."""
    SEEN.clear()
    options = (algorithm, NAME, *CHECKED, *SHORT, *RUNS[algorithm])
    assert exit_code("train", *options, "--run.name", "whole") == 0, output(capsys)
    assert sum(SEEN) > 200
    policy = load_policy(Path("runs/whole/policy"))
    config = EnvConfig(name=NAME, inputs=ALL, info=("cost",), kwargs={"continuous": algorithm == "sac"})
    with create_environment(config, seed=1) as env:
        assert palaestra.evaluate(policy, env, episodes=2).episodes == 2
    action = np.zeros(1, np.float32) if algorithm == "sac" else 0
    seen = {"observation": np.zeros(3), "prev_action": action, "reward": 0.0, "env_info": {"cost": 0.0}}
    assert np.isfinite(policy(seen)).all()
    if algorithm == "dqn":
        return
    assert exit_code("train", *options, "--run.name", "again") == 0
    for newer in sorted(Path("runs/again/checkpoints").glob("step_*"))[1:]:
        shutil.rmtree(newer)
    assert exit_code("resume", "runs/again") == 0, output(capsys)
    for ours, theirs in zip(policy.parameters(), load_policy(Path("runs/again/policy")).parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_every_algorithm_can_be_made_and_acts_with_more_inputs():
    """ALF-21: those of teams choose their observations themselves, and a simulator has those of its task."""
    for name, kind in ALGORITHMS.items():
        made, fixed = 0, kind.team or hasattr(kind.config_class, "simulator")
        for continuous in () if fixed else (False, True):
            config = EnvConfig(name=NAME, inputs=ALL, info=("cost",), kwargs={"continuous": continuous})
            with create_environment(config, seed=1) as env:
                algorithm = attempt(kind, env.observation_spec, env.action_spec)
                if algorithm is not None:
                    policy, made = algorithm.policy, made + 1
                    env.step(policy.env_action(policy.act(env.reset(), policy.initial_state(1)).action))
        assert made or fixed, name


def test_an_input_that_cannot_be_is_refused_before_anything_is_stepped():
    """ALF-21."""
    for settings, said in (
        ({"inputs": ("prev_actoin",)}, r"env.inputs has 'prev_actoin'.*did you mean 'prev_action'"),
        ({"inputs": ("reward", "reward")}, "at most once"),
        ({"inputs": "reward"}, r"give names of fields, such as \('prev_action', 'reward'\)"),
        ({"inputs": ("env_info",)}, "env.info names no entries"),
        ({"inputs": ("reward",), "train_wrappers": ("NormalizeReward",)}, "put them into env.wrappers or env.kwargs"),
    ):
        with pytest.raises(ConfigError, match=said):
            EnvConfig(name=NAME, **settings)
    with pytest.raises(ConfigError, match=r"'env_info',\), but this environment has no entries"):
        create_environment(EnvConfig(name="palaestra.envs.tiny:TensorCartPole", info=("*",), inputs=("env_info",)))
    with pytest.raises(ConfigError, match="the observation has an entry 'reward' of its own"):
        create_environment(EnvConfig(name=f"{__name__}:Clash", inputs=("reward",)))
    with pytest.raises(ConfigError, match=r"env.inputs is .* has many agents"):
        palaestra.train("ppo", "palaestra.multiagent:Meeting", env__inputs=("reward",))


class Clash(Honest):
    """Has an entry of that name."""

    observation_space = spaces.Dict({"reward": Honest.observation_space})


class Hidden(gymnasium.Env):
    """One of two arms pays, always the same within an episode; nothing is ever seen."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.arm, self.steps = int(self.np_random.integers(2)), 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(1, np.float32), float(action == self.arm), self.steps == 6, False, {}


@pytest.mark.slow
def test_a_policy_learns_to_learn_within_an_episode():
    """ALF-21: RL^2 (Duan et al. 2016): with a memory, the arm that paid is pulled again; 3 is what chance earns."""
    settings: dict[str, Any] = {
        "trainer__total_env_steps": 40_000,
        "trainer__eval_every_steps": 0,
        "algorithm__learning_rate": 2e-3,
        "algorithm__gamma": 0.9,
        "env__num_envs": 8,
        "algorithm__network__recurrent": "gru",
        "algorithm__network__recurrent_size": 16,
        "run__tensorboard": False,
    }
    returns = {}
    for inputs in ((), ("prev_action", "reward")):
        settings |= {"env__inputs": inputs, "run__name": f"with-{len(inputs)}"}
        run = palaestra.train("ppo", f"{__name__}:Hidden", **settings)
        returns[inputs] = palaestra.evaluate_run(run.directory, episodes=200).return_mean
    assert returns[()] < 3.6 and returns[("prev_action", "reward")] > 5.2


def test_hindsight_does_not_show_rewards_of_other_goals():
    """ALF-21: a replayed row would show the reward of the goal that was given."""
    settings = {"env__inputs": ("reward",), "hindsight__share": 0.8}
    with pytest.raises(ConfigError, match=r"env.inputs shows reward, which is of the goal that was given"):
        palaestra.train("sac", "tests.experiments.test_hindsight:Reach", **settings)


def test_what_was_not_reported_is_zero():
    """ALF-21: a network could do nothing with NaN."""
    config = EnvConfig(name="CartPole-v1", info=("missing",), inputs=("env_info",))
    with create_environment(config) as env:
        time_steps = [env.reset(), env.step(torch.zeros(1, dtype=torch.int64))]
    assert time_steps[1].env_info.missing.isnan().all()
    assert [step.observation.env_info for step in time_steps] == [Batch(missing=torch.zeros(1))] * 2
