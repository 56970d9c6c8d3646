"""What a policy shows when it plays: units that are dead, values that are too high, actions that never change.

And what is seen of numbers that were not finite: in the log, and in the newest update, of which its batch was kept.
"""

import math
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from palaestra.core import BoundedSpec, DiscreteSpec, StepType, TensorSpec, load_tensors, spec_leaves, tree_paths
from palaestra.envs import Environment
from palaestra.nn import MLP, IntegerCode
from palaestra.ops import greedy_action
from palaestra.policies import Phase, Policy, ValueGreedyPolicy

__all__ = ["Symptom", "play", "played_symptoms"]

_SECONDS = 30.0
_FEWEST_STEPS = 30  # fewer say nothing about what never happens
_HUGE = 1e6


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """One reason why a run may not learn."""

    name: str
    """Short and fixed, such as `entropy_collapse`."""
    severity: int
    """3: nothing can be learned; 2: learning suffers; 1: worth a look."""
    evidence: str
    """What was measured."""
    threshold: str
    """From where on it is reported, and who says so."""
    advice: tuple[str, ...]
    """What to try, one thing each, with the option."""

    def __str__(self) -> str:
        found = f"{self.name}\n  found      {self.evidence}\n  threshold  {self.threshold}"
        return f"{found}\n  try        {', or '.join(self.advice)}" if self.advice else found


_OPTION = re.compile(r"(smaller|larger)? ?--([a-z-]+(?:\.[a-z-]+)+)(?: ([\w.]+))?")


def possible(finding: Symptom, config: Any) -> Symptom:
    """The finding with what can be tried in such a run: options that it has, with values that it has not.

    Args:
        finding: with all advice.
    """
    return replace(finding, advice=tuple(one for one in finding.advice if _changes(one, config)))


def _changes(advice: str, config: Any) -> bool:
    for direction, option, given in _OPTION.findall(advice):
        value: Any = config
        for part in option.replace("-", "_").split("."):
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        if str(value) == given or (direction and value is None) or (direction == "smaller" and value == 0):
            return False
    return True


@dataclass
class Played:
    """Episodes of one environment, step by step; of all but the last time step of each an action was taken."""

    observations: dict[str, list[Tensor]] = field(default_factory=dict)
    """Observations of all time steps by leaf, [...] each, as the environment gave them."""
    actions: list[Tensor] = field(default_factory=list)
    """Actions as they were executed, where they are a single array."""
    errors: list[float] = field(default_factory=list)
    """Highest action value minus the measured discounted return, of policies that have action values."""
    returns: list[float] = field(default_factory=list)
    """Those discounted returns."""
    units: dict[str, Tensor] = field(default_factory=dict)
    """[units] by layer: how much each did at most. 0 is a ReLU that was never on, or a tanh that was always at ±1."""


@torch.inference_mode()
def play(policy: Policy, env: Environment, *, episodes: int, gamma: float | None) -> Played:
    """Plays episodes as an evaluation does, for at most half a minute.

    Args:
        policy: acts deterministically.
        env: one environment.
        gamma: discount of measured returns; `None` where action values are of other rewards than the environment's.
    """
    played, end_s = Played(), time.monotonic() + _SECONDS
    with ExitStack() as stack:
        for name, module in policy.named_modules():
            if isinstance(module, MLP) and module.activation in _ACTIVITY:
                for index, layer in enumerate(module.layers[: module.num_activations]):
                    watch = _watcher(played.units, f"{name}.layers.{index}", module.activation)
                    stack.callback(layer.register_forward_hook(watch).remove)
        for _ in range(episodes):
            if time.monotonic() > end_s:
                break
            _play_one(policy, env, gamma, played, end_s)
    return played


