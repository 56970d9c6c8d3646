"""`CompiledStep`: acting and stepping as one graph, where the environments are tensors."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self, final

import torch
from torch import Tensor

from palaestra.algorithms.compiled_steps import Constants
from palaestra.core import Batch, ConfigError, TensorSpec, TimeStep
from palaestra.envs import Environment, TensorEnvironment
from palaestra.envs.contract.tensor import LaneTensors
from palaestra.nn import Recorded, checked_method, compiled_method, scan
from palaestra.policies import NetworkPolicy, Policy

__all__ = ["CompiledStep"]

_log = logging.getLogger(__name__)


class Unroller(Protocol):
    """What acts and steps for a collector, many steps in a call."""

    def unroll(self, time_step: TimeStep, rows: int, stop: Callable[[], bool]) -> tuple[Batch, TimeStep]:
        """See `CompiledStep.unroll`."""
        ...


class _Given(NamedTuple):
    """What steps depend on, besides weights."""

    lanes: LaneTensors
    observation: Tensor
    noise: Tensor | None
    """[T, ...] of `NetworkPolicy.acting_noise`, for each of T steps; `None` where the graph draws it."""


class _Steps(NamedTuple):
    """What T steps give; leaves [T, B, ...]."""

    action: Tensor
    behaviour: dict[str, Tensor]
    fields: tuple[Tensor, ...]
    """Of the time steps that follow the actions."""


@final
class CompiledStep:
    """A policy draws actions and a `TensorEnvironment` executes them, in one compiled graph without Python between.

    The same functions are compiled that act and step otherwise, and the same random numbers are drawn, so actions are
    the same, and observations up to rounding. A whole unroll is one call: on a CPU its loop is compiled, too; on a GPU
    it is recorded, with the drawing of random numbers where no exploration decides what they are.

    Args:
        env: where to act.
        policy: how to act.
        compiles: whether it is compiled; else the same functions are called.
    """

    def __init__(self, env: TensorEnvironment, policy: NetworkPolicy, *, compiles: bool = True) -> None:
        self.env, self.policy, self._compiles = env, policy, compiles
        self._at_once = 0
        self._relied_on = self._now
        self._draw: Callable[[], Tensor] | None = None
        self._begin_anew()

    @classmethod
    def of(cls, env: Environment, policy: Policy) -> Self | None:
        """For a policy that can act with random numbers drawn before, in environments of tensors.

        Args:
            env: where to act.
            policy: how to act.

        Returns:
            `None` where either is something else.
        """
        if not isinstance(env, TensorEnvironment) or not isinstance(policy, NetworkPolicy):
            return None
        if not isinstance(policy.observation_spec, TensorSpec):
            return None
        zeros = torch.zeros(1, *policy.observation_spec.shape, dtype=policy.observation_spec.dtype, device=env.device)
        return None if policy.device != zeros.device or policy.acting_noise(zeros) is None else cls(env, policy)

    def unroll(self, time_step: TimeStep, rows: int, stop: Callable[[], bool]) -> tuple[Batch, TimeStep]:
        """Acts and steps.

        Args:
            time_step: the newest one of every lane.
            rows: steps.
            stop: asked before each call; ends the unroll early.

        Returns:
            What `ReplayBuffer.extend` takes: fields of time steps [T+1, B, ...], `action`, `policy_info` and
            `policy_version` [T, B, ...], or an empty batch where it was stopped at once; and the newest time step.

        Raises:
            ConfigError: the policy has another exploration by now, with which it cannot act so.
        """
        env, now = self.env, self._now
        if any(a is not b for a, b in zip(now, self._relied_on, strict=True)):
            self._draw, self._relied_on = None, now
            self._begin_anew()
        if self._compiles and (changed := self._constants.changed()):
            self._compiles = False
            self._begin_anew()
            _log.warning(
                "%s has changed, which compiled code takes for a constant, so that acting and stepping go on without "
                "it; to stay compiled, make it a tensor that is changed in place, such as a buffer of the policy",
                changed,
            )
        self._draw = draw = self._draw or self.policy.acting_noise(time_step.observation)
        if draw is None:
            raise ConfigError(
                "the policy's exploration has changed since collector.compile(); call collector.compile() again"
            )
        self._at_once = self._at_once or rows  # of the first unroll: each number has a graph of its own
        done, steps, lanes, newest = 0, list[_Steps](), env.lanes, time_step
        while done < rows and not stop():
            count = self._at_once if rows - done >= self._at_once else 1
            noise = None if self._draws_inside else torch.stack([draw() for _ in range(count)])
            given = _Given(lanes, newest.observation.contiguous(), noise)
            lanes, taken = self._graph(given, count, draw)(given)
            newest = TimeStep(*(field[-1] for field in taken.fields), env_id=time_step.env_id)
            steps.append(taken)
            done += count
        env.lanes = lanes
        if not steps:
            return Batch(), newest
        before = [field.unsqueeze(0) for field in time_step[:5]]
        columns = zip(TimeStep._fields, before, *(part.fields for part in steps), strict=False)
        rows_of = {name: torch.cat(column) for name, *column in columns}
        version = torch.tensor(self.policy.version, dtype=torch.int32).expand(done, env.batch_size)
        acted: dict[str, Any] = {"action": torch.cat([part.action for part in steps]), "policy_version": version}
        if names := steps[0].behaviour:
            acted["policy_info"] = Batch.of({key: torch.cat([part.behaviour[key] for part in steps]) for key in names})
        return Batch.of(rows_of | acted), newest

    def prepare(self, rows: int) -> None:
        """Compiles now what the first `unroll` of so many rows will call, where that is one call.

        Args:
            rows: steps.
        """
        spec, env, generator = self.policy.observation_spec, self.env, self.policy.generator
        if not isinstance(spec, TensorSpec) or self._at_once:
            return
        with torch.inference_mode():
            observation = torch.zeros(env.batch_size, *spec.shape, dtype=spec.dtype, device=env.device)
            before, held = generator.get_state(), getattr(self.policy.exploration, "memory", {})
            draw = self.policy.acting_noise(observation)
            assert draw is not None
            noise = None if self._draws_inside else torch.stack([draw() for _ in range(rows)])
            generator.set_state(before)
            if self.policy.exploration is not None:
                self.policy.exploration.memory = held
            self._graph(_Given(env.lanes, observation, noise), rows, draw)

    def _graph(
        self, given: _Given, count: int, draw: Callable[[], Tensor]
    ) -> Callable[[_Given], tuple[LaneTensors, _Steps]]:
        if count in self._graphs:
            return self._graphs[count]

        def drawn(given: _Given) -> tuple[LaneTensors, _Steps]:
            return self._steps(given._replace(noise=torch.stack([draw() for _ in range(count)])))

        if not self._compiles:
            self._graphs[count] = self._steps
        elif self._draws_inside:
            self._graphs[count] = Recorded(drawn, given, generator=self.policy.generator)
        elif self._records:
            self._graphs[count] = Recorded(self._steps, given)
        else:
            self._graphs[count] = compiled_method(self, CompiledStep._steps, given, checked=self._constants.note)
        return self._graphs[count]

    @property
    def _now(self) -> tuple[Any, ...]:
        """What graphs and the drawing of noise take for granted."""
        policy = self.policy
        return self.env.given_attributes, policy.moves, policy.generator, policy.exploration

    def _begin_anew(self) -> None:
        """Without the graphs made so far, and what they rely on."""
        self._graphs: dict[int, Callable[[_Given], tuple[LaneTensors, _Steps]]] = {}
        self._constants = Constants(self, (self.env, *self.policy.modules()))
        noted = self._constants.note
        self._step: Any = checked_method(self, CompiledStep._one, noted) if self._records else self._one

    @property
    def _records(self) -> bool:
        return self._compiles and self.env.device.type == "cuda"

    @property
    def _draws_inside(self) -> bool:
        """Whether a graph draws its random numbers: it could not follow the schedule of an exploration."""
        return self._records and self.policy.exploration is None

    def _steps(self, given: _Given) -> tuple[LaneTensors, _Steps]:
        """One graph: a step for each row of the noise."""
        assert given.noise is not None

        def step(carried: list[Tensor], noise: Tensor) -> tuple[list[Tensor], Any]:
            observation, *leaves = carried
            lanes, action, described, fields = self._step(given.lanes.with_leaves(leaves), observation, noise)
            return [fields[3], *lanes.leaves], [action, described, list(fields)]

        (_, *leaves), (action, described, fields) = scan(step, [given.observation, *given.lanes.leaves], given.noise)
        return given.lanes.with_leaves(leaves), _Steps(action, described, tuple(fields))

    def _one(self, lanes: LaneTensors, observation: Tensor, noise: Tensor) -> Any:
        action, described = self.policy.act_with(observation, noise)
        moved, fields = self.env.advanced(lanes, self.policy.env_action(action))
        return moved, action, described, fields
