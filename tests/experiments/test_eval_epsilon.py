"""TS-28: exploration in evaluations, by a setting and by a hook."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import palaestra
from palaestra import evaluate, load_policy
from palaestra.core import ConfigError, DiscreteSpec
from palaestra.policies import Phase, RulePolicy
from palaestra.training import Callback, Trainer
from tests.algorithms.parts import environment, make
from tests.experiments.parts import CHAIN

SMALL: dict[str, Any] = {
    "env__num_envs": 2,
    "env__max_episode_steps": 20,
    "algorithm__unroll_length": 8,
    "algorithm__network__hidden_sizes": (8,),
    "trainer__total_env_steps": 64,
    "trainer__eval_every_steps": 32,
    "trainer__eval_episodes": 4,
    "run__tensorboard": False,
}


class Doors(gymnasium.Env[Any, Any]):
    """Always looks the same; pays the number of the action."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.ones(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(2, np.float32), float(action), False, False, {}


class Explores(Callback):
    """Sets the probability of random actions whenever an evaluation begins."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def evaluation_began(self, trainer: Trainer) -> None:
        trainer.algorithm.policy.eval_epsilon = self.epsilon


def share_of_random(policy: Any, name: str) -> float:
    """Share of actions in an evaluation that are not the greedy ones."""
    others, total = 0, 0
    choose = policy.choose

    def noted(observation: Any, *rest: Any) -> Any:
        nonlocal others, total
        step = choose(observation, *rest)
        others += int((step.action != policy.greedy(observation)).sum())
        total += len(step.action)
        return step

    policy.choose = noted
    try:
        with environment(name, 4) as env:
            assert evaluate(policy, env, episodes=100).deterministic == (policy.eval_epsilon == 0)
    finally:
        del policy.choose
    return others / total


@pytest.mark.parametrize(("name", "kind"), [("dqn", "discrete"), ("c51", "masked"), ("qr_dqn", "discrete")])
def test_evaluations_explore_by_it_and_nothing_else_does(name, kind):
    with environment(kind) as env:
        policy: Any = make(name, env, kind=kind).policy
        assert policy.eval_epsilon == 0.0 and share_of_random(policy, kind) == 0.0
        policy.eval_epsilon = 0.3
        expected = 0.3 * (2 / 3 if kind == "discrete" else 1 / 2)  # of three, or of two that are allowed
        assert share_of_random(policy, kind) == pytest.approx(expected, abs=0.08)
        time_step = env.reset()
        seen = time_step.observation
        with torch.no_grad():
            for phase in (Phase.EVAL, Phase.UPDATE):
                acts = [policy.act(time_step, phase=phase).action for _ in range(20)]
                assert all(torch.equal(act, policy.greedy(seen)) for act in acts)


def test_an_evaluation_draws_alike_and_leaves_training_as_it_was():
    with environment("discrete") as env:
        policy: Any = make("dqn", env).policy
        policy.eval_epsilon = 0.5
        before, exploration = policy.generator.get_state(), policy.exploration
        returns = []
        for _ in range(2):
            with environment("discrete") as other:
                returns.append(evaluate(policy, other, episodes=12).returns)
        assert returns[0] == returns[1]
        assert torch.equal(policy.generator.get_state(), before) and policy.exploration is exploration


@pytest.mark.parametrize("eval_async", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_evaluates_with_the_setting_and_a_hook_changes_it(tmp_path, eval_async):
    settings = {**SMALL, "env__max_episode_steps": 40, "trainer__eval_async": eval_async}
    train: Any = palaestra.train
    name = "tests.experiments.test_eval_epsilon:Doors"
    greedy = train("dqn", name, run__directory=str(tmp_path), run__name="a", **settings)
    assert greedy.result.evaluation.return_std == 0.0
    explored = train("dqn", name, run__directory=str(tmp_path), run__name="b", **settings, trainer__eval_epsilon=1.0)
    assert explored.result.evaluation.return_std > 0
    hook = Explores(1.0)
    hooked = train("dqn", name, run__directory=str(tmp_path), run__name="c", callbacks=[hook], **settings)
    assert hooked.result.evaluation.returns == explored.result.evaluation.returns
    policy = load_policy(explored.directory / "policy")
    assert policy.eval_epsilon == 0.0
    seen = np.ones((30, 2), np.float32)
    assert len(set(policy(seen).tolist())) == 1


def test_a_policy_without_an_epsilon_is_refused_before_anything_starts(tmp_path):
    train: Any = palaestra.train
    settings = {**SMALL, "run__directory": str(tmp_path), "trainer__eval_epsilon": 0.1}
    with pytest.raises(ConfigError, match=r"eval_epsilon is 0.1, but CategoricalPolicy has no epsilon here; leave out"):
        train("ppo", CHAIN, **settings)
    with pytest.raises(ConfigError, match=r"trainer.eval_epsilon is 1.5; it must lie in \[0, 1\]"):
        train("dqn", CHAIN, **settings | {"trainer__eval_epsilon": 1.5})
    with pytest.raises(ConfigError, match=r"trainer.eval_epsilon is 0.1, but trainer.eval_episodes is 0"):
        train("dqn", CHAIN, **settings | {"trainer__eval_episodes": 0, "trainer__eval_every_steps": None})
    rule = RulePolicy(lambda seen: seen, *[DiscreteSpec(num=2)] * 2)
    with pytest.raises(ConfigError, match="RulePolicy has no epsilon"):
        rule.eval_epsilon = 0.1
