"""`CompiledSteps`: gradient steps as compiled code."""

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from palaestra.algorithms.algorithm import UpdateInfo
from palaestra.algorithms.steppers import Stepper, StepResult, num_rows
from palaestra.core import Batch, ConfigError, DataSource, Minibatches, NonFiniteError, shards, tree_map
from palaestra.nn import compiled_method, recorded_calls
from palaestra.policies import Phase

__all__ = ["CompiledSteps"]

_log = logging.getLogger(__name__)
_ROWS_IN_CACHE = 2048
"""Rows whose activations a core's cache holds, with hidden layers of 64 to 256 units: measured, 10 to 25% faster."""
_AT_ONCE = 16
"""Most gradient steps of one graph: while the GPU makes them, the next update is begun."""


@final
class CompiledSteps(Stepper):
    """The gradient steps of an algorithm as compiled code; what it needs is compiled when it is first needed.

    On a GPU, steps between which nothing happens are one graph. On a CPU, large minibatches are learned from in parts
    that stay in the cache.

    There is one graph for each set of periodic loss terms that are due together, for each place of the networks, and
    for each layout of what is learned from: names, shapes, strides and types of its fields. What belongs to the
    algorithm (parameters, settings, optimizer state) stays the same object in one place, so nothing of it is checked. A
    call leads to the graph at once: the way through `torch.compile`'s own dispatch costs a sixth of a small step. Where
    classes of the user's take part, each update looks at numbers that graphs take for constants: one that has changed
    ends compiled code.

    A gradient that is not finite changes nothing. On a GPU it is found out when all steps of an update are made, unless
    running averages of batch normalisations follow each step; on a CPU after each.

    Args:
        algorithm: a `GradientAlgorithm`.
        after: gradient steps; an update that begins before them is not compiled.
    """

    def __init__(self, algorithm: Any, after: int) -> None:
        self._algorithm, self.after = algorithm, after
        self._graphs: dict[Any, Callable[[Any], Any]] = {}
        self.examples: dict[Any, tuple[int, int, Minibatches]] = {}
        """Of what came before compiled code takes over, one pass of each layout and of each sequence of loss terms that
        are due: gradient steps before it, its own, and what one graph learns from, without values. `prepare` compiles
        for them."""
        self._unrolls: dict[Any, Minibatches] = {}  # by layout, what came to `preprocessed` before then
        in_keys = "bfloat16", *(("num_gradient_steps", "_periods_began") if algorithm.term_periods else ())
        bonus = () if algorithm.bonus is None else (algorithm.bonus,)
        parts = algorithm, *bonus, *algorithm.model.modules(), *algorithm.policy.modules()
        self._constants, self._has_left = Constants(algorithm, parts, but=in_keys), False
        owner = next(kind for kind in type(algorithm).__mro__ if "preprocess" in vars(kind))
        self._preprocesses = vars(owner).get("compiles_preprocess", False)

    @property
    def has_begun(self) -> bool:
        """Whether an update that begins now is compiled."""
        return self._algorithm.num_gradient_steps >= self.after

    def note(self, minibatches: Minibatches) -> None:
        """Keeps the layout of what will be learned from before compiled code takes over.

        Args:
            minibatches: of a pass that has not begun.
        """
        algorithm, number = self._algorithm, len(minibatches)
        group = minibatches.in_parts(self._in_a_row(number))[0]
        due = tuple([self._due(place) for place in range(number)]) if algorithm.term_periods else ()
        if (key := (due, number, _layout(group.rows))) not in self.examples:
            example = group.of(tree_map(_without_values, group.rows))
            self.examples[key] = algorithm.num_gradient_steps, number, example

    def preprocessed(self, drawn: Batch, source: DataSource) -> Batch:
        """`preprocess`: of a whole unroll on a CPU as a graph, where the class that defines it says so.

        Args:
            drawn: what to learn from. Unrolls of other lengths, which may be any, get no graph.
            source: where it came from.
        """
        algorithm = self._algorithm
        once = self._preprocesses and not algorithm.preprocesses_each_epoch
        if not once or algorithm.device.type != "cpu" or len(drawn["reward"]) != algorithm.plan.unroll_length + 1:
            return algorithm.preprocess(drawn, source)
        layout, unroll = _layout(drawn), Minibatches(drawn, 1, 0)
        if self.has_begun:
            return self._graph("preprocess", layout, unroll)(drawn)
        if layout not in self._unrolls:
            self._unrolls[layout] = unroll.of(tree_map(_without_values, drawn))
        return algorithm.preprocess(drawn, source)

    def prepare(self) -> None:
        """Compiles now for what was noted.

        Raises:
            ConfigError: it cannot be compiled; says why.
        """
        algorithm, before = self._algorithm, self._algorithm.num_gradient_steps
        try:
            with algorithm.policy.in_phase(Phase.UPDATE):
                for layout, unroll in self._unrolls.items():
                    self._graph("preprocess", layout, unroll)
                for done, number, group in self.examples.values():
                    parts = self._parts(group, 0)
                    for place in range(0, number, len(group)):
                        algorithm.num_gradient_steps = done + place  # which says what is due
                        for part in parts:
                            self._graph("gradients", _layout(part), Minibatches(part, 1, 0))
                        if not parts:
                            self._graph("one_step", _layout(group.rows), group)
        finally:
            algorithm.num_gradient_steps = before

    def steps(self, passes: Iterable[Minibatches]) -> Iterator[StepResult]:
        """Makes a gradient step for each minibatch.

        Raises:
            ConfigError: they cannot be compiled; says why.
            NonFiniteError: a gradient is NaN or infinite.
        """
        for minibatches in passes:
            place = 0
            try:
                for result in self._steps_of(minibatches):
                    if result.priority is not None:
                        result = result._replace(minibatch=minibatches[place])
                    yield result
                    place += 1
            except NonFiniteError as error:
                error.batch = minibatches[place]
                raise

    def _steps_of(self, minibatches: Minibatches) -> Iterator[StepResult]:
        algorithm = self._algorithm
        if parts := self._parts(minibatches, 0):
            for place in range(len(minibatches)):
                parts = self._parts(minibatches, place) if place else parts
                yield algorithm.apply_shards(
                    [self._graph("gradients", _layout(p), Minibatches(p, 1, 0))(p) for p in parts]
                )
            return
        groups = minibatches.in_parts(self._in_a_row(len(minibatches)))
        layout, graph = _layout(groups[0].rows), None
        for several in groups:
            if graph is None or algorithm.term_periods or algorithm.after_step is not None:
                graph = self._graph("one_step", layout, several)
            made = graph(several.rows)
            steps = (self._counted(*step) for step in ([made] if len(several) == 1 else made))
            yield from list(steps) if self._asks_later else steps  # on a GPU all are made, whatever becomes of one

    def _counted(self, result: Any, moments: Any) -> StepResult:
        algorithm = self._algorithm
        if not self._asks_later:
            algorithm.require_finite_gradients(result[0])
        algorithm.num_gradient_steps += 1
        algorithm.follow_step(moments, targets_followed=algorithm.targets_follow_inside)
        return StepResult(*result)

    def awaited(self, info: UpdateInfo) -> UpdateInfo:
        """With what waits for the steps on a GPU, whose metrics begin to come to main memory now."""
        self._look()
        if self._asks_later:
            info.awaited = AwaitedMetrics(self._algorithm, info.records).require_finite
        return info

    @property
    def _asks_later(self) -> bool:
        return self._algorithm.device.type == "cuda" and not self._algorithm.mixes_rows

    def _in_a_row(self, number: int) -> int:
        """Which part of so many gradient steps a graph makes: nothing may have to happen between them."""
        if self._algorithm.device.type != "cuda":
            return 1
        number = math.gcd(number, self._algorithm.steps_in_a_row)
        return next(count for count in range(min(number, _AT_ONCE), 0, -1) if number % count == 0)

    def _parts(self, minibatches: Minibatches, place: int) -> list[Batch]:
        """Of one of them, of equal size, so that each stays in a CPU's cache; none if it does so as it is."""
        algorithm = self._algorithm
        if algorithm.mixes_rows or algorithm.device.type != "cpu":
            return []
        minibatch = minibatches[place]
        if (rows := num_rows(minibatch)) < 2 * _ROWS_IN_CACHE:
            return []
        near = range(rows // _ROWS_IN_CACHE, 2 * rows // _ROWS_IN_CACHE)
        parts = shards(minibatch, algorithm.plan, next((count for count in near if rows % count == 0), 1))
        return parts if len(parts) > 1 else []  # sequences are cut between lanes only

    def _due(self, later: int = 0) -> tuple[str, ...]:
        """The periodic loss terms of the next gradient step, or of one after it."""
        algorithm = self._algorithm
        return tuple([term for term in algorithm.term_periods if algorithm.is_due(term, later=later)])

    def _graph(self, name: str, layout: Any, example: Minibatches) -> Callable[[Batch], Any]:
        self._look()
        key = name, len(example), self._due(), self._algorithm.model.moves, self._algorithm.bfloat16, layout
        graph = self._graphs.get(key)
        if graph is None:
            try:
                graph = self._graphs[key] = self._made(name, example)
            except Exception as error:  # of any kind: PyTorch's compiler, the C++ compiler, or the network's own code
                kind, said = type(error).__name__, _gist(f"{error}")
                raise ConfigError(f"{type(self._algorithm).__name__} cannot be compiled: {kind}: {said}") from error
        return graph

    def _look(self) -> None:
        """Leaves compiled code where it would go on with a value that has changed; then the same calls are made."""
        if self._has_left or not ((changed := self._constants.changed()) or self._algorithm.stays_eager):
            return
        self._graphs.clear()
        self._has_left = self._algorithm.stays_eager = True
        self._algorithm.uncompile()
        if not changed:  # it was found out before the run was resumed
            return
        _log.warning(
            "%s.%s has changed, which compiled code takes for a constant, so that gradient steps are made without it "
            "from now on; to stay compiled, make it a tensor that is changed in place and that checkpoints have: in "
            "self.model, as a buffer of the policy, or in state_tensors",
            *(type(self._algorithm).__name__, changed),
        )

    def _made(self, name: str, example: Minibatches) -> Callable[[Batch], Any]:
        algorithm = self._algorithm
        method = preprocess_in_graph if name == "preprocess" else getattr(type(algorithm), name)
        if self._has_left:
            call = partial(method, algorithm)
            return call if len(example) == 1 else lambda rows: [call(one) for one in example.of(rows)]
        changed = list(algorithm.model.state_tensors().values())
        if len(example) == 1:
            return compiled_method(algorithm, method, example.rows, changed, self._constants.note)
        return recorded_calls(algorithm, method, example.rows, example.of, changed, self._constants.note)


class Constants:
    """Plain values of an owner that its compiled code takes for constants, where classes of the user's may change them.

    Args:
        owner: whose methods are compiled.
        parts: what it consists of; if all is the library's, nothing changes and nothing is looked at.
        but: attributes of the owner that may change.
    """

    def __init__(self, owner: Any, parts: Iterable[Any], *, but: Sequence[str] = ()) -> None:
        self._owner, self._but = owner, but
        self._looks = any(type(part).__module__.partition(".")[0] not in ("palaestra", "torch") for part in parts)
        self._taken: dict[str, tuple[Callable[[Any], Any], Any]] = {}

    def note(self, guards: Sequence[Any]) -> list[bool]:
        """Takes down what code depends on; `compiled_method` calls it, and checks nothing then.

        Args:
            guards: PyTorch's.
        """
        for guard in guards if self._looks else ():
            path = _OF_CLASS.sub(r"\1.\2", guard.name)  # an object may get an attribute of that name later
            found = _PATH.fullmatch(path) if guard.guard_type in ("CONSTANT_MATCH", "EQUALS_MATCH") else None
            if found and found[1] not in self._but:
                read = eval(f"lambda owner: owner.{found[1]}", {})
                if _is_plain(value := read(self._owner)):
                    self._taken[found[1]] = read, value
        return [False] * len(guards)

    def changed(self) -> str:
        """The path of one that is another now; empty where none is."""
        for path, (read, taken) in self._taken.items():
            try:
                now = read(self._owner)
            except (AttributeError, LookupError):
                return path
            if now is not taken and (type(now) is not type(taken) or now != taken):
                return path
        return ""


_OF_CLASS = re.compile(r"dict\(type\(([^()]+)\)(?:\.__mro__\[\d+\])?\.__dict__\)\['(\w+)'\]")
_NAME = r"(?!__|training\b)\w+"  # not what belongs to a phase
_PATH = re.compile(rf"(?:self|algorithm)\.({_NAME}(?:\.{_NAME}|\[(?:-?\d+|'[^']*')\])*)")


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, int | float | str | None)


