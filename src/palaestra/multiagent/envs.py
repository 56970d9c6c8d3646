"""`MultiAgentEnvs`: several of them stepped together, with seeds, checks, restarts and exact resume."""

import contextlib
import functools
import json
import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from palaestra.core import RunSeeds, SpecTree, episode_seed
from palaestra.core.errors import ConfigError, EnvError, NonFiniteError, PalaestraError, SpecError
from palaestra.envs import EnvConfig, EventLog, Fault, FaultPolicy
from palaestra.envs.contract import episodes
from palaestra.envs.contract.attributes import as_json, claim, release, require_found, require_lanes
from palaestra.envs.contract.environment import Closeable
from palaestra.envs.supervision.faults import Handled, Incident, RestartBudget
from palaestra.envs.supervision.watchdog import ROLL_OUT_WORKERS, Watched
from palaestra.multiagent.attributes import LaneAttributes, layers_of
from palaestra.multiagent.env import AgentSpec, MultiAgentEnv, MultiAgentStep
from palaestra.multiagent.loading import load_multi_agent_env
from palaestra.multiagent.rules import ActionLog, StepCheck, require_state, step_digest

__all__ = ["MultiAgentEnvs", "create_multi_agent_envs", "refuse_whole_episodes"]

_log = logging.getLogger(__name__)
_MOST_EMPTY = 100
_FAULTS = ("on_fault", "max_restarts", "timeout_s", "reset_timeout_s")
_SETTINGS = ("name", "num_envs", "kwargs", "train_kwargs", "variants", "vectorization", *_FAULTS)
_INSTEAD = {
    "wrappers": "name a function that returns the environment wrapped as you want it, `def make() -> MultiAgentEnv`",
    "chaos": "faults can be injected into environments with one agent only",
}
_OTHERWISE = "change the environment itself"
_T = TypeVar("_T")


class _Lane:
    """One environment and where it is in its stream of episodes."""

    def __init__(self, env: MultiAgentEnv, seed: int, log: ActionLog, check: StepCheck) -> None:
        self.env, self.seed, self.log, self.check = env, seed, log, check
        self.number, self.steps, self.over = -1, 0, True
        self.actions: Mapping[str, Any] = {}
        """The newest, for messages."""
        self.empty = 0
        """Episodes in a row in which nobody was asked."""
        self.gone = False
        """Whether the environment is closed, after a fault, and has to be made again."""
        self.attributes = LaneAttributes()
        self.state: Any = None
        """The global state, where steps read it."""

    @property
    def episode_seed(self) -> int:
        return episode_seed(self.seed, self.number)


