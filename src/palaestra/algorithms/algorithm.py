"""`GradientAlgorithm`: what most algorithms are, those that state a loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from palaestra.algorithms.algorithm_config import AlgorithmConfig
from palaestra.algorithms.base import Algorithm, PolicyT
from palaestra.algorithms.compiled import CompiledSteps
from palaestra.algorithms.exploration_bonuses import exploration_bonus
from palaestra.algorithms.records import (
    Gradients,
    Losses,
    StepResult,
    UpdateInfo,
    num_rows,
    num_valid,
    require_finite_gradients,
)
from palaestra.core import Batch, ConfigError, DataSource, NonFiniteError, Plan, RunSeeds, minibatches
from palaestra.nn import CoreModel, combine_gradients
from palaestra.policies import Phase

__all__ = ["Algorithm", "AlgorithmConfig", "GradientAlgorithm"]


class GradientAlgorithm(Algorithm[PolicyT]):
    """An algorithm that states `losses`; everything else about gradient steps is here.

    Whatever mixes rows belongs into `preprocess`, every random number a loss needs into `noise`, so that shards of a
    minibatch give the same gradient as the whole.
    """

    trains: ClassVar[dict[str, tuple[str, ...]]] = {}
    """Which model components a loss term trains; by default the one of the term's own name."""
    term_periods: Mapping[str, int] = {}
    """Gradient steps from one use of a loss term to the next, where it is not used in every one; see `is_due`."""

    _compiled: CompiledSteps | None = None

    def __init__(
        self, config: Any, *, policy: PolicyT, model: CoreModel, plan: Plan, seeds: RunSeeds | None = None
    ) -> None:
        super().__init__(config, policy=policy, model=model, plan=plan, seeds=seeds)
        self.bonus = exploration_bonus(config, policy, model, plan, seeds or RunSeeds(0))
        if self.bonus is not None and self.team:
            raise ConfigError(
                f"bonus.kind is {config.bonus.kind!r}, but {type(self).__name__} learns for a team, and novelty is "
                "measured for one agent; leave the bonus out"
            )

    # -- what an algorithm file defines

    def preprocess(self, batch: Batch, source: DataSource) -> Batch:
        """Once per update, on all of its data: advantages, n-step targets, standardisation.

        Args:
            batch: what the source drew.
            source: where it came from.
        """
        return batch

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Adds the random fields that the loss needs.

        They are drawn on the CPU, with no device given, and follow the batch to wherever it is.

        Args:
            batch: after `preprocess`.
            generator: source of the noise, on the CPU.
        """
        return batch

    @abstractmethod
    def losses(self, batch: Any) -> Losses:
        """The algorithm. Reads weights, changes none, draws nothing.

        Args:
            batch: one minibatch.
        """

    def after_step(self) -> None:
        """After each gradient step: target networks."""

    def stop_early(self, metrics: Mapping[str, Tensor]) -> bool:
        """Whether an update ends after this gradient step, with minibatches left.

        Args:
            metrics: of the step.
        """
        return False

    def diagnostics(self, batch: Any) -> dict[str, Tensor]:
        """Once per update, on all of its data: what to report besides the metrics of `losses`.

        Args:
            batch: after `preprocess`.
        """
        return {}

    # -- what every gradient algorithm does

    @final
    def is_due(self, term: str) -> bool:
        """Whether the next gradient step uses a loss term; `losses` leaves out those that are not due.

        Compiled code has one graph for each set of terms that are due together.

        Args:
            term: its name. With a period of p it is due in every p-th step, first in step p.
        """
        return (self.num_gradient_steps + 1) % self.term_periods.get(term, 1) == 0

    @final
    def gradients(self, batch: Batch) -> Gradients:
        """Gradients of the losses on one minibatch, or on a shard of it. Stateless: runs in any gradient worker.

        Args:
            batch: one minibatch.

        Raises:
            ConfigError: a loss term trains a component that has no optimizer.
        """
        terms, metrics, priority = self.losses(batch)
        terms = terms if self.bonus is None else {**terms, "bonus": self.bonus.loss(batch)}
        by_components: dict[tuple[str, ...], Tensor] = {}
        for name, term in terms.items():
            components = self.trains.get(name, (name,))
            by_components[components] = by_components[components] + term if components in by_components else term
        values: dict[str, Tensor] = {}
        for number, (components, term) in enumerate(by_components.items(), start=1):
            self._require_optimizers(components)
            gradients = self.model.get_gradients(term, components, retain_graph=number < len(by_components))
            for name, gradient in gradients.items():
                values[name] = values[name] + gradient if name in values else gradient
        return Gradients(
            values,
            num_valid(batch),
            {name: value.detach() for name, value in {**terms, **metrics}.items()},
            priority,
        )

    @final
    def apply(self, gradients: Gradients | Sequence[Gradients]) -> dict[str, Tensor]:
        """One gradient step: combine, clip, optimizer steps, `after_step`.

        Args:
            gradients: of a minibatch, or of each of its shards, weighted by their valid rows.

        Returns:
            Metrics of the step, 0-dim tensors.

        Raises:
            NonFiniteError: the gradient is NaN or infinite.
        """
        shards = [gradients] if isinstance(gradients, Gradients) else list(gradients)
        weights = None if len(shards) == 1 else [float(shard.num_valid) for shard in shards]
        reported = shards[0].metrics if weights is None else combine_gradients([s.metrics for s in shards], weights)
        metrics = {**reported, **self._optimize([shard.values for shard in shards], weights)}
        self._after_gradient_step(metrics)
        return metrics

    @final
    def update(self, source: DataSource) -> UpdateInfo:
        """Draw, preprocess, then gradients and apply for every minibatch, then write priorities back.

        Args:
            source: where the data comes from.
        """
        steps = self.update_steps(source)
        try:
            minibatch = next(steps)
            while True:
                minibatch = steps.send(self._learn(minibatch))
        except StopIteration as end:
            return end.value
        finally:
            steps.close()

    @final
    def update_steps(self, source: DataSource) -> Generator[Batch, StepResult, UpdateInfo]:
        """An update whose gradient steps somebody else makes: the one place that says what an update consists of.

        Yields every minibatch, and must be sent what its gradient step reported before the next one is asked for. An
        update that is cut off, by a gradient that is not finite for example, keeps the gradient steps that were made;
        the policy's version rises if there were any.

        Args:
            source: where the data comes from.

        Yields:
            Minibatches, ready for `gradients`.

        Returns:
            What the whole update did.
        """
        with self.policy.in_phase(Phase.UPDATE):
            drawn = self.draw(source)
            info = UpdateInfo(self.policy_version + 1, 0, 0)
            batch = self._prepared(drawn, source, info)
            try:
                yield from self._minibatch_steps(batch, source, info)
            except BaseException:
                self.policy.version += int(info.gradient_steps > 0)  # it acts differently from before
                raise
            if diagnostics := self.diagnostics(batch):
                info.records.append(diagnostics)
        self.finish_update(drawn)
        return info

    def _minibatch_steps(
        self, batch: Batch, source: DataSource, info: UpdateInfo
    ) -> Generator[Batch, StepResult, None]:
        for minibatch in minibatches(batch, self.plan, generator=self.minibatch_generator):
            metrics, priority = yield minibatch
            info.gradient_steps += 1
            if priority is not None:
                source.write_back(minibatch["index"], priority)
            info.records.append(metrics)
            info.rows_trained += num_rows(minibatch)
            if self.stop_early(metrics):
                break

    def _prepared(self, drawn: Batch, source: DataSource, info: UpdateInfo) -> Batch:
        if self.bonus is None:
            return self._ready(self.preprocess(drawn, source))
        rewarded, mean = self.bonus.rewarded(drawn)
        info.records.append({"bonus_mean": mean})
        batch = self._ready(self.preprocess(rewarded, source))
        return batch.replace(bonus=self.bonus.transitions(drawn))

    def _ready(self, batch: Any) -> Any:
        """With noise, on the device, and with observations in single precision as networks need them.

        Each pass would convert them anew; a normaliser first subtracts a mean, which needs all digits.
        """
        batch = self.on_device(self.noise(batch, self._noise_generator))
        if self.policy.normalizer is None:
            for name in ("observation", "next_observation"):
                value = vars(batch).get(name)
                if isinstance(value, Tensor) and value.dtype == torch.float64:
                    batch = batch.replace(**{name: value.float()})
        return batch

    def compile(self) -> None:
        """Compiles gradients and optimizer steps into one graph; the first update then takes seconds longer.

        Raises:
            ConfigError: this machine has no C++ compiler, this torch cannot trace gradients, or the policy has a
                memory, whose loops over time are no single graph.
        """
        if self.policy.state_spec:
            raise ConfigError("a policy with a memory cannot be compiled; leave out --compile")
        self._compiled = CompiledSteps(self, GradientAlgorithm._gradient_step)

    def _gradient_step(self, batch: Batch) -> StepResult:
        gradients = self.gradients(batch)
        return {**gradients.metrics, **self._optimize([gradients.values], None)}, gradients.priority

    def _learn(self, batch: Batch) -> StepResult:
        compiled = self._compiled
        metrics, priority = self._gradient_step(batch) if compiled is None else compiled(self._due(), batch)
        try:
            self._after_gradient_step(metrics)
        except NonFiniteError as error:
            error.batch = batch
            raise
        return metrics, priority

    def _due(self) -> tuple[str, ...]:
        return tuple([term for term in self.term_periods if self.is_due(term)]) if self.term_periods else ()

    def _optimize(
        self, gradients: Sequence[Mapping[str, Tensor]], weights: Sequence[float] | None
    ) -> dict[str, Tensor]:
        norms = self.model.apply_gradients(gradients, weights)
        return {f"gradient_norm/{name}": norm for name, norm in norms.items()}

    def _after_gradient_step(self, metrics: Mapping[str, Tensor]) -> None:
        require_finite_gradients(metrics, self.num_gradient_steps)
        self.num_gradient_steps += 1
        self.after_step()

    def _require_optimizers(self, components: Sequence[str]) -> None:
        for component in components:
            if component not in self.model.optimizers:
                raise ConfigError(
                    f"{type(self).__name__}.losses returned a term that trains {component!r}, but the optimizers are "
                    f"{sorted(self.model.optimizers)}; every term needs one, or an entry in `trains`"
                )
