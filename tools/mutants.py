"""Changes the library in one small place at a time and asks whether a test notices.

    python tools/mutants.py --number 300 --jobs 2      # draws the mutants, runs the tests on each, writes the score
    python tools/mutants.py --only 17 204              # these again, with what the tests printed

A mutant is one operator, number, condition or statement changed in one of `PACKAGES`. It is killed when a test fails or
hangs: first the tests of its module, then those of its package, then golden losses and contracts. Each mutant has a
copy of the tree and a process of its own, so that no test sees another's. The score is written to `docs/mutants.md`; a
survivor that changes nothing is explained in `EQUIVALENT`.
"""

import argparse
import ast
import concurrent.futures
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("ops", "algorithms", "buffers", "rollout", "training", "policies")
BEYOND = {
    "ops": ("tests/golden", "tests/algorithms"),
    "algorithms": ("tests/golden", "tests/contracts/test_algorithms.py", "tests/examples/test_single_file.py"),
    "policies": ("tests/golden", "tests/contracts/test_algorithms.py", "tests/rollout"),
    "buffers": ("tests/contracts/test_buffers.py", "tests/golden", "tests/rollout"),
    "rollout": ("tests/acceptance", "tests/contracts/test_learners.py", "tests/robots"),
    "training": ("tests/acceptance", "tests/experiments"),
}
"""Tests outside of its own folder that a package is held by."""
PAGE = ROOT / "docs/mutants.md"
TIMEOUT_S = 900
SWAPS: dict[type, str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*",
    ast.FloorDiv: "*", ast.Pow: "*", ast.And: "or", ast.Or: "and", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
PAIRS = (("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("any", "all"))
NAMES = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
EQUIVALENT: dict[str, str] = {}
"""Survivors that no test could notice (file: the line after the change), and why."""


class Mutant(NamedTuple):
    """One change of one file."""

    file: str
    start: int
    end: int
    """Of the changed text, in bytes of UTF-8."""
    text: str

    def changed(self) -> bytes:
        source = (ROOT / self.file).read_bytes()
        return source[: self.start] + self.text.encode() + source[self.end :]

    def line(self) -> str:
        """The first line that is another, with its number."""
        number = self.changed()[: self.start].count(b"\n")
        return f"{self.file}:{number + 1}: {self.changed().decode().splitlines()[number].strip()}"


def mutants(file: Path) -> Iterator[Mutant]:
    """Every change that can be made to a file."""
    source = file.read_text(encoding="utf-8")
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))

    def change(node: ast.expr | ast.stmt, text: str) -> Mutant:
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        return Mutant(file.relative_to(ROOT).as_posix(), begin, end, text)

    for node in running(ast.parse(source)):
        yield from (change(node, text) for text in changes(node))


def running(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The parts of a program that do something: no annotations, docstrings, messages of errors, or lists of names."""
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "bases"} or isinstance(node, ast.Raise | ast.Assert):
            continue
        for child in value if isinstance(value, list) else [value]:
            match child:
                case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                    continue
                case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("__"):
                    continue
                case ast.expr() | ast.stmt():
                    yield child
            if isinstance(child, ast.AST):
                yield from running(child)


def changes(node: ast.expr | ast.stmt) -> Iterator[str]:
    """What may stand in the place of a node."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) | ast.BinOp(left=left, op=op, right=right) if (
            type(op) in SWAPS
        ):
            yield f"(({ast.unparse(left)}) {SWAPS[type(op)]} ({ast.unparse(right)}))"
        case ast.BoolOp(op=op, values=values):
            yield f"(({f') {SWAPS[type(op)]} ('.join(map(ast.unparse, values))}))"
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield f"({ast.unparse(orelse)} if {ast.unparse(test)} else {ast.unparse(body)})"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value)):
            yield str(value + 1)
        case ast.Constant(value=float(value)):
            yield str(value / 2 if value else 1.0)
        case ast.Call(func=ast.Attribute(value=value, attr="detach")):
            yield ast.unparse(value)
        case ast.Name(id=name) if name in {"min", "max", "any", "all"}:
            yield NAMES[name]
        case ast.Attribute(value=value, attr=name) if name in NAMES and isinstance(node.ctx, ast.Load):
            yield f"{ast.unparse(value)}.{NAMES[name]}"
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "pass"


def draw(number: int) -> list[Mutant]:
    """So many of all mutants, at random; the same ones each time."""
    files = sorted(file for package in PACKAGES for file in (ROOT / "src/palaestra" / package).rglob("*.py"))
    return random.Random(0).sample([mutant for file in files for mutant in mutants(file)], number)


def targets(package: str, module: str = "") -> list[str]:
    """What to run, the likeliest to notice first."""
    near = sorted((ROOT / "tests" / package).glob("test_*.py"), key=lambda path: module not in path.stem)
    return [*(str(path.relative_to(ROOT)) for path in near), *BEYOND[package]]


def run(mutant: Mutant | None, paths: list[str]) -> tuple[str, str]:
    """(`killed`, `survived` or `timed out`; what the tests printed), in a copy of the tree."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = Path(folder) / "tree"
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(".*", "runs", "site", "__pycache__"))
        if mutant:
            (root / mutant.file).write_bytes(mutant.changed())
        environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow and not fault", "-p", "no:cacheprovider"]
        command += paths
        try:
            done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "timed out", ""
    return "survived" if done.returncode == 0 else "killed", done.stdout + done.stderr


def page(results: list[tuple[Mutant, str]]) -> str:
    """The score, and every survivor."""
    alive = [mutant for mutant, result in results if result == "survived"]
    same = [mutant for mutant in alive if mutant.line() in EQUIVALENT]
    killed = len(results) - len(alive)
    lines = [
        "# Mutants",
        "",
        "Written by `make mutants`: one small change of the library at a time, and whether a test notices.",
        f"{killed} of {len(results)} are killed; {len(same)} of the others change nothing:",
        f"**{100 * killed / (len(results) - len(same)):.1f}%**.",
        "",
        "| survivor | why no test can see it |",
        "|---|---|",
        *(f"| `{m.line().replace('|', chr(92) + '|')}` | {EQUIVALENT.get(m.line(), '')} |" for m in alive),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Draws, tests and reports mutants."""
    parser = argparse.ArgumentParser(description="Change the library in small places and see what the tests notice.")
    parser.add_argument("--number", type=int, default=300, help="how many mutants")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the draw; prints what the tests said")
    options = parser.parse_args()
    drawn = list(enumerate(draw(options.number)))
    chosen = drawn if options.only is None else [drawn[number] for number in options.only]
    results: dict[int, tuple[Mutant, str]] = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for package, (result, said) in zip(PACKAGES, pool.map(run, [None] * 6, map(targets, PACKAGES)), strict=True):
            if result != "survived":
                sys.exit(f"the tests of {package} fail without any mutant:\n{said}")
        waiting = {
            pool.submit(run, mutant, targets(Path(mutant.file).parts[2], Path(mutant.file).stem)): (number, mutant)
            for number, mutant in chosen
        }
        for future in concurrent.futures.as_completed(waiting):
            (number, mutant), (result, said) = waiting[future], future.result()
            results[number] = mutant, result
            print(number, result, mutant.line(), said if options.only else "", flush=True)
    if options.only is None:
        PAGE.write_text(page([results[number] for number, _ in drawn]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
