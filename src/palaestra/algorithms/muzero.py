"""Planning with a model that is learned: of states, rewards, values and policies, never of observations.

Papers: Schrittwieser et al. 2020, "MuZero", https://doi.org/10.1038/s41586-020-03051-4; the search is that of
Danihelka et al. 2022, https://openreview.net/forum?id=bERaNdoegnO.
Departures: sequences are drawn uniformly; networks are fully connected behind the encoder; returns bootstrap from the
values of a slow copy of the network, as in appendix H, but policies are not searched anew; differences of value that
are as small as errors of values count less in a search; the decay of weights is decoupled from the loss.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from palaestra.algorithms.config import AlgorithmConfig, Fraction, Limit, NotNegative, Positive, planning_options
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, ConfigError, Schedule, SpecTree, StepType, spec_leaves
from palaestra.core.plan import DataSource, Plan, Replay
from palaestra.nn import PLAYER, CoreModel, LearnedModel, NetworkConfig, OptimizerOption, PlanningOptions
from palaestra.ops import masked_mean, n_step_returns, valid_starts
from palaestra.policies import SearchPolicy

__all__ = ["MuZero", "MuZeroBatch", "MuZeroConfig"]


@dataclass(frozen=True, kw_only=True)
class MuZeroConfig(AlgorithmConfig):
    """Hyperparameters of `MuZero`."""

    alternating: bool = False
    """Whether two players move: a reward is that of the player who moved, and the value of the other one's turn a loss.
    They take turns, or the observation's key `player` says who moves next, which the model learns."""
    num_simulations: Positive[int] = 25
    """Steps of the model in each search."""
    num_considered: Positive[int] = 16
    """Most actions that a search tries at its root."""
    value_scale: Positive[float] = 0.1
    """How much differences of value count in a search beside the policy."""
    least_value_range: Fraction[float] = 0.025
    """Share of `max_return`. In a search, values of a state's actions that differ by less are not stretched to all of
    [0, 1], because learned values err by about as much. 0 stretches all, as in the paper."""
    learning_rate: NotNegative[Schedule] = 1e-3
    """Step size of AdamW; a number or a schedule."""
    weight_decay: NotNegative[float] = 1e-4
    """Decay of weights in each step, as a share of the step size."""
    gradient_steps: Positive[int] = 8
    """Gradient steps in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update, instead of `gradient_steps` minibatches drawn from it."""
    mini_batch_sequences: Positive[int] = 128
    """Sequences in a minibatch, each of `model_steps` and `td_steps`, and a row."""
    model_steps: Positive[int] = 5
    """Steps that the model is unrolled in learning."""
    td_steps: Positive[int] = 5
    """Rewards summed before bootstrapping from the slow copy of the network."""
    unroll_length: Positive[float] = 8
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 100_000
    """Rows the replay buffer keeps."""
    gamma: Fraction[float] = 0.99
    """Discount per env step, in [0, 1]."""
    tau: Fraction[Schedule] = 0.02
    """Share of the way that the slow copy goes towards the network after each gradient step, in [0, 1]."""
    value_cost: NotNegative[Schedule] = 0.5
    """Weight of the value's cross-entropy."""
    max_grad_norm: Limit[float] = 5.0
    """Gradients are clipped to this Euclidean norm over all parameters."""
    max_return: Positive[float] = 200.0
    """The largest return and reward, either way, that values can tell apart."""
    num_atoms: Positive[int] = 51
    """Atoms of the distributions of value and reward."""
    state_size: Positive[int] = 64
    """Numbers in a state of the model."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(128,), activation="relu"))
    """Layers of each of the three networks."""

    plan_class = Replay

    @property
    def plan(self) -> Plan:
        """The data these settings ask for: sequences as long as the model is unrolled, and n steps beyond."""
        return self.plan_with(mini_batch_length=self.model_steps + self.td_steps + 1, sequence_period=1)

    @property
    def planning(self) -> PlanningOptions:
        """The options of the networks and of the search."""
        return planning_options(self, state_size=self.state_size)


class MuZeroBatch(Batch):
    """One minibatch of N sequences, K being `model_steps`."""

    observation: Any
    """[1, N, ...] in which the model begins."""
    action: Tensor
    """[K, N]."""
    reward: Tensor
    """[K, N] after each action; 0 after the end."""
    search_policy: Tensor
    """[K+1, N, A]."""
    value_target: Tensor
    """[K+1, N] units of return; 0 after the end."""
    policy_weight: Tensor
    """[K+1, N] 0 at and after the end of an episode, or where it breaks off."""
    value_weight: Tensor
    """[K+1, N] the same, but 1 at and after a termination: nothing follows there."""
    reward_weight: Tensor
    """[K, N] 0 after an episode was cut off, or breaks off."""
    valid: Tensor
    """[1, N] 0 where no action was taken in the first row."""
    again: Any
    """[K, N] 1 where the same player moves again after an action; not there where nobody says who moves."""


class MuZero(GradientAlgorithm[SearchPolicy, MuZeroConfig]):
    """Learns a model in which a search predicts rewards, values and policies, from replayed sequences.

    Raises:
        ConfigError: the action space is not discrete, or the network does not see who moves next.
    """

    config_class = MuZeroConfig

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: MuZeroConfig) -> None:
        (layers,) = config.network.parts("network")
        self.policy = SearchPolicy.build(
            observation_spec, action_spec, layers, normalize=config.normalize_observation, planning=config.planning
        )
        hidden = {*spec_leaves(observation_spec)} - {*spec_leaves(self.policy.observation_spec)}
        if config.alternating and PLAYER in hidden:
            raise ConfigError(f"network.policy_sees leaves out {PLAYER!r}, which says who moves next; add it")
        settings = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
        adam = OptimizerOption("adamw", settings, config.max_grad_norm)
        self.model = CoreModel({"network": self.policy.network}, {"network": adam})
        self.targets = Targets(self.model, {"target_network": "network"}, tau=config.tau)
        self.target_network: Any = self.model.component["target_network"]

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> MuZeroBatch:
        """Targets of the first row and of the K after it; what lies after the end of an episode is nothing at all."""
        steps, network = self.config.model_steps, self.target_network
        value = network.values(network.predict(self.policy.normalize(batch.observation)).atoms)
        rows = (batch.reward, batch.discount, batch.step_type)
        gamma = network.discount_between(batch.observation[:-1], batch.observation[1:])
        target = n_step_returns(value, *rows, gamma=gamma, n=self.config.td_steps)
        kinds = batch.step_type[: steps + 2]
        over = (~valid_starts(kinds)).to(torch.float32).cummax(0).values  # [K+1, N] at and after an end or a break
        before = torch.cat([torch.ones_like(over[:1]), 1 - over[:-1]])
        last = (kinds[:-1] == StepType.LAST) & (batch.discount[: steps + 1] == 0)
        terminated = (last * before).cummax(0).values
        return MuZeroBatch.of(
            {
                "observation": batch.observation[:1],
                "action": batch.action["choice"][:steps],
                "reward": batch.reward[1 : steps + 1] * (1 - over[:-1]),
                "search_policy": batch.action["policy"][: steps + 1],
                "value_target": target[: steps + 1] * (1 - terminated),
                "policy_weight": 1 - over,
                "value_weight": torch.maximum(1 - over, terminated),
                "reward_weight": torch.maximum(before, terminated)[1:],
                "valid": 1 - over[:1],
                **({"again": (gamma[:steps] > 0).to(torch.float32)} if network.says_player else {}),
            }
        )

    def losses(self, batch: MuZeroBatch) -> Losses:
        """Equation (1): cross-entropies of rewards, values and policies over K steps, each a K-th beside the first."""
        network: Any = self.policy.network
        model: LearnedModel = network
        state = model.encode(self.policy.normalize(batch.observation[0]))
        steps, said, rewards, again = self.config.model_steps, [model.of_state(state)], [], []
        for action in batch.action:
            state, reward, moves_again = model.step(state, action)
            said.append(model.of_state(state))
            state = state * 0.5 + state.detach() * 0.5  # half of the gradient goes on: appendix G
            rewards.append(reward)
            again.append(moves_again)
        share = torch.full((steps + 1, 1), 1 / steps, device=state.device)
        share[0] = 1.0
        reward = _cross_entropy(model.targets(batch.reward), torch.stack(rewards))
        value = _cross_entropy(model.targets(batch.value_target), torch.stack([one.atoms for one in said]))
        policy = _cross_entropy(batch.search_policy, torch.stack([one.logits for one in said]))
        errors = {
            "reward_error": (reward * batch.reward_weight * share[1:]).sum(0),
            "value_error": (value * batch.value_weight * share).sum(0),
            "policy_error": (policy * batch.policy_weight * share).sum(0),
        }
        if "again" in vars(batch):
            wrong = binary_cross_entropy_with_logits(torch.cat(again, -1).T, batch.again, reduction="none")
            errors["player_error"] = (wrong * batch.policy_weight[1:] * share[1:]).sum(0)
        means = {name: masked_mean(error, batch.valid[0]) for name, error in errors.items()}
        total = means["reward_error"] + self.value_of("value_cost") * means["value_error"] + means["policy_error"]
        total = total + means.get("player_error", 0.0)
        return Losses({"network": total}, means)


def _cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    return -(target * logits.log_softmax(-1)).sum(-1)
