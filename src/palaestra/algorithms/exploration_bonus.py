"""Rewards that are learned, as a part of any gradient algorithm: `LearnedReward`, and of novelty `ExplorationBonus`.

They are added to the rewards of an update, or take their place, before the algorithm's `preprocess` sees them. What
gives them learns beside the algorithm: its loss is a term of its own, of the same minibatches.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from palaestra.algorithms.config import BonusConfig
from palaestra.algorithms.parts import RunningMoments
from palaestra.core import Batch, ConfigError, SpecTree, TensorSpec, import_maker, spec_leaves
from palaestra.nn import CompositeNetwork, Network, NetworkConfig
from palaestra.ops import Moments, masked_mean, valid_starts, variance
from palaestra.policies import ObservationNormalizer
from palaestra.policies.actions import head_of

__all__ = ["CuriosityModule", "ExplorationBonus", "LearnedReward", "RandomNetworkDistillation"]

_CLIP = 5.0  # of normalised observations, in standard deviations: Burda et al. 2019, section 2.4
_EPSILON = 1e-8  # where nothing is novel
_LEAST_UNIT = 0.1  # of the mean novelty: where all rows are alike, there is no deviation to divide by


class LearnedReward(ABC):
    """A reward that is learned beside an algorithm, in its minibatches, with an optimizer of its own.

    A subclass fills `trained` and `fixed` with its networks and defines `rewards` and `losses`.

    Args:
        config: see `BonusConfig`.
    """

    trained: nn.ModuleDict
    """The networks that its loss trains: the model component `bonus`."""
    fixed: nn.ModuleDict
    """Frozen networks and running statistics: the model component `bonus_fixed`, so that checkpoints have them."""
    replaces: ClassVar[bool] = False
    """Whether the environment's rewards are not looked at."""

    def __init__(self, config: BonusConfig, observation_spec: SpecTree) -> None:
        self.config = config
        self.trained = nn.ModuleDict()
        self.fixed = nn.ModuleDict()
        if any(leaf.dtype.is_floating_point for leaf in spec_leaves(observation_spec).values()):
            for normalizer in ObservationNormalizer.for_any(observation_spec, _CLIP):  # a mask of floats is none
                self.fixed["normalizer"] = normalizer

    @abstractmethod
    def rewards(self, rows: Any, valid: Tensor) -> Tensor:
        """Bonuses of transitions, [...]; called without gradients, once for all of an update.

        Args:
            rows: `transitions`, observations not normalised.
            valid: [...] which count, 0 or 1.
        """

    @abstractmethod
    def losses(self, rows: Any) -> Tensor:
        """What learning lowers, [...], with gradients.

        Args:
            rows: `transitions`, observations not normalised.
        """

    def seen_moments(self, rows: Any, valid: Tensor) -> Moments:
        """Moments of what `normalized` has to know of from now on: by default, of where these transitions led.

        Args:
            rows: `transitions`, observations not normalised.
            valid: [...] which count, 0 or 1.
        """
        normalizer: Any = self.fixed["normalizer"]
        return normalizer.increment(rows["next_observation"], valid)

    @final
    @torch.no_grad()
    def rewarded(self, drawn: Any) -> tuple[Any, Tensor]:
        """Rewards to learn from, with statistics that take these transitions into account.

        Args:
            drawn: an unroll, sequences, or windows of one step.

        Returns:
            The data with new rewards, and the mean learned reward of the rows that may be learned from.
        """
        rows, valid = _transitions(drawn), _valid(drawn)
        if "normalizer" in self.fixed:
            normalizer: Any = self.fixed["normalizer"]
            normalizer.merge(self.seen_moments(rows, valid))
        learned = self.rewards(rows, valid) * valid
        given = drawn["reward"][1:]
        reward = learned.reshape_as(given) + (0 if self.replaces else given)
        return drawn.replace(reward=torch.cat((drawn["reward"][:1], reward))), masked_mean(learned, valid)

    def transitions(self, drawn: Any, generator: torch.Generator) -> Batch:
        """What minibatches need for `loss`: `observation`, `action` and `next_observation`, [T, B, ...] or [N, ...].

        Args:
            drawn: an unroll, sequences, or windows of one step.
            generator: of what is drawn beside, on the CPU.
        """
        return _transitions(drawn)

    @final
    def loss(self, batch: Any) -> Tensor:
        """The loss term `bonus`: the mean loss over the valid rows of a minibatch.

        Args:
            batch: a minibatch whose field `bonus` holds `transitions`.
        """
        losses, valid = self.losses(batch["bonus"]), batch.get("valid")
        return losses.mean() if valid is None else masked_mean(losses, valid)

    @final
    def normalized(self, observation: Any) -> Any:
        """Observations as the networks see them: boxes of numbers normalised, if any of the leaves is a float.

        Pictures, booleans and choices stay as they are, and so do integers without a float beside them.

        Args:
            observation: leaves [..., *observation].
        """
        return self.fixed["normalizer"](observation) if "normalizer" in self.fixed else observation


