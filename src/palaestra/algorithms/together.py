"""`Together`: algorithms that differ in their seeds and numbers only, whose gradient steps are made together.

It knows nothing of environments. What is drawn, and in which order it is learned from, each member decides alone.
"""

import dataclasses
import functools
import itertools
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from palaestra.algorithms.algorithm import UpdateInfo
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, UpdateData
from palaestra.algorithms.steppers import MemberAverages, num_rows
from palaestra.core import Batch, DataSource, RunSeeds, equal_minibatches, tree_map, tree_paths
from palaestra.core.errors import ConfigError, NonFiniteError
from palaestra.core.schedule import Linear, Piecewise, Schedule, schedule_value
from palaestra.nn import compiled_method
from palaestra.policies import Phase

__all__ = ["Together"]


class _Held(NamedTuple):
    """Some members side by side: tensors [G, ...], views of those of all."""

    values: dict[str, Tensor]
    """Parameters, buffers and numbers by name."""
    memory: dict[str, dict[str, list[Tensor]]]
    """Moments of each parameter, by optimizer and kind."""
    steps: dict[str, Tensor]
    """Steps made, [G], by optimizer."""
    rates: dict[str, Tensor]
    """The learning rate now, [G], by optimizer."""
    shares: Tensor
    """[G] how far target networks go in a move."""


class _StepData(NamedTuple):
    """What a gradient step of some members depends on."""

    part: _Held
    active: Tensor
    """bool [G]: who makes it; of others nothing changes."""
    rows: Batch
    """Minibatches, [G, n, ...]."""


class _Made(NamedTuple):
    """What it reports."""

    metrics: dict[str, Tensor]
    """[G] each."""
    num_valid: Tensor
    """[G] rows that counted."""
    priority: Tensor | None
    """[G, n] how much each row should be sampled again."""


class _Functional(nn.Module):
    """Methods of an algorithm as functions of its weights, buffers and numbers: for `functional_call`."""

    def __init__(self, algorithm: GradientAlgorithm[Any, Any]) -> None:
        super().__init__()
        self.model, self.policy, self.numbers = algorithm.model, algorithm.policy, algorithm.numbers
        self._methods = {"losses": algorithm.losses, "act_with": getattr(algorithm.policy, "act_with", None)}

    def forward(self, method: str, *given: Any) -> Any:
        return self._methods[method](*given)


