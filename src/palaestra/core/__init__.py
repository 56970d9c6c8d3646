"""Words as code: batches, time steps, specs, seeds, schedules, plans, errors."""

from palaestra.core.batch import Batch
from palaestra.core.errors import (
    CheckpointError,
    ConfigError,
    EnvError,
    MissingExtraError,
    NonFiniteError,
    PalaestraError,
    ShapeError,
    SpecError,
    did_you_mean,
)
from palaestra.core.experience import ExperienceSet
from palaestra.core.minibatch import minibatches, sequences
from palaestra.core.plan import DataSource, Offline, OnPolicy, Plan, Replay
from palaestra.core.schedule import Linear, Piecewise, Schedule, parse_schedule, schedule_range, schedule_value
from palaestra.core.plan import DataSource, Offline, OnPolicy, Plan, Prioritized, Replay
from palaestra.core.schedule import Linear, Piecewise, Schedule, parse_schedule, schedule_value
from palaestra.core.seeding import (
    RunSeeds,
    SeedName,
    episode_seed,
    seeded_initialisation,
)
from palaestra.core.spec import (
    BoundedSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpecTree,
    TensorSpec,
    numpy_dtype,
    spec_from_json,
    spec_leaves,
    spec_to_json,
    torch_dtype,
)
from palaestra.core.state import join_state, split_state
from palaestra.core.storage import load_tensors, save_tensors
from palaestra.core.time_step import (
    StepType,
    TimeStep,
    check_time_step,
    restart,
    termination,
    transition,
    truncation,
)
from palaestra.core.views import (
    Experiences,
    Transitions,
    done_of,
    experiences_from_rows,
    game_over_of,
    rows_from_experiences,
    rows_from_transitions,
    transitions_from_rows,
)

__all__ = [
    "Batch",
    "BoundedSpec",
    "CheckpointError",
    "ConfigError",
    "DataSource",
    "DiscreteSpec",
    "EnvError",
    "ExperienceSet",
    "Experiences",
    "Linear",
    "MissingExtraError",
    "MultiBinarySpec",
    "MultiDiscreteSpec",
    "NonFiniteError",
    "Offline",
    "OnPolicy",
    "PalaestraError",
    "Piecewise",
    "Plan",
    "Prioritized",
    "Replay",
    "RunSeeds",
    "Schedule",
    "SeedName",
    "ShapeError",
    "SpecError",
    "SpecTree",
    "StepType",
    "TensorSpec",
    "TimeStep",
    "Transitions",
    "check_time_step",
    "did_you_mean",
    "done_of",
    "episode_seed",
    "experiences_from_rows",
    "game_over_of",
    "join_state",
    "load_tensors",
    "minibatches",
    "numpy_dtype",
    "parse_schedule",
    "restart",
    "rows_from_experiences",
    "rows_from_transitions",
    "save_tensors",
    "schedule_range",
    "schedule_value",
    "seeded_initialisation",
    "sequences",
    "spec_from_json",
    "spec_leaves",
    "spec_to_json",
    "split_state",
    "termination",
    "torch_dtype",
    "transition",
    "transitions_from_rows",
    "truncation",
]
