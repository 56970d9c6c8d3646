"""`EnvConfig`: which environments a run steps, and how."""

import copy
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from palaestra.core import AtLeastOne, ConfigError, Fraction, NotNegative, Range, did_you_mean, refuses, require_ranges
from palaestra.core.errors import placeless
from palaestra.core.importing import given_name, name_to_find
from palaestra.envs.suites.gym import registered_limit
from palaestra.envs.suites.suite import unheeded
from palaestra.envs.supervision.faults import FaultPolicy, OnFault, Timeout
from palaestra.envs.wrappers.chaos import chaos_rules
from palaestra.envs.wrappers.wrap import GYM_WRAPPERS, STEP_WRAPPERS, Wrap, as_values

__all__ = ["EnvConfig"]

Vectorization = Literal["auto", "serial", "thread", "process", "native", "batch"]
_MOST_ENVS = 1_000_000
INPUTS = ("prev_action", "reward", "env_info")


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Which environment, how many of them, and how they are stepped."""

    name: str = "CartPole-v1"
    """An id of Gymnasium's registry, or `my_package:MyEnvironment` for a class or function of your own."""
    num_envs: AtLeastOne[int] = 1
    """Environments stepped together, B."""
    vectorization: Vectorization = "auto"
    """In this process, one in a thread, in worker processes, or the environment's own vectorised version (of
    `my_package:MyVectorEnv`, a `gymnasium.vector.VectorEnv` that is made with `num_envs`), or, for MuJoCo's tasks of
    version 5, MuJoCo's own batch, with the bits of `serial`. `auto` steps pools, tensors,
    `vector:` and `jax:` as one, for they exist so only, and all else as `serial`; a new run of several of those tasks
    takes `batch`, where wrappers and settings allow it, and records that."""
    num_workers: AtLeastOne[int | None] = None
    """Worker processes of `process`; as many as there are cores if left out."""
    num_threads: AtLeastOne[int | None] = None
    """Threads of `batch`, whose number changes no bit; as many as PyTorch uses if left out."""
    num_ready: AtLeastOne[int | None] = None
    """Time steps that `process` waits for; a multiple of the environments of a worker, all of them if left out."""
    max_episode_steps: Annotated[int | None, Range(ge=0, note=" (0: no time limit)")] = None
    """Time limit in steps of the environment inside `wrappers`; the registered one if left out, 0 for none. Beside
    `ActionRepeat` it counts every repetition; `TimeLimit(duration=N)` after that in `wrappers` counts env steps."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """For the environment's constructor."""
    train_kwargs: dict[str, Any] = field(default_factory=dict)
    """More of them for training alone, such as `{"reward_clipping": True}` of Atari games; evaluation sees scores."""
    variants: tuple[dict[str, Any], ...] = ()
    """Tasks that the environments take in turns: environment i is the variant i modulo their number, with a `name`, a
    `max_episode_steps`, and `kwargs` on top of those above, of its own. All must have the same spaces."""
    gym_wrappers: tuple[Any, ...] = ()
    """Gymnasium wrappers, the innermost first: `Wrap` values, their text such as `ClipReward`, or callables."""
    wrappers: tuple[Any, ...] = ()
    """Time step wrappers, the innermost first: `Wrap` values, their text (`FrameStack(num_frames=4)`), or callables."""
    train_wrappers: tuple[Any, ...] = ()
    """More of them for training alone, such as `NormalizeReward`; evaluation sees the rewards of the task."""
    info: tuple[str, ...] = ()
    """Entries of `info` that every time step has, that rows keep and losses can read as `batch.env_info`, such as
    `cost`; `*` is all that a first look finds."""
    inputs: tuple[Literal["prev_action", "reward", "env_info"], ...] = ()
    """More of a time step for policies and networks to see: the action before, what it earned, the entries of `info`.
    Observations are a dict then, of these and of `observation` (or its own entries)."""
    untransformed: bool = False
    """Whether time steps, rows and losses have observations and rewards from before wrappers changed them, too."""
    on_fault: OnFault = "raise"
    """When an environment fails: stop; make it again and start its next episode; or continue without it."""
    max_restarts: NotNegative[int] = 10
    """Restarts of one environment within an hour; one more fault stops the run."""
    timeout_s: Timeout = 60.0
    """Seconds that one step may take, in this process, in a thread or in a worker; not of environments that are stepped
    as one (`native`, tensors)."""
    reset_timeout_s: Timeout = 180.0
    """The same for a step in which an episode starts, and for making environments."""
    discount: Fraction[float] = 1.0
    """Continuation of every step that does not terminate, in [0, 1]; below 1 only where a ported task has its own."""
    auto_reset: bool = True
    """Whether the step after a LAST one begins the next episode; if not, it is an error, and you call `reset`. Nothing
    can be collected then."""
    strict: bool = False
    """Whether an observation outside its bounds is a fault; else it is logged once."""
    chaos: Annotated[str, "--chaos"] = ""
    """Faults to inject, for tests: such as `kill:0.001,nan:0.01`. See `chaos_rules`."""

    def __post_init__(self) -> None:
        stock = {"gym_wrappers": GYM_WRAPPERS, "wrappers": STEP_WRAPPERS, "train_wrappers": STEP_WRAPPERS}
        vars(self).update(
            {name: as_values(getattr(self, name), known) for name, known in stock.items()},
            name=env_name(self.name),
            info=_names("info", self.info, "entries, such as ('cost',), or ('*',) for all"),
            inputs=_names("inputs", self.inputs, "fields, such as ('prev_action', 'reward')"),
        )
        for variant in self.variants:
            _require_variant(variant)
        require_ranges(self, "env.", self._misfits())
        if self.vectorization in ("native", "batch"):
            self.require_raising()

    def _misfits(self) -> Iterator[str]:
        if not self.name:
            yield "env.name is ''; give an environment, such as CartPole-v1 or my_package:MyEnvironment"
        if self.num_envs > _MOST_ENVS:
            yield f"env.num_envs is {self.num_envs:,}; it must be at most {_MOST_ENVS:,}"
        for name, does in (("num_workers", "has workers"), ("num_ready", "returns some time steps")):
            if (given := getattr(self, name)) is not None and self.vectorization != "process":
                yield f"env.{name} is {given}; only vectorization=process {does}, and it is {self.vectorization}"
        if self.num_threads is not None and self.vectorization != "batch":
            kind = self.vectorization
            yield f"env.num_threads is {self.num_threads}; only vectorization=batch has them, and it is {kind}"
        if not self.auto_reset and self.num_ready is not None:
            yield "env.auto_reset is False, which needs all environments at once; leave out env.num_ready"
        if odd := [name for name in self.inputs if name not in INPUTS or self.inputs.count(name) > 1]:
            hint = did_you_mean(str(odd[0]), INPUTS)
            yield f"env.inputs has {odd[0]!r}{hint}; give each of {', '.join(INPUTS)} at most once"
        if "env_info" in self.inputs and not self.info:
            yield "env.inputs has 'env_info', but env.info names no entries; give these, such as cost"
        if "reward" in self.inputs and (self.train_wrappers or self.train_kwargs):
            yield (
                "env.inputs has 'reward', which env.train_wrappers or env.train_kwargs may change in training alone, "
                "so that networks would see other rewards in evaluations; put them into env.wrappers or env.kwargs"
            )
        if self.vectorization == "thread" and self.num_envs != 1:
            yield f"env.num_envs is {self.num_envs}; vectorization=thread steps one environment"
        lane = max((rule.env_id for rule in chaos_rules(self.chaos) if rule.env_id is not None), default=0)
        if lane >= self.num_envs:
            there = f"there are {self.num_envs}, counted from 0"
            yield f"env.chaos is {self.chaos!r} and names environment {lane}; {there}"

    @property
    def faults(self) -> FaultPolicy:
        """What to do when an environment fails."""
        names = ("on_fault", "max_restarts", "timeout_s", "reset_timeout_s", "strict")
        return FaultPolicy(**{name: getattr(self, name) for name in names})

    def of_lane(self, lane: int) -> Self:
        """What one environment of the batch is made of: the variant whose turn it is.

        Args:
            lane: its number in the batch.
        """
        if not self.variants:
            return self
        variant = self.variants[lane % len(self.variants)]
        return dataclasses.replace(
            self, variants=(), **{**variant, "kwargs": {**self.kwargs, **variant.get("kwargs", {})}}
        )

    @refuses(ConfigError)
    def require_raising(self) -> Iterator[str]:
        """Refuses what only single environments can do.

        Raises:
            ConfigError: environments are to differ, faults to be injected, or environments that fail to be restarted
                or dropped.
        """
        if self.variants:
            yield (
                "env.variants are of single environments, and these are stepped as one; give the differences to the "
                "environment by kwargs, or where it exists by itself too, use vectorization=serial or process"
            )
        odd = [f"discount {self.discount}"] * (self.discount != 1) + ["auto_reset False"] * (not self.auto_reset)
        if odd:
            yield f"env.{' and env.'.join(odd)} is for single environments, and these are stepped as one; leave it out"
        if self.chaos:
            yield "env.chaos strikes single environments, and these are stepped as one; leave it out"
        if self.on_fault != "raise":
            yield (
                f"env.on_fault is {self.on_fault!r}, but environments that are stepped as one fail as one; leave it "
                f"out, or where they exist by themselves too, begin a run with vectorization=serial or process"
            )

    def unheeded(self, *, as_one: bool) -> Iterator[str]:
        """What these environments do not heed: new runs refuse it, and earlier ones did something else without a word.

        Args:
            as_one: whether they are stepped as one, see `is_pool`.
        """
        if self.vectorization == "batch" and not as_one:
            yield (
                f"env.vectorization is batch, but {self.name!r} makes single environments, which would be stepped one "
                "after the other. A batch is a class that says `batched = True`, such as a TensorEnvironment, or a "
                "task of MuJoCo of version 5; leave it out, or give process for several cores (native for what makes "
                "a gymnasium.vector.VectorEnv)"
            )
        lanes = [] if as_one else map(self.of_lane, range(max(1, len(self.variants))))
        yield from filter(None, (unheeded(lane.name, lane.all_kwargs) for lane in lanes))

    def for_evaluation(self, num_envs: int, **kwargs: Any) -> Self:
        """The same task without what is for training alone: in this process, or a pool where training uses one.

        Args:
            kwargs: for the constructor, on top of its others.
        """
        kwargs = {**self.kwargs, **kwargs}
        info = self.info if "env_info" in self.inputs else ()
        plain = dataclasses.replace(self.alone(num_envs), info=info, untransformed=False, auto_reset=True)
        return dataclasses.replace(plain, kwargs=kwargs, train_kwargs={}, train_wrappers=())

    def alone(self, num_envs: int) -> Self:
        """The same environments without injected faults: in this process, or a pool where this is one.

        One that is dropped in training is restarted here, for each has to play its share of episodes.
        """
        kind = "serial" if self.vectorization in ("thread", "process") else self.vectorization
        on_fault = "restart" if self.on_fault == "drop" else self.on_fault
        plain = {"vectorization": kind, "num_workers": None, "num_ready": None, "chaos": "", "on_fault": on_fault}
        return dataclasses.replace(self, num_envs=num_envs, **plain)

    def stepped(self, vectorization: Vectorization) -> Self:
        """The same environments, stepped in another way, without the threads of a batch.

        Args:
            vectorization: how.
        """
        threads = self.num_threads if vectorization == "batch" else None
        return dataclasses.replace(self, vectorization=vectorization, num_threads=threads)

    @property
    def limit(self) -> int:
        """Most steps of an episode, also if its id is registered with them; 0 where none are known."""
        found = registered_limit(self.name) if self.max_episode_steps is None else self.max_episode_steps
        return found or 0

    @property
    def task(self) -> str:
        """What an environment is, with all that changes its returns and is not its wrappers."""
        own = {"env.max_episode_steps": self.limit or None, "env.variants": self.variants or None}
        given = {name: value for name, value in self.kwargs.items() if name != "render_mode"}
        given |= {name: value for name, value in own.items() if value is not None}
        return " ".join([self.name, *(f"{name}={given[name]!r}" for name in sorted(given))])

    def policy_wrappers(self, reads_reward: bool = False) -> tuple[str, ...]:
        """Wrappers between a policy and the environment, also in evaluations, as text, the innermost first.

        Whoever lets a policy act elsewhere has to apply them. Those of films and time limits are left out, those of
        rewards, too, unless the policy reads rewards, and so are folders of this machine.

        Args:
            reads_reward: whether the policy is told rewards as it acts (`Policy.reads_reward`); it also reads them
                where `inputs` has them.
        """
        layers, reads = (*self.gym_wrappers, *self.wrappers), {*self.inputs, *(["reward"] if reads_reward else [])}
        concern = (one for one in layers if not isinstance(one, Wrap) or one.concerns_policies(reads))
        return tuple(placeless(str(one)) if isinstance(one, Wrap) else "a function" for one in concern)

    @property
    def all_kwargs(self) -> dict[str, Any]:
        """For the constructor of a training environment."""
        return {**self.kwargs, **self.train_kwargs}


