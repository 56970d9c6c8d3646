"""Dataset aggregation: learns what a teacher would do wherever the student comes.

Paper: Ross et al. 2011, https://arxiv.org/abs/1011.0686, algorithm 3.1. Departures: the student goes on learning by
gradient steps on draws from all rows, instead of being trained anew on all of them; while it collects, its actions are
drawn; β follows any schedule.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from palaestra import policies
from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, Fraction, NotNegative, Positive, replay_plan
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.core import Batch, Linear, Schedule, import_object
from palaestra.core.errors import ConfigError, SpecError
from palaestra.core.plan import DataSource, Plan, Replay
from palaestra.core.spec import BoundedSpec, SpecTree, spec_layout, spec_leaves
from palaestra.core.tree import device_of, to_device, tree_leaves, tree_map, tree_paths
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.ops import remembered_starts, row_weights, weighted_sum

__all__ = ["DAgger", "DAggerBatch", "DAggerConfig"]


@dataclass(frozen=True, kw_only=True)
class DAggerConfig(AlgorithmConfig):
    """Hyperparameters of `DAgger`."""

    teacher: str | None = None
    """Who is imitated: the folder of a run or of a saved policy, which may see other keys; or a function from
    observations [N, ...] to the environment's actions, as my_package:rule."""
    beta: Fraction[Schedule] = field(default_factory=lambda: Linear(1.0, 0.0, 0.3))
    """β of the paper: the probability that an action is the teacher's, in [0, 1]; a number or a schedule."""
    learning_rate: NotNegative[Schedule] = 1e-3
    """Step size of Adam; a number or a schedule."""
    unroll_length: Positive[float] = 16
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 1_000_000
    """Rows the replay buffer keeps; the paper keeps all."""
    gradient_steps: Positive[int] = 16
    """Gradient steps in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update, instead of `gradient_steps` minibatches drawn from it."""
    mini_batch_size: Positive[int] = 128
    """Rows in a minibatch; with a memory as many sequences as hold so many: divided by `mini_batch_length`."""
    mini_batch_length: Positive[int] = 16
    """Time steps in a sequence, for a recurrent network; without one, rows are learned from one by one."""
    burn_in: NotNegative[int] = 4
    """Time steps before each sequence that only bring the hidden state up to date, for a recurrent network."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Layers of the student, which may see fewer keys than its teacher: `policy_sees`."""

    plan_class = Replay

    @property
    def plan(self) -> Plan:
        """The data these settings ask for: rows, or sequences where the network is recurrent."""
        return replay_plan(self)


class DAggerBatch(Batch):
    """One minibatch; every field is [N, ...], or [L, N, ...] for a recurrent network, burn-in included."""

    observation: Any
    action: Any
    """The teacher's, in the student's units."""
    valid: Tensor
    """Whether a row is learned from."""


class DAgger(GradientAlgorithm[policies.StochasticPolicy, DAggerConfig]):
    """Learns to act as a teacher does, on the student's own steps. Rewards are not looked at.

    Without a teacher it imitates the actions that are stored, for a loop of your own in which somebody else acts.

    Raises:
        ConfigError: a leaf of the action space is neither discrete nor a tensor of floats; or there is no such teacher,
            it has a memory, or it sees or does what this environment has not.
    """

    config_class = DAggerConfig
    recurrent = ignores_rewards = True
    needs: ClassVar[dict[str, str]] = {
        "teacher": "a teacher: the folder of a run or of a saved policy, or a function as my_package:rule"
    }

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: DAggerConfig) -> None:
        (layers,) = config.network.parts("policy")
        normalize = config.normalize_observation
        self.policy = policies.stochastic_policy(observation_spec, action_spec, layers, normalize=normalize)
        self.teacher = None if config.teacher is None else _teacher(config.teacher, observation_spec, action_spec)
        """The teacher, which stays on the CPU."""
        if self.teacher is not None:
            self.policy.exploration = _TeacherActs(self.taught, config.beta)
        self.model = CoreModel(
            {"policy": self.policy.network}, {"policy": OptimizerOption("adam", {"lr": config.learning_rate})}
        )

    @torch.no_grad()
    def taught(self, observation: Any) -> Any:
        """What the teacher would do, its most probable action.

        Args:
            observation: raw, leaves [N, *observation], with all keys.

        Returns:
            [N, ...] in the student's units, as `policy.raw_action_spec` says.

        Raises:
            SpecError: it is outside of the action space.
        """
        teacher = self.teacher
        assert teacher is not None
        chosen = teacher.choose(to_device(observation, teacher.device), (), False, True)
        executed, policy = teacher.env_action(chosen.action), self.policy
        for path, spec in spec_leaves(policy.action_spec).items():
            if isinstance(spec, BoundedSpec):
                _require_inside(tree_paths(executed)[path], spec)
        action = policies.raw_actions(executed, policy.action_spec, policy.raw_action_spec)
        return to_device(action, device_of(observation))

    def preprocess(self, batch: Any, source: DataSource) -> DAggerBatch:
        """Observations, and what the teacher would do there; who acted and what followed does not matter.

        Raises:
            SpecError: the teacher would do what is forbidden there, or outside of the action space.
        """
        if not self.policy.state_spec:
            action = batch.action if self.teacher is None else self.taught(batch.observation)
            valid = torch.ones(len(action))
            self._require_allowed(batch.observation, action, valid)
            return DAggerBatch.of({"observation": batch.observation, "action": action, "valid": valid})
        seen, count = batch.observation[:-1], batch.action.shape[:2]  # [L, N], without the row behind the last action
        action = batch.action
        if self.teacher is not None:
            taught = self.taught(tree_map(lambda leaf: leaf.flatten(0, 1), seen))
            action = tree_map(lambda leaf: leaf.unflatten(0, count), taught)
        valid = remembered_starts(batch.step_type, self.config.burn_in).float()
        self._require_allowed(seen, action, valid)
        fields = {"observation": seen, "action": action, "valid": valid, "step_type": batch.step_type[:-1]}
        return DAggerBatch.of(fields | {"state": batch.state})

    def _require_allowed(self, observation: Any, action: Any, valid: Tensor) -> None:
        """Refuses to learn what no policy can do, of which the loss would be infinite."""
        if (mask := self.policy.action_mask(observation)) is None:
            return
        executed = self.policy.env_action(action)
        if found := policies.first_forbidden(executed, mask, self.policy.action_spec, valid > 0):
            raise SpecError(
                f"the action to imitate is {found[1]}, which the observation's action_mask forbids, so that no policy "
                "takes it; let the teacher choose among what is allowed"
            )

    def losses(self, batch: DAggerBatch) -> Losses:
        """The negative log-likelihood of the teacher's actions, nats; of choices, that is their cross-entropy."""
        seen, memory, b = batch.observation, parts.state_of(batch), self.config.burn_in
        action, valid = batch.action, batch.valid
        if memory and b:
            state, first = memory
            with torch.no_grad():
                _, state = self.policy.features(seen[:b], state, first[:b])
            seen, action, valid, memory = seen[b:], action[b:], valid[b:], (state, first[b:])
        policy, weight = self.policy.distribution(seen, *memory), row_weights(valid)
        loss, entropy = weighted_sum(-policy.log_prob(action), weight), weighted_sum(policy.entropy(), weight)
        return Losses({"policy": loss}, {"entropy": entropy})


