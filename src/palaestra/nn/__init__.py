"""Networks: layers, encoders of nested observations, recurrent cells, and models with embedded optimizers."""

from palaestra.nn.cnn import NatureCNN
from palaestra.nn.core_model import CoreModel, combine_gradients, create_algorithm_func
from palaestra.nn.encoder import ACTION_MASK, Encoder
from palaestra.nn.mlp import MLP, Activation, Initialisation
from palaestra.nn.network import CompositeNetwork, GaussianNetwork, Network, NetworkConfig, QNetwork, Recurrent
from palaestra.nn.optimizer import OptimizerOption
from palaestra.nn.recurrent import GRU, LSTM, LSTMState
from palaestra.nn.recurrent_network import RecurrentNetwork, with_memory

__all__ = [
    "ACTION_MASK",
    "GRU",
    "LSTM",
    "MLP",
    "Activation",
    "CompositeNetwork",
    "CoreModel",
    "Encoder",
    "GaussianNetwork",
    "Initialisation",
    "LSTMState",
    "NatureCNN",
    "Network",
    "NetworkConfig",
    "OptimizerOption",
    "QNetwork",
    "Recurrent",
    "RecurrentNetwork",
    "combine_gradients",
    "create_algorithm_func",
    "with_memory",
]
