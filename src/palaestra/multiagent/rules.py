"""The rules that the steps of an environment keep, checked as they arrive; and the actions that replay an episode."""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from palaestra.core import NonFiniteError, SpecError, SpecTree, StepType, TensorSpec, TimeStep, errors
from palaestra.envs.contract import episodes
from palaestra.envs.contract.boundary import PERIOD, ActionReader, Boundary
from palaestra.envs.contract.nest import flatten, leaf_arrays, leaf_dtypes, problem, unflatten
from palaestra.envs.contract.rows import Specs, no_number
from palaestra.multiagent.env import AgentSpec, MultiAgentStep

__all__ = ["ActionLog", "StepCheck", "require_state", "step_digest"]

_log = logging.getLogger(__name__)


def require_state(state: Any, spec: SpecTree) -> None:
    """Refuses a global state that is not as it was said to be.

    Args:
        state: of an environment.
        spec: as the environment says it.

    Raises:
        SpecError: it has another shape or type.
        NonFiniteError: it is NaN or infinite.
    """
    if wrong := problem(state, spec):
        raise SpecError(f"the global state has {wrong}")
    if not all(np.isfinite(leaf).all() for leaf in flatten(state, spec)):
        raise NonFiniteError(f"its global state is {state}; look at the environment, or clip what it gives")


