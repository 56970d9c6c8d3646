"""Tests of `palaestra.rollout.evaluation`."""

import json
import math
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

from palaestra import EnvConfig, create_environment, evaluate
from palaestra.core import ConfigError, SpecError, StepType
from palaestra.envs import BatchedWrapper, LaneEnvironment, SerialDriver, TimeLimit, Wrap, load
from palaestra.envs.wrappers import StatefulWrapper
from palaestra.policies import Phase, RandomPolicy
from palaestra.rollout import Episode, EpisodeTracker
from palaestra.rollout.evaluation import _may_not_end, evaluation_of, first_episodes
from tests.algorithms.parts import collected, environment, make

ENDLESS = "palaestra.envs.tiny:Endless"


def test_short_episodes_are_not_preferred():
    """One environment's episodes take 1 step, the other's 9; the first 10 that end would be 9 short ones and 1 long."""
    env = LaneEnvironment(
        SerialDriver([load(ENDLESS, env_id=0, max_episode_steps=1), load(ENDLESS, env_id=1, max_episode_steps=9)]),
        lane_seeds=[1, 2],
    )
    evaluation = evaluate(make("ppo", env).policy, env, episodes=10)
    assert evaluation.episodes == 10
    assert sorted(evaluation.returns) == [1.0] * 5 + [9.0] * 5
    assert evaluation.return_mean == evaluation.length_mean == 5.0


@pytest.mark.parametrize(("episodes", "num_envs"), [(1, 1), (1, 3), (7, 3), (6, 3), (2, 4)])
def test_exactly_so_many_episodes_are_counted(episodes, num_envs):
    with environment("Chain", num_envs, max_episode_steps=3) as env:
        evaluation = evaluate(make("ppo", env).policy, env, episodes=episodes)
    assert evaluation.episodes == len(evaluation.returns) == episodes


def test_the_interval_is_that_of_the_mean():
    """Returns 1 and 9, five each: standard deviation 4.2164 (n - 1); half width 2.262 (t of 9) of these / √10."""
    env = LaneEnvironment(
        SerialDriver([load(ENDLESS, env_id=0, max_episode_steps=1), load(ENDLESS, env_id=1, max_episode_steps=9)]),
        lane_seeds=[1, 2],
    )
    evaluation = evaluate(make("ppo", env).policy, env, episodes=10)
    assert evaluation.return_std == pytest.approx(math.sqrt(160 / 9))
    half = 2.262157 * math.sqrt(160 / 9) / math.sqrt(10)
    assert evaluation.return_ci95 == pytest.approx((5 - half, 5 + half), rel=1e-5)
    assert str(evaluation) == f"5.0 ± {half:.2f} (95%, 10 episodes, deterministic)"


def test_the_interval_of_few_episodes_holds_their_mean_as_often_as_it_says():
    """By the normal approximation, that of three episodes did in 81% of cases."""
    draws = np.random.default_rng(0).normal(size=(400, 3))
    found = (evaluation_of([Episode(x, 1, 0, {}) for x in row], [0], deterministic=True) for row in draws.tolist())
    covered = sum(low < 0 < high for low, high in (one.return_ci95 for one in found))
    assert 0.93 < covered / 400 < 0.97


def test_one_episode_has_no_spread():
    with environment("Chain", 1, max_episode_steps=3) as env:
        evaluation = evaluate(make("ppo", env).policy, env, episodes=1)
    assert evaluation.return_std == 0.0
    assert evaluation.return_ci95 == (evaluation.return_mean, evaluation.return_mean)


def test_the_record_is_json():
    """DESIGN.md section 9: `return_mean, return_std, return_ci95, length_mean, episodes, seeds, deterministic`."""
    with environment("Chain", 2, max_episode_steps=3) as env:
        evaluation = evaluate(make("ppo", env).policy, env, episodes=2, seeds=[5, 6])
    record = json.loads(json.dumps(evaluation.to_json()))
    needed = {"return_mean", "return_std", "return_ci95", "length_mean", "episodes", "seeds", "deterministic"}
    assert needed <= record.keys()
    assert record["seeds"] == [5, 6]


