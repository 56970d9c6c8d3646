"""MultiAgentEnvs that fail: restarted, counted, and never learned from across the break."""

import functools
import itertools
import re
import typing

import numpy as np
import pytest
import torch

from palaestra import MAPPO, PPO, PPOConfig, RunSeeds
from palaestra.core import ConfigError, EnvError, NonFiniteError, StepType
from palaestra.envs import EnvConfig, FaultPolicy
from palaestra.multiagent import (
    Meeting,
    MultiAgentCollector,
    MultiAgentEnvs,
    assign_policies,
    create_multi_agent_envs,
    evaluate_agents,
)
from palaestra.policies import RandomPolicy
from tests.faults import broken
from tests.multiagent.parts import RandomWorld, Shop


class Failing:
    """Raises at the step of its life as an object that `left` counts down to."""

    left: int

    def advance(self, actions):
        self.left -= 1
        if not self.left:
            raise KeyError("broken")
        return super().advance(actions)


class Fragile(Failing, RandomWorld):
    """Raises at certain steps of its life as an object; an environment that is made again is as good as new."""

    def __init__(self, fails_at: int = 7) -> None:
        super().__init__(revive=True)
        self.left = fails_at


class LateFragile(Shop):
    """The same with rewards that come late."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 7

    def run(self, env_action):
        self.left -= 1
        if not self.left:
            raise KeyError("broken")
        return super().run(env_action)


RESTART = FaultPolicy(on_fault="restart", backoff_s=0)
CONFIG = EnvConfig(name="tests.multiagent.test_faults:Fragile", num_envs=2, on_fault="restart")


def collected(envs, rounds=6, length=6, mapping=None):
    policy_specs = assign_policies(envs.agents, mapping or {"odd_*": "odd", "*": "even"})
    algorithms = {
        name: PPO(spec.observation_spec, spec.action_spec, PPOConfig(unroll_length=length), RunSeeds(1))
        for name, spec in policy_specs.items()
    }
    collector = MultiAgentCollector(envs, policy_specs, algorithms)
    for _ in range(rounds):
        yield collector, collector.unroll(length)


def test_a_restarted_environment_begins_its_next_episode_and_is_reported():
    """F1: by `on_fault=restart`, like environments with one agent."""
    envs = create_multi_agent_envs(CONFIG)
    steps = sum(info.env_steps for _, info in collected(envs, rounds=4, length=5))
    assert [(fault.env_id, fault.handled, fault.step) for fault in envs.faults] == [
        (env, "restart", 7) for _ in range(2) for env in range(2)
    ]
    assert [fault.episode for fault in envs.faults] == [0, 0, 1, 1]
    assert "KeyError" in envs.faults[0].detail
    # 20 steps of each environment: 3 began episodes, of which 2 are the answers to steps that were never executed.
    assert steps == 2 * (20 - 3)


def test_nothing_is_learned_across_a_restart():
    """F1: rows before it have no successor, and no transition joins two episodes of an environment."""
    broken = 0
    envs = create_multi_agent_envs(CONFIG)
    ((collector, _),) = collected(envs, rounds=1, length=40)
    for buffer in collector.buffers.values():
        for lane in range(buffer.num_lanes):
            rows = buffer.in_time_order(lane)
            kinds, seen = buffer.take("step_type", rows).numpy(), buffer.take("observation", rows)
            episode = (seen if torch.is_tensor(seen) else seen.seen)[:, 3].numpy()
            starts = buffer.is_start(rows[:-1])
            for place, (kind, follows) in enumerate(itertools.pairwise(kinds)):
                broken += kind != StepType.LAST and follows == StepType.FIRST
                assert bool(starts[place]) == (kind != StepType.LAST and follows != StepType.FIRST)
                assert not starts[place] or episode[place] == episode[place + 1]
    assert broken > 3


def test_late_rewards_of_a_broken_episode_are_forgotten():
    """A reward never goes to an action of another episode."""
    envs = MultiAgentEnvs([LateFragile], lane_seeds=[3], faults=RESTART)
    ((collector, _),) = collected(envs, rounds=1, length=40, mapping={"*": "all"})
    assert len(envs.faults) > 1
    buffer = collector.buffers["all"]
    rows = buffer.in_time_order(0)
    tick = buffer.take("observation", rows)[:, 0].numpy()
    starts = buffer.is_start(rows[:-1])
    action, reward = (buffer.take(name, rows).numpy() for name in ("action", "reward"))
    assert starts.sum() > 10
    for place in np.flatnonzero(starts):
        assert reward[place + 1] == 1000 * tick[place] + 10 * action[place]


def test_evaluation_counts_only_episodes_that_came_to_their_end():
    make = functools.partial(Fragile, fails_at=30)
    with MultiAgentEnvs([make], lane_seeds=[3], faults=RESTART) as envs:
        policy_specs = assign_policies(envs.agents, {"odd_*": "odd", "*": "even"})
        policies = {name: RandomPolicy(spec.observation_spec, spec.action_spec) for name, spec in policy_specs.items()}
        result = evaluate_agents(policies, envs, policy_specs, episodes=4)
        assert (result.episodes, result.length_mean) == (4, 25)
        assert len(envs.faults) == 3


def test_all_that_are_restarted_in_one_step_are_known_though_only_the_newest_faults_are_kept():
    envs = MultiAgentEnvs([functools.partial(Fragile, fails_at=2)] * 101, faults=RESTART)
    for _ in collected(envs, rounds=8, length=1):
        if envs.faults:
            break
    assert envs.restarted == frozenset(range(101))
    assert (len(envs.faults), envs.faults.total) == (100, 101)


def test_restarts_are_counted_and_end():
    """F1: too many faults stop the run, and the first one is named."""
    policy = FaultPolicy(on_fault="restart", max_restarts=2, backoff_s=0)
    envs = MultiAgentEnvs([functools.partial(Fragile, fails_at=1)], lane_seeds=[3], faults=policy)
    with pytest.raises(EnvError, match=r"(?s)failed 3 times within an hour.*episode 0 .*KeyError"):
        for _ in collected(envs):
            pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on_fault": "drop"}, "use 'restart'"),
        ({"chaos": "kill:0.1"}, "environments with one agent only"),
        ({"wrappers": ("ClipReward",)}, "a function that returns the environment wrapped"),
        ({"max_episode_steps": 9}, "change the environment itself. Of env, these can be set: name, num_envs"),
        ({"vectorization": "process"}, "environments are stepped in this process"),
    ],
)
def test_settings_that_mean_nothing_for_environments_say_what_to_do_instead(settings, message):
    with pytest.raises(ConfigError, match=message):
        create_multi_agent_envs(EnvConfig(name="palaestra.multiagent:Meeting", **settings))


def test_a_environment_that_is_restarted_is_the_same_as_one_that_never_failed():
    """The next episode of a lane has its own seed, whoever steps it."""
    sound, fragile = (
        MultiAgentEnvs([make], lane_seeds=[3], faults=RESTART)
        for make in (Meeting, functools.partial(Late, fails_at=2))
    )
    sound.reset()
    fragile.reset()
    for envs in (fragile, fragile):
        (outcome,) = envs.step([dict.fromkeys(envs.agents, 1)])
    assert fragile.restarted == {0}
    (expected,) = sound.reset()
    assert str(outcome) == str(expected)


class Late(Failing, Meeting):
    """Raises once."""

    def __init__(self, fails_at: int) -> None:
        super().__init__()
        self.left = fails_at


class Broken(RandomWorld):
    """Breaks in the third step of each episode, in one of the ways in which environments with one agent do."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.does = {**{name: do for name, (do, _) in broken.RAISES.items()}, **broken.ENDS, **broken.HANGS}[mode]

    def advance(self, actions):
        if self._step == 2:
            self.does()
        return super().advance(actions)


