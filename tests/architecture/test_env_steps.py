"""What stepping environments costs a reader: files entered by a step, and levels of imports inside `envs/`."""

import ast
import functools
import sys

import torch

from palaestra import EnvConfig, create_environment
from tests.architecture.source import ROOT, imports, sources

MAX_FILES = 5
MAX_FILES_AT_AN_END = 7  # and where Gymnasium's flags are read, and where an episode gets its seed
MAX_LEVELS = 9
ENVS = "src/palaestra/envs/"


def files_entered(function):
    """Files of the package in which a Python function is called meanwhile."""
    package, found = f"{ROOT.as_posix()}/src/palaestra/", set()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            found.add(frame.f_code.co_filename.removeprefix(package))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return sorted(found)


def test_a_step_of_cartpoles_enters_at_most_five_files():
    left = torch.zeros(8, dtype=torch.int64)
    with create_environment(EnvConfig(name="CartPole-v1", num_envs=8), seed=0) as env:
        env.reset()
        one = files_entered(lambda: env.step(left))
        many = files_entered(lambda: [env.step(left) for _ in range(60)])
    assert len(one) <= MAX_FILES, one
    assert len(many) <= MAX_FILES_AT_AN_END, many


def inner_imports(all_sources):
    """Which files of the package each of its files imports, at its top or inside a function; no `__init__`."""
    names = {source.path.removeprefix("src/").removesuffix(".py").replace("/", "."): source for source in all_sources}
    names = {name: source for name, source in names.items() if not name.endswith(".__init__")}
    arrows = {}
    for name, source in names.items():
        found = {item.module for item in imports(source)}
        for node in source.nodes:
            if isinstance(node, ast.ImportFrom):  # `from package import module`
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        arrows[name] = {module for module in found if module in names} - {name}
    return arrows


def longest_chain(arrows):
    """The longest way from file to file; a circle is an error."""

    @functools.cache
    def chain(name):
        assert name not in running, f"{name} imports itself by way of {running}"
        running.append(name)
        ways = [chain(below) for below in sorted(arrows[name])]
        running.remove(name)
        return (name, *max(ways, key=len, default=()))

    running = []
    return max(map(chain, sorted(arrows)), key=len)


def test_imports_inside_the_environments_are_at_most_nine_levels_deep():
    chain = longest_chain(inner_imports(sources(ENVS)))
    assert len(chain) <= MAX_LEVELS, "\n".join(chain)


def test_the_longest_chain_is_found():
    assert longest_chain({"a": {"b", "c"}, "b": set(), "c": {"d"}, "d": set()}) == ("a", "c", "d")
