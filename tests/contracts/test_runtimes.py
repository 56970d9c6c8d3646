"""What every runtime does, in this process, in others and on a Ray cluster."""

import functools
import importlib.util
import random
import threading
import time

import numpy as np
import pytest
import torch

from palaestra.core import ConfigError
from palaestra.runtime import (
    LocalRuntime,
    Parcel,
    ProcessRuntime,
    RayRuntime,
    RemoteError,
    RestartPolicy,
    Shared,
    WorkerDiedError,
)
from palaestra.runtime.messages import Message
from tests.contracts.workers import Counter, Stubborn, Unreadable, broken

QUICK = RestartPolicy(max_restarts=3, backoff_s=0.01)
SOON = 60.0
"""Seconds: long enough for a busy machine, and never waited for in vain."""


NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'palaestra[ray]'"
)


@pytest.fixture(scope="module")
def ray_here():
    """Ray on this machine, started once."""
    runtime = RayRuntime()
    yield
    runtime.close()


@pytest.fixture(
    params=[LocalRuntime, ProcessRuntime, pytest.param(RayRuntime, marks=[pytest.mark.slow, NEEDS_RAY])],
    ids=lambda kind: kind.__name__,
)
def runtime(request):
    if request.param is RayRuntime:
        request.getfixturevalue("ray_here")
    with request.param(QUICK) as runtime:
        yield runtime


def answer(runtime, worker, method, *args, **kwargs):
    (result,) = runtime.wait([runtime.call(worker, method, *args, **kwargs)], timeout_s=SOON)
    return result.unwrap()


def test_a_worker_keeps_its_state_and_does_its_calls_in_order(runtime):
    worker = runtime.start(functools.partial(Counter, 5), name="counter")
    calls = [runtime.call(worker, "add", n) for n in (1, 2, 3)] + [runtime.call(worker, "add", 1, twice=True)]
    assert [result.unwrap() for result in runtime.wait(calls, timeout_s=SOON)] == [6, 8, 11, 13]
    assert [call.sequence for call in calls] == [1, 2, 3, 4]
    assert {call.incarnation for call in calls} == {0}


def test_workers_of_one_name_are_told_apart(runtime):
    workers = [runtime.start(functools.partial(Counter, n), name="counter") for n in (10, 20)]
    assert len(set(workers)) == 2
    calls = [runtime.call(worker, "add") for worker in workers]
    assert [result.unwrap() for result in runtime.wait(calls, timeout_s=SOON)] == [11, 21]


def test_arrays_and_tensors_of_any_kind_arrive_as_they_were(runtime):
    sent = {
        "large": np.arange(300_000, dtype=np.float32).reshape(3, -1),
        "columns": np.asfortranarray(np.arange(6000).reshape(60, 100)),
        "every other": np.arange(5000)[::2],
        "scalar": np.float64(3.0),
        "empty": np.zeros((0, 4), np.int8),
        "flags": torch.tensor([True, False]),
        "half": torch.ones(2000, dtype=torch.bfloat16),
        "transposed": torch.arange(6000.0).reshape(60, 100).T,
        "bare": torch.tensor(2.5),
        "words": ["a", None, ("b", 1)],
    }
    worker = runtime.start(Counter, name="echo")
    came = answer(runtime, worker, "echo", sent)
    for name, value in sent.items():
        if isinstance(value, np.ndarray):
            assert came[name].dtype == value.dtype
            assert np.array_equal(came[name], value)
            assert came[name].flags.writeable
        elif isinstance(value, torch.Tensor):
            assert came[name].dtype == value.dtype
            assert torch.equal(came[name], value)
        else:
            assert came[name] == value


def test_arguments_travel_by_value_at_the_moment_of_the_call(runtime):
    worker = runtime.start(Counter, name="echo")
    array = np.zeros(10_000)
    calls = [runtime.call(worker, "add"), runtime.call(worker, "echo", array)]  # the second one waits for the first
    array += 1
    _, result = runtime.wait(calls, timeout_s=SOON)
    assert result.unwrap().sum() == 0
    array += 1
    assert result.unwrap().sum() == 0


