"""Evolution strategies: ascends returns without any gradient of the policy.

Paper: Salimans et al. 2017, https://arxiv.org/abs/1703.03864, algorithm 2 with the mirrored sampling and rank-based
fitness shaping of section 2.1. Departures: every lane of the environment acts with a perturbation of its own during one
unroll, and is scored by the episodes that lie inside it; parameters are not regularised unless `weight_decay` is given.
A lane without rows, of a late worker, is left out.
"""

import logging
from dataclasses import dataclass, field

import torch
from torch import Tensor

from palaestra.algorithms.algorithm import Algorithm, UpdateInfo
from palaestra.algorithms.config import AlgorithmConfig, NotNegative, Positive
from palaestra.core import Batch, ConfigError, DataSource, OnPolicy, Schedule, SpecTree, StepType
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.ops import centered_ranks, episode_returns
from palaestra.policies import Phase, PopulationPolicy

__all__ = ["EvolutionStrategies", "EvolutionStrategiesConfig"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EvolutionStrategiesConfig(AlgorithmConfig):
    """Hyperparameters of `EvolutionStrategies`. The population is the number of environments, even in each worker."""

    learning_rate: NotNegative[Schedule] = 0.02
    """Step size of Adam; a number or a schedule."""
    unroll_length: Positive[float] = 500
    """Time steps that every perturbation is tried for; some episodes should fit."""
    noise_std: Positive[float] = 0.1
    """Sigma: standard deviation of the perturbations, units of the parameters."""
    weight_decay: NotNegative[float] = 0.0
    """Pull of the parameters towards 0, in proportion to them."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by their running mean and variance."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(32,)))
    """Policy network."""

    plan_class = OnPolicy


class EvolutionStrategies(Algorithm[PopulationPolicy, EvolutionStrategiesConfig]):
    """Moves the parameters towards those perturbations that got more return than others.

    Raises:
        ConfigError: the action space is neither.
    """

    config_class = EvolutionStrategiesConfig
    usual_lanes = 32
    stored_fields = ("seed",)

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: EvolutionStrategiesConfig) -> None:
        (layers,) = config.network.parts("policy")
        self.policy = PopulationPolicy.build(
            observation_spec, action_spec, layers, normalize=config.normalize_observation
        )
        if others := sorted(set(config.optimizers) - {"policy"}):
            raise ConfigError(
                f"one optimizer steps all parameters; leave out algorithm.optimizers.{others[0]}, or give "
                "algorithm.optimizers.policy"
            )
        self.policy.noise_std = config.noise_std
        adam = OptimizerOption("adam", {"lr": config.learning_rate, "weight_decay": config.weight_decay})
        self.model = CoreModel({"policy": self.policy.network}, {"policy": adam})

    def update(self, source: DataSource) -> UpdateInfo:
        """One step: g = 1 / (B sigma) times the sum of u_b eps_b, with centred ranks u of the returns.

        Where fewer than two lanes have rows, nothing is learned, and a warning logged.

        Args:
            source: an unroll of all lanes; its rows tell the perturbation that acted.

        Raises:
            ConfigError: there is only one lane.
            NonFiniteError: the step is NaN or infinite; it was not made.
        """
        with self.policy.in_phase(Phase.UPDATE):
            unroll = self.draw(source)
            if unroll.valid.shape[1] < 2:
                raise ConfigError("evolution strategies compare perturbations; give at least 2 environments (num_envs)")
            seed, score = _tried(unroll)
            records = [self._ascend(seed, score)] if len(seed) > 1 else []
            for record in records:
                self.require_finite_gradients(record, batch=unroll)
        if not records:
            _log.warning(
                "only %d of %d environments have rows to learn from, and nothing is compared; where it happens often, "
                "raise distributed.min_finished_workers or grace_timeout_s",
                len(seed),
                unroll.valid.shape[1],
            )
        self.num_gradient_steps += len(records)
        info = UpdateInfo(self.policy_version + 1, len(records), len(records) * int(unroll.valid.sum()), records)
        self.finish_update(unroll, info)
        return info

    def _ascend(self, seed: Tensor, score: Tensor) -> dict[str, Tensor]:
        """The step, from the seeds [B] of perturbations and their scores [B]; returns its metrics."""
        noise = self.policy.noise(seed)  # [B, P]
        ascent = centered_ranks(score) @ noise / (len(score) * self.config.noise_std)
        norm = self.model.apply_vector("policy", -ascent)["policy"]
        return {"score_mean": score.mean(), "score_max": score.max(), "gradient_norm/policy": norm}


def _tried(unroll: Batch) -> tuple[Tensor, Tensor]:
    """Seeds [B] of the newest perturbation of every lane that has rows, and their scores [B]."""
    valid, seeds = unroll["valid"].bool(), unroll["policy_info"]["seed"]  # [T, B]
    age = torch.arange(1, len(valid) + 1, device=valid.device)[:, None]
    seed = seeds.gather(0, (valid * age).argmax(0, keepdim=True))  # [1, B]
    acted = valid & (seeds == seed)  # a late worker's rows of an older perturbation may lie before
    nothing = torch.zeros_like(acted[:1])
    after = torch.cat((nothing, acted))  # [T+1, B] rows that an action led to
    inside = after | torch.cat((acted, nothing))
    reward = torch.where(after, unroll["reward"], 0.0)
    step_type = torch.where(inside, unroll["step_type"], int(StepType.MID))
    lanes = valid.any(0)
    return seed[0, lanes], episode_returns(reward[:, lanes], step_type[:, lanes])
