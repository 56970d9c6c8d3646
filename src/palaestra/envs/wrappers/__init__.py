"""Layers around a bare environment, one per file."""

from palaestra.envs.wrappers.time_limit import TimeLimit

__all__ = ["TimeLimit"]
