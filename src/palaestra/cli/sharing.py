"""`palaestra share` and `pull`: policies for others, and those of others."""

from dataclasses import dataclass

from palaestra import deployment
from palaestra.cli.options import JsonOptions, RunOptions, command
from palaestra.core import require_at_least

__all__ = ["pull", "share"]


@dataclass(frozen=True, kw_only=True)
class ShareOptions(RunOptions):
    """Options of `palaestra share`."""

    output: str | None = None
    """The folder to make; by default `shared/` and the name of the run."""
    push: str | None = None
    """Push it to the model NAMESPACE/NAME on the hub as well (needs the extra `hub`, and HF_TOKEN)."""
    episodes: int = 20
    """Episodes of the evaluation, of every seed."""
    film: bool = True
    """Film an episode, where the environment draws pictures."""


def share(arguments: list[str]) -> int:
    """Makes a folder for others of a run's best policy.

    Args:
        arguments: those after the verb.
    """
    usage = "palaestra share RUN [--output FOLDER] [--push NAMESPACE/NAME]"
    (name,), options = command(ShareOptions, arguments, usage, "the run")
    require_at_least(options, "--", episodes=1)
    shared = deployment.share(
        name,
        output=options.output,
        push=options.push,
        root=options.root,
        episodes=options.episodes,
        film=options.film,
    )
    options.show(_record(shared), str(shared))
    return 0


@dataclass(frozen=True, kw_only=True)
class PullOptions(JsonOptions):
    """Options of `palaestra pull`."""

    output: str | None = None
    """Folder to put it into; by default `shared/NAME`, and a folder stays where it is."""


def pull(arguments: list[str]) -> int:
    """Gets a shared policy from the hub, or checks a folder.

    Args:
        arguments: those after the verb.
    """
    usage = "palaestra pull NAMESPACE/NAME|FOLDER [--output FOLDER]"
    (source,), options = command(PullOptions, arguments, usage, "the model or folder")
    shared = deployment.pull(source, output=options.output)
    options.show(_record(shared), f"{shared}\nnext        palaestra play {shared.directory}")
    return 0


def _record(shared: deployment.SharedPolicy) -> dict[str, object]:
    return {
        "directory": str(shared.directory),
        "url": shared.url,
        "left_out": list(shared.missing),
        **{key: value for key, value in shared.facts.items() if key != "files"},
    }
