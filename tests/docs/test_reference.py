"""The reference lists every public name, also of packages that re-export their modules with `import *`."""

import functools
import re

import griffe
import pytest

from tests.architecture.source import ROOT
from tests.architecture.test_documentation import PACKAGES, exported

# Functions that have the name of the file they are in: the reference takes the name for the file. None is best.
NAMED_AS_THEIR_FILE = {"buffer_for", "check", "exploration_bonus", "main", "raw_actions", "run"}


@functools.cache
def package() -> griffe.Object | griffe.Alias:
    """The package as the documentation generator sees it: read, not imported."""
    return griffe.load("palaestra", search_paths=[ROOT / "src"], resolve_aliases=True)


def documented() -> set[str]:
    """What the pages of docs/api name after `:::`."""
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs/api").glob("*.md")]
    return {name for page in pages for name in re.findall(r"^::: (\S+)", page, re.MULTILINE)}


@pytest.mark.parametrize("name", sorted(documented() & set(PACKAGES)))
def test_the_reference_of_a_package_has_all_that_it_exports(name):
    """A re-exported name is shown where griffe takes it for public, which it does for wildcards and `__all__`."""
    module = package() if name == "palaestra" else package()[name.removeprefix("palaestra.")]
    hidden = [
        item
        for item in exported(name)
        if item not in NAMED_AS_THEIR_FILE and not (item in module.members and shown(module.members[item]))
    ]
    assert not hidden, f"docs/api has no entry of {hidden}, which {name} exports"


def shown(member: griffe.Object | griffe.Alias) -> bool:
    return member.is_public and not member.is_module


def test_a_name_that_is_only_imported_is_not_public():
    members = package()["rollout.collector"].members
    assert shown(members["Collector"])
    assert not members["TimeStep"].is_public
