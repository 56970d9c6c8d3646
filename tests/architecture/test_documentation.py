"""Every public name is explained, and the arguments that it documents exist."""

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.source import ROOT, sources

PACKAGES = sorted(
    ".".join(path.parent.relative_to(ROOT / "src").parts) for path in (ROOT / "src/palaestra").rglob("__init__.py")
)
SECTION = re.compile(r"^(?P<indent> *)Args:\n(?P<body>(?:(?P=indent) +\S.*\n?|\n)+)", re.MULTILINE)


def public_names(package: str) -> Iterator[tuple[str, Any]]:
    module = importlib.import_module(package)
    for name in exported(package):
        yield name, getattr(module, name)


def exported(package: str) -> list[str]:
    """The package's own list, or those of the modules that it re-exports with `import *`."""
    module = importlib.import_module(package)
    if hasattr(module, "__all__"):
        return list(module.__all__)
    stars = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.ImportFrom)]
    modules = [importlib.import_module(node.module or "") for node in stars if node.names[0].name == "*"]
    return [name for part in modules for name in part.__all__]


def of_its_own(package: str) -> set[str]:
    """Those that stand in the package itself, and not in one whose names it passes on."""
    module = importlib.import_module(package)
    stars = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.ImportFrom)]
    own = [node.module for node in stars if (node.module or "").startswith(f"{package}.")]
    return {name for part in own for name in importlib.import_module(part or "").__all__} & set(exported(package))


def where(value: Any, package: str) -> str:
    try:
        path = Path(inspect.getsourcefile(value) or "")
        return f"{path.relative_to(ROOT)}:{inspect.getsourcelines(value)[1] or 1}"
    except (TypeError, ValueError, OSError):
        return f"src/{package.replace('.', '/')}/__init__.py:1"


def undocumented(package: str, name: str, value: Any) -> Iterator[str]:
    """The name itself, and the public methods of a class, which may inherit their docstring."""
    if inspect.isclass(value):
        # Records without a docstring are given their signature as one.
        if not value.__doc__ or value.__doc__.startswith(f"{value.__name__}("):
            yield f"{where(value, package)}: class {package}.{name} has no docstring"
        for method, member in vars(value).items():
            described = inspect.isroutine(member) or isinstance(
                member, property | cached_property | classmethod | staticmethod
            )
            if (
                described
                and not method.startswith("_")
                and not any(vars(base).get(method).__doc__ for base in value.__mro__)
            ):
                lacks = f"method {package}.{name}.{method} has no docstring, of its own or inherited"
                yield f"{where(value, package)}: {lacks}"
    elif inspect.isroutine(value):
        if not inspect.getdoc(value):
            yield f"{where(value, package)}: function {package}.{name} has no docstring"
    elif not inspect.ismodule(value) and name != "__version__" and name not in documented_assignments():
        yield f"{where(value, package)}: {package}.{name} has no docstring (a string under its assignment)"


@functools.cache
def documented_assignments() -> set[str]:
    """Module-level names of the package that are followed by a string."""
    names = set()
    for source in sources("src/palaestra"):
        for node, after in zip(source.tree.body, source.tree.body[1:], strict=False):
            explained = (
                isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            )
            if explained and isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {ast.unparse(target) for target in targets}
    return names


def argument_violations(docstring: str, function: Any) -> list[str]:
    """What an Args section says of no parameter; it may leave out what name and type say."""
    section = SECTION.search(inspect.cleandoc(docstring) + "\n")
    if not section:
        return []
    try:
        parameters = [name for name in inspect.signature(function).parameters if name not in {"self", "cls"}]
    except ValueError:
        return []
    documented = documented_arguments(section["body"])
    return [f"documents {name!r}, which is no parameter" for name in documented if name not in parameters]


def documented_arguments(body: str) -> list[str]:
    lines = [line for line in body.splitlines() if line.strip()]
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    heads = [line[indent:] for line in lines if not line[indent:].startswith(" ")]
    return [
        name.strip().lstrip("*") for head in heads for name in re.sub(r"\(.*?\)", "", head.split(":")[0]).split(",")
    ]


def callables(package: str) -> Iterator[tuple[str, str, Any]]:
    """(name, docstring, callable) of everything public that takes arguments."""
    for name, value in public_names(package):
        label = f"{package}.{name}"
        if inspect.isclass(value):
            yield label, value.__doc__ or "", value
            for method, member in inspect.getmembers(value, inspect.isroutine):
                if method in vars(value) and (method == "__call__" or not method.startswith("_")):
                    yield f"{label}.{method}", member.__doc__ or "", member
        elif inspect.isroutine(value):
            yield label, value.__doc__ or "", value


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_docstring(package):
    violations = [
        violation for name, value in public_names(package) for violation in undocumented(package, name, value)
    ]
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize("package", PACKAGES)
def test_documented_arguments_are_the_parameters(package):
    violations = [
        f"{where(value, package)}: {label} {violation}"
        for label, docstring, value in callables(package)
        for violation in argument_violations(docstring, value)
    ]
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_what_is_public(package):
    module = importlib.import_module(package)
    assert module.__doc__, f"{package}/__init__.py has no docstring"
    assert len(exported(package)) == len(set(exported(package))), f"{package}/__init__.py exports a name twice"


def test_every_folder_of_the_package_is_a_package():
    folders = {path.parent for path in (ROOT / "src/palaestra").rglob("*.py")}
    missing = [
        f"{folder.relative_to(ROOT)}/__init__.py:1: is missing"
        for folder in sorted(folders)
        if not (folder / "__init__.py").exists()
    ]
    assert not missing, "\n" + "\n".join(missing)


def test_a_stale_argument_is_found_and_one_may_be_left_out():
    def function(value, *, gamma):
        """Sums.

        Args:
            value: [T, B] anything,
                over several lines: like this.
            lambda_: gone since long.

        Returns:
            A sum.
        """

    assert argument_violations(function.__doc__ or "", function) == ["documents 'lambda_', which is no parameter"]


def test_missing_docstrings_are_found_and_inherited_ones_count():
    class Base:
        """Documented."""

        def act(self):
            """Acts."""

    class Child(Base):
        def act(self): ...

        def learn(self): ...

    found = list(undocumented("palaestra.core", "Child", Child))
    assert [line.split(": ", 1)[1] for line in found] == [
        "class palaestra.core.Child has no docstring",
        "method palaestra.core.Child.learn has no docstring, of its own or inherited",
    ]
