"""Where workers live: in this process, in supervised processes that share memory with it, on other machines."""

from palaestra.runtime.calls import *
from palaestra.runtime.leaks import *
from palaestra.runtime.local import *
from palaestra.runtime.memory import *
from palaestra.runtime.messages import *
from palaestra.runtime.process import *
from palaestra.runtime.ray import *
from palaestra.runtime.ray_cluster import *
from palaestra.runtime.runtime import *
from palaestra.runtime.signals import *
from palaestra.runtime.supervision import *
from palaestra.runtime.titles import *
