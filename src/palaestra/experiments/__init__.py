"""Runs: typed configuration, tuned presets, run directories, and functions that train, compare and report."""

from palaestra.experiments.build import *
from palaestra.experiments.config import *
from palaestra.experiments.curves import *
from palaestra.experiments.data import *
from palaestra.experiments.diagnosis import *
from palaestra.experiments.dimensions import *
from palaestra.experiments.evaluation import *
from palaestra.experiments.learner import *
from palaestra.experiments.lineage import *
from palaestra.experiments.logs import *
from palaestra.experiments.making import *
from palaestra.experiments.measure import *
from palaestra.experiments.offline_evaluation import *
from palaestra.experiments.presets import *
from palaestra.experiments.published import *
from palaestra.experiments.records import *
from palaestra.experiments.report import *
from palaestra.experiments.run import *
from palaestra.experiments.run_directory import *
from palaestra.experiments.seeds import *
from palaestra.experiments.stats import *
from palaestra.experiments.tuning import *
