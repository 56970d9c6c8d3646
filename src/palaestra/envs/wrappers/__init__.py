"""Layers around a bare environment, one per file. `base` has what a wrapper of your own may start from."""

from palaestra.envs.wrappers.action_mask import ActionMask
from palaestra.envs.wrappers.action_repeat import ActionRepeat
from palaestra.envs.wrappers.base import ObservationMap, Remembering, RewardMap, TimeStepMap
from palaestra.envs.wrappers.check_finite import CheckFinite
from palaestra.envs.wrappers.clip_observation import ClipObservation
from palaestra.envs.wrappers.clip_reward import ClipReward
from palaestra.envs.wrappers.episode_statistics import EpisodeStatistics
from palaestra.envs.wrappers.episodic_life import EpisodicLife
from palaestra.envs.wrappers.fire_reset import FireReset
from palaestra.envs.wrappers.flatten_observation import FlattenObservation
from palaestra.envs.wrappers.frame_stack import FrameStack
from palaestra.envs.wrappers.grayscale_resize import GrayscaleResize
from palaestra.envs.wrappers.non_episodic import NonEpisodic
from palaestra.envs.wrappers.normalize_action import NormalizeAction
from palaestra.envs.wrappers.normalize_observation import NormalizeObservation
from palaestra.envs.wrappers.normalize_reward import NormalizeReward
from palaestra.envs.wrappers.random_noop import RandomNoop
from palaestra.envs.wrappers.record_video import RecordVideo
from palaestra.envs.wrappers.scale_reward import ScaleReward
from palaestra.envs.wrappers.sparse_reward import SparseReward
from palaestra.envs.wrappers.time_aware_discount import TimeAwareDiscount
from palaestra.envs.wrappers.time_limit import TimeLimit

__all__ = [
    "ActionMask",
    "ActionRepeat",
    "CheckFinite",
    "ClipObservation",
    "ClipReward",
    "EpisodeStatistics",
    "EpisodicLife",
    "FireReset",
    "FlattenObservation",
    "FrameStack",
    "GrayscaleResize",
    "NonEpisodic",
    "NormalizeAction",
    "NormalizeObservation",
    "NormalizeReward",
    "ObservationMap",
    "RandomNoop",
    "RecordVideo",
    "Remembering",
    "RewardMap",
    "ScaleReward",
    "SparseReward",
    "TimeAwareDiscount",
    "TimeLimit",
    "TimeStepMap",
]