def _play_one(policy: Policy, env: Environment, gamma: float | None, played: Played, end_s: float) -> None:
    """Adds one episode; one that runs out of time counts as cut off there."""
    time_step, state = env.reset(), policy.initial_state(1)
    values: list[float] = []
    rewards: list[float] = []
    while True:
        for path, leaf in tree_paths(time_step.observation).items():
            played.observations.setdefault(path, []).append(leaf[0].clone())
        if isinstance(policy, ValueGreedyPolicy) and not policy.state_spec and gamma is not None:
            value, allowed = policy.q_values(time_step.observation), policy.action_mask(time_step.observation)
            values.append(float(value.gather(-1, greedy_action(value, allowed).unsqueeze(-1))))
        if int(time_step.step_type[0]) == StepType.LAST or time.monotonic() > end_s:
            break
        step = policy.act(time_step, state, phase=Phase.EVAL, deterministic=True)
        action, state = policy.env_action(step.action), step.state
        if isinstance(action, Tensor):
            played.actions.append(action[0].clone())
        time_step = env.step(action)
        time_step = time_step if env.ended is None else env.ended  # it has begun the next one within the step
        rewards.append(float(time_step.reward.sum()))
    if (
        gamma is not None and values
    ):  # nothing comes after a termination; where it was cut off, the value is what is known
        after = values[-1] * float(time_step.discount[0])
        for value, reward in zip(reversed(values[:-1]), reversed(rewards), strict=True):
            after = reward + gamma * after
            played.errors.append(value - after)
            played.returns.append(after)


_ACTIVITY = {"relu": lambda x: x.clamp_min(0), "tanh": lambda x: (x.abs() < 3).to(x.dtype)}  # tanh(3) is 0.995


def _watcher(units: dict[str, Tensor], name: str, activation: str) -> Any:
    def watch(module: nn.Module, inputs: Any, output: Tensor) -> None:
        most = _ACTIVITY[activation](output.detach()).reshape(-1, output.shape[-1]).amax(0)
        units[name] = torch.maximum(units[name], most) if name in units else most

    return watch


def played_symptoms(policy: Policy, played: Played) -> Iterator[Symptom]:
    """What the episodes show.

    Args:
        policy: that played.
        played: what it did.
    """
    if len(played.actions) < _FEWEST_STEPS:
        return
    yield from _units(played)
    yield from _values(played)
    yield from _actions(policy, played)
    yield from _observations(policy, played)


def too_many_threads(asked: int, fastest: int) -> Iterator[Symptom]:
    """Symptom of a run that computes by more threads than are fast.

    Args:
        asked: for.
        fastest: as it is measured here.
    """
    if asked > fastest:
        yield Symptom(
            name="too_many_threads",
            severity=1,
            evidence=f"run.num_threads is {asked}, and {fastest} is faster here for these networks",
            threshold="what is measured here as at the start of a run; products this small wait for their threads",
            advice=("without --run.num-threads: what is faster is measured",),
        )


def _units(played: Played) -> Iterator[Symptom]:
    dead = {name: float((most <= 0).float().mean()) for name, most in played.units.items()}
    name = max(dead, key=lambda layer: dead[layer], default=None)
    if name is not None and dead[name] > 0.9:
        yield Symptom(
            name="dead_units",
            severity=2,
            evidence=f"{dead[name]:.0%} of the units of {name} did the same on {len(played.actions):,} time steps: a "
            "ReLU never on, or a tanh always at its end",
            threshold="90% of a layer (measured: up to 74% in ten runs that learn; Sokar et al. 2023, "
            "https://arxiv.org/abs/2302.12902, find that performance falls as such units become more)",
            advice=(
                "a smaller --algorithm.learning-rate",
                "--algorithm.network.layer-norm True",
                "normalised observations",
            ),
        )


