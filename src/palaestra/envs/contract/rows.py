"""The records that drivers, workers and batched environments hand to each other."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from palaestra.core import Batch, ConfigError, SpecError, SpecTree, TensorSpec, did_you_mean
from palaestra.core.errors import is_news
from palaestra.envs.contract.nest import batched_spec, neutral_rows, problem, unstacked
from palaestra.envs.contract.spaces import OLD_GYM

_log = logging.getLogger(__name__)
_LARGEST = int(np.finfo(np.float64).max)
_DEEPEST = 100
TEXT = frozenset([str, bytes, np.str_, np.bytes_])
"""Types of rewards that `float` and numpy would read, and that are no numbers."""
MOST_ELEMENTS = 16
"""Of an array in `info`; larger ones are pictures or states, not numbers to report."""

Infos = dict[int, dict[str, float]]
"""Numeric info entries by lane; lanes without any are left out."""


class Specs(NamedTuple):
    """The specs that all environments of a batch share."""

    observation: SpecTree
    """Spec of an observation."""
    action: SpecTree
    """Spec of an action."""
    reward: TensorSpec
    """Spec of a reward."""

    @classmethod
    def of(cls, env: Any, *, unstack: bool = False) -> Self:
        """The specs of an environment.

        Args:
            env: one, or a batch.
            unstack: whether frames of a stack are not those of the steps before any more.
        """
        observation = unstacked(env.observation_spec) if unstack else env.observation_spec
        return cls(observation, env.action_spec, env.reward_spec)

    def batched(self) -> Self:
        """The specs of a batched environment, where tuples of observations are dicts with the keys "0", "1", ..."""
        return self._replace(observation=batched_spec(self.observation))

    def require_equal(self, first: Self, env_id: int, first_id: int) -> None:
        """Refuses other specs than those of the batch's first environment.

        Args:
            first: the specs of that.
            env_id: number of the environment with these specs, for the message.
            first_id: number of the first.

        Raises:
            SpecError: they differ.
        """
        if self != first:
            raise SpecError(
                f"environment {env_id} has the specs {tuple(self)} and environment {first_id} {tuple(first)}; "
                "environments of one batch need equal ones"
            )


class HasSpecs:
    """The specs of an environment that has them in one record, `specs`."""

    specs: Specs
    """Of one row; in a batch, tuples of observations are dicts with the keys "0", "1", ..."""

    @property
    def observation_spec(self) -> SpecTree:
        return self.specs.observation

    @property
    def action_spec(self) -> SpecTree:
        return self.specs.action

    @property
    def reward_spec(self) -> TensorSpec:
        return self.specs.reward


class Rows(NamedTuple):
    """What one step of several lanes gave; every array is new."""

    step_type: np.ndarray
    """int32 [B]."""
    reward: np.ndarray
    """float32 [B] or [B, k]."""
    discount: np.ndarray
    """float32 [B]."""
    observation: list[np.ndarray]
    """One array [B, ...] for every leaf of the observation spec."""

    @classmethod
    def unknown(cls, specs: Specs, batch_size: int) -> Self:
        """FIRST rows that show nothing, for steps whose outcome is not known.

        Args:
            specs: of the environments.
            batch_size: B.
        """
        step_type, discount = np.zeros(batch_size, np.int32), np.ones(batch_size, np.float32)
        reward = np.zeros((batch_size, *specs.reward.shape), np.float32)
        return cls(step_type, reward, discount, neutral_rows(specs.observation, batch_size))

    def make_first(self, lanes: Any) -> None:
        """Makes FIRST rows of some lanes; what they show stays.

        Args:
            lanes: an index of the arrays.
        """
        self.step_type[lanes], self.reward[lanes], self.discount[lanes] = 0, 0.0, 1.0


def batched_info(infos: Infos | None, batch_size: int) -> Any:
    """Info entries as a `Batch` of float64 tensors [B], NaN where a lane did not report one; `()` where none did.

    Args:
        infos: numeric info by lane.
        batch_size: B.
    """
    if infos is None:
        return ()
    columns: dict[str, np.ndarray] = defaultdict(lambda: np.full(batch_size, np.nan))
    for lane, entries in infos.items():
        for key, value in entries.items():
            columns[key][lane] = value
    return Batch.of({key: torch.from_numpy(column) for key, column in columns.items()})


def completed(info: Any, step_type: np.ndarray, names: Sequence[str]) -> Batch:
    """Info in which every one of some entries is a column: 0 at FIRST, and elsewhere NaN where it was not reported.

    Args:
        info: a `Batch` of float64 tensors [B], or `()`.
        step_type: [B].
        names: of the entries.
    """
    columns = dict(info.items()) if isinstance(info, Batch) else {}
    first = torch.from_numpy(step_type == 0)
    for name in names:
        column = columns.get(name)
        column = torch.full(first.shape, torch.nan, dtype=torch.float64) if column is None else column
        columns[name] = column.masked_fill(first, 0.0)
    return Batch.of(columns)


def entry_names(spec: SpecTree, prefix: str = "") -> Iterator[str]:
    """The names of the numeric entries of `info`, elements of small arrays too.

    Args:
        spec: an `env_info_spec`.
        prefix: of its group.

    Examples:
        >>> list(entry_names({"cost": TensorSpec(()), "force": TensorSpec((2,))}))
        ['cost', 'force/0', 'force/1']
    """
    for name, child in spec.items() if isinstance(spec, dict) else ():
        if not isinstance(child, TensorSpec):
            yield from entry_names(child, f"{prefix}{name}/")
        elif child.shape == ():
            yield f"{prefix}{name}"
        elif child.size <= MOST_ELEMENTS:
            yield from (f"{prefix}{name}/{index}" for index in range(child.size))


def require_small(names: Sequence[str], spec: SpecTree, prefix: str = "") -> None:
    """Refuses entries that are named, and belong to an array that is too large to be numbers.

    Args:
        names: that a user gave.
        spec: an `env_info_spec`.
        prefix: of its group.

    Raises:
        ConfigError: there is one; the message has its size and the limit.
    """
    for name, child in spec.items() if isinstance(spec, dict) else ():
        whole = f"{prefix}{name}"
        if not isinstance(child, TensorSpec):
            require_small(names, child, f"{whole}/")
        elif child.size > MOST_ELEMENTS and any(f"{one}/".startswith(f"{whole}/") for one in names):
            raise ConfigError(
                f"env.info names {whole!r}, an array of {child.size:,} numbers; only arrays of at most {MOST_ELEMENTS} "
                "are reported. Put it into the observation, or report the numbers that matter by themselves"
            )


def chosen_entries(names: Sequence[str], found: Sequence[str]) -> tuple[str, ...]:
    """The entries that are meant: by name, by the name of a group or an array, or by `*`; unknown ones are warned of.

    Args:
        names: that a user gave.
        found: entries that a first look found.
    """
    chosen = dict[str, None]()
    for name in names:
        fitting = [entry for entry in found if name in ("*", entry) or entry.startswith(f"{name}/")]
        if not fitting and name != "*":
            fitting, hint = [name], did_you_mean(name, found)
            text = (
                f"env.info has {name!r}, which a first look at an episode did not find as a number, or an array of at "
                f"most {MOST_ELEMENTS}: it is 0 where nobody reports it"
            )
            if is_news(text):
                _log.warning("%s%s", text, hint)
        chosen |= dict.fromkeys(fitting)
    return tuple(chosen)


def unreadable(result: Any, specs: Specs, *, direct: bool) -> str:
    """Why a step's result cannot be put into rows; empty if it can.

    Args:
        result: a time step of a bare environment.
        specs: that it should fit.
        direct: whether it is Gymnasium's five values instead.
    """
    if direct:
        if not isinstance(result, tuple) or len(result) != 5:
            return not_five(result)
        observation, reward, *_, info = result
    else:
        observation, reward, info = result.observation, result.reward, result.env_info
    wrong = problem(observation, specs.observation)
    if wrong:
        return f"the observation has {wrong}"
    if wrong := wrong_info(info):
        return wrong
    if wrong := no_number(reward):
        return wrong
    shape, size = np.shape(reward), np.size(reward)
    if shape != specs.reward.shape and (size != 1 or specs.reward.shape):
        return f"the reward has shape {shape}, expected {specs.reward.shape}"
    return ""


def no_number(reward: Any) -> str:
    """Why a reward is neither a number nor an array of numbers; empty if it is. Text is none, whatever it says.

    Examples:
        >>> no_number("1.0"), no_number([1, 2])
        ("the reward is '1.0', which is no number", '')
    """
    if type(reward) is float:
        return ""
    try:
        kind = np.asarray(reward).dtype.kind
        if kind in "OV" and reward is not None:  # numbers of other classes, bfloat16; of None, numpy makes NaN
            kind = np.asarray(reward, np.float32).dtype.kind
    except (TypeError, ValueError):
        kind = ""
    return "" if kind and kind in "biuf" else f"the reward is {reward!r}, which is no number"


def number(reward: Any) -> float:
    """A reward that is one number.

    Raises:
        SpecError: it is text.
    """
    if type(reward) in TEXT:
        raise SpecError(no_number(reward))
    return float(reward)


def not_five(result: Any) -> str:
    """What is wrong with a step's result that is no five values."""
    given = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
    return f"step must return five values, and returned {given}" + (f". {OLD_GYM}" if given == "4 values" else "")