class MultiAgentEnvs(Closeable):
    """B environments of one kind, stepped one after another in this process.

    After the step in which an environment's episode is over, the next `step` begins its next one. Every episode is
    seeded by its lane's seed and its number, so a resumed run replays it: by its actions, checked by a digest.

    Args:
        factories: make one environment each, all with the same agents.
        lane_seeds: one for each; fresh ones if `None`.
        faults: what to do about an environment that fails: `raise`, or `restart`, which makes it again and begins its
            next episode; and after how long one hangs.
        first_id: number of the first environment in messages, where these are a part of more.

    Raises:
        ConfigError: `faults` says `drop`.
        EnvError: the environments have different agents, there is none, or one cannot be made.

    Examples:
        >>> from palaestra.multiagent import Meeting
        >>> with MultiAgentEnvs([Meeting, Meeting], lane_seeds=[1, 2]) as envs:
        ...     outcomes = envs.reset()
        ...     outcomes = envs.step([{agent: 1 for agent in outcome.time_steps} for outcome in outcomes])
        >>> [outcome.time_steps["agent_0"].step_type for outcome in outcomes]
        [1, 1]
    """

    resume: Literal["exact", "statistical"] = "exact"
    """Whether restored environments continue the very same stream: not after an episode too long to be replayed."""

    def __init__(
        self,
        factories: Sequence[Callable[[], MultiAgentEnv]],
        *,
        lane_seeds: Sequence[int] | None = None,
        faults: FaultPolicy | None = None,
        first_id: int = 0,
    ) -> None:
        if not factories:
            raise EnvError("no environments were given; at least one is needed")
        self._policy = faults or FaultPolicy()
        if self._policy.on_fault == "drop":
            raise ConfigError("on_fault is 'drop', but environments cannot continue without one of them; use 'restart'")
        self._factories, self._budget, self._first_id = list(factories), RestartBudget(self._policy), first_id
        self._watch = Watched(self._policy, first_id, None, watched=True)
        self._watch.elsewhere = ROLL_OUT_WORKERS
        envs = _made(self, self._watch, factories)
        self.agents: Mapping[str, AgentSpec] = dict(envs[0].agents)
        """Every agent that may ever act, by name."""
        self.batch_size = len(envs)
        """Number of environments, B."""
        self.delayed = envs[0].delayed
        """Whether rewards come later than time steps."""
        self.interrupted = False
        """Whether something else has stepped them since their collector last did; it then begins new episodes."""
        self.reads_state = False
        """Whether every step reads the global state, and treats a fault there as one of its own: for policies that see
        the state."""
        self.faults = EventLog()
        """The newest faults, in order, and how many there were."""
        self._failed: set[int] = set()
        self._as_ever = torch.inference_mode(False)  # environments may learn, or differentiate, where others infer
        self.restarted: frozenset[int] = frozenset()
        """Environments whose running episode broke off in the newest step, which begins another; or when they were
        restored, and the next step does."""
        seeds = list(lane_seeds) if lane_seeds is not None else np.random.SeedSequence().generate_state(len(envs))
        if len(seeds) != len(envs):
            raise EnvError(f"{len(seeds)} lane seeds were given for {len(envs)} environments; give one for each")
        self._lanes = [
            _Lane(env, int(seed), ActionLog(self.agents), StepCheck(self.agents, env.delayed))
            for env, seed in zip(envs, seeds, strict=True)
        ]
        me: Any = weakref.ref(self)  # in a cycle environments would outlive their last use
        self._watch.lost = lambda incident: me()._record(incident, "raise")

    @property
    def state_spec(self) -> SpecTree | None:
        """Of `MultiAgentEnv.global_state`; `None` where the environments have none."""
        return self._lanes[0].env.state_spec

    def reset(self) -> list[MultiAgentStep]:
        """Starts the next episode of every environment; running ones are abandoned."""
        for lane in self._lanes:
            lane.over = True
        return self.step([{} for _ in self._lanes])

    def step(self, actions: Sequence[Mapping[str, Any]]) -> list[MultiAgentStep]:
        """Executes actions in every environment, and starts the next episode of those that are over.

        Args:
            actions: for each environment, of the agents that are to act, by name, as their action specs say.

        Raises:
            EnvError: an environment failed, or broke a rule, and may not be restarted; the message names it, its seed,
                episode, step and actions.
            SpecError: actions are missing, too many, outside their space or forbidden.
        """
        self._failed.clear()
        lanes = enumerate(zip(self._lanes, actions, strict=True))
        with self._as_ever:
            outcomes = [self._stepped_or_restarted(number, lane, mine) for number, (lane, mine) in lanes]
        self.restarted = frozenset(self._failed)
        return outcomes

    def global_state(self) -> list[Any]:
        """The global state of every environment, as its newest step left it.

        Where steps read it (`reads_state`), they have met its faults; else these are raised here, whatever `faults`
        says.

        Raises:
            EnvError: an environment raised; names it.
            EnvError: a state is not as `state_spec` says.
            NonFiniteError: a state is NaN or infinite.
        """
        if self.reads_state:
            return [lane.state for lane in self._lanes]
        with self._as_ever:
            return [self._state_of(number, lane, handled="raise") for number, lane in enumerate(self._lanes)]

    def _state_of(self, number: int, lane: _Lane, handled: Handled | None = None) -> Any:
        try:
            state, spec = self._watch.call_step(number, lambda env: env.global_state(), lane.env), self.state_spec
            if spec is not None:
                require_state(state, spec)
        except BaseException as error:
            lane.over = True
            raise self._failure(number, error, handled) from error
        return state

    def set_attr(self, name: str, value: Any, lanes: Sequence[int] | None = None) -> None:
        """Changes an attribute of environments, from their next episode on; saved, and set again where one is remade.

        Args:
            name: of an attribute that an environment, or a wrapper around it, has; the outermost is meant.
            value: a JSON value.
            lanes: numbers of the environments; all by default.

        Raises:
            ConfigError: there is no such attribute or lane, or the value cannot be saved.
        """
        value, chosen = as_json(name, value), require_lanes(lanes, self.batch_size)
        self.get_attr(name, chosen)
        for number in chosen:
            self._asked(number, lambda lane: lane.attributes.wait_for(lane.env, {name: value}))

    def get_attr(self, name: str, lanes: Sequence[int] | None = None) -> list[Any]:
        """What an attribute of environments is in their running episodes, one value for each.

        Args:
            lanes: numbers of the environments; all by default.

        Raises:
            ConfigError: there is no such attribute or lane.
        """
        chosen = require_lanes(lanes, self.batch_size)
        found = [self._asked(number, lambda lane: lane.attributes.find(lane.env, name)) for number in chosen]
        return require_found(name, chosen, found)

    def where(self, number: int) -> str:
        """Which episode an environment is in, with its seed and step, for messages.

        Args:
            number: of the environment.
        """
        lane, env_id = self._lanes[number], self._first_id + number
        return f"environment {env_id} in episode {lane.number} (seed {lane.episode_seed}), step {lane.steps}"

    def _stepped_or_restarted(self, number: int, lane: _Lane, actions: Mapping[str, Any]) -> MultiAgentStep:
        while True:
            try:
                outcome = self._stepped(number, lane, actions)
                if self.reads_state:
                    lane.state = self._state_of(number, lane)
                return outcome
            except (EnvError, NonFiniteError):  # no SpecError: who gave the actions is to blame
                if self._policy.on_fault == "raise":
                    raise
                wait_s = self._budget.spend(number, self.faults[-1])
                _log.warning("it is made again in %.1f s: %s", wait_s, self.faults[-1])
                time.sleep(wait_s)
                with contextlib.suppress(Exception):
                    self._asked(number, lambda lane: lane.env.close())
                lane.gone, actions = True, {}

    def _stepped(self, number: int, lane: _Lane, actions: Mapping[str, Any]) -> MultiAgentStep:
        lane.actions, watch = actions, self._watch
        if not lane.over:
            try:
                lane.check.require_actions(actions)
            except SpecError as error:
                raise SpecError(f"{self.where(number)}: {error}") from None
        try:
            if lane.gone:
                lane.env, lane.gone = watch.call(number, self._factories[number]), False
                lane.attributes.set_again()
            if lane.over:
                lane.number, lane.steps = lane.number + 1, 0
                lane.log.clear()
                lane.check.clear()
                watch.call(number, lane.attributes.begin, lane.env)
                outcome = watch.call(number, lane.env.begin_episode, lane.episode_seed)
            else:
                lane.steps += 1
                outcome = watch.call_step(number, lane.env.advance, lane.log.add(actions))
            lane.check.take(outcome)
            lane.empty = lane.empty + 1 if outcome.over and not lane.steps else 0
            if lane.empty == _MOST_EMPTY:
                raise SpecError(f"{_MOST_EMPTY} episodes in a row were over before an agent had acted")
        except BaseException as error:
            lane.over = True
            raise self._failure(number, error) from error
        lane.over = outcome.over
        return outcome

    def _asked(self, number: int, function: Callable[[_Lane], _T]) -> _T:
        """What an environment answers outside a step; what goes wrong there is raised, whatever `faults` says."""
        try:
            return self._watch.call(number, function, self._lanes[number])
        except PalaestraError:
            raise
        except BaseException as error:
            raise self._failure(number, error, "raise") from error

    def _failure(self, number: int, error: BaseException, handled: Handled | None = None) -> PalaestraError:
        failure = self._watch.failure(number, error)
        if isinstance(error, SpecError):
            failure = failure._replace(kind="malformed", what="broke a rule")
        elif isinstance(error, NonFiniteError):
            failure = failure._replace(kind="non-finite", what="gave no number")
        fault = self._record(Incident(failure), handled or self._policy.on_fault)
        self._failed.add(number)
        text = f"{self.where(number)}, with actions {fault.action or 'of none'}, {fault.what}: {failure.detail}"
        return (NonFiniteError if failure.kind == "non-finite" else EnvError)(text)

    def _record(self, incident: Incident, handled: Handled) -> Fault:
        lane = self._lanes[incident.failure.lane]
        place = lane.number, lane.episode_seed, lane.steps, dict(lane.actions)
        fault = Fault.of(incident, place, handled=handled, first_id=self._first_id)
        self.faults.append(fault)
        return fault

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Where every environment is: seed, episode and actions so far, and a digest of what it showed last."""
        return {
            str(number): {
                "lane_seed": lane.seed,
                "episode": lane.number,
                "over": lane.over,
                "digest": step_digest(lane.check.newest, self.agents),
                "actions": lane.log.state(),
                "attributes": lane.attributes.state(),
            }
            for number, lane in enumerate(self._lanes)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> list[MultiAgentStep | None]:
        """Replays every environment's running episode.

        One of more than 100,000 steps is over, and `resume` is then `statistical`.

        Returns:
            The newest step of each environment; `None` of one whose episode is over, or has none yet.

        Raises:
            EnvError: it is of another number of environments, or an environment does not replay.
        """
        if len(state) != len(self._lanes):
            raise EnvError(f"the saved state is of {len(state)} environments and this has {len(self._lanes)}")
        steps = {number: state[str(number)]["actions"].get("forgotten", 0) for number in range(len(self._lanes))}
        self.restarted = frozenset(number for number, count in steps.items() if count)
        self.resume = "statistical" if self.restarted else "exact"
        if self.restarted:
            counts = [f"environment {number} after {steps[number]:,} steps" for number in sorted(self.restarted)]
            text = "%s: episodes of more than %s steps are not replayed, and new ones begin"
            _log.warning(text, ", ".join(counts), f"{episodes.MOST_STEPS:,}")
        return [self._replayed(number, lane, state[str(number)]) for number, lane in enumerate(self._lanes)]

    def _replayed(self, number: int, lane: _Lane, state: Mapping[str, Any]) -> MultiAgentStep | None:
        lane.seed, lane.number, lane.over = int(state["lane_seed"]), int(state["episode"]), True
        waiting = self._asked(number, lambda lane: lane.attributes.load_state(lane.env, state.get("attributes", "")))
        outcome = None
        if state["over"] or "forgotten" in state["actions"]:
            lane.log.clear()
            lane.check.clear()
        else:
            saved = ActionLog(self.agents)
            saved.load_state(state["actions"])
            lane.number -= 1
            for actions in ({}, *saved.steps()):  # the first begins the episode
                outcome = self._stepped(number, lane, actions)
        lane.attributes.wait_for(lane.env, waiting)
        if outcome is not None and step_digest(outcome, self.agents) != state["digest"]:
            raise EnvError(
                f"{self.where(number)} does not replay: after the same seed and actions it shows something else. "
                "All of its randomness must come from the seed of `begin_episode`, and nothing from earlier episodes. "
                "What was learned can go on in a new run, with --from"
            )
        return outcome

    def lane_state(self) -> dict[str, Any]:
        """Every environment's seed and episode number, and what was set."""
        return {
            "lane_seed": np.array([lane.seed for lane in self._lanes]),
            "episode": np.array([lane.number for lane in self._lanes]),
            "attributes": json.dumps([lane.attributes.state() for lane in self._lanes]),
        }

    def load_lane_state(self, state: Mapping[str, Any]) -> None:
        """Takes over seeds and episode numbers; the next step starts new episodes everywhere."""
        for lane, seed, number in zip(self._lanes, state["lane_seed"], state["episode"], strict=True):
            lane.seed, lane.number, lane.over = int(seed), int(number), True
        given = json.loads(state["attributes"]) if "attributes" in state else [""] * len(self._lanes)
        for lane, saved in zip(self._lanes, given, strict=True):
            lane.attributes.wait_for(lane.env, lane.attributes.load_state(lane.env, saved))

    def seed(self, lane_seeds: Sequence[int]) -> None:
        """Begins the streams of these lane seeds, one for each environment, with their first episodes."""
        numbers, seeds = np.full(self.batch_size, -1), np.array(episodes.lane_seeds_of(lane_seeds, self.batch_size))
        self.load_lane_state({**self.lane_state(), "lane_seed": seeds, "episode": numbers})

    def render(self) -> np.ndarray:
        """A picture of environment 0."""
        return self._asked(0, lambda lane: lane.env.render())

    def close(self) -> None:
        found = self._watch.close_all({number: lane.env for number, lane in enumerate(self._lanes)})
        release(self)
        for failure in found:
            raise self._record(Incident(failure), "raise").error()


