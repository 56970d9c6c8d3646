"""`palaestra serve`: a policy over HTTP."""

import json
import os
from dataclasses import dataclass, fields

from palaestra import deployment
from palaestra.cli.options import RunOptions, command

__all__ = ["serve"]


@dataclass(frozen=True, kw_only=True)
class ServeOptions(deployment.ServingConfig, RunOptions):
    """Options of `palaestra serve`."""

    def started(self, url: str) -> None:
        """Says where the server is."""
        text = f"serving     {url}  (POST /act, GET /schema, /health, /metrics; Ctrl-C or SIGTERM ends it)"
        print(json.dumps({"url": url, "pid": os.getpid()}) if self.json else text, flush=True)


def serve(arguments: list[str]) -> int:
    """Serves the policies of a run over HTTP until SIGTERM or Ctrl-C.

    Args:
        arguments: the run, then options.

    Returns:
        0 if every request that was accepted has been answered; 1 if a second signal, or the time, cut some off.
    """
    usage = "palaestra serve RUN [--host 127.0.0.1] [--port 8000] [--token TOKEN]"
    (name,), options = command(ServeOptions, arguments, usage, "the run")
    settings = {entry.name: getattr(options, entry.name) for entry in fields(deployment.ServingConfig)}
    served = deployment.serve(name, root=options.root, ready=options.started, **settings)
    record = {"answered": served.answered, "refused": served.refused, "unanswered": served.unanswered}
    options.show(record, f"stopped     {served}")
    return 1 if served.unanswered else 0
