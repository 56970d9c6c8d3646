"""Words as code: batches, trees, time steps, specs, seeds, schedules, plans, errors."""

from palaestra.core.batch import *
from palaestra.core.computing import *
from palaestra.core.errors import *
from palaestra.core.files import *
from palaestra.core.importing import *
from palaestra.core.importing import moved
from palaestra.core.minibatch import *
from palaestra.core.packed import *
from palaestra.core.plan import *
from palaestra.core.schedule import *
from palaestra.core.seeding import *
from palaestra.core.settings import *
from palaestra.core.spec import *
from palaestra.core.time_step import *
from palaestra.core.tree import *

__getattr__ = moved(
    __name__,
    "palaestra.compat",
    (
        "ExperienceSet",
        "Experiences",
        "Transitions",
        "done_of",
        "experiences_from_rows",
        "game_over_of",
        "rows_from_experiences",
        "rows_from_transitions",
        "transitions_from_rows",
    ),
)
