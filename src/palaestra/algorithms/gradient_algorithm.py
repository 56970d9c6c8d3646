"""`GradientAlgorithm`: what most algorithms are, those that state a loss."""

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from palaestra.algorithms.algorithm import Algorithm, PolicyT, UpdateInfo
from palaestra.algorithms.compiled_steps import AwaitedMetrics, CompiledSteps, StepResult, num_valid
from palaestra.algorithms.exploration_bonus import bonus_of
from palaestra.algorithms.parts import kept_besides
from palaestra.algorithms.targets import Targets
from palaestra.core import (
    Batch,
    ConfigError,
    DataSource,
    Minibatches,
    NonFiniteError,
    Plan,
    RunSeeds,
    equal_minibatches,
)
from palaestra.nn import CoreModel, Precision, bfloat16_products, combine_gradients, set_products
from palaestra.policies import Phase

__all__ = ["GradientAlgorithm", "GradientStep", "Gradients", "Losses", "StepResult"]


class Losses(NamedTuple):
    """What `GradientAlgorithm.losses` states for one minibatch."""

    terms: dict[str, Tensor]
    """Scalars to minimise, each a mean over valid rows."""
    metrics: dict[str, Tensor]
    """Scalars to report."""
    priority: Tensor | None = None
    """[N] how much each row should be sampled again; `None` where the algorithm has no opinion."""
    moments: dict[str, list[Tensor]] | None = None
    """By component, what its batch normalisations saw: running averages follow after the step."""


class Gradients(NamedTuple):
    """What a gradient worker returns for one minibatch."""

    values: dict[str, Tensor]
    """Gradient by the parameter's full name."""
    num_valid: Tensor | int
    """Rows that counted: the weight when shards are combined."""
    metrics: dict[str, Tensor]
    """Scalars to report, without gradient."""
    priority: Tensor | None
    """[N] new priorities."""
    moments: dict[str, list[Tensor]] | None = None
    """By component, what its batch normalisations saw."""


GradientStep: TypeAlias = Callable[[Batch], StepResult]
"""Makes one gradient step on a minibatch, with gradients from wherever it gets them."""