@pytest.mark.parametrize("mode", ["sys_exit", "base_exception", "generator_exit", "keyboard_interrupt", "os_exit_0"])
def test_what_would_end_the_process_is_a_fault_of_the_environment(mode, no_ctrl_c):
    """D2, D12: as of an environment with one agent."""
    said = "called os._exit(0), which would have ended" if mode == "os_exit_0" else broken.RAISES[mode][1]
    envs = MultiAgentEnvs([functools.partial(Broken, mode)], lane_seeds=[1])
    with pytest.raises(EnvError, match=rf"(?s)environment 0 in episode 0 .*step 3.*{re.escape(said)}"):
        _played(envs)
    assert [fault.step for fault in envs.faults] == [3]


@pytest.mark.parametrize("mode", ["sleep", "wait", "busy"])
def test_a_hang_is_named_with_its_stack(mode):
    """D2, F4: by the watchdog of environments with one agent."""
    config = EnvConfig(name=f"{__name__}:Broken", kwargs={"mode": mode}, timeout_s=0.2, reset_timeout_s=5.0)
    with create_multi_agent_envs(config) as envs, pytest.raises(EnvError) as told:
        _played(envs)
    assert told.match(r"environment 0 in episode 0 \(seed \d+\), step 3, .*did not answer in time and was interrupted")
    assert told.match(re.escape(broken.__file__)) and envs.faults[0].kind == "timeout"


