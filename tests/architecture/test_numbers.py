"""What a reader has to hold in mind, counted: base classes, files, lines, calls.

Where the tree is not yet as it should be, the limit is what it is today, beside the target. A limit is only lowered;
each package has a size of its own in `ROOMS`.
`python -m tests.architecture.test_numbers` prints what there is.
"""

import ast
import collections
import functools
import graphlib
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pytest

from palaestra.algorithms import ALGORITHMS, Algorithm, GradientAlgorithm
from palaestra.cli.commands import COMMANDS
from tests.architecture import calls
from tests.architecture.calls import Number
from tests.architecture.source import ROOT, Function, Source, imports, sources

REPEATED = 8


class Limit(NamedTuple):
    """How large a number may be."""

    measure: Callable[[], Number]
    today: float
    target: float
    least: bool = False
    """Whether the number must be at least that, instead of at most."""


@functools.cache
def package() -> list[Source]:
    return sources("src/palaestra")


def listed(found: dict[str, list[str]], separator: str = ", ") -> Number:
    return Number(len(found), "\n".join(f"{name}: {separator.join(items)}" for name, items in found.items()))


# -- inheritance


def own(kind: type) -> list[str]:
    """The classes of this library above a class, the class itself first."""
    return [base.__name__ for base in kind.__mro__ if base.__module__.startswith("palaestra.")]


def algorithms_with_more_bases() -> Number:
    allowed = (own(GradientAlgorithm), own(Algorithm))
    return listed({name: own(kind) for name, kind in ALGORITHMS.items() if own(kind)[1:] not in allowed}, " > ")


def configurations_with_more_classes() -> Number:
    found = {name: own(kind.config_class) for name, kind in ALGORITHMS.items()}
    return listed({name: mro for name, mro in found.items() if mro[1:] != ["AlgorithmConfig"]}, " > ")


def names_of_two_classes() -> Number:
    places = collections.defaultdict(list)
    for source in package():
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(source.at(node))
    return listed({name: at for name, at in places.items() if len(at) > 1})


# -- size


