"""`ModelTask`: a task that does not act: an autoencoder, a model of the world, a perception."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from palaestra.algorithms import AlgorithmConfig, GradientAlgorithm, Losses
from palaestra.core import Batch, ConfigError, Replay, RunSeeds, SpecTree, TensorSpec, map_spec, seeded_initialisation
from palaestra.core.errors import require_kind
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.policies import NetworkPolicy, PolicyStep
from palaestra.robots.task import ComputationTask

__all__ = ["ModelPolicy", "ModelTask"]


class ModelTask(ComputationTask):
    """Trains a module of yours on what agents store; what it predicts is whatever the module makes of observations.

    The module defines `loss(batch)`, where `batch` is what the plan draws: `Windows` with `observation`, `action` and
    `next_observation`, or an `Unroll`. It returns the loss, or the loss and a dict of metrics. If it defines
    `forward(observation)`, agents ask for that by `helper.predict(step)`. The actions of its rows are those of another
    task: `helper.store_data(step, action=other.action)`.

    Args:
        model: the module, or what makes it: then its weights follow from the seeds. A module that is handed to another
            task too is shared with it.
        observation_spec: of what it sees.
        action_spec: of the actions that are stored with it, as the other task's policy samples them.
        plan: what it learns from, an `OnPolicy` or `Replay`; by default one minibatch of 64 transitions in 8 steps.
        optimizer: of the module's parameters; Adam with a step size of 1e-3 by default.
        seeds: of the task, see `task_seeds`.
        options: what else `ComputationTask` takes.

    Raises:
        ConfigError: the module has no `loss`, or what it predicts is no tensor or dict of tensors.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        observation_spec: SpecTree,
        action_spec: SpecTree,
        *,
        plan: Any = None,
        optimizer: OptimizerOption | None = None,
        seeds: RunSeeds | None = None,
        **options: Any,
    ) -> None:
        seeds = seeds or RunSeeds(0)
        with seeded_initialisation(seeds.integer("initialisation")):
            module = model if isinstance(model, nn.Module) else model()
        if not callable(getattr(module, "loss", None)):
            raise ConfigError(f"{type(module).__name__} has no method `loss(batch)`, which a ModelTask learns by")
        policy = ModelPolicy(module, observation_spec, _predicted(module, observation_spec, action_spec))
        policy.stored_spec = action_spec
        policy.network_config = NetworkConfig()  # so that it is kept with the run; the module's layers are its own
        plan = plan or Replay(unroll_length=8, mini_batch_size=64)
        optimizer = optimizer or OptimizerOption("adam", {"lr": 1e-3})
        require_kind(optimizer, OptimizerOption, "ModelTask's optimizer", "OptimizerOption('adam', {'lr': 1e-3})")
        super().__init__(ModelAlgorithm(policy, optimizer, plan, seeds), **options)

    @property
    def acts_randomly(self) -> bool:
        """Never: what it predicts is no choice."""
        return False


class ModelPolicy(NetworkPolicy):
    """Predicts instead of choosing. Saved weights go into a copy of it: what its module is, no file can say."""

    stored_spec: Any

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        raise ConfigError("a ModelTask's policy is made of its module; put weights into a copy by `load_weights`")

    @property
    def raw_action_spec(self) -> Any:
        return self.__dict__.get("stored_spec", self.action_spec)

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        predicted = self.network(observation)
        return PolicyStep(Batch.of(predicted) if isinstance(predicted, dict) else predicted, state)


@final
class ModelAlgorithm(GradientAlgorithm[ModelPolicy, AlgorithmConfig]):
    config_class = AlgorithmConfig

    def __init__(self, policy: ModelPolicy, optimizer: OptimizerOption, plan: Any, seeds: RunSeeds) -> None:
        self.policy, self.plan = policy, plan
        self.model = CoreModel({"model": policy.network}, {"model": optimizer})
        super().__init__(policy.observation_spec, policy.action_spec, seeds=seeds)

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: AlgorithmConfig) -> None:
        """What is needed is there."""

    def losses(self, batch: Any) -> Losses:
        network: Any = self.policy.network
        stated = network.loss(batch)
        loss, metrics = stated if isinstance(stated, tuple) else (stated, {})
        return Losses({"model": loss}, {"loss": loss.detach(), **metrics})


def _predicted(module: nn.Module, observation_spec: SpecTree, otherwise: SpecTree) -> SpecTree:
    """What `forward` makes of an observation."""
    if type(module).forward is nn.Module.forward:  # it only watches
        return otherwise
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))

    with torch.no_grad():
        predicted = module(map_spec(lambda leaf: leaf.zeros(1).to(device), observation_spec))
    parts = dict(predicted.items()) if isinstance(predicted, dict | Batch) else {"": predicted}
    if not all(isinstance(part, Tensor) and len(part) == 1 for part in parts.values()):
        raise ConfigError(
            f"{type(module).__name__} makes {predicted!r} of one observation; a tensor [1, ...] is needed, or a dict "
            "of such tensors"
        )
    specs = {name: TensorSpec(tuple(part.shape[1:]), part.dtype) for name, part in parts.items()}
    return specs if isinstance(predicted, dict | Batch) else specs[""]
