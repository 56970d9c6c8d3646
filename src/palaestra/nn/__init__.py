"""Networks: layers, encoders of nested observations, recurrent cells, and models with embedded optimizers."""

from palaestra.nn.cnn import NatureCNN
from palaestra.nn.core_model import CoreModel, combine_gradients, create_algorithm_func
from palaestra.nn.encoder import ACTION_MASK, Encoder
from palaestra.nn.ensemble import EnsembleNetwork
from palaestra.nn.mlp import MLP, Activation, Initialisation
from palaestra.nn.network import GaussianNetwork, Network, NetworkConfig, QNetwork
from palaestra.nn.optimizer import OptimizerOption
from palaestra.nn.recurrent import GRU, LSTM, LSTMState

__all__ = [
    "ACTION_MASK",
    "GRU",
    "LSTM",
    "MLP",
    "Activation",
    "CoreModel",
    "Encoder",
    "EnsembleNetwork",
    "GaussianNetwork",
    "Initialisation",
    "LSTMState",
    "NatureCNN",
    "Network",
    "NetworkConfig",
    "OptimizerOption",
    "QNetwork",
    "combine_gradients",
    "create_algorithm_func",
]