def _values(played: Played) -> Iterator[Symptom]:
    if not played.errors:
        return
    bias = math.fsum(played.errors) / len(played.errors)
    size = math.fsum(map(abs, played.returns)) / len(played.returns)
    if bias > max(1.0, size):
        yield Symptom(
            name="values_too_high",
            severity=2,
            evidence=f"action values are {bias:.3g} above the discounted returns that followed, which are {size:.3g} "
            "on average in size",
            threshold="as much as the returns themselves (our choice; van Hasselt et al. 2016, "
            "https://arxiv.org/abs/1509.06461, on overestimation)",
            advice=(
                "--algorithm.double True",
                "a larger --algorithm.target-period",
                "a smaller --algorithm.tau",
                "a smaller --algorithm.learning-rate",
                "rewards of a smaller scale",
            ),
        )


def _actions(policy: Policy, played: Played) -> Iterator[Symptom]:
    if not played.actions:
        return
    actions, spec = torch.stack(played.actions).double(), policy.action_spec
    if isinstance(spec, DiscreteSpec) and spec.num > 1 and bool((actions == actions[0]).all()):
        yield Symptom(
            name="one_action",
            severity=2,
            evidence=f"the deterministic policy took action {int(actions[0])} in all of {len(actions):,} steps",
            threshold=f"all of at least {_FEWEST_STEPS} steps: what it sees makes no difference (arithmetic)",
            advice=(
                "a larger --algorithm.entropy-cost",
                "a larger --algorithm.epsilon",
                "more env steps",
                "observations that show what matters",
            ),
        )
    if isinstance(spec, BoundedSpec):
        ends = spec.minimum, spec.maximum
        low, high = (torch.tensor(bound, dtype=torch.double).expand(spec.shape) for bound in ends)
        bounded, near = (high - low).isfinite() & (high > low), 0.01 * (high - low)
        share = float((((actions - low) <= near) | ((high - actions) <= near))[:, bounded].double().mean())
        if share > 0.98:  # not NaN, where nothing has two bounds
            yield Symptom(
                name="saturated_actions",
                severity=1,
                evidence=f"{share:.1%} of all action elements with bounds are within 1% of one",
                threshold="98% (our choice): a network at its bounds gets hardly a gradient; some tasks want it",
                advice=("a smaller --algorithm.learning-rate", "rewards of a smaller scale", "normalised observations"),
            )


def _observations(policy: Policy, played: Played) -> Iterator[Symptom]:
    if policy.normalizer is None:
        for path, spec in spec_leaves(policy.observation_spec).items():
            if path in played.observations:
                yield from _sizes(path, spec, torch.stack(played.observations[path]).double())


def _sizes(path: str, spec: TensorSpec, seen: Tensor) -> Iterator[Symptom]:
    code = IntegerCode.of(spec)
    if code is None and not spec.dtype.is_floating_point:
        return
    if code is not None:
        seen = (seen - torch.as_tensor(code.low)) * torch.as_tensor(code.scale) + torch.as_tensor(code.start)
    seen, how = seen.reshape(len(seen), -1), "" if code is None else f", {code.text},"
    name = f"the observation's {path!r}" if path else "the observation"
    size, largest = float(seen.abs().mean(0).max()), float(seen.abs().max())
    if 0 < largest < 0.03:
        yield Symptom(
            name="small_observations",
            severity=2,
            evidence=f"what the network sees of {name}{how} is at most {largest:.2g} in size",
            threshold="0.03 (our choice): networks start with weights for inputs near 1, and hardly see such ones",
            advice=(
                "bounds of the observation space that its numbers come near to",
                "--algorithm.normalize-observation True",
            ),
        )
    if size > 100:
        yield Symptom(
            name="large_observations",
            severity=2,
            evidence=f"element {int(seen.abs().mean(0).argmax())} of {name} is {size:.3g} on average in size",
            threshold="100 (our choice; Andrychowicz et al. 2020, https://arxiv.org/abs/2006.05990, section 3.3, find "
            "that normalised observations are needed in most tasks)",
            advice=("--algorithm.normalize-observation True", "observations that are scaled in the environment"),
        )


