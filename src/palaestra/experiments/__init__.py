"""Experiments: train, resume, tune and verify; the door to all that runs are made of and say."""

from palaestra.analysis.curves import *
from palaestra.analysis.diagnosis import *
from palaestra.analysis.evaluation import *
from palaestra.analysis.logs import *
from palaestra.analysis.measure import *
from palaestra.analysis.offline_evaluation import *
from palaestra.analysis.report import *
from palaestra.analysis.stats import *
from palaestra.config.config import *
from palaestra.config.dimensions import *
from palaestra.config.groups import *
from palaestra.config.presets import *
from palaestra.experiments.published import *
from palaestra.experiments.run import *
from palaestra.experiments.seeds import *
from palaestra.experiments.together import *
from palaestra.experiments.tuning import *
from palaestra.ops.ratings import *
from palaestra.runs.build import *
from palaestra.runs.computed import *
from palaestra.runs.data import *
from palaestra.runs.learner import *
from palaestra.runs.lineage import *
from palaestra.runs.making import *
from palaestra.runs.records import *
from palaestra.runs.run_directory import *
