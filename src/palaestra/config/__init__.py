"""What a run is asked: typed configuration, presets, and the dimensions of a search."""

from palaestra.config.config import *
from palaestra.config.dimensions import *
from palaestra.config.groups import *
from palaestra.config.presets import *