def failure(info: Mapping[str, Any]) -> Iterator[Symptom]:
    """The error that a run ended with.

    Args:
        info: of a run that has failed, from its `run.json`.
    """
    error = str(info.get("error", "an error that run.json does not name"))
    yield Symptom(
        name="run_failed",
        severity=3,
        evidence=f"the run ended with {next(iter(error.splitlines()), error)}",
        threshold="any error (arithmetic): a run that has ended learns nothing more",
        advice=("what the newest file of its faults/ says; then `palaestra resume`",),
    )


def not_finite(log: Any) -> Iterator[Symptom]:
    """What was not finite in a log.

    Args:
        log: of a run, with its `rows` of metrics, and `last` for the newest value of one.
    """
    skipped = log.last("updates_skipped") or 0
    learned = [(key, value) for row in log.rows for key, value in row.items() if key.startswith("learning/")]
    bad = sorted({key for key, value in learned if isinstance(value, float) and not math.isfinite(value)})
    if bad or skipped:
        yield Symptom(
            name="not_finite",
            severity=3,
            evidence=f"{skipped:.0f} updates were skipped; not finite: {', '.join(bad) or 'their gradients'}",
            threshold="any: an update that is not finite destroys the weights (arithmetic)",
            advice=(
                "a smaller --algorithm.learning-rate",
                "a smaller --algorithm.value-learning-rate",
                "--algorithm.max-grad-norm 0.5",
                "a larger --algorithm.damping",
                "a smaller reward scale",
            ),
        )


def kept_update(faults: Path) -> Iterator[Symptom]:
    """What was not finite, or huge, in the newest update that was skipped for its gradient.

    Args:
        faults: folder of a run, which has its minibatch and the algorithm's tensors.

    Raises:
        CheckpointError: a file is damaged; names it.
    """
    kept = sorted(faults.glob("**/non_finite_*/fault.json"), key=lambda file: (file.stat().st_mtime_ns, f"{file}"))
    if not kept or not all(kept[-1].with_name(f"{name}.safetensors").exists() for name in ("batch", "algorithm")):
        return  # of what was deleted nothing is said
    folder = kept[-1].parent  # non_finite_<gradient steps>_<number>
    steps = folder.name.split("_")[2].lstrip("0") or "0"
    batch, learned = (load_tensors(folder / f"{name}.safetensors") for name in ("batch", "algorithm"))
    trained = {name: value for name, value in learned.items() if name.startswith(("model.", "optimizer."))}
    of_batch, of_learned = _not_usual(batch, _HUGE), _not_usual(trained, math.inf)
    advice = [f"a smaller --algorithm.{name}learning-rate" for name in ("", "value-")]  # it is told those that it has
    advice += ["--algorithm.max-grad-norm 0.5", "a larger --algorithm.damping"]
    if of_learned:
        advice = ["an earlier checkpoint or a new run: from these parameters nothing can be learned", *advice]
    if of_batch:
        advice = ["a look at the environment or wrapper that such numbers come from, and smaller ones there", *advice]
    yield Symptom(
        name="not_finite_update",
        severity=3,
        evidence=f"the update after {steps} gradient steps ({folder}). Its minibatch: "
        f"{', '.join(of_batch) or ('all as usual' if batch else 'none was kept')}. What the algorithm had learned: "
        f"{', '.join(of_learned) or 'all finite'}",
        threshold=f"not finite (arithmetic), or beyond {_HUGE:.0e} in the minibatch (our choice)",
        advice=tuple(advice),
    )


def _not_usual(tensors: Mapping[str, Any], most: float) -> list[str]:
    """Of tensors with numbers that are not finite, or beyond a size: a few words each, of five at most."""
    found = []
    for name, value in tensors.items():
        if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
            continue
        bad, largest = int((~value.isfinite()).sum()), float(value.nan_to_num(0, 0, 0).abs().max())
        if bad:
            found.append(f"{name} has {bad:,} of {value.numel():,} numbers that are not finite")
        elif largest > most:
            found.append(f"{name} is of size {largest:.3g}")
    return found if len(found) <= 5 else [*found[:5], f"{len(found) - 5} more"]
