"""Files, functions and parameter lists that fit on a screen."""

import ast

import pytest

from tests.architecture.source import Function, Source, functions, sources

MAX_FILE_LINES = 400  # of tests, tools and benchmarks, with comments and docstrings
MAX_FILE_CODE_LINES = 300  # of the package: no docstrings, comments and blank lines
MAX_FUNCTION_CODE_LINES = 50
MAX_PARAMETERS = 7
MAX_EXAMPLE_LINES = 60


def long_files(source: Source, limit: int = MAX_FILE_LINES) -> list[str]:
    lines = len(source.text.splitlines())
    return [f"{source.path}:1: {lines} lines; at most {limit} are allowed"] if lines > limit else []


def much_code(source: Source) -> list[str]:
    lines = len(source.code)
    limit = MAX_FILE_CODE_LINES
    return [f"{source.path}:1: {lines} lines of code; at most {limit} are allowed"] if lines > limit else []


def long_functions(source: Source) -> list[str]:
    return [
        f"{source.at(node)}: {node.name} has {lines} lines of code; at most {MAX_FUNCTION_CODE_LINES} are allowed"
        for node, _ in functions(source.tree)
        if (lines := len(source.code_of(node))) > MAX_FUNCTION_CODE_LINES
    ]


def long_parameter_lists(source: Source) -> list[str]:
    return [
        f"{source.at(node)}: {node.name} has {count} parameters; at most {MAX_PARAMETERS} are allowed, "
        "group them in a configuration dataclass"
        for node, owner in functions(source.tree)
        if not (owner and is_record(owner) and node.name in {"__init__", "__new__"})
        and (count := parameter_count(node, owner)) > MAX_PARAMETERS
    ]


def parameter_count(node: Function, owner: ast.ClassDef | None) -> int:
    count = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
    static = any(
        isinstance(decorator, ast.Name) and decorator.id == "staticmethod" for decorator in node.decorator_list
    )
    return count - (owner is not None and not static)


def is_record(node: ast.ClassDef) -> bool:
    """A dataclass, a named tuple or a `Batch` layout: its constructor has a parameter for each field."""
    names = {ast.unparse(item).split("(")[0].split(".")[-1] for item in [*node.decorator_list, *node.bases]}
    return bool(names & {"dataclass", "NamedTuple", "Batch"})


@pytest.mark.parametrize("folder", ["tests", "tools", "benchmarks"])
def test_files_are_short(folder):
    violations = [violation for source in sources(folder) for violation in long_files(source)]
    assert not violations, "\n" + "\n".join(violations)


def test_examples_fit_on_a_screen():
    """Those of one file; a package of several, such as examples/inventory, has files as short as all others."""
    violations = [
        violation
        for source in sources("examples")
        for violation in long_files(source, MAX_EXAMPLE_LINES if source.path.count("/") == 1 else MAX_FILE_LINES)
    ]
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize("rule", [much_code, long_functions, long_parameter_lists])
def test_functions_of_the_package_are_small(rule):
    violations = [violation for source in sources("src") for violation in rule(source)]
    assert not violations, "\n" + "\n".join(violations)


def test_each_limit_is_the_last_allowed_size():
    body = '\n    """Not counted."""\n' + "\n".join("    pass" for _ in range(MAX_FUNCTION_CODE_LINES - 1))
    assert long_functions(Source("a.py", f"def f():{body}")) == []
    assert len(long_functions(Source("a.py", f"def f():{body}\n    pass"))) == 1
    assert long_files(Source("a.py", "pass\n" * MAX_FILE_LINES)) == []
    assert len(long_files(Source("a.py", "pass\n" * (MAX_FILE_LINES + 1)))) == 1
    assert much_code(Source("a.py", '"""Not counted."""\n\n# nor this\n' + "pass\n" * MAX_FILE_CODE_LINES)) == []
    assert len(much_code(Source("a.py", "pass\n" * (MAX_FILE_CODE_LINES + 1)))) == 1


def test_self_and_the_fields_of_a_record_are_not_counted():
    seven = "class C:\n    def f(self, a, b, c, d, e, f, *, g): ..."
    record = "class C(Batch):\n    def __init__(self, a, b, c, d, e, f, g, h): ..."
    assert long_parameter_lists(Source("a.py", seven)) == []
    assert long_parameter_lists(Source("a.py", record)) == []
    assert len(long_parameter_lists(Source("a.py", seven.replace("g)", "g, h)")))) == 1
    assert len(long_parameter_lists(Source("a.py", record.replace("(Batch)", "")))) == 1
