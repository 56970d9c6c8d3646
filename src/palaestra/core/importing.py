"""Objects by name: `my_package.module:attribute` on the Python path, never a registry."""

import ast
import contextlib
import importlib
import importlib.util
import itertools
import logging
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from palaestra.core.errors import ConfigError, MissingExtraError, PalaestraError, did_you_mean, no_screen

__all__ = ["import_extra", "import_maker", "import_module", "import_object", "importable_name", "trust"]

_log = logging.getLogger(__name__)

_PACKAGE = Path(__file__).resolve().parents[1]
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
# Also an id of a registry, my_package:2048-v0, and what follows a prefix: both a:b and b:c of a:b:c.
_NAMED = re.compile(r"(?<![\w.])([\w.]++):(?=(\w[\w.]*))")
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu):\d+")
GIVEN = "__given__"
"""The module, in this process alone, of what has no name that another program could find."""
_trusted: set[Path] = set()
_own: set[Path] = set()


def import_module(module_name: str, name: str) -> Any:
    """A module on the Python path.

    Args:
        module_name: such as `my_package.module`.
        name: that it is a part of, for messages.

    Raises:
        ConfigError: there is no such module, the name is that of a file, or importing it raised an error.
    """
    if module_name.startswith(".") or module_name.endswith(".py") or {"/", "\\"} & set(module_name):
        file = PurePosixPath(module_name.replace("\\", "/"))
        stem = file.name.removesuffix(".py").strip(".") or "my_module"
        folder = "that folder" if str(file.parent) == "." else f"the folder {str(file.parent)!r}"
        raise ConfigError(
            f"{name!r} names a file, and code is named by its module, as in an import statement. Run from {folder}, or "
            f"put it on PYTHONPATH, and write {stem}:{name.rpartition(':')[2]}"
        )
    if not _MODULE.fullmatch(module_name):
        raise ConfigError(f"{name!r} names the module {module_name!r}, which an import statement could not name")
    if ":" in name and not re.match(r"\w", name.partition(":")[2]):
        raise ConfigError(f"{name!r} names nothing in the module {module_name!r}; write my_package.module:attribute")
    try:
        return importlib.import_module(module_name)
    except PalaestraError:
        raise
    except ImportError as error:
        raise ConfigError(
            f"{name!r} names the module {module_name!r}, which cannot be imported: {error}. "
            f"It must be installed or on the Python path ({', '.join(sys.path[:3])}, ...)"
        ) from error
    except (Exception, SystemExit) as error:
        trace = "" if isinstance(error, SyntaxError) else f"\n\n{''.join(traceback.format_exception(error))}"
        found = no_screen(error) or f"raised {type(error).__name__}: {error}{trace}"
        raise ConfigError(f"{name!r} names the module {module_name!r}; importing it {found}") from error


def import_extra(module_name: str, extra: str, purpose: str) -> Any:
    """A module of an optional dependency.

    Args:
        module_name: such as `matplotlib.figure`.
        extra: the extra of this project that brings it.
        purpose: what it is needed for.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        raise MissingExtraError(module_name.partition(".")[0], extra, purpose) from error


def import_object(name: str) -> Any:
    """What `my_package.module:attribute` names on the Python path.

    Args:
        name: with exactly one colon.

    Raises:
        ConfigError: there is no such module or attribute; or the module itself failed to import.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not _MODULE.fullmatch(attribute):
        raise ConfigError(f"{name!r} is not of the form my_package.module:attribute")
    if module_name == GIVEN and not hasattr(sys.modules.get(GIVEN), attribute):
        raise ConfigError(
            f"{name!r} is an object that was given to a program from Python, and this is another process; put what "
            "makes it into a module, and train with its name, my_module:make"
        )
    found = import_module(module_name, name)
    for part in attribute.split("."):
        if not hasattr(found, part) and module_name == "__main__":
            raise ConfigError(
                f"{name!r} is of the script in which it was named, and this is another program; move it into a module, "
                "and import it from there, or do this in that script"
            )
        if not hasattr(found, part):
            raise ConfigError(f"module {module_name!r} has no {attribute!r}{did_you_mean(part, _public(found))}")
        found = getattr(found, part)
    return found


