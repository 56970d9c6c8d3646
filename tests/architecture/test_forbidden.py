"""What must not stand in the code, and where it would be dangerous or a nuisance."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.source import ROOT, Source, imports, sources

PICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
# Between the processes of one run the data is ours; `runtime` is the only package that carries it.
TRANSPORT = "src/palaestra/runtime/"
TEXT_FOLDERS = ("src", "tests", "tools", "docs", "examples", "benchmarks")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".txt"}
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME)\b")


def unsafe_loading(source: Source) -> list[str]:
    found = [
        f"{source.at(item.node)}: imports {item.module}; reading a pickle runs code, write safetensors and JSON "
        f"(only {TRANSPORT} may pickle, between the processes of one run)"
        for item in imports(source)
        if item.top in PICKLERS and not source.path.startswith(TRANSPORT)
    ]
    for call, name in calls(source):
        if name in {"torch.load", "torch.save"}:
            found.append(f"{source.at(call)}: calls {name}, which pickles; write safetensors and JSON")
        for keyword in call.keywords:
            if keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False":
                found.append(f"{source.at(call)}: passes allow_pickle to {name}; only False is allowed")
    return found


def printing(source: Source) -> list[str]:
    return [
        f"{source.at(call)}: calls print; only the command line (src/palaestra/cli/) prints, use a logger"
        for call, name in calls(source)
        if name == "print" and source.package != "cli"
    ]


def sleeping(source: Source) -> list[str]:
    naps = {"time.sleep", "asyncio.sleep", "sleep"}
    return [
        f"{source.at(call)}: calls {name}; tests never sleep a fixed time, poll with the `wait_until` fixture"
        for call, name in calls(source)
        if name in naps and source.path != "tests/conftest.py"
    ]


def calls(source: Source) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


@pytest.mark.parametrize(("rule", "folder"), [(unsafe_loading, "src"), (printing, "src"), (sleeping, "tests")])
def test_nothing_forbidden_stands_in(rule, folder):
    violations = [violation for source in sources(folder) for violation in rule(source)]
    assert not violations, "\n" + "\n".join(violations)


def test_nothing_is_left_for_later():
    inside = [path for folder in TEXT_FOLDERS for path in (ROOT / folder).rglob("*")]
    violations = [
        f"{path.relative_to(ROOT)}:{number}: says {word[0]}; finish it, or open an issue"
        for path in sorted([*ROOT.glob("*"), *inside])
        if path.suffix in TEXT_SUFFIXES or path.name == "Makefile"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (word := UNFINISHED.search(line))
    ]
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (unsafe_loading, "src/palaestra/buffers/a.py", "import pickle"),
        (unsafe_loading, "src/palaestra/training/a.py", "def f():\n    from cloudpickle import loads"),
        (unsafe_loading, "src/palaestra/training/a.py", "torch.load(path, weights_only=True)"),
        (unsafe_loading, "src/palaestra/training/a.py", "np.load(path, allow_pickle=True)"),
        (printing, "src/palaestra/envs/a.py", "print('hello')"),
        (sleeping, "tests/envs/test_a.py", "import time\ntime.sleep(1)"),
    ],
)
def test_an_offender_is_named_with_file_and_line(rule, path, text):
    (violation,) = rule(Source(path, text))
    assert violation.startswith(f"{path}:{1 + text.count(chr(10))}: ")


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (unsafe_loading, "src/palaestra/runtime/process.py", "import cloudpickle"),
        (unsafe_loading, "src/palaestra/training/a.py", "safetensors.torch.load(data)"),
        (printing, "src/palaestra/cli/main.py", "print('hello')"),
        (printing, "src/palaestra/training/panel.py", "console.print('hello')"),
        (sleeping, "tests/conftest.py", "time.sleep(0.01)"),
    ],
)
def test_an_allowed_line_passes(rule, path, text):
    assert rule(Source(path, text)) == []
