"""The command line: `palaestra --help` lists its verbs."""

try:
    from palaestra.cli.main import main
except KeyboardInterrupt:  # half a second of a busy machine
    raise SystemExit(130) from None

__all__ = ["main"]
