"""Rewards learned from demonstrations: adversarial imitation, and adversarial inverse reinforcement learning.

A discriminator learns to tell demonstrated transitions from those of the policy; the policy is rewarded where it is
taken for the demonstrator. Papers: Ho and Ermon 2016, https://arxiv.org/abs/1606.03476 (GAIL); Fu et al. 2018,
https://arxiv.org/abs/1710.11248 (AIRL); of replay, Kostrikov et al. 2019, https://arxiv.org/abs/1809.02925.
"""

from typing import Any, ClassVar, cast, final

import torch
from torch import Tensor
from torch.nn.functional import softplus

from palaestra.algorithms.config import BonusConfig
from palaestra.algorithms.exploration_bonus import CuriosityModule, LearnedReward, RandomNetworkDistillation, own_reward
from palaestra.core import Batch, ConfigError, Plan, Replay, RunSeeds, schedule_value, seeded_initialisation
from palaestra.core.tree import to_device, tree_leaves, tree_map
from palaestra.nn import CoreModel, Network, NetworkConfig, OptimizerOption, without_mask
from palaestra.ops import Moments, merge
from palaestra.policies import Policy, StochasticPolicy

__all__ = ["AdversarialReward", "bonus_of"]

_LEAST = 1e-12  # under a root, whose slope at 0 is infinite


@final
class AdversarialReward(LearnedReward):
    """Takes the place of the environment's rewards: how much a transition looks like a demonstrated one.

        GAIL: D = σ(f(s, a)),  r = −log(1 − D)
        AIRL: D = exp f / (exp f + π(a|s)),  f = g(s, a) + γ h(s') − h(s),  r = log D − log(1 − D) = f − log π(a|s)
        loss = −½ log D(demonstrated) − ½ log(1 − D(policy)) + λ/2 (‖∇f(mixed)‖ − 1)²

    Departures: observations are normalised by statistics of the policy's and the demonstrated ones in equal parts; the
    penalty of gradients, between pairs of both, is that of Kostrikov et al. 2019; rewards of GAIL are positive, so that
    episodes which end early are worth less; h of the state behind an end counts as any other.

    Args:
        config: see `BonusConfig`.
        policy: which acts.
        gamma: the algorithm's discount at the start, of AIRL's h.

    Raises:
        ConfigError: AIRL was asked of a policy that says no probabilities, or has a memory.
    """

    replaces: ClassVar[bool] = True

    def __init__(self, config: BonusConfig, policy: Policy, gamma: float) -> None:
        super().__init__(config, policy.observation_spec)
        self._policy, self._gamma = policy, gamma
        self._infers = config.kind == "airl"
        if self._infers and (policy.state_spec or not isinstance(policy, StochasticPolicy)):
            raise ConfigError(
                f"algorithm.bonus.kind airl needs the probabilities of single actions, which {type(policy).__name__} "
                f"{'says with a memory alone' if policy.state_spec else 'does not say'}; give gail, or "
                f"{'leave out network.recurrent' if policy.state_spec else 'an algorithm such as ppo'}"
            )
        layers = NetworkConfig(hidden_sizes=config.hidden_sizes, activation="tanh")
        pair = {"observation": without_mask(policy.observation_spec), "action": policy.action_spec}
        self.trained["reward"] = Network(pair, 1, layers)
        if self._infers:
            self.trained["potential"] = Network(policy.observation_spec, 1, layers)
        self._demonstrated: Batch | None = None
        self._shown: Moments | None = None
        self.data: Any = None
        """The buffer with what is imitated, of which checkpoints have the hash."""

    def imitate(self, transitions: Batch, data: Any = None) -> None:
        """Takes what is to be imitated; before the first update, and again after a checkpoint is loaded.

        Args:
            transitions: `observation`, `action` as the policy samples it, and `next_observation`, leaves [N, ...].
            data: the buffer that they were read from: a run resumes with the one that it began with.
        """
        self._demonstrated, self._shown, self.data = transitions, None, data

    def seen_moments(self, rows: Any, valid: Tensor) -> Moments:
        """Of these transitions and of the demonstrated ones in equal parts, as the discriminator sees them."""
        own = super().seen_moments(rows, valid)
        if self._shown is None and self._demonstrated is not None:
            normalizer: Any = self.fixed["normalizer"]
            self._shown = Moments(*to_device(normalizer.increment(self._demonstrated["observation"]), valid.device))
        if self._shown is None:
            return own
        return merge(own, Moments(own.count, self._shown.mean, self._shown.m2 * (own.count / self._shown.count)))

    def transitions(self, drawn: Any, generator: torch.Generator) -> Batch:
        """With a demonstrated transition, and a share to mix both by, beside each one."""
        if self._demonstrated is None:
            raise ConfigError(
                f"algorithm.bonus.kind {self.config.kind} needs demonstrations: name some by offline.data, or call "
                "algorithm.bonus.imitate"
            )
        rows = super().transitions(drawn, generator)
        shape, device = drawn["reward"][1:].shape, drawn["reward"].device
        shape = shape[1:] if "next_observation" in drawn else shape
        count = len(next(iter(tree_leaves(self._demonstrated))))
        places = torch.randint(count, shape, generator=generator)
        shown = tree_map(lambda leaf: leaf[places.to(leaf.device)].to(device), self._demonstrated)
        mix = torch.rand(shape, generator=generator).to(device)
        return rows.replace(demonstrated=shown, mix=mix)

    def rewards(self, rows: Any, valid: Tensor) -> Tensor:
        logit = self._logit(rows, self._seen(rows))
        return logit if self._infers else softplus(logit)

    def losses(self, rows: Any) -> Tensor:
        shown = rows["demonstrated"]
        here, there = self._seen(rows), self._seen(shown)
        apart = 0.5 * (softplus(self._logit(rows, here)) + softplus(-self._logit(shown, there)))
        return apart + self._penalty(here, there, rows["mix"]) if self.config.gradient_penalty else apart

    def _seen(self, rows: Any) -> Batch:
        """The networks' input: normalised observations, and actions as they are executed."""
        action = self._policy.env_action(rows["action"])
        fields = {"observation": self.normalized(rows["observation"]), "action": action}
        if self._infers:
            fields["next_observation"] = self.normalized(rows["next_observation"])
        return Batch.of(fields)

    def _f(self, seen: Any) -> Tensor:
        f = self.trained["reward"](Batch.of({"observation": seen["observation"], "action": seen["action"]}))
        if self._infers:
            potential = self.trained["potential"]
            f = f + self._gamma * potential(seen["next_observation"]) - potential(seen["observation"])
        return f.squeeze(-1)

    def _logit(self, rows: Any, seen: Any) -> Tensor:
        if not self._infers:
            return self._f(seen)
        with torch.no_grad():
            distribution = cast(StochasticPolicy, self._policy).distribution(rows["observation"])
            log_prob = distribution.log_prob(rows["action"])
        return self._f(seen) - log_prob

    def _penalty(self, here: Any, there: Any, mix: Tensor) -> Tensor:
        """[...] how far the gradient between a pair of both is from one of length 1."""
        free: list[Tensor] = []

        def mixed(one: Tensor, other: Tensor) -> Tensor:
            if not one.dtype.is_floating_point:  # there is nothing in between
                return one
            share = mix.reshape(*mix.shape, *(1,) * (one.ndim - mix.ndim))
            free.append((share * one + (1 - share) * other).detach().requires_grad_())
            return free[-1]

        between: Any = tree_map(mixed, here, there)
        # masks, and keys that the policy does not see, have no slope
        slopes = torch.autograd.grad(self._f(between).sum(), free, create_graph=True, allow_unused=True) if free else ()
        squares = [one.reshape(*mix.shape, -1).square().sum(-1) for one in slopes if one is not None]
        if not squares:
            return torch.zeros_like(mix)
        square = torch.stack(squares).sum(0)
        return 0.5 * self.config.gradient_penalty * ((square + _LEAST).sqrt() - 1).square()


