"""Targets and noise of off-policy actors and critics, soft and deterministic."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from palaestra.algorithms.parts.memory import Seen
from palaestra.algorithms.parts.transitions import TransitionBatch
from palaestra.core import Batch, ConfigError
from palaestra.nn import in_full_precision
from palaestra.ops import categorical_projection, mean_of, td_target

_BatchT = TypeVar("_BatchT", bound=Batch)


class SoftBatch(TransitionBatch):
    """Transitions, and the noise that actions are made of."""

    noise: Tensor
    """[N, A] standard normal, for the action at `observation`."""
    next_noise: Tensor
    """[N, A] standard normal, for the action at `next_observation`."""


def action_noise(batch: Batch, generator: torch.Generator, layout: type[_BatchT] = SoftBatch) -> _BatchT:
    """Adds the random part of the actions at both observations.

    Args:
        batch: transitions.
        generator: source of the noise.
        layout: of what is returned.
    """
    both = torch.empty(2, *batch["action"].shape).normal_(generator=generator)
    return layout.of({**dict(batch.items()), "noise": both[0], "next_noise": both[1]})


class Temperature(nn.Module):
    """The weight of the entropy, kept positive by its logarithm.

    Args:
        initial: at the start, greater than 0.
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(float(initial)).log())

    def forward(self) -> Tensor:
        """0-dim, without gradient."""
        return self.log.detach().exp()

    def loss(self, excess: Tensor) -> Tensor:
        """Raises the temperature where entropy is missing. Haarnoja et al. 2018, equation (18), through the logarithm.

        Args:
            excess: [N] target entropy plus log-probability, nats; held fixed.
        """
        return -self.log * mean_of(excess.detach())


@torch.no_grad()
def soft_target(algorithm: Any, batch: SoftBatch, members: Any = None, seen: Seen | None = None) -> Tensor:
    """Targets of the action values, entropy included. Haarnoja et al. 2018, equations (3), (6).

    Args:
        algorithm: has the policy, `target_critic` and `temperature`.
        batch: the minibatch.
        members: critics that are asked; all by default.
        seen: what actor and critics look at, where that is known already; its batch is `batch`.

    Returns:
        [N] units of return.
    """
    policy = algorithm.policy
    after = policy.normalize(batch.next_observation) if seen is None else seen.after
    looked_at = after if seen is None else seen.target_after
    action, log_prob = policy.distribution_of(policy.head(after)).at(batch.next_noise)
    q = algorithm.target_critic(looked_at, action, members=members).amin(0).squeeze(-1)  # [N]
    return td_target(q - algorithm.temperature() * log_prob, batch.reward, batch.bootstrap)


@torch.no_grad()
def deterministic_target(algorithm: Any, batch: Any, seen: Seen | None = None) -> Tensor:
    """Targets of the action values; the next action is smoothed by noise where there is any.

    Args:
        algorithm: has the policy, `target_actor` and `target_critic`.
        batch: the minibatch; `noise` [N, A] in raw units smooths, see `smoothing_noise`.
        seen: what actor and critics look at, where that is known already; its batch is `batch`.

    Returns:
        [N] units of return.
    """
    observation = algorithm.policy.normalize(batch.next_observation) if seen is None else seen.target_after
    action = algorithm.target_actor(observation).tanh()
    if "noise" in vars(batch):
        action = (action + batch["noise"]).clamp(-1.0, 1.0)
    next_q = algorithm.target_critic(observation, action).squeeze(-1)  # [K, N]
    return td_target(next_q.amin(0), batch.reward, batch.bootstrap)


def smoothing_noise(batch: Batch, config: Any, generator: torch.Generator, layout: type[_BatchT]) -> _BatchT:
    """Adds the smoothing noise of target actions. Fujimoto et al. 2018, equation (14).

    Args:
        batch: transitions.
        config: with `target_noise_std` and `target_noise_clip`.
        generator: source of the noise.
        layout: of what is returned, with `noise`.
    """
    noise = torch.empty(batch["action"].shape).normal_(std=config.target_noise_std, generator=generator)
    limit = config.target_noise_clip
    return layout.of({**dict(batch.items()), "noise": noise.clamp_(-limit, limit)})


