"""The messages of the page on troubleshooting are messages of the library."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.source import sources

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


def texts(node: ast.AST) -> list[ast.expr]:
    """Of an error that is raised, of a warning, or of what a configuration has against its settings."""
    match node:
        case (
            ast.Raise(exc=ast.Call(args=args)) | ast.Return(value=ast.Call(func=ast.Name(id="RunLostError"), args=args))
        ):
            return args[:1]
        case ast.Call(func=ast.Attribute(attr="warning" | "warn"), args=args):
            return args[:1]
        case ast.Yield(value=ast.expr() as value):
            return [value]
    return []


@cache
def said() -> list[str]:
    return [text_of(text) for source in sources("src") for node in source.nodes for text in texts(node)]


@pytest.mark.parametrize("message", MESSAGES)
def test_the_library_says_so(message):
    assert [text for text in said() if message in text], f"no error or warning says {message!r}"


def test_each_is_there_once_and_there_are_many():
    assert len(MESSAGES) == len(set(MESSAGES)) >= 40
