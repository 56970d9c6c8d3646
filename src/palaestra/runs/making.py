"""What learns in a run, as its configuration says, and how PyTorch computes: threads, libraries, compiled code."""

import contextlib
import ctypes
import functools
import gc
import importlib.util
import inspect
import logging
import math
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.filesize import decimal

from palaestra.algorithms import ALGORITHMS, Algorithm, GradientAlgorithm
from palaestra.buffers import available_bytes
from palaestra.config.config import ExperimentConfig, algorithm_class
from palaestra.core import POLICY, ConfigError, MissingExtraError, PalaestraError, RunSeeds, SpecTree, computing
from palaestra.core.importing import GIVEN, import_maker, parse_call
from palaestra.envs import EnvConfig, create_environment, probe_specs
from palaestra.envs.contract.attributes import INSTEAD
from palaestra.envs.create import is_pool
from palaestra.envs.simulators.mujoco import shared_models
from palaestra.multiagent import is_multi_agent
from palaestra.nn import NetworkConfig, compiler_missing, largest_picture, set_deterministic
from palaestra.nn.blocks import LAYERS
from palaestra.policies import in_saved_order
from palaestra.rollout import Collector
from palaestra.runs.records import say_once
from palaestra.runtime import usage
from palaestra.training import Callback, policy_folder

__all__ = ["suitable_algorithms"]

_log = logging.getLogger(__name__)


def make_from_specs(config: ExperimentConfig) -> tuple[Any, tuple[SpecTree, SpecTree, Any]]:
    """The algorithm or robot of a configuration, on the specs of its environment, and these specs.

    Raises:
        ConfigError: it does not fit the environment; the message names the algorithms that do.
    """
    require_parts(config)
    specs = observation_spec, action_spec, reward_spec = probe_specs(config.env)
    _require_same_specs(config, observation_spec, action_spec)
    seeds = RunSeeds(config.run.seed)
    made = made_of(config, config.algorithm_name, config.algorithm, (observation_spec, action_spec), seeds)
    if isinstance(made, Algorithm):
        made.require_reward(reward_spec)
        specs = made.policy.whole_spec, made.policy.action_spec, reward_spec  # in the order of its weights
    return made, specs


def made_of(
    config: ExperimentConfig,
    name: str,
    settings: Any,
    specs: tuple[SpecTree, SpecTree],
    seeds: RunSeeds,
    *,
    policy: str = "",
    place: str = POLICY,
) -> Any:
    """An algorithm or robot, on the run's device.

    Args:
        name: of the algorithm.
        settings: of the algorithm.
        specs: of observations and actions.
        seeds: of the algorithm.
        policy: what to call the policy in messages, where there are several.
        place: of the policy among those that a run begins with.

    Raises:
        ConfigError: it does not fit the specs; the message names the algorithms that do.
    """
    if config.run.initial_policy is not None:  # inputs and outputs in the order of the weights that it begins with
        specs = in_saved_order(specs, policy_folder(Path(config.run.initial_policy) / "policy", place))
    set_up_torch(config, specs[0])
    kind: Any = algorithm_class(name)
    try:
        with computing.BoundedTensors(
            (computing.memory_bytes() or math.inf) / 4, math.inf, "more than this machine has memory for"
        ):
            made = kind(*specs, settings, seeds)
    except ConfigError as error:
        if name not in ALGORITHMS:  # nobody knows whether its spaces or its lines are wrong
            file = getattr(inspect.getmodule(kind), "__file__", None)
            lines = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == file]
            at = f" ({Path(str(file)).name}:{lines[-1].lineno})" if lines else ""
            raise ConfigError(f"{name} cannot be made for {policy or config.env.name}: {error}{at}") from error
        team = getattr(kind, "team", False)
        others = suitable_algorithms(*specs, team=team) or suitable_algorithms(*specs, team=not team)
        plan = getattr(settings, "plan_class", None)
        near = [one for one in others if name in one or ALGORITHMS[one].config_class.plan_class is plan]
        others = [*sorted(near, key=lambda one: name not in one), *(one for one in others if one not in near)]
        hint = "" if name in others else f". Algorithms that fit: {', '.join(others) or 'none'}"
        fits = "cannot be made with these settings for" if name in others else "does not fit"
        raise ConfigError(f"{name} {fits} {policy or config.env.name}: {error}{hint}") from error
    made.to(config.run.device)
    algorithms = [made] if isinstance(made, Algorithm) else made.algorithms.values()
    for algorithm in algorithms:
        algorithm.set_precision(config.run.precision)
        compile_if_asked(config, algorithm)
    return made