class ScaledReturns:
    """Distributions of returns in units of `RewardScale`, over evenly spaced atoms, of soft critics.

    Args:
        config: with `num_atoms`, Q, `min_return` and `max_return`.

    Raises:
        ConfigError: there are no atoms from a low to a higher return.
    """

    def __init__(self, config: Any) -> None:
        if config.num_atoms < 2 or not config.min_return < config.max_return:
            raise ConfigError(
                f"algorithm.num_atoms is {config.num_atoms}, from min_return={config.min_return} to "
                f"max_return={config.max_return}; give at least 2 atoms, and a max_return above min_return"
            )
        self.largest = max(config.max_return, -config.min_return)
        """The outermost atom."""
        self._atoms = config.min_return, config.max_return, config.num_atoms

    def mean(self, logits: Tensor) -> Tensor:
        """Scaled returns.

        Args:
            logits: [K, N, Q], logarithms of probabilities.

        Returns:
            [K, N].
        """
        return in_full_precision(torch.matmul, logits.exp(), torch.linspace(*self._atoms, device=logits.device))

    @torch.no_grad()
    def target(self, algorithm: Any, batch: SoftBatch, both: tuple[Any, Tensor], next_log_prob: Tensor) -> Tensor:
        """The distribution of whichever target critic expects less, by moments of both ends of transitions.

        Palenicek et al. 2025, https://arxiv.org/abs/2509.25174, section 4.

        Args:
            algorithm: has `target_critic`, `temperature` and `reward_scale`.
            batch: the minibatch, N rows.
            both: observations and actions of both ends, 2N rows.
            next_log_prob: [N] nats, of the actions at the second.

        Returns:
            [N, Q].
        """
        after = slice(len(batch.reward), None)
        logits = algorithm.target_critic(*both, moments=[], rows=after).log_softmax(-1)  # [K, N, Q]
        least = self.mean(logits).argmin(0)  # [N]
        probs = logits.exp()[least, torch.arange(len(least), device=least.device)]
        cost = batch.bootstrap * algorithm.temperature() * next_log_prob
        reward = batch.reward / algorithm.reward_scale() - cost
        atoms = torch.linspace(*self._atoms, device=reward.device)
        return categorical_projection(probs, atoms, reward, batch.bootstrap)


class RewardScale(nn.Module):
    """What rewards are divided by, so that the root mean square of returns is at most half of the outermost atom.

        s = 2 √(mean r²) / (max(1 − γ, 0.001) m)

    By Minkowski's inequality the root mean square of discounted sums of rewards is at most √(mean r²) / (1 − γ), where
    rows are as likely at one time as at another; for a γ above 0.999 that bound is cut to a thousand times the root.
    The mean is a running one of the last thousand updates, and sums of n rewards have γⁿ instead of γ.

    Args:
        largest: m, the outermost atom.
    """

    count: Tensor
    mean_square: Tensor
    value: Tensor

    def __init__(self, largest: float) -> None:
        super().__init__()
        self._largest = largest
        for name in ("count", "mean_square"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))
        self.register_buffer("value", torch.ones(()))

    def forward(self) -> Tensor:
        """0-dim, greater than 0; 1 before the first rewards other than 0."""
        return self.value

    @torch.no_grad()
    def merge(self, reward: Tensor, discount: Any) -> None:
        """Takes rewards into account from now on.

        Args:
            reward: [N].
            discount: of what follows them.
        """
        self.count += 1
        share = (1 / self.count).clamp(min=1e-3)
        self.mean_square.lerp_(reward.double().square().mean(), share)
        bound = (self.mean_square.sqrt() + 1e-8) / max(1 - float(discount), 1e-3)
        self.value.copy_(torch.where(self.mean_square > 0, 2 * bound / self._largest, 1.0))
