"""The source files that the architecture rules read, and the import order they enforce."""

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "palaestra"

# A package may import only those below it; packages of one line are siblings and must not import each other.
LAYERS = (
    ("palaestra",),  # the modules beside the packages: the public front
    ("cli", "testing"),
    ("deployment",),
    ("experiments",),
    ("analysis",),
    ("runs",),
    ("config",),
    ("compat", "distributed", "robots"),
    ("multiagent",),
    ("training",),
    ("rollout",),
    ("algorithms", "buffers", "envs"),
    ("policies",),
    ("nn",),
    ("ops", "runtime"),
    ("core",),
)
RANK = {package: rank for rank, layer in enumerate(LAYERS) for package in layer}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _dotted(node: ast.expr) -> str:
    """As it stands in the file: `ast.unparse`, in a tenth of its time where it is a name with dots."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return ast.unparse(node)


@dataclass(frozen=True)
class Source:
    """A Python file."""

    path: str
    """Relative to the root of the repository, with forward slashes."""
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def calls(self) -> list[tuple[ast.Call, str]]:
        """Every call, with what is called as it stands there."""
        return [(node, _dotted(node.func)) for node in self.nodes if isinstance(node, ast.Call)]

    @property
    def package(self) -> str:
        """`core` for src/palaestra/core/batch.py, `palaestra` for src/palaestra/__init__.py."""
        return _package(self.path.removeprefix("src/").split("/"))

    @cached_property
    def code(self) -> frozenset[int]:
        """Numbers of the lines that are no docstring (a field's included), no comment and not blank."""
        owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        strings = [node for owner in self.nodes if isinstance(owner, owners) for node in owner.body]
        docstrings = {
            number
            for node in strings
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        lines = enumerate(map(str.strip, self.text.splitlines()), start=1)
        return frozenset(
            number for number, line in lines if line and not line.startswith("#") and number not in docstrings
        )

    def code_of(self, node: ast.stmt) -> frozenset[int]:
        """Those of a function, a class or another statement."""
        return self.code & frozenset(range(node.lineno, (node.end_lineno or node.lineno) + 1))

    def at(self, node: ast.AST) -> str:
        """`file:line` of a node."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"


@dataclass(frozen=True)
class Import:
    """One imported module, made absolute."""

    module: str
    node: ast.AST
    lazy: bool
    """Inside a function, a `try` or an `if`: the file can be imported without it."""

    @property
    def top(self) -> str:
        """`torch` for torch.nn."""
        return self.module.split(".")[0]

    @property
    def package(self) -> str:
        """`core` for palaestra.core.batch."""
        return _package(self.module.split("."))


def _package(parts: list[str]) -> str:
    return parts[1] if len(parts) > 2 or (len(parts) == 2 and parts[1] in RANK) else PACKAGE


def sources(folder: str) -> list[Source]:
    """Every Python file below a folder of the repository; each is read and parsed once in a process."""
    return [_source(path) for path in sorted((ROOT / folder).rglob("*.py"))]


@functools.cache
def _source(path: Path) -> Source:
    return Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))


def imports(source: Source) -> Iterator[Import]:
    """Every import of a file, wherever it stands; `from palaestra import core` counts as palaestra.core."""
    eager = set(map(id, source.tree.body))
    for node in source.nodes:
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = _modules(source, node)
        else:
            continue
        for module in modules:
            yield Import(module, node, lazy=id(node) not in eager)


def _modules(source: Source, node: ast.ImportFrom) -> list[str]:
    base = node.module or ""
    if node.level:
        parents = source.path.removeprefix("src/").split("/")[: -node.level]
        base = ".".join([*parents, *([base] if base else [])])
    return [f"{base}.{alias.name}" if base == PACKAGE else base for alias in node.names]


def functions(tree: ast.Module) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Every function with the class it stands in, if it is a method."""
    methods = {id(child): node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for child in node.body}
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node, methods.get(id(node))