def test_after_a_hang_the_run_goes_on():
    """F4: it is made again, and the next episode begins."""
    made = iter([Broken("wait"), RandomWorld()])
    policy = FaultPolicy(on_fault="restart", timeout_s=0.2, reset_timeout_s=5.0)
    with MultiAgentEnvs([lambda: next(made)], lane_seeds=[3], faults=policy) as envs:
        _played(envs)
        assert [(fault.kind, fault.handled) for fault in envs.faults] == [("timeout", "restart")]
        assert envs.lane_state()["episode"].tolist() == [1]


def test_making_and_closing_have_a_deadline():
    """D2: as has an attribute that is asked for."""

    class Slow(RandomWorld):
        @property
        def level(self):
            return broken.HANGS["wait"]()

        def close(self):
            broken.HANGS["wait"]()

    quick = FaultPolicy(timeout_s=0.2, reset_timeout_s=0.3)
    with pytest.raises(EnvError, match="environment 1 could not be made: it did not answer in time"):
        MultiAgentEnvs([RandomWorld, broken.HANGS["wait"]], faults=quick)
    envs = MultiAgentEnvs([Slow], faults=quick)
    with pytest.raises(EnvError, match="did not answer in time"):
        envs.get_attr("level")
    with pytest.raises(EnvError, match="environment 0 did not answer in time and was interrupted when it was closed"):
        envs.close()


class Blind(RandomWorld):
    """Its global state is NaN from the third step on."""

    def global_state(self):
        return super().global_state() * (np.nan if self._step > 2 else 1)


def test_an_environment_whose_global_state_is_nan_is_named():
    """F5."""
    envs = MultiAgentEnvs([Blind], lane_seeds=[1])
    with pytest.raises(NonFiniteError, match=r"environment 0 in episode 0 .*step 3"):
        _played(envs)
    assert envs.faults.total == 1