def numeric_infos(infos: Iterable[Any]) -> Infos | None:
    """The numeric entries of every lane's info, nested keys joined by a slash; `None` where there are none.

    Elements of a small array, up to 16, are entries `name/0`, `name/1`, ...; larger arrays are left out.

    Args:
        infos: one for every lane.
    """
    found: Infos = {}
    for lane, info in enumerate(infos):
        if info:
            numbers: dict[str, float] = {}
            _numbers(info, "", numbers)
            if numbers:
                found[lane] = numbers
    return found or None


def wrong_info(info: Any) -> str:
    """Why the info of a step cannot be read; empty if it can, as nothing at all (`()`) can."""
    if not isinstance(info, dict):
        return "" if info == () else f"info must be a dict, and is {info!r}"
    level = {id(value): (str(key), value) for key, value in info.items() if isinstance(value, dict)}
    for _ in range(_DEEPEST if level else 0):
        pairs = [(key, child) for key, value in level.values() for child in value.values() if isinstance(child, dict)]
        level = {id(child): (key, child) for key, child in pairs}
    if not level:
        return ""
    key, _ = next(iter(level.values()))
    return f"info has the entry {key!r}, with dicts in dicts more than {_DEEPEST} deep; report numbers there"


def _numbers(info: Any, prefix: str, out: dict[str, float]) -> None:
    for key, value in info.items():
        if isinstance(value, float):
            out[f"{prefix}{key}"] = float(value)
        elif isinstance(value, int):
            out[f"{prefix}{key}"] = float(min(max(value, -_LARGEST), _LARGEST))
        elif isinstance(value, np.generic) and value.dtype.kind in "fiub":
            out[f"{prefix}{key}"] = float(value)
        elif isinstance(value, dict):
            _numbers(value, f"{prefix}{key}/", out)
        elif isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
            if value.shape == ():
                out[f"{prefix}{key}"] = float(value)
            elif value.size <= MOST_ELEMENTS:
                for index, element in enumerate(value.flat):
                    out[f"{prefix}{key}/{index}"] = float(element)


def put(arrays: Sequence[np.ndarray], lane: int, leaves: Iterable[Any]) -> None:
    """Writes the leaves of one lane into its row.

    Args:
        arrays: one array [B, ...] for every leaf.
        lane: which row.
        leaves: of that lane.
    """
    for array, leaf in zip(arrays, leaves, strict=True):
        array[lane] = leaf


def stacked(column: Sequence[Any]) -> np.ndarray:
    """Rows as one array; an empty one where their shapes differ.

    Args:
        column: one row for every lane.
    """
    try:
        return np.array(column)
    except ValueError:
        return np.empty(0)
