"""Robots: several computation tasks under one control flow, with batched inference for many agents."""

from palaestra.robots.agent import *
from palaestra.robots.collector import *
from palaestra.robots.helpers import *
from palaestra.robots.model_task import *
from palaestra.robots.robot import *
from palaestra.robots.serving import *
from palaestra.robots.task import *
