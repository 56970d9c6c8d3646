"""`export`: policies as files that need nothing of this library, and a proof that they act alike."""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from palaestra.core import Batch, ConfigError, PalaestraError, StepType, TimeStep, did_you_mean, import_extra
from palaestra.core.files import fingerprint, save_tensors, whole_folder, write_json
from palaestra.core.spec import ACTION_MASK, DiscreteSpec, TensorSpec, dtype_limits, map_spec, numpy_dtype, spec_leaves
from palaestra.core.tree import tree_paths
from palaestra.deployment.card import inside
from palaestra.experiments import RunDirectory, find_run, policies_of_run, read_evaluations
from palaestra.policies import NetworkPolicy, Phase, Policy, SearchPolicy, load_policy
from palaestra.runs.computed import package_version

__all__ = ["ExportFormat", "Exported", "Parity", "export"]

ExportFormat: TypeAlias = Literal["onnx", "torch"]
"""ONNX for onnxruntime and others, or a program of `torch.export`."""

Function: TypeAlias = Callable[[Sequence[Tensor]], list[Tensor]]

_FORMAT = 1
_FILES = {"onnx": "policy.onnx", "torch": "policy.pt2"}
_MOST = 1e-5  # largest difference of a number, as a share of the largest there where that is above 1
_BATCHES = (1, 1, 2, 3, 8, 33, 64, 128, 256, 504)  # 1,000 observations
_STEPS, _LANES = 40, 25  # the same, in order, where there is a memory


@dataclass(frozen=True)
class Parity:
    """Comparison of an exported policy with the policy."""

    observations: int
    """Observations that both were given: in batches of different sizes, and in sequences where there is a memory."""
    largest_difference: float
    """Largest difference of a number that came out, as a share of the largest that the policy says in its place where
    that is above 1; at most 1e-5."""
    other_choices: int
    """Discrete actions that differ where the policy itself decides either way, by the size of the batch."""


@dataclass(frozen=True)
class Exported:
    """A policy that was exported."""

    path: Path
    """Path of the file; `manifest.json` beside it says what goes in and out."""
    policy: str
    """Its name in the run."""
    manifest: dict[str, Any]
    """What `manifest.json` holds."""
    parity: Parity

    def __str__(self) -> str:
        inputs = ", ".join(_shown(tensor) for tensor in self.manifest["inputs"])
        outputs = ", ".join(_shown(tensor) for tensor in self.manifest["outputs"])
        equal = "" if not self.parity.other_choices else f", {self.parity.other_choices} ties decided otherwise"
        return (
            f"exported    {self.path}\ninputs      {inputs}\noutputs     {outputs}\n"
            f"parity      largest difference {self.parity.largest_difference:.1e} over "
            f"{self.parity.observations:,} observations{equal}"
        ) + (f"\nwrappers    {inside(wrappers)}" if (wrappers := self.manifest["wrappers"]) else "")