def _transitions(drawn: Any) -> Batch:
    observation = drawn["observation"]
    before, after = (
        (observation, drawn["next_observation"]) if "next_observation" in drawn else (observation[:-1], observation[1:])
    )
    return Batch.of({"observation": before, "action": drawn["action"], "next_observation": after})


def own_reward(config: BonusConfig, observation_spec: SpecTree, action_spec: SpecTree) -> LearnedReward:
    """A learned reward of the user's own.

    Args:
        config: whose `kind` is its class, or the name of it.
        observation_spec: of what the policy sees.
        action_spec: of actions as they are sampled.

    Raises:
        ConfigError: there is no such class, it is none of a `LearnedReward`, or it cannot be made with these.
    """
    kind: Any = config.kind
    if isinstance(kind, str):
        kind = import_maker(kind, "a LearnedReward", lambda made: issubclass(made, LearnedReward))
    try:
        reward = kind(config, observation_spec, action_spec)
    except TypeError as error:
        called = f"{kind.__name__}(config, observation_spec, action_spec)"
        raise ConfigError(f"algorithm.bonus.kind {config.kind!r} is called as {called}: {error}") from error
    if not isinstance(reward, LearnedReward):
        made = type(reward).__name__
        raise ConfigError(f"algorithm.bonus.kind {config.kind!r} makes a {made}; a LearnedReward is needed")
    return reward


class ExplorationBonus(LearnedReward):
    """Measures novelty, and learns to find it less novel next time.

        r' = r + weight · novelty / σ,   σ the running standard deviation of novelty, at least a tenth of its mean

    Departure from Burda et al. 2019, who divide by the deviation of discounted sums of novelty and give these a value
    of their own: novelty is part of the reward.

    A subclass fills `trained` and `fixed` with its networks and defines `novelty` and `errors`.

    Args:
        config: see `BonusConfig`.
        observation_spec: which has what may be new.
    """

    def __init__(self, config: BonusConfig, observation_spec: SpecTree) -> None:
        super().__init__(config, observation_spec)
        self.fixed["scale"] = RunningMoments()

    @abstractmethod
    def novelty(self, observation: Any, action: Any, next_observation: Any) -> Tensor:
        """Novelty of transitions, [...], in any unit; called without gradients.

        Args:
            observation: normalised, leaves [..., *observation].
            action: as sampled, leaves [..., *action].
            next_observation: like `observation`.
        """

    @abstractmethod
    def errors(self, observation: Any, action: Any, next_observation: Any) -> Tensor:
        """What learning lowers, [...], with gradients.

        Args:
            observation: normalised, leaves [..., *observation].
            action: as sampled, leaves [..., *action].
            next_observation: like `observation`.
        """

    @final
    def rewards(self, rows: Any, valid: Tensor) -> Tensor:
        novelty = self.novelty(*self._normalized(rows))
        scale: Any = self.fixed["scale"]
        scale.merge(novelty[valid.bool()])
        unit = torch.maximum(variance(scale.moments).sqrt(), _LEAST_UNIT * scale.moments.mean) + _EPSILON
        return self.config.weight * novelty / unit.float()

    @final
    def losses(self, rows: Any) -> Tensor:
        return self.errors(*self._normalized(rows))

    @final
    def network(self, observation_spec: SpecTree, num_hidden: int = 1) -> Network:
        """A network from observations to features.

        Args:
            observation_spec: of its input.
            num_hidden: how often the configured hidden layers come.
        """
        config = NetworkConfig(hidden_sizes=self.config.hidden_sizes * num_hidden, activation="relu")
        return Network(observation_spec, self.config.feature_size, config)

    def _normalized(self, rows: Any) -> tuple[Any, Any, Any]:
        return self.normalized(rows["observation"]), rows["action"], self.normalized(rows["next_observation"])


