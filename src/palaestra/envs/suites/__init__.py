"""Loaders of whole families of environments, one file each."""

from palaestra.envs.suites import gym

__all__ = ["gym"]
