"""`palaestra list`, `show-code`, `bench`, `check-env` and `doctor`: what there is, and whether it works."""

import importlib.util
import json
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.markup import escape

from palaestra import experiments
from palaestra.cli.options import EnvOptions, ExperimentOptions, JsonOptions, RunOptions, counter, print_table
from palaestra.config.presets import tuned
from palaestra.core import CheckpointError, ConfigError, available_devices, readable
from palaestra.core.computing import num_cores
from palaestra.core.reading import read_json, read_text
from palaestra.deployment import zoo_policies
from palaestra.envs import CheckReport, EnvConfig
from palaestra.envs.check import check
from palaestra.envs.suites.envpool import pools
from palaestra.envs.suites.gym import mujoco_misfits, own_environments, registered_environments
from palaestra.multiagent import check_multi_agent_env, is_multi_agent, load_multi_agent_env
from palaestra.runs.computed import package_version

_NEWEST = 20  # runs that are shown


@dataclass(frozen=True, kw_only=True)
class ListOptions(RunOptions):
    """Options of `palaestra list`."""

    all: bool = False
    """Show all runs, and not the newest 20 alone; of environments EnvPool's tasks, too."""


def list_all(what: str, options: ListOptions) -> int:
    """Lists algorithms with what they support, environments, presets, trained policies to pull, and runs."""
    lists = {
        "algorithms": _algorithms, "envs": _environments, "presets": _presets, "policies": _policies, "runs": _runs
    }  # fmt: skip
    chosen = (what,) if what else ("algorithms", "presets", "runs")
    if options.json:
        print(json.dumps({name: lists[name](options).values for name in chosen}))
        return 0
    for name in chosen:
        found = lists[name](options)
        if found.rows:
            print_table(found.head, found.rows)
        for note in found.notes:
            print(note)
    return 0


class _Listing(NamedTuple):
    values: list[Any]
    """For JSON."""
    head: list[str]
    rows: list[tuple[Any, ...]]
    notes: Sequence[str] = ()
    """Lines below the table."""


def _algorithms(options: ListOptions) -> _Listing:
    entries = experiments.algorithm_catalogue(observations=options.json)  # which the table does not show
    rows = [(one.name, one.summary, one.data, ", ".join(one.actions), ", ".join(one.features)) for one in entries]
    head = ["algorithm", "what it does", "data", "actions", "features"]
    return _Listing([asdict(one) for one in entries], head, rows)


def _environments(options: ListOptions) -> _Listing:
    envs = [*own_environments(), *registered_environments(), *(pools() if options.all else [])]
    rows = [(env.name, env.suite, env.max_episode_steps or "", "yes" if env.native else "") for env in envs]
    notes = [] if options.all else ["EnvPool's tasks, `envpool:TASK`: --all"]
    head = ["environment", "suite", "time limit", "native vector"]
    return _Listing([env._asdict() for env in envs], head, rows, notes)


def _presets(options: ListOptions) -> _Listing:
    known: dict[str, list[str]] = {}
    for algorithm, env in tuned():
        known.setdefault(algorithm, []).append(env)
    rows = [(name, ", ".join(envs)) for name, envs in known.items()]
    return _Listing([list(key) for key in tuned()], ["algorithm", "tuned for"], rows)


def _policies(options: ListOptions) -> _Listing:
    found = zoo_policies()
    rows = []
    for one in found:
        low, high = one.return_ci95
        reached = f"{one.return_mean:,.1f} ± {(high - low) / 2:,.1f}"
        chance = f"{one.random_mean:,.1f}"
        if one.elo_ci95 is not None:  # of two that play against each other, returns cancel out
            reached, chance = f"Elo {one.elo_ci95[0]:+.0f} to {one.elo_ci95[1]:+.0f}", "Elo 0"
        rows.append((f"zoo:{one.name}", f"{one.env_steps:,}", reached, chance, f"{one.size_bytes / 1000:,.0f} kB"))
    notes = ["get one with `palaestra pull zoo:ALGORITHM/ENVIRONMENT`; returns with the 95% interval of their mean"]
    head = ["policy", "env steps", "return", "random actions", "size"]
    return _Listing([asdict(one) for one in found], head, rows, notes)


