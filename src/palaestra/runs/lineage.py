"""What a run begins with, and goes on with: policies of another run, all that a run has come to, changed settings."""

import contextlib
import dataclasses
import itertools
import logging
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from palaestra.algorithms import Algorithm
from palaestra.config.config import ExperimentConfig, algorithm_class, config_from_mapping, flat_settings
from palaestra.core import CheckpointError, ConfigError, Offline, Replay, scheduled_values
from palaestra.core.errors import refuses, require_kind
from palaestra.core.importing import GIVEN
from palaestra.distributed import DistributedConfig
from palaestra.envs import decided
from palaestra.multiagent import AgentsConfig, SelfPlayConfig, is_multi_agent
from palaestra.policies import RandomPolicy, load_weights, require_order
from palaestra.robots import RobotConfig
from palaestra.runs import records
from palaestra.runs.computed import OF_SESSION, computed_by, how_exactly, sessions
from palaestra.runs.folders import beside_group, new_folder
from palaestra.runs.learner import Learner
from palaestra.runs.making import as_one, idle_settings, require_kept_statistics
from palaestra.runs.records import Reporter, is_number, now, policies_are_kept
from palaestra.runs.run_directory import RunDirectory, find_run
from palaestra.runs.trust import require_services
from palaestra.training import Trainer, policy_folder
from palaestra.training.callbacks import missing_callbacks

__all__ = ["changed_config", "changes_between"]

_log = logging.getLogger(__name__)


def for_new_run(config: ExperimentConfig) -> ExperimentConfig:
    """The configuration, if a new run can have it, with the path of the run that it begins with, found by its name.

    Args:
        config: of a new run.

    Raises:
        CheckpointError: there is no such run.
        ConfigError: it is a group of several, or a setting is missing, does nothing, or nothing that could be resumed.
    """
    require_kind(config, ExperimentConfig, "a run", "an ExperimentConfig, such as preset('ppo', 'CartPole-v1')")
    require_kept_statistics(config.env)
    if problems := [*_senseless(config)]:
        raise ConfigError("\n".join(problems))
    folder, name = Path(config.run.directory), config.run.name
    if (beside := beside_group(folder)) != folder:  # a seed's settings, and the run is none of the group
        name = None if (folder / (name or "")).exists() else name
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, directory=str(beside), name=name))
    if issubclass(algorithm_class(config.algorithm_name), Algorithm):
        config = dataclasses.replace(config, env=decided(config.env))
    config = _with_paths(config)
    if (source := config.run.initial_policy) is None:
        return config
    path = str(find_run(source, config.run.directory).path.resolve())
    return dataclasses.replace(config, run=dataclasses.replace(config.run, initial_policy=path))


def _senseless(config: ExperimentConfig) -> Iterator[str]:
    """What no new run may have: settings that do nothing, and an algorithm without what it learns from."""
    kind = algorithm_class(config.algorithm_name)
    if issubclass(kind, Algorithm) and config.robot != RobotConfig():
        yield f"settings of robot are for robots, and {config.algorithm_name} is none; leave them out"
    for name, what in getattr(kind, "needs", {}).items():
        if getattr(config.algorithm, name) is None:
            yield f"{config.algorithm_name} needs algorithm.{name}: {what}"
    yield from idle_settings(config.algorithm)
    yield from config.distributed.idle()


def _with_paths(config: ExperimentConfig) -> ExperimentConfig:
    """With paths of a teacher and of loaded data from the root, wherever the run is resumed.

    Functions, and names of a library's data, stay as they are.
    """
    for name in getattr(algorithm_class(config.algorithm_name), "needs", {}):
        given = getattr(config.algorithm, name)
        if given and ":" not in given and not Path(given).is_absolute():  # a folder, or a run by its name
            path = Path(given) if Path(given).is_dir() else find_run(given, config.run.directory).path
            kept = dataclasses.replace(config.algorithm, **{name: str(path.resolve())})
            config = dataclasses.replace(config, algorithm=kept)
    data = config.offline.data or ""
    path = data.removeprefix("d4rl:")
    if not path or not Path(path).exists() or data.startswith("minari:"):
        return config
    where = f"{data[: len(data) - len(path)]}{Path(path).absolute()}"
    return dataclasses.replace(config, offline=dataclasses.replace(config.offline, data=where))


