"""Training: the loop, checkpoints, loggers."""

from palaestra.training.callbacks import *
from palaestra.training.checkpoints import *
from palaestra.training.compilation import *
from palaestra.training.config import *
from palaestra.training.console import *
from palaestra.training.health import *
from palaestra.training.learning import *
from palaestra.training.loggers import *
from palaestra.training.parts import *
from palaestra.training.services import *
from palaestra.training.signals import *
from palaestra.training.summaries import *
from palaestra.training.together import *
from palaestra.training.trainer import *