def _runs(options: ListOptions) -> _Listing:
    runs = [experiments.RunDirectory(path) for path in experiments.list_runs(options.root)]
    groups = experiments.list_groups(options.root)
    most = 0 if options.all or options.json else _NEWEST
    values, groups = [_run(run) for run in runs[-most:]], groups[-most:]
    states = {path: [experiments.RunDirectory(run.parent).status for run in path.glob("*/run.json")] for path in groups}
    values += [{"path": str(path), "seeds": _seeds(path), "seeds_done": states[path].count("done")} for path in groups]
    if not runs:
        return _Listing(values, [], [], ["no runs yet; start one with `palaestra train ppo CartPole-v1`"])
    rows = []
    for run in values[: -len(groups) or None]:
        best, steps = run["best_return"], f"{run['done']:,} {run['unit']}"
        rows.append((run["path"], run["status"], steps, "" if best is None else readable(best)))
    notes = [f"the newest {most} of {len(runs)}; --all shows all"] if 0 < most < len(runs) else []
    for path in groups:
        notes.append(f"{path}  {states[path].count('done')} of {len(states[path])} seeds done")
    return _Listing(values, ["run", "status", "done", "best return"], rows, notes)


def _run(run: experiments.RunDirectory) -> dict[str, Any]:
    steps = {"done": run.steps_done, "unit": run.info.get("unit", "env steps")}
    return {"path": str(run.path), "status": run.status, **steps, "best_return": run.kept_return}


def _seeds(group: Path) -> Any:
    try:
        return read_json(group / "group.json").get("seeds")
    except (CheckpointError, AttributeError):  # damaged
        return None


@dataclass(frozen=True, kw_only=True)
class ShowOptions(JsonOptions):
    """Options of `palaestra show-code`."""

    flat: bool = False
    """Print the algorithm as one script on torch, numpy and Gymnasium alone, which learns the same (ppo, dqn, sac)."""


def show_code(name: str, options: ShowOptions) -> int:
    """Prints the one file that is an algorithm."""
    path = _single_file(name) if options.flat else experiments.algorithm_source(name)
    text = read_text(path)
    if options.json:
        sys.stdout.write(json.dumps({"path": str(path), "code": text}) + "\n")
    elif sys.stdout.isatty():
        from rich.syntax import Syntax

        Console().print(Syntax(text, "python"))
    else:
        sys.stdout.write(text)
    return 0


def _single_file(name: str) -> Path:
    """Where the single-file script of an algorithm is: in an installed package, or in a checkout's examples."""
    experiments.algorithm_source(name)
    package = Path(__file__).resolve().parents[1]
    folders = (package / "single_file", package.parents[1] / "examples" / "single_file")
    scripts = {path.stem: path for folder in folders for path in sorted(folder.glob("*.py"))}
    if name not in scripts:
        raise ConfigError(f"{name} has no single-file script; those that have one are {', '.join(scripts) or 'none'}")
    return scripts[name]


