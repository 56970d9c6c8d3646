"""Environments by name, also those of PettingZoo, and of Gymnasium with a tuple for the agents; and as PettingZoo's."""

import contextlib
import functools
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, final, get_type_hints

import gymnasium
import numpy as np

from palaestra import core, rollout
from palaestra.core import ACTION_MASK, ConfigError, EnvError, TimeStep
from palaestra.envs import create, spec_from_space
from palaestra.envs.contract import nest, rows
from palaestra.envs.suites import gym
from palaestra.multiagent.attributes import is_many_agents
from palaestra.multiagent.env import AgentSpec, MultiAgentEnv, MultiAgentStep

__all__ = ["TupleAdapter", "aec_env", "from_pettingzoo", "is_multi_agent", "load_multi_agent_env", "parallel_env"]

PREFIX = "pettingzoo:"
TUPLE_PREFIX = "agents/"
_INTO = "put each agent's into its observation, a Dict with the key action_mask"


def _ended(observation: Any, reward: float, termination: bool, truncation: bool) -> TimeStep:
    if termination or truncation:
        return (core.termination if termination else core.truncation)(observation, reward)
    return core.transition(observation, reward)


def _require_read_mask(info: Any, specs: Iterable[AgentSpec], remedy: str) -> None:
    """Refuses a mask in `info`, unless observations have one."""
    if (
        info
        and ACTION_MASK in info
        and not all(isinstance(spec.observation, dict) and ACTION_MASK in spec.observation for spec in specs)
    ):
        raise EnvError(f"info has an {ACTION_MASK}, which no policy reads there; {remedy}")


class _Foreign(MultiAgentEnv):
    """An environment of another library, made of its own one."""

    def __init__(self, env: Any, agents: Mapping[str, AgentSpec]) -> None:
        self._env, self._agents = env, dict(agents)
        self._gathered: dict[str, dict[str, tuple[float, float, int]]] = {}  # of `info` in this episode, by agent
        self.metadata = getattr(env, "metadata", {})
        """What it says of itself, such as `render_fps`."""

    @property
    def agents(self) -> Mapping[str, AgentSpec]:
        return self._agents

    def _gather(self, infos: Mapping[str, Any]) -> None:
        """Takes what a step reports of agents that acted; under an empty name, of all together."""
        if not any(infos.values()):
            return
        names = list(infos)
        read = (info if isinstance(info, dict) and not rows.wrong_info(info) else {} for info in infos.values())
        unmasked = ({key: value for key, value in info.items() if key != ACTION_MASK} for info in read)
        for place, numbers in (rows.numeric_infos(unmasked) or {}).items():
            gathered = self._gathered.setdefault(names[place], {})
            for key, value in numbers.items():
                if abs(value) < np.inf:
                    total, largest, count = gathered.get(key, (0.0, -np.inf, 0))
                    gathered[key] = total + value, max(largest, value), count + 1

    def _told(self) -> dict[str, float]:
        """What the episode that ends has gathered, as `<agent>/<entry>`."""
        return {
            f"{name}/{key}" if name else key: value
            for name, gathered in self._gathered.items()
            for key, value in rollout.info_summary(gathered).items()
            if key not in ("return", "length")  # which metrics have of every agent
        }

    def render(self) -> np.ndarray:
        try:
            frame = self._env.render()
        except NotImplementedError:
            frame = None
        if not isinstance(frame, np.ndarray):
            raise EnvError(
                f"{self._env} draws no pictures: its `render` has to return an array [H, W, 3] when it is made with "
                "render_mode='rgb_array'"
            )
        return frame

    def close(self) -> None:
        self._env.close()


