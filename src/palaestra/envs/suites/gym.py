"""Environments of Gymnasium's registry."""

import copy
import functools
import importlib.metadata
import importlib.util
import inspect
import itertools
import logging
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from palaestra.core import ConfigError, EnvError, MissingExtraError, PalaestraError, did_you_mean, import_module
from palaestra.core.errors import is_news
from palaestra.core.importing import code_of
from palaestra.envs.contract.spaces import IMAGE_ONLY
from palaestra.envs.suites.suite import Native, Single
from palaestra.envs.supervision.faults import describe

PREFIX = ""
"""Every name: this suite is asked where no other knows it."""

NO_LIMIT = 1 << 30
"""A time limit that is never reached, for pools that cannot be without one and count in 32 bits."""

_log = logging.getLogger(__name__)
_WARNED = set[str]()
# Shells around environments of Gymnasium's predecessors; they cannot be made by their name alone.
_ADAPTERS = ("GymV21Environment", "GymV26Environment")
# Packages that register environments when they are imported, by how the ids begin: (package, extra, if it is in one).
_REGISTERED_BY = {
    "ALE/": ("ale_py", "atari"),
    "dm_control/": ("shimmy", "dm-control"),
    "bsuite/": ("shimmy", "bsuite"),
    **dict.fromkeys(("MiniGrid-", "BabyAI-"), ("minigrid", "")),
    "Meta-World/": ("metaworld", ""),
    **dict.fromkeys(
        ("Fetch", "HandReach", "HandManipulate", "AdroitHand", "PointMaze", "AntMaze", "FrankaKitchen"),
        ("gymnasium_robotics", "robotics"),
    ),
}
# What to do where one that is in no extra is missing.
_INSTALLED_BY = {
    "minigrid": (
        f"pip install minigrid, and name it minigrid:{{name}} with --env.gym-wrappers {IMAGE_ONLY}, for its "
        "observations have a text"
    ),
    "metaworld": (
        "`palaestra venv create metaworld` makes a Python environment for it; one of its tasks is metaworld:Meta-World/"
        """goal_observable with --env.kwargs '{{"env_name": "reach-v3"}}'"""
    ),
}
# Versions of MuJoCo that packages run with: (package, lowest, first that is too new, what fails elsewhere). They were
# tried, or asked for, by gymnasium-robotics 1.4.2, dm-control 1.0.50, metaworld 3.1.1 and mjlab 1.6.0.
_MUJOCO_OF = (
    ("gymnasium_robotics", "3.0", "3.12", "its Fetch, Hand and Kitchen tasks"),
    ("dm_control", "3.17", "4.0", "its tasks"),
    ("metaworld", "3.3", "3.3.1", "its tasks, for which 3.3.0 is asked,"),
    ("mjlab", "3.11", "4.0", "its tasks"),
)
# What an entry point needs: (part of its name, package, extra).
_ENTRY_POINTS = (
    ("dm_control", "dm_control", "dm-control"),
    ("bsuite", "bsuite", "bsuite"),
    ("robotics", "mujoco", "robotics"),
    ("box2d", "Box2D", "box2d"),
    ("mujoco", "mujoco", "mujoco"),
)


class RegisteredEnvironment(NamedTuple):
    """An environment that can be named."""

    name: str
    """Its id."""
    suite: str
    """Which family it is of, for example `classic_control`."""
    max_episode_steps: int | None
    """Its registered time limit."""
    native: bool
    """Whether it has a vectorised version of its own."""


def single(name: str, kwargs: dict[str, Any], limit: int | None) -> Single:
    """A bare environment of the registry: without Gymnasium's own time limit, order check and environment check."""
    if "max_episode_steps" in kwargs:
        raise ConfigError(f"env.kwargs has max_episode_steps, which {name!r} does not take; give env.max_episode_steps")
    spec = find_spec(name)
    bare = copy.deepcopy(spec)
    bare.order_enforce = False
    inside = limit is None and bool(spec.additional_wrappers)  # these see the registered limit, as with Gymnasium
    own: dict[str, Any] = {"max_episode_steps": None if inside else -1, "disable_env_checker": True}
    env = _made(spec, kwargs, lambda: gymnasium.make(bare, **own, **kwargs))
    if type(env.unwrapped).__module__ == "shimmy.dm_control_compatibility":  # milliseconds of a step
        env.metadata = {**env.metadata, "render_fps": round(1 / env.unwrapped.dt)}
    return Single(env, 0 if inside else (spec.max_episode_steps or 0) if limit is None else limit)


