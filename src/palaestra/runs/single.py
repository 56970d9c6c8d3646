"""`SingleLearner`: runs of one policy, in environments with one agent; hindsight replay in them."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch

from palaestra.algorithms import Algorithm
from palaestra.buffers import HindsightSampler, ReplayBuffer
from palaestra.config.config import ExperimentConfig
from palaestra.core import POLICY, ConfigError, MissingExtraError, RunSeeds, SpecTree, StepType, TensorSpec, refuses
from palaestra.core.plan import Offline, Replay
from palaestra.distributed import CollectorFactory, ShardedReplay
from palaestra.envs import EnvConfig, Environment, SingleEnvironment, describe, gym_env_of, row_specs, space_from_spec
from palaestra.envs.contract.spaces import sample_allowed
from palaestra.envs.create import create_environment, is_pool, load_lane
from palaestra.policies import Phase, Policy, PopulationPolicy, SearchPolicy, load_policy
from palaestra.rollout import Collector, OfflineFirst, buffer_for
from palaestra.runs import learner, making
from palaestra.runs.data import load_for, mixed
from palaestra.runs.datasets import DataSummary, collect_data
from palaestra.runs.learner import Collecting, Evaluate, PolicyLearner, Scene
from palaestra.training.learning import episodes_of_each

__all__ = ["SingleLearner"]


class SingleLearner(PolicyLearner):
    """One policy."""

    has_window: ClassVar[bool] = True

    @cached_property
    def _made(self) -> tuple[Algorithm[Any, Any], tuple[SpecTree, SpecTree, TensorSpec]]:
        algorithm, specs = making.make_from_specs(self.config)
        _going_online(algorithm, self.config, self.config.algorithm_name)
        return algorithm, specs

    @property
    def algorithm(self) -> Algorithm[Any, Any]:
        """What learns."""
        return self._made[0]

    @property
    def algorithms(self) -> Mapping[str, Algorithm[Any, Any]]:
        return {POLICY: self.algorithm}

    @cached_property
    def _sampler(self) -> Any:
        return hindsight_sampler(self.config, self.algorithm)

    @refuses(ConfigError)
    def require(self) -> Iterator[str]:
        super().require()
        env, distributed = self.config.env, self.config.distributed
        if isinstance(self.algorithm.policy, PopulationPolicy) and env.num_envs < 2:
            yield (
                f"{self.config.algorithm_name} compares perturbations, one in each environment; give at least 2, "
                "--env.num-envs"
            )
        if env.on_fault == "drop" and distributed.runtime is not None and env.num_envs == distributed.num_workers:
            yield (
                f"env.on_fault is drop, and each of {env.num_envs} workers has one environment, without which it "
                "cannot go on; give env.on_fault as restart, or several environments for each worker"
            )
        if (number := self.config.trainer.episodes_per_iteration) is not None:
            episodes_of_each(number, env.num_envs)
            if env.on_fault == "drop":
                yield (
                    "trainer.episodes_per_iteration asks every environment for episodes, and one that is dropped plays "
                    "none; give env.on_fault as restart or raise"
                )
        _ = self._sampler  # an environment is played to see that hindsight is possible

    @refuses(ConfigError)
    def require_new(self) -> Iterator[str]:
        super().require_new()
        env, name, policy = self.config.env, self.config.algorithm_name, self.algorithm.policy
        yield from env.unheeded(as_one=is_pool(env))
        if isinstance(policy, PopulationPolicy) and env.variants:
            yield (
                f"{name} ranks perturbations by what each earned in its own environment, and env.variants pay "
                "differently; leave them out, or vary inside every episode"
            )
        if policy.reads_reward and self.config.unit != "updates" and (env.train_wrappers or env.train_kwargs):
            yield (
                f"{name} asks for a return and is told rewards as it acts, which evaluations do not change; leave out "
                "env.train_wrappers and env.train_kwargs"
            )
        standardizes = getattr(self.config.algorithm, "standardize_advantage", name == "reinforce")
        rows = getattr(self.config.algorithm, "unroll_length", 2) * env.num_envs
        if standardizes and rows <= 1 and self.config.trainer.episodes_per_iteration is None:
            yield f"{name} standardises the advantages of an unroll, that of one step to 0; give unroll_length=2 or so"
        given = getattr(self.algorithm.plan, "returns", False) or isinstance(policy, SearchPolicy)
        if self.config.hindsight.share and given:
            yield (
                f"hindsight.share is {self.config.hindsight.share}, but {name} learns from returns, or from what a "
                "search found, of the goal that was given; leave hindsight out"
            )

    def load_data(self, *, new: bool = False) -> dict[str, ReplayBuffer]:
        given = self.algorithm, self.config, self.config.offline.data, self.config.algorithm_name
        loaded = load_for(*given, reward_shape=self._made[1][2].shape, new=new)
        return {} if loaded is None else {POLICY: loaded}

    def buffers(self, *, fragments: bool = False) -> dict[str, ReplayBuffer]:
        env = self.config.env
        kept: Any = {"fragments": fragments, "compression": self.config.buffer.compression}
        return {POLICY: buffer_for(self.algorithm, env.num_envs, **kept, **row_specs(env))}

    def workers(self) -> Any:
        config, (observation_spec, action_spec, _) = self.config, self._made[1]
        run, kind, number = config.run, cast(Any, type(self.algorithm)), config.distributed.num_workers
        make = functools.partial(kind, observation_spec, action_spec, config.algorithm, RunSeeds(run.seed))
        shared: Any = {"env": config.env, "num_workers": number, "seed": run.seed}
        return CollectorFactory(algorithm=make, precision=run.precision, **shared)

    @contextmanager
    def collecting(self, data: Mapping[str, ReplayBuffer]) -> Iterator[Collecting]:
        with super().collecting(data) as made:
            if self._sampler is not None:
                for buffer in (*made.collector.buffers.values(), *data.values()):
                    assert isinstance(buffer, ReplayBuffer | ShardedReplay)
                    buffer.sampler = self._sampler(base=buffer.sampler)
            yield made

    def environments(self) -> Environment:
        making.require_room(self.config.env)
        return create_environment(self.config.env, seed=self.config.run.seed)

    def collector(self, env: Environment, data: Mapping[str, ReplayBuffer]) -> Collector | OfflineFirst:
        collector = Collector.of(env, self.algorithm, compression=self.config.buffer.compression)
        making.compile_if_asked(self.config, collector)
        if POLICY in data:
            collector.source = mixed(self.config, collector.buffer, data[POLICY])
        updates = self.config.offline.updates
        return OfflineFirst(collector, data, updates) if updates else collector

    def evaluation(self) -> Evaluate:
        return functools.partial(learner.evaluate_one, self.config)

    def kept_policies(self, path: Path) -> dict[str, Policy]:
        return {POLICY: load_policy(path / "policy")}  # without making an environment

    def play(self, policies: Mapping[str, Policy], *, episodes: int, seed: int, window: bool) -> Iterator[Scene]:
        render_mode = "human" if window else "rgb_array"
        config = self.config.env.for_evaluation(1, render_mode=render_mode).stepped("serial")
        if is_pool(config):  # there is no other
            config = config.stepped("auto")
        try:
            env = create_environment(config, lane_seeds=[RunSeeds(seed).integer("evaluation", 1000)])
        except MissingExtraError:
            raise
        except ConfigError as error:
            raise ConfigError(f"{config.name} cannot be drawn as {render_mode!r}: {error}") from error
        with env:
            fps = learner.frames_per_second(env)
            try:
                for number in range(1, episodes + 1):
                    for lines, returns in _episode(policies[POLICY], env, number):
                        yield Scene(None if window else env.render(), lines, returns, fps)
            except Exception as error:
                if "pygame" in str(error):
                    raise MissingExtraError("pygame", "video", "drawing this environment") from error
                raise

    def record(
        self, policies: Mapping[str, Policy], env: EnvConfig, directory: str | Path, *, steps: int, **options: Any
    ) -> DataSummary:
        return collect_data(policies[POLICY], env, directory, steps=steps, **options)


def _going_online(algorithm: Algorithm[Any, Any], config: ExperimentConfig, name: str) -> None:
    """Lets an algorithm go on with steps of its own after `offline.updates` updates, where the run asks for it.

    An algorithm that learns from data alone gets a plan to replay: a step from every environment between two updates,
    of which the buffer keeps the newest 100,000.

    Args:
        algorithm: whose plan changes.
        config: says whether, and after how many updates.
        name: of the algorithm, for messages.

    Raises:
        ConfigError: the algorithm only imitates, there is nothing left of the budget, or workers are to collect.
    """
    plan, settings, budget = algorithm.plan, config.offline, config.trainer.total_env_steps
    goes_on = plan.data == "offline" and settings.fraction is not None
    if goes_on and algorithm.imitates:
        raise ConfigError(
            f"{name} imitates its data, so that steps of its own would teach it nothing; leave out offline.fraction. "
            "What behaviour cloning has learned can go on in PPO: `palaestra train ppo ENV --from RUN`"
        )
    if (goes_on or settings.updates) and config.distributed.runtime is not None:
        raise ConfigError(
            f"{name} is to go from data to steps of its own, which it does in one process; leave out "
            "distributed.runtime"
        )
    if settings.updates >= budget:
        raise ConfigError(
            f"offline.updates is {settings.updates} and trainer.total_env_steps is {budget}, of which an update on the "
            "data takes one, so that none is left for env steps; raise the budget, or leave out offline.updates"
        )
    if goes_on and isinstance(plan, Offline):
        algorithm.plan = plan.online()
    elif settings.updates and isinstance(plan, Replay):
        algorithm.plan = dataclasses.replace(plan, learning_starts=0)


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
        if env.ended is not None:  # it began again in the same step
            time_step = env.ended
        total, length = total + float(time_step.reward.sum()), length + 1
    yield [f"episode {number}, step {length}", "", f"the end, return {total:.4g}"], [total]


def _short(action: Any) -> str:
    """An action of one environment in a few characters."""
    if isinstance(action, torch.Tensor):
        values = action[0].flatten().tolist()
        return " ".join(f"{value:.3g}" for value in values[:6]) + (" ..." if len(values) > 6 else "")
    return " | ".join(f"{key} {_short(value)}" for key, value in action.items())


_KEYS = ("observation", "achieved_goal", "desired_goal")
_MOST_STEPS = 50
_NEEDED = (
    "hindsight needs `compute_reward(achieved_goal, desired_goal, info)` of a Gymnasium environment, on arrays of many "
    "rows, as the environments of Gymnasium-Robotics have it"
)


class _Played(NamedTuple):
    """T steps of one episode, twice: an environment that computes only single rows does not give this shape."""

    achieved: np.ndarray
    """[2, T, goal]."""
    desired: np.ndarray
    """[2, T, goal]."""
    reward: np.ndarray
    """[2, T] as the environment emitted it."""
    discount: np.ndarray
    """[2, T]."""


def hindsight_sampler(config: ExperimentConfig, algorithm: Any) -> Callable[..., HindsightSampler] | None:
    """What makes the sampler of every buffer that a run learns from, given the buffer's own one as `base`.

    One environment is made and plays an episode of at most 50 random steps, from which the reward function has to give
    the rewards that came through all wrappers. The environment is closed before the function is called.

    Args:
        algorithm: that learns.

    Returns:
        `None` where the run has no hindsight.

    Raises:
        ConfigError: nothing is replayed, observations have no goals, or rewards do not follow from the goals alone.
        EnvError: the environment raised something.
    """
    if not config.hindsight.share:
        return None
    problem = _unfit(config, algorithm)
    if problem:
        raise ConfigError(f"hindsight.share is {config.hindsight.share}, but {problem}; leave hindsight out")
    lane = _lane(config.env)
    try:
        gym_env = gym_env_of(lane)
        task: Any = None if gym_env is None else gym_env.unwrapped
        if not callable(getattr(task, "compute_reward", None)):
            made = type(lane if task is None else task).__name__
            raise ConfigError(f"{config.env.name} is a {made}, which has no compute_reward; {_NEEDED}")
        played = _played(lane, RunSeeds(config.run.seed).integer("environments", 0))
    finally:
        lane.close()
    reward = task.compute_reward
    _require_agreement(reward, played, config.env.name)
    return functools.partial(
        HindsightSampler,
        reward,
        strategy=config.hindsight.strategy,
        share=config.hindsight.share,
        terminated=_terminated(task, played),
    )


def _unfit(config: ExperimentConfig, algorithm: Algorithm[Any, Any]) -> str:
    """Why nothing could be replayed with other goals; empty where it can."""
    name, data = config.algorithm_name, algorithm.plan.data
    if data != "replay":
        how = "only from its own newest steps" if data == "on-policy" else "from loaded data alone"
        return f"{name} learns {how}, and hindsight needs an algorithm that collects and replays, such as sac or dqn"
    spec = algorithm.policy.whole_spec
    given = list(spec) if isinstance(spec, Mapping) else None
    if given is None or not set(_KEYS) <= set(given):
        what = "are no dict" if given is None else f"have the keys {given}"
        return f"observations of {config.env.name} {what}, and hindsight needs the keys {', '.join(_KEYS)}"
    assert isinstance(spec, Mapping)
    if shown := sorted({"reward", "env_info"} & set(config.env.inputs)):
        return f"env.inputs shows {shown[0]}, which is of the goal that was given; leave it out of env.inputs"
    if config.env.variants:
        return "env.variants may reward goals differently, and replayed rewards are those of the first; leave them out"
    goals = [spec[name] for name in _KEYS[1:]]
    layouts = [(goal.shape, goal.dtype) if isinstance(goal, TensorSpec) else None for goal in goals]
    if layouts[0] is None or len(layouts[0][0]) != 1 or layouts[0] != layouts[1]:
        return f"achieved_goal is {goals[0]} and desired_goal is {goals[1]}, and both need to be vectors of one kind"
    return ""


def _lane(env: EnvConfig) -> SingleEnvironment:
    """One environment as the run has many."""
    if env.vectorization == "native":
        raise ConfigError(f"env.vectorization=native steps all environments as one pool; {_NEEDED}")
    try:
        return load_lane(dataclasses.replace(env, chaos="", untransformed=False), 0)
    except ConfigError as error:  # pools and batched environments cannot be made one by one
        raise ConfigError(f"{_NEEDED}: {error}") from error


def _played(lane: SingleEnvironment, seed: int) -> _Played:
    """Random steps of one episode."""
    space, steps = space_from_spec(lane.action_spec), []
    space.seed(seed % 2**32)
    lane.seed(seed)
    step = lane.reset()
    while len(steps) < _MOST_STEPS and step.step_type != StepType.LAST:
        step = lane.step(sample_allowed(space, step.observation))
        steps.append(step)
    columns = [
        [step.observation["achieved_goal"] for step in steps],
        [step.observation["desired_goal"] for step in steps],
        [step.reward for step in steps],
        [step.discount for step in steps],
    ]
    return _Played(*(np.stack([column, column]) for column in columns))


def _require_agreement(reward: Callable[..., Any], played: _Played, name: str) -> None:
    try:
        given = np.asarray(reward(played.achieved, played.desired, {}))
    except Exception as error:
        raise ConfigError(
            f"compute_reward of {name} raised {describe(error)[0]} for goals {played.achieved.shape} and an empty "
            f"info; {_NEEDED}"
        ) from error
    if given.shape != played.reward.shape:
        raise ConfigError(
            f"compute_reward of {name} gave shape {given.shape} for goals {played.achieved.shape} and rewards "
            f"{played.reward.shape}; {_NEEDED}"
        )
    wrong = ~np.isclose(given, played.reward, rtol=1e-4, atol=1e-6 * np.abs(played.reward).max())[0]
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])  # a step, and the part of a vector
        raise ConfigError(
            f"compute_reward of {name} gives {given[0][at]:g} for the goals of a step for which the run gets the "
            f"reward {played.reward[0][at]:g}: a wrapper changes rewards, or they depend on more than the goals; "
            "leave out the wrapper, or hindsight"
        )


def _terminated(task: Any, played: _Played) -> Callable[..., Any] | None:
    """The function that says where reaching a goal ends the episode; `None` where ends stay as they were.

    It has to compute many rows, and to give the ends that the environment emitted: there may be others.
    """
    function = getattr(task, "compute_terminated", None)
    try:
        over = np.asarray(function(played.achieved, played.desired, {}))  # pyright: ignore[reportOptionalCall]
    except Exception:  # none is there, or it is for single rows
        return None
    same = over.shape == played.discount.shape and np.array_equal(1 - over.astype(np.float32), played.discount)
    return function if same else None
