"""Training: the loop, checkpoints, loggers."""

from palaestra.training.averages import Averages
from palaestra.training.checkpoints import FORMAT_VERSION, CheckpointStore
from palaestra.training.console import ConsoleLogger
from palaestra.training.loggers import FileLogger, Logger, TensorBoardLogger
from palaestra.training.signals import StopSignals
from palaestra.training.trainer import Collect, Trainer, TrainerConfig, TrainResult

__all__ = [
    "FORMAT_VERSION",
    "Averages",
    "CheckpointStore",
    "Collect",
    "ConsoleLogger",
    "FileLogger",
    "Logger",
    "StopSignals",
    "TensorBoardLogger",
    "TrainResult",
    "Trainer",
    "TrainerConfig",
]
