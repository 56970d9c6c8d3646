"""`GradientAlgorithm`: what most algorithms are, those that state a loss.

It knows nothing of environments, of how rows were collected, nor of where gradients are computed: a stepper makes the
steps, and what is drawn comes from a `DataSource`.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from palaestra.algorithms.algorithm import Algorithm, PolicyT, UpdateInfo
from palaestra.algorithms.compiled_steps import CompiledSteps
from palaestra.algorithms.config import ConfigT
from palaestra.algorithms.imitation import bonus_of
from palaestra.algorithms.parts import kept_besides
from palaestra.algorithms.steppers import EagerSteps, Stepper, StepResult, num_rows
from palaestra.core import Batch, ConfigError, DataSource, Minibatches, RunSeeds, equal_minibatches
from palaestra.nn import Precision, bfloat16_products, combine_gradients, set_products
from palaestra.policies import Phase, SearchPolicy

__all__ = ["GradientAlgorithm", "Gradients", "Losses"]


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


class GradientAlgorithm(Algorithm[PolicyT, ConfigT]):
    """An algorithm that states `losses`; everything else about gradient steps is here.

    Whatever mixes rows belongs in `preprocess`, every random number a loss needs in `noise`, so that shards of a
    minibatch give the same gradient as the whole. Where networks themselves mix rows, by batch normalisation, there are
    no shards: see `mixes_rows`.
    """

    trains: Mapping[str, tuple[str, ...]] = {}
    """Which model components a loss term trains; by default the one of the term's own name."""
    preprocesses_each_epoch: bool = False
    """Whether `preprocess` is called again before every pass over an unroll, with the weights of that time."""
    compiles_preprocess: bool = False
    """Whether `compile` makes a graph of the `preprocess` of this class, too; it reads its batch, and has no source."""
    term_periods: Mapping[str, int] = {}
    """Gradient steps from one use of a loss term to the next, where it is not used in every one; see `is_due`."""

    periods_begin_anew = False
    """Whether they count from the beginning of each update, and not over all gradient steps."""

    # Hooks: `None`, or a method of the algorithm's file.
    after_step: Any = None
    """`()`: after each gradient step, when target networks have followed."""
    stop_early: Any = None
    """`(metrics) -> bool`: whether an update ends after this gradient step, with minibatches left."""
    after_update: Any = None
    """`(batch)`: after an update's last step, on what `preprocess` returned: statistics. A GPU is waited for before."""

    bfloat16 = False
    """Whether products of gradient steps are rounded to it; `set_precision` says so."""
    _compiled: CompiledSteps | None = None

    def _begin(self, seeds: RunSeeds) -> None:
        self.bonus = bonus_of(self.config, self.policy, self.model, self.plan, seeds)
        super()._begin(seeds)
        self.require_trained()
        self._together: dict[tuple[str, ...], list[tuple[tuple[str, ...], list[str]]]] = {}
        self._has_prepared, self._periods_began = False, 0  # and what `preprocess`, `noise` return was looked at
        self.mixes_rows = self.model.has_batch_norm
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
        """The algorithm, on one minibatch. Reads weights, changes none, draws nothing."""

    def diagnostics(self, batch: Any) -> dict[str, Tensor]:
        """Once per update, on all of its data after `preprocess`: what to report besides the metrics of `losses`."""
        return {}

    # -- what every gradient algorithm does

    @final
    def is_due(self, term: str, *, later: int = 0) -> bool:
        """Whether the next gradient step uses a loss term; `losses` leaves out those that are not due.

        With a period of p a term is due in every p-th step, first in step p: of all, or of an update where
        `periods_begin_anew`. Compiled code has a graph for each set of terms that are due together.

        Args:
            term: by its name.
            later: steps from the next one to that which is asked about.
        """
        return (self.num_gradient_steps + 1 + later - self._periods_began) % self.term_periods.get(term, 1) == 0

    @final
    def gradients(self, batch: Batch) -> Gradients:
        """Gradients of the losses on one minibatch, or on a shard of it. Stateless: runs in any gradient worker.

        Raises:
            ConfigError: `losses` returned something else than `Losses`, or a loss term trains a component that has no
                optimizer, or that it does not depend on.
        """
        if self.bfloat16:
            with bfloat16_products(self.device):
                losses = self.losses(batch)
        else:
            losses = self.losses(batch)
        names = tuple(losses.terms) if isinstance(losses, Losses) and isinstance(losses.terms, dict) else ()
        together = self._together.get(names) or self._trained_together(losses, names)
        terms, metrics, priority, moments = losses
        if self.bonus is not None:
            terms = {**terms, "bonus": self.bonus.loss(batch)}
        values: dict[str, Tensor] = {}
        for number, (components, names) in enumerate(together, start=1):
            loss = terms[names[0]]
            for name in names[1:]:
                loss = loss + terms[name]
            found = self.model.get_gradients(loss, components, retain_graph=number < len(together))
            if not found:
                raise ConfigError(
                    f"{type(self).__name__}.losses returned a term for {', '.join(components)} that depends on no "
                    "parameter there, so that nothing would be learned; was it detached, or is it of another component?"
                )
            for name, gradient in found.items():
                values[name] = values[name] + gradient if name in values else gradient
        reported = terms | metrics
        for name, value in reported.items():
            if value.requires_grad:
                reported[name] = value.detach()
        valid = vars(batch).get("valid")
        return Gradients(values, num_rows(batch) if valid is None else valid.sum(), reported, priority, moments)

    def _trained_together(self, losses: Losses, names: tuple[str, ...]) -> list[tuple[tuple[str, ...], list[str]]]:
        """Components, and the terms that train them; what `losses` returned is looked at once for each set of terms."""
        self._require_losses(losses)
        groups: dict[tuple[str, ...], list[str]] = {}
        for name in names if self.bonus is None else (*names, "bonus"):
            groups.setdefault(self.trains.get(name, (name,)), []).append(name)
        if not torch.compiler.is_compiling():
            self._together[names] = list(groups.items())
        return list(groups.items())

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
        if isinstance(gradients, Gradients) or len(gradients) == 1:
            one = gradients if isinstance(gradients, Gradients) else gradients[0]
            metrics, norms = dict(one.metrics), self.model.apply_gradients((one.values,))
        else:
            if self.mixes_rows:
                raise ConfigError(
                    f"gradients of {len(gradients)} parts of a minibatch were given, but {type(self).__name__} "
                    "normalises its rows by the whole of it; give the gradient of the whole minibatch, or leave out "
                    "network.batch_norm"
                )
            one, weights = gradients[0], [float(shard.num_valid) for shard in gradients]
            metrics = combine_gradients([shard.metrics for shard in gradients], weights)
            norms = self.model.apply_gradients([shard.values for shard in gradients], weights)
        for name, norm in norms.items():
            metrics[f"gradient_norm/{name}"] = norm
        if not all(map(math.isfinite, norms.values())):
            self.require_finite_gradients(metrics)
        self.num_gradient_steps += 1
        if one.moments is not None or self.targets.follows or self.after_step is not None:
            self.follow_step(one.moments)
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
        return StepResult(self.apply(parts), torch.cat(priorities) if priorities else None, rows)

    @final
    def update(self, source: DataSource, stepper: Stepper | None = None) -> UpdateInfo:
        """Draw, preprocess, add noise, then one gradient step for every minibatch, and priorities back to the source.

        An update that is cut off, by a gradient that is not finite for example, keeps the gradient steps that were
        made; the policy's version rises if there were any.

        Args:
            stepper: makes the gradient steps, such as `ShardedSteps`; by default they are made here, as compiled code
                after `compile`.

        Raises:
            NonFiniteError: a gradient is NaN or infinite; the error holds the minibatch, but for compiled steps on a
                GPU, which are all made before that is asked unless rows are normalised together.
        """
        info = self.begin_update(source, stepper)
        info.require_finite()
        return info

    @final
    def begin_update(self, source: DataSource, stepper: Stepper | None = None) -> UpdateInfo:
        """`update` that does not wait for compiled steps on a GPU; see `Algorithm.begin_update`.

        Where running statistics learn from the data of an update, it waits: they may not learn from what is not finite.
        """
        stepper = stepper or self._stepper
        info = UpdateInfo(self.policy_version + 1)
        self._periods_began = self.num_gradient_steps * self.periods_begin_anew
        with self.policy.in_phase(Phase.UPDATE), self.partly_updated(info):
            data = UpdateData(self, source, info)
            for step in stepper.steps(data.passes()):
                info.add(step.metrics, step.num_valid)
                if step.priority is not None:
                    source.write_back(step.minibatch["index"], step.priority)
                if self.stop_early and self.stop_early(step.metrics):
                    break
            self._learn_statistics(data, info, stepper)
        self.finish_update(data.drawn, info)
        return stepper.awaited(info)

    @property
    def _stepper(self) -> Stepper:
        """How gradient steps are made now."""
        if self._compiled is None:
            return EagerSteps(self)
        return self._compiled if self._compiled.has_begun else EagerSteps(self, self._compiled.note)

    def _learn_statistics(self, data: "UpdateData", info: UpdateInfo, stepper: Stepper) -> None:
        """What comes after the last gradient step: statistics may not learn from a step that was not finite."""
        if self.after_update is not None or self.policy.normalizer is not None:
            stepper.awaited(info).require_finite()
        if diagnostics := self.diagnostics(data.batch):
            info.records.append(diagnostics)
        if self.after_update is not None:
            self.after_update(data.batch)

    def _rewarded(self, drawn: Batch, info: UpdateInfo) -> Batch:
        """With learned rewards beside the others, or in their place, where there are any."""
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
        batch = (self._compiled.preprocessed if self._compiled else self.preprocess)(rewarded, source)
        if not self._has_prepared:
            self._require_batch("preprocess", batch)
        if "env_info" in vars(drawn) or "untransformed" in vars(drawn):
            batch = self._with_rest(batch, drawn)
        generator = generator or self._noise_generator
        batch = self.noise(batch, generator)
        if not self._has_prepared:
            self._require_batch("noise", batch)
            self._has_prepared = True
        batch = self._ready(batch)
        return batch if self.bonus is None else batch.replace(bonus=self.bonus.transitions(drawn, generator))

    def _require_batch(self, method: str, batch: Any) -> None:
        if not isinstance(batch, Batch):
            raise ConfigError(
                f"{type(self).__name__}.{method} returned a {type(batch).__name__}; return the batch, changed or not"
            )

    def _with_rest(self, batch: Any, drawn: Batch) -> Any:
        """With `env_info` and `untransformed` for the losses, where `preprocess` adds none."""
        gamma = self.value_of("gamma") if hasattr(self.config, "gamma") else 1.0
        rest = kept_besides(drawn, float(gamma))
        return batch.replace(**{name: value for name, value in rest.items() if name not in batch})

    def _ready(self, batch: Any) -> Any:
        """On the device, observations in float32: once for all passes, but not before a normaliser needs all digits."""
        batch = self.on_device(batch)
        if self.policy.normalizer is None:
            for name in ("observation", "next_observation"):
                value = vars(batch).get(name)
                if isinstance(value, Tensor) and value.dtype == torch.float64:
                    batch = batch.replace(**{name: value.float()})
        return batch

    def set_precision(self, precision: Precision) -> None:
        set_products(precision, self.device)
        self.bfloat16 = precision == "bf16"
        if isinstance(self.policy, SearchPolicy):  # whose search is what its time goes to
            self.policy.rounds_searches = self.bfloat16

    def compile(self, *, after: int = 0) -> None:
        """Compiles gradients and optimizer steps into one graph; the first compiled update takes seconds longer.

        Args:
            after: gradient steps; an update that begins before them is not compiled.

        Raises:
            ConfigError: this machine has no C++ compiler, this torch cannot trace gradients, an optimizer is a class
                of `torch.optim`, or the policy has a hidden state, whose loops over time are no single graph.
        """
        if self.recurrent and self.policy.state_spec:
            raise ConfigError("a policy with a hidden state cannot be compiled; leave out --compile")
        for optimizer in self.model.optimizers.values():
            optimizer.require_compilable()
        self.targets.pair()
        self._compiled = None if self.stays_eager else CompiledSteps(self, after)

    def uncompile(self) -> None:
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
    def one_step(self, batch: Batch) -> tuple[tuple[dict[str, Tensor], Tensor | None, Tensor | int], Any]:
        """A gradient step on one minibatch, with nothing asked; part of one graph when it is compiled.

        Returns:
            Metrics, priorities and valid rows as `StepResult` has them, and what batch normalisations saw.
        """
        gradients = self.gradients(batch)
        norms = self.model.apply_gradients((gradients.values,))
        metrics = {**gradients.metrics, **{f"gradient_norm/{name}": norm for name, norm in norms.items()}}
        if self.targets_follow_inside:
            finite = torch.stack(list(norms.values())).isfinite().all()
            self.targets.move(finite * self.targets.share)
        return (metrics, gradients.priority, gradients.num_valid), gradients.moments

    @final
    def follow_step(self, moments: Any, *, targets_followed: bool = False) -> None:
        """What comes after a gradient step: running averages and target networks follow, then `after_step`.

        Args:
            moments: what batch normalisations saw.
            targets_followed: whether target networks have followed inside of a compiled step.
        """
        if moments is not None:
            self.model.follow(moments)
        if self.targets.follows and not targets_followed:
            self.targets.step(self.num_gradient_steps)
        if self.after_step is not None:
            self.after_step()

    @property
    def steps_in_a_row(self) -> int:
        """A multiple of how many gradient steps have nothing to be done between them, from now on; 0 is any number."""
        if self.after_step or self.stop_early or self.mixes_rows or self.term_periods:
            return 1
        if self.targets_follow_inside or not self.targets.follows:
            return 0
        return math.gcd(self.targets.period, self.num_gradient_steps)  # up to the next move of a target network

    @property
    def targets_follow_inside(self) -> bool:
        """Whether targets follow inside of `one_step`: on a GPU, which would have to be waited for."""
        follows = self.device.type == "cuda" and not self.mixes_rows and self.targets.period == 1
        return follows and bool(self.targets.follows)

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
        trained = {part for name in losses.terms for part in self.trains.get(name, (name,))}
        if unknown := sorted(trained - self.model.optimizers.keys()):
            raise ConfigError(
                f"{called} a term that trains {unknown[0]!r}, but the optimizers are {sorted(self.model.optimizers)}; "
                "every term needs one, or an entry in `trains`"
            )


