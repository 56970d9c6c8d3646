"""Where metrics go: JSON lines and CSV always, TensorBoard by default, tracking services, or your own."""

from palaestra.training.loggers.files import FileLogger
from palaestra.training.loggers.logger import Logger
from palaestra.training.loggers.mlflow import MLflowLogger
from palaestra.training.loggers.network import NetworkLogger
from palaestra.training.loggers.tensorboard import TensorBoardLogger
from palaestra.training.loggers.trackio import TrackioLogger
from palaestra.training.loggers.wandb import WandbLogger

__all__ = [
    "FileLogger",
    "Logger",
    "MLflowLogger",
    "NetworkLogger",
    "TensorBoardLogger",
    "TrackioLogger",
    "WandbLogger",
]
