"""Writes docs/coverage.md: which requirement is proven by which test.

A test names the requirements it proves, in one of three places:

    def test_alf_33_the_step_after_last_returns_first():    # first in its name; also test_f9_, test_s4_
        '''Rows stay in order (TS-23..26, MARO-03, 04).'''  # in its docstring
        # F25: parameters are bit-equal.                    # in a comment of its body

Ranges (`TS-02..06`) and lists (`ALF-23, 24`, `MARO-40/41`) are expanded. Acceptance scenarios read `scenario 4`.
A skipped test proves nothing. An id that docs/requirements.yaml does not list is an error, and so is one of another
list (`Issue 21, F9`).

    python tools/requirement_coverage.py            # write the page
    python tools/requirement_coverage.py --check    # exit 1 if the committed page differs
"""

import argparse
import ast
import functools
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent
CATALOGUE = "docs/requirements.yaml"
PAGE = "docs/coverage.md"
BAR = r"\|"  # within a cell of a table

IN_NAME = re.compile(r"test((?:_(?:alf|maro|ts|parl)_\d{2}|_[fs]\d{1,2})+)(?:_|$)")
ONE_IN_NAME = re.compile(r"(alf|maro|ts|parl)_(\d{2})|([fs])(\d{1,2})")
# An id, then any number of "..06", ", 04" or "/41"; the prefix may be repeated: "TS-02..TS-06".
DASHED = re.compile(r"\b(ALF|MARO|TS|PARL)-(\d{2})((?:(?:\.\.|,\s*|/)(?:\1-)?\d{2}\b)*)")
FAULT = re.compile(r"\b(F)(\d{1,2})\b((?:\.\.F?\d{1,2}\b)?)")
OF_ISSUE = re.compile(r"\bIssue \d+, (?:(?:ALF|MARO|TS|PARL)-|F)\d+")
SCENARIO = re.compile(r"\b[Ss]cenarios? (\d{1,2})\b((?:(?:\.\.|,\s*| and )\d{1,2}\b)*)")


class Section(NamedTuple):
    """One system of the catalogue; `departures` say of some ids what holds in their place."""

    title: str
    ids: dict[str, str]
    departures: Mapping[str, str] = MappingProxyType({})


def catalogue(root: Path = ROOT) -> list[Section]:
    """Sections of docs/requirements.yaml, in order."""
    return [Section(**section) for section in yaml.safe_load((root / CATALOGUE).read_text(encoding="utf-8"))]


def ids_in_name(name: str) -> set[str]:
    """Ids that a test's name starts with: `test_alf_23_alf_24_...`, `test_f9_...`."""
    leading = IN_NAME.match(name)
    found = ONE_IN_NAME.findall(leading.group(1)) if leading else []
    return {
        f"{system.upper()}-{number}" if system else f"{kind.upper()}{int(digits)}"
        for system, number, kind, digits in found
    }


def ids_in_text(text: str) -> set[str]:
    """Ids that a docstring or comment names, with ranges and lists expanded; those of an issue with its number."""
    ids = set(OF_ISSUE.findall(text))
    ids |= {f"{match[1]}-{number:02d}" for match in DASHED.finditer(text) for number in _numbers(match[2], match[3])}
    ids |= {f"F{number}" for match in FAULT.finditer(text) for number in _numbers(match[2], match[3])}
    return ids | {f"S{number}" for match in SCENARIO.finditer(text) for number in _numbers(match[1], match[2])}


def _numbers(first: str, rest: str) -> Iterator[int]:
    last = int(first)
    yield last
    for separator, digits in re.findall(r"(\.\.|,|/|and)\D*(\d+)", rest):
        number = int(digits)
        yield from range(last + 1, number) if separator == ".." else ()
        yield number
        last = number


@functools.cache
def ids_of_tests(path: Path) -> list[tuple[str, int, set[str]]]:
    """(name, line, ids) of every test of a file that is not skipped."""
    source = path.read_text(encoding="utf-8")
    comments: dict[int, str] = {
        token.start[0]: token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found: list[tuple[str, int, set[str]]] = []
    for scope, node in _tests(ast.parse(source)):
        if any("skip" in ast.unparse(decorator) for decorator in node.decorator_list):
            continue
        text = [ast.get_docstring(node) or ""]
        text += [
            comments[line] for line in range(node.lineno, (node.end_lineno or node.lineno) + 1) if line in comments
        ]
        found.append((f"{scope}{node.name}", node.lineno, ids_in_name(node.name).union(*map(ids_in_text, text))))
    return found


def _tests(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in tree.body:
        inside = [(f"{node.name}::", child) for child in node.body] if isinstance(node, ast.ClassDef) else [("", node)]
        for scope, child in inside:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name.startswith("test"):
                yield scope, child


def proofs(root: Path, known: set[str]) -> dict[str, list[str]]:
    """Tests that name each id; raises `SystemExit` for ids that are not in the catalogue."""
    tests: dict[str, list[str]] = defaultdict(list)
    unknown = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        file = path.relative_to(root).as_posix()
        if file == "tests/tools/test_requirement_coverage.py":
            continue  # its ids are examples
        for name, line, ids in ids_of_tests(path):
            unknown += [
                f"{file}:{line}: {name} names {id_}, which {CATALOGUE} does not list" for id_ in sorted(ids - known)
            ]
            for id_ in ids & known:
                tests[id_].append(f"{file}::{name}")
    if unknown:
        raise SystemExit("\n".join(unknown))
    return tests


def page(root: Path = ROOT) -> str:
    """The text of docs/coverage.md."""
    sections = catalogue(root)
    tests = proofs(root, {id_ for section in sections for id_ in section.ids})
    lines = [
        "# Requirements and their tests",
        "",
        "Written by `make coverage` from `docs/requirements.yaml` and the ids that tests name; not edited by hand.",
        "",
        "| | proven | of |",
        "|---|---:|---:|",
        *(f"| {title} | {sum(id_ in tests for id_ in ids)} | {len(ids)} |" for title, ids, _ in sections),
    ]
    for title, ids, departures in sections:
        lines += ["", f"## {title}", "", "| id | promise | tests |", "|---|---|---|"]
        for id_, promise in ids.items():
            named = "<br>".join(f"`{test}`" for test in sorted(tests.get(id_, ()))) or "no test yet"
            held = f" *Departure:* {departures[id_]}" if id_ in departures else ""
            lines.append(f"| {id_} | {promise.replace('|', BAR)}{held} | {named} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Writes or checks the page; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write docs/coverage.md from the ids that tests name.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is not up to date")
    check = parser.parse_args(arguments).check
    target, text = ROOT / PAGE, page()
    if not check:
        target.write_text(text, encoding="utf-8")
        print(f"wrote {PAGE}")
    elif not target.exists() or target.read_text(encoding="utf-8") != text:
        print(f"{PAGE} is not up to date with the tests; run `make coverage` and commit the page", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
