"""Tests of `palaestra.rollout.inference`: batches of many clients."""

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.core import Batch, ConfigError, ShapeError, TensorSpec, tree_split
from palaestra.rollout import Clients, InferenceServer, RequestError, pack

NESTED = {"image": TensorSpec((2, 2), torch.uint8), "parts": (TensorSpec((3,)), TensorSpec((), torch.int64))}
LONG_S = 20.0


def inputs(rows, start=0):
    number = np.arange(start, start + rows)
    image = np.broadcast_to(number[:, None, None], (rows, 2, 2)).astype(np.uint8)
    return {"image": image, "parts": (np.tile(number[:, None], (1, 3)).astype(np.float32), number)}


def server_of(function=lambda x: x * 2, **settings):
    server = InferenceServer(function, TensorSpec((1,)), **{"max_wait_s": LONG_S, **settings})
    for client in range(8):
        server.clients.connect(client)
    return server


def ask(server, client, value=None, rows=1):
    return server.submit(client, torch.full((rows, 1), float(client if value is None else value)))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_packing_and_unpacking_are_inverse_for_unequal_sizes(sizes):
    """PARL-25: nested inputs of any numbers of rows come back as they were."""
    given_ = [inputs(rows, start=10 * i) for i, rows in enumerate(sizes)]
    packed = pack(given_, NESTED)
    assert packed.image.dtype == torch.uint8 and packed.parts["1"].shape == (sum(sizes),)
    for one, part in zip(given_, tree_split(packed, sizes), strict=True):
        assert np.array_equal(part.image, one["image"])
        assert np.array_equal(part.parts["0"], one["parts"][0]) and np.array_equal(part.parts["1"], one["parts"][1])


def test_packing_names_the_input_and_entry_that_do_not_fit():
    with pytest.raises(ShapeError, match=r"input 1 'image' has shape \(1, 2\); its spec needs \(rows, 2, 2\)"):
        pack([inputs(1), {**inputs(1), "image": np.zeros((1, 2), np.uint8)}], NESTED)
    with pytest.raises(ShapeError, match=r"input 0 is a dict without the entry 'parts\.1'"):
        pack([{"image": inputs(1)["image"], "parts": {"0": np.zeros((1, 3))}}], NESTED)


def test_unpacking_refuses_outputs_with_another_number_of_rows():
    with pytest.raises(ShapeError, match=r"a tensor has 3 rows, but parts of \[1, 1\] rows"):
        tree_split(torch.zeros(3), [1, 1])


def test_unpacking_keeps_nests():
    parts = tree_split({"a": (torch.arange(3),), "state": ()}, [1, 2])
    assert parts[1]["a"][0].tolist() == [1, 2] and parts[1]["state"] == ()
    assert isinstance(tree_split(Batch(a=torch.zeros(2)), [1, 1])[0], Batch)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4)), min_size=1, max_size=24), st.integers(1, 9))
def test_each_client_gets_its_own_rows(requests, max_batch_size):
    """PARL-23, PARL-24: whatever the order, sizes and batches; one answer for each request."""
    with server_of(max_batch_size=max_batch_size, max_wait_s=0.0) as server:
        answers = [ask(server, client, value=i, rows=rows) for i, (client, rows) in enumerate(requests)]
        for i, (answer, (_, rows)) in enumerate(zip(answers, requests, strict=True)):
            assert answer.result(LONG_S).tolist() == [[2.0 * i]] * rows
    assert server.statistics.requests == len(requests)
    assert server.statistics.rows == sum(rows for _, rows in requests)


def test_a_batch_is_in_the_order_of_its_clients_whoever_was_faster():
    """What is drawn for each does not depend on that."""
    batches = []
    server = server_of(lambda rows: batches.append(rows.flatten().tolist()) or rows, max_batch_size=3)
    answers = [ask(server, client) for client in (5, 0, 3)]
    with server:
        assert [answer.result(LONG_S).item() for answer in answers] == [5, 0, 3]
    assert batches == [[0, 3, 5]]


def test_eight_blocked_clients_are_computed_in_fewer_calls():
    """PARL-17, PARL-23: eight threads that wait make one batch, long before the waiting time is over."""
    sizes = []
    with server_of(lambda x: sizes.append(len(x)) or x, max_batch_size=8) as server, ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda client: ask(server, client).result(LONG_S).item(), range(8)))
    assert got == list(range(8)) and sizes == [8]


def test_a_batch_closes_when_it_is_full():
    with server_of(max_batch_size=3) as server:
        answers = [ask(server, client) for client in range(3)]
        assert [answer.result(LONG_S).item() for answer in answers] == [0, 2, 4]


def test_a_batch_closes_when_its_oldest_request_has_waited_long_enough():
    """One of eight clients asks: nobody waits for the other seven."""
    with server_of(max_wait_s=0.05) as server:
        began = time.monotonic()
        assert ask(server, 5).result(LONG_S).item() == 10
        assert 0.04 < time.monotonic() - began < 60
    assert server.statistics.longest_wait_s >= 0.04