def import_maker(name: str, what: str, fits: Callable[[type], bool]) -> Callable[..., Any]:
    """The class, or the function that makes its objects, that a name means.

    Args:
        name: `my_package.module:attribute`.
        what: is needed, for the message: `"an environment"`.
        fits: whether a class is one.

    Raises:
        ConfigError: it is anything else, or part of Python itself, such as `os:system`; or as for `import_object`.
    """
    found = import_object(name)
    made = found
    if callable(found) and not isinstance(found, type):
        try:
            made = typing.get_type_hints(found).get("return")
        except (TypeError, NameError, AttributeError):  # no function, or annotations of names that only a checker sees
            made = None
        made = typing.get_origin(made) or made
    python = _home(found) in sys.stdlib_module_names
    if not callable(found) or python or (isinstance(made, type) and not fits(made)):
        raise ConfigError(f"{name!r} is {found!r}; {what} is needed: a class, or a function that makes one")
    return found


def parse_call(text: str, what: str, example: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments in a text such as `"my_package:Name(gain=2.0)"`.

    Args:
        text: a name, or a call with named arguments that are literals.
        what: it means, for the message: `"the wrapper"`.
        example: of such a call, for the message.

    Raises:
        ConfigError: the text is neither.
    """
    name, bracket, arguments = text.partition("(")
    kwargs: dict[str, Any] = {}
    if bracket:
        try:
            call = ast.parse(f"_({arguments}", mode="eval").body
            if not isinstance(call, ast.Call) or call.args or any(word.arg is None for word in call.keywords):
                raise ValueError("arguments need names")
            kwargs = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        except (SyntaxError, ValueError) as error:
            raise ConfigError(
                f"{what} {text!r} cannot be read: {error}; write a name, or a call with named arguments such "
                f"as {example!r}"
            ) from None
    return name.strip(), kwargs


def code_of(name: str) -> Path | None:
    """The file or folder of the module that `import_object` would import, found without importing anything.

    Args:
        name: `my_package.module:attribute`, or the name of a module.

    Returns:
        Its path, without a suffix where it is a part of a package, whether it is there or not; `Path()` for what is
        built into Python, `None` where there is no such package.
    """
    package, *inner = name.partition(":")[0].split(".")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ()) or [spec.origin if spec.has_location else ""]
    if inner:  # a package without `__init__.py` may lie in several places
        places.sort(key=lambda place: not any(Path(str(place)).glob(f"{inner[0]}*")))
    return Path(str(places[0]), *inner).resolve() if places[0] else Path()


def trust(directory: str | Path) -> None:
    """Lets this process import the code that files below a directory name, wherever that code lies.

    Args:
        directory: of a run, of a group of runs, or a folder of them.
    """
    _trusted.add(Path(directory).resolve())


def trust_own(directory: str | Path) -> None:
    """Lets this process import what files of the user's own run name, but for code in the run.

    Args:
        directory: where the run is.
    """
    _own.add(Path(directory).resolve())


def trusts(directory: str | Path) -> bool:
    """Whether everything that files of a directory ask for was allowed by `trust`.

    Args:
        directory: of the files.
    """
    return any(Path(directory).resolve().is_relative_to(trusted) for trusted in _trusted)


def is_trusted(name: str, directory: str | Path) -> bool:
    """Whether code may be imported because a file of a directory names it.

    It may if the directory was trusted; else if it is this library's own, and not what a module of it imports from
    elsewhere. Code in a run may not. Other code may if the run is the user's own (`trust_own`), or if it lies in the
    working directory: neither installed there, nor in the folder of it that holds `directory`.

    Args:
        name: `my_package.module:attribute`, or the name of a module.
    """
    code, run, here = code_of(name), Path(directory).resolve(), Path.cwd()
    if code is None or trusts(run):
        return True
    if code.is_relative_to(_PACKAGE):
        return _is_of_this_library(name)
    if code.is_relative_to(run) or in_run(code):
        return False
    if _is_own(run):
        return True
    if not code.is_relative_to(here) or {"site-packages", "dist-packages"} & set(code.parts):
        return False
    # somebody may have packed it beside the run
    return not (run.is_relative_to(here) and code.is_relative_to(Path(here, *run.relative_to(here).parts[:1])))


def strange_code(
    data: Any, directory: str | Path, path: str = "", plain: Mapping[str, tuple[str, ...]] = types.MappingProxyType({})
) -> Iterator[tuple[str, str]]:
    """The code that may not be imported because the data of a file name it (`is_trusted`).

    Arguments count, too, for what is made may import what it is given. So does what JSON has no type for: bytes and
    sets of YAML, of which settings make texts and lists.

    Args:
        path: of the data in the file, with dots.
        plain: what a text at a path begins with where it names something of a library's, and no code.

    Yields:
        Where it is named, and its name.
    """
    if isinstance(data, str):
        names = [] if _DEVICE.fullmatch(data) or data.startswith(plain.get(path, ())) else _NAMED.findall(data)
        names = dict.fromkeys(f"{module}:{attribute}" for module, attribute in names)
        yield from ((path, name) for name in names if not is_trusted(name, directory))
        if "(" in data:  # a call, whose arguments are read as Python
            with contextlib.suppress(ConfigError):
                yield from strange_code(parse_call(data, "", "")[1], directory, path)
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from strange_code(value, directory, f"{path}.{key}".lstrip("."), plain)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from strange_code(value, directory, path, plain)
    elif not (data is None or isinstance(data, int | float) or trusts(directory) or _is_own(Path(directory).resolve())):
        yield path, repr(data)[:99]


def _is_own(run: Path) -> bool:
    return any(place in _own for place in (run, *run.parents))


def _is_of_this_library(name: str) -> bool:
    try:
        return _home(import_object(name)) == _PACKAGE.name
    except PalaestraError:
        return True  # there is no such thing; what needs it will say


def _home(found: Any) -> str:
    """The top package of what was imported, or of its class."""
    return str(getattr(found, "__module__", None) or type(found).__module__).partition(".")[0]


def in_run(folder: Path) -> bool:
    """Whether a folder is of a run or a group, or lies in one: what it holds may be a stranger's.

    Args:
        folder: any.
    """
    parts = ("checkpoints", "policy/policy.json", "evals")
    return any(
        any((place / mark).exists() for mark in ("run.json", "policy.json"))
        or ((place / "group.json").exists() and any(place.glob("*/config.yaml")))
        or ((place / "config.yaml").exists() and any((place / part).exists() for part in parts))
        for place in (folder, *folder.parents)
    )


def importable_name(value: Any) -> str | None:
    """The name under which `import_object` finds a class or function; `None` if there is none.

    Args:
        value: for example a class. What a script itself defines has no such name.
    """
    module, attribute = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not module or module == "__main__" or not attribute or "<" in attribute:
        return None
    name = f"{module}:{attribute}"
    try:
        found = import_object(name)
    except ConfigError:
        return None
    same = found == value if isinstance(value, types.MethodType) else found is value  # each look at a method makes one
    return name if same else None


def moved(package: str, to: str, names: Collection[str]) -> Callable[[str], Any]:
    """A package's `__getattr__` for names that now stand elsewhere; what stands there is imported when it is asked for.

    Args:
        package: that names were imported from.
        to: the package that has them.
        names: of its classes and functions.
    """

    def attribute(name: str) -> Any:
        if name in names:
            return getattr(importlib.import_module(to), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return attribute


def name_to_find(value: Any, *, quiet: bool = False) -> str | None:
    """`importable_name`, or that of what this script itself defines, with a warning; `None` if there is none.

    Args:
        value: for example a class.
        quiet: whether nothing is said.
    """
    name, own = importable_name(value), getattr(value, "__qualname__", "<")
    if name is None and getattr(value, "__module__", None) == "__main__" and "<" not in own:
        name = f"__main__:{own}"
        text = "only this script can go on with what it trains with %s; other programs need it in a module"
        _log.log(logging.DEBUG if quiet else logging.WARNING, text, name)
    return name


def given_name(value: Any) -> str:
    """A name under which `import_object` finds an object in this process.

    Args:
        value: for example a function within another; it is kept as long as the process lives.
    """
    known = vars(sys.modules.setdefault(GIVEN, types.ModuleType(GIVEN)))
    stem = re.sub(r"\W+", "_", value.__name__).strip("_")
    names = (f"{stem}{number}" for number in itertools.chain([""], itertools.count(2)))
    return f"{GIVEN}:{next(name for name in names if known.setdefault(name, value) is value)}"


def _public(module: Any) -> list[str]:
    return [name for name in dir(module) if not name.startswith("_")]
