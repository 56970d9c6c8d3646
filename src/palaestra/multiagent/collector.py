"""`MultiAgentCollector`: many agents and many policies instead of a collector."""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from palaestra.algorithms import Algorithm
from palaestra.buffers import ReplayBuffer
from palaestra.core import ConfigError, DataSource
from palaestra.multiagent.acting import MappedPolicy
from palaestra.multiagent.env import MultiAgentStep
from palaestra.multiagent.envs import MultiAgentEnvs
from palaestra.multiagent.evaluation import MultiAgentEpisodes
from palaestra.multiagent.mapping import PolicySpec, SelfPlayConfig, require_policies
from palaestra.multiagent.self_play import SelfPlay
from palaestra.multiagent.stream import Stream
from palaestra.policies import Phase, Policy
from palaestra.rollout import CollectInfo, Episode, Quota, buffer_for, episode_discount

__all__ = ["MultiAgentCollector"]

_FLUSH_EPISODES = 32


class MultiAgentCollector:
    """Lets several policies act in environments, and stores for each what its agents experience.

    Every algorithm has an ordinary buffer of its own, whose lanes are its agents in each environment, or whole teams.
    An env step is one step of one environment. It does for `Trainer` what `Collector` does for one agent.

    Args:
        envs: where to act; reset at the first use.
        policy_specs: by policy name, from `assign_policies`.
        algorithms: by policy name: an algorithm, which gets data, or a policy that only acts, such as a rule.
        fragments: whether buffers only hold what is on its way to those that are learned from, see `buffer_for`.
        records: buffers for what agents of policies experience which only act, by name.
        self_play: how large a pool of earlier selves plays against the policy; none by default.
        compression: of pictures in the buffers, see `RowOptions`.

    Raises:
        ConfigError: specs and algorithms have different names, a policy does not fit its spec, or cannot play itself.

    Examples:
        >>> from palaestra import PPO
        >>> from palaestra.multiagent import Meeting, assign_policies
        >>> envs = MultiAgentEnvs([Meeting, Meeting], lane_seeds=[1, 2])
        >>> policy_specs = assign_policies(envs.agents, {"*": "walkers"})
        >>> ppo = PPO(policy_specs["walkers"].observation_spec, policy_specs["walkers"].action_spec)
        >>> collector = MultiAgentCollector(envs, policy_specs, {"walkers": ppo})
        >>> collector.unroll(2).env_steps, collector.buffers["walkers"].num_lanes
        (2, 6)
    """

    def __init__(
        self,
        envs: MultiAgentEnvs,
        policy_specs: Mapping[str, PolicySpec],
        algorithms: Mapping[str, Algorithm[Any, Any] | Policy],
        *,
        fragments: bool = False,
        records: Mapping[str, ReplayBuffer] | None = None,
        self_play: SelfPlayConfig | None = None,
        compression: str = "none",
    ) -> None:
        policies = {name: one.policy if isinstance(one, Algorithm) else one for name, one in algorithms.items()}
        require_policies(policy_specs, policies)
        self.envs, self.policy_specs = envs, policy_specs
        self.env_steps = 0
        """Steps executed so far, over all environments."""
        self.deterministic = False
        """Whether policies take their most probable or most valuable actions, and do not explore."""
        self.num_lanes = envs.batch_size
        """Environments stepped side by side."""
        self._mapped = {
            name: MappedPolicy(policies[name], spec, envs.batch_size, delayed=envs.delayed)
            for name, spec in policy_specs.items()
        }
        self._streams: dict[str, Stream] = {}
        for name, one in algorithms.items():
            if isinstance(one, Algorithm):
                mapped, spec = self._mapped[name], policy_specs[name]
                specs: Any = {"observation_spec": spec.observation_spec, "reward_spec": spec.reward_spec}
                more: Any = {"fragments": fragments, "compression": compression}
                buffer = buffer_for(one, mapped.num_lanes, **more, **specs)
                self._streams[name] = Stream(mapped, buffer)
            elif records and name in records:
                self._streams[name] = Stream(self._mapped[name], records[name])
        self._rules = [name for name, one in algorithms.items() if not isinstance(one, Algorithm)]
        learners = [(name, one.plan) for name, one in algorithms.items() if isinstance(one, Algorithm)]
        self._replaying = [name for name, plan in learners if plan.data == "replay"]
        self._rows_of: dict[str, int] = {}  # in the newest unroll that had rows
        self.buffers: dict[str, ReplayBuffer] = {name: stream.buffer for name, stream in self._streams.items()}
        """The buffer of every policy that learns, and of those that are recorded."""
        self.sources: dict[str, DataSource] = {**self.buffers}
        """What each policy learns from."""
        discounts = {name: episode_discount(one) for name, one in algorithms.items() if isinstance(one, Algorithm)}
        self._episodes = MultiAgentEpisodes(envs.batch_size, policy_specs, discounts)
        self._self_play: SelfPlay | None = None
        if self_play is not None and self_play.pool_size:
            self_play.require(policy_specs)
            ((name, spec),) = policy_specs.items()
            lane_seeds = envs.lane_state()["lane_seed"]
            self._self_play = SelfPlay(self_play, policies[name], spec, lane_seeds, delayed=envs.delayed)
        self._sees_all = any(spec.state_spec is not None for spec in policy_specs.values())
        envs.reads_state |= self._sees_all
        self._began, self._pausing = False, False
        self._over = [True] * envs.batch_size
        self._quota = Quota()

    def set_env_attr(self, name: str, value: Any, lanes: Sequence[int] | None = None) -> None:
        """Changes an attribute of the environments; see `MultiAgentEnvs.set_attr`.

        Args:
            value: a JSON value.
            lanes: which environments; all by default.
        """
        self.envs.set_attr(name, value, lanes)

    def get_env_attr(self, name: str, lanes: Sequence[int] | None = None) -> list[Any]:
        """What an attribute of the environments is; see `MultiAgentEnvs.get_attr`.

        Args:
            lanes: which environments; all by default.
        """
        return self.envs.get_attr(name, lanes)

    # -- as the trainer sees it

    @property
    def unfinished(self) -> bool:
        """Whether an unroll was ended by `pause` before it had all its steps."""
        return self._quota.left > 0

    def pause(self) -> None:
        """Ends a running unroll after its step; the next `unroll` continues it."""
        self._pausing = True

    def unroll(self, length: float, *, random: Collection[str] = ()) -> CollectInfo:
        """Steps every environment so many steps; a fraction is met on average over calls.

        Args:
            length: steps of each environment, beginnings of episodes included.
            random: names of the policies that act at random.

        Raises:
            ConfigError: a policy is to act at random although its buffer keeps what it says about its choices.
            PalaestraError: an environment failed, or emitted what it may not.
        """
        if bad := [name for name in random if name in self.buffers and self.buffers[name].info_fields]:
            raise ConfigError(f"random actions have nothing that {', '.join(bad)} would say about them")
        began = time.perf_counter()
        quota = self._quota
        quota.begin(length)
        self._pausing = False
        info = CollectInfo(0)
        if self._self_play is not None:
            self._self_play.grow()
        with torch.inference_mode():
            while quota.left and not self._pausing:
                self._step(info, random)
                quota.left -= 1
                info.rows += 1
            if not quota.left and info.rows:
                self._rows_of = {name: stream.complete() for name, stream in self._streams.items()}
                info.rows_of = self._rows_of
            elif not quota.left:  # between two rows: who replays goes on as after the one before
                info.rows_of = {name: self._rows_of.get(name, 0) for name in self._replaying}
        # not where a signal cut the unroll: a run that goes on there reports the same episodes at the same steps
        if not self.unfinished and len(self._episodes) >= _FLUSH_EPISODES:
            info.episodes = self._episodes.finished()
        info.total_s = time.perf_counter() - began
        return info

    def opponents(self) -> dict[int, list[torch.Tensor]]:
        """Weights of the pool of self-play, by policy version; see `SelfPlay.weights`. Without self-play nothing."""
        return {} if self._self_play is None else self._self_play.weights

    @property
    def not_learning(self) -> list[Policy]:
        """Policies that act and do not learn: rules, and the snapshots of self-play."""
        snapshots = [] if self._self_play is None else self._self_play.policies
        return [*(self._mapped[name].policy for name in self._rules), *snapshots]

    def adopt(self, pool: Mapping[int, Sequence[torch.Tensor]]) -> None:
        """Takes over the pool of self-play of another collector.

        Args:
            pool: from its `opponents`.
        """
        if self._self_play is not None and pool:
            self._self_play.adopt(pool)

    def drain(self) -> list[Episode]:
        """Episodes that have ended and were not reported yet."""
        return self._episodes.finished()

    # -- stepping

    def _step(self, info: CollectInfo, random: Collection[str]) -> None:
        """One step of every environment."""
        if not self._began or self.envs.interrupted:
            self._start(info)
            return
        begin = time.perf_counter()
        actions: list[dict[str, Any]] = [{} for _ in range(self.num_lanes)]
        for name, mapped in self._mapped.items():
            mapped.act(Phase.COLLECT, deterministic=self.deterministic, random=name in random, actions=actions)
        if self._self_play is not None:
            self._self_play.act(actions)
        acted = time.perf_counter()
        env_steps = self._over.count(False)
        outcomes = self.envs.step(actions)
        for env in self.envs.restarted:
            env_steps -= not self._over[env]  # the step was not executed
            self._break_off(env)
        self.env_steps += env_steps
        info.env_steps += env_steps
        info.inference_s += acted - begin
        info.env_s += time.perf_counter() - acted
        self._take(outcomes)

    def _break_off(self, env: int) -> None:
        """An environment was restarted: buffers see a fragment that ends with no LAST."""
        for mapped in self._mapped.values():
            mapped.forget(env)
        self._over[env] = True
        for stream in self._streams.values():
            stream.forget(env)
        if self._self_play is not None:
            self._self_play.forget(env)
        self._episodes.abandon(env)

    def _start(self, info: CollectInfo) -> None:
        """Begins new episodes; running ones break off, which buffers see as fragments that end with no LAST."""
        for mapped in self._mapped.values():
            mapped.begin()
        for env in range(self.num_lanes):
            self._break_off(env)
        begin = time.perf_counter()
        outcomes = self.envs.reset()
        info.env_s += time.perf_counter() - begin
        self.envs.interrupted, self._began = False, True
        self._take(outcomes)

    def _take(self, outcomes: list[MultiAgentStep]) -> None:
        states = self.envs.global_state() if self._sees_all else [None] * self.num_lanes
        began, self._over = self._over, [outcome.over for outcome in outcomes]
        if self._self_play is not None:
            outcomes = self._seated(self._self_play, outcomes, began)
        else:
            for env, outcome in enumerate(outcomes):
                self._episodes.add(env, outcome)
        for name, mapped in self._mapped.items():
            rows = [row for env, outcome in enumerate(outcomes) for row in mapped.take(env, outcome, states[env])]
            if name in self._streams:
                self._streams[name].put(rows)

    def _seated(
        self, self_play: SelfPlay, outcomes: list[MultiAgentStep], began: Sequence[bool]
    ) -> list[MultiAgentStep]:
        """The steps of the agents that the policy plays itself; its snapshots get those of theirs."""
        if any(began):
            lanes = self.envs.lane_state()
            for env, begins in enumerate(began):
                if begins:
                    self_play.seat(env, lanes["lane_seed"][env], lanes["episode"][env])
        own: list[MultiAgentStep] = []
        for env, outcome in enumerate(outcomes):
            mine, told = self_play.take(env, outcome)
            self._episodes.add(env, outcome._replace(info={**outcome.info, **told}), self_play.seats[env])
            own.append(mine)
        return own

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """Where collection is: environments, policies' memories, rows on their way, running episodes."""
        state: dict[str, Any] = {
            "env_steps": self.env_steps,
            **self._quota.state(),
            "rows_of": self._rows_of,
            "began": self._began,
            "over": self._over,
            "episodes": self._episodes.state(),
            "rules": {name: self._mapped[name].policy.generator.get_state() for name in self._rules},
        }
        if self._self_play is not None:
            state["self_play"] = self._self_play.state()
        if self._began:
            state["worlds"] = self.envs.state_dict()
            state["streams"] = {name: stream.state() for name, stream in self._streams.items()}
            state["actors"] = {n: a.state_dict() for n, a in self._mapped.items() if n not in self._streams}
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of a collector with the same environments and policies.
        """
        self.env_steps = state["env_steps"]
        self._quota.load_state(state)
        self._rows_of = dict(state.get("rows_of", {}))
        self._began, self._over = state["began"], list(state["over"])
        self._episodes.load_state(state["episodes"])
        for name, generator in state["rules"].items():
            self._mapped[name].policy.generator.set_state(generator)
        if self._self_play is not None and "self_play" in state:
            self._self_play.load_state(state["self_play"])
        if self._began:
            self.envs.load_state_dict(state["worlds"])
            for name, stream in self._streams.items():
                stream.load_state(state["streams"][name])
            for name, saved in state["actors"].items():
                self._mapped[name].load_state_dict(saved, ())
            for env in self.envs.restarted:  # its episode was too long to be replayed
                self._over[env] = True
                self._break_off(env)
