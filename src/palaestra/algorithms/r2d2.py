"""Deep Q-learning with a memory, from replayed sequences.

Paper: Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX, sections 2.3 and 3: stored states, burn-in,
n-step double Q-learning, and priorities that mix the largest and the mean error of a sequence.
Departures: the Huber loss on unscaled values instead of the squared error on rescaled ones; sequences do not end with
their episode, the memory starts anew in the next one; they are drawn uniformly unless `prioritized` is set; all
environments explore with the same epsilon; states are stored with every `mini_batch_length`-th row, where sequences
begin; the memory sees the last action and reward only where `env.inputs` shows them.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, ConfigError, DataSource, Linear, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.ops import greedy_action, huber, masked_mean, n_step_returns, remembered_starts
from palaestra.policies import EpsilonGreedy, ValueGreedyPolicy

__all__ = ["R2D2", "R2D2Batch", "R2D2Config"]

_MAX_SHARE = 0.9  # η of section 2.3


@dataclass(frozen=True, kw_only=True)
class R2D2Config(AlgorithmConfig):
    """Hyperparameters of `R2D2`."""

    learning_rate: NotNegative[Schedule] = 5e-4
    """Step size of Adam; a number or a schedule."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update, instead of `gradient_steps` minibatches drawn from it."""
    mini_batch_sequences: Positive[int] = 32
    """Sequences in a minibatch, each of `mini_batch_length` time steps."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(hidden_sizes=(128,), activation="relu", dueling=True, recurrent="lstm")
    )
    """Q-network behind a memory."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: Positive[int] = 5
    """Rewards summed before bootstrapping."""
    unroll_length: Positive[float] = 16
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 100_000
    """Rows the replay buffer keeps."""
    learning_starts: NotNegative[int] = 1_000
    """Env steps before the first gradient step."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""
    target_period: Positive[int] = 250
    """Gradient steps between two copies of the online to the target network."""
    epsilon: Fraction[Schedule] = field(default_factory=lambda: Linear(1.0, 0.05, 0.2))
    """Probability of a random action while collecting."""
    max_grad_norm: Limit[float] = 10.0
    """Gradients are clipped to this Euclidean norm over all parameters."""
    prioritized: bool = False
    """Whether data of large error are drawn more often, as in Schaul et al. 2016."""
    priority_alpha: NotNegative[float] = 0.9
    """Power of the priority, at least 0; 0 draws all equally often."""
    priority_beta: Fraction[Schedule] = 0.6
    """How far importance weights correct for that, in [0, 1]; 1 is completely."""
    mini_batch_length: Positive[int] = 20
    """Time steps in a sequence that are learned from; memories are stored once in as many."""
    burn_in: NotNegative[int] = 10
    """Time steps before them that only bring the memory up to date."""
    huber_delta: Limit[float] = 1.0
    """Error above which the loss grows linearly."""

    plan_class = Replay


class R2D2Batch(Batch):
    """One minibatch of sequences, burn-in included."""

    observation: Any
    """[L+1, N, ...]."""
    step_type: Tensor
    """[L+1, N]."""
    reward: Tensor
    """[L+1, N]."""
    discount: Tensor
    """[L+1, N] continuation."""
    action: Tensor
    """[L, N]."""
    state: Any
    """[1, N, ...] the memory before row 0, as it was stored."""
    valid: Tensor
    """[L, N] 0 in the burn-in, at ends of episodes, and where the memory is another episode's."""
    index: Tensor
    """[N]."""
    weight: Tensor
    """[N] importance weight. Only where sequences are drawn by priority."""


class R2D2(GradientAlgorithm[ValueGreedyPolicy, R2D2Config]):
    """Learns action values of a recurrent network from replayed sequences; acts greedily with probability 1 - epsilon.

    Raises:
        ConfigError: the action space is not discrete, or the network has no memory.
    """

    config_class = R2D2Config
    recurrent = True

    def build(self, observation_spec: SpecTree, action_spec: Any, config: R2D2Config) -> None:
        if config.network.recurrent is None or config.mini_batch_length < 2:
            raise ConfigError(
                f"R2D2 was given network.recurrent={config.network.recurrent} and mini_batch_length="
                f"{config.mini_batch_length}; it needs a memory (lstm, gru, attention, own) and sequences of at least "
                "2 steps, else use DQN"
            )
        (q,) = config.network.parts("q")
        self.policy = ValueGreedyPolicy.build(observation_spec, action_spec, q, normalize=config.normalize_observation)
        self.policy.exploration = EpsilonGreedy(self.policy.raw_action_spec.num, config.epsilon)
        self.network: Any = self.policy.network
        adam = OptimizerOption("adam", {"lr": config.learning_rate}, config.max_grad_norm)
        self.model = CoreModel({"q": self.network}, {"q": adam})
        self.targets = Targets(self.model, {"target_q": "q"}, period=config.target_period)
        self.target_network: Any = self.model.component["target_q"]

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> R2D2Batch:
        """Takes what the loss needs."""
        valid = remembered_starts(batch.step_type, self.config.burn_in).to(torch.float32)
        names = ("observation", "step_type", "reward", "discount", "action", "state", "index")
        fields = {**{name: batch[name] for name in names}, "valid": valid}
        return R2D2Batch.of({**fields, "weight": batch.weight} if self.config.prioritized else fields)

    def losses(self, batch: R2D2Batch) -> Losses:
        """Errors of all steps after the burn-in against n-step double Q-learning targets."""
        b = self.config.burn_in
        state, first = parts.state_of(batch)
        q = self._q(self.network, batch, state, first)  # [L+1-b, N, A]
        with torch.no_grad():
            mask = self.policy.action_mask(batch.observation[b:])
            best = greedy_action(q, mask).unsqueeze(-1)
            value = self._q(self.target_network, batch, state, first).gather(-1, best).squeeze(-1)
            rows = (batch.reward[b:], batch.discount[b:], batch.step_type[b:])
            target = n_step_returns(value, *rows, gamma=self.value_of("gamma"), n=self.config.n_step)  # [L-b, N]
        taken = q[:-1].gather(-1, batch.action[b:].unsqueeze(-1)).squeeze(-1)
        valid, error = batch.valid[b:], taken - target
        loss = huber(error, delta=self.config.huber_delta)
        metrics = {"q_mean": masked_mean(taken, valid)}
        if not self.config.prioritized:
            return Losses({"q": masked_mean(loss, valid)}, metrics)
        size = error.detach().abs() * valid
        priority = _MAX_SHARE * size.amax(0) + (1 - _MAX_SHARE) * size.sum(0) / valid.sum(0).clamp(min=1)
        return Losses({"q": masked_mean(batch.weight * loss, valid)}, metrics, priority)

    def _q(self, network: Any, batch: R2D2Batch, state: Any, first: Tensor) -> Tensor:
        """Action values of the rows after the burn-in, through which the memory runs without gradient."""
        b, observation = self.config.burn_in, self.policy.normalize(batch.observation)
        if b:
            with torch.no_grad():
                _, state = network.remember(observation[:b], state, first[:b])
        return network(observation[b:], state, first[b:])[0]
