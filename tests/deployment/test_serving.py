"""Tests of `palaestra serve`: real sockets, a real client."""

import asyncio
import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

import palaestra
from palaestra.core import Batch, ConfigError
from palaestra.deployment import ServingConfig
from palaestra.policies import Policy
from tests.cli.parts import exit_code
from tests.deployment.served import REMEMBERS, Running, made, serving

TOKEN = "0123456789abcdef"
SEEN = [0.1, -0.2, 0.3, 0.4]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A server that most tests share, and its policy."""
    folder = tmp_path_factory.mktemp("plain") / "policy"
    policy = made(folder)
    with serving(folder, max_batch_size=16) as running:
        yield running, policy


def test_actions_are_those_of_the_policy(plain):
    running, policy = plain
    rows = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    expected = policy(rows).tolist()
    assert len(set(expected)) > 1
    assert running.act(observations=rows.tolist()) == {"actions": expected}
    assert [running.act(observation=row.tolist())["action"] for row in rows[:3]] == expected[:3]


def test_concurrent_requests_are_computed_together_and_answered_apart(plain):
    running, policy = plain
    rows = np.random.default_rng(1).normal(size=(64, 4)).astype(np.float32)
    with ThreadPoolExecutor(8) as pool:
        actions = list(pool.map(lambda row: running.act(observation=row.tolist())["action"], rows))
    assert actions == policy(rows).tolist()


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"observation": SEEN[:3]}, 400, "observation has 3 entries; it needs 4"),
        ({"observation": [*SEEN[:3], "1"]}, 400, "observation[3] is '1'; numbers of float32 are needed"),
        ({"observation": [*SEEN[:3], True]}, 400, "observation[3] is True"),
        ({"observation": [*SEEN[:3], 1e39]}, 400, "observation[3] is not finite as float32"),
        ({"observations": [SEEN, SEEN[0]]}, 400, "observations[1] is 0.1; a list of 4 is needed"),
        ({"observations": [SEEN] * 17}, 400, "a list of 1 to 16"),
        ({"observation": SEEN, "observations": [SEEN]}, 400, "give either"),
        ({"observation": SEEN, "deterministic": True}, 400, "unknown key 'deterministic'"),
        ({"observation": SEEN, "first": 1}, 400, "first must be true or false"),
        ({"observation": SEEN, "session": "x"}, 400, "has no memory"),
        ({"observation": SEEN, "agent": "other"}, 400, "agent is 'other'; there are policy"),
        ([], 400, "the body is a list"),
        ('{"observation": [NaN, 0, 0, 0]}', 400, "NaN is not JSON"),
        ('{"observation": [' + "9" * 400 + ", 0, 0, 0]}", 400, "cannot hold"),
        ('{"observation": ' + "[" * 5000 + "]" * 5000 + "}", 400, "nested too deep"),
        ('{"observation"', 400, "cannot be read as JSON"),
        (b"\xff\xfe\x00", 400, "cannot be read as JSON"),
        ("[" + " " * 70_000 + "]", 413, "more than"),
    ],
)
def test_what_is_wrong_is_refused_and_never_reaches_the_policy(plain, body, status, said):
    """F29: wrong types, sizes, keys, NaN and deep nesting are answered with what was given and what is needed."""
    running, _ = plain
    before = running.metric("policy_rows_total")
    content = body if isinstance(body, str | bytes) else json.dumps(body)
    answer = running.client.post("/act", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert said in answer.json()["error"]
    assert "server" not in answer.headers, "who asks learns no versions"
    assert running.metric("policy_rows_total") == before
    assert running.act(observation=SEEN)


def connected(running: Running, sent: bytes) -> socket.socket:
    url = running.client.base_url
    connection = socket.create_connection((url.host, url.port), timeout=20)
    connection.sendall(sent)
    return connection


def answered(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_garbage_and_slow_senders_lose_their_connection(tmp_path):
    """F29: what is no HTTP, or does not come in time, is closed with words where there is something to answer."""
    made(tmp_path)
    head = b"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    statuses = {
        b"\x16\x03\x01\x00 garbage\r\n\r\n": b"400",
        head + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n": b"400",
        head + b"Transfer-Encoding: chunked\r\n\r\nmuch\r\n": b"400",
        head + b"X: " + b"x" * 100_000: b"400",
        head: b"408",
        head + b'Content-Length: 99\r\n\r\n{"obs': b"408",
        b"": b"",
    }
    with serving(tmp_path, timeout_s=2.0) as running:
        connections = [connected(running, sent) for sent in statuses]
        for connection, status in zip(connections, statuses.values(), strict=True):
            answer = answered(connection)
            assert answer.startswith(b"HTTP/1.1 " + status if status else b"")
            assert not status or "error" in json.loads(answer.partition(b"\r\n\r\n")[2])
        assert running.metric("policy_rows_total") == 0
        assert running.act(observation=SEEN)


def test_other_methods_and_paths_are_refused_with_what_there_is(plain):
    running, _ = plain
    assert running.client.get("/act").status_code == 405
    assert "POST /act" in running.client.get("/docs").json()["error"]
    assert running.client.post("/act", content="observation=1").status_code == 415


def test_the_schema_accepts_what_the_server_accepts(plain):
    jsonschema = pytest.importorskip("jsonschema")
    schema = plain[0].client.get("/schema").json()["policies"]["policy"]["request"]
    valid = jsonschema.Draft202012Validator(schema).is_valid
    assert valid({"observation": SEEN})
    assert valid({"observations": [SEEN, SEEN], "first": [True, False]})
    for wrong in ({}, {"observation": SEEN[:3]}, {"observation": SEEN, "x": 1}, {"observations": []}):
        assert not valid(wrong)


def test_metrics_count_answers_by_their_status(plain):
    running, _ = plain
    assert running.act(observation=SEEN)
    before = running.metric('requests_total{code="200"}')
    running.act(observation=SEEN)
    assert running.metric('requests_total{code="200"}') == before + 2  # the first metrics, too
    assert running.metric("policy_batches_total") <= running.metric("policy_rows_total")


# -- who may ask


def test_only_loopback_needs_no_token(monkeypatch):
    """F30: a server that others can reach does not start without a token."""
    monkeypatch.delenv("PALAESTRA_TOKEN", raising=False)
    assert ServingConfig(host="::1").secret is None
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(ConfigError, match="needs a token of at least 16"):
            ServingConfig(host=host)
    for token in ("", "short", TOKEN + "ä", TOKEN + "\n"):
        with pytest.raises(ConfigError, match=r"needs a token.*, or leave it out, as only this machine") as refused:
            ServingConfig(token=token)
        assert not token or token not in str(refused.value)
    monkeypatch.setenv("PALAESTRA_TOKEN", TOKEN)
    assert TOKEN not in repr(ServingConfig(host="0.0.0.0")) + repr(ServingConfig(token=TOKEN))


def test_without_the_token_nothing_is_answered_but_whether_it_is_well(tmp_path, caplog):
    """F30: every path and every kind of wrong token; the token is in no answer and in no log."""
    made(tmp_path)
    with serving(tmp_path, token=TOKEN) as running:
        wrong = ["", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", f"bearer {TOKEN}"]
        for given in wrong:
            headers = {"Authorization": given}
            answers = [running.client.get(path, headers=headers) for path in ("/schema", "/metrics")]
            answers.append(running.client.post("/act", json={"observation": SEEN}, headers=headers))
            assert {answer.status_code for answer in answers} == {401}
            assert answers[0].headers["WWW-Authenticate"] == "Bearer"
            assert not any(TOKEN in answer.text for answer in answers)
        assert running.client.get("/health", headers={"Authorization": ""}).json() == {"status": "ok"}
        assert running.metric("policy_rows_total") == 0
        assert "action" in running.act(observation=SEEN)
    assert TOKEN not in caplog.text


# -- memory


def test_a_policy_with_memory_acts_as_in_one_process(tmp_path):
    policy, rows = made(tmp_path, REMEMBERS), np.random.default_rng(0).normal(size=(2, 12, 4)).astype(np.float32)
    expected = []
    for episode in rows:
        state = None
        for row in episode:
            answer = policy(Batch(obs=row[None]), state)
            state = answer.state
            expected.append(int(answer.act[0]))
    assert expected != policy(rows).reshape(-1).tolist()  # without memory they would differ
    with serving(tmp_path) as running:
        actions, sessions = [[], []], [{"first": True}, {"first": True}]
        for t in range(rows.shape[1]):  # two clients in turns
            for client in (0, 1):
                answer = running.act(observation=rows[client, t].tolist(), **sessions[client])
                sessions[client] = {"session": answer["session"]}
                actions[client].append(answer["action"])
        assert actions[0] + actions[1] == expected
        again = [running.act(observation=row.tolist(), first=t == 0, **sessions[1]) for t, row in enumerate(rows[0])]
        assert [answer["action"] for answer in again] == expected[:12]
        assert running.metric("sessions") == 2


def test_sessions_are_bounded_and_what_was_evicted_is_named(tmp_path):
    made(tmp_path, REMEMBERS)
    with serving(tmp_path, max_sessions=2) as running:
        first, second = (running.act(observations=[SEEN] * n, first=True)["session"] for n in (1, 2))
        running.act(observation=SEEN, session=first)
        third = running.act(observation=SEEN, first=True)["session"]
        assert "evicted: 2 others" in running.act(410, observations=[SEEN] * 2, session=second)["error"]
        assert "no such session" in running.act(404, observation=SEEN, session="x")["error"]
        assert "is of 1 observations, and 2" in running.act(400, observations=[SEEN] * 2, session=third)["error"]
        assert "begin an episode" in running.act(400, observation=SEEN)["error"]
        assert "action" in running.act(observation=SEEN, session=first)
        assert running.metric("sessions_evicted_total") == 1


# -- load, and other policies


def test_too_many_requests_are_sent_away_while_one_is_computed(tmp_path, monkeypatch, wait_until):
    """F29: memory is bounded; what is beyond it is told to come again."""
    made(tmp_path)
    go, entered = threading.Event(), threading.Event()
    act = Policy.act

    def slow(self, *arguments, **options):
        entered.set()
        assert go.wait(30)
        return act(self, *arguments, **options)

    head = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    content = json.dumps({"observation": SEEN}).encode()
    request = (
        b"POST /act" + head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content) + content
    )
    with serving(tmp_path, max_connections=3) as running:
        monkeypatch.setattr(Policy, "act", slow)
        held = [connected(running, request) for _ in range(2)]  # in this order, before those that follow
        assert entered.wait(30)
        with connected(running, b""):
            question = b"GET /health" + head + b"\r\n"
            wait_until(lambda: answered(connected(running, question)).startswith(b"HTTP/1.1 503"))
            assert b"retry-after: 1" in answered(connected(running, question))
        go.set()
        assert all(b'"action"' in answered(one) for one in held)


def test_a_better_policy_is_loaded_and_a_damaged_one_is_not(tmp_path, wait_until, caplog):
    old = made(tmp_path / "policy", seed=0)
    rows = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    with serving(tmp_path / "policy", reload_s=0.02) as running:

        def actions():
            return running.act(observations=rows.tolist())["actions"]

        assert actions() == old(rows).tolist()
        new = made(tmp_path / "policy", seed=1)
        assert new(rows).tolist() != old(rows).tolist()
        wait_until(lambda: actions() == new(rows).tolist())
        weights = tmp_path / "policy/weights.safetensors"
        whole = weights.read_bytes()
        (tmp_path / "damaged").write_bytes(whole[:-4] + b"\x00\x00\xc0\x7f")
        (tmp_path / "damaged").replace(weights)
        wait_until(lambda: running.metric('reloads_total{result="failed"}') == 1)
        health = running.client.get("/health").json()
        assert health["status"] == "old policy"
        assert "weights.safetensors is not the file" in health["problems"]["policy"]
        made(tmp_path / "policy", size=5)
        wait_until(lambda: "observation_spec" in running.client.get("/health").json()["problems"]["policy"])
        assert actions() == new(rows).tolist()
        made(tmp_path / "policy", seed=0)
        wait_until(lambda: actions() == old(rows).tolist())
        assert running.client.get("/health").json() == {"status": "ok"}
        assert running.metric('reloads_total{result="done"}') == 2


def test_a_failing_policy_is_an_error_of_its_requests_alone(tmp_path, monkeypatch, caplog):
    made(tmp_path)
    with serving(tmp_path) as running:
        with monkeypatch.context() as patched:
            patched.setattr(Policy, "act", lambda *_, **__: 1 / 0)
            assert "ZeroDivisionError" in running.act(500, observation=SEEN)["error"]
        assert "action" in running.act(observation=SEEN)


# -- the command


def test_in_a_notebook_it_says_that_a_thread_is_needed(tmp_path):
    async def cell():
        palaestra.serve(tmp_path)

    with pytest.raises(ConfigError, match="as notebooks do"):
        asyncio.run(cell())


@pytest.mark.parametrize("sent", [[signal.SIGTERM], [signal.SIGHUP] * 3], ids=["sigterm", "closed_terminal"])
def test_the_command_serves_until_sigterm_and_ends_with_0(sent, tmp_path, capsys, wait_until, hears_hangups):
    made(tmp_path / "policy")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    answers = []

    def client():
        def ask():
            try:
                return answers.append(httpx.post(f"http://127.0.0.1:{port}/act", json={"observation": SEEN})) or True
            except httpx.TransportError:
                return False

        wait_until(ask)
        for number in sent:
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=client)
    thread.start()
    assert exit_code("serve", str(tmp_path / "policy"), "--port", str(port), "--json") == 0
    thread.join()
    started, ended = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert started == {"url": f"http://127.0.0.1:{port}", "pid": os.getpid()}
    assert ended == {"answered": 1, "refused": 0, "unanswered": 0}
    assert answers[0].status_code == 200


def test_an_address_in_use_and_a_folder_without_a_policy_are_named(tmp_path, capsys):
    made(tmp_path / "policy")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert exit_code("serve", str(tmp_path / "policy"), "--port", str(port)) == 2
    assert f"127.0.0.1:{port} cannot be listened at" in capsys.readouterr().err
    assert exit_code("serve", str(tmp_path), "--port", "0") == 5


def test_every_accepted_request_is_answered_when_the_server_stops(tmp_path):
    """Clients that keep their connections learn that it closes; those that come later are refused."""
    made(tmp_path)
    done, lost, stopping = [0] * 4, [], threading.Event()
    with serving(tmp_path) as running:
        url = str(running.client.base_url)

        def ask(number):
            with httpx.Client(base_url=url) as client:
                while True:
                    try:
                        answer = client.post("/act", json={"observation": SEEN})
                        assert answer.status_code == 200
                        done[number] += 1
                    except httpx.ConnectError:
                        return
                    except Exception as error:
                        lost.append(error)
                        return

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        deadline_s = time.monotonic() + 30
        while min(done) < 20 and time.monotonic() < deadline_s and not lost:
            stopping.wait(0.01)
    for thread in threads:
        thread.join(30)
    assert lost == []
    assert running.served is not None and running.served.unanswered == 0
    assert running.served.answered == sum(done) >= 80


@pytest.mark.parametrize("header", ["host", "origin"])
@pytest.mark.parametrize("name", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.com", "[::2]:{port}", "null"])
def test_a_server_answers_only_by_the_names_that_it_was_told(tmp_path, header, name):
    """A page whose name leads to this machine (rebinding of names) could ask it otherwise."""
    made(tmp_path)
    with serving(tmp_path) as running:
        port = running.client.base_url.port
        given = ("http://" if header == "origin" and name != "null" else "") + name.format(port=port)
        for path in ("/schema", "/health", "/metrics"):
            answer = running.client.get(path, headers={header: given})
            assert answer.status_code == 403
            assert header in answer.json()["error"]
        for local in (f"localhost:{port}", "LOCALHOST", "127.0.0.1:9", f"[::1]:{port}"):
            assert (
                running.client.get("/schema", headers={"host": local, "origin": f"http://{local}"}).status_code == 200
            )


def test_a_server_that_listens_everywhere_has_a_token_and_any_name(tmp_path):
    made(tmp_path)
    token = "0123456789abcdef"
    with serving(tmp_path, host="0.0.0.0", token=token) as running:
        headers = {"host": "robot.example", "authorization": f"Bearer {token}"}
        assert running.client.get("/schema", headers=headers).status_code == 200
