"""What a trained policy is used by: files of other formats, servers, shared folders."""

from palaestra.deployment.card import *
from palaestra.deployment.exporting import *
from palaestra.deployment.serving import *
from palaestra.deployment.sharing import *
from palaestra.deployment.zoo import *