class GradientAlgorithm(Algorithm[PolicyT]):
    """An algorithm that states `losses`; everything else about gradient steps is here.

    Whatever mixes rows belongs in `preprocess`, every random number a loss needs in `noise`, so that shards of a
    minibatch give the same gradient as the whole. Where networks themselves mix rows, by batch normalisation, there are
    no shards: see `mixes_rows`.
    """

    trains: Mapping[str, tuple[str, ...]] = {}
    """Which model components a loss term trains; by default the one of the term's own name."""
    preprocesses_each_epoch: bool = False
    """Whether `preprocess` is called again before every pass over an unroll, with the weights of that time."""
    term_periods: Mapping[str, int] = {}
    """Gradient steps from one use of a loss term to the next, where it is not used in every one; see `is_due`."""

    # Hooks: `None`, or a method of the algorithm's file.
    after_step: Any = None
    """`()`: after each gradient step, when target networks have followed."""
    stop_early: Any = None
    """`(metrics) -> bool`: whether an update ends after this gradient step, with minibatches left."""
    after_update: Any = None
    """`(batch)`: after an update's last gradient step, on all that `preprocess` returned: running statistics. A GPU is
    waited for: they may not learn from what is not finite."""

    _bfloat16 = False
    _compiled: CompiledSteps | None = None
    _asks_later = False  # whether gradients that are not finite are asked for when all steps of an update are made

    def __init__(
        self,
        config: Any,
        *,
        policy: PolicyT,
        model: CoreModel,
        plan: Plan,
        seeds: RunSeeds | None = None,
        targets: Targets | None = None,
    ) -> None:
        self.bonus = bonus_of(config, policy, model, plan, seeds or RunSeeds(0))
        super().__init__(config, policy=policy, model=model, plan=plan, seeds=seeds, targets=targets)
        self.mixes_rows = model.has_batch_norm
        """Whether rows of a minibatch depend on each other, so that it is learned from whole and not in parts."""

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
            ConfigError: `losses` returned something else than `Losses`, or a loss term trains a component that has no
                optimizer, or that it does not depend on.
        """
        if self._bfloat16:
            with bfloat16_products(self.device):
                losses = self.losses(batch)
        else:
            losses = self.losses(batch)
        self._require_losses(losses)
        terms, metrics, priority, moments = losses
        terms = terms if self.bonus is None else {**terms, "bonus": self.bonus.loss(batch)}
        by_components: dict[tuple[str, ...], Tensor] = {}
        for name, term in terms.items():
            components = self.trains.get(name, (name,))
            by_components[components] = by_components[components] + term if components in by_components else term
        values: dict[str, Tensor] = {}
        for number, (components, term) in enumerate(by_components.items(), start=1):
            self._require_optimizers(components)
            gradients = self.model.get_gradients(term, components, retain_graph=number < len(by_components))
            if not gradients:
                raise ConfigError(
                    f"{type(self).__name__}.losses returned a term for {', '.join(components)} that depends on no "
                    "parameter there, so that nothing would be learned; was it detached, or is it of another component?"
                )
            for name, gradient in gradients.items():
                values[name] = values[name] + gradient if name in values else gradient
        return Gradients(
            values,
            num_valid(batch),
            {name: value.detach() for name, value in {**terms, **metrics}.items()},
            priority,
            moments,
        )

    @final
    def apply(self, gradients: Gradients | Sequence[Gradients]) -> dict[str, Tensor]:
        """One gradient step: combine, clip, optimizer steps, target networks, `after_step`.

        Args:
            gradients: of a minibatch, or of each of its shards, weighted by their valid rows.

        Returns:
            Metrics of the step, 0-dim tensors.

        Raises:
            NonFiniteError: the gradient is NaN or infinite.
            ConfigError: these are shards, and `mixes_rows` says that there can be none.
        """
        shards = [gradients] if isinstance(gradients, Gradients) else list(gradients)
        if self.mixes_rows and len(shards) > 1:
            raise ConfigError(
                f"gradients of {len(shards)} parts of a minibatch were given, but {type(self).__name__} normalises its "
                "rows by the whole of it; give the gradient of the whole minibatch, or leave out network.batch_norm"
            )
        weights = None if len(shards) == 1 else [float(shard.num_valid) for shard in shards]
        reported = shards[0].metrics if weights is None else combine_gradients([s.metrics for s in shards], weights)
        metrics = {**reported, **self._optimize([shard.values for shard in shards], weights)}
        self.step_made(metrics, shards[0].moments)
        return metrics

    @final
    def apply_shards(self, parts: Sequence[Gradients]) -> StepResult:
        """`apply` for all shards of a minibatch, the priorities of its rows, and how many counted.

        Args:
            parts: of all shards, in their order.

        Raises:
            NonFiniteError: the gradient is NaN or infinite.
        """
        priorities = [part.priority for part in parts if part.priority is not None]
        rows = sum([part.num_valid for part in parts])
        return self.apply(parts), torch.cat(priorities) if priorities else None, rows

    @final
    def update(self, source: DataSource, gradient_step: GradientStep | None = None) -> UpdateInfo:
        """Draw, preprocess, add noise, then one gradient step for every minibatch, and priorities back to the source.

        An update that is cut off, by a gradient that is not finite for example, keeps the gradient steps that were
        made; the policy's version rises if there were any.

        Args:
            source: where the data comes from.
            gradient_step: makes the step for one minibatch, where gradients are computed elsewhere: it ends with
                `apply`. By default `gradients` and `apply` make it here.

        Raises:
            NonFiniteError: a gradient is NaN or infinite; the error holds the minibatch, but for compiled steps on a
                GPU, which are all made before that is asked unless rows are normalised together.
        """
        info = self.begin_update(source, gradient_step)
        info.require_finite()
        return info

    @final
    def begin_update(self, source: DataSource, gradient_step: GradientStep | None = None) -> UpdateInfo:
        """`update` that does not wait for compiled steps on a GPU; see `Algorithm.begin_update`.

        Where running statistics learn from the data of an update, it waits: they may not learn from what is not finite.

        Args:
            source: where the data comes from.
            gradient_step: see `update`.
        """
        compiled = self._compiled is not None and self.num_gradient_steps >= self._compiled.after
        own = self._compiled if compiled else None
        steps = own if gradient_step is None else functools.partial(map, gradient_step)
        info = UpdateInfo(self.policy_version + 1, 0, 0)
        self._asks_later = compiled and gradient_step is None and self.device.type == "cuda" and not self.mixes_rows
        later = self._asks_later and self.after_update is None and self.policy.normalizer is None
        with self.policy.in_phase(Phase.UPDATE):
            drawn = self.draw(source)
            nothing = _nothing_valid(drawn)  # asked first: later a GPU would be waited for
            rewarded = self._rewarded(drawn, info)
            batch = self.prepared(rewarded, drawn, source)
            minibatches, place, renew = Minibatches(batch, 1, 0), 0, None
            if self.preprocesses_each_epoch:
                renew = functools.partial(self.prepared, rewarded, drawn, source)
            passes = equal_minibatches(batch, self.plan, generator=self.minibatch_generator, renew=renew)
            if vars(batch).get("valid") is not vars(drawn).get("valid"):
                nothing = _nothing_valid(batch)
            passes = () if nothing else passes
            made: Iterator[StepResult] = iter(())
            with self.partly_updated(info):
                try:
                    for minibatches, place in ((equal, place) for equal in passes for place in range(len(equal))):
                        if steps is None and self._compiled is not None and not place:
                            self._compiled.note(minibatches)
                        if steps is not None:
                            made = made if place else iter(steps(minibatches))
                            metrics, priority, rows = next(made)
                        else:
                            gradients = self.gradients(minibatches[place])
                            metrics, priority, rows = self.apply(gradients), gradients.priority, gradients.num_valid
                        info.gradient_steps += 1
                        if priority is not None:
                            source.write_back(minibatches[place]["index"], priority)
                        info.records.append(metrics)
                        info.rows += rows
                        if self.stop_early is not None and self.stop_early(metrics):
                            break
                    if self._asks_later and not later:
                        AwaitedMetrics(self, info.records).require_finite()
                except NonFiniteError as error:
                    error.batch = None if self._asks_later else minibatches[place]
                    raise
            if diagnostics := self.diagnostics(batch):
                info.records.append(diagnostics)
            if self.after_update is not None:
                self.after_update(batch)
        self.finish_update(drawn, info)
        if later:
            info.awaited = AwaitedMetrics(self, info.records).require_finite
        return info

    def _rewarded(self, drawn: Batch, info: UpdateInfo) -> Batch:
        """With the bonus added to the rewards, where there is one."""
        if self.bonus is None:
            return drawn
        rewarded, mean = self.bonus.rewarded(drawn)
        info.records.append({"bonus_mean": mean})
        return rewarded

    @final
    def prepared(
        self, rewarded: Batch, drawn: Batch, source: DataSource, generator: torch.Generator | None = None
    ) -> Batch:
        """What `losses` read, of a whole update.

        Args:
            rewarded: what was drawn, with the rewards to learn from.
            drawn: what was drawn.
            source: where it came from.
            generator: of the noise; by default the algorithm's own.
        """
        batch = self._batch("preprocess", self.preprocess(rewarded, source))
        noised = self.noise(self._with_rest(batch, drawn), generator or self._noise_generator)
        batch = self._ready(self._batch("noise", noised))
        return batch if self.bonus is None else batch.replace(bonus=self.bonus.transitions(drawn))

    def _batch(self, method: str, batch: Any) -> Batch:
        if not isinstance(batch, Batch):
            raise ConfigError(
                f"{type(self).__name__}.{method} returned a {type(batch).__name__}; return the batch, changed or not"
            )
        return batch

    def _with_rest(self, batch: Any, drawn: Batch) -> Any:
        """With `env_info` and `untransformed` for the losses, where rows keep them and `preprocess` adds none."""
        fields = vars(drawn)
        if "env_info" not in fields and "untransformed" not in fields:
            return batch
        gamma = self.value_of("gamma") if hasattr(self.config, "gamma") else 1.0
        rest = kept_besides(drawn, float(gamma))
        return batch.replace(**{name: value for name, value in rest.items() if name not in batch})

    def _ready(self, batch: Any) -> Any:
        """On the device, with observations in single precision as networks need them.

        Each pass would convert them anew; a normaliser first subtracts a mean, which needs all digits.
        """
        batch = self.on_device(batch)
        if self.policy.normalizer is None:
            for name in ("observation", "next_observation"):
                value = vars(batch).get(name)
                if isinstance(value, Tensor) and value.dtype == torch.float64:
                    batch = batch.replace(**{name: value.float()})
        return batch

    def set_precision(self, precision: Precision) -> None:
        set_products(precision, self.device)
        self._bfloat16 = precision == "bf16"

    def compile(self, *, after: int = 0) -> None:
        """Compiles gradients and optimizer steps into one graph; the first compiled update takes seconds longer.

        Args:
            after: gradient steps; an update that begins before them is not compiled.

        Raises:
            ConfigError: this machine has no C++ compiler, this torch cannot trace gradients, an optimizer is a class
                of `torch.optim`, or the policy has a hidden state, whose loops over time are no single graph.
        """
        if self.policy.state_spec:
            raise ConfigError("a policy with a hidden state cannot be compiled; leave out --compile")
        for optimizer in self.model.optimizers.values():
            optimizer.require_compilable()
        self.targets.pair()
        self._compiled = CompiledSteps(self, after)

    def leave_eager(self) -> None:
        """Takes `compile` back: all updates from now on are eager."""
        self._compiled = None

    @property
    def examples(self) -> Mapping[Any, Any]:
        """Of what was learned from so far, what `prepare` compiles for."""
        return {} if self._compiled is None else self._compiled.examples

    def prepare(self) -> None:
        """Compiles now what was seen so far, before `compile(after=...)` needs it.

        Raises:
            ConfigError: it cannot be compiled; says why.
        """
        if self._compiled is not None:
            self._compiled.prepare()

    @final
    def one_step(self, batch: Batch) -> tuple[StepResult, Any]:
        """A gradient step, with nothing asked; part of one graph when it is compiled.

        Args:
            batch: one minibatch.

        Returns:
            Its result, and what batch normalisations saw; see `step_made`.
        """
        gradients = self.gradients(batch)
        norms = self._optimize([gradients.values], None)
        metrics = {**gradients.metrics, **norms}
        if self._follows:
            finite = torch.stack(list(norms.values())).isfinite().all()
            self.targets.move(finite * self.targets.share)
        return (metrics, gradients.priority, gradients.num_valid), gradients.moments

    @final
    def step_made(self, metrics: Mapping[str, Tensor], moments: Any, *, compiled: bool = False) -> None:
        """What comes after a gradient step.

        Args:
            metrics: of the step.
            moments: what batch normalisations saw.
            compiled: whether `one_step` has made it, after which targets need not follow.

        Raises:
            NonFiniteError: the gradient was NaN or infinite.
        """
        if not self._asks_later:
            self.require_finite_gradients(metrics)
        self.num_gradient_steps += 1
        if moments is not None:
            self.model.follow(moments)
        if not (compiled and self._follows):
            self.targets.step(self.num_gradient_steps)
        if self.after_step is not None:
            self.after_step()

    @property
    def steps_in_a_row(self) -> int:
        """A multiple of how many gradient steps have nothing to be done between them, from now on; 0 is any number."""
        if self.after_step or self.stop_early or self.mixes_rows or self.term_periods:
            return 1
        if self._follows or not self.targets.follows:
            return 0
        return math.gcd(self.targets.period, self.num_gradient_steps)  # up to the next move of a target network

    @property
    def _follows(self) -> bool:
        """Whether targets follow inside of `one_step`: on a GPU, which would have to be waited for."""
        after_each = bool(self.targets.follows) and self.targets.period == 1
        return after_each and self.device.type == "cuda" and not self.mixes_rows

    def _optimize(
        self, gradients: Sequence[Mapping[str, Tensor]], weights: Sequence[float] | None
    ) -> dict[str, Tensor]:
        norms = self.model.apply_gradients(gradients, weights)
        return {f"gradient_norm/{name}": norm for name, norm in norms.items()}

    def _require_losses(self, losses: Any) -> None:
        called = f"{type(self).__name__}.losses returned"
        if not isinstance(losses, Losses):
            raise ConfigError(f"{called} a {type(losses).__name__}; return Losses(terms={{...}}, metrics={{...}})")
        for kind, values in (("terms", losses.terms), ("metrics", losses.metrics)):
            if not isinstance(values, dict):
                raise ConfigError(f"{called} {kind} as a {type(values).__name__}; give a dict, tensors by name")
            if wrong := [name for name, value in values.items() if not isinstance(value, Tensor)]:
                kind_of = type(values[wrong[0]]).__name__
                raise ConfigError(f"{called} {kind} whose {wrong[0]!r} is a {kind_of}; give a tensor of one number")

    def _require_optimizers(self, components: Sequence[str]) -> None:
        for component in components:
            if component not in self.model.optimizers:
                raise ConfigError(
                    f"{type(self).__name__}.losses returned a term that trains {component!r}, but the optimizers are "
                    f"{sorted(self.model.optimizers)}; every term needs one, or an entry in `trains`"
                )


def _nothing_valid(batch: Batch) -> bool:
    """Whether no row counts, for no episode has ended yet."""
    valid = vars(batch).get("valid")
    return valid is not None and not valid.any()
