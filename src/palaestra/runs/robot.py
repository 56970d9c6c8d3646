"""`RobotLearner`: runs of robots, whose agents collect and say when their tasks learn."""

import copy
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from palaestra.algorithms import Algorithm, AlgorithmConfig, objective_of
from palaestra.buffers import ReplayBuffer
from palaestra.config.config import ExperimentConfig
from palaestra.core import ConfigError, TensorSpec, TimeStep, refuses
from palaestra.distributed import DistributedConfig, WorkersView
from palaestra.envs import EnvConfig, EnvironmentWrapper, SingleEnvironment, load_lane
from palaestra.envs.create import is_pool
from palaestra.nn.config import repeatable
from palaestra.policies import HeldNoise, Policy, PopulationPolicy, RandomPolicy, load_weights
from palaestra.robots import AgentFactory, ComputationTask, ModelPolicy, Robot, RobotCollector, evaluate_robot
from palaestra.rollout import Evaluation, returns_of_variants
from palaestra.runs import learner, making
from palaestra.runs.learner import Collecting, Evaluate, Learner, Scene
from palaestra.training import PolicyManager, policy_folder

__all__ = ["RobotLearner"]


class RobotLearner(Learner):
    """The tasks of a robot."""

    @cached_property
    def _made(self) -> tuple[Robot, TensorSpec]:
        robot, (_, _, reward_spec) = making.make_from_specs(self.config)
        return robot, reward_spec

    @property
    def robot(self) -> Robot:
        """Its tasks learn."""
        return self._made[0]

    @property
    def algorithms(self) -> Mapping[str, Algorithm[Any, Any]]:
        return self.robot.algorithms

    @cached_property
    def manager(self) -> PolicyManager:
        return self.robot

    @refuses(ConfigError)
    def require(self) -> Iterator[str]:
        making.refuse_eval_vectorization(self.config, "a robot is")
        name, used = self.config.algorithm_name, ("runtime", "num_workers", "address")
        unused = [field.name for field in dataclasses.fields(DistributedConfig) if field.name not in used]
        given = _changed("distributed", self.config.distributed, unused)
        given += _changed("env", self.config.env, ("timeout_s", "reset_timeout_s", "strict"))
        if given:
            yield (
                f"{name} is a robot, whose tasks learn in the process of the run when its agents say so, and whose "
                "agents env.on_fault, env.max_restarts and robot.timeout_s watch over; leave out "
                f"{', '.join(given)}"
            )
        if given := _changed("buffer", self.config.buffer, ("compression",)):
            yield f"{name} is a robot, whose tasks make buffers of their own; leave out {given[0]}"
        if given := _changed("env", self.config.env, ("inputs", "info", "untransformed", "auto_reset")):
            yield (
                f"{name} is a robot, whose tasks choose themselves what they see and store, and whose agents begin "
                f"their episodes themselves; leave out {', '.join(given)}"
            )
        super().require()
        self.refuse_hindsight(f"{name} is a robot, whose tasks are given their samplers where they are made")

    @refuses(ConfigError)
    def require_new(self) -> Iterator[str]:
        yield from self.config.env.unheeded(as_one=is_pool(self.config.env))
        config, name, (robot, reward_spec) = self.config.algorithm, self.config.algorithm_name, self._made
        heeded = [task.algorithm.config.optimizers for task in robot.tasks.values()]
        idle = [part for part, one in config.optimizers.items() if all(own.get(part) != one for own in heeded)]
        if idle and not _declares(type(config), "optimizers"):
            yield (
                f"{name} is a robot, whose tasks are given their optimizers where they are made, and none has "
                f"algorithm.optimizers.{idle[0]}; leave it out, or declare `optimizers` in {type(config).__name__} "
                "where `build` hands them on in another way"
            )
        weights = objective_of(config)
        if weights and reward_spec.shape != (len(weights),):
            yield (
                f"algorithm.rewards.weights has {len(weights)} entries, by which evaluations are weighed, but the "
                f"environment's rewards have the shape {list(reward_spec.shape)}; give one weight for each reward of a "
                "vector, and none for a number"
            )
        for task_name, task in robot.tasks.items():
            yield from _refused(task_name, task, self.config.env.num_envs)

    def begun(self) -> None:
        self.robot.sync()

    def load_data(self, *, new: bool = False) -> dict[str, ReplayBuffer]:
        return {}

    def buffers(self, *, fragments: bool = False) -> NoReturn:
        raise ConfigError(
            f"{self.config.algorithm_name} is a robot, whose tasks have data of kinds of their own: none to export"
        )

    @contextmanager
    def collecting(self, data: Mapping[str, ReplayBuffer]) -> Iterator[Collecting]:
        config, env = self.config, self.config.env
        if config.offline.data is not None:
            raise ConfigError(f"{config.algorithm_name} is a robot, whose agents collect; leave out offline.data")
        if env.vectorization not in ("auto", "serial"):
            raise ConfigError(
                f"env.vectorization is {env.vectorization}, but each agent of a robot has an environment of its own; "
                "leave it out, and give --runtime process for agents in worker processes"
            )
        remote = config.distributed.runtime not in (None, "local")  # threads of this process otherwise
        with learner.make_runtime(config.distributed) if remote else nullcontext() as runtime:
            make_env, number = functools.partial(load_lane, env), config.distributed.num_workers
            own: dict[str, Any] = {"seed": config.run.seed, "config": config.robot}
            collector = RobotCollector(self.robot, make_env, env.num_envs, **own, runtime=runtime, num_workers=number)
            collector.on_fault, collector.max_restarts = env.on_fault, env.max_restarts
            with collector:
                yield Collecting(collector, collector, views=(WorkersView(collector),))

    def evaluation(self) -> Evaluate:
        return functools.partial(_evaluate, self.config, self._evaluated)

    @property
    def _evaluated(self) -> AgentFactory:
        """Makes one agent to be evaluated."""
        make_env = functools.partial(load_lane, self.config.env.for_evaluation(1))
        return self.robot.agents(make_env, 1, seed=self.config.run.seed, stream="evaluation")

    def kept_policies(self, path: Path) -> dict[str, Policy]:
        policies = self.policies
        for name, policy in policies.items():
            if not isinstance(policy, RandomPolicy):  # a task that only watches has kept none
                policies[name] = copy.deepcopy(policy).eval()  # of classes and modules of the robot's own
                load_weights(policies[name], policy_folder(path / "policy", name))
        return policies

    def play(self, policies: Mapping[str, Policy], *, episodes: int, seed: int, window: bool) -> Iterator[Scene]:
        films: list[list[np.ndarray]] = []
        drawn = self.config.env.for_evaluation(1, render_mode="rgb_array")
        factory = dataclasses.replace(
            self._evaluated, make_env=lambda lane: _Filmed(load_lane(drawn, lane), films), seed=seed
        )
        returns = evaluate_robot(factory, policies, episodes=episodes).returns
        for number, film in enumerate(films):
            for picture in film[:-1]:
                yield Scene(picture, [], [])
            yield Scene(film[-1], [], [float(earned) for earned in returns[number : number + 1]])

    def record(
        self, policies: Mapping[str, Policy], env: EnvConfig, directory: str | Path, *, steps: int, **options: Any
    ) -> NoReturn:
        raise ConfigError(
            f"{self.config.algorithm_name} is a robot, whose tasks see and do other things than a policy of its "
            "environment"
        )


