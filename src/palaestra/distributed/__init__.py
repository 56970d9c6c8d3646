"""Collecting and learning in several processes and on several machines, with the same algorithms and the same loop."""

from palaestra.distributed.allocation import *
from palaestra.distributed.config import *
from palaestra.distributed.evaluation import *
from palaestra.distributed.factories import *
from palaestra.distributed.gradient_workers import *
from palaestra.distributed.policy_host import *
from palaestra.distributed.policy_manager import *
from palaestra.distributed.policy_server import *
from palaestra.distributed.replay_shard import *
from palaestra.distributed.replay_shards import *
from palaestra.distributed.rollout_manager import *
from palaestra.distributed.worker import *
from palaestra.distributed.worker_group import *
