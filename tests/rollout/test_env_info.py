"""Entries of `info` in metrics, evaluations and rows, from outside."""

import dataclasses
import itertools
import json
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import palaestra
from palaestra import EnvConfig
from palaestra.analysis.measure import _play
from palaestra.core import PalaestraError
from palaestra.envs import LaneEnvironment, SerialDriver, load
from palaestra.envs.contract.gym_environment import LOOK_STEPS
from palaestra.envs.wrappers import ObservationMap
from palaestra.policies import RandomPolicy, RulePolicy
from palaestra.rollout import evaluate
from palaestra.runs.single import _episode
from tests.cli.parts import exit_code

EPISODE = 4


class Costly(gymnasium.Env):
    """Reports a cost and two forces with every step, and with the last one whether the first action was 1."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.success = 0, False
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.success |= self.steps == 1 and action == 1
        info = {"cost": 10 * self.steps, "force": np.array([1.0, -self.steps]), "picture": np.zeros((9, 9))}
        if self.steps == EPISODE:
            info["is_success"] = bool(self.success)
        return np.full(2, self.steps, np.float32), float(action), self.steps == EPISODE, False, info


NAME = f"{__name__}:Costly"
COSTS = {"cost": 100.0, "cost@mean": 25.0, "cost@max": 40.0}
FORCES = {"force/0": 4.0, "force/1": -10.0, "force/1@mean": -2.5, "force/1@max": -1.0}
SMALL = {
    "trainer__total_env_steps": 64,
    "trainer__eval_episodes": 3,
    "algorithm__network__hidden_sizes": (8,),
    "run__tensorboard": False,
}


@pytest.mark.parametrize("vectorization", ["serial", "native"])
def test_what_the_environment_reports_is_in_every_row_of_metrics_and_in_evaluations(tmp_path, vectorization):
    """ALF-20, ALF-57: costs, elements of arrays and success rates, of training and of evaluation."""
    name = NAME if vectorization == "serial" else f"{__name__}:costly_pool"
    env = {"env__vectorization": vectorization, "env__num_envs": 2}
    run = palaestra.train("ppo", name, run__directory=str(tmp_path), **SMALL, **env)
    last = json.loads((run.directory / "metrics.jsonl").read_text().splitlines()[-1])
    saved = json.loads(max((run.directory / "evals").glob("*.json")).read_text())
    for found in (
        {key.removeprefix("info/"): value for key, value in last.items()},
        {key.removeprefix("eval/info/"): value for key, value in last.items()},
        saved["parts"],
        palaestra.evaluate_run(run.directory, episodes=3).parts,
    ):
        assert {key: found[key] for key in COSTS | FORCES} == pytest.approx(COSTS | FORCES)
        assert 0 <= found["is_success"] <= 1 and found["is_success"] == found["is_success@mean"]
        assert not any(key.startswith("picture") for key in found)


def test_the_success_rate_of_an_evaluation_is_that_of_its_policy():
    """ALF-57: a policy that always acts 1 succeeds always, one that always acts 0 never."""
    with palaestra.create_environment(EnvConfig(name=NAME, num_envs=2)) as env:
        for action in (0, 1):
            rule = lambda seen, action=action: [action] * len(seen)  # noqa: E731
            policy = RulePolicy(rule, env.observation_spec, env.action_spec)
            evaluation = palaestra.evaluate(policy, env, episodes=3)
            assert evaluation.parts["is_success"] == action
            assert evaluation.parts["cost"] == 100.0


def costly_pool(num_envs: int) -> gymnasium.vector.VectorEnv:
    """Several of them, stepped by Gymnasium."""
    return gymnasium.vector.SyncVectorEnv([Costly] * num_envs)


# -- in time steps, rows and losses


@pytest.mark.parametrize("vectorization", ["serial", "thread", "process", "native"])
def test_named_entries_are_in_every_time_step_and_zeros_where_an_episode_begins(vectorization):
    """ALF-15, ALF-42: `env_info_spec` says what the environment reports; at FIRST it is zeros of that structure."""
    name = NAME if vectorization != "native" else f"{__name__}:costly_pool"
    num_envs = 1 if vectorization == "thread" else 2
    config = EnvConfig(name=name, num_envs=num_envs, vectorization=vectorization, info=("*", "is_success"))
    with palaestra.create_environment(config, seed=1) as env:
        entries = ["cost", "force/0", "force/1", "is_success"]
        assert sorted(env.env_info_spec) == entries
        steps = [env.reset(), *(env.step(torch.ones(num_envs, dtype=torch.int64)) for _ in range(EPISODE + 1))]
        for step in steps:
            assert sorted(step.env_info.keys()) == entries
            assert all(step.env_info[key].shape == (num_envs,) for key in entries)
        for first in (steps[0], steps[-1]):
            assert first.first.all()
            assert all((first.env_info[key] == 0).all() for key in entries)
        assert [step.env_info["cost"][0].item() for step in steps] == [0, 10, 20, 30, 40, 0]
        assert [step.env_info["force/1"][-1].item() for step in steps] == [0, -1, -2, -3, -4, 0]
        assert steps[EPISODE].env_info["is_success"].tolist() == [1.0] * num_envs


class Late(Costly):
    """Says whether it was a success at the end of an episode of 20 steps, or of as many as are asked for."""

    def __init__(self, length: int = 20) -> None:
        self.length = length

    def step(self, action: Any) -> Any:
        self.steps += 1
        ends = self.steps == self.length
        return np.full(2, self.steps, np.float32), 0.0, ends, False, {"late": {"success": 1.0}} if ends else {}


def late_pool(num_envs: int) -> gymnasium.vector.VectorEnv:
    """Several of them, whose episodes begin within the step in which others end."""
    return gymnasium.vector.SyncVectorEnv([Late] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Late", {}),
        ("Late", {"vectorization": "process", "num_workers": 2, "num_ready": 1}),
        ("late_pool", {"vectorization": "native"}),
    ],
    ids=["serial", "first ready", "native"],
)
def test_entries_that_come_at_the_end_of_an_episode_are_found(name, settings):
    """ALF-15: `*` has what an environment reports at an episode's end alone, from the first step on."""
    with palaestra.create_environment(EnvConfig(name=f"{__name__}:{name}", num_envs=2, info=("*",), **settings)) as env:
        assert env.reset().env_info["late/success"].tolist() == [0.0, 0.0]
        assert list(env.row_specs["env_info_spec"]) == ["late/success"]


