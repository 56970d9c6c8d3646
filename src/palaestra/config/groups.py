"""Groups of settings that belong to no package below: the run as a whole, buffers, data from before it, hindsight.

And settings that older versions had.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from palaestra.algorithms import objective_of
from palaestra.core import AtLeastOne, ConfigError, Fraction, InsideFraction, NotNegative, Range, require_ranges
from palaestra.nn import Precision

__all__ = ["BufferConfig", "DataConfig", "HindsightConfig", "RunConfig"]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What concerns a run as a whole."""

    seed: Annotated[NotNegative[int], "--seed"] = 0
    """The one seed that everything random derives from."""
    directory: str = "runs"
    """Folder of run directories."""
    name: str | None = None
    """Name of the run directory; by default date, algorithm, environment and seed."""
    initial_policy: Annotated[str | None, "--from"] = None
    """Run or shared folder whose best policy this run begins with; critics, optimizers and data begin anew."""
    compile: Annotated[bool | Literal["auto"], "--compile"] = "auto"
    """Compile gradient steps, and steps of tensor environments. True does so from the start, after seconds of waiting;
    auto after the first 10,000 gradient steps of a run of 50,000 or more, in which another process compiles."""
    together: bool = False
    """Train several seeds as a population in one graph: for PPO, A2C, DQN, PQN, SAC, TD3 and others in environments of
    tensors, on the CPU. Each has its own run, and ends as it would alone, up to rounding."""
    precision: Precision = "float32"
    """Of matrix products in gradient steps: bf16 is 1.4 to 2 times as fast for wide layers where a processor has
    instructions for it, and rounds to 3 digits, in searches too. Weights, sums and outputs stay in float32, as does
    other acting. tf32, on a GPU, rounds what is multiplied to 11 bits, when it acts as well."""
    device: Annotated[str, "--device"] = "cpu"
    """Device on which policies act and learn: cpu, cuda, or one of several GPUs such as cuda:1."""
    deterministic: bool = False
    """Equal results on equal GPUs too, by slower kernels; on a CPU they are equal anyway."""
    num_threads: Annotated[int | None, Range(ge=1, le=4096)] = None
    """Threads of torch; by default 1 or as many as there are cores, whichever is measured to be faster at the start of
    the run, which keeps that number when it is resumed."""
    tensorboard: bool | None = None
    """Whether TensorBoard files are written; by default where TensorBoard, an extra, is installed."""
    loggers: Annotated[tuple[Literal["wandb", "mlflow", "trackio"], ...], "--loggers"] = ()
    """Tracking services that get the metrics as well; each needs the extra of its name."""
    project: str = "palaestra"
    """Project at these services that the run is shown in; MLflow calls it an experiment."""
    callbacks: Annotated[tuple[str, ...], "--callbacks"] = ()
    """Callbacks of your own by name, such as my_package:MyCallback or 'my_package:MyCallback(goal=475)'."""
    eval_num_envs: AtLeastOne[int] = 4
    """Environments that evaluation episodes are shared over."""
    eval_vectorization: Literal["auto", "serial", "thread", "process"] = "auto"
    """Where these are stepped: in this process (or natively, where training does so), one in a thread, or in worker
    processes. A run without evaluations makes none; but with `thread` one, that nothing steps, where environments of
    training are in other processes alone, so that what they configure can be seen in this one."""

    def __post_init__(self) -> None:
        require_ranges(self, "run.", self._misfits())

    def _misfits(self) -> Iterator[str]:
        name = "auto" if self.name is None else self.name
        if not name.isprintable():
            yield f"run.name is {name!r}, which has control characters; leave them out"
        if name in ("", ".", "..", "last") or name.startswith("-") or set("/\\") & set(name):
            yield f"run.name is {name!r}; give a name that is no path, no option and not 'last', the newest run"