@refuses(ConfigError)
def require_effect(config: ExperimentConfig) -> Iterator[str]:
    """Refuses settings that would do nothing, and those that could not work; not of runs that are looked at.

    Args:
        config: of a run that is to train.

    Raises:
        ConfigError: names the setting.
    """
    defaults, settings = vars(DistributedConfig()), vars(config.distributed)
    given = [name for name, value in settings.items() if value != defaults[name]]
    if config.distributed.runtime is None and given:
        yield (
            f"distributed.{given[0]} is {settings[given[0]]}, but this run has no workers; give distributed.runtime as "
            "local, process or ray, or leave it out"
        )
    if config.distributed.mode == "async" and "grace_timeout_s" in given:
        yield "distributed.grace_timeout_s is for mode=sync; for mode=async see asynchronous.*"
    if config.run.together:
        yield "run.together is for several seeds; give --seeds N, or leave it out"
    where = ("env.vectorization", "run.eval_vectorization", "distributed.runtime", "trainer.eval_async")
    elsewhere = [name for name in where if flat_settings(config).get(name) in ("process", "ray", True)]
    if elsewhere and config.env.name.startswith(f"{GIVEN}:"):
        yield (
            f"{elsewhere[0]} makes environments in other processes, and this one was given as an object of this "
            "process; put what makes it into a module, and give that, or its name, my_module:make"
        )
    beside = config.trainer.eval_async and config.distributed.runtime == "process"
    if beside and config.run.eval_vectorization == "process":
        yield (
            "run.eval_vectorization is process, but with trainer.eval_async a worker of distributed.runtime evaluates, "
            "which may start no processes; leave one of the three out"
        )
    if config.agents != AgentsConfig() and not is_multi_agent(config.env.name):
        yield f"settings of agents are for environments with many agents, and {config.env.name} has one"
    self_play = config.agents.self_play
    if not self_play.pool_size and self_play != SelfPlayConfig():
        yield "agents.self_play.pool_size is 0, so that nobody plays against snapshots; give a size"


def begin_from(learner: Learner) -> dict[str, Any] | None:
    """Puts the policies that `run.initial_policy` names into a learner that has not learned yet.

    Every policy that learns is looked for under its own name, with weights and observation statistics. Target networks
    become copies again; critics, optimizers, schedules and data begin anew.

    Args:
        learner: of the new run; its configuration has the path from `for_new_run`.

    Returns:
        For the run's records: the path, and the hash of each policy's weights. `None` where the run begins anew.

    Raises:
        CheckpointError: there is no such policy, or its files are damaged.
        ConfigError: a policy does not fit; the message says in what. Or a new run cannot have such settings.
    """
    learner.config.agents.require_apart(learner.algorithms)
    learner.require_new()
    if learner.config.run.initial_policy is None:
        return None
    path, hashes = Path(learner.config.run.initial_policy), dict[str, str]()
    for name, algorithm in learner.algorithms.items():
        if isinstance(algorithm.policy, RandomPolicy):  # a robot's task that only watches
            continue
        folder = policy_folder(path / "policy", name)
        if not (folder / "policy.json").is_file():
            raise CheckpointError(_missing(path, name))
        try:
            hashes[name] = load_weights(algorithm.policy, folder)
        except ConfigError as error:
            raise ConfigError(
                f"{error} (there: {path}; here: {learner.config.algorithm_name} on {learner.config.env.name}). Give "
                "this run the same environment, algorithm and network"
            ) from error
        algorithm.targets.copy()
    learner.begun()
    return {"path": str(path), "weights_sha256": hashes}


def _missing(path: Path, name: str) -> str:
    kept = sorted(
        "" if file.parent.name == "policy" else file.parent.name for file in path.glob("policy/**/policy.json")
    )
    if not kept:
        return f"{path} has kept no policy yet: a run keeps the one of its best evaluation"
    if kept == [""]:
        return f"{path} has one policy, of a single agent; this run needs one for {name!r}"
    others = ", ".join(filter(None, kept))
    return f"{path} has the policies {others}, and this run learns {name!r}; each begins with the one of its own name"