class Unseen(Meeting):
    """Cannot say its global state at one time of its life as an object, the first time steps included."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def global_state(self):
        self.left -= 1
        if not self.left:
            raise ConnectionResetError("simulator lost")
        return super().global_state()


@pytest.mark.parametrize("left", [1, 5, 9])
def test_a_global_state_that_fails_is_a_fault_of_the_step_for_those_who_see_it(left):
    """F1: the episode breaks off in training and in evaluation, and the next one begins."""

    def envs_of(faults):
        lives = itertools.chain([left], itertools.repeat(100_000))
        return MultiAgentEnvs([lambda: Unseen(next(lives))], lane_seeds=[3], faults=faults)

    envs = envs_of(RESTART)
    specs = assign_policies(envs.agents, {"*": "team"}, teams=["team"], state_spec=envs.state_spec)
    team = MAPPO(specs["team"].observation_spec, specs["team"].action_spec, None, RunSeeds(0))
    collector = MultiAgentCollector(envs, specs, {"team": team})
    collector.unroll(40)
    ((fault,), buffer) = envs.faults, collector.buffers["team"]
    assert (fault.handled, fault.step, envs.lane_state()["episode"][0] > 0) == ("restart", left - 1, True)
    rows = buffer.in_time_order(0)
    kinds = buffer.take("step_type", rows).numpy()
    broken = (kinds[:-1] != StepType.LAST) & (kinds[1:] == StepType.FIRST)
    assert broken.sum() == (left > 1)
    assert not buffer.is_start(rows[:-1][broken]).any()
    evaluated = envs_of(RESTART)
    assert evaluate_agents({"team": team.policy}, evaluated, specs, episodes=3).episodes == 3
    assert evaluated.faults.total == 1
    with pytest.raises(EnvError, match=r"environment 0 in episode \d .*, step \d+, .*simulator lost"):
        MultiAgentCollector(envs_of(None), specs, {"team": team}).unroll(40)


def test_an_environment_that_cannot_be_made_again_at_first_is_tried_again():
    """F1: a port that is still taken, say."""
    made = itertools.count()

    def make():
        if next(made) == 1:
            raise ConnectionRefusedError("port 5000")
        return Fragile()

    envs = MultiAgentEnvs([make], lane_seeds=[1], faults=RESTART)
    list(collected(envs, rounds=2))
    assert next(made) > 2
    assert any("ConnectionRefusedError" in fault.what for fault in envs.faults)


def _played(envs):
    outcomes, rng = envs.reset(), np.random.default_rng(0)
    for _ in range(10):
        envs.global_state()
        due = [name for name, step in outcomes[0].time_steps.items() if step.step_type != StepType.LAST]
        outcomes = envs.step([{name: rng.integers(2) for name in due}])


class Held(RandomWorld):
    """Notes that it was closed; a broken one says so when it is."""

    closed: typing.ClassVar[list[str]] = []

    def __init__(self, name: str, broken: bool = False) -> None:
        super().__init__(num_agents=2)
        self.name, self.broken = name, broken

    def close(self):
        self.closed.append(self.name)
        if self.broken:
            raise OSError("it is held")


def test_all_environments_are_closed_whatever_fails():
    """F1: where one cannot be made, where one cannot be closed, and where something else went wrong."""
    Held.closed.clear()
    with pytest.raises(EnvError, match="environment 1 could not be made: it raised ZeroDivisionError"):
        MultiAgentEnvs([functools.partial(Held, "a"), lambda: 1 / 0])
    assert Held.closed == ["a"]
    envs = MultiAgentEnvs([functools.partial(Held, "b", broken=True), functools.partial(Held, "c")])
    with pytest.raises(EnvError, match=r"(?s)environment 0 raised OSError when it was closed .*it is held"):
        envs.close()
    assert Held.closed == ["a", "b", "c"]
    with pytest.raises(KeyError), envs:
        raise KeyError("what ended the run")


class FailsToBegin(RandomWorld):
    """Fails at its second begin, right after an episode has ended."""

    begun = 0

    def begin_episode(self, seed):
        type(self).begun += 1
        if type(self).begun == 2:
            raise ValueError("no reset")
        return super().begin_episode(seed)


def test_an_episode_that_fails_to_begin_moves_no_log_probability():
    FailsToBegin.begun = 0
    envs = MultiAgentEnvs([FailsToBegin], lane_seeds=[1], faults=FaultPolicy(on_fault="restart", backoff_s=0.0))
    policies = assign_policies(envs.agents, {"odd_*": "odd", "*": "even"})
    learning = {
        name: PPO(spec.observation_spec, spec.action_spec, None, RunSeeds(0)) for name, spec in policies.items()
    }
    collector = MultiAgentCollector(envs, policies, learning)
    collector.unroll(30)
    assert envs.faults.total == 1
    for name, algorithm in learning.items():
        unroll = collector.buffers[name].reader.everything()
        exact = algorithm.policy.behaviour(unroll.observation[:-1], unroll.action).log_prob
        wrong = (unroll.policy_info.log_prob - exact).abs() > 1e-4
        assert not (wrong & (unroll.valid > 0)).any()
