"""Who may import whom."""

import ast
import functools
import re
import sys
import tomllib
from typing import get_args

import pytest

from palaestra.algorithms import ALGORITHMS
from palaestra.nn.blocks import Block
from palaestra.nn.config import CNN
from tests.architecture.source import LAYERS, PACKAGE, RANK, ROOT, Source, imports, sources

CORE_MAY_IMPORT = {"torch", "numpy", "optree", "safetensors", PACKAGE}
# A library that one place wraps, so that the rest can be read, tested and replaced without it.
ONLY_IN = {
    "ray": ("src/palaestra/runtime/ray.py",),
    "gymnasium": ("src/palaestra/envs/", "src/palaestra/multiagent/"),
    "pettingzoo": ("src/palaestra/multiagent/exposed.py", "src/palaestra/multiagent/loading.py"),
}
MODULE_OF = {"PyYAML": "yaml"}


def order_violations(source: Source) -> list[str]:
    found = []
    for item in imports(source):
        if item.top != PACKAGE or item.package == source.package:
            continue
        if source.package not in RANK or item.package not in RANK:
            stranger = source.package if source.package not in RANK else item.package
            found.append(f"{source.at(item.node)}: package {stranger!r} has no place in the import order {order()}")
        elif RANK[item.package] <= RANK[source.package]:
            below = [package for layer in LAYERS[RANK[source.package] + 1 :] for package in layer]
            found.append(
                f"{source.at(item.node)}: {source.package} imports {item.module}; "
                f"it may import only {', '.join(below) or 'no other package'}"
            )
    return found


def library_violations(source: Source) -> list[str]:
    found = []
    for item in imports(source):
        if item.top in sys.stdlib_module_names:
            continue
        if source.package == "core" and item.top not in CORE_MAY_IMPORT:
            allowed = ", ".join(sorted(CORE_MAY_IMPORT))
            found.append(f"{source.at(item.node)}: core imports {item.module}; it may import only {allowed}")
        if item.top in ONLY_IN and not source.path.startswith(ONLY_IN[item.top]):
            places = " and ".join(ONLY_IN[item.top])
            found.append(f"{source.at(item.node)}: imports {item.module}, which is allowed only in {places}")
    return found


def optional_violations(source: Source) -> list[str]:
    return [
        f"{source.at(item.node)}: imports {item.top}, which is not a core dependency, at module level; "
        "import it inside the function that needs it, and name the extra if it is missing"
        for item in imports(source)
        if not item.lazy
        and item.top not in {PACKAGE, *sys.stdlib_module_names, *core_dependencies()}
        and not source.path.startswith(ONLY_IN.get(item.top, ("nowhere",)))
    ]


@functools.cache
def core_dependencies() -> set[str]:
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = [re.split(r"[^\w-]", requirement)[0] for requirement in requirements]
    return {MODULE_OF.get(name, name.replace("-", "_")) for name in names}


def order() -> str:
    return " > ".join(" | ".join(layer) for layer in LAYERS)


RULES = [order_violations, library_violations, optional_violations]


@pytest.mark.parametrize("rule", RULES)
def test_the_package_keeps_the_rule(rule):
    violations = [violation for source in sources("src/palaestra") for violation in rule(source)]
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (order_violations, "core/batch.py", "from palaestra.nn import mlp"),
        (order_violations, "core/batch.py", "from ..nn import mlp"),
        (order_violations, "ops/a.py", "def f():\n    import palaestra.runtime.process"),
        (order_violations, "buffers/a.py", "from palaestra import algorithms"),
        (order_violations, "rollout/a.py", "from palaestra import train"),
        (order_violations, "misc/a.py", "from palaestra.core import Batch"),
        (library_violations, "core/batch.py", "import yaml"),
        (library_violations, "runtime/process.py", "import ray"),
        (library_violations, "rollout/a.py", "if True:\n    from gymnasium.spaces import Box"),
        (optional_violations, "training/video.py", "import imageio.v3 as iio"),
    ],
)
def test_an_offender_is_named_with_file_and_line(rule, path, text):
    (violation,) = rule(Source(f"src/palaestra/{path}", text))
    assert violation.startswith(f"src/palaestra/{path}:{1 + text.count(chr(10))}: ")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("cli/main.py", "from palaestra.core import Batch\nimport yaml"),
        ("algorithms/ppo.py", "from palaestra.policies.stochastic import Categorical\nfrom .base import Algorithm"),
        ("envs/gym.py", "import gymnasium"),
        ("runtime/ray.py", "import ray"),
        ("training/video.py", "def f():\n    import imageio"),
        ("__init__.py", "from palaestra.cli import main"),
    ],
)
def test_an_allowed_import_passes(path, text):
    source = Source(f"src/palaestra/{path}", text)
    assert [violation for rule in RULES for violation in rule(source)] == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/concepts/run.md"])
def test_a_page_states_the_order_that_is_kept(page):
    stated = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert " > ".join(" | ".join(layer) for layer in LAYERS[1:]) in stated, f"{page}: write the order of LAYERS"


def test_nothing_below_the_algorithms_names_one():
    """A mechanism instead, such as an attribute of the class. Some kinds of networks are called as an algorithm is."""
    below = ("core", "runtime", "ops", "nn", "policies", "buffers", "envs")
    shared = [f"algorithms/{name}.py" for name in ("algorithm", "gradient_algorithm", "steppers", "targets")]
    named = {
        source.at(node): node.value
        for source in sources("src/palaestra")
        if source.package in below or source.path.removeprefix("src/palaestra/") in shared
        for node in source.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in ALGORITHMS
    }
    networks = {*get_args(Block), *get_args(CNN)}
    assert not {place: name for place, name in named.items() if not ("/nn/" in place and name in networks)}