def fork_run(parent: RunDirectory, name: str | None = None, root: str | Path = "runs") -> RunDirectory:
    """A new run that continues from the newest valid checkpoint of another; that one stays as it is.

    Args:
        parent: the other run, whose settings the new one has, too.
        name: of the new run directory; by default the parent's with `_fork`.
        root: where the new one is made if nothing can be written beside the parent.

    Raises:
        CheckpointError: the parent has no valid checkpoint.
        ConfigError: the name is taken.
    """
    step, _ = parent.checkpoints().load_newest(rename=False)
    parent.say_changed_logs()
    path = parent.path.resolve() if parent.path.name in ("", "..") else parent.path
    beside, named = beside_group(path.parent), path.name
    if beside != path.parent:
        named = f"{path.parent.resolve().name}_{named}"
    folder = beside if os.access(beside, os.W_OK) else Path(root)
    free = (f"{named}_fork{number}" for number in itertools.chain([""], itertools.count(2)))
    name = next(name for name in free if not (folder / name).exists()) if name is None else name
    config = parent.config
    forked = dataclasses.replace(config, run=dataclasses.replace(config.run, name=name, directory=str(folder)))
    with new_folder(forked, "") as (target, unfinished):
        child = RunDirectory(unfinished)
        child.begin(forked, {"forked_from": str(parent.path.resolve()), "env_steps": step})
        copy_results(parent, child, step)
    return RunDirectory(target)


def copy_results(parent: RunDirectory, child: RunDirectory, step: int) -> None:
    """What a run has come to until some step."""
    child.checkpoints().take_over(parent.checkpoints(), step)
    kept_return = records.copy_policies(parent.path, child.path, lambda: parent.kept_return)
    for file in ("metrics.jsonl", "episodes.csv"):
        if (parent.path / file).exists():
            shutil.copyfile(parent.path / file, child.path / file)
    for env_steps, evaluation in records.read_evaluations(parent.path):
        if env_steps <= step:
            records.write_evaluation(child.path, env_steps, {**evaluation, "best": False})  # another's is kept
    names = ("sessions", "resumed_at", "policy_lost_at", *OF_SESSION)  # as the child is
    names += ("overrides", "began_from", *(["config_sha256"] if parent.edited else []))
    taken = {name: value for name, value in parent.info.items() if name in names}
    child.write_info({"best_return": kept_return, **taken})


def go_on(directory: RunDirectory, trainer: Trainer, config: ExperimentConfig, reporter: Reporter | None) -> None:
    """Puts the newest valid checkpoint into a trainer, and writes down how exactly the run goes on.

    Args:
        directory: of the run; one that has never saved any checkpoint begins, with a warning.
        config: with which it goes on.
        reporter: says how exactly its environments do.

    Raises:
        CheckpointError: its checkpoints are damaged.
    """
    exact, info = _computes_exactly(directory.config, config), directory.info
    why = _load(directory, trainer, config)
    why += ["with new episodes"] if getattr(reporter, "resume", "exact") != "exact" else []
    pool = config.distributed.mode == "async" and config.agents.self_play.pool_size
    why += ["with an empty pool of self-play"] if pool else []
    why += [] if exact else ["with sums of another device, precision, code or number of learners, or of a GPU"]
    past = [] if directory.never_saved else sessions(info, trainer.collector.env_steps)
    here = computed_by(config.env.name, trainer.learner, config.run.device)
    directory.write_info({"sessions": past, **how_exactly(past, why, here)})


def _computes_exactly(before: ExperimentConfig, now: ExperimentConfig) -> bool:
    """Whether a run continues with the numbers that it would have had: on one device, and a GPU only where asked to.

    Minibatches that are cut into other parts, compiled code and another precision round otherwise.
    """
    same = now.distributed.cuts is not None and now.distributed.cuts == before.distributed.cuts
    same &= all(getattr(before.run, name) == getattr(now.run, name) for name in ("device", "compile", "precision"))
    return same and (now.run.device == "cpu" or (before.run.deterministic and now.run.deterministic))


