"""Decision Transformer: the actions behind the returns that followed them; acts for a return that it is asked for.

Paper: Chen et al. 2021, https://arxiv.org/abs/2106.01345, section 3 and algorithm 1.
Going on with steps of its own it is the Online Decision Transformer: Zheng et al. 2022,
https://arxiv.org/abs/2202.05607, section 4 and algorithms 1 and 2.
Departures: a step is one token, of its return-to-go, its observation, its number in the episode and the action before,
where the papers have three; the transformer is `nn.AttentionMemory`, gated; the loss is the negative log-likelihood for
boxes as well, as in equation (2) of the second paper. There, the spread is one for all steps, not squashed, and its
entropy is exact; the temperature is learned through its logarithm, and only where a run goes online. An update follows
each env step, own steps and data have fixed shares of a minibatch, and rows leave the buffer by age, not by episode.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from palaestra.algorithms import parts
from palaestra.algorithms.config import AboveOne, AlgorithmConfig, Finite, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.core import Batch, ConfigError, DataSource, Offline, Plan, Schedule, ShapeError, StepType
from palaestra.core.spec import DiscreteSpec, MultiBinarySpec, MultiDiscreteSpec, SpecTree, spec_leaves
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.ops import masked_mean
from palaestra.policies import ReturnConditionedPolicy

__all__ = ["DecisionTransformer", "DecisionTransformerBatch", "DecisionTransformerConfig"]


_ENOUGH = 10  # episodes whose mean return says what can be reached


@dataclass(frozen=True, kw_only=True)
class DecisionTransformerConfig(AlgorithmConfig):
    """Hyperparameters of `DecisionTransformer`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam; a number or a schedule."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    mini_batch_sequences: Positive[int] = 64
    """Sequences in a minibatch, each of `mini_batch_length` time steps."""
    mini_batch_length: AboveOne[int] = 20
    """K, time steps in a sequence."""
    normalize_observation: bool = True
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(
            hidden_sizes=(128,),
            activation="relu",
            recurrent="attention",
            recurrent_size=128,
            attention_window=19,
            attention_layers=3,
            attention_heads=1,
        )
    )
    """The memory, and the layers on top of it. When it acts, each layer sees as far back as in training, and of the
    layers below as well: three reach back 57 steps."""
    max_grad_norm: Limit[float] = 0.25
    """Gradients are clipped to this Euclidean norm over all parameters."""
    target_return: Finite[float | None] = None
    """The return to act for; by default that of the best episode of the data, and online the best mean return that its
    own episodes have come to, where that is more."""
    exploration_return: Finite[float | None] = None
    """The return to collect for, online; by default one and a half times the one to act for, or the same below 0."""
    initial_temperature: Positive[float] = 0.1
    """Weight of the entropy at the start, online; nats of the loss per nat."""
    temperature_learning_rate: NotNegative[Schedule] = 1e-4
    """Step size of the temperature; 0 leaves it as it is."""
    target_entropy: Finite[float | None] = None
    """Entropy of the policy that the temperature aims at, nats; by default -1 for each number of a box, and a tenth of
    the largest possible one for each choice."""

    plan_class = Offline

    @property
    def plan(self) -> Plan:
        """The data these settings ask for: sequences, with the returns that followed."""
        return self.plan_with(returns=True)


class DecisionTransformerBatch(Batch):
    """One minibatch of sequences; every field but the last two is [K, N, ...]."""

    observation: Any
    return_to_go: Tensor
    """What was to come in the episode from here on, in units of the network."""
    time: Tensor
    """Steps of the episode so far, in units of the network."""
    prev_action: Tensor
    """Actions as the network sees them; zeros where none is known."""
    action: Any
    step_type: Tensor
    valid: Tensor
    """1.0 in the first episode of a sequence, if its end was recorded."""
    scales: Tensor
    """[4, N] units of returns and of time, the return to act for, and that of `KnownReturn`; equal in every column."""
    index: Tensor