def test_a_minimum_closes_a_batch_before_it_is_full():
    """PARL-24: at least so many requests, at most so many, and a deadline."""
    sizes = []
    server = InferenceServer(
        lambda values: sizes.append(len(values)) or values,
        name="training",
        min_batch_size=2,
        max_batch_size=4,
        max_wait_s=0.05,
    )
    for client in range(7):
        server.clients.connect(client)
    answers = [server.submit(client, client) for client in range(7)]
    with server:
        assert [answer.result(LONG_S) for answer in answers] == list(range(7))
    assert sizes == [4, 3]


def test_a_batch_closes_at_once_when_all_others_wait_elsewhere():
    """Two servers share their clients: the one that waits at the other server cannot ask here."""
    clients = Clients()
    slow, fast = (
        InferenceServer(list, name=name, max_wait_s=LONG_S, clients=clients, max_batch_size=8) for name in ("a", "b")
    )
    clients.connect(0)
    clients.connect(1)
    with slow, fast:
        answers = slow.submit(0, "x"), fast.submit(1, "y")
        assert [answer.result(2.0) for answer in answers] == ["x", "y"]


def test_a_client_that_leaves_frees_its_place():
    """A dead agent: the others' batch closes without it, and its own request is dropped."""
    with server_of(max_batch_size=8) as server:
        dropped = ask(server, 7)
        answers = [ask(server, client) for client in range(6)]
        server.clients.disconnect(7)
        assert not answers[0].done()
        server.clients.disconnect(6)
        assert [answer.result(2.0).item() for answer in answers] == [0, 2, 4, 6, 8, 10]
        with pytest.raises(RequestError, match="client 7 was disconnected"):
            dropped.result(2.0)
        with pytest.raises(RequestError, match="client 7 is not connected"):
            ask(server, 7)
    assert server.statistics.dropped == 1


def test_an_error_reaches_every_waiting_client_with_its_cause_and_the_server_goes_on():
    def function(x):
        if len(x) == 3:
            raise ValueError("no threes")
        return x

    with server_of(function, max_batch_size=3, name="prediction of 'goal'") as server:
        answers = [ask(server, client) for client in range(3)]
        for answer in answers:
            with pytest.raises(
                RequestError, match=r"'goal' failed for the clients \[0, 1, 2\]: ValueError: no three"
            ) as e:
                answer.result(LONG_S)
            assert isinstance(e.value.__cause__, ValueError)
        for client in range(2, 8):
            server.clients.disconnect(client)
        again = [ask(server, client) for client in range(2)]
        assert [answer.result(LONG_S).item() for answer in again] == [0, 1]
    assert server.statistics.failed_batches == 1


def test_inputs_that_do_not_fit_are_refused_before_they_join_a_batch():
    with server_of() as server, pytest.raises(ShapeError, match="needs"):
        server.submit(0, torch.zeros(1, 2))


def test_stopping_answers_what_waits_and_refuses_what_comes_later():
    server = server_of()
    server.start()
    answers = [ask(server, client) for client in range(3)]
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 60
    assert [answer.result(0).item() for answer in answers] == [0, 2, 4]
    with pytest.raises(RequestError, match="has stopped"):
        ask(server, 0)
    server.stop()


def test_stopping_gives_up_on_a_computation_that_does_not_end():
    release = threading.Event()
    server = server_of(lambda x: release.wait(LONG_S) and x, max_batch_size=1)
    server.start()
    answer = ask(server, 0)
    with pytest.raises(RequestError, match=r"still being computed 0\.2 s after the stop"):
        server.stop(timeout_s=0.2)
    with pytest.raises(RequestError, match="still being computed"):
        answer.result(1.0)
    release.set()


def test_requests_of_a_batch_are_in_the_order_of_their_clients():
    """So that which client gets which random number does not depend on who was faster."""
    seen = []
    with server_of(lambda x: seen.append(x.flatten().tolist()) or x, max_batch_size=4) as server:
        answers = [ask(server, client) for client in (3, 0, 2, 1)]
        [answer.result(LONG_S) for answer in answers]
    assert seen == [[0, 1, 2, 3]]


def test_statistics_count_requests_batches_and_waits():
    with server_of(max_batch_size=2, max_wait_s=0.01) as server:
        for answer in [ask(server, client, rows=1) for client in range(4)] + [ask(server, 4, rows=5)]:
            answer.result(LONG_S)
    metrics = server.statistics.metrics()
    assert metrics["requests"] == 5 and server.statistics.largest_batch == 5
    assert metrics["batch_size"] == 9 / metrics["batches"] and metrics["wait_ms"] >= 0
    alone = dataclasses.replace(server.statistics, requests=1, batches=1, wait_s=0.25, busy_s=0.5).metrics()
    assert alone["wait_ms"] == 250 and alone["batch_ms"] == 500


def test_sizes_and_numbers_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="max_batch_size=0"):
        server_of(max_batch_size=0)
    with pytest.raises(ConfigError, match="client 0 is connected already"):
        server_of().clients.connect(0)
