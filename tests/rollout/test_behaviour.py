"""Tests of what losses need of the policy that acted, where lanes do not move together."""

from typing import Any, ClassVar

import torch

from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, TensorSpec
from palaestra.envs import EnvConfig, create_environment
from palaestra.policies import CategoricalPolicy
from palaestra.rollout import Collector


class WithLogits(CategoricalPolicy):
    """Of several numbers for each action."""

    behaviour_spec: ClassVar[Any] = {"logits": TensorSpec((2,))}

    def describe(self, observation, action, state, first):
        return Batch.of({"logits": self.distribution(observation).logits})


def test_fields_of_several_numbers_are_those_of_the_policy_that_acted_in_every_lane():
    env = create_environment(EnvConfig(name="CartPole-v1", num_envs=2), lane_seeds=[1, 2])
    policy = WithLogits.build(env.observation_spec, env.action_spec)
    specs: Any = {"observation_spec": env.observation_spec, "action_spec": policy.raw_action_spec}
    buffer = ReplayBuffer(None, 2, info_spec=policy.behaviour_spec, **specs)
    collector, expected = Collector(env, policy, buffer), []
    for version in (0, 1):
        policy.version = version
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter += 0.1 * version
        collector.collect(n_episode=[1, 2 - version])  # one lane has fewer new rows than the other
        rows = buffer.reader.everything()
        with torch.inference_mode():
            expected.append(policy.distribution(rows.observation[:-1]).logits)
    assert expected[0].shape[0] < expected[1].shape[0]
    for version in (0, 1):
        mine = rows.valid.bool() & (rows.policy_version == version)
        right = expected[version][mine[: len(expected[version])]]
        assert mine.any(0).all() and torch.allclose(rows.policy_info.logits[mine], right, atol=1e-5)
