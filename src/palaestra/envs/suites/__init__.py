"""Loaders of whole families of environments, one file each."""

from palaestra.envs.suites import atari, envpool, gym

__all__ = ["atari", "envpool", "gym"]
