"""Tests of C51, QR-DQN, IQN and Rainbow: what their losses are, row by row."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from palaestra.algorithms import ALGORITHMS, C51, QRDQN, ValueBatch
from palaestra.core import Batch, ConfigError, DiscreteSpec, MultiBinarySpec, TensorSpec, TimeStep
from palaestra.nn import NetworkConfig
from palaestra.ops import categorical_projection, quantile_huber
from palaestra.policies import Phase
from tests.algorithms.parts import collected, first_minibatch

VECTOR = TensorSpec((2,))
NAMES = ["c51", "iqn", "qr_dqn", "rainbow"]
NOISY = NetworkConfig(hidden_sizes=(8,), noisy=True)


class Table(torch.nn.Module):
    """Outputs [N, A, Q] that do not depend on the observation."""

    noise_size = 0

    def __init__(self, outputs: Any, values: Any, support: Any) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.tensor(outputs))
        self.values, self.support = values, support

    def outputs(self, observation: torch.Tensor, noise: Any = None) -> torch.Tensor:
        return self.table.expand(len(observation), *self.table.shape)

    def forward(self, observation: torch.Tensor, noise: Any = None) -> torch.Tensor:
        return self.values(self.outputs(observation))


def with_tables(kind: Any, config: Any, online: Any, target: Any, observation_spec: Any = VECTOR) -> Any:
    algorithm = kind(observation_spec, DiscreteSpec(num=2), config)
    network = algorithm.network
    values = getattr(network, "values", lambda outputs: outputs.mean(-1))  # of quantiles at fractions that are drawn
    tables = [Table(outputs, values, getattr(network, "support", None)) for outputs in (online, target)]
    algorithm.policy.network = algorithm.network = tables[0]
    algorithm.target_network = tables[1]
    return algorithm


def row(action: int, reward: float, discount: float, next_observation: Any = None) -> ValueBatch:
    return ValueBatch.of(
        {
            "observation": torch.zeros(1, 2),
            "action": torch.tensor([action]),
            "next_observation": torch.zeros(1, 2) if next_observation is None else next_observation,
            "reward": torch.tensor([reward]),
            "bootstrap": torch.tensor([discount]),
            "index": torch.tensor([0]),
        }
    )


SMALL = NetworkConfig(hidden_sizes=())
ONLINE = [[0.0, 1.0, 2.0], [0.5, 0.0, 0.0]]
TARGET = [[2.0, 0.0, 0.0], [0.0, 0.0, 3.0]]


@pytest.mark.parametrize(("double", "chosen"), [(False, 1), (True, 0)])
def test_c51_is_the_cross_entropy_to_the_projected_target(double, chosen):
    """Bellemare et al. 2017, algorithm 1; the mean of action 1 is larger in the target network, of action 0 online."""
    config = C51.config_class(network=SMALL, num_atoms=3, min_return=-1.0, max_return=1.0, double=double)
    algorithm = with_tables(C51, config, ONLINE, TARGET)
    probs = torch.tensor(TARGET)[chosen].softmax(-1)[None]
    wanted = categorical_projection(probs, torch.tensor([-1.0, 0, 1]), torch.tensor([0.25]), torch.tensor([0.5]))
    expected = -(wanted[0] * torch.tensor(ONLINE)[1].log_softmax(-1)).sum()
    assert_close(algorithm.losses(row(1, 0.25, 0.5)).terms["q"], expected)


@pytest.mark.parametrize(("double", "chosen"), [(False, 1), (True, 0)])
def test_qr_dqn_is_the_quantile_loss_to_the_target_quantiles(double, chosen):
    """Dabney et al. 2018, algorithm 1, equations (9) and (10)."""
    config = QRDQN.config_class(network=SMALL, num_quantiles=3, double=double)
    algorithm = with_tables(QRDQN, config, ONLINE, TARGET)
    target = 0.25 + 0.5 * torch.tensor(TARGET)[chosen][None]
    fraction = torch.tensor([1 / 6, 1 / 2, 5 / 6])
    expected = quantile_huber(torch.tensor(ONLINE)[1][None], target, fraction)[0]
    assert_close(algorithm.losses(row(1, 0.25, 0.5)).terms["q"], expected)


@pytest.mark.parametrize("name", ["qr_dqn", "iqn"])
def test_the_priority_is_the_error_of_the_mean_of_quantiles(name):
    """Target quantiles 1 and 5 have the mean 3, those of the action, 0 and 2, have 1; their sums differ by more."""
    kind: Any = ALGORITHMS[name]
    sizes = {"num_quantiles": 2} if name == "qr_dqn" else {"num_fractions": 2, "num_target_fractions": 2}
    config = kind.config_class(network=SMALL, prioritized=True, **sizes)
    algorithm = with_tables(kind, config, [[9.0, 9.0], [0.0, 2.0]], [[1.0, 5.0], [1.0, 5.0]])
    half = torch.full((1, 2), 0.5)
    batch = row(1, 0.0, 1.0).replace(fraction=half, next_fraction=half, weight=torch.ones(1))
    assert algorithm.losses(batch).priority.tolist() == [2.0]


@pytest.mark.parametrize("kind", [C51, QRDQN])
def test_forbidden_actions_are_not_bootstrapped_from(kind):
    """DESIGN.md section 5: with action 1 forbidden the target is action 0's, whatever the values."""
    spec = {"position": TensorSpec((2,)), "action_mask": MultiBinarySpec((2,))}
    count = {"num_atoms": 3} if kind is C51 else {"num_quantiles": 3}
    algorithm = with_tables(kind, kind.config_class(network=SMALL, **count), ONLINE, TARGET, spec)
    algorithm.policy.normalize = lambda observation: (
        observation.position if isinstance(observation, Batch) else observation
    )

    def loss(mask: list[int]) -> torch.Tensor:
        following = Batch.of({"action_mask": torch.tensor([mask]), "position": torch.zeros(1, 2)})
        return algorithm.losses(row(1, 0.25, 0.5, following)).terms["q"]

    free, forbidden = loss([1, 1]), loss([1, 0])
    swapped = [TARGET[0], TARGET[0]]
    algorithm.target_network.table.data.copy_(torch.tensor(swapped))
    assert_close(loss([1, 1]), forbidden)
    assert not torch.allclose(free, forbidden)


