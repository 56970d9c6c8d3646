"""`Collector`: lets a policy act in an environment and stores what happens.

It knows nothing of learning: whoever learns reads the buffer.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch

from palaestra.algorithms import Algorithm
from palaestra.buffers import ReplayBuffer
from palaestra.core import POLICY, ConfigError, DataSource, StepType, TimeStep, to_device, tree_select
from palaestra.core.errors import require_kind
from palaestra.envs import Environment
from palaestra.policies import Phase, Policy, PolicyStep, RandomPolicy, SearchPolicy
from palaestra.rollout import collection
from palaestra.rollout.collection import CollectInfo, EpisodePatience, Quota, episodes_of_lanes
from palaestra.rollout.compiled import CompiledStep, Unroller
from palaestra.rollout.episodes import Episode, EpisodeTracker
from palaestra.rollout.rows import RowWriter, put_rows, require_finite

__all__ = ["Collector"]

_FIRST, _LAST = int(StepType.FIRST), int(StepType.LAST)


class Collector:
    """Steps a policy and a batched environment against each other and appends every row to a buffer.

    Args:
        env: where to act; the collector resets it at its first use.
        policy: how to act, in `Phase.COLLECT`.
        buffer: what rows are appended to, one lane per environment.
        preprocess: changes every time step before it is acted on and stored; of FIRST rows only the observation counts.
        gamma: discount of the episodes' discounted returns; `None` reports none.

    Examples:
        >>> from palaestra import PPO, Collector, EnvConfig, create_environment
        >>> env = create_environment(EnvConfig(name="CartPole-v1", num_envs=2))
        >>> collector = Collector.of(env, PPO(env.observation_spec, env.action_spec))
        >>> collector.collect(n_step=10).env_steps
        10
    """

    def __init__(
        self,
        env: Environment,
        policy: Policy,
        buffer: ReplayBuffer,
        *,
        preprocess: Callable[[TimeStep], TimeStep] | None = None,
        gamma: float | None = None,
    ) -> None:
        if buffer.num_lanes != env.batch_size:
            raise ConfigError(f"the buffer has {buffer.num_lanes} lanes for {env.batch_size} environments")
        if not env.auto_reset:
            raise ConfigError("a collector goes on after the end of an episode; leave out env.auto_reset=False")
        if env.device.type != "cpu" and policy.device.type == "cpu":
            raise ConfigError(
                f"the environments are on {env.device} and the policy is on the CPU: observations would have to come "
                f"back for every action; move the algorithm, with to({str(env.device)!r}) or run.device"
            )
        self.env, self.policy, self.buffer, self.preprocess = env, policy, buffer, preprocess
        self.num_lanes = env.batch_size
        """Environments stepped side by side."""
        self.env_steps = 0
        """Actions executed so far."""
        self.deterministic = False
        """Whether the policy takes its most probable or most valuable actions, and does not explore."""
        self.source: DataSource = buffer
        """What is learned from: the buffer, unless you set a mixture of it with loaded data."""
        self.stepped: Callable[[TimeStep, TimeStep | None], None] | None = None
        """Called after each env step with what was answered, and LAST rows of lanes that began an episode within it."""
        if env.batch_size % (ready := env.num_ready):
            raise ConfigError(
                f"{ready} of {env.batch_size} environments are ready at a time; all are waited for at the "
                "end of an unroll, so num_ready has to divide their number"
            )
        self.tracker = EpisodeTracker(env.batch_size, gamma)
        self._writer = RowWriter(buffer, policy, self.tracker)
        self._time_step: TimeStep | None = None
        self._state: Any = ()
        self.episodes: int | None = None
        """Whole episodes that each environment plays in an unroll, instead of a length."""
        self._quota, self._pausing, self._num_ready = Quota(), False, ready
        self._left = np.zeros(env.batch_size, np.int64)  # [B] episodes that a running collection still needs
        self._apart = False  # lanes stopped at different steps: the next collection begins new episodes
        self._compiled: Unroller | None = None
        self._chance: RandomPolicy | None = None

    @classmethod
    def of(
        cls,
        env: Environment,
        algorithm: Algorithm[Any, Any],
        *,
        complete_episodes_only: bool = False,
        compression: str = "none",
        preprocess: Callable[[TimeStep], TimeStep] | None = None,
    ) -> Self:
        """A collector with the buffer that an algorithm's plan asks for.

        Args:
            env: where to act.
            algorithm: whose policy acts and whose plan sizes the buffer.
            complete_episodes_only: whether only episodes that have ended are learned from.
            compression: of pictures in the buffer, see `RowOptions`.
            preprocess: see the class.

        Raises:
            ConfigError: the plan collects nothing, or environments and algorithm do not fit together.
        """
        require_kind(algorithm, Algorithm, "Collector.of", "an algorithm, such as PPO(...)")
        collection.require_fit(env, algorithm.policy, "Collector.of", changed=preprocess is not None)
        more: Any = {"compression": compression, "complete_episodes_only": complete_episodes_only, **env.row_specs}
        buffer = collection.buffer_for(algorithm, env.batch_size, device=env.device, **more)
        return cls(env, algorithm.policy, buffer, preprocess=preprocess, gamma=collection.episode_discount(algorithm))

    def set_env_attr(self, name: str, value: Any, lanes: Sequence[int] | None = None) -> None:
        """Changes an attribute of the environments; see `Environment.set_attr`.

        Args:
            name: which one.
            value: a JSON value.
            lanes: which environments; all by default.
        """
        self.env.set_attr(name, value, lanes)

    def get_env_attr(self, name: str, lanes: Sequence[int] | None = None) -> list[Any]:
        """What an attribute of the environments is; see `Environment.get_attr`.

        Args:
            name: which one.
            lanes: which environments; all by default.
        """
        return self.env.get_attr(name, lanes)

    def compile(self, graph: Unroller | None = None) -> None:
        """Acts and steps in one compiled graph where the environments are tensors, and as before everywhere else.

        That is for policies that draw actions from one distribution (of PPO, A2C and SAC) or are epsilon-greedy (of DQN
        and PQN), without a memory. The first step then takes seconds longer.

        Args:
            graph: of these environments and this policy, where it is there already.
        """
        if self.preprocess is None:
            self._compiled = graph or CompiledStep.of(self.env, self.policy)

    # -- asking for data

    def collect(
        self, *, n_step: int | None = None, n_episode: int | Iterable[int] | None = None, random: bool = False
    ) -> CollectInfo:
        """Acts until at least so many env steps were executed or episodes have ended.

        Args:
            n_step: env steps, over all environments.
            n_episode: episodes, over all environments; or a number for each environment, which is met exactly: new
                episodes begin, and steps of an environment that has its number are neither stored nor counted. One that
                was dropped (`env.on_fault`) plays no more.
            random: whether actions are drawn uniformly from the action space (or the action mask).

        Raises:
            ConfigError: not exactly one of the two is given, or something else than whole numbers, one of all or for
                each environment.
            NonFiniteError: an observation or reward is NaN or infinite.
        """
        if (n_step is None) == (n_episode is None):
            raise ConfigError(f"collect(n_step={n_step}, n_episode={n_episode}): give exactly one of the two")
        info, began = CollectInfo(0), time.perf_counter()
        self._pausing, num_envs = False, self.env.batch_size
        while n_step is not None and info.env_steps < n_step and not self._pausing:
            self._run(math.ceil((n_step - info.env_steps) / num_envs), info, random)
        asked = None if n_episode is None else episodes_of_lanes(self.env, n_episode)
        patience = EpisodePatience(f"collect(n_episode={n_episode})", num_envs)
        if isinstance(asked, np.ndarray):
            self._begin_episodes(asked)
            self._run_episodes(info, random, patience)
            self._left[:], self._apart = 0, True  # what a signal cut short is not continued
        info.episodes += self.tracker.finished()
        asked = len(info.episodes) + asked if isinstance(asked, int) else 0  # besides those that had ended before
        while len(info.episodes) < asked and not self._pausing:
            self._run(1, info, random)
            ended = self.tracker.finished()
            info.episodes += ended
            patience.look(info.env_steps, ended=bool(ended))
        self._writer.write_log_probs()
        info.total_s = time.perf_counter() - began
        return info

    @property
    def buffers(self) -> dict[str, ReplayBuffer]:
        """The buffer, by the name of the policy."""
        return {POLICY: self.buffer}

    @property
    def sources(self) -> dict[str, DataSource]:
        """What is learned from, by the name of the policy."""
        return {POLICY: self.source}

    def unroll(self, length: float, *, random: Collection[str] = ()) -> CollectInfo:
        """Collects time steps from every environment for one training iteration.

        Args:
            length: time steps from each; a fraction is met on average over calls. Ignored where `episodes` is set.
            random: not empty where actions are drawn uniformly.

        Raises:
            ConfigError: whole episodes are asked for, and the environments cannot play them.
            NonFiniteError: an observation or reward is NaN or infinite.
        """
        info, began, self._pausing = CollectInfo(0), time.perf_counter(), False
        if not self.unfinished:
            self.tracker.begin()
        if self.episodes is not None:
            if not self.unfinished:
                self._begin_episodes(episodes_of_lanes(self.env, [self.episodes] * self.num_lanes))
            asked = f"an unroll of {self.episodes} whole episodes of each environment"
            self._run_episodes(info, bool(random), EpisodePatience(asked, self.num_lanes))
        elif rows := self._quota.begin(length):
            self._quota.left -= self._run(rows, info, bool(random))
        if not self.unfinished:
            self._writer.write_log_probs()
            # only here: a run that goes on where a signal cut the unroll reports the same episodes at the same steps
            info.episodes = self.tracker.reported()
        info.total_s = time.perf_counter() - began
        return info

    def pause(self) -> None:
        """Ends a running unroll after its step, from a signal handler say; the next `unroll` continues it."""
        self._pausing = True

    @property
    def unfinished(self) -> bool:
        """Whether an unroll was ended by `pause` before it had all its rows."""
        return self._quota.left > 0 if self.episodes is None else bool(self._left.any())

    # -- stepping

    def _start(self) -> TimeStep:
        """Begins new episodes; running ones break off, which the buffer sees as fragments that end with no LAST."""
        self._writer.write_log_probs()  # opening completes ended lanes by a row more than were counted
        time_step = self._seen(self.env.reset())
        self.env.interrupted = self._apart = False
        self._state = self.policy.initial_state(self.env.batch_size)
        self.buffer.open(time_step)
        self.tracker.add(time_step)
        return time_step

    def current(self) -> TimeStep:
        """The newest time step of every environment; begins episodes where there is none to go on with."""
        if self._time_step is None or self.env.interrupted or self._apart:
            self._time_step = self._start()
        return self._time_step

    def _seen(self, time_step: TimeStep) -> TimeStep:
        return time_step if self.preprocess is None else self.preprocess(time_step)

    def _act(self, time_step: TimeStep, state: Any, random: bool) -> PolicyStep:
        step = self.policy.act(time_step, state, phase=Phase.COLLECT, deterministic=self.deterministic)
        if not random:
            return step
        self._chance = self._chance or RandomPolicy.of_raw_actions(self.policy)
        return self._chance.instead(self.policy, time_step, step)

    def _run(self, rows: int, info: CollectInfo, random: bool) -> int:
        """Collects rows from every environment; returns how many, which are fewer after `pause`."""
        if random:
            self._refuse_random()
        with torch.inference_mode():
            run = self._run_overlapped if self._num_ready < self.num_lanes else self._run_in_lockstep
            graph = None if random or self.stepped or self.deterministic else self._compiled
            rows = run(rows, info, random) if graph is None else self._run_compiled(graph, rows, info)
            if graph is None:
                self._check()
        info.rows += rows
        return rows

    def _run_in_lockstep(self, rows: int, info: CollectInfo, random: bool, lanes: np.ndarray | None = None) -> int:
        """The hot loop: steps all environments together; of all, or only of `lanes`, rows are stored and counted."""
        env, policy, preprocess, clock = self.env, self.policy, self.preprocess, time.perf_counter
        write, stepped = self._writer.write, self.stepped
        how: Any = {"phase": Phase.COLLECT, "deterministic": self.deterministic}
        env_s, inference_s, resets, done = 0.0, 0.0, 0, 0  # a reset executes no action, and answers with FIRST
        time_step, state = self.current(), self._state
        while done < rows and not self._pausing:
            begin = clock()
            if type(state) is not tuple:
                state = policy.begun(state, time_step.first)  # what acts on a FIRST row is what is stored with it
            step = self._act(time_step, state, True) if random else policy.act(time_step, state, **how)
            action = policy.env_action(step.action)
            acted = clock()
            time_step = env.step(action)
            env_s += clock() - acted
            inference_s += acted - begin
            ended = env.ended
            if preprocess is not None:
                time_step, ended = preprocess(time_step), None if ended is None else preprocess(ended)
            if lanes is None:
                write(step.action, time_step, state, None, ended)
            else:
                write(*tree_select((step.action, time_step, state), lanes), lanes=lanes, ended=ended)
            state = step.state
            done += 1
            resets += (time_step.step_type if lanes is None else time_step.step_type[lanes]).tolist().count(_FIRST)
            if ended is not None:  # within a step that was executed
                resets -= len(ended.reward) if lanes is None else int(np.isin(np.asarray(ended.env_id), lanes).sum())
            if stepped is not None:
                stepped(time_step, ended)
        self._time_step, self._state = time_step, state
        self._count(info, done * (self.num_lanes if lanes is None else len(lanes)) - resets, env_s, inference_s)
        return done

    def _run_compiled(self, graph: Unroller, rows: int, info: CollectInfo) -> int:
        """All steps in calls of one graph; rows are stored when there are all."""
        current, began = self.current(), time.perf_counter()
        unrolled, self._time_step = graph.unroll(current, rows, lambda: self._pausing)
        if unrolled.is_empty():
            return 0
        env_steps = self._writer.extend(self.env, unrolled, self._time_step)
        self._count(info, env_steps, time.perf_counter() - began, 0.0)  # acting is part of it
        return len(unrolled["action"])

    def _run_overlapped(self, rows: int, info: CollectInfo, random: bool) -> int:
        """Acts for environments that are ready while the others simulate; ends when all have answered.

        So with half of the environments at a time, one half simulates while the other's actions are computed, and no
        action is on its way when weights change.
        """
        env, policy, clock, num_envs = self.env, self.policy, time.perf_counter, self.num_lanes
        latest, state = _without_info(self.current()), self._state
        before, actions = state, None
        ready, sent, on_the_way, env_s, inference_s, env_steps = latest, 0, 0, 0.0, 0.0, 0
        while True:
            if sent < rows * num_envs and not self._pausing:
                lanes = np.asarray(ready.env_id)
                begin = clock()
                hidden = tree_select(state, lanes)
                if type(hidden) is not tuple:
                    hidden = policy.begun(hidden, ready.first)
                step = self._act(ready, hidden, random)
                inference_s += clock() - begin
                actions = step.action if actions is None else put_rows(actions, lanes, step.action)
                before = put_rows(before, lanes, hidden)
                state = put_rows(state, lanes, step.state)
                begin = clock()
                env.send(policy.env_action(step.action), ready.env_id)
                env_s += clock() - begin
                sent, on_the_way = sent + len(lanes), on_the_way + len(lanes)
            if not on_the_way:
                break
            begin = clock()
            ready = self._seen(env.recv())
            env_s += clock() - begin
            lanes = np.asarray(ready.env_id)
            on_the_way -= len(lanes)
            ended = None if env.ended is None else self._seen(env.ended)
            env_steps += int((ready.step_type != _FIRST).sum()) + (0 if ended is None else len(ended.reward))
            self._writer.write(tree_select(actions, lanes), ready, tree_select(before, lanes), lanes, ended)
            latest = put_rows(latest, lanes, _without_info(ready))
            if self.stepped is not None:
                self.stepped(ready, ended)
        self._time_step, self._state = latest, state
        self._count(info, env_steps, env_s, inference_s)
        return rows if sent >= rows * num_envs else sent // num_envs

    def _begin_episodes(self, left: Any) -> None:
        """Begins new episodes, of which each environment is to end so many, int64 [B]."""
        with torch.inference_mode():
            self._time_step, self._left = self._start(), left

    def _run_episodes(self, info: CollectInfo, random: bool, patience: EpisodePatience) -> None:
        """Steps all environments until each has its episodes; of one that has them, nothing more is stored."""
        if random:
            self._refuse_random()
        left = self._left
        with torch.inference_mode():
            while left.any() and not self._pausing:
                lanes = np.flatnonzero(left)
                info.rows += self._run_in_lockstep(1, info, random, lanes)
                time_step = self._time_step
                assert time_step is not None
                ended = np.asarray(time_step.step_type) == _LAST
                if self.env.ended is not None:
                    ended[np.asarray(self.env.ended.env_id)] = True
                left[lanes] -= ended[lanes]
                left[[*self.env.dropped]] = 0
                patience.look(info.env_steps, ended=bool(ended[lanes].any()))
            self._check()
        self._apart = not left.any()

    def _refuse_random(self) -> None:
        kept = [*self.buffer.info_fields, *(["search"] if isinstance(self.policy, SearchPolicy) else [])]
        if kept:
            raise ConfigError(f"random actions have no {', '.join(kept)} of the policy, which the buffer keeps")

    def _check(self) -> None:
        """Refuses new rows that are not finite."""
        assert self._time_step is not None
        require_finite(self.env, self.buffer, self._time_step, self._writer.new, changed=self.preprocess is not None)

    def _count(self, info: CollectInfo, env_steps: int, env_s: float, inference_s: float) -> None:
        self.env_steps += env_steps
        info.env_steps += env_steps
        info.env_s += env_s
        info.inference_s += inference_s

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """Where collection is, by name: tensors and JSON values, for a checkpoint."""
        state: dict[str, Any] = {"env_steps": self.env_steps, "tracker": self.tracker.state(), "apart": self._apart}
        state |= {"episodes_left": self._left.tolist(), **self._quota.state(), **self._writer.state()}
        if self._time_step is not None:
            state["env"] = self.env.state_dict()
            state["time_step"] = self._time_step._asdict() | {"env_info": (), "untransformed": ()}
            state["policy_state"] = self._state
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave. Environments that cannot continue exactly begin new episodes.

        Args:
            state: of a collector with the same environments.
        """
        self.env_steps, env = state["env_steps"], self.env
        self._writer.load_state(state)
        self._left = np.array(state["episodes_left"], np.int64)
        self._apart = state.get("apart", False)
        self._quota.load_state(state)
        self.tracker.load_state(state["tracker"])
        if "env" in state:
            self.env.load_state_dict(state["env"])
            self._time_step, self._state = TimeStep(**to_device(state["time_step"], env.device)), state["policy_state"]
            if self.env.resume == "statistical":
                self.tracker.abandon()
                self._time_step = self._start()

    def drain(self) -> list[Episode]:
        """Episodes that have ended and were not reported yet."""
        return self.tracker.finished()


def _without_info(time_step: TimeStep) -> TimeStep:
    return time_step._replace(env_info=(), untransformed=())
