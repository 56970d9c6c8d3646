"""Tests of `palaestra.training.services` and of the services: training never waits for one, nor ends with it."""

import inspect
import json
import logging
import posixpath
import re
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.core import MissingExtraError
from palaestra.training import Histogram, MLflowLogger, NetworkLogger, TrackioLogger, WandbLogger, services
from tests.training.parts import Recorder, trainer

START = {"env_steps": 0, "metrics": 0, "episodes": 0}
ROW = {"env_steps": 100, "return_mean": 1.5, "info/x@max": 3.0, "histogram/a": Histogram.of([1.0, 2.0])}


class Service(NetworkLogger):
    """Sends rows by a function of choice."""

    def __init__(self, sending: Callable[[int], None], close_s: float = 5.0) -> None:
        super().__init__("json", "none", close_s=close_s)
        self.sending, self.sent, self.calls = sending, [], []

    def open(self, position: Any) -> None:
        self.calls.append("open")

    def send(self, row: Any, env_steps: int) -> None:
        self.sending(env_steps)
        self.sent.append(env_steps)

    def end(self) -> None:
        self.calls.append("end")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries again after a hundredth of a second, not after a second."""
    monkeypatch.setattr(services, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(services, "_LONGEST_WAIT_S", 0.02)


def test_rows_are_sent_in_order_and_all_of_them_before_the_end():
    """F28: as many as the local log has."""
    service, local = Service(lambda step: None), Recorder()
    trainer("ppo", total=600, loggers=[local, service]).run()
    assert service.sent == [row["env_steps"] for row in local.rows]
    assert service.calls == ["open", "end"]


def test_a_service_whose_socket_hangs_holds_nobody_up(caplog):
    """F28: a server that accepts and never answers; local logs are complete, and the end waits `close_s` at most."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def sending(step: int) -> None:
            connection = socket.create_connection(server.getsockname())
            held.append(connection)
            connection.sendall(b"row")
            connection.recv(1)

        service, local, reference = Service(sending, close_s=0.2), Recorder(), Recorder()
        plain = trainer("ppo", total=600, loggers=[reference])
        plain.run()
        made = trainer("ppo", total=600, loggers=[service, local])
        began = time.monotonic()
        with caplog.at_level(logging.WARNING):
            assert made.run().status == "done"
        assert time.monotonic() - began < 20
        assert service.sent == []
        assert [row["env_steps"] for row in local.rows] == [row["env_steps"] for row in reference.rows]
        assert local.ended == reference.ended
        assert "could not be made in 0.2 s; metrics.jsonl has all" in caplog.text
        for connection in held:
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def test_a_service_that_comes_back_gets_what_it_missed(caplog, wait_until):
    """F28: nobody listens at first; rows wait, in order."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = reserved.getsockname()
    refused = threading.Event()

    def sending(step: int) -> None:
        try:
            socket.create_connection(address).close()
        except OSError:
            refused.set()
            raise

    service = Service(sending)
    with caplog.at_level(logging.WARNING):
        service.start(START)
        for step in range(5):
            service.metrics({"env_steps": step})
        wait_until(refused.is_set, what="a refused connection")
    assert caplog.text.count("will be tried again") == 1
    assert service.sent == []
    with socket.create_server(address):
        wait_until(lambda: service.sent == list(range(5)), what="all rows")
        service.close()
    assert service.calls == ["open", "end"]


def test_a_queue_that_is_full_leaves_rows_out_with_one_warning(monkeypatch, caplog):
    """F28: memory is bounded."""
    monkeypatch.setattr(services, "_CAPACITY", 3)
    gate = threading.Event()
    service = Service(lambda step: gate.wait(20) and None)
    with caplog.at_level(logging.WARNING):
        service.start(START)
        for step in range(50):
            service.metrics({"env_steps": step})
        gate.set()
        with pytest.raises(TimeoutError, match=r"^4\d call\(s\) could not be made"):
            service.close()
    assert caplog.text.count("does not keep up") == 1
    assert 3 <= len(service.sent) <= 5


def test_calls_that_fail_to_the_end_are_counted():
    """Two rows, and the end, of a service that never came back: as many as nobody gets."""

    def sending(step: int) -> None:
        raise OSError("nobody listens")

    service = Service(sending)
    service.start(START)
    for step in range(2):
        service.metrics({"env_steps": step})
    with pytest.raises(TimeoutError, match=r"^2 call\(s\) could not be made in 5 s; metrics.jsonl has all"):
        service.close()
    assert service.calls == ["open", "end"]


@pytest.mark.parametrize(
    ("kind", "package"), [(WandbLogger, "wandb"), (MLflowLogger, "mlflow"), (TrackioLogger, "trackio")]
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, kind, package):
    """F27: before anything starts, exit code 2."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"'{package}': pip install 'palaestra\[{package}\]'") as caught:
        kind("project", "runs/first")
    assert caught.value.exit_code == 2