@pytest.mark.parametrize("name", NAMES)
def test_a_termination_leaves_only_the_reward(name):
    """ALF-25: what follows does not matter when the discount is 0, and matters when it is not."""
    algorithm, collector = collected(name, "discrete")
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator().manual_seed(1))
    batch = algorithm.noise(algorithm.preprocess(drawn, collector.buffer), torch.Generator().manual_seed(2))
    other = batch.replace(next_observation=1 - batch.next_observation)
    for discount, same in ((0.0, True), (0.9, False)):
        changes = {"bootstrap": torch.full_like(batch.bootstrap, discount)}
        losses = [algorithm.losses(b.replace(**changes)).terms["q"].item() for b in (batch, other)]
        assert (abs(losses[0] - losses[1]) < 1e-5) is same


@pytest.mark.parametrize("double", [False, True])
def test_the_loss_of_iqn_is_equation_3(double):
    """Dabney et al. 2018, between each pair of quantiles of a row, at fractions that it drew."""
    algorithm, collector = collected(
        "iqn", "discrete", double=double, gamma=0.9, num_fractions=3, num_target_fractions=2
    )
    with torch.no_grad():
        for parameter in algorithm.target_network.parameters():  # which then prefers other actions
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    batch, errors = first_minibatch(algorithm, collector.buffer), []
    quantiles = algorithm.network.outputs(batch.observation, batch.fraction).detach()
    following = algorithm.target_network.outputs(batch.next_observation, batch.next_fraction).detach()
    chooser = algorithm.network if double else algorithm.target_network
    best = chooser(batch.next_observation).argmax(-1)
    for n, action in enumerate(batch.action.tolist()):
        for i, fraction in enumerate(batch.fraction[n].tolist()):
            for after in following[n, best[n]].tolist():
                target = batch.reward[n].item() + batch.bootstrap[n].item() * after
                error = target - quantiles[n, action, i].item()
                size = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
                errors.append(abs(fraction - (error < 0)) * size)
    assert (best != algorithm.network(batch.next_observation).argmax(-1)).any() or double
    expected = sum(errors) / len(batch.action) / 2  # a sum over quantiles, a mean over those of the target
    assert algorithm.losses(batch).terms["q"].item() == pytest.approx(expected, rel=1e-4)


