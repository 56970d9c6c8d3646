"""Training: the loop, checkpoints, loggers."""

from palaestra.training.averages import Averages
from palaestra.training.callbacks import Callback, Evaluated
from palaestra.training.checkpoints import FORMAT_VERSION, CheckpointStore
from palaestra.training.collect import DataCollector
from palaestra.training.config import TrainerConfig
from palaestra.training.console import ConsoleLogger
from palaestra.training.health import Health
from palaestra.training.loggers import (
    FileLogger,
    Logger,
    MLflowLogger,
    NetworkLogger,
    TensorBoardLogger,
    TrackioLogger,
    WandbLogger,
)
from palaestra.training.policy_manager import (
    GradientSteps,
    PolicyManager,
    SelfPaced,
    SimplePolicyManager,
    acting_policy,
    named_policies,
    part_name,
)
from palaestra.training.signals import StoppedError, StopSignals
from palaestra.training.summaries import Histogram, Histograms, Summary
from palaestra.training.time_split import TimeSplit, advice
from palaestra.training.trainer import Trainer, TrainResult

__all__ = [
    "FORMAT_VERSION",
    "Averages",
    "Callback",
    "CheckpointStore",
    "ConsoleLogger",
    "DataCollector",
    "Evaluated",
    "FileLogger",
    "GradientSteps",
    "Health",
    "Histogram",
    "Histograms",
    "Logger",
    "MLflowLogger",
    "NetworkLogger",
    "PolicyManager",
    "SelfPaced",
    "SimplePolicyManager",
    "StopSignals",
    "StoppedError",
    "Summary",
    "TensorBoardLogger",
    "TimeSplit",
    "TrackioLogger",
    "TrainResult",
    "Trainer",
    "TrainerConfig",
    "WandbLogger",
    "acting_policy",
    "advice",
    "named_policies",
    "part_name",
]
