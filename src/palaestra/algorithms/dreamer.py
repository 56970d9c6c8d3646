"""Learns a model of the world, and a policy from what the model imagines.

Papers: Hafner et al. 2023, "DreamerV3", https://arxiv.org/abs/2301.04104, and with symexp bins Hafner et al. 2025,
https://doi.org/10.1038/s41586-025-08744-2.
Departures: Adam with gradients cut by their norm, instead of LaProp and adaptive clipping; one recurrent cell in
the place of blocks; values learn from imagined steps alone; sequences begin with the state as it was stored, and a few
steps bring it up to date; what is imagined begins at some rows of a sequence, evenly spaced; the range of returns is
that of what the last update's policy imagines from the beginnings of its sequences, so that no row's loss depends on
another row; an action mask is honoured in acting, and no imagined action is forbidden; LayerNorm for RMSNorm; bins
reach to `max_return`; in evaluation latents and actions are the most probable ones.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from palaestra.algorithms.config import AboveOne, AlgorithmConfig, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, DataSource, Replay, Schedule, SpecTree, StepType
from palaestra.nn import CoreModel, Decoder, LatentSequence, OptimizerOption, SymexpHead, mlp_of
from palaestra.nn.config import NetworkConfig
from palaestra.ops import lambda_returns, masked_mean, remembered_starts
from palaestra.policies import LatentPolicy

__all__ = ["Dreamer", "DreamerBatch", "DreamerConfig", "ReturnRange"]


@dataclass(frozen=True, kw_only=True)
class DreamerConfig(AlgorithmConfig):
    """Hyperparameters of `Dreamer`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam for the world model; a number or a schedule."""
    behaviour_learning_rate: NotNegative[Schedule] = 1e-4
    """Step size of Adam for actor and critic."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update, instead of `gradient_steps` minibatches drawn from it."""
    mini_batch_sequences: Positive[int] = 16
    """Sequences in a minibatch, each of `mini_batch_length` time steps."""
    mini_batch_length: AboveOne[int] = 32
    """Time steps in a sequence that are learned from; states are stored once in as many."""
    burn_in: NotNegative[int] = 4
    """Time steps before them that only bring the stored state up to date."""
    unroll_length: Positive[float] = 16
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 500_000
    """Rows the replay buffer keeps."""
    learning_starts: NotNegative[int] = 1_000
    """Env steps before the first gradient step."""
    memory_size: Positive[int] = 256
    """Units of the recurrent cell."""
    num_latents: Positive[int] = 16
    """Categorical variables in a state."""
    num_classes: AboveOne[int] = 16
    """Values of each of them."""
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(
            hidden_sizes=(128, 128), activation="silu", layer_norm=True, image_size=256
        )
    )
    """Layers of each network; pictures are decoded with channels in proportion to `image_size`."""
    gamma: Fraction[float] = 0.997
    """Discount per env step, in [0, 1]."""
    trace_decay: Fraction[Schedule] = 0.95
    """Lambda of the returns, in [0, 1]."""
    horizon: Positive[int] = 15
    """Imagination horizon, in steps."""
    num_starts: Positive[int] = 8
    """Rows of each sequence from which imagination starts, evenly spaced; at most all."""
    num_bins: AboveOne[int] = 127
    """Bins of rewards and values."""
    max_return: Positive[float] = 20_000.0
    """The largest return and reward, either way, that bins can tell."""
    free_nats: NotNegative[float] = 1.0
    """Divergence of prior and posterior, per row, below which it costs nothing (free bits)."""
    dynamics_cost: NotNegative[Schedule] = 1.0
    """Weight of the dynamics loss, which trains the prior towards the posterior."""
    representation_cost: NotNegative[Schedule] = 0.1
    """Weight of the representation loss, which trains the posterior towards the prior."""
    entropy_cost: NotNegative[Schedule] = 3e-4
    """Weight of the policy's entropy, nats, where returns are scaled to a range of 1."""
    slow_value_cost: NotNegative[Schedule] = 1.0
    """Weight of the loss that trains the value towards that of the slow critic."""
    tau: Fraction[Schedule] = 0.02
    """How far the slow critic follows in each gradient step, in [0, 1]."""
    max_grad_norm: Limit[float] = 100.0
    """Gradients of each component are clipped to this Euclidean norm."""

    plan_class = Replay