class _PettingZooAdapter(_Foreign):
    """What both kinds have in common: agents from spaces, masks, the global state."""

    def __init__(self, env: Any) -> None:
        self._env = env
        try:
            names = list(env.possible_agents)
        except AttributeError:
            unknown = f"{env} does not say `possible_agents`, so the number of agents in buffers is unknown"
            raise ConfigError(unknown) from None
        env.reset(seed=0)
        # masks are part of observations, or given beside them; who is alive at first shows which
        self._mask_in_info = any(ACTION_MASK in self._info(name) for name in env.agents)
        super().__init__(env, {str(name): self._agent_spec(name) for name in names})
        self._keys = {str(name): name for name in names}

    @property
    def state_spec(self) -> core.SpecTree | None:
        space = getattr(self._env, "state_space", None)
        return None if space is None else spec_from_space(space)

    def global_state(self) -> Any:
        return self._env.state()

    def _info(self, name: Any) -> Mapping[str, Any]:
        return self._env.infos[name]

    def _agent_spec(self, name: Any) -> AgentSpec:
        spec = spec_from_space(self._env.observation_space(name))
        action: Any = spec_from_space(self._env.action_space(name), "action_space")
        if self._mask_in_info:
            spec = {"observation": spec, ACTION_MASK: core.MultiBinarySpec((action.encoded_size,))}
        return AgentSpec(spec, action)

    def _observed(self, observation: Any, info: Mapping[str, Any], spec: AgentSpec) -> Any:
        if not self._mask_in_info:
            _require_read_mask(info, [spec], "the first reset had none: report it for every agent from reset on")
            return observation
        size = spec.action.encoded_size  # an agent without a mask, at its end, may do anything
        return {"observation": observation, ACTION_MASK: np.asarray(info.get(ACTION_MASK, np.ones(size)), np.int8)}


