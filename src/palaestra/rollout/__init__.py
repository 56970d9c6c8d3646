"""Acting: collection, evaluation, episode statistics, batched inference."""

from palaestra.rollout.collection import *
from palaestra.rollout.collector import *
from palaestra.rollout.compiled import *
from palaestra.rollout.episodes import *
from palaestra.rollout.evaluation import *
from palaestra.rollout.inference import *
from palaestra.rollout.rows import *
from palaestra.rollout.together import *
