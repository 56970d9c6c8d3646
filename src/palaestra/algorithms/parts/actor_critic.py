"""Targets and noise of off-policy actors and critics, soft and deterministic."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from palaestra.algorithms.parts.memory import Seen
from palaestra.algorithms.parts.transitions import TransitionBatch
from palaestra.core import Batch
from palaestra.ops import mean_of, td_target

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
    """What the target critics say that actions were worth, entropy included. Haarnoja et al. 2018, equations (3), (6).

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
    """What the target networks say that actions were worth, the next one smoothed by noise where there is any.

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