def latest_pool(num_envs: int) -> gymnasium.vector.VectorEnv:
    """Whose episodes are as long as a first look."""
    return gymnasium.vector.SyncVectorEnv([lambda: Late(LOOK_STEPS)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("Late", {"kwargs": {"length": LOOK_STEPS}}), ("latest_pool", {"vectorization": "native"})],
    ids=["serial", "native"],
)
def test_a_first_look_sees_the_last_step_that_it_takes(name, settings):
    """ALF-15: in an episode that ends there, of one environment as of a batch."""
    with palaestra.create_environment(EnvConfig(name=f"{__name__}:{name}", info=("*",), **settings)) as env:
        assert env.reset().env_info["late/success"].tolist() == [0.0]


def test_an_entry_that_comes_after_the_first_look_is_said_once(caplog):
    config = EnvConfig(name=f"{__name__}:Late", kwargs={"length": 1_001}, info=("*",))
    with palaestra.create_environment(config) as env:
        for _ in range(2_010):
            env.step(torch.zeros(1, dtype=torch.int64))
    assert caplog.text.count("info has late/success, which a first look") == 1


def test_a_batch_made_by_hand_knows_groups_and_arrays(caplog):
    """`LaneEnvironment(info=...)` means what `EnvConfig(info=...)` means: elements of arrays, groups, all."""
    for names, found in [(("force",), ["force/0", "force/1"]), (("*",), ["cost", "force/0", "force/1", "is_success"])]:
        with LaneEnvironment(SerialDriver([load(NAME)]), lane_seeds=[1], info=names) as env:
            assert sorted(env.reset().env_info.keys()) == found
            assert env.step(torch.ones(1, dtype=torch.int64)).env_info["force/1"].tolist() == [-1.0]
    assert not caplog.text