def export(
    run: str | Path,
    directory: str | Path | None = None,
    *,
    format: ExportFormat = "onnx",
    root: str | Path = "runs",
    which: str | int = "best",
    policy: str | None = None,
) -> list[Exported]:
    """Writes the policies of a run as programs of flat tensors, and compares them with the policies.

    Inside are the statistics of observations, masks, the scale of actions and the memory; the actions are the
    deterministic ones, as the environment takes them. Wrappers of the environment are not inside: the manifest names
    those that you have to apply (`wrappers`), of rewards where the policy reads these. A program of a policy with a
    memory takes it and the input `first`, 1 where an episode begins, and gives it back; one that asks for a return also
    takes the `reward` before.

    Args:
        run: path or name of the run, or `last`; or a folder that `save_policy` wrote.
        directory: where to write, one folder for each policy where there are several; by default in the run.
        format: `onnx`, or `torch` for a program that `torch.export.load` reads.
        root: folder of the run, where it is given by its name.
        which: `best` of its evaluations, `last`, or the env steps of a checkpoint.
        policy: the only one to export, of a run with several.

    Returns:
        What was written, one for each policy.

    Raises:
        CheckpointError: there is no such run or policy, or the folder cannot be written.
        ConfigError: the format or policy is unknown, the folder exists, or a policy has nothing that could be exported.
        MissingExtraError: the extra `export` is not installed.
        PalaestraError: the program does not act as the policy does; nothing is left of it.
    """
    if format not in get_args(ExportFormat):
        raise ConfigError(f"the format is {format!r}{did_you_mean(format, _FILES)}; give onnx or torch")
    if format == "onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            import_extra(module, "export", "exporting to ONNX")
    source, policies, facts = _found(Path(run), root, which)
    if policy is not None and policy not in policies:
        raise ConfigError(
            f"{run} has no policy {policy!r}{did_you_mean(policy, policies)}; it has {', '.join(policies)}"
        )
    networks = {name: one for name, one in policies.items() if isinstance(one, NetworkPolicy)}
    able = {name: one for name, one in networks.items() if not isinstance(one, SearchPolicy)}
    for name, one in policies.items():
        if policy in (None, name) and name not in able:
            others = f", or export another one with --policy: {', '.join(able)}" if able else ""
            raise ConfigError(
                f"the policy {name!r} is a {type(one).__name__}: a rule, or a search, in Python, which no other "
                f"program could run; serve it with `palaestra serve`{others}"
            )
    chosen = able if policy is None else {policy: able[policy]}
    target = source / "export" / format if directory is None else Path(directory)
    if target.suffix in (".onnx", ".pt2", ".pt"):
        raise ConfigError(f"--output is {str(target)!r}; give a folder for {_FILES[format]} and what is said of it")
    folders = {name: target if len(chosen) == 1 else target / name for name in chosen}
    for folder in folders.values():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} exists already; give another --output, or delete it")
    return [_exported(one, name, folders[name], format, facts) for name, one in chosen.items()]


def _found(path: Path, root: str | Path, which: str | int) -> tuple[Path, Mapping[str, Policy], dict[str, Any]]:
    """The folder to write to by default, the policies, and what is known of them."""
    if (path / "policy.json").is_file():
        return path, {"policy": load_policy(path)}, {}
    run = find_run(path, root)
    _, policies = policies_of_run(run, which)
    facts = {**facts_of(run), "which": str(which)}
    return Path() if run.is_shared else run.path, policies, facts  # a shared folder stays what its manifest says


def facts_of(run: RunDirectory) -> dict[str, Any]:
    """A manifest's entries about a run."""
    info = run.info
    facts = {name: info.get(name) for name in ("algorithm", "env", "seed", "git")}
    facts["env_steps"] = run.steps_done
    evaluations = read_evaluations(run.path)
    newest = evaluations[-1][1] if evaluations else dict(info.get("evaluation", {}))  # of a shared policy its own
    shown = ("env_steps", "return_mean", "return_ci95", "episodes", "deterministic", "seeds")
    evaluation = {name: newest[name] for name in shown if name in newest}
    return {"run": run.path.name, **facts, "best_return": run.kept_return, "last_evaluation": evaluation}


def _exported(policy: NetworkPolicy, name: str, folder: Path, format: ExportFormat, facts: dict[str, Any]) -> Exported:
    program = _Program(policy.eval())
    with whole_folder(folder, "exported policy") as temporary:  # one that is there is empty
        file = temporary / _FILES[format]
        run = (_onnx if format == "onnx" else _torch)(program, file)
        parity = _compared(program, run, file.name)
        weights = temporary / "weights.safetensors"  # for its hash: the policy's in all that is said of it
        save_tensors(weights, policy.state_dict())
        manifest = {
            "format": _FORMAT,
            "file": file.name,
            **fingerprint(file),
            "policy": type(policy).__name__,
            "weights_sha256": fingerprint(weights)["sha256"],
            "inputs": [_described(*entry) for entry in program.inputs.items()],
            "outputs": [_described(*entry) for entry in program.outputs.items()],
            "state": {key: f"next.{key}" for key in program.state},
            "wrappers": list(policy.wrappers),
            "parity": vars(parity),
            "versions": {package: package_version(package) for package in ("palaestra", "torch", "onnx")},
            **facts,
        }
        weights.unlink()
        write_json(temporary / "manifest.json", manifest)
    return Exported(folder / file.name, name, manifest, parity)