class DreamerBatch(Batch):
    """One minibatch of N sequences of L rows, burn-in included; K starts, H imagined steps."""

    observation: Any
    """[L, N, ...]."""
    before: Tensor
    """[L, N, A] encoded actions that led to the rows; of no meaning where an episode begins."""
    first: Tensor
    """[L, N] bool."""
    reward: Tensor
    """[L, N] that came with the rows."""
    discount: Tensor
    """[L, N] continuation."""
    state: Any
    """[1, N, ...] before row 0, as it was stored."""
    valid: Tensor
    """[L, N] 0 in the burn-in, and where the row, the row before it or the memory of it is lost."""
    latent_noise: Tensor
    """[L, N, S] uniform."""
    imagined_noise: Tensor
    """[H * K, N, S] uniform."""
    action_noise: Tensor
    """[H * K, N, A], see `LatentPolicy.action_noise`."""


class Imagined(Batch):
    """The steps that the model and the policy imagine from M states, without gradient."""

    features: Tensor
    """[H+1, M, F]."""
    action: Tensor
    """[H, M, ...] raw."""


class ReturnRange(nn.Module):
    """How far apart the 5th and the 95th percentile of imagined returns are: a running average of both."""

    low: Tensor
    high: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("low", "high", "count"):
            self.register_buffer(name, torch.zeros(()))

    def forward(self) -> Tensor:
        """0-dim, at least 1: small returns are not made larger."""
        return (self.high - self.low).clamp(min=1.0)

    @torch.no_grad()
    def merge(self, returns: Tensor) -> None:
        """Takes returns into account from now on, by 1%; the first hundred times all count alike.

        Args:
            returns: [...] in units of return.
        """
        self.count += 1
        share = (1 / self.count).clamp(min=0.01)
        for old, percentile in ((self.low, 0.05), (self.high, 0.95)):
            old.lerp_(torch.quantile(returns.flatten(), percentile), share)


