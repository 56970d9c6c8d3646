"""Runs in which values see keys of an observation that the policy does not: asymmetric actors and critics."""

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import palaestra
from palaestra import EnvConfig, NetworkConfig
from palaestra.algorithms import ALGORITHMS, PPO, SAC, PPOConfig, SACConfig
from palaestra.core import (
    POLICY,
    Batch,
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    RunSeeds,
    ShapeError,
    TensorSpec,
    load_tensors,
    tree_paths,
)
from palaestra.deployment import export
from palaestra.experiments import collect_data, evaluate_run
from palaestra.multiagent import AgentSpec, PolicySpec
from palaestra.multiagent.mapping import require_policies
from palaestra.policies import in_saved_order, load_policy
from palaestra.runs.records import network_lines, networks_of
from palaestra.training import CheckpointStore
from tests.algorithms.parts import ATTENTION, tiny_config
from tests.deployment.served import serving
from tests.experiments.parts import SMALL
from tests.faults.parts import differences


class Reach(gym.Env):
    """The reward needs the goal, which is seen in `state`; the mass is only in `privileged_state`."""

    def __init__(self):
        self.observation_space = spaces.Dict(
            {key: spaces.Box(-9, 9, (size,), np.float32) for key, size in (("privileged_state", 3), ("state", 2))}
        )
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def _seen(self):
        self.steps += 1
        numbers = 4 + self.np_random.normal(size=5).astype(np.float32)
        return {"privileged_state": numbers[:3], "state": numbers[3:] - 4}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action):
        return self._seen(), float(-(action[0] ** 2)), self.steps > 5, False, {}


HERE = f"{__name__}:Reach"
SEES: dict[str, Any] = {
    "algorithm__network__policy_sees": ("state",),
    "algorithm__network__value_sees": ("privileged_*",),
    "algorithm__normalize_observation": True,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": SMALL | SEES,
    "sac": SMALL
    | SEES
    | {"algorithm__learning_starts": 24, "algorithm__mini_batch_size": 8, "algorithm__unroll_length": 2},
}
SPEC = {"privileged_state": TensorSpec((3,)), "state": TensorSpec((2,)), "rest": TensorSpec((1,))}
BOX = BoundedSpec((2,), minimum=np.full(2, -1.0), maximum=np.full(2, 1.0))
NETWORK = NetworkConfig(policy_sees=("state",), value_sees=("privileged_*",), hidden_sizes=(8,))


@pytest.fixture(scope="module", params=SETTINGS)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return palaestra.train(request.param, HERE, run__directory=str(folder), **SETTINGS[request.param]).directory


def test_a_saved_policy_needs_what_it_sees_and_nothing_else(run):
    policy = palaestra.load_policy(run / "policy")
    assert list(policy.observation_spec) == ["state"]
    action = policy({"state": [0.1, 0.2]})
    assert action.shape == (1,)
    assert action == policy({"state": [0.1, 0.2], "privileged_state": [1.0, 2.0, 3.0]})
    with pytest.raises(ShapeError, match="without the entry 'state'"):
        policy({"privileged_state": [1.0, 2.0, 3.0]})
    assert load_tensors(run / "policy/weights.safetensors")["normalizer.mean"].shape == (2,)
    assert evaluate_run(str(run), episodes=2).episodes == 2


@pytest.mark.parametrize("name", ["muzero", "decision_transformer"])
def test_a_policy_that_plans_or_remembers_needs_what_it_sees_and_nothing_else(name):
    """Behind a normaliser: it wanted what critics see besides, too."""
    kind: Any = ALGORITHMS[name]
    memory = ATTENTION if name == "decision_transformer" else NetworkConfig(hidden_sizes=(8,))
    config = tiny_config(kind, network=dataclasses.replace(memory, policy_sees=("state",)), normalize_observation=True)
    policy = kind(SPEC, DiscreteSpec(num=3), config, RunSeeds(0)).policy
    policy.normalizer.merge(policy.normalizer.increment(observations()))
    rest = {"privileged_state": [1.0, 2.0, 3.0], "rest": [1.0]}
    for state in ([0.1, 0.2], [4.0, -9.0]):
        answers = [policy(Batch(obs={"state": state} | more)) for more in ({}, rest)]
        assert answers[0].act.shape == () and answers[0].act == answers[1].act


@pytest.mark.parametrize("format", [pytest.param("onnx", marks=pytest.mark.slow), "torch"])
def test_exports_have_the_keys_that_the_policy_sees(run, format, tmp_path):
    (made,) = export(run / "policy", tmp_path, format=format)
    assert made.parity.observations == 1000
    assert [one["name"] for one in made.manifest["inputs"]] == ["observation.state"]


