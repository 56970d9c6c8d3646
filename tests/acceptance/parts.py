"""A smallest algorithm that counts, for the acceptance scenarios."""

from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from palaestra.algorithms import AlgorithmConfig, GradientAlgorithm, Losses
from palaestra.core import Batch, DataSource, DiscreteSpec, Plan, SpecTree, TensorSpec
from palaestra.nn import CoreModel, OptimizerOption
from palaestra.policies import CategoricalPolicy


def counting_model(seed: int = 0) -> CoreModel:
    """One linear component, trained by Adam, whose optimizer counts its steps."""
    torch.manual_seed(seed)
    return CoreModel({"net": nn.Linear(1, 1)}, {"net": OptimizerOption("adam", {"lr": 0.01})})


class CountingAlgorithm(GradientAlgorithm):
    """Learns from rows that say who they are, and notes which ones it has seen, minibatch by minibatch."""

    config_class = AlgorithmConfig
    trains: ClassVar[dict[str, tuple[str, ...]]] = {"error": ("net",)}

    def __init__(self, plan: Plan, model: CoreModel | None = None) -> None:
        self.model, self.plan = model or counting_model(), plan
        super().__init__(TensorSpec((1,)), DiscreteSpec(num=3))
        self.seen: list[Tensor] = []
        """Observations of each minibatch."""

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: AlgorithmConfig) -> None:
        self.policy = CategoricalPolicy.build(observation_spec, action_spec).requires_grad_(False)

    def preprocess(self, batch: Batch, source: DataSource) -> Batch:
        """Leaves out the bootstrap row of an unroll, so that every field has T rows."""
        rows = len(batch.action)
        fields = {"observation": batch.observation[:rows], "step_type": batch.step_type[:rows]}
        return Batch.of(fields if "valid" not in batch else {**fields, "valid": batch.valid})

    def losses(self, batch: Batch) -> Losses:
        """Anything that depends on every row."""
        self.seen.append(batch.observation.clone())
        return Losses({"error": self.model.component["net"](batch.observation[..., None] / 100.0).square().mean()}, {})

    @property
    def visits(self) -> Counter[int]:
        """How often each row was learned from."""
        return Counter(serial for seen in self.seen for serial in seen.flatten().tolist())

    @property
    def optimizer_steps(self) -> int:
        """As the optimizer counted them."""
        return int(self.model.optimizers["net"].steps)


class CountingSource:
    """Counts how often data is drawn from it."""

    def __init__(self, source: DataSource) -> None:
        self.source, self.draws = source, 0

    def draw(self, plan: Plan, generator: torch.Generator) -> Batch:
        """Draws once."""
        self.draws += 1
        return self.source.draw(plan, generator)

    def write_back(self, indices: Tensor, priority: Tensor) -> None:
        """Passes on."""
        self.source.write_back(indices, priority)


ModelFunc = Callable[[], CoreModel]


class ClonedAlgorithm(CountingAlgorithm):
    """Makes its model by itself, so that a factory of it makes new parameters."""

    def __init__(self, model_func: ModelFunc, plan: Plan) -> None:
        super().__init__(plan, model_func())
