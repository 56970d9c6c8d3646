"""What makes a run and keeps it: learners, the run directory, records, lineage and trust."""

from palaestra.runs.build import *
from palaestra.runs.computed import *
from palaestra.runs.datasets import *
from palaestra.runs.learner import *
from palaestra.runs.lineage import *
from palaestra.runs.making import *
from palaestra.runs.records import *
from palaestra.runs.run_directory import *
