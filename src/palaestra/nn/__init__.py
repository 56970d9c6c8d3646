"""Networks: layers, encoders of nested observations, recurrent cells, and models with embedded optimizers."""

from palaestra.nn.cnn import NatureCNN
from palaestra.nn.config import EncoderOption, NetworkConfig, Recurrent, encoder_name
from palaestra.nn.core_model import CoreModel, combine_gradients, create_algorithm_func
from palaestra.nn.distributional import ImplicitQuantileNetwork, ReturnDistribution, ReturnNetwork
from palaestra.nn.encoder import ACTION_MASK, Encoder, OwnEncoder, has_pictures
from palaestra.nn.ensemble import EnsembleNetwork
from palaestra.nn.fast import MovableModule, call, compiled_method, submodules
from palaestra.nn.mlp import MLP, Activation, Initialisation
from palaestra.nn.network import CompositeNetwork, GaussianNetwork, Network, QNetwork
from palaestra.nn.noisy import NoisyMLP
from palaestra.nn.optimizer import OptimizerOption
from palaestra.nn.recurrent import GRU, LSTM, LSTMState
from palaestra.nn.recurrent_network import EncodedNetwork, RecurrentNetwork, with_memory, with_shared_features

__all__ = [
    "ACTION_MASK",
    "GRU",
    "LSTM",
    "MLP",
    "Activation",
    "CompositeNetwork",
    "CoreModel",
    "EncodedNetwork",
    "Encoder",
    "EncoderOption",
    "EnsembleNetwork",
    "GaussianNetwork",
    "ImplicitQuantileNetwork",
    "Initialisation",
    "LSTMState",
    "MovableModule",
    "NatureCNN",
    "Network",
    "NetworkConfig",
    "NoisyMLP",
    "OptimizerOption",
    "OwnEncoder",
    "QNetwork",
    "Recurrent",
    "RecurrentNetwork",
    "ReturnDistribution",
    "ReturnNetwork",
    "call",
    "combine_gradients",
    "compiled_method",
    "create_algorithm_func",
    "encoder_name",
    "has_pictures",
    "submodules",
    "with_memory",
    "with_shared_features",
]