def bonus_of(config: Any, policy: Policy, model: CoreModel, plan: Plan, seeds: RunSeeds) -> LearnedReward | None:
    """The learned reward that an algorithm's configuration asks for in its field `bonus`, if it has one.

    Args:
        config: of an algorithm.
        policy: which acts.
        model: is given the bonus's components and their optimizer.
        plan: the data that the algorithm wants.

    Raises:
        ConfigError: it asks for windows of several steps, whose middle observations are not drawn; or for what is no
            learned reward.
    """
    settings: BonusConfig | None = getattr(config, "bonus", None)
    if settings is None or settings.kind is None:
        return None
    if isinstance(plan, Replay) and plan.mini_batch_length == 1 and plan.n_step > 1:
        raise ConfigError(f"algorithm.bonus needs n_step=1 and was given n_step={plan.n_step}")
    with seeded_initialisation(seeds.integer("initialisation", 1)):
        if settings.kind == "rnd":
            bonus: LearnedReward = RandomNetworkDistillation(settings, policy.observation_spec)
        elif settings.kind == "icm":
            bonus = CuriosityModule(settings, policy.observation_spec, policy.raw_action_spec)
        elif settings.kind in ("gail", "airl"):
            bonus = AdversarialReward(settings, policy, schedule_value(getattr(config, "gamma", 1.0), 0.0))
        else:
            bonus = own_reward(settings, policy.observation_spec, policy.raw_action_spec)
    option = OptimizerOption("adam", {"lr": settings.learning_rate})
    model.extend({"bonus": bonus.trained, "bonus_fixed": bonus.fixed}, {"bonus": option})
    return bonus