def test_a_server_asks_for_the_keys_that_the_policy_sees(run):
    policy = load_policy(run / "policy")
    with serving(run / "policy") as running:
        answer = running.act(observation={"state": [0.5, -0.5]})
    np.testing.assert_allclose(answer["action"], policy({"state": [0.5, -0.5]}), rtol=1e-6)


def test_a_run_that_was_cut_ends_as_one_that_was_not(tmp_path):
    """Statistics of what the policy does not see are in checkpoints, too."""
    settings = SETTINGS["ppo"] | {"trainer__checkpoint_every_steps": 48, "run__directory": str(tmp_path)}
    whole = palaestra.train("ppo", HERE, run__name="whole", **settings)
    palaestra.train("ppo", HERE, run__name="cut", **settings | {"trainer__total_env_steps": 48})
    palaestra.resume(tmp_path / "cut", trainer__total_env_steps=96)
    ends = [CheckpointStore(tmp_path / name / "checkpoints").load_newest()[1]["algorithm"] for name in ("whole", "cut")]
    assert any("unseen_normalizer_0.mean" in path for path in tree_paths(ends[0]))
    assert differences(*ends) == []
    settings |= {"run__initial_policy": str(whole.directory), "trainer__total_env_steps": 8}
    began = palaestra.train("ppo", HERE, run__name="began", **settings)
    assert list(load_policy(began.directory / "policy").observation_spec) == ["state"]
    settings |= {"run__name": "other", "algorithm__network__policy_sees": ("state", "privileged_state")}
    with pytest.raises(
        ConfigError, match=r"it sees {'state': .*} there and .* here; .* --algorithm.network.policy-sees"
    ):
        palaestra.train("ppo", HERE, **settings)


def test_what_imitates_may_see_less_than_is_observed(tmp_path):
    """What it does not see has no slope for a penalty."""
    collect_data(None, EnvConfig(name=HERE), tmp_path / "data", steps=60)
    settings = SMALL | {"algorithm__network__policy_sees": ("state",), "algorithm__bonus__kind": "gail"}
    settings |= {"offline__data": str(tmp_path / "data"), "run__directory": str(tmp_path)}
    assert palaestra.train("ppo", HERE, **settings).result.status == "done"


def test_workers_send_what_values_see(tmp_path):
    workers = {"distributed__runtime": "local", "distributed__num_workers": 2, "run__directory": str(tmp_path)}
    run = palaestra.train("sac", HERE, **SETTINGS["sac"] | workers).directory
    assert list(load_policy(run / "policy").observation_spec) == ["state"]


def observations(**changed):
    rows = {"privileged_state": torch.ones(4, 3), "state": torch.ones(4, 2), "rest": torch.ones(4, 1)}
    return Batch.of(rows | {key: value + rows[key] for key, value in changed.items()})


@pytest.mark.parametrize("encoder", [None, "own"])
@pytest.mark.parametrize("recurrent", [None, "gru"])
def test_the_policy_of_ppo_does_not_depend_on_what_its_value_sees(encoder, recurrent):
    """The usual case with a memory, too: the policy remembers what its value is told."""
    network = dataclasses.replace(NETWORK, encoder=encoder and Flat, recurrent=recurrent, recurrent_size=4)
    ppo = PPO(SPEC, DiscreteSpec(num=3), PPOConfig(network=network), RunSeeds(0))
    state = (ppo.policy.initial_state(4),) if recurrent else ()
    given = [observations(), observations(privileged_state=1.0), observations(state=1.0), observations(rest=1.0)]
    logits = [ppo.policy.head(ppo.policy.features(one, *state)[0]) for one in given]
    values = [ppo.value(one, *state) for one in given]
    assert [bool((one == logits[0]).all()) for one in logits] == [True, True, False, True]
    assert [bool((one == values[0]).all()) for one in values] == [True, False, True, True]


class Flat(torch.nn.Module):
    """All that it is given, in a row."""

    def __init__(self, spec):
        super().__init__()
        assert set(spec) in ({"state"}, {"privileged_state"})

    def forward(self, observation):
        return torch.cat(list(observation.values()), -1)


