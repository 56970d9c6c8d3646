"""Planning with the rules of a game, and learning from what planning finds.

Papers: Danihelka et al. 2022, "Policy improvement by planning with Gumbel",
https://openreview.net/forum?id=bERaNdoegnO; Silver et al. 2018, "AlphaZero", https://doi.org/10.1126/science.aar6404.
Departures: games are replayed in sequences; the value learns from lambda-returns over the values that searches found,
and at the end of a sequence over the network's own, where AlphaZero takes the game's outcome. With `trace_decay` 1 it
is that alone where the game ends within the sequence. Values are distributions over atoms, trained by cross-entropy.
Which actions survive a halving of the root shows as their turn comes.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, planning_options
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.core import Batch, DataSource, Replay, Schedule, SpecTree, StepType, tree_map
from palaestra.core.settings import AboveOne, Fraction, Limit, NotNegative, Positive
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption, PlanningOptions, allowed_logits
from palaestra.ops import lambda_returns, masked_mean, valid_starts
from palaestra.policies import SearchPolicy

__all__ = ["AlphaZero", "AlphaZeroBatch", "AlphaZeroConfig"]


@dataclass(frozen=True, kw_only=True)
class AlphaZeroConfig(AlgorithmConfig):
    """Hyperparameters of `AlphaZero`."""

    simulator: str = ""
    """The task as my_package:MyEnvironment, a `TensorEnvironment` with `state_of`; by default the run's environment."""
    alternating: bool = True
    """Whether two players move: a reward is that of the player who moved, and the value of the other one's turn a loss.
    They take turns, or the observation's key `player` says who moves next."""
    num_simulations: Positive[int] = 32
    """Steps of the simulator in each search."""
    num_considered: Positive[int] = 16
    """Most actions that a search tries at its root."""
    value_scale: Positive[float] = 0.1
    """How much differences of value count in a search beside the policy."""
    least_value_range: Fraction[float] = 0.0
    """Share of `max_return`. In a search, values of a state's actions that differ by less are not stretched to all of
    [0, 1], because learned values err by about as much. 0 stretches all, as in the paper."""
    learning_rate: NotNegative[Schedule] = 1e-3
    """Step size of AdamW; a number or a schedule."""
    weight_decay: NotNegative[float] = 1e-4
    """Decay of weights in each step, as a share of the step size."""
    gradient_steps: Positive[int] = 10
    """Gradient steps in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update, instead of `gradient_steps` minibatches drawn from it."""
    mini_batch_sequences: Positive[int] = 16
    """Sequences in a minibatch, each of `mini_batch_length` time steps."""
    mini_batch_length: AboveOne[int] = 16
    """Time steps in a sequence; a value beyond them is the network's."""
    unroll_length: Positive[float] = 32
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 30_000
    """Rows the replay buffer keeps."""
    gamma: Fraction[float] = 1.0
    """Discount per env step, in [0, 1]."""
    trace_decay: Fraction[Schedule] = 0.9
    """Lambda of the returns, in [0, 1]: 0 trusts the value after the next step, 1 rewards up to an end that is seen."""
    value_cost: NotNegative[Schedule] = 1.0
    """Weight of the value's cross-entropy."""
    max_grad_norm: Limit[float] = 5.0
    """Gradients are clipped to this Euclidean norm over all parameters."""
    max_return: Positive[float] = 1.0
    """The largest return, either way, that values can tell apart."""
    num_atoms: Positive[int] = 21
    """Atoms of the value's distribution."""
    symmetry: str | None = None
    """Mirror image of rows, as my_package:mirror: every other sequence is learned from as its image."""
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu", block="simba")
    )
    """One network for policy and value."""

    plan_class = Replay

    @property
    def planning(self) -> PlanningOptions:
        """The options of the network and of the search."""
        return planning_options(self, simulator=self.simulator)


class AlphaZeroBatch(Batch):
    """One minibatch of sequences; every field is [L, N, ...]."""

    observation: Any
    search_policy: Tensor
    """[L, N, A] probabilities."""
    value_target: Tensor
    """Units of return."""
    valid: Tensor


class AlphaZero(GradientAlgorithm[SearchPolicy, AlphaZeroConfig]):
    """Learns policy and value of states from searches with a simulator, of games against itself or tasks alone.

    Raises:
        ConfigError: the action space is not discrete, or there is no simulator.
    """

    config_class = AlphaZeroConfig

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: AlphaZeroConfig) -> None:
        (layers,) = config.network.parts("network")
        self.policy = SearchPolicy.build(observation_spec, action_spec, layers, planning=config.planning)
        settings = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
        adam = OptimizerOption("adamw", settings, config.max_grad_norm)
        self.model = CoreModel({"network": self.policy.network}, {"network": adam})
        specs = self.policy.whole_spec, self.policy.raw_action_spec
        self.symmetry = parts.Symmetry(config.symmetry, *specs, as_rows=True) if config.symmetry else None

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> AlphaZeroBatch:
        """Adds lambda-returns over the values that searches found; of ends and the last row, the network's own.

        Raises:
            ConfigError: the rows are those of another task than the simulator.
        """
        network: Any = self.policy.network
        network.require_agreement(batch)
        cut_off = (batch.step_type == StepType.LAST) & (batch.discount != 0)
        seen = batch.observation if cut_off.any() else batch.observation[-1:]
        own = network.values(network.predict(seen).atoms)  # [L+1, N] or [1, N]
        value = torch.where(cut_off, own, torch.cat([batch.action["value"], own[-1:]]))
        gamma = network.discount_between(batch.observation[:-1], batch.observation[1:])
        rows, decay = (batch.reward, batch.discount, batch.step_type), self.value_of("trace_decay")
        target = lambda_returns(value, *rows, gamma=gamma, lambda_=decay)
        seen, action = batch.observation[:-1], batch.action
        if self.symmetry is not None:
            seen, action = _with_images(self.symmetry, seen, action)
        return AlphaZeroBatch.of(
            {
                "observation": seen,
                "search_policy": action["policy"],
                "value_target": target,
                "valid": valid_starts(batch.step_type).to(torch.float32),
            }
        )

    def losses(self, batch: AlphaZeroBatch) -> Losses:
        """Cross-entropy to the policy of the search (equation 12 of Danihelka et al.), and of the value's atoms."""
        network = self.policy.network
        said = network.predict(batch.observation)
        logits = allowed_logits(said.logits, self.policy.action_mask(batch.observation))
        policy = -(batch.search_policy * logits.log_softmax(-1)).sum(-1)
        value = -(network.targets(batch.value_target) * said.atoms.log_softmax(-1)).sum(-1)
        policy, value = masked_mean(policy, batch.valid), masked_mean(value, batch.valid)
        total = policy + self.value_of("value_cost") * value
        return Losses({"network": total}, {"policy_error": policy, "value_error": value})


def _with_images(symmetry: parts.Symmetry, observation: Any, action: Any) -> tuple[Any, Any]:
    """Rows [L, N, ...], every other sequence of them in the mirror."""
    rows = [tree_map(lambda leaf: leaf[:, 1::2], tree) for tree in (observation, action)]
    shape = action["value"][:, 1::2].shape
    images = symmetry.image(*(tree_map(lambda leaf: leaf.flatten(0, 1), tree) for tree in rows))

    def put(leaf: Tensor, image: Tensor) -> Tensor:
        mixed = leaf.clone()
        mixed[:, 1::2] = image.unflatten(0, shape).to(leaf.dtype)
        return mixed

    seen, done = (tree_map(put, *pair) for pair in zip((observation, action), images, strict=True))
    return seen, done
