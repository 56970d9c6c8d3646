"""The messages of the page on troubleshooting are messages of the library."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| `([^`]+)`", PAGE, re.MULTILINE)


def text_of(node: ast.expr) -> str:
    """A literal text; what is put into it is `…`."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "…"


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Of errors that are raised, and of warnings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield node.exc
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("warning", "warn"):
            yield node


@cache
def said() -> list[str]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "src/palaestra").rglob("*.py"))]
    raised = [text_of(call.args[0]) for tree in trees for call in calls(tree) if call.args]
    misfits = [  # what a configuration has against its settings, which is raised together
        text_of(node.value) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Yield) and node.value
    ]
    return raised + misfits


@pytest.mark.parametrize("message", MESSAGES)
def test_the_library_says_so(message):
    assert [text for text in said() if message in text], f"no error or warning says {message!r}"


def test_each_is_there_once_and_there_are_many():
    assert len(MESSAGES) == len(set(MESSAGES)) >= 40
