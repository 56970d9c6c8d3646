"""Every small change that can be made to a Python file: an operator, number, condition or statement; and their page."""

import ast
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = tuple(sorted(path.parent.name for path in (ROOT / "src/palaestra").glob("*/__init__.py")))
SWAPS: dict[type, str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*",
    ast.FloorDiv: "*", ast.Pow: "*", ast.And: "or", ast.Or: "and", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
PAIRS = (("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("any", "all"))
NAMES = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
EQUIVALENT: dict[str, str] = {
    "src/palaestra/buffers/saving.py: if new is None or ((new.max()) - (rewritten)) + 1 >= positions.ring_size:": (
        "the way around the ring counts all pieces, too"
    ),
    'src/palaestra/training/console.py: "time/env_steps_per_s": env_steps / max(acting_s, 5e-10),': (
        "no run takes a nanosecond"
    ),
    "src/palaestra/training/console.py: whole = max(sum(self.seconds.values()), 5e-10)": "no run takes a nanosecond",
    "src/palaestra/buffers/streams.py: self.has_changes = True": "read only after a draw, which sets it",
    "src/palaestra/buffers/leaf.py: unseen = torch.from_numpy(before).to(frames.device, non_blocking=False)": (
        "only whether the copy is waited for"
    ),
    "src/palaestra/buffers/prioritized.py: for level, blocks in zip(self._levels[1:], self._blocks, strict=False):": (
        "they always are of one length"
    ),
    "src/palaestra/buffers/lane_storage.py: reach = np.where(begins.any(-1, keepdims=True), "
    "begins.argmax(-1)[..., None], ((depth) + (1)))": "no frame of a stack is further back",
    "src/palaestra/ops/targets.py: moved = torch.minimum(torch.maximum(reward.unsqueeze(-1) + bootstrap.unsqueeze((1)) "
    "* support, low), high)  # [N, Q]": "of [N], to which it adds one, 1 is the last",
    "src/palaestra/policies/population.py: self._population[name] = parameter + self.noise_std * part": (
        "`Policy.act` computes no gradients"
    ),
    "src/palaestra/algorithms/sac.py: least_q = self.critic(seen.fixed, action).amin(0).squeeze((1))": (
        "of [N, 1], 1 is the last"
    ),
    "src/palaestra/buffers/leaf.py: return torch.from_numpy(inside).to(self.tensor.device, "
    "non_blocking=False)": "only whether the copy is waited for",
    "src/palaestra/algorithms/iqn.py: q = quantile.mean((1))": "of [N, Q], 1 is the last",
    "src/palaestra/algorithms/pqn.py: q = self.policy.q_values(batch.observation).gather(-1, "
    "batch.action.unsqueeze(-1)).squeeze((1))": "of [N, 1], 1 is the last",
    "src/palaestra/cli/help.py: width = min(120, shutil.get_terminal_size((120, 25)).columns)": (
        "the height of the terminal is not asked for"
    ),
    "src/palaestra/buffers/reader.py: stride = np.clip(most.max(initial=1), 2, _STRIDE)": (
        "looks one row further than it goes"
    ),
    "src/palaestra/buffers/prioritized.py: self._drawn = np.empty(1)": "read only after a draw, which sets it",
    "src/palaestra/algorithms/c51.py: error = -(wanted * logits.log_softmax(-1)).sum((1))": (
        "of two dimensions, 1 is the last"
    ),
}
"""Survivors that no test could notice (file: the line after the change), and why."""


class Mutant(NamedTuple):
    """One change of one file."""

    file: str
    lineno: int
    start: int
    end: int
    """Of the changed text, in bytes of UTF-8."""
    text: str

    def changed(self) -> bytes:
        source = (ROOT / self.file).read_bytes()
        return source[: self.start] + self.text.encode() + source[self.end :]

    def line(self) -> str:
        """The first line that is another, and the statement where there is none any more."""
        was = " ".join((ROOT / self.file).read_bytes()[self.start : self.end].decode().split())
        line = self.changed().decode().splitlines()[self.lineno - 1].strip()
        return f"{self.file}: {line}{f'  # was: {was}' if self.text == 'pass' else ''}"


def mutants(file: Path) -> Iterator[Mutant]:
    """Every change that can be made to a file."""
    source = file.read_text(encoding="utf-8")
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))

    def change(node: ast.expr | ast.stmt, text: str) -> Mutant:
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        return Mutant(file.relative_to(ROOT).as_posix(), node.lineno, begin, end, text)

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


def inside_functions(file: Path) -> set[int]:
    """The lines that run when a function is called, not when the file is imported."""
    functions = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]
    return {line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}


def files_added(since: str = "") -> list[Path]:
    """The library's files, or those that a revision did not have under this name or a similar one's."""
    if not since:
        return sorted(file for package in PACKAGES for file in (ROOT / "src/palaestra" / package).rglob("*.py"))
    command = ["git", "diff", "--diff-filter=A", "-M50%", "--name-only", since, "--", "src/palaestra"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted(ROOT / name for name in names if name.endswith(".py") and (ROOT / name).exists())


def draw(number: int, since: str = "", seed: int = 0) -> list[Mutant]:
    """So many of all mutants, at random; the same ones each time for one seed."""
    return random.Random(seed).sample([mutant for file in files_added(since) for mutant in mutants(file)], number)


def page(results: list[tuple[Mutant, str]], drawn: int) -> str:
    """The score, and every survivor."""
    alive = [mutant for mutant, result in results if result == "passed"]
    same = [mutant for mutant in alive if mutant.line() in EQUIVALENT]
    killed, packages = len(results) - len(alive), Counter(Path(mutant.file).parts[2] for mutant, _ in results)
    lines = (
        "# Mutants\n",
        "Written by `make mutants`: one small change of the library at a time, and whether a test notices.",
        f"{len(results)} of {drawn} were run: {', '.join(f'{n} of {name}' for name, n in sorted(packages.items()))}.",
        f"{killed} are killed; {len(same)} of the others change nothing:",
        f"**{100 * killed / (len(results) - len(same)):.1f}%**.",
        "",
        "| survivor | why no test can see it |",
        "|---|---|",
        *(f"| `{m.line().replace('|', chr(92) + '|')}` | {EQUIVALENT.get(m.line(), '')} |" for m in alive),
    )
    return "\n".join(lines) + "\n"
