"""`palaestra export`: policies as files that need nothing of this library."""

from dataclasses import dataclass

from palaestra import deployment
from palaestra.cli.options import RunOptions, command
from palaestra.deployment import ExportFormat

__all__ = ["export"]


@dataclass(frozen=True, kw_only=True)
class ExportOptions(RunOptions):
    """Options of `palaestra export`."""

    format: ExportFormat = "onnx"
    """onnx, or torch for a program that torch.export.load reads."""
    output: str | None = None
    """Folder to write; by default export/FORMAT in the run."""
    which: str = "best"
    """Which policy: best, last, or the env steps of a checkpoint."""
    policy: str | None = None
    """Name of the only policy to export, of a run with several."""


def export(arguments: list[str]) -> int:
    """Writes policies as ONNX or torch.export programs, with statistics, masks, action scale and memory inside.

    Args:
        arguments: the run, then options.
    """
    usage = "palaestra export RUN [--format onnx|torch] [--output FOLDER]"
    (name,), options = command(ExportOptions, arguments, usage, "the run")
    made = deployment.export(
        name,
        options.output,
        format=options.format,
        root=options.root,
        which=options.which,
        policy=options.policy,
    )
    record = [{"path": str(one.path), "policy": one.policy, **one.manifest} for one in made]
    options.show(record, "\n\n".join(map(str, made)))
    return 0
