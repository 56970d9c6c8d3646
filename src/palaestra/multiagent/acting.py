"""`MappedPolicy`: a policy that acts for its agents in several environments, each lane at its own times."""

import functools
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from palaestra.core import ACTION_MASK, ConfigError, StepType, TimeStep, numpy_dtype, spec_leaves, tree_select
from palaestra.envs.contract.nest import copied, flatten, leaf_dtypes, neutral, to_batched, unflatten
from palaestra.multiagent.env import MultiAgentStep
from palaestra.multiagent.mapping import PolicySpec, team_leaves
from palaestra.policies import Phase, Policy, RandomPolicy
from palaestra.rollout import put_rows

__all__ = ["MappedPolicy"]

_FIRST, _MID, _LAST = (int(kind) for kind in StepType)


@dataclass(slots=True)
class Choice:
    """An action of a lane, and all that it was chosen by."""

    observation: list[np.ndarray]
    """Leaves."""
    action: list[np.ndarray]
    """Leaves, as the policy sampled it."""
    state: list[np.ndarray]
    """Leaves of the policy's hidden state before it chose; none without."""
    first: bool
    """Whether an episode began with the observation."""
    version: int
    """Of the policy."""
    info: list[np.ndarray] | None = None
    """What the policy says about its choice, once it was asked."""


@dataclass(slots=True)
class Row:
    """A time step of a lane on its way to a buffer."""

    lane: int
    """Which."""
    step_type: int
    """See `StepType`."""
    discount: float
    """Continuation."""
    observation: list[np.ndarray]
    """Leaves."""
    reward: np.ndarray
    """One number, or [G] of a team."""
    choice: Choice | None
    """The action that led here; `None` with FIRST."""
    waiting: list[int] = field(default_factory=list)
    """Members of the team whose rewards will still be added; 0 where the lane is one agent's."""


