"""FQL, flow Q-learning: what a flow imitates, a policy of one step learns to do at once, and better.

Paper: Park et al. 2025, https://arxiv.org/abs/2502.02538, section 4, algorithm 1; numbers as in its code. Chunks of
actions are those of Li et al. 2025, https://arxiv.org/abs/2507.07969. Departures:
where values are scaled, by their mean size over all the data of an update, before its first gradient step; actions of
policies that have to be deterministic (evaluated, exported) are made of the noise 0 instead of random noise; chunks
that an end cuts are learned from; critics' layers are normalised before their activation, the authors' behind it.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, ConfigError, DataSource, Offline, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, NetworkConfig, OptimizerOption
from palaestra.ops import n_step_end, td_target
from palaestra.policies import OneStepPolicy

__all__ = ["FQL", "FQLBatch", "FQLConfig"]


@dataclass(frozen=True, kw_only=True)
class FQLConfig(AlgorithmConfig):
    """Hyperparameters of `FQL`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam, of all components; a number or a schedule."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    mini_batch_size: Positive[int] = 256
    """Transitions in a minibatch."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(hidden_sizes=(512, 512, 512, 512), activation="gelu", layer_norm=True)
    )
    """Layers of every network; they share no parameters, and `layer_norm` is of the critics alone."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping, without off-policy correction."""
    tau: Fraction[Schedule] = 0.005
    """Polyak coefficient: how far the target critics move towards the online ones in a gradient step, in [0, 1]."""
    imitation_weight: NotNegative[Schedule] = 10.0
    """Alpha: how much the squared distance to the flow's actions counts beside values."""
    normalize_value: bool = False
    """Whether values count in units of their mean size, so that the weight does not depend on that of rewards."""
    next_value: Literal["mean", "least"] = "mean"
    """What the two target critics say together."""
    flow_steps: Positive[int] = 10
    """Steps of Euler's method from noise to an action of the flow."""
    action_chunk: Positive[int] = 1
    """h, actions that are chosen at once, done one after the other, and valued together; rewards of as many steps are
    summed before bootstrapping."""

    plan_class = Offline

    @property
    def plan(self) -> Any:
        """The data these settings ask for: transitions, or windows of a chunk with all of its actions."""
        if self.action_chunk == 1:
            return self.plan_with()
        if self.n_step > 1:
            raise ConfigError(
                f"action_chunk={self.action_chunk} and n_step={self.n_step} were given; a chunk of actions sums the "
                "rewards of all of its steps: leave n_step at 1"
            )
        return self.plan_with(n_step=self.action_chunk, all_actions=True)


class FQLBatch(parts.TransitionBatch):
    """Transitions, and what is drawn for them; all [N, h A] standard normal but `time`. `action` is [N, h A], too."""

    done: Tensor
    """[N, h A] 1 where the action was taken, 0 where the episode had ended before; the action is then 0, too."""

    noise: Tensor
    """Noise of the actions at `observation`, for the flow and for the policy alike."""
    next_noise: Tensor
    """Noise of the policy's actions at `next_observation`."""
    start: Tensor
    """Noise at which the flow to the data's action begins."""
    time: Tensor
    """[N, 1] at which its velocity is compared, uniform in [0, 1)."""
    q_scale: Tensor
    """[N] what values are divided by; the same number in every row."""


