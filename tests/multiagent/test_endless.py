"""Episodes of many agents that never end: what is kept to replay them has a limit."""

import itertools
import json

import pytest

import palaestra
from palaestra.core import StepType
from palaestra.envs import EnvConfig
from palaestra.envs.contract import episodes
from palaestra.multiagent import MultiAgentEnvs, assign_policies
from palaestra.multiagent.envs import create_multi_agent_envs
from palaestra.runs.matches import Player, play_match
from tests.multiagent.parts import RandomWorld
from tests.multiagent.test_collector import TWO_KINDS, collector_of, lanes_of, seen_of

MOST = 40
ENDLESS = "tests.multiagent.parts:RandomWorld"


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """So that a test has more."""
    monkeypatch.setattr(episodes, "MOST_STEPS", MOST)


def world():
    """Agents that die and come back, for much longer than is kept."""
    return RandomWorld(length=10_000, revive=True)


def stepped(steps: int) -> MultiAgentEnvs:
    envs = MultiAgentEnvs([world, world], lane_seeds=[1, 2])
    outcomes = envs.reset()
    for _ in range(steps):
        outcomes = envs.step([{name: 1 for name, s in one.time_steps.items() if not s.last} for one in outcomes])
    return envs


def test_an_endless_episode_takes_a_bounded_amount_of_memory(caplog):
    """D10: actions are forgotten beyond the limit, steps counted on; restored, a new episode begins, and says so."""
    envs = stepped(10 * MOST)
    state = envs.state_dict()
    assert state["0"]["actions"] == {"length": 0, "agents": {}, "forgotten": 10 * MOST}
    assert envs.where(0).endswith(f"step {10 * MOST}")
    other = stepped(3)
    assert other.load_state_dict(state) == [None, None]
    assert (other.resume, other.restarted) == ("statistical", {0, 1})
    assert "environment 0 after 400 steps, environment 1 after 400 steps: episodes of more than 40" in caplog.text
    begun = other.step([{}, {}])[0]
    assert {step.step_type for step in begun.time_steps.values()} == {StepType.FIRST}
    assert other.where(0).startswith("environment 0 in episode 1 ")


def test_an_episode_at_the_limit_goes_on_exactly():
    """D10: nothing is lost up to the limit, and a later episode is kept again."""
    envs = stepped(MOST)
    other = stepped(0)
    newest = other.load_state_dict(envs.state_dict())
    assert (other.resume, other.restarted) == ("exact", frozenset())
    assert newest[0] is not None and other.where(0).endswith(f"step {MOST}")
    envs = stepped(MOST + 1)
    assert envs.state_dict()["0"]["actions"]["forgotten"] == MOST + 1
    envs.reset()
    assert envs.state_dict()["0"]["actions"] == {"length": 0, "agents": {}}


def test_no_transition_joins_what_was_forgotten_with_what_begins():
    """D10: the buffers of a collector that is restored see a fragment that ends, and FIRST rows after it."""
    one, _ = collector_of(world, num_envs=2, mapping=TWO_KINDS, algorithm="dqn")
    one.unroll(2 * MOST)
    other, _ = collector_of(world, num_envs=2, mapping=TWO_KINDS, algorithm="dqn")
    for name, buffer in one.buffers.items():
        other.buffers[name].load_state_tensors(buffer.state_tensors())
    other.load_state(one.state())
    env_steps = other.env_steps
    other.unroll(3)
    assert other.env_steps == env_steps + 2 * 2  # the first of the three begins episodes
    joined = 0
    for buffer in other.buffers.values():
        for _, rows in lanes_of(buffer):
            kinds, seeds = rows.step_type.tolist(), seen_of(rows)[:, 3]
            for row, (kind, following) in enumerate(itertools.pairwise(kinds)):
                if kind != StepType.LAST and following != StepType.FIRST:
                    joined += 1
                    assert seeds[row] == seeds[row + 1], "a transition of two episodes"
    assert joined


def test_a_run_is_resumed_with_new_episodes_and_says_so(tmp_path, caplog):
    """D10, from outside: `run.json` says how it was resumed, and why."""
    settings = {"env__kwargs": {"length": 10_000, "revive": True}, "env__num_envs": 2, "trainer__eval_episodes": 0}
    settings |= {
        "agents__mapping": TWO_KINDS,
        "algorithm__unroll_length": 20,
        "trainer__total_env_steps": 200,
        "run__tensorboard": False,
    }
    done = palaestra.train("ppo", ENDLESS, run__directory=str(tmp_path), run__name="run", **settings)
    again = palaestra.resume(done.directory, trainer__total_env_steps=280)
    assert again.result.status == "done"
    info = json.loads((done.directory / "run.json").read_text())
    assert (info["resume"], info["resume_reasons"]) == ("statistical", ["with new episodes"])
    assert "episodes of more than 40 steps are not replayed" in caplog.text


def test_games_that_never_end_are_draws_and_hold_nobody_up(caplog):
    """Where players are rated."""
    env = EnvConfig(name=ENDLESS, kwargs={"length": 10**9, "revive": True})
    with create_multi_agent_envs(env) as envs:
        chance = Player.at_random(assign_policies(envs.agents, TWO_KINDS))
    assert play_match(chance, chance, env, games=4, seed=1, time_limit_s=0.2).won == 2
    assert caplog.text.count("games against each other count as draws: only 0 of 2") == 2
