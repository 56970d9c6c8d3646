"""Words as code: batches, trees, time steps, specs, seeds, schedules, plans, errors."""

from palaestra.core.batch import *
from palaestra.core.compat import *
from palaestra.core.computing import *
from palaestra.core.errors import *
from palaestra.core.files import *
from palaestra.core.importing import *
from palaestra.core.minibatch import *
from palaestra.core.plan import *
from palaestra.core.schedule import *
from palaestra.core.seeding import *
from palaestra.core.spec import *
from palaestra.core.time_step import *
from palaestra.core.tree import *