def env_name(env: Any) -> str:
    """The name of an environment; of an object, or of what no module defines at its top, one for this process alone.

    Args:
        env: a name; a class or function that makes one; or an environment, of which every lane gets a copy.

    Raises:
        ConfigError: it is none of these, or a batch of environments.
    """
    if isinstance(env, str):
        return env
    made = _is_made(env)
    if made and (hasattr(env, "num_envs") or getattr(env, "batched", False)):
        raise ConfigError(
            f"env.name is {env!r}, a batch of environments; give its class if that says batched = True, or name what "
            "makes one of num_envs: vector:my_module:make of tensors, my_module:make with env.vectorization=native"
        )
    if not made and not callable(env):
        raise ConfigError(
            f"env.name is {env!r}; give an id of Gymnasium's registry, my_package:MyEnvironment, an environment, or a "
            "class or function that makes one"
        )
    named = isinstance(env, type | types.FunctionType | types.MethodType)
    return (None if made else name_to_find(env)) or given_name(env if named else _making(env))


def _making(env: Any) -> Callable[..., Any]:
    """A function that copies an environment, or calls what makes one, such as a `functools.partial`."""

    def make() -> Any:
        try:
            return copy.deepcopy(env)
        except Exception as error:
            raise ConfigError(f"{env!r} cannot be copied ({error}); give a function that makes one") from error

    def call(*args: Any, **kwargs: Any) -> Any:
        return env(*args, **kwargs)

    made: Any = make if _is_made(env) else functools.update_wrapper(call, env, assigned=())
    kind = type(env) if made is make else getattr(env, "func", type(env))
    made.__name__ = str(getattr(getattr(env, "spec", None), "id", kind.__name__))
    made.__annotations__ = {"return": kind} if made is make else {}
    return made