def test_the_actor_of_sac_does_not_depend_on_what_its_critics_see():
    sac = SAC(SPEC, BOX, SACConfig(network=NETWORK, normalize_observation=True), RunSeeds(0))
    given = [observations(), observations(privileged_state=1.0), observations(state=1.0)]
    for normalizer in (sac.policy.normalizer, *sac.policy.unseen):
        rows = Batch.of({key: torch.randn(9, spec.shape[0]) for key, spec in SPEC.items()})
        normalizer.merge(normalizer.increment(rows))
    seen = [sac.policy.normalize(one) for one in given]
    assert all((seen[0][key] != 1.0).all() for key in SPEC), "critics see normalised numbers, the actor's and their own"
    actions = [sac.policy.head(one) for one in seen]
    values = [sac.critic(one, torch.zeros(4, 2)) for one in seen]
    assert [bool((one == actions[0]).all()) for one in actions] == [True, True, False]
    assert [bool((one == values[0]).all()) for one in values] == [True, False, True]


def test_a_value_sees_all_where_only_the_policy_is_told_what_it_sees():
    network = dataclasses.replace(NETWORK, value_sees=())
    ppo = PPO(SPEC, DiscreteSpec(num=3), PPOConfig(network=network), RunSeeds(0))
    assert (ppo.policy.network.encoder.out_size, ppo.value.network.encoder.out_size) == (2, 6)


def test_a_mask_is_seen_whatever_is_named():
    spec = SPEC | {"action_mask": TensorSpec((3,), torch.bool)}
    assert list(NETWORK.parts("policy", "value")[0].seen(spec)) == ["state", "action_mask"]


@pytest.mark.parametrize(
    ("name", "sees", "spec", "said"),
    [
        (
            "ppo",
            {"policy_sees": ("stat",)},
            SPEC,
            "policy_sees has 'stat', which is no key of the observations.*'state'",
        ),
        ("sac", {"value_sees": ("x*",)}, SPEC, r"value_sees has 'x\*'.*known: privileged_state, rest, state"),
        ("td3", {"policy_sees": ("state",)}, TensorSpec((4,)), "observations are no dict; leave it out"),
        ("dqn", {"value_sees": ("rest",)}, SPEC, "one network for all, q, and no value.*such as ppo or sac"),
        (
            "ddpg",
            {"policy_sees": ("state",), "recurrent": "gru"},
            SPEC,
            "policy_sees or value_sees \\('state',\\);.*the value of ppo may",
        ),
        ("mappo", {"policy_sees": ("observation",)}, SPEC, "are not for teams"),
    ],
)
def test_what_cannot_hold_is_refused_by_name(name, sees, spec, said):
    kind: Any = ALGORITHMS[name]
    config = kind.config_class(network=NetworkConfig(**sees))
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        kind(spec, BOX if name in ("sac", "td3", "ddpg") else DiscreteSpec(num=3), config, RunSeeds(0))


def test_a_text_is_no_list_of_keys():
    with pytest.raises(ConfigError, match=r"network.policy_sees is 'state'; it must be a list, such as \['state'\]"):
        NetworkConfig(policy_sees="state")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("sees", [(), ("state", "rest")])
def test_a_policy_that_acts_on_something_privileged_is_named_with_the_option(sees):
    config = PPOConfig(network=NetworkConfig(policy_sees=sees))
    (line,) = network_lines(networks_of({POLICY: PPO(SPEC, DiscreteSpec(num=3), config, RunSeeds(0))}))
    told = "; the policy sees privileged_state: --algorithm.network.policy-sees state,rest keeps that from it"
    assert line.endswith("parameters" + ("" if sees else told))


def test_a_policy_of_fewer_keys_fits_agents_and_orders_what_it_is_given():
    policy = PPO(SPEC, DiscreteSpec(num=3), PPOConfig(network=NETWORK), RunSeeds(0)).policy
    member = AgentSpec(SPEC, DiscreteSpec(num=3))
    agents = PolicySpec("one", ("a",), member, SPEC, DiscreteSpec(num=3), team=False)
    require_policies({"one": agents}, {"one": policy})
    with pytest.raises(ConfigError, match="the policy 'one' sees"):
        require_policies({"one": dataclasses.replace(agents, observation_spec={"rest": SPEC["rest"]})}, {"one": policy})


def test_a_run_that_begins_from_fewer_keys_keeps_their_order(tmp_path):
    seen = {"rest": SPEC["rest"], "state": SPEC["state"]}
    palaestra.policies.save_policy(palaestra.policies.CategoricalPolicy.build(seen, DiscreteSpec(num=3)), tmp_path)
    ordered, _ = in_saved_order((SPEC, DiscreteSpec(num=3)), tmp_path)
    assert list(ordered) == ["rest", "state", "privileged_state"]