def stacked(rows: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Leaves of several rows, each [n, ...].

    Args:
        rows: leaves of each; at least one row.
    """
    return [np.stack(leaf) for leaf in zip(*rows, strict=True)]


def unstacked(leaves: Sequence[Any], count: int) -> list[list[np.ndarray]]:
    """Undoes `stacked`.

    Args:
        leaves: from it.
        count: n.
    """
    arrays = [np.asarray(leaf) for leaf in leaves]
    return [[array[row] for array in arrays] for row in range(count)]


def pack_choices(choices: Sequence[Choice]) -> dict[str, Any]:
    """Choices as JSON values and a few arrays.

    Args:
        choices: any number.
    """
    reported = [choice for choice in choices if choice.info is not None]
    return {
        **{name: [getattr(choice, name) for choice in choices] for name in ("first", "version")},
        "told": [choice.info is not None for choice in choices],
        **{name: stacked([getattr(choice, name) for choice in choices]) for name in ("observation", "action", "state")},
        "info": stacked([choice.info or [] for choice in reported]),
    }


def unpack_choices(packed: Mapping[str, Any]) -> list[Choice]:
    """Undoes `pack_choices`.

    Args:
        packed: from it.
    """
    nests = (unstacked(packed[name], len(packed["first"])) for name in ("observation", "action", "state"))
    infos = iter(unstacked(packed["info"], sum(packed["told"])))
    told = (next(infos) if reported else None for reported in packed["told"])
    return [Choice(*values) for values in zip(*nests, packed["first"], packed["version"], told, strict=True)]


def pack_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows as JSON values and a few arrays.

    Args:
        rows: any number.
    """
    return {
        **{name: [getattr(row, name) for row in rows] for name in ("lane", "step_type", "discount", "waiting")},
        "chosen": [row.choice is not None for row in rows],
        "observation": stacked([row.observation for row in rows]),
        "reward": stacked([[row.reward] for row in rows]),
        "choices": pack_choices([row.choice for row in rows if row.choice is not None]),
    }


def unpack_rows(packed: Mapping[str, Any]) -> list[Row]:
    """Undoes `pack_rows`.

    Args:
        packed: from it.
    """
    plain = (packed[name] for name in ("lane", "step_type", "discount"))
    observations = unstacked(packed["observation"], len(packed["lane"]))
    rewards = (np.array(reward) for (reward,) in unstacked(packed["reward"], len(packed["lane"])))
    choices = iter(unpack_choices(packed["choices"]))
    chosen = (next(choices) if reported else None for reported in packed["chosen"])
    waiting = map(list, packed["waiting"])
    return [Row(*values) for values in zip(*plain, observations, rewards, chosen, waiting, strict=True)]


class MappedPolicy:
    """A policy that acts for the agents that are mapped to it in B environments.

    A lane is an agent of an environment, or the team of an environment. `take` gives it what has happened; `act`
    chooses for the lanes that are to act.

    Args:
        policy_spec: for whom.
        num_envs: B.
        delayed: whether rewards come late.

    Raises:
        ConfigError: the policy has to be told rewards while it acts.
    """

    def __init__(self, policy: Policy, policy_spec: PolicySpec, num_envs: int, *, delayed: bool) -> None:
        if policy.reads_reward:
            raise ConfigError(
                f"a {type(policy).__name__} has to be told the reward of each step while it acts, and those of agents "
                "may come late; let these agents learn by another algorithm"
            )
        self.policy, self.policy_spec, self.num_envs, self._delayed = policy, policy_spec, num_envs, delayed
        self.num_lanes = num_envs * policy_spec.lanes_per_env
        self._slot = {name: slot for slot, name in enumerate(policy_spec.agents)}
        self._member_dtypes = leaf_dtypes(policy_spec.member.observation)
        self._state_dtypes = leaf_dtypes(policy_spec.state_spec) if policy_spec.state_spec is not None else []
        self._alive_leaf = list(spec_leaves(policy_spec.observation_spec)).index("alive") if policy_spec.team else -1
        self._zero_action = _zeros(policy.raw_action_spec)
        self.begin()

    @functools.cached_property
    def _random(self) -> RandomPolicy:
        return RandomPolicy.of_raw_actions(self.policy)

    def begin(self) -> None:
        """Forgets all running episodes."""
        self.state: Any = self.policy.initial_state(self.num_lanes)
        self.due: dict[int, tuple[list[np.ndarray], bool]] = {}
        """By lane, what it sees and whether its episode begins."""
        self.taken: dict[int, Choice] = {}
        """By lane, the action whose outcome is not known yet."""
        self._running: list[set[str]] = [set() for _ in range(self.num_envs)]
        self._seen: list[list[Any]] = [self._unseen() for _ in range(self.num_envs)] if self.policy_spec.team else []
        self._unrewarded: dict[tuple[int, str], deque[tuple[Row, int]]] = defaultdict(deque)
        self._early: dict[tuple[int, str], deque[float]] = defaultdict(deque)

    def forget(self, env: int) -> None:
        """Forgets the running episode of one environment, which broke off.

        Args:
            env: its number.
        """
        width = self.policy_spec.lanes_per_env
        for lane in range(env * width, (env + 1) * width):
            self.due.pop(lane, None)
            self.taken.pop(lane, None)
        self._running[env] = set()
        for waiting in (self._unrewarded, self._early):
            for name in self.policy_spec.agents:
                waiting.pop((env, name), None)

    def _unseen(self) -> list[Any]:
        return [neutral(self.policy_spec.member.observation) for _ in self.policy_spec.agents]

    # -- what happened

    def take(self, env: int, outcome: MultiAgentStep, global_state: Any = None) -> list[Row]:
        """Hands the parts of a step to the lanes of an environment.

        Args:
            env: its number.
            outcome: that it has come to.
            global_state: of the environment, where the policy sees it.

        Returns:
            New rows, at most one for each lane. Rewards that come late are added to rows of this and earlier calls.
        """
        mine = {name: step for name, step in outcome.time_steps.items() if name in self._slot}
        if self.policy_spec.team:
            rows = self._team_rows(env, mine, global_state, outcome.next_agents)
        else:
            rows = self._rows(env, mine)
        if self._delayed:
            self._pay(env, outcome.late_rewards)
        return rows

    def _rows(self, env: int, mine: Mapping[str, TimeStep]) -> list[Row]:
        rows: list[Row] = []
        for name, step in mine.items():
            lane, kind = env * len(self.policy_spec.agents) + self._slot[name], int(step.step_type)
            leaves = self._leaves(step.observation, self.policy_spec.member.observation, self._member_dtypes)
            reward = np.array(step.reward, np.float32)
            row = Row(lane, kind, float(step.discount), leaves, reward, self.taken.pop(lane, None))
            if self._delayed and kind != _FIRST:
                self._expect(env, name, row, 0)
            if kind != _LAST:
                self.due[lane] = leaves, kind == _FIRST
            rows.append(row)
        return rows

    def _team_rows(
        self, env: int, mine: Mapping[str, TimeStep], global_state: Any, next_agents: Collection[str] | None
    ) -> list[Row]:
        if not mine:
            return []
        running, seen = self._running[env], self._seen[env]
        begins = not running
        if begins:
            seen[:] = self._unseen()
        reward, alive, cut = np.zeros((3, len(seen)), np.float32)
        for name, step in mine.items():
            slot = self._slot[name]
            seen[slot] = copied(step.observation)
            if step.step_type == _LAST:
                running.discard(name)
                cut[slot] = float(step.discount > 0)
            else:
                running.add(name)
                alive[slot] = 1
            reward[slot] = float(step.reward)
        kind = _FIRST if begins else _MID if running else _LAST
        due = cut
        if next_agents is not None and self.policy.one_value:
            acts_next = cut * [name in next_agents for name in self.policy_spec.agents]
            due = acts_next if acts_next.any() else cut  # else somebody of another team acts next
        leaves = self._team_leaves(seen, due if kind == _LAST else alive, global_state)
        row = Row(env, kind, float(kind != _LAST or cut.any()), leaves, reward, self.taken.pop(env, None))
        for name, step in mine.items():
            if self._delayed and step.step_type != _FIRST:
                self._expect(env, name, row, self._slot[name])
        if alive.any():
            self.due[env] = leaves, begins
        elif kind != _LAST:  # no agent acts now: the next row follows no choice of the policy
            self.taken[env] = self.no_choice(leaves, begins)
        return [row]

    def _team_leaves(self, seen: Sequence[Any], alive: np.ndarray, global_state: Any) -> list[np.ndarray]:
        spec, member = self.policy_spec.observation_spec, self.policy_spec.member
        leaves = [*team_leaves(member, list(seen), spec["observation"]), alive]
        if ACTION_MASK in spec:  # agents that do not act may do anything
            masks = [one[ACTION_MASK] for one in seen]
            masks = [mask if alive[slot] and np.any(mask) else np.ones_like(mask) for slot, mask in enumerate(masks)]
            leaves.append(np.concatenate(masks).astype(np.int8))
        if "global_state" in spec:
            leaves += self._leaves(global_state, spec["global_state"], self._state_dtypes)
        return leaves

    def no_choice(self, leaves: list[np.ndarray], first: bool) -> Choice:
        """The action of a lane where none is taken.

        Args:
            leaves: of the observation.
            first: whether an episode begins with it.
        """
        state = _zeros(self.policy.state_spec) if self.policy.state_spec else []
        return Choice(leaves, self._zero_action, state, first, self.policy.version)

    @staticmethod
    def _leaves(value: Any, spec: Any, dtypes: Sequence[np.dtype]) -> list[np.ndarray]:
        return [np.array(leaf, dtype) for leaf, dtype in zip(flatten(value, spec), dtypes, strict=True)]

    # -- late rewards: the k-th reward of an agent belongs to its k-th action, whose outcome is its k-th later row

    def _expect(self, env: int, name: str, row: Row, slot: int) -> None:
        row.waiting.append(slot)
        self._unrewarded[env, name].append((row, slot))

    def _pay(self, env: int, late_rewards: Mapping[str, Sequence[float]]) -> None:
        for name in self.policy_spec.agents:
            early, rows = self._early[env, name], self._unrewarded[env, name]
            early.extend(late_rewards.get(name, ()))
            while early and rows:
                row, slot = rows.popleft()
                row.reward[slot if self.policy_spec.team else ...] += early.popleft()
                row.waiting.remove(slot)

    # -- acting

    def act(
        self, phase: Phase, *, deterministic: bool = False, random: bool = False, actions: list[dict[str, Any]]
    ) -> None:
        """Chooses for every lane that is to act.

        Args:
            phase: what the actions are for.
            deterministic: whether to take the most probable or most valuable action.
            random: whether actions are drawn uniformly.
            actions: of every environment, by agent; those of this policy are added.
        """
        if not self.due:
            return
        lanes = np.fromiter(self.due, np.int64, len(self.due))
        seen = list(self.due.values())
        observation = self.batch([leaves for leaves, _ in seen])
        kinds = torch.tensor([_FIRST if first else _MID for _, first in seen], dtype=torch.int32)
        time_step = TimeStep(step_type=kinds, observation=observation)
        state = self.state
        if type(state) is not tuple:
            state = self.policy.begun(tree_select(state, lanes), time_step.first)
        step = self.policy.act(time_step, state, phase=phase, deterministic=deterministic)
        if random:
            step = self._random.instead(self.policy, time_step, step)
        action = step.action
        if type(self.state) is not tuple:
            self.state = put_rows(self.state, lanes, step.state)
        taken = [np.asarray(leaf) for leaf in flatten(action, self.policy.raw_action_spec)]
        done = [np.asarray(leaf) for leaf in flatten(self.policy.env_action(action), self.policy_spec.action_spec)]
        memory = [] if type(state) is tuple else [np.asarray(leaf) for leaf in flatten(state, self.policy.state_spec)]
        version, width = self.policy.version, self.policy_spec.lanes_per_env
        for row, (lane, (leaves, first)) in enumerate(self.due.items()):
            mine = [leaf[row] for leaf in taken]
            self.taken[lane] = Choice(leaves, mine, [leaf[row] for leaf in memory], first, version)
            members = self.policy_spec.member_actions(done, row)
            if self.policy_spec.team:
                alive = leaves[self._alive_leaf]
                actions[lane] |= {name: members[slot] for name, slot in self._slot.items() if alive[slot]}
            else:
                actions[lane // width][self.policy_spec.agents[lane % width]] = members[0]
        self.due = {}

    def batch(self, rows: Sequence[list[np.ndarray]]) -> Any:
        """Observations of several lanes as the policy takes them.

        Args:
            rows: leaves of each.

        Returns:
            Tensors [n, ...], in a `Batch` where the observation is a nest.
        """
        return to_batched(stacked(rows), self.policy_spec.observation_spec)

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Lanes that are to act, actions whose outcomes are open, and the policy's hidden state."""
        due = {
            "lanes": list(self.due),
            "first": [first for _, first in self.due.values()],
            "observation": stacked([leaves for leaves, _ in self.due.values()]),
        }
        member = self.policy_spec.member.observation
        return {
            "memory": self.state,
            "due": due,
            "taken": {"lanes": list(self.taken), "choices": pack_choices(list(self.taken.values()))},
            "running": [sorted(running) for running in self._running],
            "seen": stacked([self._leaves(one, member, self._member_dtypes) for team in self._seen for one in team]),
            "early": [[env, name, list(rewards)] for (env, name), rewards in self._early.items() if rewards],
        }

    def load_state_dict(self, state: Mapping[str, Any], waiting: Iterable[Row]) -> None:
        """Puts back what `state_dict` gave.

        Args:
            state: of one with the same policy spec.
            waiting: rows whose rewards are still to come, those of a lane in order.
        """
        self.begin()
        self.state = state["memory"]
        due = state["due"]
        seen = zip(unstacked(due["observation"], len(due["lanes"])), due["first"], strict=True)
        self.due = dict(zip(due["lanes"], seen, strict=True))
        self.taken = dict(zip(state["taken"]["lanes"], unpack_choices(state["taken"]["choices"]), strict=True))
        self._running = [set(names) for names in state["running"]]
        count, member = len(self.policy_spec.agents), self.policy_spec.member.observation
        for number, leaves in enumerate(unstacked(state["seen"], len(self._seen) * count)):
            self._seen[number // count][number % count] = unflatten(iter(leaves), member)
        for env, name, rewards in state["early"]:
            self._early[env, name] = deque(rewards)
        for row in waiting:
            for slot in row.waiting:
                env, member = (row.lane, slot) if self.policy_spec.team else divmod(row.lane, count)
                self._unrewarded[env, self.policy_spec.agents[member]].append((row, slot))


def _zeros(spec: Any) -> list[np.ndarray]:
    return [np.zeros(leaf.shape, numpy_dtype(leaf.dtype)) for leaf in spec_leaves(spec).values()]