def _load(directory: RunDirectory, trainer: Trainer, config: ExperimentConfig) -> list[str]:
    """Puts the newest checkpoint into a trainer, and writes down what changes from here on.

    Returns:
        Why the run does not go on as it would have.
    """
    directory.say_changed_logs()
    step, why, edited, lost = 0, list[str](), directory.edited, False
    changes = changes_between(directory.config, config) | edited
    unknown = "config_sha256" not in directory.info
    if directory.never_saved:
        _log.warning("%s stopped before its first checkpoint: it begins at env step 0", directory.path)
    else:
        step, state = directory.checkpoints().load_newest()
        if any(isinstance(part, dict) and "lost" in part for part in state.values()):
            why.append("without rows of a replay buffer that were damaged")
        for name, algorithm in trainer.algorithms.items():
            with contextlib.suppress(CheckpointError):  # one that is not there, or damaged, says nothing
                require_order(algorithm.policy, policy_folder(directory.path / "policy", name))
        trainer.load_state(state)
        if gone := missing_callbacks(trainer.callbacks, state["trainer"].get("callbacks", {})):
            why += [f"without {one}, a callback that it had before" for one in gone]
        known = [one for one in (directory.kept_return, trainer.best_return) if is_number(one)]
        alike = "trainer.eval_epsilon" not in changes  # else what comes is measured otherwise
        lost = bool(known) and not (alike and policies_are_kept(directory.path, trainer.algorithms))
        trainer.best_return = None if lost else next(iter(known), None)
    facts: dict[str, Any] = {"resumed_at": trainer.collector.env_steps, "best_return": trainer.best_return}
    facts |= {"resumes": (directory.info.get("resumes") or 0) + 1} | ({"policy_lost_at": step} if lost else {})
    if changes:
        entry = {"env_steps": step, "time": now(), "changes": changes}
        facts["overrides"] = [*directory.info.get("overrides", []), entry]
    if changes or unknown:
        directory.save_config(config, **facts)
    else:
        directory.write_info(facts)
    directory.forget_evaluations(trainer.collector.env_steps)
    why += ["with a config.yaml that was edited by hand"] if edited else []
    return [*why, *(["without what its run.json said, also of a config.yaml that was edited"] if unknown else [])]


_FIXED = (
    *("algorithm_name", "env", "algorithm.network", "algorithm.rewards", "algorithm.capacity"),
    *("algorithm.bonus.kind", "algorithm.bonus.hidden_sizes", "algorithm.bonus.feature_size"),
    *("algorithm.num_atoms", "algorithm.num_bins", "algorithm.num_classes", "algorithm.num_critics"),
    *("algorithm.initial_temperature", "algorithm.initial_multiplier"),
    *("algorithm.num_latents", "algorithm.num_quantiles", "algorithm.memory_size", "algorithm.state_size"),
    *("algorithm.min_return", "algorithm.max_return", "algorithm.normalize_return", "algorithm.normalize_observation"),
    *("algorithm.action_chunk", "algorithm.actor_hidden_sizes", "algorithm.mixing", "algorithm.mixing_size"),
    *("algorithm.priority_alpha", "algorithm.prioritized", "agents.mapping", "agents.sharing", "agents.policies"),
    *("agents.global_state", "agents.judged", "distributed.mode"),
    *("run.seed", "run.directory", "run.name", "run.initial_policy"),
)
"""What a checkpoint holds the results of, and no setting can change afterwards."""
_RATE = "algorithm.rewards.multiplier_learning_rate"
_FREE = ("env.on_fault", "env.max_restarts", "env.timeout_s", "env.reset_timeout_s", "env.num_threads", _RATE)
"""Of these, how faults are handled, so that a run that an environment's fault has ended can go on with others, how many
threads step, which changes no bit, and a rate, of which a checkpoint has no results."""


def changed_config(run: RunDirectory, settings: Mapping[str, Any]) -> ExperimentConfig:
    """A run's configuration with other settings, as far as it can continue with them.

    An offline run that is given `offline.fraction` goes online: `offline.updates` are then those that it has made.

    Args:
        run: that continues.
        settings: values by path, with dots or `__`.

    Raises:
        ConfigError: a setting is unknown or wrong, the checkpoint would not fit any more, or it is beyond the budget.
    """
    config = run.config
    if run.is_shared:
        raise ConfigError(
            f"{run.path} is a shared policy without checkpoints, so there is nothing to continue; begin a new run from "
            f"it: palaestra train {config.algorithm_name} {config.env.name} --from {shlex.quote(str(run.path))}"
        )
    changed = config_from_mapping(ExperimentConfig, settings, base=config)
    require_services(changed.run.loggers, run.path)
    changes = changes_between(config, changed)
    refused = [*_misfits(config, changed, changes)]
    reached, budget = run.env_steps, changed.trainer.total_env_steps
    before, now = config.offline, changed.offline
    offline = changed.algorithm.plan_class is Offline
    if before.updates and now.updates != before.updates and reached >= min(before.updates, now.updates):
        refused.append(f"offline.updates is {before.updates:,}, and {min(reached, before.updates):,} were made")
    if offline and before.fraction is None and now.fraction is not None:
        changed = dataclasses.replace(changed, offline=dataclasses.replace(now, updates=now.updates or reached))
    elif (offline and (before.fraction is None) != (now.fraction is None)) or bool(before.updates) != bool(now.updates):
        refused.append(
            f"offline.fraction {before.fraction} and offline.updates {before.updates} cannot become {now.fraction} and "
            f"{now.updates} in a run that continues; an offline run goes online by a fraction alone, and never back"
        )
    if "trainer.total_env_steps" in changes and budget <= reached:
        refused.append(f"the run has {reached:,} {config.unit} already; --until must be above, {budget:,} was given")
    elif changes and not refused and budget <= reached:
        refused.append(
            f"the run has used its budget of {budget:,} {config.unit}, so nothing would be done with "
            f"{', '.join(changes)}; give --until as well, to train on"
        )
    if refused:
        raise ConfigError("\n".join(refused))
    if moved := _moved_schedules(config, changed, reached):
        _log.warning("schedules follow the share of the budget that is used, so the new one moves %s", moved)
    return _with_paths(changed)


