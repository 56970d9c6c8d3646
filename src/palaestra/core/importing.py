"""Objects by name: `my_package.module:attribute` on the Python path, never a registry."""

import importlib
import sys
import traceback
from pathlib import PurePosixPath
from typing import Any

from palaestra.core.errors import ConfigError, MissingExtraError, PalaestraError, did_you_mean

__all__ = ["import_extra", "import_module", "import_object", "importable_name"]


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
        raise ConfigError(
            f"{name!r} names the module {module_name!r}; importing it raised {type(error).__name__}: {error}{trace}"
        ) from error


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
    if not module_name or not attribute:
        raise ConfigError(f"{name!r} is not of the form my_package.module:attribute")
    found = import_module(module_name, name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"module {module_name!r} has no {attribute!r}{did_you_mean(part, _public(found))}")
        found = getattr(found, part)
    return found


def importable_name(value: Any) -> str | None:
    """The name under which `import_object` finds a class or function; `None` if there is none.

    Args:
        value: for example a class. What a script itself defines has no such name.
    """
    module, attribute = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not module or module == "__main__" or not attribute or "<" in attribute:
        return None
    try:
        name = f"{module}:{attribute}"
        return name if import_object(name) is value else None
    except ConfigError:
        return None


def _public(module: Any) -> list[str]:
    return [name for name in dir(module) if not name.startswith("_")]
