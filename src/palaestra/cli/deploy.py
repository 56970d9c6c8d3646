"""`palaestra export`, `serve`, `share` and `pull`: what happens with a policy after its run."""

import json
import os
import shlex
from dataclasses import dataclass

from palaestra import deployment
from palaestra.cli.options import JsonOptions, RunOptions
from palaestra.core import AtLeastOne
from palaestra.deployment import ExportFormat


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


def export(name: str, options: ExportOptions) -> int:
    """Writes policies as ONNX or torch.export programs, with statistics, masks, action scale and memory inside."""
    chosen = options.chosen()
    made = deployment.export(name, chosen.pop("output"), **chosen)
    record = [{"path": str(one.path), "policy": one.policy, **one.manifest} for one in made]
    options.show(record, "\n\n".join(map(str, made)))
    return 0


@dataclass(frozen=True, kw_only=True)
class ServeOptions(deployment.ServingConfig, RunOptions):
    """Options of `palaestra serve`."""

    def started(self, url: str) -> None:
        """Says where the server is."""
        text = f"serving     {url}  (POST /act, GET /schema, /health, /metrics; Ctrl-C, SIGTERM or SIGHUP ends it)"
        print(json.dumps({"url": url, "pid": os.getpid()}) if self.json else text, flush=True)


def serve(name: str, options: ServeOptions) -> int:
    """Serves the policies of a run over HTTP until Ctrl-C, SIGTERM or SIGHUP.

    Returns:
        0 if every request that was accepted has been answered; 1 if a second signal, or the time, cut some off.
    """
    served = deployment.serve(name, ready=options.started, **options.chosen())
    record = {"answered": served.answered, "refused": served.refused, "unanswered": served.unanswered}
    options.show(record, f"stopped     {served}")
    return 1 if served.unanswered else 0


@dataclass(frozen=True, kw_only=True)
class ShareOptions(RunOptions):
    """Options of `palaestra share`."""

    output: str | None = None
    """The folder to make; by default `shared/` and the name of the run."""
    push: str | None = None
    """Push it to the model NAMESPACE/NAME on the hub as well (needs the extra `hub`, and HF_TOKEN)."""
    episodes: AtLeastOne[int] = 20
    """Episodes of the evaluation, of every seed."""
    film: bool = True
    """Film an episode, where the environment draws pictures."""


def share(name: str, options: ShareOptions) -> int:
    """Makes a folder for others of a run's best policy."""
    shared = deployment.share(name, **options.chosen())
    options.show(_record(shared), str(shared))
    return 0


@dataclass(frozen=True, kw_only=True)
class PullOptions(JsonOptions):
    """Options of `palaestra pull`."""

    output: str | None = None
    """Folder to put it into; by default `shared/NAME`, and a folder stays where it is."""


def pull(source: str, options: PullOptions) -> int:
    """Gets a shared policy from the zoo or the hub, or checks a folder."""
    shared = deployment.pull(source, output=options.output)
    options.show(_record(shared), f"{shared}\nnext        palaestra play {shlex.quote(str(shared.directory))}")
    return 0


def _record(shared: deployment.SharedPolicy) -> dict[str, object]:
    return {
        "directory": str(shared.directory),
        "url": shared.url,
        "left_out": list(shared.missing),
        **{key: value for key, value in shared.facts.items() if key != "files"},
    }