@final
class Together:
    """The members of a population: what all of them hold becomes one tensor with a leading dimension.

    The members stay what they are: their parameters, buffers and what their optimizers remember are views of those
    tensors from here on, so that a member acts, is saved and is evaluated as ever.

    Losses are those of one further algorithm, `pattern`: they see what `preprocess` returns, nothing that it sets on
    its member.

    Args:
        members: of one class, with equal settings but for numbers that may follow schedules.

    Raises:
        ConfigError: they differ in something else, or learn in a way that cannot be had side by side.
    """

    at_once: ClassVar[int] = 8
    """Members whose gradient step is one graph: the activations of more leave a core's cache."""

    def __init__(self, members: Sequence[GradientAlgorithm[Any, Any]]) -> None:
        self.members, first = list(members), members[0]
        self._fields = _numbers_of(members)
        begin = {name: schedule_value(getattr(first.config, name), 0.0) for name in self._fields}
        settings = dataclasses.replace(first.config, **{name: Linear(now, now) for name, now in begin.items()})
        kind: Any = type(first)
        self.pattern: GradientAlgorithm[Any, Any] = kind(
            first.policy.observation_spec, first.policy.action_spec, settings, RunSeeds(0)
        )
        """An algorithm of their kind whose numbers are tensors; only its methods are used."""
        _require_possible(self.pattern)
        self.functional = _Functional(self.pattern)
        """Its methods as functions of what `whole.values` has of each member."""
        model = self.pattern.model
        self._trained = {
            name: [f"model.component.{key}" for key in optimizer.names] for name, optimizer in model.optimizers.items()
        }
        self._followed = [
            (f"model.component.{target}.{name}", f"model.component.{source}.{name}")
            for target, source in self.pattern.targets.follows.items()
            for name, value in model.component[target].state_dict().items()
            if value.is_floating_point()
        ]
        self.whole = self._stacked()
        """All members, [M, ...]."""
        count, total = -(-len(members) // self.at_once), len(members)
        ends = [total * place // count for place in range(count + 1)]
        self._parts = [(slice(*pair), self._cut(slice(*pair))) for pair in itertools.pairwise(ends)]
        self._graphs: dict[Any, Callable[[_StepData], _Made]] = {}
        self._compiles = False

    def compile(self) -> None:
        """Compiles gradient steps; the first update takes seconds longer."""
        self._compiles = True

    # -- what they hold

    @torch.no_grad()
    def _stacked(self) -> _Held:
        count, modules = len(self.members), [_Functional(member) for member in self.members]
        values: dict[str, Tensor] = {}
        for name, _ in [*self.functional.named_parameters(), *self.functional.named_buffers()]:
            if name.startswith("numbers."):
                values[name] = torch.zeros(count)
                continue
            owner, _, key = name.rpartition(".")
            mine = [getattr(module.get_submodule(owner), key) for module in modules]
            values[name] = torch.stack([tensor.detach() for tensor in mine])
            for tensor, place in zip(mine, values[name], strict=True):
                tensor.data = place
        memory: dict[str, dict[str, list[Tensor]]] = {}
        steps: dict[str, Tensor] = {}
        for name in self._trained:
            own = [member.model.optimizers[name] for member in self.members]
            steps[name] = torch.stack([optimizer.steps for optimizer in own])
            columns = {kind: zip(*(optimizer.state[kind] for optimizer in own), strict=True) for kind in own[0].state}
            memory[name] = {kind: [torch.stack(column) for column in each] for kind, each in columns.items()}
            for place, optimizer in enumerate(own):
                optimizer.steps = steps[name][place]
                optimizer.state = {kind: [one[place] for one in tensors] for kind, tensors in memory[name].items()}
                optimizer.follow_parameters()
        return _Held(values, memory, steps, {name: torch.zeros(count) for name in steps}, torch.zeros(count))

    def _cut(self, rows: slice) -> _Held:
        part: Any = tree_map(lambda tensor: tensor[rows], self.whole)
        for key in itertools.chain.from_iterable(self._trained.values()):
            part.values[key] = part.values[key].detach().requires_grad_()
        return part

    def _follow_schedules(self) -> None:
        """Numbers of all members as they are now."""
        whole = self.whole
        for name in self._fields:
            now = [schedule_value(getattr(one.config, name), one.progress) for one in self.members]
            whole.values[f"numbers.{name}"].copy_(torch.tensor(now))
        for name, rates in whole.rates.items():
            rates.copy_(torch.stack([one.model.optimizers[name].learning_rate for one in self.members]))
        whole.shares.copy_(torch.tensor([float(one.targets.share) for one in self.members]))

    # -- learning

    def update(self, sources: Mapping[int, DataSource]) -> dict[int, UpdateInfo | NonFiniteError]:
        """`GradientAlgorithm.update` of some members.

        A gradient that is not finite changes nothing of its member, whose later gradient steps are still made. Metrics
        are means over the update.

        Args:
            sources: where their data comes from, by place among the members.

        Returns:
            What each update did, or why it does not count.
        """
        infos = {place: UpdateInfo(self.members[place].policy_version + 1) for place in sources}
        with ExitStack() as stack:
            for algorithm in (self.pattern, *(self.members[place] for place in sources)):
                stack.enter_context(algorithm.policy.in_phase(Phase.UPDATE))
            data = {place: UpdateData(self.members[place], one, infos[place]) for place, one in sources.items()}
            self._follow_schedules()
            averages = MemberAverages(len(self.members))
            for rows, places in self._minibatches({place: one for place, one in data.items() if not one.empty}):
                for part, given, made in self._steps(rows, places):
                    averages.add(part, given.active, made.metrics, made.num_valid)
                    self._write_back(part.start, given, made.priority, sources)
            averages.give(infos)
            for place, one in data.items():
                member = self.members[place]
                if diagnostics := member.diagnostics(one.batch):
                    infos[place].records.append(diagnostics)
                if member.after_update is not None:
                    member.after_update(one.batch)
        return {place: self._ended(place, data[place], info) for place, info in infos.items()}

    @staticmethod
    def _write_back(first: int, given: _StepData, priority: Tensor | None, sources: Mapping[int, DataSource]) -> None:
        if priority is not None:
            for place in given.active.nonzero().flatten().tolist():
                sources[first + place].write_back(given.rows["index"][place], priority[place])

    def _ended(self, place: int, data: UpdateData, info: UpdateInfo) -> UpdateInfo | NonFiniteError:
        member = self.members[place]
        member.finish_update(data.drawn, info)
        try:
            for record in info.records:  # means over the update, of which all rows are kept
                member.require_finite_gradients(record, batch=data.batch)
        except NonFiniteError as error:
            return error
        return info

    def _minibatches(self, data: Mapping[int, UpdateData]) -> Iterator[tuple[Batch, list[int]]]:
        """Rows [M, n, ...] of each gradient step, each member's own in its own order, and who makes it.

        Of members that make none, there are somebody else's.
        """
        if not data:
            return
        some, places = next(iter(data)), range(len(self.members))
        batches = [data.get(place, data[some]).batch for place in places]
        dims = 2 if self.pattern.plan.data == "on-policy" else 1
        shapes = {leaf.shape[:dims] for leaf in tree_paths(batches[0]).values()}
        if len(shapes) > 1:
            raise ConfigError(f"{type(self.pattern).__name__} learns from sequences; train runs of their own")
        (shape,) = shapes
        flat: Any = tree_map(lambda *leaves: torch.stack(leaves).flatten(0, dims), *batches)  # [M * rows, ...]
        numbers = Batch.of({"row": torch.arange(shape.numel()).reshape(shape)})
        mine = [self.members[place] for place in data]
        orders = [equal_minibatches(numbers, one.plan, generator=one.minibatch_generator) for one in mine]
        for passes in zip(*orders, strict=True):
            for minibatches in zip(*passes, strict=True):
                order = dict(zip(data, (one["row"] for one in minibatches), strict=True))
                own = [order.get(place, order[some]) + place * shape.numel() for place in places]
                chosen = torch.stack(own)  # [M, n], or [M, L, n] of sequences
                yield flat.map(lambda leaf, chosen=chosen: leaf[chosen]), list(data)

    def _steps(self, rows: Batch, places: Sequence[int]) -> Iterator[tuple[slice, _StepData, _Made]]:
        """A gradient step of these members; those with other loss terms, or other moves, one after another."""
        kinds: dict[Any, list[int]] = {}
        targets = self.pattern.targets
        for place in places:
            number = self.members[place].num_gradient_steps + 1
            due = tuple(name for name in self.pattern.term_periods if self.members[place].is_due(name))
            kinds.setdefault((due, bool(targets.follows) and number % targets.period == 0), []).append(place)
        for kind, mine in kinds.items():
            self.pattern.num_gradient_steps = self.members[mine[0]].num_gradient_steps  # which says what is due
            active = torch.zeros(len(self.members), dtype=torch.bool).index_fill_(0, torch.tensor(mine), True)
            for part, held in self._parts:
                if active[part].any():
                    given = _StepData(held, active[part], rows[part])
                    yield part, given, self._call(kind, given)(given)
            for place in mine:
                self.members[place].num_gradient_steps += 1

    def _call(self, kind: tuple[Any, bool], given: _StepData) -> Callable[[_StepData], _Made]:
        if not self._compiles:
            return self._moving if kind[1] else self._still
        shapes = tuple((path, leaf.shape, leaf.dtype) for path, leaf in tree_paths(given.rows).items())
        key = kind, shapes
        if key not in self._graphs:
            try:
                self._graphs[key] = compiled_method(self, Together._moving if kind[1] else Together._still, given)
            except Exception as error:  # of any kind: PyTorch's compiler, the C++ compiler, or the network's own code
                name, said = type(self.pattern).__name__, f"{error}".strip().partition("\n")[0]
                raise ConfigError(f"{name} cannot be compiled together: {type(error).__name__}: {said}") from error
        return self._graphs[key]

    def _still(self, given: _StepData) -> _Made:
        """A gradient step of members side by side."""
        return self._one(given)[0]

    def _moving(self, given: _StepData) -> _Made:
        """One after which target networks move."""
        values, (made, finite) = given.part.values, self._one(given)
        with torch.no_grad():
            for target, source in self._followed:
                share = _beside(finite * given.part.shares, values[target])
                values[target].copy_(values[target].lerp(values[source], share))
        return made

    def _one(self, given: _StepData) -> tuple[_Made, Tensor]:
        part = given.part
        terms, metrics, num_valid, rest = vmap(self._losses)(part.values, given.rows)
        gradients = self._gradients(terms, part.values)
        finite, stepped = given.active, []
        with torch.no_grad():
            for name, optimizer in self.pattern.model.optimizers.items():
                keys = self._trained[name]
                if not any(key in gradients for key in keys):
                    continue
                parameters = [part.values[key].detach() for key in keys]
                grads = [gradients.get(key, torch.zeros_like(part.values[key])) for key in keys]
                memory, counts = part.memory[name], part.steps[name] + 1
                norm = vmap(optimizer.norm_in_graph)(grads)
                after, remembered = vmap(optimizer.stepped)(parameters, grads, memory, counts, part.rates[name], norm)
                finite, metrics[f"gradient_norm/{name}"] = finite & norm.isfinite(), norm
                stepped += [(part.values[key], new) for key, new in zip(keys, after, strict=True)]
                for of_kind, tensors in remembered.items():
                    stepped += zip(memory[of_kind], tensors, strict=True)
                stepped.append((part.steps[name], counts))
            for old, new in stepped:
                old.copy_(torch.where(_beside(finite, old), new, old))
        return _Made(metrics, num_valid, rest.get("priority")), finite

    def _losses(self, values: dict[str, Tensor], rows: Batch) -> Any:
        """Results of one member: terms, metrics, rows that counted, and priorities if there are any."""
        losses = functional_call(self.functional, values, ("losses", rows), tie_weights=False)
        metrics = {name: value.detach().float() for name, value in (losses.terms | losses.metrics).items()}
        some, valid = next(iter(metrics.values())), vars(rows).get("valid")
        counted = torch.full_like(some, num_rows(rows)) if valid is None else valid.sum()
        return losses.terms, metrics, counted, {} if losses.priority is None else {"priority": losses.priority}

    def _gradients(self, terms: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[G, ...] by name: members share nothing, so that the gradient of a sum over them is that of each."""
        groups: dict[tuple[str, ...], list[Tensor]] = {}
        for name, term in terms.items():
            groups.setdefault(self.pattern.trains.get(name, (name,)), []).append(term.sum())
        found: dict[str, Tensor] = {}
        for number, (components, sums) in enumerate(groups.items(), start=1):
            optimizers = [name for name in self._trained if name.partition("/")[0] in components]
            keys = [key for name in optimizers for key in self._trained[name]]
            loss, inside = functools.reduce(torch.add, sums), [values[key] for key in keys]
            gradients = torch.autograd.grad(loss, inside, retain_graph=number < len(groups), allow_unused=True)
            for key, gradient in zip(keys, gradients, strict=True):
                if gradient is not None:
                    found[key] = found[key] + gradient if key in found else gradient
        return found


def _beside(numbers: Tensor, tensor: Tensor) -> Tensor:
    """[G] as a factor of [G, ...]."""
    return numbers.reshape(-1, *[1] * (tensor.ndim - 1))


def _numbers_of(members: Sequence[GradientAlgorithm[Any, Any]]) -> list[str]:
    """Settings that the members' losses read as tensors: numbers that differ, and those that follow schedules."""
    first = members[0]
    hints = typing.get_type_hints(type(first.config))
    found: list[str] = []
    for field in dataclasses.fields(first.config):
        values = [getattr(member.config, field.name) for member in members]
        differ = any(value != values[0] for value in values)
        if hints[field.name] == Schedule and (differ or isinstance(values[0], Linear | Piecewise)):
            found.append(field.name)
        elif differ:
            raise ConfigError(
                f"members of one population differ in algorithm.{field.name} ({values[0]} and others), which decides "
                "shapes, or what is computed; train them as runs of their own"
            )
    return found


def _require_possible(pattern: GradientAlgorithm[Any, Any]) -> None:
    """Refuses what cannot be learned side by side, by the name of the setting."""
    optimizers = pattern.model.optimizers.values()
    defined_in = getattr(pattern.after_update, "__module__", "palaestra.")  # losses would not see what it changes
    refused = {
        "algorithm.network.recurrent": pattern.policy.state_spec,
        "algorithm.mini_batch_length": (pattern.plan.mini_batch_length or 1) > 1,
        "algorithm.network.batch_norm": pattern.mixes_rows,
        "algorithm.network.noisy": getattr(pattern.policy, "noise_size", 0),
        "algorithm.bonus.kind": pattern.bonus,
        "algorithm.rewards.weights": pattern.rewards,
        "algorithm.target_kl": pattern.stop_early,
        "algorithm.recompute_advantage": pattern.preprocesses_each_epoch,
        "a hook after each gradient step": pattern.after_step,
        "an after_update of your own": not defined_in.startswith("palaestra."),
        "an optimizer of torch.optim, or kept lengths": any(o.option.torch_class or o.lengths for o in optimizers),
    }
    if found := [reason for reason, given in refused.items() if given]:
        raise ConfigError(
            f"{type(pattern).__name__} with {found[0]} cannot learn together with others; leave that out, or train "
            "runs of their own"
        )