class Dreamer(GradientAlgorithm[LatentPolicy, DreamerConfig]):
    """Learns a recurrent world model from replayed sequences, and actor and critic from sequences that it imagines.

    Raises:
        ConfigError: the action space is neither one choice nor a box of floats, or the network has a memory of its own.
    """

    config_class = DreamerConfig
    recurrent = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: DreamerConfig) -> None:
        (layers,) = config.network.parts("world_model")
        sizes = {name: getattr(config, name) for name in ("memory_size", "num_latents", "num_classes")}
        bins = (config.num_bins, config.max_return)
        self.policy = LatentPolicy.build(observation_spec, action_spec, layers, **sizes)
        size, inner = self.policy.network.world.feature_size, layers.on_features()
        self.decoder = Decoder(observation_spec, size, inner)
        self.reward, self.critic = SymexpHead(size, *bins, inner), SymexpHead(size, *bins, inner)
        self.continuation = mlp_of(size, inner.hidden_sizes, 1, inner)
        self.return_range = ReturnRange()
        world = {"world": self.policy.network.world, "decoder": self.decoder}
        world |= {"reward": self.reward, "continuation": self.continuation}
        components = {"world_model": nn.ModuleDict(world), "actor": self.policy.network.head, "critic": self.critic}
        components |= {"return_range": self.return_range}
        adam = OptimizerOption("adam", {"lr": config.learning_rate}, config.max_grad_norm)
        slow = OptimizerOption("adam", {"lr": config.behaviour_learning_rate}, config.max_grad_norm)
        self.model = CoreModel(components, {"world_model": adam, "actor": slow, "critic": slow})
        self.targets = Targets(self.model, {"target_critic": "critic"}, tau=config.tau)
        self.target_critic: Any = self.model.component["target_critic"]
        length, self._burn_in = config.mini_batch_length, config.burn_in
        self._starts = torch.linspace(0, length - 1, min(config.num_starts, length)).long() + config.burn_in

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> DreamerBatch:
        """Every row with the action before it; those count that begin an episode, or that a row of theirs led to."""
        kinds = batch.step_type[:-1]
        first, led = kinds == StepType.FIRST, remembered_starts(batch.step_type)[:-1]
        valid = torch.cat((kinds[:1] != StepType.LAST, first[1:] | led)).to(batch.reward.dtype)
        valid[: self._burn_in] = 0
        fields = {name: batch[name][:-1] for name in ("observation", "reward", "discount")}
        before = torch.cat((batch.state["action"], self.policy.encoded(batch.action[:-1])))
        return DreamerBatch.of({**fields, "before": before, "first": first, "state": batch.state, "valid": valid})

    def noise(self, batch: Any, generator: torch.Generator) -> DreamerBatch:
        """Numbers from which latents and imagined actions are drawn."""
        (length, num), latents = batch.reward.shape, self.config.num_latents
        steps = self.config.horizon * len(self._starts)
        return batch.replace(
            latent_noise=torch.rand(length, num, latents, generator=generator),
            imagined_noise=torch.rand(steps, num, latents, generator=generator),
            action_noise=self.policy.action_noise((steps, num), generator),
        )

    def losses(self, batch: DreamerBatch) -> Losses:
        """Those of the model, and those of actor and critic on what it imagines."""
        seen = self._seen(batch, len(batch.valid))
        starts = self._starts.to(self.device)
        horizon, valid = self.config.horizon, batch.valid[starts]
        noise = [one.unflatten(0, (horizon, -1)).flatten(1, 2) for one in (batch.imagined_noise, batch.action_noise)]
        imagined = self._imagined(seen.memory[starts].flatten(0, 1), seen.latent[starts].flatten(0, 1), *noise)
        with torch.no_grad():
            weight, returns, value = self._returns(imagined, batch.discount[starts].flatten())
        known = imagined.features[:-1]

        def mean(x: Tensor) -> Tensor:  # [H, K * N]
            return masked_mean((weight * x).mean(0), valid.flatten())

        policy = self.policy.distribution_of(self.policy.network.head(known))
        advantage = (returns - value) / self.return_range()
        entropy = policy.entropy()
        actor = mean(-advantage * policy.log_prob(imagined.action) - self.value_of("entropy_cost") * entropy)
        with torch.no_grad():
            slow = self.target_critic.mean(self.target_critic(known))
        logits = self.critic(known)
        critic = self.critic.error(logits, returns) + self.value_of("slow_value_cost") * self.critic.error(logits, slow)
        world, metrics = self._model_error(batch, seen)
        metrics |= {
            "entropy": masked_mean(entropy.mean(0), valid.flatten()),
            "imagined_return": masked_mean(returns.mean(0), valid.flatten()),
        }
        return Losses({"world_model": world, "actor": actor, "critic": mean(critic)}, metrics)

    def after_update(self, batch: Any) -> None:
        """Moves the range of returns towards those imagined from the first row of each sequence that counts."""
        horizon = self.config.horizon
        noise = [one.unflatten(0, (horizon, -1))[:, 0] for one in (batch.imagined_noise, batch.action_noise)]
        with torch.no_grad():
            seen = self._seen(batch, self._burn_in + 1)
            imagined = self._imagined(seen.memory[-1], seen.latent[-1], *noise)
            returns, counts = self._returns(imagined, batch.discount[self._burn_in])[1], batch.valid[self._burn_in] > 0
            if counts.any():
                self.return_range.merge(returns[:, counts])

    def _seen(self, batch: DreamerBatch, rows: int) -> LatentSequence:
        """The states of the first rows, through which no gradient runs in the burn-in."""
        world, b = self.policy.network.world, self._burn_in

        def observe(state: Any, rows: slice) -> LatentSequence:
            fields = (batch.before[rows], batch.first[rows], state, batch.latent_noise[rows])
            return world.dynamics.observe(world.encode(batch.observation[rows]), *fields)

        state = batch.state[0]
        if not b:
            return observe(state, slice(rows))
        with torch.no_grad():
            past = observe(state, slice(b))
        now = observe({"memory": past.memory[-1], "latent": past.latent[-1]}, slice(b, rows))
        return LatentSequence(*(torch.cat(pair) for pair in zip(past, now, strict=True)))

    def _model_error(self, batch: DreamerBatch, seen: LatentSequence) -> tuple[Tensor, dict[str, Tensor]]:
        """Errors of the predictions, and the divergences in both directions."""
        b = self._burn_in
        seen = LatentSequence(*(one[b:] for one in seen))
        features, valid = seen.features, batch.valid[b:]
        prior, posterior = self.policy.network.world.dynamics.prior(seen.memory), seen.posterior
        continuation = self.continuation(features).squeeze(-1)
        dynamics, representation = _divergence(posterior.detach(), prior), _divergence(posterior, prior.detach())
        errors = {
            "observation_error": self.decoder.error(features, batch.observation[b:]),
            "reward_error": self.reward.error(self.reward(features), batch.reward[b:]),
            "continuation_error": nn.functional.binary_cross_entropy_with_logits(
                continuation, batch.discount[b:], reduction="none"
            ),
            "divergence": dynamics,
        }
        metrics = {name: masked_mean(error, valid) for name, error in errors.items()}
        free = self.config.free_nats
        drawn = self.value_of("dynamics_cost") * masked_mean(dynamics.clamp(min=free), valid)
        drawn = drawn + self.value_of("representation_cost") * masked_mean(representation.clamp(min=free), valid)
        predicted = metrics["observation_error"] + metrics["reward_error"] + metrics["continuation_error"]
        return predicted + drawn, metrics

    @torch.no_grad()
    def _imagined(self, memory: Tensor, latent: Tensor, uniform: Tensor, action_noise: Tensor) -> Imagined:
        """Acts in the model from M states on, with [H, M, ...] random numbers."""
        dynamics, head = self.policy.network.world.dynamics, self.policy.network.head
        features, actions = [torch.cat((memory, latent), -1)], []
        for k in range(len(uniform)):
            action = self.policy.distribution_of(head(features[-1])).sample_from(action_noise[k])
            memory = dynamics.advance(memory, latent, self.policy.encoded(action))
            latent = dynamics.sample(dynamics.prior(memory), uniform[k])
            features.append(torch.cat((memory, latent), -1))
            actions.append(action)
        return Imagined.of({"features": torch.stack(features), "action": torch.stack(actions)})

    def _returns(self, imagined: Imagined, discount: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[H, M] what each step counts, its return, a mixture by lambda, and its value.

        Args:
            imagined: by the model.
            discount: [M] continuation of the states from which it was imagined.
        """
        features, gamma = imagined.features, self.config.gamma
        continuation = self.continuation(features).squeeze(-1).sigmoid()
        continuation = torch.cat((discount.unsqueeze(0), continuation[1:]))
        weight = torch.cat((continuation[:1], gamma * continuation[1:-1])).cumprod(0)
        value, reward = self.critic.mean(self.critic(features)), self.reward.mean(self.reward(features))
        running = torch.full_like(continuation, int(StepType.MID), dtype=torch.int32)
        lambda_ = self.value_of("trace_decay")
        returns = lambda_returns(value, reward, continuation, running, gamma=gamma, lambda_=lambda_)
        return weight, returns, value[:-1]


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) of all latents together, nats; [..., S, C] to [...]."""
    return (p * (p.log() - q.log())).sum((-1, -2))
