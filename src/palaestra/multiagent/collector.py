"""`MultiAgentCollector`: many agents and many policies in the place of a collector."""

import time
from collections.abc import Collection, Mapping
from typing import Any

import torch

from palaestra.algorithms import Algorithm
from palaestra.buffers import ReplayBuffer
from palaestra.core import ConfigError, DataSource
from palaestra.multiagent.acting import Actor
from palaestra.multiagent.env import Moment
from palaestra.multiagent.envs import Worlds
from palaestra.multiagent.evaluation import WorldEpisodes
from palaestra.multiagent.mapping import Role, require_policies
from palaestra.multiagent.stream import Stream
from palaestra.policies import Phase, Policy
from palaestra.rollout import CollectInfo, Episode, Quota, buffer_for

__all__ = ["MultiAgentCollector", "recording_buffer"]

_FLUSH_EPISODES = 32


class MultiAgentCollector:
    """Lets several policies act in worlds, and stores for each what its agents experience.

    Every algorithm has an ordinary buffer of its own, whose lanes are its agents in each world, or whole teams. An env
    step is one moment of one world, whoever acts in it. It does for `Trainer` what `Collector` does for one agent.

    Args:
        worlds: where to act; reset at the first use.
        roles: by policy name, from `assign_roles`.
        actors: by policy name: an algorithm, which gets data, or a policy that only acts, such as a rule.
        fragments: whether buffers only hold what is on its way to those that are learned from, see `buffer_for`.
        records: buffers for what agents of policies experience which only act, by name; see `recording_buffer`.

    Raises:
        ConfigError: roles and actors have different names, or an actor does not fit its role.

    Examples:
        >>> from palaestra import PPO
        >>> from palaestra.multiagent import Meeting, assign_roles
        >>> worlds = Worlds([Meeting, Meeting], lane_seeds=[1, 2])
        >>> roles = assign_roles(worlds.agents, {"*": "walkers"})
        >>> ppo = PPO(roles["walkers"].observation_spec, roles["walkers"].action_spec)
        >>> collector = MultiAgentCollector(worlds, roles, {"walkers": ppo})
        >>> collector.unroll(2).env_steps, collector.buffers["walkers"].num_lanes
        (2, 6)
    """

    def __init__(
        self,
        worlds: Worlds,
        roles: Mapping[str, Role],
        actors: Mapping[str, Algorithm[Any] | Policy],
        *,
        fragments: bool = False,
        records: Mapping[str, ReplayBuffer] | None = None,
    ) -> None:
        policies = {name: one.policy if isinstance(one, Algorithm) else one for name, one in actors.items()}
        require_policies(roles, policies)
        self.worlds, self.roles = worlds, roles
        self.env_steps = 0
        """Moments executed so far, over all worlds."""
        self.num_lanes = worlds.batch_size
        """Worlds stepped side by side."""
        self._actors = {
            name: Actor(policies[name], role, worlds.batch_size, delayed=worlds.delayed) for name, role in roles.items()
        }
        self._streams: dict[str, Stream] = {}
        for name, one in actors.items():
            if isinstance(one, Algorithm):
                actor, role = self._actors[name], roles[name]
                specs = {"observation_spec": role.observation_spec, "reward_spec": role.reward_spec}
                buffer = buffer_for(one, actor.num_lanes, fragments=fragments, **specs)
                self._streams[name] = Stream(actor, buffer, 1 if fragments else one.plan.window)
            elif records and name in records:
                self._streams[name] = Stream(self._actors[name], records[name])
        self._rules = [name for name, one in actors.items() if not isinstance(one, Algorithm)]
        self._sources: dict[str, DataSource] = {name: stream.buffer for name, stream in self._streams.items()}
        self._episodes = WorldEpisodes(worlds.batch_size, roles)
        self._sees_all = any(role.state_spec is not None for role in roles.values())
        self._began, self._pausing = False, False
        self._over = [True] * worlds.batch_size
        self._quota = Quota()

    # -- as the trainer sees it

    @property
    def buffers(self) -> dict[str, ReplayBuffer]:
        """The buffer of every policy that learns, and of those that are recorded."""
        return {name: stream.buffer for name, stream in self._streams.items()}

    @property
    def sources(self) -> dict[str, DataSource]:
        """What each policy learns from."""
        return self._sources

    @property
    def unfinished(self) -> bool:
        """Whether an unroll was ended by `pause` before it had all its moments."""
        return self._quota.left > 0

    def pause(self) -> None:
        """Ends a running unroll after its moment; the next `unroll` goes on with it."""
        self._pausing = True

    def unroll(self, length: float, *, random: Collection[str] = ()) -> CollectInfo:
        """Steps every world so many moments; a fraction is met on average over calls.

        Args:
            length: moments of each world, beginnings of episodes included.
            random: names of the policies that act at random.

        Raises:
            ConfigError: a policy is to act at random although its buffer keeps what it says about its choices.
            PalaestraError: a world failed, or emitted what it may not.
        """
        if bad := [name for name in random if name in self._streams and self._streams[name].buffer.info_fields]:
            raise ConfigError(f"random actions have nothing that {', '.join(bad)} would say about them")
        began = time.perf_counter()
        quota = self._quota
        quota.begin(length)
        self._pausing = False
        info = CollectInfo(0)
        with torch.inference_mode():
            while quota.left and not self._pausing:
                self._step(info, random)
                quota.left -= 1
                info.rows += 1
            if not quota.left:
                info.rows_of = {name: stream.complete() for name, stream in self._streams.items()}
        if len(self._episodes) >= _FLUSH_EPISODES:
            info.episodes = self._episodes.finished()
        info.total_s = time.perf_counter() - began
        return info

    def drain(self) -> list[Episode]:
        """Episodes that have ended and were not reported yet."""
        return self._episodes.finished()

    # -- stepping

    def _step(self, info: CollectInfo, random: Collection[str]) -> None:
        """One moment of every world."""
        if not self._began or self.worlds.interrupted:
            self._start(info)
            return
        begin = time.perf_counter()
        actions: list[dict[str, Any]] = [{} for _ in range(self.num_lanes)]
        for name, actor in self._actors.items():
            actor.act(Phase.COLLECT, random=name in random, actions=actions)
        acted = time.perf_counter()
        env_steps = self._over.count(False)
        moments = self.worlds.step(actions)
        for world in self.worlds.restarted:
            env_steps -= not self._over[world]  # the step was not executed
            self._break_off(world)
        self.env_steps += env_steps
        info.env_steps += env_steps
        info.inference_s += acted - begin
        info.env_s += time.perf_counter() - acted
        self._take(moments)

    def _break_off(self, world: int) -> None:
        """A world was restarted: buffers see a fragment that ends with no LAST."""
        for actor in self._actors.values():
            actor.forget(world)
        for stream in self._streams.values():
            stream.forget(world)
        self._episodes.abandon(world)

    def _start(self, info: CollectInfo) -> None:
        """Begins new episodes; running ones break off, which buffers see as fragments that end with no LAST."""
        for actor in self._actors.values():
            actor.begin()
        for stream in self._streams.values():
            stream.begin()
        for world in range(self.num_lanes):
            self._episodes.abandon(world)
        begin = time.perf_counter()
        moments = self.worlds.reset()
        info.env_s += time.perf_counter() - begin
        self.worlds.interrupted, self._began = False, True
        self._take(moments)

    def _take(self, moments: list[Moment]) -> None:
        states = self.worlds.global_state() if self._sees_all else [None] * self.num_lanes
        self._over = [moment.over for moment in moments]
        for world, moment in enumerate(moments):
            self._episodes.add(world, moment)
        for name, actor in self._actors.items():
            rows = [row for world, moment in enumerate(moments) for row in actor.take(world, moment, states[world])]
            if name in self._streams:
                self._streams[name].put(rows)

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """Where collection is: worlds, policies' memories, rows on their way, running episodes."""
        state: dict[str, Any] = {
            "env_steps": self.env_steps,
            **self._quota.state(),
            "began": self._began,
            "over": self._over,
            "episodes": self._episodes.state(),
            "rules": {name: self._actors[name].policy.generator.get_state() for name in self._rules},
        }
        if self._began:
            state["worlds"] = self.worlds.state_dict()
            state["streams"] = {name: stream.state() for name, stream in self._streams.items()}
            state["actors"] = {n: a.state_dict() for n, a in self._actors.items() if n not in self._streams}
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of a collector with the same worlds and roles.
        """
        self.env_steps = state["env_steps"]
        self._quota.load_state(state)
        self._began, self._over = state["began"], list(state["over"])
        self._episodes.load_state(state["episodes"])
        for name, generator in state["rules"].items():
            self._actors[name].policy.generator.set_state(generator)
        if self._began:
            self.worlds.load_state_dict(state["worlds"])
            for name, stream in self._streams.items():
                stream.load_state(state["streams"][name])
            for name, saved in state["actors"].items():
                self._actors[name].load_state_dict(saved, ())


def recording_buffer(policy: Policy, role: Role, num_worlds: int) -> ReplayBuffer:
    """A buffer without bounds for what the agents of a policy experience, with a lane for each, or for each team.

    Args:
        policy: that acts.
        role: of the policy.
        num_worlds: B.
    """
    return ReplayBuffer(
        None,
        num_worlds * role.lanes_per_world,
        observation_spec=role.observation_spec,
        action_spec=policy.raw_action_spec,
        reward_spec=role.reward_spec,
        state_spec=policy.state_spec or None,
    )
