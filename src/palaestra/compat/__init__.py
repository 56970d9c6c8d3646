"""Layouts and contracts of other libraries: their transitions, memories and simulators, beside ours.

Nothing else in the package imports it.
"""

from palaestra.compat.layouts import *
from palaestra.compat.memory import *
from palaestra.compat.simulators import *