def set_up_torch(config: ExperimentConfig, observation_spec: SpecTree) -> None:
    """Chooses threads and kernels.

    Args:
        observation_spec: of its environment.
    """
    torch.set_num_threads(choose_threads(config, observation_spec))
    set_deterministic(config.run.deterministic)


def choose_threads(config: ExperimentConfig, observation_spec: SpecTree, *, side_by_side: int = 1) -> int:
    """Threads of torch: as asked for, else what is measured to be faster, within `OMP_NUM_THREADS`.

    Learners and policy hosts share the cores; with `gradient_shards`, as many learners would, for equal bits with any
    number.

    Args:
        observation_spec: of its environment.
        side_by_side: runs that share the machine.
    """
    distributed = config.distributed
    if distributed.runtime in ("process", "ray"):
        side_by_side *= (distributed.gradient_shards or distributed.num_learners) * max(1, distributed.num_policy_hosts)
    network, most = getattr(config.algorithm, "network", None), max(1, computing.num_cores() // side_by_side)
    if config.run.num_threads:
        return config.run.num_threads
    if not issubclass(algorithm_class(config.algorithm_name), Algorithm):  # a robot's threads wait for torch's
        return 1
    whole = int(getattr(config.algorithm, "unroll_length", 0)) * config.env.num_envs
    sizes = [getattr(config.algorithm, name, None) for name in ("mini_batch_size", "mini_batch_sequences")]
    rows = sizes[0] or sizes[1] or whole
    widths = network.hidden_sizes if isinstance(network, NetworkConfig) else NetworkConfig().hidden_sizes
    return computing.faster_threads(rows, widths, most, largest_picture(observation_spec))


_FEW, _MORE, _SEVERAL = 2, 8, 16
_LARGE_LANE = 2**27  # bytes; those of EnvPool's robots, the largest that are known, take half of that


def lane_bytes(env: EnvConfig) -> tuple[int, int]:
    """Memory that the lanes of a pool or a batch share, and that of each, about; 0 of what is made otherwise.

    One lane is made to load all libraries; then one, two and eight beside it are measured, which share what the first
    of them loads. Simulators of tensors and JAX are not made so often.

    Args:
        env: which environments.
    """
    if not is_pool(env) or env.name.startswith(("jax:", "vector:")):
        return 0, 0
    with contextlib.ExitStack() as stack:
        resident = list[int]()
        for count in (1, 1, _FEW, _MORE):
            if len(resident) == 1:
                stack.enter_context(shared_models())
            stack.enter_context(create_environment(env.alone(count), lane_seeds=range(count))).reset()
            resident.append(_resident_bytes())
    first, few, more = np.diff(resident).tolist()
    each = max(0, more - few) // (_MORE - _FEW)
    return max(0, first - each, few - _FEW * each), each


def require_kept_statistics(env: EnvConfig) -> None:
    """Refuses Gymnasium's wrappers whose statistics no checkpoint has, and all that miss what a time limit cuts off.

    Of the library's own it says what evaluations lack.

    Args:
        env: which environments, in their wrappers.

    Raises:
        ConfigError: says what to give instead.
    """
    own = re.search(r"Wrap\('EpisodeStatistics'\).*Wrap\('TimeLimit\(", repr((*env.wrappers, *env.train_wrappers)))
    if own or re.search(r"\bRecordEpisodeStatistics\b", repr(env.gym_wrappers)):
        raise ConfigError(
            f"{'' if own else 'Record'}EpisodeStatistics reports no episode that the time limit cuts off, for that "
            "lies around it; give --env.wrappers EpisodeStatistics, after TimeLimit where that is given, too (both in "
            "env.train_wrappers, if either is)"
        )
    for one in (*env.gym_wrappers, *env.wrappers, *env.train_wrappers):
        if found := re.search(r"\bNormalize(Observation|Reward)\b", repr(one)):
            instead = INSTEAD[found[0]]
            if one in env.gym_wrappers:
                raise ConfigError(
                    f"Gymnasium's {found[0]} keeps statistics that no checkpoint has, so that a resumed run would be "
                    f"another one; give {instead}"
                )
            if one in env.train_wrappers and found[1] == "Observation":
                raise ConfigError(
                    f"env.train_wrappers has {found[0]}, and the policy is evaluated and used without; give {instead}"
                )
            if one in env.wrappers:
                say_once(
                    f"env.wrappers has {found[0]}: evaluations, and whoever uses the policy, begin without its "
                    f"statistics, and see other numbers than training did; give {instead}"
                )


def require_memory(env: EnvConfig) -> int:
    """Refuses a pool or batch of many lanes for which there is no memory, before it is made.

    Args:
        env: which environments, and how many.

    Returns:
        Bytes that they will take, about; 0 where that was not measured.

    Raises:
        ConfigError: they would take more than is free; the message says how many would fit.
    """
    if env.num_envs < _SEVERAL:
        return 0
    (shared, each), free = lane_bytes(env), available_bytes()
    needed = shared + each * env.num_envs
    if free is not None and each and 0.75 * needed > free:  # many lanes take somewhat less each than eight
        fits = max(1, (free - shared) // each)
        raise ConfigError(
            f"{env.num_envs:,} environments of {env.name} would take about {decimal(needed)}, {decimal(each)} each as "
            f"measured with {_MORE}, and {decimal(free)} are free; give --env.num-envs {fits:,} or fewer"
        )
    return needed


def require_room(env: EnvConfig) -> None:
    """`require_memory`, but for so few lanes that they fit however large they are, which need not be measured.

    Args:
        env: which environments, and how many.

    Raises:
        ConfigError: they would take more than is free.
    """
    free = available_bytes()
    if free is not None and env.num_envs * _LARGE_LANE > free:
        require_memory(env)


def _resident_bytes() -> int:
    """Memory that this process uses, without what it has freed; 0 where the system does not say."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    used = usage()
    return 0 if used is None else used.memory_bytes


def choose_products(algorithms: Mapping[str, Algorithm[Any, Any]], lanes: Mapping[str, int], members: int = 1) -> None:
    """Chooses the library that multiplies matrices on the CPU, by the largest product of their gradient steps.

    Args:
        algorithms: that learn in this process, by policy.
        lanes: environments (or agents) that write to the buffer of each.
        members: of a population whose gradient step is one graph, and whose products are one call.
    """
    computing.choose_library(
        members * max((_largest_product(a, lanes[name]) for name, a in algorithms.items()), default=0)
    )


def _largest_product(algorithm: Algorithm[Any, Any], num_lanes: int) -> int:
    """Floating-point operations, about: the weights see every row of a minibatch once."""
    if not isinstance(algorithm, GradientAlgorithm):
        return 0
    plan: Any = algorithm.plan
    rows = (plan.mini_batch_size or num_lanes) * (plan.mini_batch_length or plan.unroll_length)
    named = algorithm.model.named_parameters()  # those of a hidden state see one step of each sequence at a time
    sizes = [weight.numel() for name, weight in named if weight.ndim in (2, 3) and "weight_hh" not in name]
    return int(2 * rows * max(sizes, default=0))


def compute_as_before(config: ExperimentConfig, info: Mapping[str, Any]) -> None:
    """Threads and library as `run.json` has them, if the run has begun: others round otherwise."""
    if config.run.num_threads is None:
        torch.set_num_threads(info.get("threads", torch.get_num_threads()))
    computing.prefer_onednn(info.get("onednn", computing.prefers_onednn()))


def compile_if_asked(config: ExperimentConfig, part: Algorithm[Any, Any] | Collector) -> None:
    """Compiles gradient steps, or acting and stepping, where the run asks for it and this machine can.

    Args:
        part: that learns, or collects.
    """
    if config.run.compile is True and isinstance(part, GradientAlgorithm | Collector):
        if missing := config.distributed.compile_needs or compiler_missing(config.run.device):
            _log.warning("--compile needs %s; training runs without", missing)
        else:
            part.compile()
    elif config.run.compile is True:
        name = config.algorithm_name
        _log.warning("--compile compiles gradient steps, and %s makes none of these: it learns without", name)


def may_restart(env: EnvConfig) -> bool:
    """Whether an environment that failed could have been restarted, which a run did not ask for."""
    return env.on_fault == "raise" and not as_one(env) and not env.name.startswith(f"{GIVEN}:")


def as_one(env: EnvConfig) -> bool:
    """Whether all environments are stepped as one, as a batch of tensors, say."""
    return not is_multi_agent(env.name) and is_pool(env)


def not_advised(config: ExperimentConfig, algorithms: Iterable[Any]) -> list[str]:
    """Settings for more speed that a run has, or cannot have.

    Args:
        algorithms: that learn in it.
    """
    compiles = all(isinstance(one, GradientAlgorithm) and not one.policy.state_spec for one in algorithms)
    is_robot = not issubclass(algorithm_class(config.algorithm_name), Algorithm)  # all that it does is in `storing`
    many = is_multi_agent(config.env.name)
    needless = {
        "--compile": config.run.compile is not False or not compiles,
        "env.vectorization": config.env.vectorization == "process" or many or is_pool(config.env),
        "trainer.eval_async": config.trainer.eval_async,
        "env.num_envs": is_robot,
        "store smaller rows": is_robot,
    }
    return [setting for setting, so in needless.items() if so]


def require_parts(config: ExperimentConfig) -> None:
    """Refuses tracking services that are not installed, callbacks that are none, and variants never seen.

    Args:
        config: names them.
    """
    for text in config.run.callbacks:
        maker = _callback_maker(text)
        if config.distributed.runtime and getattr(getattr(maker, "func", maker), "stepped", None):
            raise ConfigError(
                f"run.callbacks has {text!r} with a hook stepped, but env steps are made in other processes; leave out "
                "distributed.runtime"
            )
    for name in (*config.run.loggers, *(["tensorboard"] if config.run.tensorboard else [])):
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(name, name, f"run.{'loggers=' if name in config.run.loggers else ''}{name}")
    _require_every_variant(config)


def refuse_eval_vectorization(config: ExperimentConfig, what: str) -> None:
    """Refuses to evaluate elsewhere than in this process.

    Args:
        what: it is that cannot be evaluated elsewhere.

    Raises:
        ConfigError: the run asks for it.
    """
    if config.run.eval_vectorization not in ("auto", "serial"):
        raise ConfigError(
            f"run.eval_vectorization is {config.run.eval_vectorization!r}, but {what} evaluated in this process; "
            "leave it out"
        )


def make_callbacks(config: ExperimentConfig) -> list[Callback]:
    """The callbacks that a configuration names, made.

    Args:
        config: has their names.

    Raises:
        ConfigError: a name leads to no callback, or it does not take the arguments; or something else was made.
    """
    made = [_callback_maker(text)() for text in config.run.callbacks]
    for text, callback in zip(config.run.callbacks, made, strict=True):
        if not isinstance(callback, Callback):
            raise ConfigError(f"run.callbacks has {text!r}, which made {callback!r}; a training.Callback is needed")
    return made


def _callback_maker(text: str) -> Callable[[], Any]:
    name, kwargs = parse_call(text, "the callback", "my_package:MyCallback(goal=475)")
    maker = import_maker(name, "a callback", lambda kind: issubclass(kind, Callback))
    try:
        inspect.signature(maker).bind(**kwargs)
    except TypeError as error:
        needs = f"{name}{inspect.signature(maker)}"
        raise ConfigError(f"run.callbacks has {text!r}, which does not fit {needs}: {error}") from None
    return functools.partial(maker, **kwargs)


def _require_every_variant(config: ExperimentConfig) -> None:
    """Refuses runs in which a variant of the environment would never be trained or evaluated."""
    count = len(config.env.variants)
    for name, given in (("env.num_envs", config.env.num_envs), ("trainer.eval_episodes", config.trainer.eval_episodes)):
        if 0 < given < count:
            raise ConfigError(f"{name} is {given}, and env.variants has {count} entries; give at least one for each")


def _require_same_specs(config: ExperimentConfig, observation_spec: SpecTree, action_spec: SpecTree) -> None:
    """Refuses what is for training alone where a policy could not be evaluated without it."""
    if not (config.env.train_wrappers or config.env.train_kwargs):
        return
    observed, acted, _ = probe_specs(config.env.for_evaluation(1))
    for what, training, evaluation in (("observations", observation_spec, observed), ("actions", action_spec, acted)):
        if training != evaluation:
            raise ConfigError(
                f"env.train_wrappers or env.train_kwargs change the {what} from {evaluation} to {training}, and the "
                "policy is evaluated without them; put what does that into env.wrappers or env.kwargs"
            )


def suitable_algorithms(observation_spec: SpecTree, action_spec: SpecTree, *, team: bool = False) -> list[str]:
    """The algorithms that can be made for these spaces: each is asked with its default settings.

    Args:
        observation_spec: of an environment.
        action_spec: of an environment.
        team: whether for a team of agents.
    """
    with torch.device("meta"):  # the weights are not used, and those for large pictures take seconds to initialise
        kinds = sorted(ALGORITHMS.items())
        return [name for name, kind in kinds if kind.team == team and attempt(kind, observation_spec, action_spec)]


def attempt(kind: Any, observation_spec: SpecTree, action_spec: SpecTree, config: Any = None) -> Any:
    """An algorithm for these spaces; `None` if it refuses them.

    Args:
        kind: the algorithm's class.
        observation_spec: of an environment.
        action_spec: of an environment.
        config: its settings; the defaults if left out.
    """
    try:
        return kind(observation_spec, action_spec, config or kind.config_class(), RunSeeds(0))
    except PalaestraError:
        return None


_CELLS: dict[str, tuple[str, ...]] = {"recurrent_size": ("lstm", "gru", "attention"), "recurrent_span": ("lstm", "gru")}
_ATTENTION = dict.fromkeys(("attention_window", "attention_layers", "attention_heads"), ("attention",))
_SEQUENCES = dict.fromkeys(("mini_batch_length", "burn_in"), ("lstm", "gru", "attention", "own"))
_MEMORIES = {**_CELLS, **_ATTENTION, **_SEQUENCES}
"""Settings of `NetworkConfig` or of an algorithm, and the memories that have them."""


_OWN_WEIGHTS = {name for name, kind in LAYERS.items() if kind.starts_itself} | {"noisy"}
"""Layers whose weights start in one way."""


_NOVELTY, _IMITATION = ("rnd", "icm"), ("gail", "airl")
_OF_BONUSES = {"weight": _NOVELTY, "feature_size": _NOVELTY, "gradient_penalty": _IMITATION}
"""Settings of a learned reward that only some kinds have."""


def idle_settings(algorithm: Any) -> Iterator[str]:
    """What is wrong with settings of an algorithm that do nothing beside its others."""
    defaults = type(algorithm)()
    network, bonus = getattr(algorithm, "network", None), getattr(algorithm, "bonus", None)
    recurrent = getattr(network, "recurrent", None)
    for name, kinds in _MEMORIES.items() if network is not None else ():
        inside = hasattr(network, name)
        owner, usual = (network, defaults.network) if inside else (algorithm, defaults)
        value, default = getattr(owner, name, None), getattr(usual, name, None)
        idle = recurrent not in kinds and value != default
        if idle and (inside or value != getattr(algorithm.plan, name, None)):  # some learn sequences without a memory
            why = f"algorithm.network.recurrent {recurrent}, so that it would do nothing; it is for {', '.join(kinds)}"
            yield f"algorithm.{'network.' if inside else ''}{name} is {value}, and {why}"
    own = "noisy" if getattr(network, "noisy", False) else getattr(network, "block", None)
    if network is not None and own in _OWN_WEIGHTS and network.init != defaults.network.init:
        yield (
            f"algorithm.network.init is {network.init}, but {own} layers start with weights of their own, so that it "
            "would do nothing; leave it out"
        )
    for name in algorithm.idle:
        if (value := getattr(algorithm, name, None)) != getattr(defaults, name, None):
            yield f"algorithm.{name} is {value}, but algorithm.prioritized is False; leave one out"
    rewards = getattr(algorithm, "rewards", None)
    rate = getattr(rewards, "multiplier_learning_rate", None)
    if rewards is not None and not rewards.thresholds and rate != type(rewards).multiplier_learning_rate:
        yield f"algorithm.rewards.multiplier_learning_rate is {rate}, but there are no algorithm.rewards.thresholds"
    kind = getattr(bonus, "kind", None)
    for name, kinds in _OF_BONUSES.items() if kind in (*_NOVELTY, *_IMITATION) else ():
        if kind not in kinds and getattr(bonus, name) != getattr(defaults.bonus, name):
            yield f"algorithm.bonus.{name} is of {' and '.join(kinds)}, and kind is {kind}"
    if bonus is not None and kind is None and bonus != defaults.bonus:
        yield "algorithm.bonus has settings and no kind, so that there is none: rnd, icm, gail, airl, or your own"