class _Filmed(EnvironmentWrapper):
    """Keeps a picture of every step."""

    def __init__(self, env: SingleEnvironment, films: list[list[np.ndarray]]) -> None:
        super().__init__(env)
        self._films = films

    def begin_episode(self, seed: int) -> TimeStep:
        time_step = self.env.begin_episode(seed)
        self._films.append([self.env.render()])
        return time_step

    def advance(self, action: Any) -> TimeStep:
        time_step = self.env.advance(action)
        self._films[-1].append(self.env.render())
        return time_step


def _evaluate(
    config: ExperimentConfig,
    factory: AgentFactory,
    policies: Mapping[str, Policy],
    *,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    **options: Any,
) -> Evaluation:
    """Agents decide when an episode ends, so that the time limit of an evaluation means nothing here."""
    if not deterministic:
        raise ConfigError(
            "a robot is evaluated with its most probable or most valuable actions only; leave out --stochastic"
        )
    num = learner.evaluation_count(config, episodes)
    make_env = functools.partial(load_lane, config.env.for_evaluation(num))
    factory = dataclasses.replace(factory, make_env=make_env, num_agents=num, seed=seed)
    evaluation = evaluate_robot(factory, policies, episodes=episodes)
    if evaluation.rewards:
        evaluation = evaluation.weighted(objective_of(config.algorithm))
    evaluation.parts.update(returns_of_variants(evaluation, len(config.env.variants)))
    return evaluation


def _refused(name: str, task: ComputationTask, num_agents: int) -> Iterator[str]:
    """What a task of a new run cannot be."""
    policy = task.algorithm.policy
    if isinstance(policy, ModelPolicy):
        repeatable(policy.network, f"the module of the task {name!r}")
    elif not isinstance(policy, RandomPolicy):  # these maximise nothing
        task.algorithm.require_reward(task.reward_spec)
    if isinstance(policy.exploration, HeldNoise) and num_agents > 1:
        yield (
            f"the task {name!r} holds one batch's noise for the next ones, and requests of several agents come in "
            "batches of any size and order; draw it in each step (longest_noise=1), or give --env.num-envs 1"
        )
    if isinstance(policy, PopulationPolicy):
        yield (
            f"the task {name!r} disturbs each row of a batch in its own way ({type(task.algorithm).__name__}), and "
            "requests of agents come in any order; give it another algorithm"
        )


def _declares(kind: type[Any], name: str) -> bool:
    """Whether a robot's own settings have a field of this name, besides that of all algorithms."""
    own = [base for base in kind.__mro__ if base not in AlgorithmConfig.__mro__]
    return any(name in vars(base).get("__annotations__", {}) for base in own)


def _changed(section: str, given: Any, names: Iterable[str]) -> list[str]:
    """The settings that differ from the defaults, by their whole names."""
    default = type(given)()
    return [f"{section}.{name}" for name in names if getattr(given, name) != getattr(default, name)]