def native(name: str, num_envs: int, kwargs: dict[str, Any], limit: int | None) -> Native:
    """The vectorised version that an id is registered with."""
    return Native(pool(name, num_envs, with_limit(kwargs, limit)))


def with_limit(kwargs: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """Arguments of a pool that has its time limit from them."""
    return kwargs if limit is None else {**kwargs, "max_episode_steps": limit or NO_LIMIT}


def pool(name: str, num_envs: int, kwargs: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
    """The vectorised version that an id is registered with, with these arguments of its constructor."""
    spec = find_spec(name)
    if spec.vector_entry_point is None:
        raise ConfigError(f"{name!r} has no vectorised version of its own; use vectorization=serial or process")
    mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
    return _made(spec, kwargs, functools.partial(gymnasium.make_vec, spec, num_envs, vectorization_mode=mode, **kwargs))


def find_spec(name: str) -> EnvSpec:
    """What the registry knows about an id; packages of known namespaces are imported for it.

    Raises:
        ConfigError: no such id.
        MissingExtraError: its namespace belongs to a package that is not installed.
    """
    module, colon, rest = name.partition(":")
    if colon:
        _import_quietly(module, name)
        name = rest
    for prefix, (package, extra) in _REGISTERED_BY.items():
        if name.startswith(prefix):
            if not extra and importlib.util.find_spec(package) is None:
                advice = _INSTALLED_BY[package].format(name=name)
                raise ConfigError(f"{name!r} is of the package {package}, which is not installed: {advice}")
            _import_quietly(package, name, extra)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        said = str(error).partition(" Did you mean: `")[0]  # a name without a version is no id
        own = f"{module}:" if colon else ""  # what registers an id has to be imported whenever it is looked up
        known = _today(name, own) or did_you_mean(name, gymnasium.registry, "").replace("mean '", f"mean '{own}")
        namespace, advice = name.partition("/")[0], 'An environment of your own is named "my_package:MyEnvironment"'
        lost = isinstance(error, gymnasium.error.NamespaceNotFound)
        if not colon and lost and namespace not in sys.stdlib_module_names and code_of(namespace):
            advice = f"It is installed and was not imported; write {namespace}:{name}"
        elif colon and not known:
            advice = (
                f"The module {module!r} was imported and did not register it; if one of its functions does, call that "
                f"in a module of your own, mine.py, and write mine:{name}"
            )
        raise ConfigError(f"no environment {name!r} in Gymnasium's registry: {said}{known} {advice}") from error


def registered_limit(name: str) -> int | None:
    """The time limit that an id is registered with; `None` without one.

    Packages of known namespaces are imported for ids that are not registered yet, modules that a name begins with not.
    """
    try:
        spec = gymnasium.registry.get(name) or (None if ":" in name else find_spec(name))
    except PalaestraError:  # what makes the environment will say it
        return None
    return None if spec is None else spec.max_episode_steps


def _today(name: str, module: str = "") -> str:
    """The end of a message that says how an id of another version or package is called now; empty if it is not."""
    game = re.sub(r"(NoFrameskip|Deterministic)?(-v\d+)?$", "", name.rpartition("/")[2])
    if name.startswith("MinAtar/"):
        here = next((own.name for own in own_environments() if own.name.endswith(f"MinAtar{game}")), "")
        ours = f" — this library has the game, without the package, as {here!r}." if here else ""
        own = f"mine:{name}, where mine.py calls minatar.gym.register_envs()"
        return ours and f"{ours} The package's own environment is {own}."
    emulator = importlib.util.find_spec("ale_py")  # which is not imported: it would register the old ids
    rom = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", game).lower()
    if emulator is not None and emulator.origin and (Path(emulator.origin).parent / f"roms/{rom}.bin").exists():
        return f" — did you mean 'ALE/{game}-v5'?"
    alike = [spec for spec in gymnasium.registry.values() if spec.name == game and not spec.namespace]
    newest = max(alike, key=lambda spec: spec.version or 0, default=None)
    return f" — did you mean '{module}{newest.id}'?" if newest is not None and newest.id != name else ""


def registered_environments() -> list[RegisteredEnvironment]:
    """The newest version of every environment in the registry, by suite and name.

    Examples:
        >>> [env for env in registered_environments() if env.name == "CartPole-v1"][0].suite
        'classic_control'
    """
    by_version = sorted(gymnasium.registry.values(), key=lambda spec: spec.version or 0)
    newest = {(spec.namespace, spec.name): spec for spec in by_version}
    found = [
        RegisteredEnvironment(spec.id, _suite(spec), spec.max_episode_steps, spec.vector_entry_point is not None)
        for spec in newest.values()
        if spec.name not in _ADAPTERS
    ]
    return sorted(found, key=lambda env: (env.suite, env.name))


def own_environments() -> list[RegisteredEnvironment]:
    """Environments of this library, which are named by their class.

    Examples:
        >>> "palaestra.envs:ConnectFour" in [env.name for env in own_environments()]
        True
    """
    modules = {name: vars(import_module(name, name)) for name in ("palaestra.envs", "palaestra.envs.tiny")}
    worlds = tuple(f"palaestra.envs.{folder}" for folder in ("worlds", "tiny", "simulators"))
    return [
        RegisteredEnvironment(f"{module}:{name}", "palaestra", None, getattr(kind, "batched", False))
        for module, names in modules.items()
        for name, kind in sorted(names.items())
        if isinstance(kind, type) and kind.__module__.startswith(worlds)
        if hasattr(kind, "step") and not inspect.isabstract(kind)
    ]


def _suite(spec: EnvSpec) -> str:
    """`classic_control` of `gymnasium.envs.classic_control.cartpole:CartPoleEnv`; else the package."""
    if spec.namespace:
        return spec.namespace
    place = spec.entry_point.__module__ if callable(spec.entry_point) else str(spec.entry_point)
    parts = place.split(":")[0].split(".")
    return parts[2] if parts[:2] == ["gymnasium", "envs"] and len(parts) > 2 else parts[0]


def _made(spec: EnvSpec, kwargs: dict[str, Any], make: Callable[[], Any]) -> Any:
    """The environment that `make` makes, or an error that says what to install or to change."""
    needs = [(package, extra) for part, package, extra in _ENTRY_POINTS if part in str(spec.entry_point)]
    for package, extra in needs[:1]:
        _import_quietly(package, spec.id, extra)
    try:
        return make()
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise ConfigError(
            f"the environment {spec.id!r} needs a package that is not installed: {error}{_today(spec.id)}"
        ) from error
    except (TypeError, gymnasium.error.Error) as error:
        raise ConfigError(f"{spec.id!r} cannot be made with the arguments {kwargs}: {error}") from error
    except Exception as error:
        for package, advice in mujoco_misfits().items():
            if package in str(spec.entry_point):
                raise ConfigError(f"{spec.id!r} cannot be made: {advice}") from error
        raise EnvError(f"{spec.id!r} raised {': '.join(describe(error))}") from error


def mujoco_misfits() -> dict[str, str]:
    """What is wrong, and what to install, by each installed package that MuJoCo is too old or too new for."""
    found, installed = dict[str, str](), _version("mujoco")
    for package, lowest, too_new, what in _MUJOCO_OF:
        own = _version(package)
        if own and installed and not _at(lowest) <= _at(installed) < _at(too_new):
            found[package] = (
                f"{package} {own} needs MuJoCo from {lowest} to below {too_new}; with {installed}, which is installed, "
                f"{what} fail: pip install 'mujoco>={lowest},<{too_new}', in a Python environment of its own where "
                "something else needs another MuJoCo, as palaestra venv create makes it"
            )
    return found


def _version(package: str) -> str:
    """Of an installed package; empty where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _at(version: str) -> tuple[int, ...]:
    """Numbers to compare; a word ends them."""
    return tuple(int(part) for part in itertools.takewhile(str.isdigit, version.split(".")))


def _import_quietly(package: str, name: str, extra: str = "") -> None:
    """Imports what an environment is made of. Its warnings are not ours, and Box2D crashes where they are errors."""
    if extra and importlib.util.find_spec(package) is None:
        raise MissingExtraError(package, extra, f"the environment {name!r}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: Any = import_module(package, name)
    if package == "mujoco":
        quiet_mujoco(module)


def quiet_mujoco(mujoco: Any) -> None:
    """Logs what MuJoCo would print, and write to a file, for every environment that is made or is unstable.

    Args:
        mujoco: the module.
    """
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_log_warning)


def _log_warning(text: str) -> None:
    """Logs each kind of MuJoCo's warnings once, whatever times and places it names."""
    kind = re.sub(r"\d+", "", text)
    if kind not in _WARNED:
        _WARNED.add(kind)
        is_theirs = "deprecated" in text  # of Gymnasium's model
        level = logging.DEBUG if is_theirs or not is_news(kind) else logging.WARNING
        _log.log(level, "MuJoCo: %s", text)