def import_lines(source: Source) -> frozenset[int]:
    """Numbers of the lines that import, or say what is public."""
    nodes: list[ast.stmt] = [node for node in source.nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    nodes += [
        node
        for node in source.tree.body
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and ast.unparse(node).startswith("__all__")
    ]
    return frozenset[int]().union(*(source.code_of(node) for node in nodes))


def code_lines() -> Number:
    lines: collections.Counter[str] = collections.Counter()
    for source in package():
        lines[source.package] += len(source.code)
    return Number(lines.total(), ", ".join(f"{folder} {count}" for folder, count in lines.most_common()))


def code_lines_a_file() -> Number:
    return Number(code_lines().value / len(package()), "merge small files that belong together")


def lines_of_imports_in_a_file() -> Number:
    lines = {source.path: len(import_lines(source)) for source in package()}
    most = sorted(lines, key=lambda path: -lines[path])[:10]
    return Number(sum(lines.values()) / len(package()), ", ".join(f"{path} {lines[path]}" for path in most))


def docstrings() -> Iterator[tuple[str, str]]:
    """Docstrings of all classes and functions, with their places."""
    for source in package():
        for node in source.nodes:
            if isinstance(node, ast.ClassDef | Function) and (text := ast.get_docstring(node)):
                yield text, source.at(node)


def repeated(texts: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The texts that stand `REPEATED` times or more, with their places."""
    places = collections.defaultdict(list)
    for text, at in texts:
        places[text].append(at)
    return {text: at for text, at in places.items() if len(at) >= REPEATED}


def repeated_docstrings() -> Number:
    """By their first paragraph; methods inherit what their contract says."""
    return listed(repeated((text.split("\n\n")[0], at) for text, at in docstrings()))


def repeated_docstring_lines() -> Number:
    lines = ((line.strip(), at) for text, at in docstrings() for line in text.splitlines())
    found = repeated((line, at) for line, at in lines if len(line) > len("Attributes:") and not line.startswith(">>>"))
    report = "\n".join(f"{len(at)} times, as in {at[0]}: {line}" for line, at in found.items())
    return Number(sum(map(len, found.values())), report)


def levels_of_imports(room: str) -> Number:
    """Modules of the longest chain of imports; a package's own `__init__`, which imports all of them, is left out."""
    inside = {_module(source): source for source in package() if source.package == room}
    below = {
        name: {item.module for item in imports(source) if not item.lazy and item.module in inside} - {name}
        for name, source in inside.items()
        if not source.path.endswith("__init__.py")
    }

    def tower(name: str, above: tuple[str, ...]) -> tuple[str, ...]:
        towers = [tower(item, (*above, name)) for item in below.get(name, ()) if item not in (*above, name)]
        return (name, *max(towers, key=len, default=()))

    highest = max((tower(name, ()) for name in below), key=len)
    return Number(len(highest), " > ".join(highest))


def circles_of_imports() -> Number:
    """Whether modules import each other, however: at the top, for types only, inside a function; packages count too."""
    names = {_module(source) for source in package()}
    try:
        graphlib.TopologicalSorter({_module(source): _imported(source, names) for source in package()}).prepare()
    except graphlib.CycleError as error:
        return Number(1, " < ".join(error.args[1]))
    return Number(0, "")


def _imported(source: Source, names: set[str]) -> set[str]:
    """Modules of the package that a file imports; `from palaestra.nn import fast` is `palaestra.nn.fast`."""
    found = set[str]()
    for item in imports(source):
        parts = item.node.names if isinstance(item.node, ast.ImportFrom) else []
        inside = {f"{item.module}.{alias.name}" for alias in parts} & names
        found |= inside or {item.module if item.module in names else item.module.rpartition(".")[0]}
    return found & names - {_module(source)}


def _module(source: Source) -> str:
    return source.path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


# -- the heart

_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.BoolOp, ast.comprehension, ast.Try, ast.With)


def begin_update() -> tuple[Source, ast.FunctionDef]:
    """The method that `docs/concepts/reading.md` sends everyone to."""
    (source,) = [source for source in package() if source.path.endswith("algorithms/gradient_algorithm.py")]
    (found,) = [n for n in source.nodes if isinstance(n, ast.FunctionDef) and n.name == "begin_update"]
    return source, found


def branches_of_begin_update() -> Number:
    branches = [node for node in ast.walk(begin_update()[1]) if isinstance(node, _BRANCHES)]
    return Number(len(branches), ", ".join(type(node).__name__ for node in branches))


def lines_of_begin_update() -> Number:
    source, method = begin_update()
    return Number(len(source.code_of(method)), source.at(method))


# -- rooms


class Room(NamedTuple):
    """How large a package may be. A limit is raised only by a decision record, which `record` names."""

    files: int
    code: int
    """Lines that are no docstring, comment or blank."""
    record: str = "0025"


ROOMS = {
    "algorithms": Room(55, 4639, "0065"),
    "analysis": Room(12, 2394, "0066"),
    "buffers": Room(15, 3034, "0066"),
    "cli": Room(16, 1368, "0036"),
    "compat": Room(4, 340),
    "config": Room(6, 857, "0065"),
    "core": Room(18, 2353, "0066"),
    "deployment": Room(9, 1640, "0057"),
    "distributed": Room(15, 2590, "0066"),
    "envs": Room(58, 7641, "0066"),
    "experiments": Room(10, 1948, "0065"),
    "multiagent": Room(14, 2232, "0066"),
    "nn": Room(20, 3088, "0066"),
    "ops": Room(11, 776, "0066"),
    "palaestra": Room(2, 62, "0052"),
    "policies": Room(15, 2080, "0066"),
    "robots": Room(9, 1451, "0066"),
    "rollout": Room(9, 1719, "0066"),
    "runs": Room(17, 3407, "0066"),
    "runtime": Room(13, 1807, "0063"),
    "testing": Room(4, 507, "0066"),
    "training": Room(16, 2624, "0066"),
}
"""The size of each package when the rooms were opened."""


class Allowance(NamedTuple):
    """What may come on top with each thing of a kind that is added, so that nobody's first file fails."""

    room: str
    files: int
    code: int
    count: Callable[[], int]
    """Things of the kind that there are."""
    base: int
    """Things of the kind when the rooms were opened."""


def _inside(folder: str) -> int:
    """Files of a folder of `envs`, but `__init__`."""
    return sum(source.path.startswith(f"src/palaestra/envs/{folder}/") for source in package()) - 1


def _suites() -> int:
    return _inside("suites") - 1  # but `suite`


ALLOWANCES = {
    "an algorithm": Allowance("algorithms", 1, 260, lambda: len(ALGORITHMS), 38),
    "a suite": Allowance("envs", 1, 160, _suites, 3),
    "a file of a simulator": Allowance("envs", 1, 210, lambda: _inside("simulators"), 0),  # decisions 0026, 0031
    "a command": Allowance("cli", 1, 120, lambda: len(COMMANDS), 28),
}


@pytest.mark.parametrize("room", sorted({source.package for source in package()}))
def test_a_room_keeps_its_size(room):
    assert room in ROOMS, f"{room} is a new package: a decision record gives it a size in ROOMS"
    limit, inside = ROOMS[room], [source for source in package() if source.package == room]
    more = [(kind, kind.count() - kind.base) for kind in ALLOWANCES.values() if kind.room == room]
    files = limit.files + sum(kind.files * max(0, new) for kind, new in more)
    code = limit.code + sum(kind.code * max(0, new) for kind, new in more)
    lines = sum(len(source.code) for source in inside)
    assert len(inside) <= files, f"{room}: {len(inside)} files, at most {files}; merge files that belong together"
    assert lines <= code, f"{room}: {lines} lines of code, at most {code}; what can go, or be one mechanism?"
    assert list((ROOT / "docs/decisions").glob(f"{limit.record}-*.md")), f"{room}: no decision record {limit.record}"


def test_git_ignores_no_file_of_the_package():
    """A pattern such as `runs/` that is not anchored would leave a package out of every commit."""
    paths = "\n".join(f"{source.path}" for source in package())
    command = ["git", "-C", str(ROOT), "check-ignore", "--no-index", "--stdin"]
    ignored = subprocess.run(command, input=paths, capture_output=True, text=True, check=False)
    if ignored.returncode == 128:
        pytest.skip("not a git checkout")
    assert not ignored.stdout, f".gitignore leaves out {ignored.stdout}"


LIMITS = {
    "algorithms with other bases than GradientAlgorithm, Algorithm": Limit(algorithms_with_more_bases, 0, 0),
    "configurations of more than one class and AlgorithmConfig": Limit(configurations_with_more_classes, 0, 0),
    "names that two classes have": Limit(names_of_two_classes, 0, 0),
    "lines of code in a file": Limit(code_lines_a_file, 100, 100, least=True),
    "lines of imports and __all__ in a file": Limit(lines_of_imports_in_a_file, 14.0, 13.9),  # 0025, 0031, 0048
    "docstrings that stand 8 times or more": Limit(repeated_docstrings, 1, 0),
    "lines of docstrings that stand 8 times or more": Limit(repeated_docstring_lines, 150, 150),
    "circles of imports": Limit(circles_of_imports, 0, 0),
    "levels of imports in envs": Limit(functools.partial(levels_of_imports, "envs"), 9, 9),
    "levels of imports in config": Limit(functools.partial(levels_of_imports, "config"), 5, 5),
    "levels of imports in runs": Limit(functools.partial(levels_of_imports, "runs"), 5, 5),
    "levels of imports in analysis": Limit(functools.partial(levels_of_imports, "analysis"), 5, 5),
    "levels of imports in experiments": Limit(functools.partial(levels_of_imports, "experiments"), 5, 5),
    "branches of begin_update": Limit(branches_of_begin_update, 6, 6),
    "lines of begin_update": Limit(lines_of_begin_update, 15, 15),
    "calls from the command line to update": Limit(calls.calls_to_update, 8, 7),  # decision 0029
    "calls from the command line to the autograd engine": Limit(calls.calls_to_backward, 12, 11),  # decision 0029
    "files of envs that a step enters": Limit(calls.files_of_a_step, 6, 5),
    "calls from one act to the next": Limit(calls.calls_of_acting, 33, 45),  # decision 0025
    "files from one act to the next": Limit(calls.files_of_acting, 14, 12),  # decision 0025
    "files of a whole iteration of PPO": Limit(calls.files_of_an_iteration, 47, 30),
    "calls per gradient step of PPO": Limit(calls.calls_of_a_gradient_step, 50, 50),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_number_keeps_its_limit(name):
    measure, today, _, least = LIMITS[name]
    value, report = measure()
    allowed = value >= today if least else value <= today
    assert allowed, f"{name}: {value:g}, {'at least' if least else 'at most'} {today:g}\n{report}"


if __name__ == "__main__":
    for title, limit in LIMITS.items():
        number = limit.measure()
        sys.stdout.write(f"{title}: {number.value:g} (limit {limit.today:g}, target {limit.target:g})\n")
        if "-v" in sys.argv:
            sys.stdout.write(f"{number.report}\n")