def restarting_pool(num_envs: int) -> gymnasium.vector.VectorEnv:
    """The same, whose episodes begin within the step in which others end."""
    return gymnasium.vector.SyncVectorEnv([Costly] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def pool_that_is_reset(num_envs: int) -> gymnasium.vector.VectorEnv:
    """The same, where the library has to begin episodes."""
    return gymnasium.vector.SyncVectorEnv([Costly] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


@pytest.mark.parametrize("pool", ["restarting_pool", "pool_that_is_reset"])
def test_where_an_episode_begins_within_a_step_named_entries_are_zeros_and_the_last_row_has_its_own(pool):
    """ALF-15: a pool that goes on at once gives FIRST rows instead of LAST ones, which are in `ended`."""
    config = EnvConfig(name=f"{__name__}:{pool}", num_envs=2, vectorization="native", info=("cost", "never"))
    with palaestra.create_environment(config, seed=1) as env:
        first = env.reset()
        for _ in range(EPISODE):
            again = env.step(torch.ones(2, dtype=torch.int64))
        for step in (first, again):
            assert step.first.all()
            assert step.env_info.cost.tolist() == step.env_info.never.tolist() == [0.0, 0.0]
        assert env.ended is not None and env.ended.env_info.cost.tolist() == [10.0 * EPISODE] * 2
        assert env.ended.env_info.never.isnan().all()


@pytest.mark.parametrize("pool", ["restarting_pool", "pool_that_is_reset"])
def test_such_pools_are_evaluated_played_and_measured(pool):
    """ALF-33: their episodes end where the next ones begin."""
    config = EnvConfig(name=f"{__name__}:{pool}", num_envs=2, vectorization="native")
    with palaestra.create_environment(config, seed=1) as env:
        policy = RandomPolicy(env.observation_spec, env.action_spec)
        found = evaluate(policy, env, episodes=5, time_limit_s=60.0)
        assert (found.episodes, found.length_mean, found.parts["cost"]) == (5, EPISODE, COSTS["cost"])
    with palaestra.create_environment(dataclasses.replace(config, num_envs=1), seed=1) as env:
        policy = RulePolicy(lambda observation: np.ones(1, np.int64), env.observation_spec, env.action_spec)
        *_, (lines, returns) = _episode(policy, env, 1)
        assert (lines[0], returns) == (f"episode 1, step {EPISODE}", [float(EPISODE)])
    timed = itertools.islice(_play(config), 3 * EPISODE + 1)
    assert [steps for steps, _ in timed] == [0] + 3 * EPISODE * [2]


def test_entries_that_are_not_named_come_and_go():
    """A reset reports nothing here, and no structure is known before the first step."""
    with palaestra.create_environment(EnvConfig(name=NAME), seed=1) as env:
        assert env.reset().env_info == ()
        assert env.step(torch.ones(1, dtype=torch.int64)).env_info.cost.tolist() == [10.0]


def test_the_spec_of_info_is_found_without_disturbing_the_environment():
    """ALF-42: entries that no option names are in the spec as well; the stream is that of an environment not asked."""
    config = EnvConfig(name=NAME, wrappers=("EpisodeStatistics",))
    with palaestra.create_environment(config, seed=1) as env, palaestra.create_environment(config, seed=1) as other:
        env.reset()
        asked = ["cost", "episode/length", "episode/return", "force/0", "force/1", "is_success"]
        assert sorted(env.env_info_spec) == asked == sorted(env.time_step_spec.env_info)
        other.reset()
        action = torch.ones(1, dtype=torch.int64)
        assert torch.equal(env.step(action).observation, other.step(action).observation)
    single = load(NAME)
    assert single.env_info_spec["force"].shape == (2,) and single.env_info_spec["cost"].shape == ()
    single = load(NAME)
    single.reset()
    with pytest.raises(PalaestraError, match="before the first reset"):
        _ = single.env_info_spec


def test_an_entry_that_is_not_found_is_said(caplog):
    """ALF-42: a name that was mistyped would be zeros for ever."""
    with palaestra.create_environment(EnvConfig(name=NAME, info=("cots",))) as env:
        assert env.reset().env_info.cots.tolist() == [0.0]
    assert "env.info has 'cots', which a first look at" in caplog.text and "did you mean 'cost'?" in caplog.text
    with pytest.raises(PalaestraError, match=r"env.info is 'cost'; give names"):
        EnvConfig(info="cost")  # pyright: ignore[reportArgumentType]


def _looked_at(batch: Any) -> None:
    """A loss finds what came with each action, and rewards and observations from before the wrappers."""
    steps = batch.untransformed.observation[..., 0]
    raw, after = batch.untransformed.reward, batch.untransformed.next_observation[..., 0]
    ends = batch.env_info["cost"] == 10 * EPISODE
    valid = batch.valid.bool() if "valid" in batch else torch.ones_like(ends)
    assert torch.equal(batch.env_info["cost"][valid], 10 * (steps + 1)[valid])
    assert torch.equal(batch.env_info["force/1"][valid], -(steps + 1)[valid])
    assert not batch.env_info["is_success"][~ends].any()
    assert torch.equal(after[valid], (steps + 1)[valid])
    action = batch.action if batch.action.ndim == raw.ndim else batch.action[..., 0]
    assert torch.equal(raw[valid], action[valid].float())
    if "reward" in batch:
        assert torch.equal(batch.reward, raw / 2)
    assert batch.observation.abs().max() <= 1
    LOOKS.append(len(ends))


LOOKS: list[int] = []


class LookingDQN(palaestra.DQN):
    """Reads what rows keep besides."""

    def losses(self, batch: Any) -> Any:
        _looked_at(batch)
        return super().losses(batch)


class LookingPPO(palaestra.PPO):
    """The same, on unrolls."""

    def losses(self, batch: Any) -> Any:
        _looked_at(batch)
        return super().losses(batch)


class Squeezed(ObservationMap):
    """Observations below 1."""

    def leaf_spec(self, spec: Any) -> Any:
        return spec

    def leaf(self, value: Any, path: str, first: bool) -> Any:
        return value / 10


KEPT = ("--env.info", "cost", "force", "is_success", "--env.untransformed")
WRAPPED = ("--env.wrappers", f"{__name__}:Squeezed", "ScaleReward(scale=0.5)", "--env.num-envs", "2")
SHORT = ("--trainer.total-env-steps", "96", "--trainer.eval-episodes", "2", "--run.no-tensorboard")


@pytest.mark.parametrize("where", [(), ("--distributed.runtime", "local", "--distributed.num-workers", "2")])
@pytest.mark.parametrize("algorithm", ["LookingDQN", "LookingPPO"])
def test_a_loss_reads_costs_and_what_was_there_before_the_wrappers(tmp_path, monkeypatch, algorithm, where):
    """TS-07, ALF-19: from the command line, with environments here and in workers, on replayed rows and on unrolls."""
    monkeypatch.chdir(tmp_path)
    LOOKS.clear()
    sizes = ("--algorithm.network.hidden-sizes", "8")
    sizes += ("--algorithm.learning-starts", "8") if algorithm == "LookingDQN" else ("--algorithm.unroll-length", "8")
    assert exit_code("train", f"{__name__}:{algorithm}", NAME, *KEPT, *WRAPPED, *SHORT, *sizes, *where) == 0
    assert len(LOOKS) > 5


class SummingDQN(palaestra.DQN):
    """Rewards of several steps are summed in the same way before the wrappers and behind them."""

    def losses(self, batch: Any) -> Any:
        torch.testing.assert_close(batch.untransformed.reward / 2, batch.reward)
        LOOKS.append(int((batch.reward > 0.5).sum()))
        return super().losses(batch)


def test_untransformed_rewards_of_several_steps_are_discounted(tmp_path, monkeypatch):
    """ALF-19: by the algorithm's gamma."""
    monkeypatch.chdir(tmp_path)
    LOOKS.clear()
    sizes = ("--algorithm.network.hidden-sizes", "8", "--algorithm.learning-starts", "8")
    longer = ("--algorithm.n-step", "3", "--algorithm.gamma", "0.5")
    assert exit_code("train", f"{__name__}:SummingDQN", NAME, *KEPT, *WRAPPED, *SHORT, *sizes, *longer) == 0
    assert sum(LOOKS) > 5


@pytest.mark.parametrize("vectorization", ["serial", "thread", "process"])
def test_batched_time_steps_have_the_untransformed_one(vectorization):
    """ALF-19: with normalised observations and scaled rewards `untransformed` is raw, whichever way it came."""
    num_envs = 1 if vectorization == "thread" else 2
    wrappers = (f"{__name__}:Squeezed", "ScaleReward(scale=0.5)")
    config = EnvConfig(name=NAME, num_envs=num_envs, vectorization=vectorization, wrappers=wrappers, untransformed=True)
    with palaestra.create_environment(config, seed=1) as env:
        assert env.observation_spec.shape == (2,)
        steps = [env.reset(), *(env.step(torch.ones(num_envs, dtype=torch.int64)) for _ in range(EPISODE + 1))]
    assert [step.untransformed.observation[-1, 0].item() for step in steps] == [0, 1, 2, 3, 4, 0]
    assert [step.untransformed.reward[-1].item() for step in steps] == [0, 1, 1, 1, 1, 0]
    for step in steps:
        assert torch.equal(step.observation, step.untransformed.observation / 10)
        assert torch.equal(step.reward, step.untransformed.reward / 2)
        assert torch.equal(step.step_type, step.untransformed.step_type)


def test_rows_keep_what_is_asked_for_and_nothing_else(tmp_path):
    """TS-07, ALF-19: they are saved with the buffer; off by default."""
    for options, kept in (({}, set()), ({"info": ("cost",), "untransformed": True}, {"env_info", "untransformed"})):
        with palaestra.create_environment(EnvConfig(name=NAME, **options), seed=1) as env:
            collector = palaestra.Collector.of(env, palaestra.DQN(env.observation_spec, env.action_spec))
            collector.collect(n_step=10)
        rows = collector.buffer.sample(0, torch.Generator())[0]
        assert {"env_info", "untransformed"} & set(rows.keys()) == kept
    assert rows.env_info.cost.tolist() == [0, 10, 20, 30, 40] * 2 + [0, 10]
    collector.buffer.save(tmp_path / "saved")
    again = palaestra.ReplayBuffer.load(tmp_path / "saved")
    assert torch.equal(again.sample(0, torch.Generator())[0].env_info.cost, rows.env_info.cost)


class CostlyAtOnce(Costly):
    """Reports something with the reset, too."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0], {"cost": 7.0}


def test_what_a_reset_reports_of_a_named_entry_is_zero_as_every_other_begin():
    config = EnvConfig(name="tests.rollout.test_env_info:CostlyAtOnce", info=("cost",), inputs=("env_info",))
    with palaestra.create_environment(config, seed=1) as env:
        first = env.reset()
        assert first.env_info.cost.item() == 0
        assert first.observation.env_info.cost.item() == 0