class UpdateData:
    """The data of one update: drawn once, and prepared once, or again before each pass."""

    def __init__(self, algorithm: GradientAlgorithm[Any, Any], source: DataSource, info: UpdateInfo) -> None:
        self._algorithm, self._source = algorithm, source
        self.drawn = algorithm.draw(source)
        self.empty = _nothing_valid(self.drawn)  # asked first: later a GPU would be waited for
        self._rewarded = algorithm._rewarded(self.drawn, info)
        self.batch = self._prepared()
        if vars(self.batch).get("valid") is not vars(self.drawn).get("valid"):
            self.empty = _nothing_valid(self.batch)

    def passes(self) -> Iterable[Minibatches]:
        """Minibatches to learn from, those of a pass together; none if no row counts."""
        algorithm = self._algorithm
        renew = self._prepared if algorithm.preprocesses_each_epoch else None
        generator = algorithm.minibatch_generator
        return () if self.empty else equal_minibatches(self.batch, algorithm.plan, generator=generator, renew=renew)

    def _prepared(self) -> Batch:
        return self._algorithm.prepared(self._rewarded, self.drawn, self._source)


def _nothing_valid(batch: Batch) -> bool:
    """Whether no row counts, for no episode has ended yet."""
    valid = vars(batch).get("valid")
    return valid is not None and not valid.any()