class Visits(StatefulWrapper):
    """Episodes pay their number, the first one 1."""

    count = 0

    def begin_episode(self, seed):
        self.count += 1
        return super().begin_episode(seed)

    def advance(self, action):
        return super().advance(action)._replace(reward=float(self.count))

    def snapshot(self):
        return self.count

    def restore(self, snapshot):
        self.count = snapshot


class VisitsOfAll(BatchedWrapper):
    """The same around a batch."""

    def __init__(self, env):
        super().__init__(env)
        self.lane_arrays["count"] = torch.zeros(env.batch_size)

    def change(self, time_step):
        self.lane_arrays["count"][time_step.env_id] += time_step.first
        paid = self.lane_arrays["count"][time_step.env_id]
        return time_step._replace(reward=paid.masked_fill(time_step.first, 0.0))


BATCHES = {
    "serial": EnvConfig(name="CartPole-v1", num_envs=2),
    "process": EnvConfig(name="CartPole-v1", num_envs=2, vectorization="process"),
    "thread": EnvConfig(name="CartPole-v1", num_envs=1, vectorization="thread"),
    "native": EnvConfig(name="CartPole-v1", num_envs=2, vectorization="native"),
    "tensors": EnvConfig(name="palaestra.envs.worlds.tensor_cartpole:TensorCartPole", num_envs=2),
    "wrapped": EnvConfig(
        name="palaestra.envs.worlds.tensor_cartpole:TensorCartPole", num_envs=2, wrappers=("FrameStack(num_frames=2)",)
    ),
    "lives": EnvConfig(name="tests.envs.wrappers.worlds:Luck", num_envs=2, wrappers=("EpisodicLife",)),
    "counts": EnvConfig(name="CartPole-v1", num_envs=2, wrappers=(f"{__name__}:Visits",), vectorization="process"),
    "counts of a batch": EnvConfig(
        name="palaestra.envs.worlds.tensor_cartpole:TensorCartPole", num_envs=2, wrappers=(f"{__name__}:VisitsOfAll",)
    ),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_equal_seeds_give_equal_episodes(kind):
    """However far the environments have come; they were once noted and not used."""
    config = BATCHES[kind]
    seeds = [5, 6][: config.num_envs]
    with (
        create_environment(config, lane_seeds=seeds) as new,
        create_environment(config, lane_seeds=[8, 9][: len(seeds)]) as env,
    ):
        policy = RandomPolicy(env.observation_spec, env.action_spec)
        expected = evaluate(policy, new, episodes=4)
        first, other, again = (evaluate(policy, env, episodes=4, seeds=those) for those in (seeds, [], seeds))
    assert first.returns == again.returns == expected.returns
    assert other.returns != first.returns
    assert (first.seeds, other.seeds) == (seeds, [])


def test_a_seed_for_each_environment_is_needed():
    with (
        environment("Chain", 2, max_episode_steps=3) as env,
        pytest.raises(SpecError, match="2 environments were given"),
    ):
        evaluate(RandomPolicy(env.observation_spec, env.action_spec), env, episodes=2, seeds=[5])


@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluation_leaves_policy_and_training_stream_as_they_are(deterministic):
    """TS-16: no parameter, statistic, generator or phase moves; inside, training and updating are False."""
    algorithm, _ = collected("ppo", "continuous", normalize_observation=True)
    policy = algorithm.policy
    state = {name: value.clone() for name, value in policy.state_dict().items()}
    generator = policy.generator
    stream = generator.get_state()
    phases = []
    original = policy.choose
    policy.choose = lambda *args: (phases.append((policy.training, policy.updating)), original(*args))[1]
    with environment("continuous", 2) as env:
        evaluate(policy, env, episodes=4, deterministic=deterministic)
    assert set(phases) == {(False, False)}
    assert policy.generator is generator
    assert torch.equal(generator.get_state(), stream)
    assert policy.phase is Phase.COLLECT
    assert all(torch.equal(value, state[name]) for name, value in policy.state_dict().items())


def test_the_generator_comes_back_after_a_failure(monkeypatch):
    algorithm, _ = collected("ppo", "discrete")
    generator = algorithm.policy.generator

    def broken():
        raise RuntimeError("on purpose")

    with environment("discrete", 1) as env:
        monkeypatch.setattr(env, "reset", broken)
        with pytest.raises(RuntimeError, match="on purpose"):
            evaluate(algorithm.policy, env, episodes=1)
    assert algorithm.policy.generator is generator
    assert algorithm.policy.phase is Phase.COLLECT


def test_equal_seeds_evaluate_to_equal_returns():
    """Also where the policy samples: its noise has a seed of its own."""
    algorithm, _ = collected("ppo", "continuous")

    def returns(generator_seed: int) -> list[float]:
        with environment("continuous", 2) as env:
            return evaluate(
                algorithm.policy, env, episodes=4, deterministic=False, generator_seed=generator_seed
            ).returns

    assert returns(1) == returns(1)
    assert returns(1) != returns(2)


def test_an_evaluation_does_not_explore():
    """TS-16, TS-17: epsilon 1, and still the greedy policy; a reset of the environment is no step of an episode."""
    algorithm, _ = collected("dqn", "discrete", epsilon=1.0)
    with environment("discrete", 3) as env:
        first, second = (evaluate(algorithm.policy, env, episodes=6, deterministic=d) for d in (True, False))
    assert first.length_mean == second.length_mean == 5.0
    with environment("discrete", 1) as env:
        time_step, greedy = env.reset(), []
        while time_step.step_type[0] != StepType.LAST:
            greedy.append(int(algorithm.policy.greedy(time_step.observation)))
            time_step = env.step(torch.tensor(greedy[-1:]))
        assert evaluate(algorithm.policy, environment("discrete", 1), episodes=1).returns == [float(time_step.reward)]


def test_a_time_limit_ends_an_evaluation_with_what_has_ended_and_says_so():
    """One environment's episodes take a step, the other's never end; without an episode there is nothing to say."""
    env = LaneEnvironment(
        SerialDriver([load(ENDLESS, env_id=0, max_episode_steps=1), load(ENDLESS, env_id=1, max_episode_steps=10**9)]),
        lane_seeds=[1, 2],
    )
    policy = make("ppo", env).policy
    with pytest.warns(UserWarning, match=r"only 1 of 2 evaluation episodes ended within 0.05 s; long ones are missing"):
        assert evaluate(policy, env, episodes=2, time_limit_s=0.05).returns == [1.0]
    endless = LaneEnvironment(SerialDriver([load(ENDLESS, env_id=0, max_episode_steps=10**9)]), lane_seeds=[1])
    with pytest.raises(ConfigError, match=r"only 0 of 1 .* set a time limit on episodes"):
        evaluate(policy, endless, episodes=1, time_limit_s=0.05)


def test_time_in_which_all_is_stopped_is_not_of_an_evaluation(monkeypatch):
    """Ctrl-Z for an hour, of ten minutes that it may take; a step that does take long counts."""
    clock, step_s = [0.0], [3600.0, *[8.0] * 9]
    monkeypatch.setattr("palaestra.rollout.evaluation.time", SimpleNamespace(monotonic=lambda: clock[0]))

    def play():
        for seconds in step_s:
            clock[0] += seconds
            yield []
        yield [Episode(1.0, 10, 0, {})]

    assert len(first_episodes(play(), 1, 1, time_limit_s=83.0)) == 1
    with pytest.raises(ConfigError, match="only 0 of 1"):
        first_episodes(play(), 1, 1, time_limit_s=81.0)


def test_steps_that_always_take_long_count_in_full_but_the_first(monkeypatch):
    """An evaluation of steps of a minute took six times its limit."""
    clock = [0.0]
    monkeypatch.setattr("palaestra.rollout.evaluation.time", SimpleNamespace(monotonic=lambda: clock[0]))

    def play():
        while True:
            clock[0] += 60.0
            yield []

    with pytest.raises(ConfigError, match="only 0 of 1"):
        first_episodes(play(), 1, 1, time_limit_s=600.0)
    assert clock == [720.0]


def test_an_evaluation_in_which_nothing_ends_takes_no_more_and_more_memory(monkeypatch):
    """F31: rows of a running episode are added up as they come."""
    waiting, add = [], EpisodeTracker.add

    def noted(self, time_step, lanes=None):
        add(self, time_step, lanes)
        waiting.append(len(self.state()["rewards"]))

    monkeypatch.setattr(EpisodeTracker, "add", noted)
    endless = LaneEnvironment(SerialDriver([load(ENDLESS, env_id=0, max_episode_steps=200)]), lane_seeds=[1])
    assert evaluate(make("ppo", endless).policy, endless, episodes=1).returns == [200.0]
    assert len(waiting) == 200 and max(waiting) <= 32


def test_an_evaluation_in_which_nothing_ends_says_so_while_it_waits(caplog, monkeypatch):
    monkeypatch.setattr("palaestra.rollout.evaluation._LONG_S", 0.0)
    env = LaneEnvironment(SerialDriver([load(ENDLESS, env_id=0, max_episode_steps=5)]), lane_seeds=[1])
    evaluate(make("ppo", env).policy, env, episodes=2)
    (record,) = caplog.records
    assert "0 of 2 evaluation episodes have ended after 0 s and 1 steps" in record.getMessage()
    assert "trainer.eval_time_limit_s breaks an evaluation off" in record.getMessage()


@pytest.mark.parametrize("limit", [{"max_episode_steps": 5}, {"wrappers": (Wrap(TimeLimit, duration=5),)}])
def test_a_slow_evaluation_names_the_limit_that_there_is(limit, caplog, monkeypatch):
    """Go1's was told to set one."""
    monkeypatch.setattr("palaestra.rollout.evaluation._LONG_S", 0.0)
    with create_environment(EnvConfig(name="palaestra.envs.tiny:TensorCartPole", num_envs=2, **limit), seed=0) as env:
        evaluate(RandomPolicy(env.observation_spec, env.action_spec), env, episodes=2)
    assert [one.getMessage().partition(" steps; ")[2] for one in caplog.records] == ["they end after 5 at the latest"]


class Slow(gymnasium.Wrapper):
    """A task with a time limit, which nothing but the environment that was made knows of."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))


def test_the_limit_inside_of_a_wrapped_environment_is_known():
    with create_environment(EnvConfig(name=f"{__name__}:Slow", num_envs=2), seed=0) as env:
        assert env.step_limit == 500


def test_a_slow_evaluation_is_not_said_to_have_no_end_while_its_episodes_are_like_those_that_have_ended():
    """19 of 20 episodes of a slow environment had ended, and it was advised to change the task."""
    ended = [Episode(9.0, 9, 0, {}), Episode(10.0, 10, 1, {})]
    assert not _may_not_end(ended, [0, 1], 100, 0)
    assert _may_not_end(ended, [0, 1], 111, 0)
    assert _may_not_end([], [1, 1], 1, 500) and not _may_not_end(ended, [0, 1], 111, 500)


def test_an_evaluation_of_no_episode_is_refused():
    env = environment("discrete")
    for episodes in (0, -1):
        with pytest.raises(ConfigError, match=f"asked for {episodes} episodes"):
            evaluate(RandomPolicy(env.observation_spec, env.action_spec), env, episodes=episodes)


def test_environments_that_are_stepped_as_they_are_ready_are_refused():
    config = EnvConfig(num_envs=4, vectorization="process", num_workers=2, num_ready=2)
    with create_environment(config, seed=0) as env, pytest.raises(ConfigError, match="2 of 4 are stepped at a time"):
        evaluate(RandomPolicy(env.observation_spec, env.action_spec), env, episodes=1)


def test_environments_that_end_with_their_episodes_are_refused_before_the_first_step():
    config = EnvConfig(num_envs=2, auto_reset=False)
    with create_environment(config, seed=0) as env, pytest.raises(ConfigError, match="leave out env"):
        evaluate(RandomPolicy(env.observation_spec, env.action_spec), env, episodes=1)