@dataclass(frozen=True, kw_only=True)
class BufferConfig:
    """How the rows are kept that a run replays; how many, `algorithm.capacity` says."""

    compression: Literal["none", "lz4"] = "none"
    """Of observations that are pictures, without loss: 10^6 frames of Atari take about 0.3 GB with lz4 instead of 7.
    It needs the extra `compression`."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data to learn from that was there before the run."""

    data: str | None = None
    """Folder of a saved buffer, `minari:` and the id of a Minari dataset on this machine, or `d4rl:` and a file."""
    fraction: InsideFraction[float | None] = None
    """Share of every minibatch that comes from the data where the algorithm collects as well; a half if left out. With
    it, algorithms that learn from data alone go on with steps of their own."""
    updates: NotNegative[int] = 0
    """Updates on the data alone before the first env step; each counts as an env step of the budget."""

    def __post_init__(self) -> None:
        require_ranges(self, "offline.", self._misfits())

    def _misfits(self) -> Iterator[str]:
        if self.updates and self.data is None:
            yield f"offline.updates is {self.updates}, but there is no offline.data to learn from"
        if self.fraction is not None and self.data is None:
            yield f"offline.fraction is {self.fraction}, but there is no offline.data to take it from"

    @property
    def share(self) -> float:
        """`fraction`, or its default."""
        return 0.5 if self.fraction is None else self.fraction


@dataclass(frozen=True, kw_only=True)
class HindsightConfig:
    """Goals that episodes reached, instead of those that they were given (hindsight experience replay)."""

    share: Fraction[float] = 0.0
    """Probability that a replayed row gets a goal which its own episode reached; 0 is none, the paper's k=4 is 0.8."""
    strategy: Literal["future", "final", "episode"] = "future"
    """Which step's place becomes the goal: a later one of the episode, its last one so far, or any of them."""

    def __post_init__(self) -> None:
        require_ranges(self, "hindsight.", self._misfits())

    def _misfits(self) -> Iterator[str]:
        if self.strategy != "future" and not self.share:
            yield (
                f"hindsight.strategy is {self.strategy!r}, but hindsight.share is 0, so that no row gets another goal; "
                "give a share, such as 0.8"
            )


def task_of(config: Any) -> str:
    """All that says what a return is of: the task of the environment, the weights of rewards, and whose count.

    Only returns of one task are averaged and compared.

    Args:
        config: an `ExperimentConfig`.
    """
    own: dict[str, Any] = {"algorithm.rewards.weights": objective_of(config.algorithm)}
    own |= {f"agents.{name}": value for name, value in config.agents.counted.items()}
    return " ".join([config.env.task, *(f"{path}={value!r}" for path, value in own.items() if value)])


_RENAMED = {"mini_batch_size": "mini_batch_sequences"}
"""Settings of algorithms by their old names, and their names in an algorithm that has these alone."""
_REMOVED = {
    "algorithm.bonus": "QMIX, MADDPG and MASAC have no exploration bonus any more",
    "distributed.episodes": "trainer.episodes_per_iteration counts episodes, of all environments together",
    "distributed.num_gradient_workers": "distributed.num_learners counts them, and the policy's own process",
}
"""Settings that older versions had, and what became of them. Without a value or a kind they did nothing."""


def in_todays_words(data: Mapping[str, Any], fields_of: Callable[[str], Collection[str]]) -> dict[str, Any]:
    """What a run saved, whichever version wrote it, with the settings that there are today.

    Args:
        data: all settings.
        fields_of: the settings of an algorithm by its name; none where it is not known, which others say.

    Raises:
        ConfigError: a setting that did something is gone.
    """
    kept = dict(_renamed(data, fields_of, ""))
    for path, now in _REMOVED.items():
        group, name = path.split(".")
        given = kept.get(group)
        if not isinstance(given, Mapping) or name not in given:
            continue
        if group == "algorithm" and name in (fields_of(str(kept.get("algorithm_name"))) or given):
            continue
        value = given[name]
        if value.get("kind") if isinstance(value, Mapping) else value:
            raise ConfigError(f"{path} is {value!r}, and there is none here: {now}; use the version that wrote this")
        kept[group] = {key: value for key, value in given.items() if key != name}
    return kept


def _renamed(node: Any, fields_of: Callable[[str], Collection[str]], algorithm: str) -> Any:
    """Settings, or some of them, of an algorithm, unless they name another one."""
    if not isinstance(node, Mapping):
        return node
    named = [node[key] for key in ("algorithm", "algorithm_name") if isinstance(node.get(key), str)]
    algorithm = [algorithm, *named][-1]
    fields = fields_of(algorithm) if node.keys() & _RENAMED.keys() else ()
    today = {old: new for old, new in _RENAMED.items() if new in fields and old not in fields}
    return {
        today.get(name, name): value if name == "env" else _renamed(value, fields_of, algorithm)
        for name, value in node.items()
    }
