"""Tests say what is seen from outside; what is private to an object may change without them."""

import ast

from tests.architecture.source import Source, sources

MOST = 110  # half of the 236 of revision c859395d; only ever lowered
RECORDS = {"_replace", "_fields", "_asdict", "_make"}  # the public names of a `NamedTuple`


def private_uses(source: Source) -> list[str]:
    """Where a test reads or writes `object._name`; what it defines in a class of its own is its own."""
    return [
        f"{source.at(node)}: {ast.unparse(node)}"
        for node in source.nodes
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in RECORDS
        and ast.unparse(node.value) not in {"self", "cls", "super()", "os"}
    ]


def test_few_tests_know_what_is_private():
    found = [use for source in sources("tests") for use in private_uses(source)]
    assert len(found) <= MOST, (
        f"{len(found)} uses of what is private, at most {MOST} are allowed: ask for a result, a state or a message\n"
        + "\n".join(found)
    )


def test_what_is_private_is_found():
    source = Source("tests/test_a.py", "self._mine = row._replace(a=made.x._y[0]._z())")
    assert private_uses(source) == ["tests/test_a.py:1: made.x._y[0]._z", "tests/test_a.py:1: made.x._y"]