@final
class _TeacherActs(policies.Exploration):
    """Lets the teacher act instead, with probability β, in every row by itself.

    Args:
        taught: what the teacher would do, of observations.
        beta: β, or a schedule of it.
    """

    def __init__(self, taught: Callable[[Any], Any], beta: Schedule) -> None:
        super().__init__(beta)
        self._taught, self.guide = taught, self._instead

    def _instead(self, observation: Any, action: Any, generator: torch.Generator) -> Any:
        """Actions [B, ...], some of them the teacher's."""
        if not self.strength:
            return action
        count = len(next(iter(tree_leaves(action))))
        teaches = torch.rand(count, generator=generator, device=generator.device) < self.strength

        def either(theirs: Tensor, own: Tensor) -> Tensor:
            return torch.where(teaches.view(-1, *(1,) * (own.ndim - 1)), theirs, own)

        return tree_map(either, self._taught(observation), action)

    def explore(self, action: Tensor, generator: torch.Generator, mask: Tensor | None) -> Tensor:
        return action


def _require_inside(action: Tensor, spec: BoundedSpec) -> None:
    low, high = (torch.as_tensor(np.array(bound)) for bound in (spec.minimum, spec.maximum))
    slack = 1e-4 * torch.where((high - low).isfinite(), high - low, 1.0)  # of rounding
    if bool(((action < low - slack) | (action > high + slack)).any()):
        raise SpecError(
            f"the teacher's actions are from {action.min():.4g} to {action.max():.4g}, outside of {spec}; clip them in "
            "the rule, for what no environment executes cannot be imitated"
        )


def _teacher(name: str, observation_spec: SpecTree, action_spec: SpecTree) -> policies.Policy:
    """The teacher of that name.

    Raises:
        ConfigError: there is none, or it does not fit.
    """
    folder = Path(name)
    if folder.is_dir():
        teacher: policies.Policy = policies.load_policy(folder / "policy" if (folder / "policy").is_dir() else folder)
    elif name.count(":") == 1 and callable(function := import_object(name)):
        teacher = policies.RulePolicy(function, observation_spec, action_spec)
    else:
        raise ConfigError(
            f"algorithm.teacher is {name!r}, which is no folder (looked in {Path.cwd()}); it needs "
            f"{DAgger.needs['teacher']}"
        )
    if teacher.state_spec:
        raise ConfigError(
            f"the teacher {name} has a memory, and is asked about single rows; give one without, for example one that "
            "sees what it would have to remember"
        )
    for what, there, here in (
        ("sees", teacher.observation_spec, teacher.seen_of(observation_spec)),
        ("does", teacher.action_spec, action_spec),
    ):
        if spec_layout(there) != spec_layout(here):
            raise ConfigError(
                f"the teacher {name} {what} {spec_layout(there)}, and here is {spec_layout(here)}; give one of this "
                "environment"
            )
    return teacher
