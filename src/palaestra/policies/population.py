"""`PopulationPolicy`: every lane acts with parameters of its own."""

from typing import Any, final

import torch
from torch import Tensor, nn

from palaestra.core import Batch, ConfigError, DiscreteSpec, ShapeError, SpecTree
from palaestra.nn import Network, NetworkConfig
from palaestra.ops import greedy_action
from palaestra.policies.actions import BoxHead, ChoiceHead, Head, require_discrete
from palaestra.policies.normalizer import ObservationNormalizer
from palaestra.policies.policy import NetworkPolicy, PolicyStep
from palaestra.policies.squashed import require_box

__all__ = ["PopulationPolicy"]

_SEEDS = 1 << 24  # float32 holds every integer below
_STRIDE = 0x9E3779B97F4A7C15  # far apart for neighbouring versions


@final
class PopulationPolicy(NetworkPolicy):
    """A deterministic policy whose parameters are disturbed while it collects, in each lane in another way.

        θ_b = θ + s_b σ ε(seed_b),   ε ~ N(0, 1),   s = +1, −1, +1, −1, ...

    Lanes 2i and 2i + 1 share a seed and have opposite signs (Salimans et al. 2017, https://arxiv.org/abs/1703.03864,
    section 2, mirrored sampling). New seeds are drawn with every policy version. `behaviour` tells each row's seed,
    with its sign, and `noise` gives ε again from it: so a learner needs no more than the rows.

    Args:
        network: observation [..., *observation] -> [..., A].
        observation_spec: what an observation looks like, without leading dimensions.
        action_spec: discrete, or a box with finite bounds.
        normalizer: applied to every observation.

    Raises:
        ConfigError: the action space is neither.

    Examples:
        >>> import numpy as np
        >>> from palaestra.core import TensorSpec
        >>> policy = PopulationPolicy.build(TensorSpec((4,)), DiscreteSpec(num=2))
        >>> policy(np.zeros((3, 4))).shape
        (3,)
    """

    behaviour_fields = ("seed",)

    def __init__(
        self,
        network: nn.Module,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        super().__init__(network, observation_spec, action_spec, normalizer=normalizer)
        self.noise_std = 0.0
        """σ, units of the parameters."""
        self._discrete = isinstance(action_spec, DiscreteSpec)
        self._seeds = torch.zeros(0)  # [B], of the version they were drawn for
        self._seeds_version = -1
        self._population: dict[str, Tensor] = {}

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head:
        if isinstance(action_spec, DiscreteSpec):
            return ChoiceHead(require_discrete(cls.__name__, action_spec))
        return BoxHead(require_box(cls.__name__, action_spec), squashed=True)

    @classmethod
    def network_for(cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> nn.Module:
        return Network(observation_spec, cls.action_head(observation_spec, action_spec).size, config)

    def noise(self, seed: Tensor) -> Tensor:
        """The directions in which parameters are disturbed.

        Args:
            seed: [B] seeds with their signs, as `behaviour` tells them.

        Returns:
            [B, P] signed ε, in the order of the network's parameters.

        Raises:
            ConfigError: a seed is 0, which none is: no policy acted on that row.
        """
        if not seed.all():
            raise ConfigError(f"{seed.tolist()} has a seed 0, which no perturbation has; give those of rows acted on")
        size = sum(parameter.numel() for parameter in self.network.parameters())
        rows = []
        for number in seed.tolist():
            generator = torch.Generator().manual_seed(int(abs(number)))
            rows.append(torch.randn(size, generator=generator) * (1.0 if number > 0 else -1.0))
        return torch.stack(rows).to(self.device)

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        if not (explore and self.noise_std):
            return PolicyStep(self._action(self._outputs(observation), observation), state)
        normalized = self.normalize(observation)
        lanes = len(normalized)
        if self._seeds_version != self.version:
            self._disturb(lanes)
        elif len(self._seeds) != lanes:
            raise ConfigError(
                f"{lanes} lane(s) were to act after {len(self._seeds)}, but each lane of a population has parameters "
                "of its own, so all act together until the next update; leave out env.num_ready"
            )
        outputs = torch.func.vmap(self._of_one)(self._population, normalized)
        return PolicyStep(self._action(outputs, observation), state)

    def _of_one(self, parameters: dict[str, Tensor], observation: Any) -> Tensor:
        return torch.func.functional_call(self.network, parameters, (observation,))

    def _drawn(self, lanes: int) -> Tensor:
        """New seeds [B]; they follow from the policy's, and its version, so that a run that is cut has the same."""
        generator = torch.Generator().manual_seed((self.generator.initial_seed() + self.version * _STRIDE) % 2**63)
        pairs = torch.randint(1, _SEEDS, ((lanes + 1) // 2,), generator=generator)
        return torch.stack((pairs, -pairs), 1).reshape(-1)[:lanes].float()

    def _disturb(self, lanes: int) -> None:
        """Draws new seeds, and the parameters of every lane from them."""
        self._seeds, self._seeds_version = self._drawn(lanes), self.version
        noise = self.noise(self._seeds)
        self._population, start = {}, 0
        for name, parameter in self.network.named_parameters():
            part = noise[:, start : start + parameter.numel()].reshape(lanes, *parameter.shape)
            self._population[name] = parameter.detach() + self.noise_std * part
            start += parameter.numel()

    def _action(self, outputs: Tensor, observation: Any) -> Tensor:
        if not self._discrete:
            return outputs.tanh()
        return greedy_action(outputs, self.action_mask(observation))

    def describe(self, observation: Any, action: Any, state: Any, first: Tensor | None) -> Batch:
        lanes = action.shape[: action.ndim - len(self.raw_action_spec.shape)]
        acted = self._seeds_version == self.version  # else these are of before the run was cut
        seeds = self._seeds if acted else self._drawn(lanes[-1])
        if lanes[-1:] != seeds.shape:
            raise ShapeError(
                f"actions of shape {list(action.shape)} are to be described, and the newest ones were of "
                f"{len(seeds)} lanes; give the rows of all of them, [..., {len(seeds)}]"
            )
        return Batch.of({"seed": seeds.expand(lanes)})