def test_results_keep_their_memory_when_others_arrive(runtime):
    worker = runtime.start(Counter, name="echo")
    first = answer(runtime, worker, "echo", np.zeros(10_000))
    answer(runtime, worker, "echo", np.ones(10_000))
    assert first.sum() == 0


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_parcels_go_from_one_worker_to_another_and_are_opened_there(runtime, room):
    """More than there is room for travel with the rest, and so do small ones; labels travel with all."""
    giver, taker = (runtime.start(Counter, name=name, parcels=room) for name in ("giver", "taker"))
    first, second = answer(runtime, giver, "parcels", 2, 10_000)["parcels"]
    assert isinstance(first, Parcel)
    assert isinstance(first.content, Message) == (room == 0 or not isinstance(runtime, RayRuntime))  # else it is a name
    assert answer(runtime, taker, "opened", first, 1, other=second) == [(0, 10_000), (1, 10_000)]
    assert answer(runtime, taker, "opened", second, 0) == [(1, 10_000)]
    (small,) = answer(runtime, giver, "parcels", 1, 5)["parcels"]
    assert isinstance(small.content, Message)
    assert answer(runtime, taker, "opened", small, 1) == [(0, 5)]
    assert [one.label for one in (first, second, small)] == ["number 0", "number 1", "number 0"]
    assert answer(runtime, taker, "labels", first, small) == ["number 0", "number 0"]


@pytest.mark.parametrize("room", [0, 1, 2])
def test_closures_travel_beside_parcels_and_in_them(runtime, room):
    """What plain pickle cannot send does not depend on whether parcels stay where they are."""
    giver, taker = (runtime.start(functools.partial(Counter, 5), name=name, parcels=room) for name in ("one", "other"))
    first, closure, second = answer(runtime, giver, "parcels_and_closure", 2)
    assert closure() == 7
    assert answer(runtime, taker, "called", first) == 2
    assert answer(runtime, taker, "opened_alone", second) == 2


def test_a_parcel_outlives_the_worker_that_made_it(runtime):
    giver, taker = (runtime.start(Counter, name=name, parcels=1) for name in ("giver", "taker"))
    (parcel,) = answer(runtime, giver, "parcels", 1)["parcels"]
    runtime.stop(giver)
    assert answer(runtime, taker, "opened", parcel, 2) == [(0, 10_000)]


def test_shared_values_go_to_each_worker_once(runtime):
    workers = [runtime.start(Counter, name="counter") for _ in range(2)]
    weights, offset = Shared({"w": torch.ones(1000)}), Shared({"w": torch.full((1000,), 0.5)})
    for factor in (2, 3):
        for worker in workers:
            assert torch.equal(answer(runtime, worker, "scale", weights, factor), torch.full((1000,), float(factor)))
            assert answer(runtime, worker, "scale", weights, factor, offset=offset)[0] == factor + 0.5
    assert [answer(runtime, worker, "distinct_weights") for worker in workers] == [1, 1]


def test_more_shared_values_than_a_worker_keeps_are_sent_again(runtime):
    worker = runtime.start(Counter, name="counter")
    versions = [Shared({"w": torch.full((10,), float(n))}) for n in range(11)]
    for n in [*range(11), *range(11)]:
        assert answer(runtime, worker, "scale", versions[n], 1)[0] == n


def test_large_shared_values_that_were_forgotten_are_sent_again(runtime):
    """Six of 20 MB in any order, two at a time: a worker keeps three of them, and its driver knows which."""
    values = [Shared({"w": torch.tensor(float(n)), "rows": torch.zeros(5_000_000)}) for n in range(6)]
    worker, drawn = runtime.start(Counter, name="counter"), random.Random(0)
    for _ in range(30):
        one, other = drawn.randrange(6), drawn.randrange(6)
        assert answer(runtime, worker, "scale", values[one], 10, offset=values[other]) == 10 * one + other


def test_shared_values_are_kept_though_a_call_could_not_be_read(runtime):
    """What else it was given raises where it is read; the next call names the same value."""
    worker, weights = runtime.start(Counter, name="counter"), Shared({"w": torch.ones(5)})
    for _ in range(2):
        with pytest.raises(RemoteError, match="cannot be read here"):
            answer(runtime, worker, "scale", weights, Unreadable())
        assert answer(runtime, worker, "scale", weights, 3)[0] == 3
    broken, good = Shared(Unreadable()), Shared({"w": torch.ones(5)})
    for _ in range(2):
        with pytest.raises(RemoteError, match="cannot be read here"):
            answer(runtime, worker, "scale", good, 1, offset=broken)
        assert answer(runtime, worker, "scale", good, 3)[0] == 3


