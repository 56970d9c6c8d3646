"""The memory that actor and critics of a replayed algorithm share."""

import copy
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from palaestra import policies
from palaestra.algorithms.parts.transitions import n_step_transitions
from palaestra.algorithms.parts.unrolls import state_of
from palaestra.core import Batch, ConfigError
from palaestra.ops import remembered_starts


class SequenceBatch(Batch):
    """One minibatch of sequences, burn-in included; the noise of transitions is [L, N, A] here."""

    observation: Any
    """[L+1, N, ...]."""
    step_type: Tensor
    """[L+1, N]."""
    action: Any
    """[L, N, A]."""
    reward: Tensor
    """[L, N] for the action of the row."""
    bootstrap: Tensor
    """[L, N] what the next row's value counts: gamma; 0 where the episode terminated there."""
    state: Any
    """[1, N, ...] the memory before row 0, as it was stored."""
    valid: Tensor
    """[L, N] 0 in the burn-in, at ends of episodes, and where the memory is another episode's."""
    index: Tensor
    """[N]."""


class Seen(NamedTuple):
    """What actor and critics look at: normalised observations, or what a memory makes of them; [N, ...]."""

    batch: Any
    """Transitions of the rows that count."""
    now: Any
    """Where actions were taken; gradients of the critics' loss train the memory through it."""
    fixed: Any
    """The same without gradient, for the actor's loss."""
    after: Any
    """Behind the actions, without gradient."""
    target_after: Any
    """The same through the target memory."""


@final
class Remembered:
    """The memory that actor and critics of an off-policy algorithm share, and its target; nothing without a memory.

    The critics' loss alone trains it (Yarats et al. 2021, https://arxiv.org/abs/1910.01741, section 4.3, for an encoder
    of pictures). Sequences begin with the hidden state as it was stored, and burn in (Kapturowski et al. 2019, section
    3, https://openreview.net/forum?id=r1lyTjAqYX).

    Args:
        policy: whose network may have a memory.
        config: of the algorithm.

    Raises:
        ConfigError: a setting does not go together with a memory.
    """

    def __init__(self, policy: policies.NetworkPolicy, config: Any) -> None:
        self._policy, self._burn_in = policy, config.burn_in
        self.components: dict[str, nn.Module] = {}
        """Parts of the model: the memory with its encoder, and its target."""
        self.trains: dict[str, tuple[str, ...]] = {}
        """Which components the loss terms train, where that is not the one of their name."""
        self.follows: dict[str, str] = {}
        """The target memory, as `Targets` takes it."""
        network: Any = policy.network
        self.head: nn.Module = network.head if policy.state_spec else network
        """The actor apart from its memory."""
        if not policy.state_spec:
            return
        if config.n_step > 1 or config.mini_batch_length < 2 or config.network.has_separate_encoders:
            raise ConfigError(
                f"a memory was asked for with n_step={config.n_step}, mini_batch_length={config.mini_batch_length}, "
                f"network.encoder={config.network.encoder!r} and network.policy_sees or value_sees "
                f"{config.network.sees or 'not set'}; it needs n_step=1, sequences of 2 steps or more, and one encoder "
                "and the same keys for actor and critic, which share the memory (the value of ppo may see others)"
            )
        self._target: Any = copy.deepcopy(network)
        for name, of in (("memory", network), ("target_memory", self._target)):
            self.components[name] = nn.ModuleList((of.encoder, of.memory))
        self.trains, self.follows = {"critic": ("critic", "memory")}, {"target_memory": "memory"}

    def prepared(self, batch: Any, gamma: Any) -> Any:
        """What `preprocess` makes of a draw: transitions, or sequences for a memory.

        Args:
            batch: what the source drew.
            gamma: discount per env step.
        """
        if not self.components:
            return n_step_transitions(batch, gamma)
        fields = {name: batch[name] for name in ("observation", "step_type", "action", "state", "index")}
        valid = remembered_starts(batch.step_type, self._burn_in).float()  # of later episodes, too
        rows = {"reward": batch.reward[1:], "bootstrap": gamma * batch.discount[1:], "valid": valid}
        return SequenceBatch.of(fields | rows)

    def seen(self, batch: Any) -> Seen:
        """What actor and critics look at in a minibatch.

        Args:
            batch: of `prepared`, with noise.
        """
        observation = self._policy.normalize(batch.observation)
        if not self.components:
            after = self._policy.normalize(batch.next_observation)
            return Seen(batch, observation, observation, after, after)
        online = self._run(self._policy.network, observation, batch)
        with torch.no_grad():
            target = self._run(self._target, observation, batch)
        b = self._burn_in
        keep = batch.valid[b:].bool()
        acted = {name: leaf[b:][keep] for name, leaf in batch.items() if name in _ACTED}
        now, after = online[:-1][keep], online.detach()[1:][keep]
        return Seen(Batch.of(acted), now, now.detach(), after, target[1:][keep])

    def _run(self, network: Any, observation: Any, batch: Any) -> Tensor:
        """[L+1-b, N, H] what the memory makes of the rows after the burn-in, through which no gradient goes."""
        b, (state, first) = self._burn_in, state_of(batch)
        if b:
            with torch.no_grad():
                _, state = network.remember(observation[:b], state, first[:b])
        return network.remember(observation[b:], state, first[b:])[0]


_ACTED = ("action", "reward", "bootstrap", "noise", "next_noise", "env_info", "untransformed")