class KnownReturn(nn.Module):
    """What data and own episodes say that can be reached, whatever return is asked for."""

    best: Tensor
    """0-dim; NaN after a checkpoint of a version that did not keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("best", torch.tensor(0.0))
        self.register_load_state_dict_pre_hook(_say_unknown)


def _say_unknown(module: nn.Module, weights: dict[str, Any], prefix: str, *rest: Any) -> None:
    """For checkpoints of before."""
    weights.setdefault(f"{prefix}best", torch.tensor(math.nan))


class DecisionTransformer(GradientAlgorithm[ReturnConditionedPolicy, DecisionTransformerConfig]):
    """Learns which actions led to which returns, by attention over the steps before; acts for the return asked for.

    Raises:
        ConfigError: the network has no memory, rewards are weighted, or a leaf of the action space is of no kind that
            fits.
    """

    config_class = DecisionTransformerConfig
    recurrent = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: DecisionTransformerConfig) -> None:
        if config.network.recurrent is None or config.rewards.weights:
            raise ConfigError(
                f"DecisionTransformer was given network.recurrent={config.network.recurrent} and rewards.weights="
                f"{config.rewards.weights}; it needs a memory (attention, lstm, gru), and rewards that are one number, "
                "for its policy adds them up while it acts"
            )
        (layers,) = config.network.parts("policy")
        self.policy = ReturnConditionedPolicy.build(
            observation_spec, action_spec, layers, normalize=config.normalize_observation
        )
        self.temperature = parts.Temperature(config.initial_temperature)
        adam = OptimizerOption("adam", {"lr": config.learning_rate}, config.max_grad_norm)
        slow = OptimizerOption("adam", {"lr": config.temperature_learning_rate})
        self.known = KnownReturn()
        networks = {"policy": self.policy.network, "temperature": self.temperature, "known": self.known}
        self.model = CoreModel(networks, {"policy": adam, "temperature": slow})
        least = sum(_least_entropy(leaf) for leaf in spec_leaves(self.policy.raw_action_spec).values())
        self.target_entropy = least if config.target_entropy is None else config.target_entropy
        """Nats."""

    @property
    def _online(self) -> bool:
        """Whether steps of its own are, or will be, learned from as well."""
        return self.plan.data == "replay"

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> DecisionTransformerBatch:
        """What was still to come at every step, and what was done before it; units stay as at first, online.

        Raises:
            ShapeError: no episode is complete.
        """
        known = batch.episode_stats[:, batch.episode_stats[0] > 0]  # [5, N]; own steps may have no episode yet
        if not known.numel():
            raise ShapeError("the data has no complete episode, so returns are unknown; collect whole ones")
        count, least, best, mean, longest = known
        encoder, own = self.policy.encoder, self.config.target_return
        scale, longest = torch.maximum(least.abs(), best.abs()).max().clamp(min=1e-6), longest.max()
        reached = best.max()
        if self._online and self.policy_version:
            scale, longest = encoder.return_scale, encoder.time_scale
            before = torch.where(self.known.best.isnan(), encoder.target_return, self.known.best)
            reached = torch.cat((before.view(1), mean[count >= _ENOUGH])).max()
        target = reached if own is None else torch.full_like(reached, own)
        earned = batch.reward[1:-1].cumsum(0)  # [K-1, N] since row 0
        left = batch.return_to_go.nan_to_num() - torch.cat((torch.zeros_like(earned[:1]), earned))  # [K, N]
        acted = self.policy.encoded(batch.action)  # [K, N, A]
        time = batch.time + torch.arange(len(left), device=left.device).unsqueeze(-1)  # [K, N]
        return DecisionTransformerBatch.of(
            {
                "observation": batch.observation[:-1],
                "return_to_go": left / scale,
                "time": time / longest,
                "prev_action": torch.cat((torch.zeros_like(acted[:1]), acted[:-1])),
                "action": batch.action,
                "step_type": batch.step_type[:-1],
                "valid": batch.valid * batch.return_to_go.isfinite(),
                "scales": torch.stack((scale, longest, target, reached)).unsqueeze(-1).expand(-1, left.shape[1]),
                "index": batch.index,
            }
        )

    def losses(self, batch: DecisionTransformerBatch) -> Losses:
        """The negative log-likelihood of the actions, given the return that followed, nats.

        Online, the entropy is kept up: equations (5) to (7) of the second paper.
        """
        names = ("observation", "return_to_go", "time", "prev_action")
        step = Batch.of({name: batch[name] for name in names})
        memory = self.policy.network.initial_state(batch.step_type.shape[1])
        distribution, _ = self.policy.following(step, memory, batch.step_type == StepType.FIRST)
        loss = masked_mean(-distribution.log_prob(batch.action), batch.valid)
        entropy = masked_mean(distribution.entropy(), batch.valid)
        if not self._online:
            return Losses({"policy": loss}, {"entropy": entropy})
        alpha = self.temperature()
        terms = {"policy": loss - alpha * entropy, "temperature": self.temperature.loss(self.target_entropy - entropy)}
        return Losses(terms, {"negative_log_likelihood": loss, "entropy": entropy, "alpha": alpha})

    def after_update(self, batch: DecisionTransformerBatch) -> None:
        """Tells the policy what returns there are, and what to ask for."""
        encoder, explored_for = self.policy.encoder, self.config.exploration_return
        return_scale, time_scale, target, reached = batch.scales[:, 0]
        self.known.best.copy_(reached)
        encoder.return_scale.copy_(return_scale)
        encoder.time_scale.copy_(time_scale)
        encoder.target_return.copy_(target)
        if self._online:
            encoder.exploration_gain.copy_(0.5 * target.relu() if explored_for is None else explored_for - target)


def _least_entropy(action: SpecTree) -> float:
    """The entropy that a part of the action keeps by default, nats."""
    if isinstance(action, DiscreteSpec):
        return 0.1 * math.log(action.num)
    if isinstance(action, MultiDiscreteSpec):
        return 0.1 * sum(map(math.log, action.nvec))
    return 0.1 * action.size * math.log(2) if isinstance(action, MultiBinarySpec) else -float(action.size)