class StepCheck:
    """Follows one environment through its episode.

    Args:
        agents: that it has.
        delayed: whether its rewards come late.
    """

    def __init__(self, agents: Mapping[str, AgentSpec], delayed: bool) -> None:
        self._agents, self._delayed = agents, delayed
        self._boundaries = {
            name: Boundary(spec.observation, 1, 1, strict=True, first=0) for name, spec in agents.items()
        }
        self._looks, self._told = dict.fromkeys(agents, 0), False
        reward = TensorSpec(())
        self._readers = {
            name: ActionReader(Specs(spec.observation, spec.action, reward), 1) for name, spec in agents.items()
        }
        self.newest: MultiAgentStep | None = None
        """The step taken last; `None` before the first of an episode."""
        self.clear()

    def clear(self) -> None:
        """Begins a new episode."""
        self.newest = None
        self._running: set[str] = set()
        self._due: set[str] = set()
        self._unpaid = dict.fromkeys(self._agents, 0)

    def require_actions(self, actions: Mapping[str, Any]) -> None:
        """Refuses actions of others than those that are to act.

        Args:
            actions: by agent.

        Raises:
            SpecError: names who is missing and who is too many, or whose action is outside its space or forbidden.
        """
        if set(actions) != self._due:
            raise SpecError(f"actions were given for {sorted(actions)}; those to act are {sorted(self._due)}")
        for name, action in actions.items():
            if wrong := self._unfit(name, action):
                raise SpecError(f"the action of agent {name!r} has {wrong}")

    def _unfit(self, name: str, action: Any) -> str | None:
        """What is wrong with an action; `None` if nothing."""
        newest = None if self.newest is None else self.newest.time_steps.get(name)
        return self._readers[name].unfit(action, None if newest is None else newest.observation)

    def take(self, outcome: MultiAgentStep) -> None:
        """Refuses a step that breaks a rule.

        Args:
            outcome: what the environment emitted.

        Raises:
            SpecError: names the agent and the rule.
            NonFiniteError: names the agent and the value that is NaN or infinite.
        """
        acted, self._due = self._due, set()
        for name, time_step in outcome.time_steps.items():
            if name not in self._agents:
                raise SpecError(f"agent {name!r} is none of the environment's agents, {list(self._agents)}")
            self._follow(name, time_step)
            if wrong := problem(time_step.observation, self._agents[name].observation):
                raise SpecError(f"the observation of agent {name!r} has {wrong}")
            self._look(name, time_step)
        if outcome.over and self._running:
            raise SpecError(f"the episode is over, and agents {sorted(self._running)} got no LAST time step")
        if outcome.over and self._due:
            raise SpecError(f"the episode is over, and agents {sorted(self._due)} are to act")
        if unknown := set(outcome.next_agents or ()) - set(self._agents):
            raise SpecError(f"next_agents are {sorted(unknown)}, which are none of the agents, {list(self._agents)}")
        if self._delayed or outcome.late_rewards:
            self._pay(acted, outcome)
        for name, reward in outcome.unearned_rewards.items():
            if name not in self._agents:
                raise SpecError(f"unearned_rewards name {name!r}, which is none of the agents, {list(self._agents)}")
            if not np.isfinite(reward):
                raise _not_finite(f"the unearned reward {reward}", name)
        self.newest = outcome

    def _look(self, name: str, time_step: TimeStep) -> None:
        """Refuses what is not finite as networks get it; says once what is outside its space, looking now and then."""
        boundary, (reward, *arrays) = self._boundaries[name], self._arrays(name, time_step)
        if not boundary.finite(arrays, reward):
            for _, _, what, advice in boundary.not_finite(arrays, reward):
                raise NonFiniteError(f"{what} for agent {name!r}; {advice}")
        self._looks[name] += 1
        if self._told or self._looks[name] % PERIOD != 1:
            return
        for _, _, what, advice in boundary.out_of_place(arrays):
            self._told = True
            if errors.is_news("observations of agents are outside their spaces"):
                _log.warning("agent %r %s. Networks get it as it is; %s. Said once", name, what, advice)

    def _arrays(self, name: str, time_step: TimeStep) -> list[np.ndarray]:
        """The reward [1] and the leaves of the observation [1, ...], as buffers have them."""
        with np.errstate(over="ignore"):
            leaves = leaf_arrays(time_step.observation, self._agents[name].observation)
            return [np.array([time_step.reward], np.float32), *(np.ascontiguousarray(leaf[None]) for leaf in leaves)]

    def outside(self, outcome: MultiAgentStep) -> str:
        """The first observation of a step that is outside its space, and whose it is; empty where there is none.

        Args:
            outcome: that was taken.
        """
        for name, time_step in outcome.time_steps.items():
            for _, _, what, _ in self._boundaries[name].out_of_place(self._arrays(name, time_step)[1:]):
                return f"agent {name!r} {what}"
        return ""

    def _follow(self, name: str, time_step: Any) -> None:
        kind, discount, running = int(time_step.step_type), float(time_step.discount), name in self._running
        if kind not in (0, 1, 2) or discount not in (0.0, 1.0) or (discount == 0 and kind != StepType.LAST):
            raise SpecError(f"agent {name!r} got (step type {kind}, discount {discount}); discount is 0 only with LAST")
        if running == (kind == StepType.FIRST):
            ought = "has begun, so MID or LAST is due" if running else "has not begun, so FIRST is due"
            raise SpecError(f"agent {name!r} got {StepType(kind).name}, but its episode {ought}")
        if wrong := no_number(time_step.reward):
            raise SpecError(f"agent {name!r} got no reward: {wrong}")
        if float(time_step.reward) != 0 and (self._delayed or kind == StepType.FIRST):
            first = " with FIRST, before it has acted; give it in `unearned_rewards` of the step"
            why = ", but this environment's rewards come late" if self._delayed else first
            raise SpecError(f"agent {name!r} got the reward {time_step.reward}{why}")
        if kind == StepType.LAST:
            self._running.discard(name)
        else:
            self._running.add(name)
            self._due.add(name)

    def _pay(self, acted: set[str], outcome: MultiAgentStep) -> None:
        """Every action of a delayed environment gets one reward, at the latest by the end of the episode."""
        if not self._delayed:
            raise SpecError("late rewards came from an environment that is not `delayed`; put rewards into time steps")
        for name in acted:
            self._unpaid[name] += 1
        for name, rewards in outcome.late_rewards.items():
            if not np.isfinite(rewards).all():
                raise _not_finite(f"the late rewards {list(rewards)}", name)
            if len(rewards) > (unpaid := self._unpaid.get(name, 0)):
                raise SpecError(f"agent {name!r} got {len(rewards)} late rewards for {unpaid} actions without")
            self._unpaid[name] -= len(rewards)
        if outcome.over and any(self._unpaid.values()):
            missing = {name: count for name, count in self._unpaid.items() if count}
            raise SpecError(f"the episode is over, and actions have no reward yet, by agent: {missing}")


