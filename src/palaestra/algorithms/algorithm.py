"""What an algorithm is: `Algorithm`, anything that learns a policy from data.

Nothing here knows a loss, a buffer or an environment.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Self, TypeVar, final

import torch
from torch import Tensor

from palaestra.algorithms.config import AlgorithmConfig, ConfigT, resolved
from palaestra.algorithms.rewards import RewardWeights, learned_rows
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, DataSource, OnPolicy, Plan, RunSeeds, SpecTree, StepType, require_device, to_device
from palaestra.core.errors import CheckpointError, ConfigError, NonFiniteError, refuses
from palaestra.core.schedule import schedule_value, schedules_of
from palaestra.core.seeding import seeded_initialisation
from palaestra.core.spec import TensorSpec, spec_leaves
from palaestra.nn import CoreModel, EncoderOption, Precision
from palaestra.nn.config import repeatable
from palaestra.policies import NetworkPolicy, Policy

__all__ = ["Algorithm", "UpdateInfo"]

PolicyT = TypeVar("PolicyT", bound=Policy)


@dataclass(slots=True)
class UpdateInfo:
    """What one update did. Metrics stay tensors until they are read, so that reporting costs nothing when unused."""

    policy_version: int
    """Version after the update."""
    gradient_steps: int = 0
    """Optimizer steps made."""
    rows: int | Tensor = 0
    """`rows_trained`, as a number or a 0-dim tensor."""
    records: list[dict[str, Tensor]] = field(default_factory=list)
    """One dict of 0-dim metrics per gradient step."""
    awaited: Callable[[], None] | None = None
    """Reads whether the latest update was finite, for `require_finite`; `None` once that is known."""

    def add(self, metrics: dict[str, Tensor], rows: int | Tensor) -> None:
        """Takes a gradient step into account."""
        self.gradient_steps += 1
        self.records.append(metrics)
        self.rows += rows.long() if isinstance(rows, Tensor) else rows  # floats count to 2^24

    def require_finite(self) -> None:
        """Waits for a GPU that makes gradient steps of `Algorithm.begin_update`; nothing elsewhere.

        Raises:
            NonFiniteError: a gradient was NaN or infinite; it has changed nothing.
        """
        if self.awaited is not None:
            self.awaited()
            self.awaited = None

    @property
    def rows_trained(self) -> int:
        """Rows learned from, each counted as often as it was used."""
        return int(self.rows)

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of every metric over the update's gradient steps."""
        columns: dict[str, list[Tensor]] = {}
        for record in self.records:
            for name, value in record.items():
                columns.setdefault(name, []).append(value)
        return {name: float(torch.stack(values).float().mean()) for name, values in columns.items()}


