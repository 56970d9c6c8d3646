"""Checks an environment against the contract."""

from palaestra.envs.check.check import *