def _made(stepper: object, watch: Watched, factories: Sequence[Callable[[], MultiAgentEnv]]) -> list[MultiAgentEnv]:
    """Environments with the same agents; where one cannot be made, the others are closed."""
    envs: list[MultiAgentEnv] = []
    try:
        for number, factory in enumerate(factories):
            envs.append(watch.made(number, factory))
            claim(stepper, layers_of(envs[-1]), watch.first_id + number)
            if dict(envs[-1].agents) != dict(envs[0].agents) or envs[-1].delayed != envs[0].delayed:
                raise EnvError(
                    f"environment {watch.first_id + number} has other agents than environment {watch.first_id}; all "
                    "must have the same"
                )
    except BaseException:
        watch.close_all(dict(enumerate(envs)))
        raise
    return envs


def create_multi_agent_envs(
    config: EnvConfig, *, seed: int = 0, lane_seeds: Sequence[int] | None = None, first_id: int = 0
) -> MultiAgentEnvs:
    """Several environments of a configuration.

    Args:
        config: which and how many, the constructor's arguments, and what to do about faults; its other settings mean
            nothing for environments.
        seed: the run seed that the environments' seeds are derived from.
        lane_seeds: one for each instead.
        first_id: number of the first environment in messages, where these are a part of more.

    Raises:
        ConfigError: a setting is for environments with one agent.

    Examples:
        >>> create_multi_agent_envs(EnvConfig(name="palaestra.multiagent:Meeting", num_envs=2)).batch_size
        2
    """
    lanes = [config.of_lane(lane) for lane in range(config.num_envs)]
    for lane in lanes[: max(1, len(config.variants))]:
        _require_settings(lane)
    if config.vectorization not in ("auto", "serial"):
        raise ConfigError(
            f"env.vectorization is {config.vectorization}; environments are stepped in this process: serial"
        )
    if lane_seeds is None:
        lane_seeds = [RunSeeds(seed).integer("environments", lane) for lane in range(config.num_envs)]
    factories = [functools.partial(load_multi_agent_env, lane.name, lane.all_kwargs) for lane in lanes]
    return MultiAgentEnvs(factories, lane_seeds=lane_seeds, faults=config.faults, first_id=first_id)


def refuse_whole_episodes(number: int | None, asked: str, env: str) -> None:
    """Refuses unrolls of whole episodes, which many agents' environments do not play.

    Args:
        number: of episodes; `None` asks for none.
        asked: the setting.
        env: name of the environment.

    Raises:
        ConfigError: some are asked for.
    """
    if number is not None:
        raise ConfigError(
            f"{asked} is {number}, but {env} has many agents, whose environments are stepped by time steps; leave it "
            "out"
        )


def _require_settings(config: EnvConfig) -> None:
    plain = EnvConfig(name=config.name)
    for setting, value in vars(config).items():
        if setting not in _SETTINGS and value != getattr(plain, setting):
            raise ConfigError(
                f"env.{setting} is {value!r}, but {config.name} has many agents: {_INSTEAD.get(setting, _OTHERWISE)}. "
                f"Of env, these can be set: {', '.join(_SETTINGS)}"
            )