class Algorithm(ABC, Generic[PolicyT, ConfigT]):
    """Anything that learns a policy from data. A subclass says in `build` which one, and with which networks.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment.
        config: hyperparameters; those of `config_class` by default.
        seeds: of the run; seed 0 by default.
        network: the user's encoder, or a mapping with one for each part; goes into `config.network.encoder`. A module
            is not copied.

    Raises:
        ConfigError: the settings are another algorithm's, or cannot be with each other or with these spaces.
    """

    config_class: ClassVar[type[AlgorithmConfig]]
    """Its configuration."""
    stored_fields: ClassVar[tuple[str, ...]] = ()
    """Which of the policy's `behaviour` fields the buffer has to keep."""
    usual_lanes: ClassVar[int] = 1
    """Environments that a run collects from where no preset says how many."""
    recurrent: ClassVar[bool] = False
    """Whether it learns policies with a hidden state."""
    team: ClassVar[bool] = False
    """Whether it learns for a team of agents together."""
    needs: ClassVar[dict[str, str]] = {}
    """Settings that a run has to name, and what each is; one that is made by itself can do without."""
    imitates: ClassVar[bool] = False
    """Whether it only learns to act as its data does, so that steps of its own would teach it nothing."""
    ignores_rewards: ClassVar[bool] = False
    """Whether it does not look at rewards, so that a vector of them needs no weights."""
    batch_norm: ClassVar[bool] = False
    """Whether it learns networks with batch normalisation: its losses say which calls see a minibatch."""

    policy: PolicyT
    """The policy that learns."""
    model: CoreModel
    """The networks that learn, with optimizers."""
    plan: Plan
    """The data it learns from: what its settings ask for, unless `build` says otherwise."""
    targets: Targets
    """Which components of the model follow which others; none, unless `build` says otherwise."""

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: ConfigT | None = None,
        seeds: RunSeeds | None = None,
        network: EncoderOption = None,
    ) -> None:
        self.config, seeds = resolved(self.config_class, config, seeds, network)
        with seeded_initialisation(seeds.integer("initialisation")):
            self.build(observation_spec, action_spec, self.config)
        if lacks := [name for name in ("policy", "model") if name not in vars(self)]:
            raise ConfigError(
                f"{type(self).__name__}.build set no self.{' and no self.'.join(lacks)}; it has to set the policy "
                "that acts and the CoreModel that learns"
            )
        self.plan = vars(self).get("plan") or self.config.plan
        self.targets = vars(self).get("targets") or Targets(self.model, {}, period=1)
        self._begin(seeds)

    @abstractmethod
    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: ConfigT) -> None:
        """Sets `policy` and `model`, and `targets` where there are target networks; the run's seed decides all weights.

        Args:
            observation_spec: of the environment.
            action_spec: of the environment.
            config: with the user's encoder in `config.network`, if there is one.
        """

    def _begin(self, seeds: RunSeeds) -> None:
        """What follows `build`."""
        config, policy, model = self.config, self.policy, self.model
        if policy.stored_state_spec and not self.recurrent:
            raise ConfigError(
                f"{type(self).__name__} learns no policy with a hidden state; leave it out, or use an algorithm that "
                "does, see `palaestra list algorithms`"
            )
        if model.has_batch_norm and not self.batch_norm:
            raise ConfigError(
                f"{type(self).__name__} does not learn with batch normalisation; leave out network.batch_norm, or the "
                f"network.block that has it, or use network.layer_norm, which every algorithm learns with, or "
                f"{' or '.join(_with_batch_norm(Algorithm))}"
            )
        # paths in observations and actions, by whose order inputs and outputs of networks count
        self._parts = str([list(spec_leaves(spec)) for spec in (policy.whole_spec, policy.action_spec)])
        model.extend({f"unseen_normalizer_{number}": one for number, one in enumerate(policy.unseen)})
        self.rewards = _reward_weights(config, model)
        """What makes a number of a vector of rewards; `None` where a reward is a number."""
        model.replace_optimizers(config.optimizers)
        if not type(self).__module__.startswith("palaestra."):
            for name, component in model.component.items():
                repeatable(component, f"the component {name!r} of {type(self).__name__}")
        self._beside = _beside(policy, model)
        self.device, self.asked_device = torch.device("cpu"), "cpu"
        """The device on which it learns, and as it was asked for: `cuda` leaves it open which GPU replicas take."""
        self._moves = False  # whether that is not the CPU
        self.num_gradient_steps = 0
        self.stays_eager = False
        """Whether compiled code was left, for it takes a value for a constant that changes; checkpoints keep that."""
        self.progress = 0.0
        """Progress of the run, in [0, 1], which schedules follow."""
        self.minibatch_generator = seeds.generator("minibatches")
        """Decides what is drawn from a source, and in which order it is learned from."""
        self._noise_generator = seeds.generator("noise")
        self._schedules = schedules_of(config)
        self.numbers = torch.nn.Module()
        """Settings that follow schedules, as they are now: a buffer for each, 0-dim."""
        for name, schedule in self._schedules.items():
            self.numbers.register_buffer(name, torch.tensor(schedule(0.0)))
        policy.seed(seeds.integer("acting"))
        if isinstance(policy, NetworkPolicy):
            model.attach_policy(policy)

    @property
    def policy_version(self) -> int:
        """Updates made so far; every row carries the version that acted."""
        return self.policy.version

    @final
    def to(self, device: torch.device | str) -> Self:
        """Moves the model, what its optimizers remember, and the policy to a device; data follows when it is drawn.

        The numbers that decide what is drawn and the noise of losses still come from generators on the CPU, so they
        are the same on every device. Acting draws from the device's own generator, which starts anew.

        Args:
            device: `"cpu"`, `"cuda"` or `"cuda:1"`.

        Returns:
            The algorithm itself.

        Raises:
            ConfigError: there is no such device; the message says which there are.
        """
        target = require_device(str(device))
        for part in (self.model, self.policy, self.targets, self.numbers):
            part.to(target)
        self.device, self.asked_device, self._moves = target, str(device), target.type != "cpu"
        return self

    def set_precision(self, precision: Precision) -> None:
        """Chooses how exact the matrix products of gradient steps are.

        Args:
            precision: float32; tf32 on a GPU, of all products there; or bf16, where weights, sums and what is no
                product still stay in float32, and so do the output layers of the library's networks, for returns need
                its digits.

        Raises:
            ConfigError: it is for a device that has no instructions for it, or without gradient steps.
        """
        if precision != "float32":
            raise ConfigError(f"run.precision is {precision!r}, but {type(self).__name__} makes no gradient steps")

    @final
    def draw(self, source: DataSource) -> Batch:
        """The data of one update, where the algorithm learns: the one place where data moves to a device."""
        drawn = self.on_device(source.draw(self.plan, self.minibatch_generator))
        return drawn if self.rewards is None else self.rewards.learned_from(drawn, self.plan, self.progress)

    @final
    def on_device(self, batch: Any) -> Any:
        """Data where the algorithm learns.

        Args:
            batch: from anywhere.
        """
        return to_device(batch, self.device) if self._moves else batch

    @final
    @refuses(ConfigError)
    def require_reward(self, reward_spec: TensorSpec) -> Iterator[str]:
        """Refuses rewards that are not one number and have no weights, or other weights.

        Raises:
            ConfigError: says what to give.
        """
        if self.rewards is not None and self.team:
            yield (
                f"{type(self).__name__} learns for a team, whose rewards are one for each member; leave out "
                "algorithm.rewards.weights"
            )
        if self.rewards is not None:
            self.rewards.require(reward_spec, self.plan)
        elif reward_spec.shape and not (self.team or self.ignores_rewards):
            yield (
                f"the environment's rewards have the shape {list(reward_spec.shape)}, and {type(self).__name__} "
                "maximises one number; say what each of them counts: algorithm.rewards.weights"
            )

    @abstractmethod
    def update(self, source: DataSource) -> UpdateInfo:
        """Everything learned from one unroll or sample; raises the policy version by one."""

    def begin_update(self, source: DataSource) -> UpdateInfo:
        """`update` that does not wait for a GPU, for a loop that begins the next one meanwhile.

        The loop then calls `UpdateInfo.require_finite`. Without a GPU it is `update`.
        """
        return self.update(source)

    @final
    def require_finite_gradients(
        self, metrics: Mapping[str, Tensor], steps: int | None = None, *, batch: Batch | None = None
    ) -> None:
        """Refuses a gradient step whose gradient is NaN or infinite.

        Args:
            metrics: of the step, with `gradient_norm/<component>`.
            steps: how many were made before, if that is not what the algorithm counts now.
            batch: what the step was computed from, which a run keeps; `None` where the caller of the step adds it.

        Raises:
            NonFiniteError: names the component and has all metrics; it holds the batch.
        """
        steps = self.num_gradient_steps if steps is None else steps
        for name, value in metrics.items():
            if name.startswith("gradient_norm/") and not math.isfinite(value):
                state = {key: float(metric) for key, metric in metrics.items()}
                raise NonFiniteError(
                    f"the gradient of {name.removeprefix('gradient_norm/')!r} is not finite after "
                    f"{steps} gradient steps; metrics of this step: {state}. "
                    "Lower the learning rate or look at the observations and rewards",
                    batch=batch,
                )

    @final
    def partly_updated(self, info: UpdateInfo) -> AbstractContextManager[None]:
        """An update that is cut off after a gradient step has made another policy: its version rises."""
        return _PartlyUpdated(self.policy, info)

    @final
    def finish_update(self, drawn: Batch, info: UpdateInfo) -> None:
        """What ends every update: the policy's version rises, and its normaliser learns the observations.

        Args:
            drawn: the data of the update.
            info: of the update, which gets the weights of rewards as metrics.
        """
        if self.rewards is not None:
            info.records.append(self.rewards.metrics())
        vars(self.policy)["version"] += 1  # nn.Module's own way of setting a number takes ten times as long
        if self.policy.normalizer is not None:
            seen = drawn["observation"]
            if isinstance(self.plan, OnPolicy):
                seen = seen[:-1]  # the last row begins the next unroll
                last = drawn["step_type"] == StepType.LAST  # other rows behind the last valid one come again, or are
                over = last[:-1] & ~last[1:]  # copies of the open row behind a shorter lane
                once = (drawn["valid"].flip(0).cummax(0).values.flip(0) > 0) | over
                if not once.all():
                    seen = seen[once]
            elif "valid" in drawn:  # sequences: neither what only leads up to them nor what fills them up
                seen = seen[:-1][learned_rows(drawn, self.plan)]
            for normalizer in (self.policy.normalizer, *self.policy.unseen):
                normalizer.merge(normalizer.increment(seen))

    @final
    def value_of(self, name: str) -> Any:
        """A number of the configuration as it is now: itself, or where its schedule has come to.

        Args:
            name: of a field that holds a number or a schedule.

        Returns:
            The number, or a 0-dim tensor that follows the schedule, inside compiled code too.
        """
        return getattr(self.numbers if name in self._schedules else self.config, name)

    @final
    def set_progress(self, progress: float) -> None:
        """Moves everything that follows a schedule.

        Args:
            progress: env steps taken divided by the run's total, in [0, 1].
        """
        self.progress = progress
        for name, schedule in self._schedules.items():
            getattr(self.numbers, name).fill_(schedule_value(schedule, progress))
        self.model.set_progress(progress)
        if self.targets.follows:
            self.targets.set_progress(progress)
        if self.policy.exploration is not None:
            self.policy.exploration.set_progress(progress)

    def state_tensors(self) -> dict[str, Any]:
        """All that learning depends on, by name, for a checkpoint."""
        state: dict[str, Any] = self.model.state_tensors()
        state |= {"policy_version": self.policy_version, "num_gradient_steps": self.num_gradient_steps}
        state |= {
            "parts": self._parts,
            "generator.minibatches": self.minibatch_generator.get_state(),
            "generator.noise": self._noise_generator.get_state(),
        }
        if self.policy.normalizer is not None:
            state |= {f"normalizer.{key}": value for key, value in self.policy.normalizer.state_dict().items()}
        if self._beside:
            held = self.policy.state_dict()
            state |= {f"policy.{name}": held[name] for name in self._beside}
        if self.stays_eager:
            state["stays_eager"] = 1
        return state | self.acting_tensors()

    def require_trained(self) -> None:
        """Refuses a policy with parameters that no optimizer of the model trains."""
        if untrained := [name for name, wants_gradient in self._beside.items() if wants_gradient]:
            raise ConfigError(
                f"the policy of {type(self).__name__} has parameters that are in no component of self.model, so that "
                f"nothing trains them: {', '.join(untrained)}; add what they belong to as a component, or freeze what "
                "is not learned by requires_grad_(False)"
            )

    def acting_tensors(self) -> dict[str, Tensor]:
        """What of `state_tensors` changes by acting: the generator, and what exploration has to know."""
        held = {} if self.policy.exploration is None else self.policy.exploration.memory
        held = {f"exploration.{key}": value for key, value in held.items()}
        return {"generator.acting": self.policy.generator.get_state(), **held}

    def load_state_tensors(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_tensors` gave.

        Args:
            state: of an algorithm with the same configuration.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
        if (saved := state.get("parts", self._parts)) != self._parts:  # older ones do not say it
            text = (
                f"the saved weights are for the parts {saved} of observations and actions, and here are {self._parts}"
            )
            raise CheckpointError(f"{text}; give spaces with the same keys in the same order")
        self.stays_eager = bool(state.get("stays_eager"))
        self.model.load_state_tensors(state)
        try:
            self.policy.version = int(state["policy_version"])
            self.num_gradient_steps = int(state["num_gradient_steps"])
            self.minibatch_generator.set_state(state["generator.minibatches"])
            self._noise_generator.set_state(state["generator.noise"])
            self.policy.load_generator_state(state["generator.acting"])
        except KeyError as error:
            raise CheckpointError(f"the saved algorithm has no {error}") from error
        if self.policy.exploration is not None:
            self.policy.exploration.memory = _those(state, "exploration.")
        saved = _those(state, "normalizer.")
        if bool(saved) != (self.policy.normalizer is not None):
            which = "normalises observations, and this one does not" if saved else "does not normalise observations"
            raise CheckpointError(
                f"the saved policy {which}; leave algorithm.normalize_observation as it is in a run that continues"
            )
        if self.policy.normalizer is not None:
            self.policy.normalizer.load_state_dict(saved)
        if mine := {key: value for key, value in _those(state, "policy.").items() if key in self._beside}:
            try:
                self.policy.load_state_dict(mine, strict=False)  # older checkpoints have none of these
            except RuntimeError as error:
                raise CheckpointError(f"the saved tensors do not fit the policy: {error}") from error


def _beside(policy: Policy, model: CoreModel) -> dict[str, bool]:
    """Tensors of a policy that are neither in the model nor in the normaliser, and whether each wants a gradient."""
    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    held = {name: one for name, one in policy.state_dict(keep_vars=True).items() if not name.startswith("normalizer.")}
    return {name: one.requires_grad for name, one in held.items() if isinstance(one, Tensor) and id(one) not in known}


def _those(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """A part's own entries of a saved state, under its own names."""
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


class _PartlyUpdated:
    """What `Algorithm.partly_updated` returns: each update enters one; a generator would take several times as long."""

    __slots__ = ("_info", "_policy")

    def __init__(self, policy: Policy, info: UpdateInfo) -> None:
        self._policy, self._info = policy, info

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, *error: object) -> None:
        if kind is not None and self._info.gradient_steps:
            self._policy.version = self._info.policy_version


def _with_batch_norm(kind: type[Algorithm[Any, Any]]) -> list[str]:
    """Names of the algorithms that learn with batch normalisation."""
    below = [name for one in kind.__subclasses__() for name in _with_batch_norm(one)]
    return sorted({*below, *([kind.__name__] if kind.batch_norm else [])})


def _reward_weights(config: AlgorithmConfig, model: CoreModel) -> RewardWeights | None:
    if not config.rewards.weights:
        return None
    weights = RewardWeights(config.rewards)
    model.extend({"reward_weights": weights})
    return weights
