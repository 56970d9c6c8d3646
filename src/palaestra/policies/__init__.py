"""How to act: policies, exploration, observation normalisation."""

from palaestra.policies.actions import *
from palaestra.policies.artefact import *
from palaestra.policies.exploration import *
from palaestra.policies.given import *
from palaestra.policies.latent import *
from palaestra.policies.normalizer import *
from palaestra.policies.policy import *
from palaestra.policies.population import *
from palaestra.policies.rule_based import *
from palaestra.policies.search import *
from palaestra.policies.squashed import *
from palaestra.policies.stochastic import *
from palaestra.policies.team import *
from palaestra.policies.value_greedy import *
