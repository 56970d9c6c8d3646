"""What must not stand in the code, and where it would be dangerous or a nuisance."""

import ast
import re

import pytest

from tests.architecture.source import ROOT, Source, imports, sources

PICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
# Between the processes of one run the data is ours; `runtime` is the only package that carries it.
TRANSPORT = "src/palaestra/runtime/"
TEXT_FOLDERS = ("src", "tests", "tools", "docs", "examples", "benchmarks")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".txt"}
# What is private to PyTorch, and the one file that may use it. `_buffers` is also a name of ours, outside modules.
FAST = "src/palaestra/nn/fast.py"
# PyTorch has no public way to say that a class is a tree; `vmap` and compiled code have to know it.
REGISTRATION = ("src/palaestra/core/tree.py", "torch.utils._pytree")
MODULE_INTERNALS = {
    *("_modules", "_parameters", "_apply", "_call_impl", "_load_from_state_dict", "_forward_hooks"),
    *("_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_slow_forward"),
}
# The one file that opens what may be somebody else's, and the places that read something else.
READING = "src/palaestra/core/reading.py"
READERS = {"os.open", "io.open", "json.load", "np.load", "np.fromfile", "np.memmap", "np.genfromtxt", "np.loadtxt"} | {
    *("safe_open", "load_file", "torch.from_file", "mmap.mmap", "open", "shelve.open", "zipfile.ZipFile", "yaml.load"),
}
KERNEL = {  # which tells about this process and this machine
    "src/palaestra/buffers/storage.py": {
        *("Path('/proc/meminfo').read_text", "(folder / limit).read_text"),
        *("(folder / usage).read_text", "(folder / 'memory.stat').read_text"),
    },
    "src/palaestra/core/computing.py": {"own.read_text", "(folder / name).read_text"},
    "src/palaestra/envs/supervision/guard.py": {"open"},
    "src/palaestra/distributed/exchange.py": {"Path('/proc/sys/kernel/random/boot_id').read_text"},
    "src/palaestra/runs/computed.py": {"Path('/proc/cpuinfo').read_text"},
    "src/palaestra/runtime/leaks.py": {
        *("(task / 'children').read_text", "(_SELF / 'statm').read_text"),
        *("(_SELF / 'task' / number / 'comm').read_text", "Path('/proc', number, 'comm').read_text"),
    },
}
OTHERS = {
    "src/palaestra/cli/completion.py": {  # files of this package
        *("(_SHELLS / 'program.sh').read_text", "(_SHELLS / f'palaestra.{shell}').read_text"),
    },
    "src/palaestra/analysis/logs.py": {"np.load", "zipfile.ZipFile"},  # bytes that were read
    "src/palaestra/buffers/storage.py": {"os.open", "torch.from_file"},  # of a size that was compared
    "src/palaestra/config/values.py": {"yaml.load"},  # of a text
    "src/palaestra/core/files.py": {"os.open", "safe_open"},  # a folder; what `opened` has looked at
    "src/palaestra/distributed/exchange.py": {"os.open", "mmap.mmap"},  # memory of another rank of the run
    "src/palaestra/distributed/replay_shard.py": {"parcel.open"},  # of the network
    "src/palaestra/envs/supervision/places.py": {"path.open", "mmap.mmap"},  # which it has just made
    "src/palaestra/runs/run_directory.py": {"(self.path / 'run.lock').open"},  # written; `require_plain` has looked
    "src/palaestra/runtime/memory.py": {"mmap.mmap"},  # without a name
    "src/palaestra/training/async_evaluation.py": {"self._both.open"},  # a parcel of its own
    "src/palaestra/training/console.py": {"os.open"},  # the end of output
    "src/palaestra/training/loggers.py": {"os.open"},  # written; `opened` looks before it is read
}
READ_ELSEWHERE = {(path, name) for places in (KERNEL, OTHERS) for path, names in places.items() for name in names}


UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME)\b")


def unsafe_loading(source: Source) -> list[str]:
    found = [
        f"{source.at(item.node)}: imports {item.module}; reading a pickle runs code, write safetensors and JSON "
        f"(only {TRANSPORT} may pickle, between the processes of one run)"
        for item in imports(source)
        if item.top in PICKLERS and not source.path.startswith(TRANSPORT)
    ]
    for call, name in source.calls:
        if name in {"torch.load", "torch.save"}:
            found.append(f"{source.at(call)}: calls {name}, which pickles; write safetensors and JSON")
        for keyword in call.keywords:
            if keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False":
                found.append(f"{source.at(call)}: passes allow_pickle to {name}; only False is allowed")
    return found


def printing(source: Source) -> list[str]:
    return [
        f"{source.at(call)}: calls print; only the command line (src/palaestra/cli/) prints, use a logger"
        for call, name in source.calls
        if name == "print" and source.package != "cli"
    ]


