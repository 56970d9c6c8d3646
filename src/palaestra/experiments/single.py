"""`SingleLearner`: runs of one policy, in environments with one agent."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

import torch

from palaestra.algorithms import Algorithm
from palaestra.buffers import ReplayBuffer
from palaestra.core import POLICY, ConfigError, MissingExtraError, RunSeeds, SpecTree, StepType, TensorSpec
from palaestra.distributed import CollectorFactory
from palaestra.envs import EnvConfig, Environment, create_environment
from palaestra.experiments.data import load_for, mixed
from palaestra.experiments.datasets import DataSummary, collect_data
from palaestra.experiments.hindsight import hindsight_sampler
from palaestra.experiments.learner import (
    Collecting,
    Evaluate,
    Learner,
    Scene,
    compile_if_asked,
    evaluate_one,
    make_from_specs,
)
from palaestra.policies import Phase, Policy, load_policy
from palaestra.rollout import Collector, OfflineData, buffer_for

__all__ = ["SingleLearner"]


class SingleLearner(Learner):
    """One policy."""

    asynchronous: ClassVar[bool] = True
    has_window: ClassVar[bool] = True

    @cached_property
    def _made(self) -> tuple[Algorithm[Any], tuple[SpecTree, SpecTree, TensorSpec]]:
        algorithm, specs = make_from_specs(self.config)
        compile_if_asked(self.config, algorithm)
        return algorithm, specs

    @property
    def algorithm(self) -> Algorithm[Any]:
        """What learns."""
        return self._made[0]

    @property
    def algorithms(self) -> Mapping[str, Algorithm[Any]]:
        return {POLICY: self.algorithm}

    @cached_property
    def _sampler(self) -> Any:
        return hindsight_sampler(self.config, self.algorithm)

    def require(self) -> None:
        super().require()
        _ = self._sampler  # an environment is played to see that hindsight is possible

    def load_data(self) -> dict[str, ReplayBuffer]:
        loaded = load_for(self.algorithm, self.config, self.config.offline.data, self.config.algorithm_name)
        return {} if loaded is None else {POLICY: loaded}

    def buffers(self) -> dict[str, ReplayBuffer]:
        observation_spec, _, reward_spec = self._made[1]
        lanes = self.config.env.num_envs
        return {POLICY: buffer_for(self.algorithm, lanes, observation_spec=observation_spec, reward_spec=reward_spec)}

    def workers(self) -> Any:
        config, (observation_spec, action_spec, _) = self.config, self._made[1]
        seeds, kind = RunSeeds(config.run.seed), cast(Any, type(self.algorithm))
        make = functools.partial(kind, observation_spec, action_spec, config.algorithm, seeds)
        number = config.distributed.num_workers
        return CollectorFactory(env=config.env, algorithm=make, num_workers=number, seed=config.run.seed)

    @contextmanager
    def collecting(self, data: Mapping[str, ReplayBuffer]) -> Iterator[Collecting]:
        with super().collecting(data) as made:
            if self._sampler is not None:
                for buffer in (*made.collector.buffers.values(), *data.values()):
                    assert isinstance(buffer, ReplayBuffer)
                    buffer.sampler = self._sampler(base=buffer.sampler)
            yield made

    @contextmanager
    def collecting_here(self, data: Mapping[str, ReplayBuffer]) -> Iterator[Collecting]:
        if self.offline:
            yield Collecting(OfflineData(data))
            return
        with create_environment(self.config.env, seed=self.config.run.seed) as env:
            collector = Collector.of(env, self.algorithm)
            if POLICY in data:
                collector.source = mixed(self.config, collector.buffer, data[POLICY])
            yield Collecting(collector, env)

    def evaluation(self) -> Evaluate:
        return functools.partial(evaluate_one, self.config)

    def kept_policies(self, path: Path) -> dict[str, Policy]:
        return {POLICY: load_policy(path / "policy")}  # without making an environment

    def play(self, policies: Mapping[str, Policy], *, episodes: int, seed: int, window: bool) -> Iterator[Scene]:
        render_mode = "human" if window else "rgb_array"
        config = dataclasses.replace(self.config.env.for_evaluation(1, render_mode=render_mode), vectorization="serial")
        try:
            env = create_environment(config, lane_seeds=[RunSeeds(seed).integer("evaluation", 1000)])
        except MissingExtraError:
            raise
        except ConfigError as error:
            raise ConfigError(f"{config.name} cannot be drawn as {render_mode!r}: {error}") from error
        with env:
            try:
                for number in range(1, episodes + 1):
                    for lines, returns in _episode(policies[POLICY], env, number):
                        yield Scene(None if window else env.render(), lines, returns)
            except Exception as error:
                if "pygame" in str(error):
                    raise MissingExtraError("pygame", "video", "drawing this environment") from error
                raise

    def record(
        self, policies: Mapping[str, Policy], env: EnvConfig, directory: str | Path, *, steps: int, seed: int
    ) -> DataSummary:
        return collect_data(policies[POLICY], env, directory, steps=steps, seed=seed)


@torch.inference_mode()
def _episode(policy: Policy, env: Environment, number: int) -> Iterator[tuple[list[str], list[float]]]:
    """What there is to say at each step, and at the last one the return."""
    time_step, state = env.reset(), policy.initial_state(1)
    total, length = 0.0, 0
    while int(time_step.step_type[0]) != StepType.LAST:
        step = policy.act(time_step, state, phase=Phase.EVAL, deterministic=True)
        action = policy.env_action(step.action)
        reward = float(time_step.reward.sum())
        said = f"reward {reward:.3g}, return {total:.4g}"
        yield [f"episode {number}, step {length}", f"action {_short(action)}", said], []
        time_step, state = env.step(action), step.state
        total, length = total + float(time_step.reward.sum()), length + 1
    yield [f"episode {number}, step {length}", "", f"the end, return {total:.4g}"], [total]


def _short(action: Any) -> str:
    """An action of one environment in a few characters."""
    if isinstance(action, torch.Tensor):
        values = action[0].flatten().tolist()
        return " ".join(f"{value:.3g}" for value in values[:6]) + (" ..." if len(values) > 6 else "")
    return " | ".join(f"{key} {_short(value)}" for key, value in action.items())