def _valid(drawn: Any) -> Tensor:
    """Which transitions lie inside one episode and are learned from; all of a window's."""
    if "next_observation" in drawn:
        return torch.ones_like(drawn["reward"][1])
    starts = valid_starts(drawn["step_type"]).to(torch.float32)
    return starts if "index" in drawn else starts * drawn["valid"]  # of later episodes in a sequence, too, for memories


_FORWARD_SHARE = 0.2  # β of equation (7) of Pathak et al. 2017


@final
class RandomNetworkDistillation(ExplorationBonus):
    """Novel is what a trained network cannot yet say about an observation that a random network says.

        novelty = mean (f̂(x') − f(x'))²

    Paper: Burda et al. 2019, https://arxiv.org/abs/1810.12894, section 2.2. Departures: pictures are scaled to [0, 1]
    and not normalised; statistics of other observations begin with the rows of the first update, not with random steps.

    Args:
        config: see `BonusConfig`.
        observation_spec: which has what may be new.
    """

    def __init__(self, config: BonusConfig, observation_spec: SpecTree) -> None:
        super().__init__(config, observation_spec)
        self.fixed["target"] = self.network(observation_spec)
        self.trained["predictor"] = self.network(observation_spec, num_hidden=2)

    def novelty(self, observation: Any, action: Any, next_observation: Any) -> Tensor:
        return self.errors(observation, action, next_observation)

    def errors(self, observation: Any, action: Any, next_observation: Any) -> Tensor:
        with torch.no_grad():
            target = self.fixed["target"](next_observation)
        return (self.trained["predictor"](next_observation) - target).square().mean(-1)


@final
class CuriosityModule(ExplorationBonus):
    """Novel is a change that could not be foreseen from observation and action, in features that an action can change.

        novelty = ½ mean (φ̂(φ(x), a) − φ(x'))²,   loss = (1 − β) (−log p(a | φ(x), φ(x'))) + β novelty

    Paper: Pathak et al. 2017, https://arxiv.org/abs/1705.05363, equations (2) to (7). Departure: φ learns from the
    first term of the loss alone.

    Args:
        config: see `BonusConfig`.
        action_spec: of actions as they are sampled, of any kind that `CompositePolicy` knows.
    """

    def __init__(self, config: BonusConfig, observation_spec: SpecTree, action_spec: SpecTree) -> None:
        super().__init__(config, observation_spec)
        size, layers = config.feature_size, NetworkConfig(hidden_sizes=config.hidden_sizes, activation="relu")
        self._action = head_of(action_spec)
        self.trained["features"] = self.network(observation_spec)
        pair = TensorSpec((2 * size,))
        self.trained["inverse"] = CompositeNetwork(pair, self._action.size, self._action.num_std, layers)
        known = {"features": TensorSpec((size,)), "action": action_spec}
        self.trained["dynamics"] = Network(known, size, layers)

    def novelty(self, observation: Any, action: Any, next_observation: Any) -> Tensor:
        features = self.trained["features"]
        return self._surprise(features(observation), action, features(next_observation))

    def errors(self, observation: Any, action: Any, next_observation: Any) -> Tensor:
        features = self.trained["features"]
        before, after = features(observation), features(next_observation)
        numbers, log_std = self.trained["inverse"](torch.cat((before, after), -1))
        inverse = -self._action.distribution(numbers, log_std, None).log_prob(action)
        surprise = self._surprise(before.detach(), action, after.detach())
        return (1 - _FORWARD_SHARE) * inverse + _FORWARD_SHARE * surprise

    def _surprise(self, before: Tensor, action: Any, after: Tensor) -> Tensor:
        foreseen = self.trained["dynamics"](Batch.of({"features": before, "action": action}))
        return 0.5 * (foreseen - after).square().mean(-1)