def _misfits(config: ExperimentConfig, changed: ExperimentConfig, changes: Mapping[str, Any]) -> Iterator[str]:
    """Why a checkpoint of a run does not fit other settings, or these do not fit each other."""
    fixed_here = (*_FIXED, *(["distributed.num_workers"] if config.distributed.mode == "async" else []))
    network, replays = getattr(config.algorithm, "network", None), config.algorithm.plan_class is Replay
    has_memory = getattr(network, "recurrent", None) is not None or hasattr(config.algorithm, "memory_size")
    if replays and has_memory:  # the buffer keeps a hidden state for each sequence
        fixed_here += ("algorithm.mini_batch_length",)
    envs, free = (config.env, changed.env), _FREE  # of what steps environments one by one, nothing changes a bit
    if {env.vectorization for env in envs} <= {"auto", "serial", "thread", "process"} and not any(map(as_one, envs)):
        free += ("env.vectorization", *([] if envs[0].num_ready else ["env.num_workers"]))
    for path, (old, new) in changes.items():
        if path not in free and any(path == fixed or path.startswith(f"{fixed}.") for fixed in fixed_here):
            given = f"it is {old!r}, {new!r} was given"
            yield f"{path} cannot change in a run that continues ({given}); train a new run instead"
    yield from (problem for problem in _senseless(changed) if problem not in [*_senseless(config)])
    if (pool := config.agents.self_play.pool_size) and not changed.agents.self_play.pool_size:
        yield (
            f"agents.self_play.pool_size cannot become 0 in a run that continues (it is {pool}): snapshots play in its "
            "running episodes; give at least 1"
        )
    runtimes = config.distributed.runtime, changed.distributed.runtime
    if None in runtimes and runtimes != (None, None):
        yield (
            f"distributed.runtime cannot become {runtimes[1]} in a run that continues (it is {runtimes[0]}): runs with "
            "workers keep other things; between local, process and ray it can change"
        )


def _moved_schedules(before: ExperimentConfig, after: ExperimentConfig, env_steps: int) -> str:
    """Where schedules stand with another budget, and where they stood."""
    old, new = (
        scheduled_values(one.algorithm, min(1.0, env_steps / one.trainer.total_env_steps)) for one in (before, after)
    )
    moved = [name for name in old if new.get(name, old[name]) != old[name] and name not in after.algorithm.idle]
    return ", ".join(f"{name} from {old[name]:.3g} to {new[name]:.3g}" for name in moved)


def changes_between(old: ExperimentConfig, new: ExperimentConfig) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, by path: (old value, new value), as in a configuration file.

    Args:
        old: one configuration.
        new: another.

    Examples:
        >>> from palaestra import preset
        >>> changes_between(preset("ppo", "CartPole-v1"), preset("ppo", "Acrobot-v1"))["env.name"]
        ('CartPole-v1', 'Acrobot-v1')
    """
    before, after = flat_settings(old), flat_settings(new)
    paths = [*before, *(path for path in after if path not in before)]
    pairs = {path: (before.get(path), after.get(path)) for path in paths}
    one_lacks = {*before} ^ {*after}  # an entry of a mapping, which may be None where it is there
    if type(old.algorithm) is not type(new.algorithm):
        one_lacks = {path for path in one_lacks if not path.startswith("algorithm.")}  # it has other fields
    differ = {path: (a, b) for path, (a, b) in pairs.items() if a != b or path in one_lacks}
    whole = {path for path, pair in differ.items() if {} in pair and any(one.startswith(f"{path}.") for one in paths)}
    return {path: pair for path, pair in differ.items() if path not in whole}  # whose entries are there
