"""Every code block of the documentation runs.

- A `python` block is executed; the blocks of one page share their names, and run in an empty directory. What trains
  long is cut short in the fast tests, a search for settings is left out of them; in the slow ones all run as they are.
- A `python` block with `>>>` is a doctest.
- A `python` block whose first line is `# not run: <why>` is only compiled.
- A `bash` block may only name verbs that the command line has; a `bash run` block is executed.
"""

import doctest
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from palaestra.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("README.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
BUDGET = re.compile(r"\b\d\d+_000\b")
SEARCH = re.compile(r"\bpalaestra\.tune\(")
NOT_RUN = "# not run:"
COMMAND_LINE = [sys.executable, "-c", "import sys; from palaestra.cli import main; sys.exit(main())"]


class Block(NamedTuple):
    """A fenced code block."""

    page: str
    line: int
    """Of its first line of code, counted from 1."""
    info: list[str]
    code: str


def blocks(page: Path, language: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            name(page),
            text.count("\n", 0, match.start("code")) + 1,
            match["info"].split(),
            textwrap.dedent(match["code"]),
        )
        for match in FENCE.finditer(text)
        if match["info"].split()[:1] == [language]
    ]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def commands(block: Block) -> Iterator[list[str]]:
    """The `palaestra ...` lines of a bash block, split into words."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line.strip().removeprefix("$ "), comments=True)
        if words[:1] == ["palaestra"]:
            yield words[1:]


def run_python(block: Block, namespace: dict[str, object]) -> None:
    where = f"{block.page}:{block.line}"
    if block.code.startswith(NOT_RUN):
        reason = block.code.splitlines()[0].removeprefix(NOT_RUN).strip()
        assert reason, f"{where}: '{NOT_RUN}' needs a reason after it"
        compile(block.code, where, "exec")
    elif ">>>" in block.code:
        test = doctest.DocTestParser().get_doctest(block.code, namespace, where, block.page, block.line - 1)
        report: list[str] = []
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        doctest.DocTestRunner(optionflags=flags).run(test, out=report.append, clear_globs=False)
        namespace.update(test.globs)
        assert not report, "".join(report)
    else:
        # The empty lines before make a traceback name the line of the page.
        exec(compile("\n" * (block.line - 1) + block.code, str(ROOT / block.page), "exec"), namespace)


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def trains_long(page: Path) -> bool:
    return any(BUDGET.search(block.code) or SEARCH.search(block.code) for block in blocks(page, "python"))


def runnable_bash() -> list[Block]:
    return [block for page in PAGES for block in blocks(page, "bash") if "run" in block.info[1:]]


def verbs() -> dict[str, str]:
    """Each verb that the documentation names, and where it does first."""
    found: dict[str, str] = {}
    for page in PAGES:
        for block in blocks(page, "bash"):
            for words in commands(block):
                if words and not words[0].startswith("-"):
                    found.setdefault(words[0], f"{block.page}:{block.line}")
    return found


@pytest.mark.parametrize("page", pages_with("python"), ids=name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """Training for 10,000 env steps or more is cut to 2,000."""
    kept = [block for block in blocks(page, "python") if not SEARCH.search(block.code)]
    run_page([block._replace(code=BUDGET.sub("2_000", block.code)) for block in kept], tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in pages_with("python") if trains_long(page)], ids=name)
def test_python_blocks_run_as_they_are(page, tmp_path, monkeypatch):
    run_page(blocks(page, "python"), tmp_path, monkeypatch)


def run_page(found, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.path_importer_cache, ".", raising=False)  # which means the folder of another page
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in found:
        run_python(block, namespace)


def migrating() -> list[Any]:
    """Pages for migrating users; in the fast tests those that start processes, which namespaces do not show."""
    pages = [page for page in pages_with("python") if page.parent.name == "coming_from"]
    starts = [any("process" in block.code for block in blocks(page, "python")) for page in pages]
    return [
        pytest.param(page, id=name(page), marks=() if fast else pytest.mark.slow)
        for page, fast in zip(pages, starts, strict=True)
    ]


@pytest.mark.parametrize("page", migrating())
def test_a_page_for_migrating_users_is_a_script(page, tmp_path):
    """Its blocks in one file, as a reader would paste them: worker processes import that file."""
    script = tmp_path / "page.py"
    pasted = [block.code for block in blocks(page, "python") if ">>>" not in block.code and NOT_RUN not in block.code]
    script.write_text("\n".join(pasted), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_the_command_line_has_every_verb_that_is_named(verb):
    """That each of them works is in tests/cli/test_main.py."""
    assert verb in COMMANDS, f"{verbs()[verb]} names `palaestra {verb}`"


@pytest.mark.parametrize("block", runnable_bash(), ids=lambda block: f"{block.page}:{block.line}")
def test_bash_blocks_marked_run_succeed(block, tmp_path):
    for words in commands(block):
        done = subprocess.run(
            [*COMMAND_LINE, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, (
            f"{block.page}:{block.line}: palaestra {shlex.join(words)}\n{done.stdout}{done.stderr}"
        )


def test_a_failing_doctest_and_a_missing_reason_are_reported():
    with pytest.raises(AssertionError, match=r"Expected:\s+3"):
        run_python(Block("page.md", 7, ["python"], ">>> 1 + 1\n3\n"), {})
    with pytest.raises(AssertionError, match=r"page\.md:7: '# not run:' needs a reason"):
        run_python(Block("page.md", 7, ["python"], "# not run:\n1 + 1\n"), {})


def test_blocks_share_names_and_commands_are_found():
    namespace: dict[str, object] = {}
    run_python(Block("page.md", 1, ["python"], "two = 1 + 1\n"), namespace)
    run_python(Block("page.md", 5, ["python"], ">>> two\n2\n>>> three = 3\n"), namespace)
    run_python(Block("page.md", 9, ["python"], "assert (two, three) == (2, 3)\n"), namespace)
    text = "cd runs\n$ palaestra train ppo \\\n    CartPole-v1  # PPO\npalaestra eval last\n"
    assert list(commands(Block("page.md", 1, ["bash"], text))) == [["train", "ppo", "CartPole-v1"], ["eval", "last"]]