def sleeping(source: Source) -> list[str]:
    naps = {"time.sleep", "asyncio.sleep", "sleep"}
    if "sleep" not in source.text:  # so that it need not be parsed
        return []
    return [
        f"{source.at(call)}: calls {name}; tests never sleep a fixed time, poll with the `wait_until` fixture"
        for call, name in source.calls
        if name in naps and source.path != "tests/conftest.py"
    ]


def private_torch(source: Source) -> list[str]:
    if source.path == FAST:
        return []
    roots = {"torch", "nn"}
    found = [
        f"{source.at(node)}: uses {ast.unparse(node)}, which is private to PyTorch; what is private stands in {FAST}, "
        "beside a public way that gives the same numbers"
        for node in source.nodes
        if isinstance(node, ast.Attribute)
        and _private(node.attr)
        and (node.attr in MODULE_INTERNALS or ast.unparse(node).split(".")[0] in roots)
    ]
    found += [
        f"{source.at(node)}: looks up {ast.unparse(node)}, which is private to PyTorch; see {FAST}"
        for node in source.nodes
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value in {*MODULE_INTERNALS, "_buffers"}
    ]
    found += [
        f"{source.at(node)}: defines {node.name}, which is private to PyTorch; see {FAST}"
        for node in source.nodes
        if isinstance(node, ast.FunctionDef) and node.name in MODULE_INTERNALS
    ]
    for node in source.nodes:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        found += [
            f"{source.at(node)}: imports {name}, which is private to PyTorch; see {FAST}"
            for name in modules
            if name.split(".")[0] == "torch"
            and any(map(_private, name.split(".")))
            and (source.path, name) != REGISTRATION
        ]
    return found


def reading(source: Source) -> list[str]:
    return [
        f"{source.at(call)}: calls {name}, which a pipe or an endless device would hold; the functions of "
        f"{READING} refuse both, and bound what is read"
        for call, name in source.calls
        if _reads(call, name) and source.path != READING and (source.path, name) not in READ_ELSEWHERE
    ]


def _reads(call: ast.Call, name: str) -> bool:
    if name.endswith((".read_text", ".read_bytes")) or (name in READERS and name != "open"):
        return True
    if name != "open" and not name.endswith(".open"):
        return False
    place = 1 if name == "open" else 0
    modes = [*call.args[place : place + 1], *(word.value for word in call.keywords if word.arg == "mode")]
    if not modes:  # `buffer.open(row)` has no mode and opens no file
        return name == "open" or bool(call.keywords) or not call.args
    mode = modes[0]
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and bool({"r", "+"} & set(mode.value))


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize(
    ("rule", "folder"),
    [(unsafe_loading, "src"), (printing, "src"), (private_torch, "src"), (reading, "src"), (sleeping, "tests")],
)
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
        (private_torch, "src/palaestra/nn/a.py", "grads = torch._foreach_mul(grads, 2)"),
        (private_torch, "src/palaestra/nn/a.py", "from torch._utils import _flatten_dense_tensors"),
        (private_torch, "src/palaestra/nn/a.py", "from torch.optim.adam import _single_tensor_adam"),
        (private_torch, "src/palaestra/policies/a.py", "x = vars(self)['_buffers']"),
        (private_torch, "src/palaestra/policies/a.py", "x = self.network._modules"),
        (sleeping, "tests/envs/test_a.py", "import time\ntime.sleep(1)"),
        (reading, "src/palaestra/runs/a.py", "data = (path / 'run.json').read_text()"),
        (reading, "src/palaestra/runs/a.py", "file = path.open()"),
        (reading, "src/palaestra/runs/a.py", "file = path.open('rb')"),
        (reading, "src/palaestra/runs/a.py", "file = open(path, newline='')"),
        (reading, "src/palaestra/runs/a.py", "data = np.load(path, allow_pickle=False)"),
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
        (private_torch, FAST, "torch._fused_adam_()"),
        (private_torch, "src/palaestra/training/a.py", "for buffer in self._buffers(): torch.add(self._x, 1)"),
        (sleeping, "tests/conftest.py", "time.sleep(0.01)"),
        (reading, READING, "file = open(descriptor, 'rb')"),
        (reading, "src/palaestra/runs/a.py", "file = path.open('ab')"),
        (reading, "src/palaestra/runs/a.py", "self.buffer.open(time_step)"),
    ],
)
def test_an_allowed_line_passes(rule, path, text):
    assert rule(Source(path, text)) == []


def test_every_exception_to_the_reader_of_files_is_needed():
    """So the list of places that read files is complete, and nothing in it is out of date."""
    found = {(source.path, name) for source in sources("src") for call, name in source.calls if _reads(call, name)}
    assert found - {(READING, name) for path, name in found if path == READING} == READ_ELSEWHERE
