"""Tests of `from_minari` with datasets of other actions or observations than the environment's."""

import gymnasium
import numpy as np
import pytest

from palaestra.buffers import from_minari
from palaestra.core import BoundedSpec, DiscreteSpec, MultiBinarySpec, MultiDiscreteSpec, ShapeError, TensorSpec


class Recorded:
    """A dataset of one episode of 2 steps in the environment of an id."""

    id, total_steps, total_episodes = "x", 2, 1

    def __init__(self, action_space, actions, observations=(0.0, 0.0, 0.0)):
        self.action_space, self.env_spec = action_space, gymnasium.envs.registration.EnvSpec("Some-v1")
        self.observations = np.array(observations)[:, None]
        self.actions, self.rewards, self.terminations = np.array(actions), np.zeros(2), np.array([False, True])
        self.truncations = np.zeros(2, bool)

    def iterate_episodes(self):
        return [self]


BOXES = gymnasium.spaces.Box(-1, 1, (1,)), BoundedSpec((1,), minimum=np.array(-1.0), maximum=np.array(1.0))


@pytest.mark.parametrize(
    ("space", "spec", "actions", "fits"),
    [
        (*BOXES, [[0.5], [1.0]], True),
        (gymnasium.spaces.Box(-1, 1, (1,), np.float64), BOXES[1], [[0.5], [1.0]], True),
        (gymnasium.spaces.Box(-2, 2, (1,)), BOXES[1], [[0.5], [1.0]], False),
        (gymnasium.spaces.Box(-1, np.inf, (1,)), BOXES[1], [[0.5], [1.0]], False),
        (gymnasium.spaces.Box(-np.inf, np.inf, (1,)), TensorSpec((1,)), [[0.5], [1.0]], True),
        (BOXES[0], TensorSpec((1,)), [[0.5], [1.0]], True),
        (gymnasium.spaces.Discrete(4), DiscreteSpec(num=4), [1, 3], True),
        (gymnasium.spaces.Discrete(4), DiscreteSpec(num=5), [1, 3], False),
        (gymnasium.spaces.Discrete(4, start=1), DiscreteSpec(num=4), [1, 3], False),
        (gymnasium.spaces.MultiDiscrete([3, 2]), MultiDiscreteSpec(nvec=(3, 2)), [[2, 1], [0, 0]], True),
        (gymnasium.spaces.MultiDiscrete([3, 2]), MultiDiscreteSpec(nvec=(3, 3)), [[2, 1], [0, 0]], False),
        (gymnasium.spaces.MultiBinary(2), MultiBinarySpec((2,)), [[0, 1], [1, 1]], True),
        (gymnasium.spaces.Dict(a=BOXES[0]), {"a": BOXES[1]}, {"a": [[0.5], [1.0]]}, True),
        (gymnasium.spaces.Dict(a=gymnasium.spaces.Box(-2, 2, (1,))), {"a": BOXES[1]}, {"a": [[0.5], [1.0]]}, False),
        (gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(2),)), (DiscreteSpec(num=3),), {"0": [0, 1]}, False),
    ],
)
def test_actions_of_other_bounds_or_choices_are_refused(space, spec, actions, fits):
    """Recorded through RescaleAction, they were learned at half their size."""
    dataset = Recorded(space, actions)
    dataset.actions = (
        {key: np.array(part) for key, part in actions.items()} if isinstance(actions, dict) else np.array(actions)
    )
    given = {"observation_spec": TensorSpec((1,)), "action_spec": spec}
    if fits:
        assert len(from_minari(dataset, **given).episodes()) == 1
    else:
        with pytest.raises(ShapeError, match=r"^the dataset's actions .*are of .*, and those of the environment of "):
            from_minari(dataset, **given)


def test_observations_beyond_the_bounds_are_told_once_with_the_value(caplog):
    spec = BoundedSpec((1,), minimum=np.array(0.0), maximum=np.array(1.0))
    specs = {"observation_spec": spec, "action_spec": DiscreteSpec(num=4)}
    from_minari(Recorded(gymnasium.spaces.Discrete(4), [0, 1], [0.0, 1.00001, 1.0]), **specs)
    assert not caplog.text
    dataset = Recorded(gymnasium.spaces.Discrete(4), [0, 1], [0.0, 255.0, 7.0])
    dataset.iterate_episodes = lambda: [dataset, dataset]
    dataset.total_steps, dataset.total_episodes = 4, 2
    buffer = from_minari(dataset, **specs)
    assert caplog.text.count("observations of the dataset x have the value 255.0, not of BoundedSpec") == 1
    assert buffer.origin == {"rewards": "of the task", "environment": "Some-v1"}