# -- what the services are told: fakes, whose calls are held against the real package where it is installed

CALLS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "wandb": {
        "init": lambda real: real.init,
        "Histogram": lambda real: real.Histogram,
        "log": lambda real: real.Run.log,
        "finish": lambda real: real.Run.finish,
    },
    "mlflow": {
        name: lambda real, name=name: getattr(real.MlflowClient, name)
        for name in (
            *("get_experiment_by_name", "create_experiment", "search_runs", "create_run"),
            *("log_param", "log_batch", "set_terminated"),
        )
    },
    "trackio": {
        "init": lambda real: real.init,
        "log": lambda real: real.Run.log,
        "finish": lambda real: real.Run.finish,
    },
}
METHODS = ("log", "finish", *CALLS["mlflow"])


class Fake:
    """A package, a client and a run in one: notes every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.info = types.SimpleNamespace(run_id="r1")
        self.entities = types.SimpleNamespace(Metric=lambda key, value, timestamp, step: (key, value, step))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **named: Any) -> Any:
            self.calls.append((name, args, named))
            missing = name == "get_experiment_by_name"
            return None if missing else [] if name == "search_runs" else self

        return call


SERVICES = {
    "wandb": lambda folder: WandbLogger("project", folder / "first", config={"lr": 1}, mode="offline"),
    "mlflow": lambda folder: MLflowLogger("project", folder / "first", config={"lr": 1}, tracking_uri="http://x"),
    "trackio": lambda folder: TrackioLogger("project", folder / "first", config={"lr": 1}),
}


def told(
    package: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """The calls that a service gets from two rows."""
    fake = Fake()
    monkeypatch.setitem(sys.modules, package, fake)
    logger = SERVICES[package](folder)
    logger.start({**START, "env_steps": 50})
    logger.metrics(ROW)
    logger.metrics({**ROW, "env_steps": 200})
    logger.close()
    return fake.calls


def test_weights_and_biases_gets_rows_against_env_steps(tmp_path, monkeypatch):
    """The run's name, settings and identity, so that a resumed run goes on there."""
    calls = told("wandb", tmp_path, monkeypatch)
    (init,) = [named for name, _, named in calls if name == "init"]
    assert (init["project"], init["name"], init["mode"], init["resume"]) == ("project", "first", "offline", "allow")
    assert len(init["id"]) == 16  # another length is another run: those of older versions would not go on
    assert init["id"] == next(n for name, _, n in told("wandb", tmp_path, monkeypatch) if name == "init")["id"]
    logged = [(args[0], named["step"]) for name, args, named in calls if name == "log"]
    assert [step for _, step in logged] == [100, 200]
    (tmp_path / "first").mkdir()  # a run's own identity counts, not where it lies
    (tmp_path / "first/run.json").write_text(json.dumps({"id": "0123456789abcdef0123"}))
    again = next(named for name, _, named in told("wandb", tmp_path, monkeypatch) if name == "init")
    assert again["id"] == "0123456789abcdef" != init["id"]
    assert logged[0][0]["return_mean"] == 1.5
    assert [name for name, *_ in calls][-1] == "finish"


def test_mlflow_gets_every_number_under_a_name_it_allows(tmp_path, monkeypatch):
    """`@` becomes a dot; histograms are left out; settings are parameters of a new run; a row is one call."""
    calls = told("mlflow", tmp_path, monkeypatch)
    first, second = [named["metrics"] for name, _, named in calls if name == "log_batch"]
    assert first == [("env_steps", 100.0, 100), ("return_mean", 1.5, 100), ("info/x.max", 3.0, 100)]
    assert ("info/x.max", 3.0, 200) in second
    assert ("log_param", ("r1", "lr", 1), {}) in calls
    assert calls[-1] == ("set_terminated", ("r1",), {})


def mlflow_refuses(name: str) -> bool:
    """MLflow's rule of names, as its messages say it."""
    return not re.fullmatch(r"[/\w.\- :]{1,250}", name) or posixpath.normpath(name) != name or name[0] in "/."