class FQL(GradientAlgorithm[OneStepPolicy, FQLConfig]):
    """Imitates the data with a flow, and distils from it a policy of one step that seeks values as well.

    Raises:
        ConfigError: the action space is not one bounded box.
    """

    config_class = FQLConfig

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: FQLConfig) -> None:
        actor, flow, critic = config.network.parts("actor", "flow", "critic")
        actor, flow = (dataclasses.replace(one, layer_norm=False) for one in (actor, flow))
        self.policy = OneStepPolicy.build(
            observation_spec, action_spec, actor, normalize=config.normalize_observation, chunk=config.action_chunk
        )
        size = config.action_chunk * self.policy.raw_action_spec.size
        self.flow = EnsembleNetwork(observation_spec, size, 1, flow, action_size=size + 1)
        self.critic = EnsembleNetwork(observation_spec, 1, 2, critic, action_size=size)
        networks = {"actor": self.policy.network, "flow": self.flow, "critic": self.critic}
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        self.model = CoreModel(networks, dict.fromkeys(networks, adam))
        self.targets = Targets(self.model, {"target_critic": "critic"}, tau=config.tau)
        self.target_critic: Any = self.model.component["target_critic"]

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> Batch:
        """Reduces n-step windows to transitions, and measures the size of the data's values where it counts."""
        found = parts.n_step_transitions(batch, self.value_of("gamma"))
        done = torch.ones_like(found.action)
        if self.config.action_chunk > 1:
            actions = batch.actions.transpose(0, 1)  # [N, h, A]
            before = torch.arange(actions.shape[1], device=actions.device) < n_step_end(batch.step_type).unsqueeze(-1)
            done = before.unsqueeze(-1).expand(actions.shape).flatten(1).to(actions.dtype)
            found = found.replace(action=actions.flatten(1) * done)
        scale = torch.ones(())
        if self.config.normalize_value:
            scale = self.critic(self.policy.normalize(found.observation), found.action).abs().mean() + 1e-6
        return Batch.of({**dict(found.items()), "done": done, "q_scale": scale.expand(len(found.reward))})

    def noise(self, batch: Batch, generator: torch.Generator) -> FQLBatch:
        """What actions are made of, and where flows are compared."""
        drawn = torch.empty(3, *batch["action"].shape).normal_(generator=generator)
        time = torch.rand(len(drawn[0]), 1, generator=generator)
        names = dict(zip(("noise", "next_noise", "start"), drawn, strict=True))
        return FQLBatch.of({**dict(batch.items()), **names, "time": time})

    def losses(self, batch: FQLBatch) -> Losses:
        """Algorithm 1: of the critics, of the flow, and of the policy, which follows both."""
        observation = self.policy.normalize(batch.observation)
        q = self.critic(observation, batch.action).squeeze(-1)  # [2, N]
        place = torch.lerp(batch.start, batch.action, batch.time)
        velocity = self.flow(observation, torch.cat((place, batch.time), -1))[0]
        action = self.policy.made_of(observation, batch.noise)
        distance = (action - self.flowed(observation, batch.noise)).square().mean()
        value = self.critic(observation, action.clamp(-1.0, 1.0)).squeeze(-1).mean(0)
        terms = {
            "critic": (q - self._target(batch)).square().mean(),
            "flow": (batch.done * (velocity - (batch.action - batch.start)).square()).mean(),
            "actor": self.value_of("imitation_weight") * distance - (value / batch.q_scale).mean(),
        }
        return Losses(terms, {"q_mean": q.mean(), "distance": distance})

    @torch.no_grad()
    def flowed(self, observation: Any, noise: Tensor) -> Tensor:
        """The actions to which the flow leads from noise: those of the data.

        Args:
            observation: normalised, leaves [N, *observation].
            noise: [N, h A] standard normal.

        Returns:
            [N, h A] raw actions in [-1, 1].
        """
        steps, action = self.config.flow_steps, noise
        for step in range(steps):
            time = torch.full_like(noise[..., :1], step / steps)
            action = action + self.flow(observation, torch.cat((action, time), -1))[0] / steps
        return action.clamp(-1.0, 1.0)

    @torch.no_grad()
    def _target(self, batch: FQLBatch) -> Tensor:
        """[N] reward and discounted value of what the policy would do next."""
        after = self.policy.normalize(batch.next_observation)
        action = self.policy.made_of(after, batch.next_noise).clamp(-1.0, 1.0)
        q = self.target_critic(after, action).squeeze(-1)
        value = q.amin(0) if self.config.next_value == "least" else q.mean(0)
        return td_target(value, batch.reward, batch.bootstrap)
