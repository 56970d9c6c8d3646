"""What `palaestra serve` does for agents by name, for teams, for masks, and while a run goes on."""

import numpy as np
import pytest

import palaestra
from palaestra.core import DiscreteSpec, MultiBinarySpec, TensorSpec
from palaestra.envs import space_from_spec
from palaestra.experiments import RunDirectory, policies_of_run
from palaestra.policies import CategoricalPolicy, save_policies, save_policy
from tests.deployment.served import SMALL, serving
from tests.deployment.test_json_nests import as_json

MEETING = "palaestra.multiagent:Meeting"


def train(folder, algorithm, env, **settings):
    sizes = {"algorithm__network__hidden_sizes": (8,), "env__num_envs": 2, "run__tensorboard": False}
    budget = {"trainer__total_env_steps": 24, "trainer__eval_episodes": 1, "run__directory": str(folder)}
    palaestra.train(algorithm, env, run__name="run", **sizes, **budget, **settings)
    return folder / "run"


def sampled(spec):
    space = space_from_spec(spec)
    space.seed(0)
    return space.sample()


@pytest.mark.parametrize("sharing", ["separate", "shared"])
def test_agents_of_a_run_are_asked_by_name(sharing, tmp_path):
    run = train(tmp_path, "ppo", MEETING, agents__sharing=sharing, algorithm__unroll_length=6)
    learner, policies = policies_of_run(RunDirectory(run))
    with serving(run) as running:
        agents = running.client.get("/schema").json()["agents"]
        assert set(agents.values()) == set(policies)
        assert set(agents) == {agent for spec in learner.policy_specs.values() for agent in spec.agents} | set(policies)
        for agent, name in agents.items():
            seen = sampled(policies[name].observation_spec)
            action = running.act(agent=agent, observation=as_json(seen))["action"]
            assert action == as_json(policies[name](seen))
        if sharing == "separate":
            assert "agent is missing" in running.act(400, observation=as_json(seen))["error"]


def test_a_team_is_asked_for_all_of_its_members(tmp_path):
    sizes = {"algorithm__unroll_length": 4, "algorithm__mini_batch_size": 8}
    run = train(tmp_path, "qmix", MEETING, **sizes)
    _, policies = policies_of_run(RunDirectory(run))
    ((name, policy),) = policies.items()
    seen = sampled(policy.observation_spec)
    with serving(run) as running:
        assert list(running.client.get("/schema").json()["agents"]) == [name]
        action = running.act(observation=as_json(seen))["action"]
        assert len(action) == len(policy.action_spec.nvec)
        assert action == as_json(policy(seen))


def test_a_mask_that_allows_nothing_is_refused_and_others_are_answered(tmp_path):
    spec = {"observation": TensorSpec((2,)), "action_mask": MultiBinarySpec((3,))}
    save_policy(CategoricalPolicy.build(spec, DiscreteSpec(num=3), SMALL), tmp_path)
    with serving(tmp_path) as running:
        for allowed in range(3):
            mask = [int(action == allowed) for action in range(3)]
            assert running.act(observation={"observation": [0.5, 1], "action_mask": mask}) == {"action": allowed}
        refused = running.act(400, observation={"observation": [0.5, 1], "action_mask": [0, 0, 0]})
        assert "action_mask" in refused["error"]
        assert running.metric("policy_rows_total") == 3


def test_stochastic_actions_are_drawn(tmp_path):
    save_policy(CategoricalPolicy.build(TensorSpec((2,)), DiscreteSpec(num=2), SMALL), tmp_path)
    with serving(tmp_path, stochastic=True) as running:
        assert set(running.act(observations=[[0, 0]] * 64)["actions"]) == {0, 1}


def test_a_batch_waits_for_more_where_it_is_told_to(tmp_path):
    save_policy(CategoricalPolicy.build(TensorSpec((2,)), DiscreteSpec(num=2), SMALL), tmp_path)
    with serving(tmp_path, max_wait_ms=50) as running:
        running.act(observation=[0, 0])
        assert running.metric("policy_wait_seconds_total") >= 0.05


def test_policies_of_a_robot_act_anew_together_or_not_at_all(tmp_path, wait_until, caplog):
    """Also that of a task that only predicts; one that is damaged keeps the others as they were."""
    world = {"env__kwargs": {"num_sensors": 4}, "env__max_episode_steps": 6, "env__num_envs": 2}
    sizes = {"trainer__total_env_steps": 24, "trainer__eval_episodes": 1, "run__tensorboard": False, **world}
    names = "examples.robots.auxiliary:SeeingRobot", "palaestra.envs.tiny:Backdrop"
    palaestra.train(*names, run__directory=str(tmp_path), run__name="run", **sizes)
    home, (_, policies) = tmp_path / "run" / "policy", policies_of_run(RunDirectory(tmp_path / "run"))
    seen = {name: sampled(policy.observation_spec) for name, policy in policies.items()}

    def changed():
        for policy in policies.values():
            for parameter in policy.parameters():
                parameter.data.neg_()
        save_policies({home / name: policy for name, policy in policies.items()})

    def expected():
        return {name: as_json(policy(seen[name])) for name, policy in policies.items()}

    with serving(tmp_path / "run", reload_s=0.02) as running:

        def answers():
            return {name: running.act(agent=name, observation=as_json(seen[name]))["action"] for name in policies}

        before = expected()
        assert answers() == before
        whole = (home / "see" / "weights.safetensors").read_bytes()
        (home / "see" / "weights.safetensors").write_bytes(whole[:-4] + b"\x00\x00\xc0\x7f")
        save_policies({home / "play": policies["play"]})
        wait_until(lambda: running.metric('reloads_total{result="failed"}') >= 1)
        assert set(running.client.get("/health").json()["problems"]) == set(policies)
        changed()
        wait_until(lambda: running.metric('reloads_total{result="done"}') == 1)
        assert answers() == expected() != before
        assert running.client.get("/health").json() == {"status": "ok"}


def test_a_run_that_goes_on_is_served_with_its_better_policy(tmp_path, wait_until):
    run = train(tmp_path, "ppo", MEETING, agents__sharing="separate", algorithm__unroll_length=6)
    _, policies = policies_of_run(RunDirectory(run))
    name, policy = next(iter(policies.items()))
    seen = {**sampled(policy.observation_spec), "action_mask": np.ones(3, np.int8)}
    with serving(run, reload_s=0.02) as running:
        before = policy(seen)
        assert running.act(agent=name, observation=as_json(seen))["action"] == before
        for parameter in list(policy.parameters())[-2:]:  # the best action becomes the worst
            parameter.data.neg_()
        assert policy(seen) != before
        save_policy(policy, run / "policy" / name)
        wait_until(lambda: running.metric('reloads_total{result="done"}') == 1)
        assert running.act(agent=name, observation=as_json(seen))["action"] == policy(seen)
