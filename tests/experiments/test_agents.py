"""Runs with many agents, from a configuration to a run directory and on."""

import json

import pytest
import torch

import palaestra
from palaestra.core import CheckpointError, ConfigError
from palaestra.experiments import evaluate_run, evaluate_runs, policies_of_run, policy_of_run
from palaestra.policies import Policy
from palaestra.runs.run_directory import RunDirectory

MEETING = "palaestra.multiagent:Meeting"


def rule(seen):
    """Nobody moves."""
    return torch.ones(len(seen["own"]), dtype=torch.int64)


def made(*args, seed=0, folder, **settings):
    defaults = {"trainer__total_env_steps": 240, "env__num_envs": 2, "trainer__eval_episodes": 2}
    if args[0] in ("ppo", "mappo"):
        defaults["algorithm__unroll_length"] = 16
    return palaestra.train(*args, run__directory=str(folder), run__seed=seed, **{**defaults, **settings})


@pytest.mark.slow
def test_a_shared_and_a_separate_policy_come_from_one_configuration(tmp_path):
    """MARO-18: `agents.sharing` alone decides; artefacts, metrics and evaluations are by policy."""
    for sharing, names in (("shared", ["shared"]), ("separate", ["agent_0", "agent_1", "agent_2"])):
        done = made("ppo", MEETING, folder=tmp_path, run__name=sharing, agents__sharing=sharing)
        assert sorted(p.name for p in (done.directory / "policy").iterdir()) == names
        assert list(dict(done.policy.items())) == names
        row = json.loads((done.directory / "metrics.jsonl").read_text().splitlines()[-1])
        assert {f"learning/{name}/surrogate" for name in names} <= row.keys()
        assert {f"info/agent_{number}/return" for number in range(3)} <= row.keys()
        evaluation = json.loads(next((done.directory / "evals").glob("*.json")).read_text())
        assert evaluation["parts"][f"{names[0]}/return"] <= 1
        assert (done.directory / "report.html").is_file()


