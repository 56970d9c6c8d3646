"""`serve`: policies of a run over HTTP, from the first request to the last answer."""

import asyncio
import contextlib
import ctypes
import http
import json
import logging
import os
import resource
import secrets
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from palaestra.core import POLICY, AtLeastOne, ConfigError, Limit, Range, import_extra, left_as_found, require_ranges
from palaestra.deployment.card import inside
from palaestra.deployment.server import PolicyApp, is_loopback
from palaestra.experiments import config_from_mapping, find_run, policies_of_run
from palaestra.policies import Policy, load_policy
from palaestra.rollout import RequestError
from palaestra.runs.team import TeamLearner
from palaestra.runtime import Repeats, entitled, stop_signals

__all__ = ["Served", "ServingConfig", "serve"]

_log = logging.getLogger(__name__)
_TICK_S = 0.05
_LAST_REQUESTS_S = 0.5  # in which clients that keep their connection learn that the server stops
_SPARE_FILES = 64
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER of Linux
_SHORTEST_TOKEN = 16
_LONGEST_WAIT_MS = 3_600_000


@dataclass(frozen=True, kw_only=True)
class ServingConfig:
    """Where a server listens, and what it allows."""

    host: str = "127.0.0.1"
    """Address to listen at; others than loopback need a token."""
    port: Annotated[int, Range(ge=0, le=65535)] = 8000
    """Port to listen at; 0 takes a free one."""
    token: str | None = field(default=None, repr=False)
    """What every client must send as `Authorization: Bearer TOKEN`, at least 16 characters; by default the environment
    variable PALAESTRA_TOKEN, which no list of processes shows."""
    max_batch_size: AtLeastOne[int] = 64
    """Observations that are computed together, and the most in one request."""
    max_wait_ms: Annotated[float, Range(ge=0, le=_LONGEST_WAIT_MS)] = 0.0
    """Milliseconds that a batch waits for more requests; 0 takes what came while the one before was computed."""
    max_connections: AtLeastOne[int] = 1024
    """Connections, and so requests, at the same time; what is beyond them is answered with 503."""
    max_sessions: AtLeastOne[int] = 10_000
    """Clients whose hidden states are kept; with more, the one that was not used for longest begins anew."""
    timeout_s: Limit[float] = 10.0
    """Seconds in which a request must have come, and be answered; and after which unused connections are closed."""
    reload_s: Limit[float] = 1.0
    """Seconds between looks for a better policy."""
    stochastic: bool = False
    """Sample actions instead of taking the best. Policies without a distribution, as of DQN and TD3, act the same."""

    def __post_init__(self) -> None:
        require_ranges(self, "")
        token = self.secret
        fits = token is not None and len(token) >= _SHORTEST_TOKEN and token.isascii() and token.isprintable()
        if not fits and (token is not None or not is_loopback(self.host)):
            given = "none was given" if token is None else f"the one given has {len(token)} of any kind"
            without = "leave it out, as only this machine can ask" if is_loopback(self.host) else "listen at 127.0.0.1"
            raise ConfigError(
                f"a server at {self.host} needs a token of at least {_SHORTEST_TOKEN} printable ASCII characters, and "
                f"{given}: use `openssl rand -hex 16`, or {without}"
            )

    @property
    def secret(self) -> str | None:
        """The token, wherever it comes from."""
        return os.environ.get("PALAESTRA_TOKEN") if self.token is None else self.token


@dataclass(frozen=True)
class Served:
    """What a server did until it was stopped."""

    url: str
    """Address at which it was served."""
    answered: int
    """Requests with the status 200."""
    refused: int
    """Requests with any other."""
    unanswered: int
    """Requests that were accepted, and not answered before the server had to end."""

    def __str__(self) -> str:
        return f"{self.answered:,} requests answered, {self.refused:,} refused, {self.unanswered:,} unanswered"


