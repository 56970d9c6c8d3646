"""Objects by name: `my_package.module:attribute` on the Python path, never a registry."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from palaestra.core import ConfigError, did_you_mean

__all__ = ["import_object", "importable_name"]


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
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{name!r} names the module {module_name!r}, which cannot be imported: {error}. "
            f"It must be installed or on the Python path ({', '.join(sys.path[:3])}, ...)"
        ) from error
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