def test_every_name_is_one_that_mlflow_allows_and_no_two_become_one(tmp_path, monkeypatch):
    """`speed (m/s)` once stopped the logger: the first row was tried for ever."""
    letters = [*"ab/. :-_@()[]%+#,;'\"\\\n\t\0éß漢", "..", "//"]
    rng = np.random.default_rng(0)
    names = ["info/speed (m/s)", "info/speed [m/s]", "", "/", "a/../b", "x" * 600, "x" * 601]
    names += ["".join(rng.choice(letters, rng.integers(1, 12))) for _ in range(300)]
    names = list(dict.fromkeys(names))
    fake = Fake()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    logger = SERVICES["mlflow"](tmp_path)
    logger.start(START)
    for step in (1, 2):
        logger.metrics({"env_steps": step, **dict.fromkeys(names, 1.0)})
    logger.close()
    first, second = [[name for name, *_ in named["metrics"]] for call, _, named in fake.calls if call == "log_batch"]
    assert first == second
    assert len(set(first)) == len(names) + 1
    assert not [name for name in first if mlflow_refuses(name)]
    assert first[1:3] == ["info/speed _m/s_", "info/speed _m/s_ 2"]


class RefusedError(Exception):
    """As MLflow says that it will never take something."""

    error_code = "INVALID_PARAMETER_VALUE"


@pytest.mark.parametrize("error", [RefusedError("a value"), TypeError("a value"), UnicodeError("half a letter")])
def test_a_row_that_is_refused_for_good_is_given_up_and_said(tmp_path, monkeypatch, caplog, error):
    """The rows behind it arrive, each once."""
    sent: list[int] = []

    def log_batch(run: str, metrics: Any) -> None:
        step = metrics[0][2]
        if step in (1, 2):
            raise error
        sent.append(step)

    fake = Fake()
    fake.log_batch = log_batch
    fake.MlflowClient = lambda **named: fake
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    logger = SERVICES["mlflow"](tmp_path)
    with caplog.at_level(logging.WARNING):
        logger.start(START)
        for step in range(5):
            logger.metrics({"env_steps": step})
        with pytest.raises(TimeoutError, match=r"^2 row\(s\) were refused; metrics.jsonl has all"):
            logger.close()
    assert sent == [0, 3, 4]
    assert caplog.text.count("rows are left out which the service refuses") == 1


def test_trackio_gets_rows_against_env_steps(tmp_path, monkeypatch):
    calls = told("trackio", tmp_path, monkeypatch)
    (init,) = [named for name, _, named in calls if name == "init"]
    assert (init["project"], init["name"], init["resume"]) == ("project", "first", "allow")
    logged = [(args[0], named["step"]) for name, args, named in calls if name == "log"]
    assert logged[1] == ({"env_steps": 200, "return_mean": 1.5, "info/x@max": 3.0}, 200)


@pytest.mark.parametrize("package", SERVICES)
def test_seeds_of_a_group_are_told_apart(tmp_path, monkeypatch, package):
    """All of them are `seed_0`, `seed_1` and so on, in every group."""
    group = tmp_path / "group"
    group.mkdir()
    (group / "group.json").write_text("{}")
    monkeypatch.setattr(sys.modules["palaestra.experiments.run"], "for_new_run", lambda config: config)  # as a seed is
    calls = told(package, group, monkeypatch)
    names = [named.get("name", named.get("run_name")) for name, _, named in calls if name in ("init", "create_run")]
    assert names == ["group/first"]


def test_a_run_of_mlflow_is_made_once_and_found_by_what_no_other_has(tmp_path, monkeypatch, wait_until):
    """A parameter that is not taken at first is sent again, to the same run."""
    fake, failures = Fake(), iter([ConnectionError("gone")])
    take = Fake.__getattr__

    def failing(self, name):
        call = take(self, name)

        def once(*args, **named):
            if name == "log_param" and (error := next(failures, None)):
                raise error
            return call(*args, **named)

        return once

    monkeypatch.setattr(Fake, "__getattr__", failing)
    monkeypatch.setattr("palaestra.training.services._FIRST_WAIT_S", 0.01)
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    logger = SERVICES["mlflow"](tmp_path)
    logger.start({**START, "env_steps": 50})
    wait_until(lambda: [call for call in fake.calls if call[0] == "log_param"], what="the parameter, sent again")
    logger.close()
    (made,) = [named for name, _, named in fake.calls if name == "create_run"]
    ((tag, identity),) = made["tags"].items()
    assert {named["filter_string"] for name, _, named in fake.calls if name == "search_runs"} == {
        f"tags.{tag} = '{identity}'"
    }


@pytest.mark.parametrize("package", SERVICES)
def test_the_calls_are_those_of_the_real_package(tmp_path, monkeypatch, package):
    """Every call binds to the real signature."""
    real = pytest.importorskip(package)
    calls = told(package, tmp_path, monkeypatch)
    checked = set()
    for name, args, named in calls:
        if name in CALLS[package]:
            own = (None, *args) if name in METHODS else args
            inspect.signature(CALLS[package][name](real)).bind(*own, **named)
            checked.add(name)
    assert checked == set(CALLS[package])