def test_the_fractions_of_iqn_are_drawn_for_every_row_and_decide_the_loss():
    """DESIGN.md, randomness: IQN's fractions are a field of the batch."""
    algorithm, collector = collected("iqn", "discrete")
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator().manual_seed(1))
    batch = algorithm.preprocess(drawn, collector.buffer)
    first, again, other = (algorithm.noise(batch, torch.Generator().manual_seed(seed)) for seed in (2, 2, 3))
    assert first.fraction.shape == (20, 8)
    assert len(first.fraction.unique()) == 160
    losses = [algorithm.losses(b).terms["q"].item() for b in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("name", ["c51", "dqn", "qr_dqn", "rainbow"])
def test_noisy_layers_explore_while_collecting_and_in_no_other_phase(name):
    """TS-16, TS-17: the noise is the acting policy's own; evaluation and updates act on the mean weights."""
    algorithm, collector = collected(name, "discrete", network=NOISY, epsilon=0.0)
    policy = algorithm.policy
    step = TimeStep(observation=torch.rand(400, *collector.env.observation_spec.shape))
    greedy = policy.greedy(step.observation)
    for phase in (Phase.UPDATE, Phase.EVAL):
        assert torch.equal(policy.act(step, phase=phase).action, greedy)
    before = policy.generator.get_state()
    noisy = policy.act(step, phase=Phase.COLLECT).action
    assert not torch.equal(noisy, greedy)
    assert not torch.equal(policy.act(step, phase=Phase.COLLECT).action, noisy)
    policy.generator.set_state(before)
    assert torch.equal(policy.act(step, phase=Phase.COLLECT).action, noisy)


@pytest.mark.parametrize("name", ["c51", "dqn", "qr_dqn", "rainbow"])
def test_the_noise_of_losses_is_a_field_of_the_batch(name):
    """Fortunato et al. 2018, equation (12): three noises, and the scales are learned."""
    algorithm, collector = collected(name, "discrete", network=NOISY, double=True)
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator().manual_seed(1))
    batch = algorithm.noise(algorithm.preprocess(drawn, collector.buffer), torch.Generator().manual_seed(2))
    assert batch.noise.shape == (20, 3, algorithm.policy.noise_size)
    loss = algorithm.losses(batch).terms["q"].item()
    for which in range(3):
        changed = batch.noise.clone()
        changed[:, which] *= 30.0
        assert algorithm.losses(batch.replace(noise=changed)).terms["q"].item() != loss, which
    scales = {key: value for key, value in algorithm.gradients(batch).values.items() if ".scale." in key}
    assert scales
    assert all(gradient.any() for gradient in scales.values())


@pytest.mark.parametrize("name", ["c51", "rainbow"])
def test_returns_that_no_atom_can_hold_are_refused(name):
    kind = ALGORITHMS[name]
    with pytest.raises(ConfigError, match="2 atoms from low to a higher one"):
        kind(VECTOR, DiscreteSpec(num=2), kind.config_class(min_return=1.0, max_return=1.0))


def test_iqn_refuses_layers_that_it_does_not_have():
    kind = ALGORITHMS["iqn"]
    with pytest.raises(ConfigError, match="neither dueling nor noisy"):
        kind(VECTOR, DiscreteSpec(num=2), kind.config_class(network=NOISY))