def _not_finite(what: str, name: str) -> NonFiniteError:
    return NonFiniteError(f"emitted {what} for agent {name!r}; look at the environment, or clip what it emits")


def step_digest(outcome: MultiAgentStep | None, agents: Mapping[str, AgentSpec]) -> str:
    """A short hash of everything that agents see in a step.

    Args:
        outcome: of an environment; `None` gives no digest.
        agents: of that environment.
    """
    if outcome is None:
        return ""
    code = hashlib.blake2b(digest_size=12)
    for name in sorted(outcome.time_steps):
        spec, time_step = agents[name].observation, outcome.time_steps[name]
        code.update(name.encode())
        code.update(np.array([time_step.step_type, time_step.discount, time_step.reward], np.float64).tobytes())
        for leaf, dtype in zip(flatten(time_step.observation, spec), leaf_dtypes(spec), strict=True):
            code.update(np.ascontiguousarray(leaf, dtype).tobytes())
    return code.hexdigest()


class ActionLog:
    """The actions of a running episode, agent by agent, small enough for every checkpoint.

    Those of an episode of more than 100,000 steps are forgotten, as `EpisodeLog` does: what never ends would take
    memory without end.

    Args:
        agents: what each one's actions look like.

    Attributes:
        forgotten: steps of an episode that became too long to be replayed; else 0.
    """

    def __init__(self, agents: Mapping[str, AgentSpec]) -> None:
        self._specs = {name: spec.action for name, spec in agents.items()}
        self.clear()

    def clear(self) -> None:
        """Begins a new episode."""
        self._steps: list[dict[str, list[np.ndarray]]] = []
        self.forgotten = 0

    def add(self, actions: Mapping[str, Any]) -> dict[str, Any]:
        """Notes the actions of a step.

        Args:
            actions: by agent.

        Returns:
            Copies of them in the dtypes of their specs, which an environment may change.
        """
        step = {name: leaf_arrays(action, self._specs[name]) for name, action in actions.items()}
        if self.forgotten:
            self.forgotten += 1
        elif len(self._steps) == episodes.MOST_STEPS:
            self._steps, self.forgotten = [], episodes.MOST_STEPS + 1
        else:
            self._steps.append(step)
        return self._actions(step)

    def _actions(self, step: Mapping[str, list[np.ndarray]]) -> dict[str, Any]:
        return {
            name: unflatten((leaf.copy()[()] for leaf in leaves), self._specs[name]) for name, leaves in step.items()
        }

    def steps(self) -> Iterator[dict[str, Any]]:
        """The actions of every step so far, by agent."""
        return map(self._actions, self._steps)

    def state(self) -> dict[str, Any]:
        """Everything, as JSON values and arrays; of an episode that was too long, only its length."""
        if self.forgotten:
            return {"length": 0, "agents": {}, "forgotten": self.forgotten}
        agents: dict[str, dict[str, np.ndarray]] = {}
        for name in self._specs:
            if when := [number for number, step in enumerate(self._steps) if name in step]:
                columns = zip(*(self._steps[number][name] for number in when), strict=True)
                leaves = {str(leaf): np.stack(column) for leaf, column in enumerate(columns)}
                agents[name] = {"when": np.array(when, np.int64), **leaves}
        return {"length": len(self._steps), "agents": agents}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned.

        Args:
            state: of a log of the same agents.
        """
        self.forgotten = int(state.get("forgotten", 0))
        self._steps = [{} for _ in range(int(state["length"]))]
        for name, saved in state["agents"].items():
            columns = [np.asarray(saved[str(leaf)]) for leaf in range(len(saved) - 1)]
            for row, step in enumerate(saved["when"]):
                self._steps[int(step)][name] = [column[row] for column in columns]