def preprocess_in_graph(algorithm: Any, batch: Batch) -> Batch:
    """`preprocess` as compiled code calls it.

    Args:
        algorithm: whose.
        batch: what was drawn.
    """
    return algorithm.preprocess(batch, None)


def _gist(text: str) -> str:
    """The first line of a message, and the first that a compiler calls an error."""
    first, *others = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    named = next((line for line in others if "error:" in line.lower()), "")
    return f"{first} ({named})" if named else first


class AwaitedMetrics:
    """Metrics of gradient steps on a GPU, which are copied to main memory as soon as the GPU has come there.

    Args:
        algorithm: a `GradientAlgorithm` that has made these steps.
        records: metrics of the steps, with `gradient_norm/<component>`.
    """

    def __init__(self, algorithm: Any, records: Sequence[dict[str, Tensor]]) -> None:
        self._algorithm, self._records, self._steps = algorithm, records, algorithm.num_gradient_steps
        items = [(record, name, value) for record in records for name, value in record.items()]
        kind = algorithm.device.type, torch.float32
        self._there = [item for item in items if (item[2].device.type, item[2].dtype) == kind]
        self._here = torch.empty(len(self._there), dtype=torch.float32, pin_memory=True)
        if self._there:
            self._here.copy_(torch.stack([value for _, _, value in self._there]), non_blocking=True)
        self._arrival: Any = torch.cuda.Event()
        self._arrival.record(torch.cuda.current_stream(algorithm.device))

    def require_finite(self) -> None:
        """Waits for the metrics and puts them into the records.

        Raises:
            NonFiniteError: a gradient is NaN or infinite.
        """
        self._arrival.synchronize()
        for (record, name, _), value in zip(self._there, self._here.unbind(), strict=True):
            record[name] = value
        for record in self._records:
            self._algorithm.require_finite_gradients(record, self._steps)


def _layout(batch: Batch) -> tuple[Any, ...]:
    """Everything of a minibatch that compiled code takes for granted."""
    return tuple(
        (name, _layout(leaf) if isinstance(leaf, Batch) else (leaf.dtype, leaf.shape, leaf.stride()))
        for name, leaf in vars(batch).items()
    )


def _without_values(tensor: Tensor) -> Tensor:
    """Zeros of the same layout."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).zero_()
