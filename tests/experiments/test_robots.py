"""Robots train from the command line like everything else: run directory, resume, metrics per task, evaluation, faults."""

import json

import pytest
import torch

import palaestra
from palaestra.core import ConfigError
from palaestra.experiments import evaluate_run
from palaestra.policies import load_policy
from palaestra.robots import AgentError
from palaestra.training import CheckpointStore
from tests.cli.parts import run_cli  # noqa: F401

ROBOT, WORLD = "tests.experiments.test_robots:Walker", "palaestra.envs.tiny:FourRooms"
SETTINGS = {
    "env__num_envs": 2,
    "env__max_episode_steps": 20,
    "robot__steps_per_iteration": 20,
    "trainer__total_env_steps": 160,
    "trainer__eval_every_steps": 80,
    "trainer__checkpoint_every_steps": 80,
    "trainer__eval_episodes": 3,
    "run__tensorboard": False,
}