class _Program(nn.Module):
    """A policy as a function of flat tensors.

    Args:
        policy: in `Phase.EVAL`.
    """

    def __init__(self, policy: NetworkPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.observation = {
            _name("observation", path): leaf for path, leaf in spec_leaves(policy.observation_spec).items()
        }
        state = policy.state_spec
        self.state = {f"state.{key}": leaf for key, leaf in state.items()} if isinstance(state, dict) else {}
        self._begin = {key: leaf.detach() for key, leaf in policy.initial_state(1).items()} if self.state else {}
        own = {"first": TensorSpec((), torch.bool)} if self.state else {}
        own |= {"reward": TensorSpec(())} if policy.reads_reward else {}
        self.inputs: dict[str, TensorSpec] = {**self.observation, **self.state, **own}
        """Specs by name, of one row; a dimension for the batch comes before."""
        actions = {_name("action", path): leaf for path, leaf in spec_leaves(policy.action_spec).items()}
        self.outputs: dict[str, TensorSpec] = {**actions, **{f"next.{key}": leaf for key, leaf in self.state.items()}}
        self.num_actions = len(actions)
        mask = _name("observation", ACTION_MASK)
        self._masked = {_name(mask, path): leaf for path, leaf in spec_leaves(policy.action_spec).items()}

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given, observation, memory = self._unpacked(inputs)
        if self.state:
            memory, first = self.policy.rewarded(memory, given.get("reward")), given["first"]
            # not a product: a memory that is not finite must end with its episode as well
            first = {key: first.reshape(-1, *[1] * (leaf.ndim - 1)) for key, leaf in memory.items()}
            memory = Batch.of({key: torch.where(first[key], self._begin[key], leaf) for key, leaf in memory.items()})
        return tuple(self._packed(self.policy.choose(observation, memory, False, True)))

    def _unpacked(self, inputs: Sequence[Tensor]) -> tuple[dict[str, Tensor], Any, Any]:
        """Inputs by name, and the observation and the memory among them."""
        given = dict(zip(self.inputs, inputs, strict=True))
        leaves = iter([given[name] for name in self.observation])
        memory = Batch.of({name.removeprefix("state."): given[name] for name in self.state}) if self.state else ()
        return given, map_spec(lambda _: next(leaves), self.policy.observation_spec), memory

    def _packed(self, step: Any) -> list[Tensor]:
        """Actions as the environment takes them, and the memory."""
        paths = tree_paths(self.policy.env_action(step.action))
        actions = [paths[path].to(spec.dtype) for path, spec in spec_leaves(self.policy.action_spec).items()]
        return [*actions, *(step.state[name.removeprefix("state.")] for name in self.state)]

    def example(self, rows: int) -> tuple[Tensor, ...]:
        return tuple(self.drawn(rows, np.random.default_rng(rows)).values())

    def drawn(self, rows: int, generator: np.random.Generator) -> dict[str, Tensor]:
        """Inputs that their specs allow, with masks that forbid one action where that leaves others.

        Args:
            rows: how many.
            generator: of the numbers.
        """
        drawn = {name: _drawn(spec, rows, generator) for name, spec in self.inputs.items()}
        for name in filter(drawn.__contains__, self._masked):
            options = np.asarray(getattr(self._masked[name], "nvec", [self._masked[name].encoded_size]))
            may = np.flatnonzero(np.repeat(options, options) > 1)  # a choice keeps its only option
            forbidden = generator.choice(may, rows) if len(may) else np.full(rows, -1)
            allowed = np.arange(options.sum()) != forbidden[:, None]
            drawn[name] = torch.from_numpy(allowed).to(self.inputs[name].dtype)
        return drawn

    @torch.no_grad()
    def reference(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """What the policy itself answers, asked as an evaluation asks it."""
        given, observation, state = self._unpacked(inputs)
        first = given.get("first", torch.zeros(len(inputs[0]), dtype=torch.bool))
        kinds = torch.where(first, int(StepType.FIRST), int(StepType.MID)).int()
        step = TimeStep(kinds, given.get("reward", ()), observation=observation)
        return self._packed(self.policy.act(step, state, phase=Phase.EVAL, deterministic=True))


def _onnx(program: _Program, file: Path) -> Function:
    """Writes a program, and loads it as others would."""
    runtime = import_extra("onnxruntime", "export", "exporting to ONNX")
    with _quiet():
        made = torch.onnx.export(
            program,
            program.example(3),
            dynamo=True,
            input_names=list(program.inputs),
            output_names=list(program.outputs),
            dynamic_shapes=_dynamic(program),
            verbose=False,
        )
        assert made is not None
        made.save(str(file), external_data=False)
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    taken = {entry.name for entry in session.get_inputs()}

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        given = {name: value.numpy() for name, value in zip(program.inputs, inputs, strict=True) if name in taken}
        return [torch.from_numpy(np.asarray(output)) for output in session.run(list(program.outputs), given)]

    return run


def _torch(program: _Program, file: Path) -> Function:
    """See `_onnx`."""
    with _quiet():
        made = torch.export.export(program, program.example(3), dynamic_shapes=_dynamic(program), strict=False)
        torch.export.save(made, data := io.BytesIO())  # torch names no cause where it cannot write a file
        file.write_bytes(data.getvalue())
        loaded = torch.export.load(file).module()

    @torch.no_grad()
    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        return [output.detach() for output in loaded(*inputs)]

    return run


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters say about their own insides, which is not for users, or write: paths of this machine."""
    log, fx = logging.getLogger("torch.onnx"), cast("Any", torch.fx).config
    level, traces = log.level, getattr(fx, "do_not_emit_stack_traces", None)
    log.setLevel(logging.ERROR)
    if traces is not None:  # torch 2.8 to 2.10 cannot leave them out
        fx.do_not_emit_stack_traces = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
        if traces is not None:
            fx.do_not_emit_stack_traces = traces


def _dynamic(program: _Program) -> Any:
    batch = torch.export.Dim("batch", min=1, max=2**20)
    return (tuple({0: batch} for _ in program.inputs),)


def _compared(program: _Program, run: Function, name: str) -> Parity:
    """The parity, measured.

    Raises:
        PalaestraError: the program does not act as the policy does.
    """
    ties, rows, off, size = 0, 0, dict[str, Tensor](), dict[str, Tensor]()
    for inputs in _sequences(program) if program.state else _batches(program):
        rows += len(inputs[0])
        for output, mine, theirs in zip(program.outputs, program.reference(inputs), run(inputs), strict=True):
            if not mine.dtype.is_floating_point:
                differ = (mine != theirs).reshape(len(mine), -1).any(-1).nonzero().flatten().tolist()
                real = [row for row in differ if not _undecided(program, inputs, row, output, mine[row])]
                if real:
                    raise PalaestraError(
                        f"{name} chooses {output} = {theirs[real[0]].tolist()} where the policy chooses "
                        f"{mine[real[0]].tolist()}, in {len(real)} of {len(mine)} rows; it is not kept"
                    )
                ties += len(differ)
            else:
                _widen(off, output, mine.double() - theirs.double())
                _widen(size, output, mine.double())
    shares = {output: (off[output] / size[output].clamp(min=1)).max().item() for output in off if off[output].numel()}
    for output, share in shares.items():
        if not share <= _MOST:
            raise PalaestraError(
                f"{name} says {output} of shape {tuple(program.outputs[output].shape)} otherwise than the policy, by "
                f"{share:.1e} of the largest it says there, or of 1; at most {_MOST:.0e} is rounding. It is not kept"
            )
    return Parity(rows, max(shares.values(), default=0.0), ties)


def _widen(largest: dict[str, Tensor], output: str, values: Tensor) -> None:
    """Keeps the largest magnitude of each number of an output, over all rows: its scale, or how far it is off."""
    found = values.abs().amax(0)
    largest[output] = torch.maximum(largest.get(output, found), found)


def _undecided(program: _Program, inputs: Sequence[Tensor], row: int, output: str, chosen: Tensor) -> bool:
    """Whether the policy's own choice for a row depends on how many rows it is asked for."""
    alone = program.reference([value[row : row + 1] for value in inputs])
    twice = program.reference([value[row : row + 1].repeat(64, *[1] * (value.ndim - 1)) for value in inputs])
    place = list(program.outputs).index(output)
    return any((answer[place] != chosen).any().item() for answer in (alone, twice))


def _batches(program: _Program) -> Iterator[tuple[Tensor, ...]]:
    generator = np.random.default_rng(0)
    for rows in _BATCHES:
        yield tuple(program.drawn(rows, generator).values())


def _sequences(program: _Program) -> Iterator[tuple[Tensor, ...]]:
    """Steps in order: the memory of the policy goes on, and episodes begin now and then."""
    generator, memory = np.random.default_rng(0), []
    for step in range(_STEPS):
        drawn = program.drawn(_LANES, generator)
        drawn["first"] = torch.from_numpy(generator.random(_LANES) < (1.0 if step == 0 else 0.1))
        drawn |= dict(zip(program.state, memory, strict=False))
        yield tuple(drawn.values())
        memory = program.reference(tuple(drawn.values()))[program.num_actions :]


def _drawn(spec: TensorSpec, rows: int, generator: np.random.Generator) -> Tensor:
    """Values that a spec allows; floats within three where it has no bounds, all within 1,000 of that nearest to 0."""
    shape = (rows, *spec.shape)
    if spec.dtype == torch.bool:
        return torch.from_numpy(generator.random(shape) < 0.5)
    limits = (-3.0, 3.0) if spec.dtype.is_floating_point else dtype_limits(numpy_dtype(spec.dtype))
    low, high = (np.asarray(bound, np.float64) for bound in spec.bounds or limits)
    middle = np.clip(0.0, low, high)  # the number they allow that is nearest to 0
    low, high = np.maximum(low, middle - 1e3), np.minimum(high, middle + 1e3)
    values = torch.from_numpy(low + (high - low) * generator.random(shape))
    return (values if spec.dtype.is_floating_point else values.round()).to(spec.dtype)


def _name(kind: str, path: str) -> str:
    return f"{kind}.{path}" if path else kind


def _described(name: str, spec: TensorSpec) -> dict[str, Any]:
    """A tensor as JSON."""
    described: dict[str, Any] = {
        "name": name,
        "shape": ["batch", *spec.shape],
        "dtype": str(spec.dtype).removeprefix("torch."),
    }
    if isinstance(spec, DiscreteSpec):
        described["num"] = spec.num
    if spec.bounds is not None:
        described |= {"minimum": _numbers(spec.bounds[0]), "maximum": _numbers(spec.bounds[1])}
    return described


def _numbers(bounds: Any) -> Any:
    """Bounds as JSON, which has no infinity."""
    array = np.asarray(bounds, np.float64)
    return np.where(np.isfinite(array), array.astype(object), np.array(None)).tolist()


def _shown(tensor: Mapping[str, Any]) -> str:
    return f"{tensor['name']} {tensor['dtype']}[{', '.join(map(str, tensor['shape']))}]"