def test_a_placement_group_has_a_place_for_each_of_its_workers_and_their_restarts(runtime):
    """On one machine there is nothing to place; what is promised holds all the same."""
    group = runtime.placement_group([{}, {}], name="counters")
    first, second = (runtime.start(Counter, name="counter", resources=group) for _ in range(2))
    assert [answer(runtime, worker, "add") for worker in (first, second)] == [1, 1]
    runtime.restart(first)
    assert answer(runtime, first, "add") == 1
    with pytest.raises(ConfigError, match=r"the placement group 'counters' has room for 2 workers"):
        runtime.start(Counter, name="counter", resources=group)
    assert list(runtime.status()) == [first, second]
    runtime.stop(first)
    assert runtime._groups == [group]
    runtime.stop(second)
    assert runtime._groups == []
    runtime.placement_group([{}], name="nobody")
    runtime.close()
    assert runtime._groups == []
    with pytest.raises(ConfigError, match="was closed"):
        runtime.placement_group([{}], name="counters")


def test_what_a_method_raises_comes_back_as_text_and_the_worker_lives_on(runtime):
    """F2: the exception itself need not be picklable."""
    worker = runtime.start(Counter, name="counter")
    with pytest.raises(RemoteError, match=r"counter: fail raised NonFiniteError(.|\n)*the loss is NaN") as raised:
        answer(runtime, worker, "fail")
    assert (raised.value.kind, raised.value.exit_code) == ("NonFiniteError", 4)
    with pytest.raises(RemoteError, match=r"TwoWordsError(.|\n)*a and b"):
        answer(runtime, worker, "fail_strangely")
    with pytest.raises(RemoteError, match="cannot be sent"):
        answer(runtime, worker, "lock")
    with pytest.raises(RemoteError, match="AttributeError"):
        answer(runtime, worker, "no_such_method")
    assert answer(runtime, worker, "add") == 1


def test_an_object_that_cannot_be_made_fails_its_calls(runtime):
    worker = runtime.start(broken, name="broken")
    calls = [runtime.call(worker, "add"), runtime.call(worker, "add")]
    for result in runtime.wait(calls, timeout_s=SOON):
        assert isinstance(result.error, RemoteError)
        assert "could not be made" in str(result.error)
        assert "no such environment" in str(result.error)
        assert result.error.exit_code == 2
    (late,) = runtime.wait([runtime.call(worker, "add")], timeout_s=SOON)
    assert isinstance(late.error, RemoteError)
    assert runtime.status()[worker].state == "dead"


def test_lambdas_and_local_functions_travel_with_what_they_have_bound(runtime):
    """As what makes a worker's object, as an argument, and as an answer."""
    start, large = 5, torch.arange(500.0)

    def added(number):
        return number + start + large.sum().item()

    worker = runtime.start(lambda: Counter(start), name="counter")
    assert answer(runtime, worker, "add") == 6
    assert answer(runtime, worker, "echo", {"f": added})["f"](1) == 6 + 124_750
    assert answer(runtime, worker, "lambda_")() == 0


def test_what_cannot_be_sent_is_refused_at_once(runtime):
    lock = threading.Lock()
    worker = runtime.start(Counter, name="counter")
    with pytest.raises(ConfigError, match=r"cannot be sent to a worker: .*lock.*where it is used"):
        runtime.call(worker, "echo", lock)
    with pytest.raises(ConfigError, match="cannot be sent to a worker"):
        runtime.start(lambda: lock, name="other")
    assert list(runtime.status()) == [worker]
    assert answer(runtime, worker, "add") == 1


def test_waiting_for_some_returns_when_they_have_ended(runtime):
    """MARO-04."""
    workers = [runtime.start(Counter, name="counter") for _ in range(3)]
    calls = [runtime.call(worker, "add") for worker in workers]
    some = runtime.wait(calls, at_least=2, timeout_s=SOON)
    assert len(some) >= 2
    rest = runtime.wait([call for call in calls if call not in {r.call for r in some}], timeout_s=SOON)
    assert {result.call for result in some + rest} == set(calls)


def test_no_time_to_wait_takes_what_is_there(runtime, wait_until):
    worker = runtime.start(Counter, name="counter")
    call = runtime.call(worker, "add")
    results = []
    wait_until(lambda: results or results.extend(runtime.wait([call], timeout_s=0.0)) or results, SOON)
    assert results[0].unwrap() == 1


def test_a_result_is_taken_once(runtime):
    worker = runtime.start(Counter, name="counter")
    call = runtime.call(worker, "add")
    assert len(runtime.wait([call], timeout_s=SOON)) == 1
    with pytest.raises(ConfigError, match="taken already"):
        runtime.wait([call], timeout_s=SOON)