@final
class ParallelAdapter(_PettingZooAdapter):
    """A `pettingzoo.ParallelEnv`: all agents alive act in every step.

    Raises:
        ConfigError: it does not know its possible agents.
        SpecError: a space has no arrays of fixed shape.
    """

    def begin_episode(self, seed: int) -> MultiAgentStep:
        self._gathered.clear()
        observations, infos = self._env.reset(seed=seed)
        agents = self._env.agents
        return MultiAgentStep({str(name): core.restart(self._of(name, observations, infos)) for name in agents})

    def advance(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        given = {self._keys[name]: action for name, action in actions.items()}
        observations, rewards, ends, cuts, infos = self._env.step(given)
        self._gather({str(name): infos.get(name, {}) for name in given})
        time_steps: dict[str, TimeStep] = {}
        for name in given:
            observation = self._of(name, observations, infos)
            time_steps[str(name)] = _ended(observation, rows.number(rewards[name]), ends[name], cuts[name])
            if not (ends[name] or cuts[name] or name in self._env.agents):
                raise EnvError(
                    f"{name!r} has left `agents` and has not ended, so that it would be asked on; a ParallelEnv sets "
                    f"terminations[{name!r}] in that step, or truncations where it was cut off"
                )
        for name in self._env.agents:
            if name in given and (ends[name] or cuts[name]):
                raise core.EnvError(
                    f"{name!r} has ended and is still in `agents`, so that it would act on; a ParallelEnv takes it out "
                    "in the same step"
                )
            if name not in given:  # it has just appeared
                time_steps[str(name)] = core.restart(self._of(name, observations, infos))
        unearned = {str(name): rows.number(reward) for name, reward in rewards.items() if name not in given and reward}
        over = not self._env.agents
        return MultiAgentStep(time_steps, over, info=self._told() if over else {}, unearned_rewards=unearned)

    def _of(self, name: Any, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> Any:
        return self._observed(observations[name], infos.get(name, {}), self.agents[str(name)])

    def _info(self, name: Any) -> Mapping[str, Any]:
        return self._env.reset(seed=0)[1].get(name, {})


@final
class AECAdapter(_PettingZooAdapter):
    """A `pettingzoo.AECEnv`: agents act one after another, and get what they earned since they acted last.

    A reward that reaches an agent before it has acted for the first time is unearned, see `MultiAgentStep`; an agent
    whose episode ends before that gets no time steps.

    Raises:
        ConfigError: it does not know its possible agents.
        SpecError: a space has no arrays of fixed shape.
    """

    def begin_episode(self, seed: int) -> MultiAgentStep:
        self._gathered.clear()
        self._env.reset(seed=seed)
        self._began: set[str] = set()
        return self._selected()

    def advance(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        (action,) = actions.values()
        self._env.step(action)
        return self._selected()

    def _selected(self) -> MultiAgentStep:
        """Steps past agents that are dead, to the one that acts next."""
        time_steps: dict[str, TimeStep] = {}
        unearned: dict[str, float] = {}
        while self._env.agents:
            name = str(self._env.agent_selection)
            seen, reward, termination, truncation, info = self._env.last()
            observation, dead = self._observed(seen, info, self.agents[name]), termination or truncation
            observation = nest.copied(observation) if dead else observation  # for the environment goes on
            if name in self._began:
                time_steps[name] = _ended(observation, rows.number(reward), termination, truncation)
                self._gather({name: info})
            else:
                unearned[name] = rows.number(reward)
                if not dead:
                    self._began.add(name)
                    time_steps[name] = core.restart(observation)
            if not dead:
                return MultiAgentStep(time_steps, unearned_rewards=unearned)
            self._env.step(None)
        cut_off = [name for name, step in time_steps.items() if step.truncated]
        first = cut_off[:1] or None  # the value after the cut is that of who was selected first
        return MultiAgentStep(time_steps, True, info=self._told(), next_agents=first, unearned_rewards=unearned)


@final
class TupleAdapter(_Foreign):
    """A `gymnasium.Env` of several agents, as those of rware and lbforaging: tuples, and a list of rewards.

    The agents are `agent_0`, `agent_1`, ... in the order of the tuples; all act in every step, until each has ended.

    Args:
        env: with a `Tuple` of observations and one of actions.
        max_episode_steps: after which an episode is cut off; 0 is no limit besides the environment's own.

    Raises:
        ConfigError: its spaces are no tuples of one length.
        SpecError: a space has no arrays of fixed shape.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], max_episode_steps: int = 0) -> None:
        sees: Any = env.observation_space
        does: Any = env.action_space
        tuples = all(isinstance(space, gymnasium.spaces.Tuple) for space in (sees, does))
        if not tuples or len(sees) != len(does):
            raise ConfigError(
                f"{env} sees {sees} and does {does}; an environment of several agents is needed, with a Tuple of their "
                "observations and one of their actions"
            )
        pairs = enumerate(zip(sees, does, strict=True))
        super().__init__(env, {f"agent_{slot}": AgentSpec(*map(spec_from_space, pair)) for slot, pair in pairs})
        self._limit = max_episode_steps

    def begin_episode(self, seed: int) -> MultiAgentStep:
        self._gathered.clear()
        seen, info = self._env.reset(seed=seed)
        _require_read_mask(info, self.agents.values(), _INTO)
        self._steps = 0
        return MultiAgentStep({name: core.restart(one) for name, one in zip(self.agents, seen, strict=True)})

    def advance(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        given = tuple(actions.get(name, nest.neutral(spec.action)) for name, spec in self.agents.items())
        answer: Any = self._env.step(given)
        seen, rewards, ends, cuts, info = answer
        _require_read_mask(info, self.agents.values(), _INTO)
        if np.shape(rewards) != (len(given),):
            raise EnvError(f"{self._env} gave the rewards {rewards!r}; one for each of {len(given)} agents is needed")
        self._gather({"": info})
        self._steps += 1
        cuts = np.asarray(cuts, np.bool_) | (0 < self._limit <= self._steps)
        ends, cuts = (np.broadcast_to(flags, len(given)).tolist() for flags in (ends, cuts))  # one for all, or for each
        time_steps: dict[str, TimeStep] = {}
        unearned: dict[str, float] = {}
        for slot, name in enumerate(self.agents):
            if name in actions:
                time_steps[name] = _ended(seen[slot], rows.number(rewards[slot]), ends[slot], cuts[slot])
            else:
                unearned[name] = rows.number(rewards[slot])
        over = all(step.last for step in time_steps.values())
        return MultiAgentStep(time_steps, over, info=self._told() if over else {}, unearned_rewards=unearned)


def from_pettingzoo(env: Any) -> MultiAgentEnv:
    """The environment of a PettingZoo environment.

    Args:
        env: a `ParallelEnv` or an `AECEnv`.

    Raises:
        ConfigError: it is neither.
    """
    _require_pettingzoo("a PettingZoo environment")
    from pettingzoo import AECEnv, ParallelEnv

    if isinstance(env, ParallelEnv):
        return ParallelAdapter(env)
    if isinstance(env, AECEnv):
        return AECAdapter(env)
    raise ConfigError(f"{env!r} is a {type(env).__name__}; a ParallelEnv or an AECEnv is needed")


def _load_pettingzoo(name: str, **kwargs: Any) -> MultiAgentEnv:
    """An environment of PettingZoo's registry; of those that exist in both forms, the parallel one."""
    _require_pettingzoo(name)
    import pettingzoo
    from pettingzoo.env_registry.exceptions import PettingZooRegistryError

    path = name.removeprefix(PREFIX)
    if ":" in path:
        raise ConfigError(f"{name!r} is for names of PettingZoo's registry; a class of your own is {path!r} alone")
    try:
        try:
            env = pettingzoo.make("parallel", path, **kwargs)
        except PettingZooRegistryError:
            env = pettingzoo.make("aec", path, **kwargs)
    except (PettingZooRegistryError, ImportError) as error:
        missing = error if isinstance(error, ImportError) else error.__cause__
        if isinstance(missing, ImportError):
            family = path.partition("/")[0]
            raise ConfigError(
                f"{name!r} cannot be made: {missing}; what its family needs is an extra of PettingZoo's own: "
                f"pip install 'pettingzoo[{family}]'"
            ) from error
        known = sorted({*pettingzoo.aec_registry, *pettingzoo.parallel_registry})
        raise ConfigError(
            f"{name!r} cannot be made: {str(error).rstrip('.')}. Names are such as pettingzoo:classic/tictactoe-v3"
            f"{core.did_you_mean(path, known)}"
        ) from error
    return from_pettingzoo(env)


def is_multi_agent(name: str) -> bool:
    """Whether an environment's name means one with many agents.

    Args:
        name: as `EnvConfig.name`: `pettingzoo:...`, `agents/...`, or `my_package:MyWorld` for a class of a
            `MultiAgentEnv` or of PettingZoo, or for a function that returns one. A function of PettingZoo's that does
            not say in its signature what it returns is called once to see.

    Examples:
        >>> is_multi_agent("palaestra.multiagent:Meeting"), is_multi_agent("CartPole-v1")
        (True, False)
    """
    return name.startswith((PREFIX, TUPLE_PREFIX)) or _env_class(name) is not None


def load_multi_agent_env(name: str, kwargs: Mapping[str, Any] | None = None) -> MultiAgentEnv:
    """One environment by name.

    Args:
        name: see `is_multi_agent`; after `agents/` stands an id of Gymnasium's registry, such as
            `agents/rware:rware-tiny-2ag-v2`, whose module registers it.
        kwargs: for its constructor.

    Raises:
        ConfigError: there is no such environment, or the arguments do not fit.
        MissingExtraError: it needs an optional package.
    """
    given = dict(kwargs or {})
    if name.startswith(PREFIX):
        return _load_pettingzoo(name, **given)
    if name.startswith(TUPLE_PREFIX):
        made = gym.single(name.removeprefix(TUPLE_PREFIX), given, None)
        return TupleAdapter(made.env, made.duration)
    maker = core.import_maker(name, "an environment", lambda kind: is_many_agents(kind) or create.is_environment(kind))
    try:
        inspect.signature(maker).bind(**given)
    except TypeError as error:
        raise ConfigError(f"{name!r} cannot be called with {given}: {error}") from None
    made = maker(**given)
    return made if isinstance(made, MultiAgentEnv) else from_pettingzoo(made)


def _env_class(name: str) -> type | None:
    """The class of what a name makes, where that has many agents."""
    if not re.fullmatch(r"[\w.]+:[A-Za-z_][\w.]*", name):
        return None
    try:
        maker = core.import_object(name)
    except ConfigError:
        return None  # an id of the registry, say; making it will say
    kind: Any = maker
    if not isinstance(maker, type):
        try:
            kind = get_type_hints(maker).get("return") or _made_class(name)
        except (NameError, TypeError):
            return None
    return kind if isinstance(kind, type) and is_many_agents(kind) else None


@functools.lru_cache
def _made_class(name: str) -> type | None:
    """What a function makes that does not say it: called only where it could make an environment of PettingZoo."""
    maker = core.import_object(name)
    if "pettingzoo" not in sys.modules or not inspect.isfunction(maker):
        return None
    try:
        made = maker()
    except Exception:
        return None  # it needs arguments, say; making it with these will say
    with contextlib.suppress(Exception):
        made.close()
    return type(made)


def parallel_env(env: MultiAgentEnv) -> Any:
    """An environment as a `pettingzoo.ParallelEnv`, for libraries that take these.

    Args:
        env: in which all agents alive act in every step.

    Raises:
        MissingExtraError: PettingZoo is not installed.
    """
    _require_pettingzoo("an environment as a ParallelEnv")
    from palaestra.multiagent.exposed import AsParallelEnv

    return AsParallelEnv(env)


def aec_env(env: MultiAgentEnv) -> Any:
    """An environment as a `pettingzoo.AECEnv`: those who act in a step are asked one after another.

    Args:
        env: any.

    Raises:
        MissingExtraError: PettingZoo is not installed.
    """
    _require_pettingzoo("an environment as an AECEnv")
    from palaestra.multiagent.exposed import AsAECEnv

    return AsAECEnv(env)


def _require_pettingzoo(what: str) -> None:
    if importlib.util.find_spec("pettingzoo") is None:
        raise core.MissingExtraError("pettingzoo", "multiagent", what)
