"""`ServedPolicy`: a policy that is asked by many at once; `Sessions`: the hidden states of those who ask."""

import asyncio
import bisect
import collections
import contextlib
import functools
import itertools
import secrets
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from palaestra.core import Batch, ConfigError, PalaestraError, SpecError, TensorSpec, TimeStep, tree_leaves, tree_split
from palaestra.core.spec import ACTION_MASK
from palaestra.deployment.json_nests import JsonNest
from palaestra.policies import Phase, Policy, check_masks
from palaestra.rollout import InferenceServer, pack

__all__ = []


class RefusedError(PalaestraError):
    """A request that is answered with an error, and never reaches a policy.

    Args:
        status: of HTTP.
        message: what was given, and what is needed.
        headers: of the answer.
    """

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass
class _Asked:
    """Observations of one request, on their way to the policy."""

    payload: dict[str, Any]
    count: int
    answer: asyncio.Future[tuple[list[Any], Any]]


class ServedPolicy:
    """A policy, the thread that answers with it, and how its observations and actions look as JSON.

    Requests that the event loop reads together are handed over together; the `InferenceServer` joins what comes while
    it computes.

    Args:
        name: of the policy.
        policy: in `Phase.EVAL`.
        config: a `ServingConfig`.

    Raises:
        ConfigError: the policy has to be told rewards.
    """

    def __init__(self, name: str, policy: Policy, config: Any) -> None:
        if policy.reads_reward:
            raise ConfigError(
                f"the policy {name!r} is a {type(policy).__name__}, which has to be told the reward of each step, and "
                "requests bring observations alone; export it with `palaestra export`, or call it from Python"
            )
        self.name, self.policy, self.problem = name, policy, ""
        self.observations, self.actions = JsonNest(policy.observation_spec), JsonNest(policy.action_spec)
        self.has_memory, self.wrappers = bool(policy.state_spec), policy.wrappers
        self._deterministic, self._most = not config.stochastic, config.max_batch_size
        self._spec = {"observation": policy.observation_spec, "step_type": TensorSpec((), torch.int32)}
        self._spec |= {"state": policy.state_spec} if self.has_memory else {}
        wait_s, called = config.max_wait_ms / 1000, f"the policy {name!r}"
        self.server = InferenceServer(self._act, self._spec, name=called, max_batch_size=self._most, max_wait_s=wait_s)
        self.server.clients.connect(0)  # the network, from which more may come at any time
        self._asked: list[_Asked] = []

    def _act(self, batch: Any) -> Batch:
        policy = self.policy  # the same for the whole batch, whatever is loaded meanwhile
        with torch.inference_mode():
            time_step = TimeStep(step_type=batch.step_type, observation=batch.observation)
            state = batch.state if self.has_memory else ()
            step = policy.act(time_step, state, phase=Phase.EVAL, deterministic=self._deterministic)
            answer = {"action": policy.env_action(step.action)}
        return Batch.of(answer | ({"state": step.state} if self.has_memory else {}))

    def ask(self, payload: dict[str, Any], count: int) -> asyncio.Future[tuple[list[Any], Any]]:
        """Asks without waiting, from the event loop.

        Args:
            payload: `observation` and `step_type`, and `state` of a policy with memory; arrays [N, ...].
            count: N.

        Returns:
            N actions as JSON values, and the states after them, `None` of a policy without memory.
        """
        loop = asyncio.get_running_loop()
        if not self._asked:
            loop.call_soon(self._send)  # after all that has been read together
        self._asked.append(_Asked(payload, count, loop.create_future()))
        return self._asked[-1].answer

    def _send(self) -> None:
        asked, self._asked = self._asked, []
        loop = asyncio.get_running_loop()
        while asked:
            rows = list(itertools.accumulate(one.count for one in asked))
            number = max(1, bisect.bisect_right(rows, self._most))
            part, asked = asked[:number], asked[number:]
            try:
                answer = self.server.submit(0, pack([one.payload for one in part], self._spec), blocks=False)
                answer.add_done_callback(functools.partial(self._hand_over, loop, part))
            except Exception as error:  # no request may wait for one that was never asked
                _fail(part, error)

    def _hand_over(self, loop: asyncio.AbstractEventLoop, part: list[_Asked], done: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits any more
            loop.call_soon_threadsafe(self._deliver, part, done)

    def _deliver(self, part: list[_Asked], done: Future[Any]) -> None:
        counts = [one.count for one in part]
        try:
            rows = done.result()
            actions = self.actions.write(rows["action"])
            states = tree_split(rows["state"], counts) if self.has_memory else [None] * len(part)
        except Exception as error:
            _fail(part, error)
            return
        for one, end, state in zip(part, itertools.accumulate(counts), states, strict=True):
            if not one.answer.done():
                one.answer.set_result((actions[end - one.count : end], state))

    def require_specs(self, policy: Policy) -> None:
        """Refuses a policy that cannot take the place of this one.

        Args:
            policy: another one.

        Raises:
            ConfigError: its specs are others.
        """
        for spec in ("observation_spec", "action_spec", "state_spec"):
            new, old = getattr(policy, spec), getattr(self.policy, spec)
            if new != old:
                raise ConfigError(f"the new policy has the {spec} {new}, and {old} is served; start another server")

    def rows(self, values: list[Any], path: str, *, many: bool) -> Any:
        """Observations, checked.

        Args:
            values: JSON values.
            path: of them, for messages.
            many: whether messages say which one is meant.

        Raises:
            RefusedError: one does not fit the spec, or allows no action.
        """
        try:
            rows = self.observations.read(values, path, many=many)
            if isinstance(rows, Batch) and ACTION_MASK in rows.keys():  # noqa: SIM118 - iterates rows
                check_masks(rows.map(torch.from_numpy)[ACTION_MASK], self.policy.action_spec)
        except (ValueError, SpecError) as error:
            raise RefusedError(400, str(error)) from None
        return rows

    def schema(self, most: int) -> dict[str, Any]:
        """JSON Schema of a request, and of the action in its answer; and the wrappers that the client has to apply.

        Args:
            most: observations in one request.
        """
        observation = self.observations.schema()
        flag = {"type": "boolean"}
        properties = {
            "agent": {"type": "string"},
            "observation": observation,
            "observations": {"type": "array", "items": observation, "minItems": 1, "maxItems": most},
            "first": {"anyOf": [flag, {"type": "array", "items": flag}]},
        }
        properties |= {"session": {"type": "string"}} if self.has_memory else {}
        one_of = [{"required": ["observation"]}, {"required": ["observations"]}]
        request = {"type": "object", "properties": properties, "oneOf": one_of, "additionalProperties": False}
        known = {"has_memory": self.has_memory, "wrappers": list(self.wrappers)}
        return {**known, "request": request, "action": self.actions.schema()}


@dataclass(eq=False)
class Session:
    """The hidden states of one client."""

    key: str
    """Name by which the client refers to it; nobody can guess it."""
    policy: str
    """Whose states they are."""
    state: Any
    """Leaves [N, ...], one row for each observation of a request."""
    count: int
    """N."""
    busy: bool = True
    """Whether a request is being answered with it."""


class Sessions:
    """Hidden states of clients; with too many, the one that was not used for longest goes.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int) -> None:
        self.most, self.evicted = most, 0
        self._kept: collections.OrderedDict[str, Session] = collections.OrderedDict()
        self._gone: collections.OrderedDict[str, None] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, policy: str, state: Any, count: int) -> Session:
        """A new session.

        Args:
            policy: whose state it is.
            state: initial, leaves [N, ...].
            count: N.

        Raises:
            RefusedError: as many as are kept are all being answered.
        """
        if len(self._kept) >= self.most:
            oldest = next((key for key, session in self._kept.items() if not session.busy), None)
            if oldest is None:
                raise RefusedError(503, f"all {self.most} sessions are in use; try again", retry_after="1")
            del self._kept[oldest]
            self._gone[oldest], self.evicted = None, self.evicted + 1
            if len(self._gone) > self.most:
                self._gone.popitem(last=False)
        session = Session(secrets.token_urlsafe(16), policy, state, count)
        self._kept[session.key] = session
        return session

    def take(self, key: Any, policy: str) -> Session:
        """The session of a request, busy until it is given back.

        Args:
            key: as the client named it.
            policy: that it asks.

        Raises:
            RefusedError: there is none such, it is of another policy, or it is busy.
        """
        session = self._kept.get(key) if isinstance(key, str) else None
        begin = 'begin an episode without session and with "first": true'
        if session is None and isinstance(key, str) and key in self._gone:
            raise RefusedError(410, f"this session was evicted: {self.most} others were used since; {begin}")
        if session is None or session.policy != policy:
            raise RefusedError(404, f"there is no such session of the policy {policy!r}; {begin}")
        if session.busy:
            raise RefusedError(409, "another request of this session is not answered yet; send one after another")
        session.busy = True
        self._kept.move_to_end(session.key)
        return session

    def give_back(self, session: Session, state: Any) -> None:
        """Ends a request.

        Args:
            session: that it took, or began.
            state: after it; `None` where it failed, which leaves an older session as it was.
        """
        session.busy = False
        if state is not None:
            session.state = state.map(torch.clone)  # what was given is a part of the whole batch's
            session.count = len(next(iter(tree_leaves(state))))
        elif session.state is None:
            del self._kept[session.key]


def _fail(part: list[_Asked], error: BaseException) -> None:
    for one in part:
        if not one.answer.done():
            one.answer.set_exception(error)
