"""What runs say: curves, statistics, reports, diagnoses, evaluations and measurements."""

from palaestra.analysis.curves import *
from palaestra.analysis.diagnosis import *
from palaestra.analysis.evaluation import *
from palaestra.analysis.films import *
from palaestra.analysis.logs import *
from palaestra.analysis.measure import *
from palaestra.analysis.offline_evaluation import *
from palaestra.analysis.report import *
from palaestra.analysis.stats import *