def test_a_restarted_worker_is_new_and_its_unanswered_calls_fail(runtime):
    """F14."""
    worker = runtime.start(Counter, name="counter")
    assert answer(runtime, worker, "add") == 1
    lost = runtime.call(worker, "add")
    runtime.restart(worker)
    call = runtime.call(worker, "add")
    assert (call.incarnation, call.sequence) == (1, 1)
    first, second = runtime.wait([lost, call], timeout_s=SOON)
    assert isinstance(first.error, WorkerDiedError) or first.value == 2  # it may have been quick
    assert second.unwrap() == 1
    assert runtime.restarted == 1
    assert runtime.status()[worker].incarnation == 1


def test_shared_values_are_sent_again_to_a_new_life(runtime):
    """F14: weights re-sent."""
    worker = runtime.start(Counter, name="counter")
    weights = Shared({"w": torch.ones(5)})
    answer(runtime, worker, "scale", weights, 2)
    runtime.restart(worker)
    assert answer(runtime, worker, "scale", weights, 2)[0] == 2


def test_restarts_wait_longer_and_longer_and_end_with_the_first_cause(runtime):
    worker = runtime.start(broken, name="broken")
    runtime.wait([runtime.call(worker, "add")], timeout_s=SOON)
    for _ in range(QUICK.max_restarts):
        runtime.restart(worker)
        assert runtime.status()[worker].state == "waiting"
        (result,) = runtime.wait([runtime.call(worker, "add")], timeout_s=SOON)
        assert "no such environment" in str(result.error)
    with pytest.raises(WorkerDiedError, match=r"restarted 3 times within an hour(.|\n)*no such environment"):
        runtime.restart(worker)


def test_a_worker_that_lives_is_restarted_for_a_reason(runtime):
    """F15: and it is the first cause, if that comes too often."""
    worker = runtime.start(Counter, name="counter")
    runtime.restart(worker, "did not answer within 5 s")
    for _ in range(QUICK.max_restarts - 1):
        assert answer(runtime, worker, "add") == 1
        runtime.restart(worker, "was slow")
    assert answer(runtime, worker, "add") == 1
    with pytest.raises(WorkerDiedError, match=r"the first time because: .*did not answer within 5 s"):
        runtime.restart(worker)


def test_a_stopped_worker_answers_nothing_more(runtime):
    worker, other = (runtime.start(Counter, name="counter") for _ in range(2))
    assert answer(runtime, worker, "add") == 1
    runtime.stop(worker)
    (result,) = runtime.wait([runtime.call(worker, "add")], timeout_s=SOON)
    assert isinstance(result.error, WorkerDiedError)
    assert "was stopped" in str(result.error)
    assert answer(runtime, other, "add") == 1


def test_the_status_says_how_workers_are(runtime):
    worker = runtime.start(Counter, name="counter")
    assert runtime.status()[worker].state == "starting"
    answer(runtime, worker, "add")
    status = runtime.status()[worker]
    assert (status.name, status.state, status.incarnation, status.calls, status.cause) == ("counter", "idle", 0, 1, "")


def test_waiting_ends_at_its_deadline(runtime):
    worker = runtime.start(Counter, name="counter")
    runtime.stop(worker)
    began = time.monotonic()
    assert runtime.wait([], timeout_s=0.0) == []
    assert runtime.wait([], at_least=3, timeout_s=60.0) == []
    assert time.monotonic() - began < 50.0


def test_mistakes_are_named(runtime):
    with pytest.raises(ConfigError, match="there is no worker 'x'"):
        runtime.call("x", "add")
    runtime.close()
    with pytest.raises(ConfigError, match="was closed"):
        runtime.start(Counter, name="counter")


def test_what_closing_raises_is_logged_and_stops_nobody(runtime, caplog, capfd):
    """D12: with the worker's name and the traceback there, and no other traceback beside it."""
    workers = [runtime.start(Stubborn, name=name) for name in ("first", "second")]
    assert [answer(runtime, worker, "name") for worker in workers] == ["stubborn"] * 2
    for worker in workers:
        runtime.stop(worker, timeout_s=SOON)
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition("\n")[0] for text in said] == [f"{w}: close raised TwoWordsError:" for w in workers]
    assert all("not and now" in text for text in said)
    assert capfd.readouterr().err == ""