def test_policies_of_different_algorithms_and_rules_act_together(tmp_path):
    """MARO-18, MARO-19: a mapping, DQN beside PPO, a rule and chance."""
    done = made(
        "ppo",
        MEETING,
        folder=tmp_path,
        run__name="mixed",
        env__kwargs={"num_agents": 4},
        agents__mapping={"agent_0": "first", "agent_1": "second", "agent_2": "rule", "*": "chance"},
        agents__policies={
            "second": {"algorithm": "dqn", "learning_starts": 50},
            "rule": "tests.experiments.test_agents:rule",
            "chance": "random",
        },
    )
    assert sorted(p.name for p in (done.directory / "policy").iterdir()) == ["first", "second"]
    row = json.loads((done.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"learning/first/surrogate", "learning/second/q_mean"} <= row.keys()
    for which in ("best", "last"):
        agents, policies = policies_of_run(RunDirectory(done.directory), which)
        assert set(policies) == {"first", "second", "rule", "chance"}
        assert all(isinstance(policy, Policy) for policy in policies.values())
        assert set(agents.algorithms) == {"first", "second"}
    assert evaluate_run(done.directory, episodes=2).episodes == 2
    with pytest.raises(ConfigError, match="use `policies_of_run`"):
        policy_of_run(RunDirectory(done.directory))
    with pytest.raises(CheckpointError, match="no checkpoint 7"):
        policies_of_run(RunDirectory(done.directory), 7)


@pytest.mark.parametrize(
    ("judged", "agents"), [((), ["agent_0"]), (("chance",), ["agent_1", "agent_2"]), (("learner", "chance"), None)]
)
def test_ts_26_the_return_is_that_of_the_policy_that_learns_or_of_those_that_are_judged(tmp_path, judged, agents):
    """In training, in evaluations, in the run's record, and of random actions that it is compared with."""
    shared = {"agents__mapping": {"agent_0": "learner", "*": "chance"}, "agents__policies": {"chance": "random"}}
    done = made("ppo", MEETING, folder=tmp_path, run__name="one", agents__judged=judged, **shared)
    agents = agents or ["agent_0", "agent_1", "agent_2"]
    row = json.loads((done.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["return_mean"] == pytest.approx(sum(row[f"info/{name}/return"] for name in agents), abs=1e-4)
    found = evaluate_runs([done.directory], episodes=2, baseline=True)
    for evaluation in (*found.runs.values(), found.baseline):
        assert evaluation.return_mean == pytest.approx(sum(evaluation.parts[f"{name}/return"] for name in agents))
    with pytest.raises(ConfigError, match=r"agents\.judged names 'lerner', but the policies are learner, chance"):
        made("ppo", MEETING, folder=tmp_path, run__name="two", agents__judged=("lerner",), **shared)


@pytest.mark.parametrize("algorithm", ["mappo", "qmix"])
def test_a_team_run_is_resumed_as_if_it_had_never_stopped(algorithm, tmp_path):
    """F25: from files, with the algorithm of a team."""
    options = {"trainer__checkpoint_every_steps": 40, "trainer__total_env_steps": 100, "run__tensorboard": False}
    if algorithm == "qmix":
        options["algorithm__learning_starts"] = 30
    whole = made(algorithm, MEETING, folder=tmp_path, run__name="whole", **options)
    kept = sorted((whole.directory / "checkpoints").glob("step_*"))
    assert len(kept) > 1
    again = made(algorithm, MEETING, folder=tmp_path, run__name="again", **options)
    for newer in sorted((again.directory / "checkpoints").glob("step_*"))[1:]:
        for file in newer.iterdir():
            file.unlink()
        newer.rmdir()
    resumed = palaestra.resume(again.directory)
    for ours, theirs in zip(whole.policy.parameters(), resumed.policy.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_workers_of_a_runtime_collect_for_many_agents_and_a_run_on_them_is_resumed(tmp_path):
    """MARO-08, MARO-18: separate policies, one of them chance, on two workers; resumed as if never stopped."""
    options = {
        "distributed__runtime": "local",
        "trainer__checkpoint_every_steps": 60,
        "agents__sharing": "separate",
        "agents__policies": {"agent_2": "random"},
    }
    whole, again = (made("ppo", MEETING, folder=tmp_path, run__name=name, **options) for name in ("one", "two"))
    for newer in sorted((again.directory / "checkpoints").glob("step_*"))[1:]:
        for file in newer.iterdir():
            file.unlink()
        newer.rmdir()
    resumed = palaestra.resume(again.directory)
    assert list(dict(whole.policy.items())) == ["agent_0", "agent_1"]
    for ours, theirs in zip(whole.policy.parameters(), resumed.policy.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_mistakes_are_named_before_anything_is_made(tmp_path):
    """F27: what was given, what is needed, and nothing is left behind."""
    cases = [
        ({"agents__mapping": {"agent_9": "x", "*": "y"}}, "the mapping names 'agent_9' — did you mean"),
        ({"agents__mapping": {"agent_0": "Team", "*": "team"}}, "'Team' and 'team' differ in case alone"),
        ({"agents__mapping": {"agent_0": "x"}}, "gives no policy to agent_1, agent_2"),
        ({"agents__policies": {"other": "random"}}, "agents.policies names other, but the policies are shared"),
        ({"agents__policies": {"shared": "random"}}, "none of the policies shared learns"),
        ({"agents__policies": {"shared": {"algorithm": "dqn", "gama": 1}}}, "did you mean 'gamma'"),
        (
            {"agents__policies": {"shared": "ddpg"}},
            r"ddpg does not fit the policy 'shared'.*that fit: .*a2c",
        ),
        ({"env__vectorization": "process"}, "environments are stepped in this process"),
        ({"env__max_episode_steps": 5}, "env.max_episode_steps is 5, but .* has many agents"),
        ({"env__kwargs": {"agents": 5}}, "cannot be called with"),
        ({"offline__data": "somewhere"}, "PPO of the policy .shared. learns only from its own newest steps"),
    ]
    for settings, message in cases:
        with pytest.raises(ConfigError, match=message):
            made("ppo", MEETING, folder=tmp_path, **settings)
    with pytest.raises(ConfigError, match="are for environments with many agents, and CartPole-v1 has one"):
        made("ppo", "CartPole-v1", folder=tmp_path, agents__mapping={"*": "x"})
    assert not list(tmp_path.iterdir())
