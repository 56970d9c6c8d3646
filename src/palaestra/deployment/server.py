"""`PolicyApp`: what a server of policies answers, what it refuses before a policy sees it, and what it remembers."""

import asyncio
import bisect
import collections
import hmac
import ipaddress
import itertools
import json
import logging
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from palaestra.core import StepType, import_extra
from palaestra.deployment.served_policy import RefusedError, ServedPolicy, Session, Sessions
from palaestra.policies import Policy

__all__ = []

_log = logging.getLogger(__name__)
_LARGEST_BODY_BYTES = 8 * 2**20
_MOST_HELD_BYTES = 16 * _LARGEST_BODY_BYTES
_BYTES_A_NUMBER = 32  # the longest that JSON libraries write, with what stands between two
_EVERYWHERE = {"", "0.0.0.0", "::"}
_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_KEYS = {"agent", "observation", "observations", "first", "session"}


@dataclass
class _Call:
    """A request to act that was understood."""

    served: ServedPolicy
    payload: dict[str, Any]
    count: int
    session: Session | None
    many: bool


class PolicyApp:
    """Answers requests to act: checks them, gathers them into batches, and keeps hidden states.

    Args:
        policies: to serve, by name.
        agents: the policy of each agent, for those that share one.
        config: a `ServingConfig`.
    """

    def __init__(self, policies: Mapping[str, Policy], agents: Mapping[str, str], config: Any) -> None:
        self.config = config
        self.served = {name: ServedPolicy(name, policy, config) for name, policy in policies.items()}
        self.agents = {name: name for name in policies} | dict(agents)
        self.sessions = Sessions(config.max_sessions)
        self.draining = False
        self.in_progress = self.unanswered = 0
        self.codes: collections.Counter[int] = collections.Counter()
        self.reloads: collections.Counter[str] = collections.Counter()
        self._took = [0] * (len(_BUCKETS_S) + 1)
        self._took_s, self._held_bytes = 0.0, 0
        one = max(served.observations.size for served in self.served.values()) * _BYTES_A_NUMBER + 4096
        local = is_loopback(config.host)
        self._names = {config.host.lower(), *(("localhost", "127.0.0.1", "::1") if local else ())}
        self._largest_bytes = max(one, min(one * config.max_batch_size, _LARGEST_BODY_BYTES))
        self._most_held_bytes = max(_MOST_HELD_BYTES, 4 * self._largest_bytes)

    def asgi(self) -> Any:
        """The application that a server of HTTP runs."""
        names = ("applications", "responses", "routing")
        applications, responses, routing = (import_extra(f"starlette.{name}", "serve", "serving") for name in names)

        def route(path: str, method: str, handle: Callable[[Any], Awaitable[Any]], kind: str) -> Any:
            async def answer(request: Any) -> Any:
                status, body, headers = await self._handled(handle, request)
                return responses.Response(body, status, headers, kind if status == 200 else "application/json")

            return routing.Route(path, answer, methods=[method])

        async def lost(request: Any, error: Any) -> Any:
            known = "POST /act, GET /schema, GET /health, GET /metrics"
            message = f"{request.method} {request.url.path[:80]} is not served; there are {known}"
            self.count(error.status_code)
            return responses.JSONResponse({"error": message}, error.status_code, error.headers)

        routes = [
            route("/act", "POST", self._act, "application/json"),
            route("/schema", "GET", self._schema, "application/json"),
            route("/health", "GET", self._health, "application/json"),
            route("/metrics", "GET", self._metrics, "text/plain; version=0.0.4"),
        ]
        return applications.Starlette(routes=routes, exception_handlers={404: lost, 405: lost})

    def count(self, status: int) -> None:
        """Counts an answer.

        Args:
            status: of HTTP.
        """
        self.codes[status] += 1

    async def _handled(self, handle: Callable[[Any], Awaitable[Any]], request: Any) -> tuple[int, Any, dict[str, str]]:
        """Status, body and headers of an answer, whatever happens."""
        began_s = time.perf_counter()
        headers: dict[str, str] = {}
        self.in_progress += 1
        try:
            self._require_told(request)
            if handle != self._health and not self._authorised(request):
                needed = "this server needs its token: Authorization: Bearer ..."
                raise RefusedError(401, needed, www_authenticate="Bearer")
            status, body = 200, await handle(request)
            if isinstance(body, dict):
                body = json.dumps(body, allow_nan=False, separators=(",", ":"))
        except RefusedError as refusal:
            status, body = refusal.status, json.dumps({"error": str(refusal)})
            headers = refusal.headers
        except asyncio.CancelledError:
            self.unanswered += 1
            raise
        except Exception as error:
            _log.exception("a request failed")
            status, body = 500, json.dumps({"error": f"the request failed: {type(error).__name__}: {error}"})
        finally:
            self.in_progress -= 1
        took_s = time.perf_counter() - began_s
        self._took[bisect.bisect_left(_BUCKETS_S, took_s)] += 1
        self._took_s += took_s
        self.count(status)
        return status, body, headers | ({"connection": "close"} if self.draining else {})

    # -- what is asked

    def _require_told(self, request: Any) -> None:
        """Refuses requests by another name than the server was told: a page may have had its own lead here."""
        for header in ("host", "origin") if self._names.isdisjoint(_EVERYWHERE) else ():
            given = request.headers.get(header)
            if given is not None and _hostname(given) not in self._names:
                raise RefusedError(
                    403,
                    f"{header} is {given[:80]!r}, and this server answers as {', '.join(sorted(self._names))}; to be "
                    "asked by another name it has to be started with that as its host",
                )

    def _authorised(self, request: Any) -> bool:
        token = self.config.secret
        given = request.headers.get("authorization", "")
        return token is None or hmac.compare_digest(given.encode(), f"Bearer {token}".encode())

    async def _act(self, request: Any) -> dict[str, Any]:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "the body must be JSON: Content-Type: application/json")
        call = self._understood(await self._body(request))
        state = None
        try:
            actions, state = await call.served.ask(call.payload, call.count)
        finally:
            if call.session is not None:
                self.sessions.give_back(call.session, state)
        content = {"actions": actions} if call.many else {"action": actions[0]}
        return content if call.session is None else content | {"session": call.session.key}

    async def _body(self, request: Any) -> Any:
        """The JSON value that a client sends."""
        most, too_large = self._largest_bytes, f"the body has more than {self._largest_bytes:,} bytes; send less"
        if int(request.headers.get("content-length", 0)) > most:
            raise RefusedError(413, too_large)
        body, more = bytearray(), True
        try:
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":  # by itself, or because it was too slow
                    raise RefusedError(400, "the client left before all of its request had come")
                chunk, more = message.get("body", b""), message.get("more_body", False)
                body += chunk
                self._held_bytes += len(chunk)
                if len(body) > most:
                    raise RefusedError(413, too_large)
                if self._held_bytes > self._most_held_bytes:
                    raise RefusedError(503, "too much is being sent at the same time; try again", retry_after="1")
            return json.loads(body, parse_constant=_refuse_constant)
        except RecursionError:
            raise RefusedError(400, "the body is nested too deep; observations are as GET /schema says") from None
        except ValueError as error:
            raise RefusedError(400, f"the body cannot be read as JSON: {error}") from None
        finally:
            self._held_bytes -= len(body)

    def _understood(self, data: Any) -> _Call:
        """What a request asks for, checked."""
        if type(data) is not dict:
            raise RefusedError(
                400, f"the body is a {type(data).__name__}; an object with observation or observations is needed"
            )
        if unknown := data.keys() - _KEYS:
            raise RefusedError(400, f"unknown key {min(unknown)[:40]!r}; known are {', '.join(sorted(_KEYS))}")
        if ("observation" in data) == ("observations" in data):
            raise RefusedError(400, "give either observation, for one action, or observations, a list of them")
        served, many = self._asked(data), "observations" in data
        values = data["observations"] if many else [data["observation"]]
        if type(values) is not list or not 1 <= len(values) <= self.config.max_batch_size:
            raise RefusedError(400, f"observations must be a list of 1 to {self.config.max_batch_size}")
        rows = served.rows(values, "observations" if many else "observation", many=many)
        first = _flags(data.get("first", False), len(values))
        payload = {"observation": rows, "step_type": np.where(first, StepType.FIRST, StepType.MID)}
        session = self._session(data, served, first)
        if session is not None:
            initial = session.state is None or session.count != len(values)
            payload["state"] = served.policy.initial_state(len(values)) if initial else session.state
        return _Call(served, payload, len(values), session, many)

    def _asked(self, data: Mapping[str, Any]) -> ServedPolicy:
        """The policy of a request."""
        if "agent" not in data and len(self.served) == 1:
            return next(iter(self.served.values()))
        agent = data.get("agent")
        if not isinstance(agent, str) or agent not in self.agents:
            given = f"agent is {agent[:40]!r}" if isinstance(agent, str) else "agent is missing"
            raise RefusedError(400, f"{given}; there are {', '.join(sorted(self.agents))}")
        return self.served[self.agents[agent]]

    def _session(self, data: Mapping[str, Any], served: ServedPolicy, first: np.ndarray) -> Session | None:
        """Where the hidden states of a request are."""
        if not served.has_memory:
            if "session" in data:
                raise RefusedError(400, f"the policy {served.name!r} has no memory; leave out session")
            return None
        everywhere = bool(first.all())
        if "session" not in data:
            if not everywhere:
                raise RefusedError(
                    400,
                    f'the policy {served.name!r} has a memory: begin an episode with "first": true, and send the '
                    "session of the answer with what follows",
                )
            return self.sessions.begin(served.name, None, len(first))
        session = self.sessions.take(data["session"], served.name)
        if session.count != len(first) and not everywhere:
            session.busy = False
            raise RefusedError(400, f"this session is of {session.count} observations, and {len(first)} were sent")
        return session

    # -- what is told

    async def _schema(self, request: Any) -> dict[str, Any]:
        policies = {name: served.schema(self.config.max_batch_size) for name, served in self.served.items()}
        dialect = "https://json-schema.org/draft/2020-12/schema"
        return {"$schema": dialect, "agents": self.agents, "policies": policies}

    async def _health(self, request: Any) -> dict[str, Any]:
        if self.draining:
            raise RefusedError(503, "the server is stopping", retry_after="1")
        problems = {name: served.problem for name, served in self.served.items() if served.problem}
        status = "old policy" if problems else "ok"
        return {"status": status} | ({"problems": problems} if problems and self._authorised(request) else {})

    async def _metrics(self, request: Any) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        """Metrics in the text format of Prometheus."""
        yield from _metric("requests_total", "counter", {f'code="{c}"': n for c, n in sorted(self.codes.items())})
        yield "# TYPE palaestra_request_seconds histogram"
        for limit, total in zip([*_BUCKETS_S, "+Inf"], itertools.accumulate(self._took), strict=True):
            yield f'palaestra_request_seconds_bucket{{le="{limit}"}} {total}'
        yield f"palaestra_request_seconds_sum {self._took_s:.6f}"
        yield f"palaestra_request_seconds_count {sum(self._took)}"
        statistics = {f'policy="{_escaped(name)}"': served.server.statistics for name, served in self.served.items()}
        for field in ("rows", "batches", "failed_batches", "busy_s", "wait_s"):
            name = f"policy_{field.removesuffix('_s') + '_seconds' if field.endswith('_s') else field}_total"
            yield from _metric(name, "counter", {label: getattr(one, field) for label, one in statistics.items()})
        yield from _metric("reloads_total", "counter", {f'result="{k}"': self.reloads[k] for k in ("done", "failed")})
        yield from _metric("sessions_evicted_total", "counter", {"": self.sessions.evicted})
        yield from _metric("sessions", "gauge", {"": len(self.sessions)})
        yield from _metric("requests_in_progress", "gauge", {"": self.in_progress})


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _hostname(given: str) -> str | None:
    """Name in a `Host` or `Origin`, without scheme and port."""
    try:
        return urllib.parse.urlsplit(f"//{given.rpartition('//')[2]}").hostname
    except ValueError:
        return None


def _metric(name: str, kind: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# TYPE palaestra_{name} {kind}"
    for labels, value in values.items():
        yield f"palaestra_{name}{f'{{{labels}}}' if labels else ''} {value}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _flags(value: Any, count: int) -> np.ndarray:
    """[N] bool from `first`, which is one for all, or one for each."""
    flags = [value] * count if type(value) is bool else value
    if type(flags) is not list or len(flags) != count or {type(flag) for flag in flags} != {bool}:
        raise RefusedError(400, f"first must be true or false, or a list of {count} of them")
    return np.array(flags)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON; a policy needs finite numbers")