def _is_made(env: Any) -> bool:
    """Whether it is an environment, also of many agents, and not what makes one."""
    return not isinstance(env, type) and (is_environment(type(env)) or hasattr(env, "begin_episode"))


def is_environment(kind: type) -> bool:
    """Whether a class is an environment of any library: it has `reset` and `step`.

    Args:
        kind: of what a name means.
    """
    return hasattr(kind, "reset") and hasattr(kind, "step")


def _names(setting: str, given: Any, needed: str) -> tuple[str, ...]:
    """Names that were given one by one, not as one text."""
    if isinstance(given, str) or not all(isinstance(name, str) and name for name in given):
        raise ConfigError(f"env.{setting} is {given!r}; give names of {needed}")
    return tuple(given)


@refuses(ConfigError)
def _require_variant(variant: Any) -> Iterator[str]:
    known = {"name": str, "max_episode_steps": int, "kwargs": dict}
    if not isinstance(variant, dict) or not variant:
        yield f"env.variants has {variant!r}; a variant is a mapping with some of {', '.join(known)}"
    for key, value in variant.items():
        if key not in known:
            yield f"env.variants has the entry {key!r}{did_you_mean(str(key), known)}"
        if type(value) is not known[key]:
            yield f"env.variants has {key}={value!r}; it must be of the type {known[key].__name__}"
