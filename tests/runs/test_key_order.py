"""Weights follow keys: spaces that are equal for Gymnasium may have their parts in another order."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import palaestra
from palaestra.core import Batch, BoundedSpec, CheckpointError, ConfigError, DiscreteSpec, spec_leaves
from palaestra.policies import load_policy, load_weights
from palaestra.runs.lineage import begin_from, for_new_run
from tests.experiments.parts import SMALL

B, A = spaces.Box(0, 1, (2,), np.float32), spaces.Box(0, 1, (1,), np.float32)
TWO = spaces.Discrete(2)


class Keys(gym.Env):
    """Observations and actions of two parts."""

    swapped = False

    def __init__(self):
        pairs, choices = [("b", B), ("a", A)], [("b", TWO), ("a", TWO)]
        if self.swapped:
            pairs, choices = pairs[::-1], choices[::-1]
        self.observation_space, self.action_space = spaces.Dict(pairs), spaces.Dict(choices)

    def _seen(self):
        self.steps += 1
        return {"b": self.np_random.random(2, dtype=np.float32), "a": self.np_random.random(1, dtype=np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action):
        return self._seen(), float(action["b"]), self.steps > 4, False, {}


class Swapped(Keys):
    """The same for Gymnasium, written in another order."""

    swapped = True


class Flips(Keys):
    """Whose author exchanges the parts between two sessions."""


HERE = __name__


def test_a_run_that_begins_from_another_maps_weights_by_key(tmp_path):
    assert Keys().observation_space == Swapped().observation_space
    first = palaestra.train("ppo", f"{HERE}:Keys", **SMALL, run__directory=str(tmp_path)).directory
    base = palaestra.preset("ppo", f"{HERE}:Swapped")
    settings = SMALL | {"run__initial_policy": str(first)}
    config = for_new_run(palaestra.config.config.config_from_mapping(base.__class__, settings, base=base))
    learner = palaestra.experiments.make_learner(config)
    begin_from(learner)
    (algorithm,) = learner.algorithms.values()
    saved = load_policy(first / "policy")
    assert list(spec_leaves(saved.observation_spec)) == ["b", "a"]
    rows = Batch(a=torch.rand(50, 1), b=torch.rand(50, 2))
    with torch.no_grad():
        mine, theirs = (one.network(rows)[0] for one in (algorithm.policy, saved))
    assert torch.equal(mine, theirs)
    chosen = algorithm.policy.env_action(Batch(b=torch.tensor([1]), a=torch.tensor([0])))
    assert (int(chosen.b), int(chosen.a)) == (1, 0)
    done = palaestra.train("ppo", f"{HERE}:Swapped", **settings, run__directory=str(tmp_path / "next")).directory
    assert list(spec_leaves(load_policy(done / "policy").observation_spec)) == ["b", "a"]


def test_workers_of_a_run_that_begins_from_another_act_with_weights_in_its_order(tmp_path):
    """They made a policy in the order of the environment, and were given weights in that of the learner."""
    first = palaestra.train("ppo", f"{HERE}:Keys", **SMALL, run__directory=str(tmp_path)).directory
    workers = {"distributed__runtime": "local", "distributed__num_workers": 2, "run__name": "next"}
    settings = SMALL | workers | {"run__initial_policy": str(first), "run__directory": str(tmp_path)}
    done = palaestra.train("ppo", f"{HERE}:Swapped", **settings)
    assert done.result.status == "done" and done.result.env_steps >= 96
    assert list(spec_leaves(load_policy(done.directory / "policy").observation_spec)) == ["b", "a"]


def test_weights_are_not_put_on_inputs_in_another_order(tmp_path):
    run = palaestra.train("ppo", f"{HERE}:Keys", **SMALL, run__directory=str(tmp_path)).directory
    box = BoundedSpec((2,), minimum=np.array(0), maximum=np.array(1))
    one = BoundedSpec((1,), minimum=np.array(0), maximum=np.array(1))
    two = DiscreteSpec(num=2)
    saved = load_policy(run / "policy")
    config = palaestra.experiments.RunDirectory(run).config.algorithm
    swapped = palaestra.algorithms.PPO({"a": one, "b": box}, {"b": two, "a": two}, config, palaestra.RunSeeds(0))
    assert swapped.policy.observation_spec == saved.observation_spec
    with pytest.raises(ConfigError, match=r"its parts in the order \['a', 'b'\], and the weights in .* \['b', 'a'\]"):
        load_weights(swapped.policy, run / "policy")


def test_a_run_is_not_resumed_where_its_parts_have_changed_places(tmp_path, monkeypatch):
    run = palaestra.train("ppo", f"{HERE}:Flips", **SMALL, run__directory=str(tmp_path)).directory
    monkeypatch.setattr(Flips, "swapped", True)
    with pytest.raises(ConfigError, match=r"the order \['a', 'b'\], and the weights in .* are for \['b', 'a'\]"):
        palaestra.resume(run, trainer__total_env_steps=1000)


@pytest.mark.parametrize(("change", "told"), [(0, "observation"), (1, "action")])
def test_a_state_dict_of_a_policy_is_not_put_on_parts_in_another_order(change, told, tmp_path):
    """Also from a file; what says no order is taken as it is."""
    spaces = [{"b": BoundedSpec((2,)), "a": BoundedSpec((2,))}, {"b": DiscreteSpec(num=2), "a": DiscreteSpec(num=2)}]
    swapped = [dict(reversed(one.items())) if place == change else one for place, one in enumerate(spaces)]
    policy, same, other = (palaestra.PPO(*specs).policy for specs in (spaces, spaces, swapped))
    torch.save(policy.state_dict(), tmp_path / "weights.pt")
    for state in (policy.state_dict(), torch.load(tmp_path / "weights.pt", weights_only=True)):
        same.load_state_dict(state)
        with pytest.raises(ConfigError, match=rf"the {told} has its parts in the order \['a', 'b'\], and the weights"):
            other.load_state_dict(state)
    other.load_state_dict(dict(policy.state_dict()))


def test_the_state_of_an_algorithm_is_not_put_on_parts_in_another_order():
    two = DiscreteSpec(num=2)
    observation = {"b": BoundedSpec((2,)), "a": BoundedSpec((2,))}
    swapped = dict(reversed(observation.items()))
    state = palaestra.PPO(observation, two).state_tensors()
    same, other, action = (
        palaestra.PPO(seen, done, seeds=palaestra.RunSeeds(1))
        for seen, done in ((observation, two), (swapped, two), (observation, {"x": two}))
    )
    same.load_state_tensors(state)
    assert torch.equal(same.state_tensors()["model." + next(iter(same.model.state_dict()))], next(iter(state.values())))
    with pytest.raises(CheckpointError, match=r"the parts \[\['b', 'a'\], \[''\]\] of .* and here are \[\['a', 'b'\]"):
        other.load_state_tensors(state)
    with pytest.raises(CheckpointError, match="same keys in the same order"):
        action.load_state_tensors(state)
    del state["parts"]
    same.load_state_tensors(state)  # of a version that did not say it