_EXTRAS = {
    "ray": ("ray", "runs on a cluster"), "atari": ("ale_py", "Atari games"), "box2d": ("Box2D", "LunarLander etc."),
    "mujoco": ("mujoco", "MuJoCo tasks"), "dm-control": ("dm_control", "tasks of dm_control"),
    "bsuite": ("bsuite", "tasks of bsuite"), "robotics": ("gymnasium_robotics", "mazes, hands and arms"),
    "envpool": ("envpool", "pools of environments in C++"), "jax": ("jax", "simulators in JAX"),
    "multiagent": ("pettingzoo", "PettingZoo's games"), "offline": ("minari", "data sets of Minari and D4RL"),
    "plot": ("matplotlib", "plots as PNG and SVG"), "video": ("imageio", "play, films"),
    "tensorboard": ("tensorboard", "metrics in TensorBoard"), "wandb": ("wandb", "metrics in Weights & Biases"),
    "mlflow": ("mlflow", "metrics in MLflow"), "trackio": ("trackio", "metrics in Trackio"),
    "tune": ("optuna", "search for settings"), "export": ("onnxscript", "ONNX files"),
    "serve": ("uvicorn", "policies over HTTP"), "hub": ("huggingface_hub", "policies on the Hugging Face Hub"),
    "compression": ("cramjam", "pictures compressed in buffers"),
}  # fmt: skip
"""A module of each extra in pyproject.toml, and what it is for."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions(EnvOptions):
    """Options of `palaestra bench`."""

    duration_s: float = 1.0
    """Seconds of one repetition."""
    repetitions: int = 3
    """Number of measurements."""

    @classmethod
    def defaults(cls, arguments: Sequence[str], options: Mapping[str, list[str]]) -> Any:
        """Settings of the environment; of a run where an algorithm is named, too."""
        return (ExperimentOptions if arguments[0] else super()).defaults(arguments, options)


def bench(algorithm: str, env: str, options: BenchOptions | ExperimentOptions) -> int:
    """Measures env steps per second: of an environment under random actions, or of an algorithm that learns in it."""
    if isinstance(options, ExperimentOptions):
        estimate = experiments.dry_run(options.experiment())
        options.show(asdict(estimate), str(estimate).split("\n")[0])
        return 0
    speed = experiments.bench_environment(options.env, duration_s=options.duration_s, repetitions=options.repetitions)
    options.show(asdict(speed), str(speed))
    return 0


@dataclass(frozen=True, kw_only=True)
class CheckOptions(EnvOptions):
    """Options of `palaestra check-env`."""

    steps: int = 1000
    """Env steps of each of three runs that are compared; ends that none of them reaches are not seen."""


def check_env(name: str, options: CheckOptions) -> int:
    """Checks an environment against what its specs promise.

    Returns:
        0 where it keeps every rule, 3 where it does not.
    """
    env, steps = options.env, options.steps
    many, stepped = is_multi_agent(env.name), counter(3 * steps, "steps")
    report = _env_report(env, steps, stepped) if many else check(env, steps=steps, progress=stepped)
    options.show(asdict(report) | {"ok": report.ok}, str(report))
    return 0 if report.ok else 3


def _env_report(env: EnvConfig, steps: int, progress: Callable[[], None]) -> CheckReport:
    if env != EnvConfig(name=env.name, kwargs=env.kwargs):
        raise ConfigError(f"{env.name} has many agents; of env, only env.kwargs means something for its check")
    make = partial(load_multi_agent_env, env.name, env.kwargs)
    return replace(check_multi_agent_env(make, steps=steps, progress=progress), name=env.name)


def doctor(options: JsonOptions) -> int:
    """Says what this installation has, and what is missing for what."""
    devices = [d if d == "cpu" else f"{d} ({torch.cuda.get_device_name(d)})" for d in available_devices()]
    findings: list[tuple[str, bool | None, str]] = [
        ("python", sys.version_info >= (3, 11), platform.python_version()),
        *((name, *_package(name)) for name in ("torch", "gymnasium", "numpy", "safetensors")),
        ("devices for --device", True, ", ".join(devices)),
        ("cores", True, f"{num_cores()}, torch uses {torch.get_num_threads()} threads"),
        ("C++ compiler for --compile", *_compiler()),
        ("this folder can be written", *_writable(".")),
        ("temporary folder can be written", *_writable(tempfile.gettempdir())),
    ]
    for extra, (module, purpose) in _EXTRAS.items():
        present = importlib.util.find_spec(module) is not None
        note = purpose if present else f"{purpose}: pip install 'palaestra[{extra}]'"
        findings.append((f"extra {extra}", present or None, note))
    findings += [(f"MuJoCo for {package}", None, advice) for package, advice in mujoco_misfits().items()]
    if options.json:
        print(json.dumps([{"what": what, "ok": ok is not False, "note": note} for what, ok, note in findings]))
    else:
        console = Console(highlight=False, emoji=False)
        for what, ok, note in findings:
            mark = "[green]ok  [/]" if ok else "[yellow]none[/]" if ok is None else "[red]no  [/]"
            console.print(f"{mark} {what}  {escape(note)}")
    return 0 if all(ok is not False for _, ok, _ in findings) else 2


def _package(name: str) -> tuple[bool, str]:
    return (version := package_version(name)) is not None, version or f"pip install {name}"


def _compiler() -> tuple[bool | None, str]:
    found = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    return (True, found) if found else (None, "install g++ or clang; training works without, only slower")


def _writable(folder: str) -> tuple[bool, str]:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True, str(Path(folder).absolute())
    except OSError as error:
        return False, str(error)