@left_as_found()
def serve(
    name: str | Path,
    *,
    root: str | Path = "runs",
    ready: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    **settings: Any,
) -> Served:
    """Answers requests for actions over HTTP until a signal (Ctrl-C, SIGTERM, SIGHUP): the command `palaestra serve`.

    It then takes no new connections, answers every request that it has accepted, and returns. A second signal ends it
    without waiting. The policies of the best evaluation act; when training writes better ones, these act from the next
    batch on.

    Args:
        name: path or name of a run, `last`, or a directory that `save_policy` wrote.
        root: the folder of runs.
        ready: called with the URL once requests are answered.
        stop: ends the server when it is set, as a signal does; needed in a thread, where no signals arrive.
        settings: of `ServingConfig`: `port=0, max_batch_size=32`.

    Raises:
        CheckpointError: there is no such run, or it has no policy.
        ConfigError: a setting is wrong, the address cannot be had, or the run is a stranger's that names code.
        MissingExtraError: the extra `serve` is not installed.
    """
    config: ServingConfig = config_from_mapping(ServingConfig, settings)
    import_extra("uvicorn", "serve", "serving")
    _require_no_loop()
    run = None if (Path(name) / "policy.json").is_file() else find_run(name, root)
    folders = _folders(Path(name) if run is None else run.path / "policy")
    seen = {policy: _signature(folder) for policy, folder in folders.items()}
    learner, policies = (None, {POLICY: load_policy(name)}) if run is None else policies_of_run(run)
    app = PolicyApp(policies, _agents(learner), config)
    for wrappers in {policy.wrappers for policy in policies.values() if policy.wrappers}:
        _log.warning("%s", inside(wrappers))

    def load() -> Mapping[str, Policy]:
        return {POLICY: load_policy(name)} if run is None or learner is None else learner.kept_policies(run.path)

    with entitled("serve", name), _listener(config) as listener:
        host, port = listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        running = _HttpServer(app, _Reloads(app, folders, seen, load), listener)
        for served in app.served.values():
            if config.stochastic:
                served.policy.seed(secrets.randbits(63))
            served.server.start()
        try:
            asyncio.run(running.run(lambda: ready(url) if ready else None, stop or threading.Event()))
        finally:
            for served in app.served.values():
                with contextlib.suppress(RequestError):  # a policy that hangs, whose requests were counted
                    served.server.stop(timeout_s=1.0)
    refused = app.codes.total() - app.codes[200]
    return Served(url, app.codes[200], refused, app.unanswered)


def _require_no_loop() -> None:
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise ConfigError(
            "serve answers until it is stopped, and this thread runs an event loop, as notebooks do; call it in "
            "another: threading.Thread(target=palaestra.serve, args=[run], kwargs={'stop': threading.Event()}).start()"
        )


def _listener(config: ServingConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=config.max_connections)
    except OSError as error:
        raise ConfigError(
            f"{config.host}:{config.port} cannot be listened at: {error}; give another host or port (0: a free one)"
        ) from error


# -- policies


def _agents(learner: Any) -> dict[str, str]:
    """The policy of each agent that asks for itself."""
    specs = learner.policy_specs if isinstance(learner, TeamLearner) else {}
    return {agent: policy for policy, spec in specs.items() if not spec.team for agent in spec.agents}


def _folders(home: Path) -> dict[str, Path]:
    """Where training writes each policy."""
    folders = [path.parent for path in home.glob("**/policy.json")]
    return {POLICY if folder == home else folder.name: folder for folder in folders}


def _signature(folder: Path) -> tuple[tuple[int, int, int], ...]:
    """What changes when a policy is written anew."""
    stats = [(folder / name).stat() for name in ("policy.json", "weights.safetensors") if (folder / name).exists()]
    return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)


class _Reloads:
    """Looks for policies that were written anew, and lets them act together if all are whole and of the same specs."""

    def __init__(
        self, app: PolicyApp, folders: Mapping[str, Path], seen: dict[str, Any], load: Callable[[], Any]
    ) -> None:
        self._app, self._load = app, load
        self._folders = {name: folder for name, folder in folders.items() if name in app.served}
        self._seen = {name: seen[name] for name in self._folders}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._app.config.reload_s)
            try:
                await self._look()
            except OSError as error:  # a folder is gone for the moment
                _log.warning("the policies cannot be looked at: %s", error)

    def _signatures(self) -> dict[str, Any]:
        return {name: _signature(folder) for name, folder in self._folders.items()}

    async def _look(self) -> None:
        if (signatures := self._signatures()) == self._seen:
            return
        served = {name: self._app.served[name] for name in self._folders}
        policies: Mapping[str, Policy] = {}
        problem = ""
        try:
            policies = await asyncio.to_thread(self._load)
            for name, one in served.items():
                one.require_specs(policies[name])
        except Exception as error:  # whatever is wrong with the files: the old policies are whole
            problem = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        if signatures != self._signatures():
            return  # they are being written; the next look sees the rest
        self._seen = signatures
        for name, one in served.items():
            if not problem:
                policies[name].draw_from(one.policy.generator)
                one.policy = policies[name]
            one.problem = problem
        self._app.reloads["failed" if problem else "done"] += 1
        if problem:
            _log.warning("policies were not loaded, and those before stay: %s", problem)


# -- the server


