"""The reference lists every public name, also of packages that re-export their modules with `import *`."""

import functools
import re

import griffe
import pytest

from tests.architecture.source import ROOT
from tests.architecture.test_documentation import PACKAGES, exported, of_its_own


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
    """A re-exported name is shown where griffe takes it for public, which it does for wildcards and `__all__`.

    A name that is also the name of a file beside it is taken for the file; its page names it apart.
    """
    members = (package() if name == "palaestra" else package()[name.removeprefix("palaestra.")]).members
    apart = {path.rsplit(".", 1)[1] for path in documented() if path.startswith("palaestra.")}
    hidden = [
        item
        for item in exported(name)
        if not (item in members and shown(members[item])) and not (item in apart and members[item].is_module)
    ]
    assert not hidden, f"docs/api has no entry of {hidden}, which {name} exports"


@pytest.mark.parametrize("name", sorted(documented()))
def test_what_a_page_names_exists(name):
    assert name == "palaestra" or package()[name.removeprefix("palaestra.")]


@pytest.mark.parametrize("page", sorted((ROOT / "docs/api").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_in_an_order_of_its_own_leaves_nothing_out(page):
    """What is used every day comes first: `members` lists the names in that order."""
    text = page.read_text(encoding="utf-8")
    for name, listed in re.findall(
        r"^::: (\S+)\n    options:\n      members:\n((?:        - \w+\n)+)", text, re.MULTILINE
    ):
        apart = {path.rsplit(".", 1)[1] for path in documented() if path.startswith("palaestra.")}
        names = re.findall(r"- (\w+)", listed)
        assert len(names) == len(set(names))
        own = set(exported(name)) if name == "palaestra" else of_its_own(name)
        assert set(names) | (own & apart) == own, f"{page.name} and {name} differ"
    assert page.stem != "envs" or text.index("- create_environment") < text.index("- ChaosEnv")


def shown(member: griffe.Object | griffe.Alias) -> bool:
    return member.is_public and not member.is_module


def test_a_name_that_is_only_imported_is_not_public():
    members = package()["rollout.collector"].members
    assert shown(members["Collector"])
    assert not members["TimeStep"].is_public
