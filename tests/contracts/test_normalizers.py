"""What every algorithm promises of a normaliser: networks see an observation as it makes it, in each place."""

import dataclasses
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.testing import assert_close

from palaestra import EnvConfig, NetworkConfig
from palaestra.algorithms import ALGORITHMS, GradientAlgorithm
from palaestra.core import ConfigError, tree_paths
from palaestra.envs import Wrap
from palaestra.ops import Moments
from palaestra.policies import Phase
from palaestra.testing.algorithms import minibatches_of, shaken
from tests.algorithms.parts import CASES, SETTINGS, collector_for, environment, make


class Groups(gymnasium.Env):
    """The policy sees `state`, of which there are two frames, and values also `rest`; episodes end by chance.

    Args:
        discrete: whether there are three actions, or two numbers between -1 and 1.
    """

    def __init__(self, discrete: bool) -> None:
        self.observation_space = spaces.Dict(
            {key: spaces.Box(-4, 4, (size,), np.float32) for key, size in (("rest", 2), ("state", 3))}
        )
        self.action_space = spaces.Discrete(3) if discrete else spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        return self._observation(), float(np.sum(action)), bool(self.np_random.random() < 0.1), False, {}

    def _observation(self) -> dict[str, Any]:
        return {key: self.np_random.uniform(-1, 1, box.shape).astype(np.float32) for key, box in _boxes(self)}


def _boxes(env: Any) -> Any:
    return env.observation_space.spaces.items()


def groups(discrete: bool) -> EnvConfig:
    """The environment with two frames of what the policy sees."""
    stack = Wrap("FrameStack", num_frames=2, keys=("state",))
    return EnvConfig(name=f"{__name__}:Groups", kwargs={"discrete": discrete}, max_episode_steps=5, wrappers=(stack,))


SEEN = ("observation", "next_observation")
GROUPS = {"discrete": groups(discrete=True), "continuous": groups(discrete=False)}
NORMALISED = [
    (name, kind)
    for name, kind in CASES
    if issubclass(ALGORITHMS[name], GradientAlgorithm)
    and "normalize_observation" in {field.name for field in dataclasses.fields(ALGORITHMS[name].config_class)}
]


def made(name: str, kind: str, env: Any, chosen: bool) -> GradientAlgorithm:
    """With or without a normaliser; of groups, one whose values see more than the policy where it can do that."""
    settings: dict[str, Any] = {**SETTINGS.get(kind, {}), "normalize_observation": chosen, "normalize_value": True}
    if kind not in GROUPS:
        return make(name, env, **settings)
    network = NetworkConfig(hidden_sizes=(8,), policy_sees=("state",))
    try:
        return make(name, env, network=dataclasses.replace(network, value_sees=("state", "rest")), **settings)
    except ConfigError:
        return make(name, env, network=network, **settings)


def with_statistics(algorithm: Any) -> Any:
    """As after other observations: each number has a mean and a deviation of its own, far from 0 and 1."""
    generator = torch.Generator().manual_seed(7)
    for normalizer in (algorithm.policy.normalizer, *algorithm.policy.unseen):
        mean, deviation = torch.rand(2, *normalizer.mean.shape, generator=generator, dtype=torch.float64)
        count = torch.tensor(100.0, dtype=torch.float64)
        normalizer.merge(Moments(count, 0.5 + mean, 100.0 * (0.3 + 0.3 * deviation).square()))
    return algorithm


def of_update(algorithm: Any, drawn: Any, source: Any) -> tuple[dict[str, Any], Any]:
    """What `preprocess` gives besides observations, and the losses of the first minibatch, all of whose terms count."""
    algorithm.num_gradient_steps = math.lcm(*algorithm.term_periods.values()) - 1
    with algorithm.policy.in_phase(Phase.UPDATE):
        batch = algorithm.noise(algorithm.preprocess(drawn, source), torch.Generator().manual_seed(1))
        losses = algorithm.losses(minibatches_of(algorithm, batch)[0])
    paths = tree_paths({key: value for key, value in batch.items() if key not in SEEN})
    return paths, losses


@pytest.mark.parametrize(("name", "kind"), NORMALISED)
def test_an_update_equals_that_of_a_twin_whose_observations_were_normalised_before(name, kind):
    """Of equal weights, without a normaliser: no network sees a raw observation, or one that was normalised twice."""
    env = environment(GROUPS.get(kind, kind))
    one, other = (shaken(made(name, kind, env, chosen)) for chosen in (True, False))
    collector = collector_for(env, with_statistics(one))
    collector.unroll(12)
    drawn = collector.buffer.draw(one.plan, torch.Generator().manual_seed(1))
    seen = {key: one.policy.normalize(drawn[key]) for key in SEEN if key in drawn}
    assert not any(leaf.abs().max() >= 10.0 for leaf in tree_paths(seen).values()), "clipped"

    (fields, losses), (wanted, expected) = (
        of_update(algorithm, rows, collector.buffer)
        for algorithm, rows in ((one, drawn), (other, drawn.replace(**seen)))
    )
    close = {"rtol": 1e-4, "atol": 1e-5}
    assert fields.keys() == wanted.keys()
    for path, value in fields.items():
        assert_close(value, wanted[path], **close, msg=lambda text, path=path: f"{path}: {text}")
    assert set(losses.terms) == set(expected.terms)
    assert_close(losses.terms | losses.metrics, expected.terms | expected.metrics, **close)