class _HttpServer:
    """A server of HTTP around an application: slow senders, signals, and the end."""

    def __init__(self, app: PolicyApp, reloads: _Reloads, listener: socket.socket) -> None:
        self._app, self._reloads, self._listener = app, reloads, listener
        self._states: dict[Any, tuple[Any, bool, float]] = {}
        self._signals, self._repeats = 0, Repeats()
        uvicorn = import_extra("uvicorn", "serve", "serving")
        options: dict[str, Any] = {"lifespan": "off", "ws": "none", "access_log": False}
        options |= {"log_config": None, "log_level": "error"}
        options |= {"proxy_headers": False, "server_header": False, "timeout_keep_alive": app.config.timeout_s}
        options |= {"timeout_graceful_shutdown": 3 * app.config.timeout_s, "backlog": app.config.max_connections}
        self._server = uvicorn.Server(uvicorn.Config(app.asgi(), http=_protocol(app), **options))
        self._server.capture_signals = contextlib.nullcontext  # ours drain, and the process ends by itself

    async def run(self, ready: Callable[[], None], stop: threading.Event) -> None:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():
                loop.add_signal_handler(number, self._signalled, number)
        serving = loop.create_task(self._server.serve(sockets=[self._listener]))
        reloading = loop.create_task(self._reloads.run())
        try:
            while not self._server.started and not serving.done():
                await asyncio.sleep(0.001)
            if serving.done():
                return
            ready()
            while not (stop.is_set() or self._signals or serving.done()):
                await self._tick()
            await self._drain(serving)
        finally:
            reloading.cancel()
            self._server.should_exit = True
            await serving

    def _signalled(self, number: int) -> None:
        if self._repeats(number) and self._signals:
            return
        self._signals += 1
        if self._signals > 1:
            self._server.force_exit = self._server.should_exit = True
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()

    async def _tick(self) -> None:
        """Closes connections on which nothing has been completed for too long."""
        now_s, timeout_s = asyncio.get_running_loop().time(), self._app.config.timeout_s
        states, self._states = self._states, {}
        for connection in list(self._server.server_state.connections):
            cycle, coming = connection.cycle, not _is_busy(connection) or connection.cycle.more_body
            before = states.get(connection)
            since_s = before[2] if before is not None and before[:2] == (cycle, coming) else now_s
            self._states[connection] = (cycle, coming, since_s)
            if coming and now_s - since_s > timeout_s:
                connection.end(f"the request did not come within {timeout_s:g} s")
            elif not coming and now_s - since_s > 2 * timeout_s:  # no answer, or one that the client does not take
                connection.transport.abort()
        await asyncio.sleep(_TICK_S)

    def _last_connections(self) -> list[socket.socket]:
        """Those that have arrived and wait; from now on nothing arrives, so that closing the listener resets none."""
        if sys.platform == "linux":  # a filter of one instruction, "return 0", drops what would begin another
            instruction = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
            program = struct.pack("HP", 1, ctypes.addressof(instruction))
            self._listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
        found = list[socket.socket]()
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self._listener.accept()[0])
        return found

    async def _drain(self, serving: asyncio.Task[Any]) -> None:
        """Takes no new connections; tells those there are to close, and waits for what they still ask."""
        self._app.draining = True
        arrived = self._last_connections()
        for server in self._server.servers:
            server.close()
        loop, config = asyncio.get_running_loop(), self._server.config
        states = {"server_state": self._server.server_state, "app_state": self._server.lifespan.state}
        for connection in arrived:
            await loop.connect_accepted_socket(lambda: config.http_protocol_class(config=config, **states), connection)
        least_s, most_s = loop.time() + _LAST_REQUESTS_S, loop.time() + 2 * self._app.config.timeout_s
        connections = self._server.server_state.connections
        while connections and loop.time() < most_s and self._signals < 2 and not serving.done():
            if loop.time() > least_s and not any(_is_busy(c) or c.conn.trailing_data[0] for c in connections):
                break
            await self._tick()


def _is_busy(connection: Any) -> bool:
    return connection.cycle is not None and not connection.cycle.response_complete


def _protocol(app: PolicyApp) -> Any:
    """Uvicorn's protocol, with our words for what is no HTTP, and with a limit of connections."""
    h11, implementation = (
        import_extra(name, "serve", "serving") for name in ("h11", "uvicorn.protocols.http.h11_impl")
    )
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES
    most = app.config.max_connections if files < 1 else min(app.config.max_connections, files)

    class PolicyProtocol(implementation.H11Protocol):
        """One connection."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            # head and body are written apart; asyncio does not do this for sockets made by `create_server`
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.excess = len(self.connections) > most
            if len(self.connections) > most + _SPARE_FILES // 2:
                transport.abort()

        def data_received(self, data: bytes) -> None:
            if self.excess:  # not before: an answer to what was not read would be lost
                self._refuse(503, f"{most} connections are open already; try again", (b"retry-after", b"1"))
            else:
                super().data_received(data)

        def send_400_response(self, msg: str) -> None:
            self._refuse(400, "this is not a valid request of HTTP/1.1")

        def end(self, why: str) -> None:
            """Closes a connection, with words where a request has begun.

            Args:
                why: for the client.
            """
            if self.conn.trailing_data[0] or _is_busy(self):
                self._refuse(408, why)
            else:
                self.transport.close()

        def _refuse(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
            app.count(status)
            if _is_busy(self):
                self.cycle.disconnected = True
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing():
                body = json.dumps({"error": message}).encode()
                known = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
                all_headers = [*known, (b"connection", b"close"), *headers]
                reason = http.HTTPStatus(status).phrase
                events = (
                    h11.Response(status_code=status, headers=all_headers, reason=reason),
                    h11.Data(data=body),
                    h11.EndOfMessage(),
                )
                self.transport.write(b"".join(self.conn.send(event) for event in events))
            self.transport.close()

    return PolicyProtocol
