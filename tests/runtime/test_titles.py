"""Every process of a run says who it is in its title, for whoever looks from outside."""

import os
import sys
from pathlib import Path

import psutil
import pytest

import palaestra
from palaestra.runtime import entitled, title
from palaestra.training import Callback
from tests.experiments.parts import SMALL, trained

LOCAL = {"distributed__runtime": "process", "distributed__num_workers": 2, "run__num_threads": 1}


class Titles(Callback):
    """Looks at the processes of its run from outside."""

    def __init__(self) -> None:
        self.seen = set[str]()

    def iteration_ended(self, trainer, updates):
        """See `Callback`."""
        own = psutil.Process()
        self.seen |= {" ".join(one.cmdline()).strip() for one in [own, *own.children(recursive=True)]}


def looked_at(folder, algorithm="ppo", **settings):
    """The titles of a run's processes, without its name."""
    before, titles = psutil.Process().cmdline(), Titles()
    where = {"run__directory": str(folder), "run__name": "it", "trainer__total_env_steps": 32}
    palaestra.train(algorithm, "CartPole-v1", callbacks=[titles], **SMALL | where | settings)
    assert " ".join(psutil.Process().cmdline()).split() == " ".join(before).split()  # as it was
    found = {one for one in titles.seen if one.startswith("palaestra: ")}
    assert {one.rpartition(", ")[2] for one in found} == {str(folder / "it")}
    return {one.removeprefix("palaestra: ").rpartition(", ")[0] for one in found}


def test_the_process_of_a_run_has_its_name_and_then_its_own_again(tmp_path):
    assert looked_at(tmp_path) == {"run"}
    assert "PALAESTRA_RUN" not in os.environ


def test_runs_of_two_threads_leave_the_name_of_before_whichever_ends_first(monkeypatch):
    monkeypatch.setenv("PALAESTRA_RUN", "outer")
    first, second = entitled("run", "a"), entitled("run", "b")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert os.environ["PALAESTRA_RUN"] == "b"
    second.__exit__(None, None, None)
    assert os.environ["PALAESTRA_RUN"] == "outer"


@pytest.mark.slow
def test_workers_learners_hosts_and_shards_say_who_they_are(tmp_path):
    learners = {"distributed__num_learners": 2, "distributed__gradient_shards": 2}
    assert looked_at(tmp_path / "a", **LOCAL, **learners) == {"run", "rollout-0", "rollout-1", "learner 2 of 2"}
    shards = {"distributed__replay_shards": 2, "algorithm__capacity": 64, "algorithm__learning_starts": 8}
    assert {"run", "replay shard 1 of 2", "replay shard 2 of 2"} <= looked_at(tmp_path / "b", "dqn", **LOCAL, **shards)


@pytest.mark.slow
def test_environments_and_evaluation_say_who_they_are(tmp_path):
    one = looked_at(tmp_path / "a", env__vectorization="process", env__num_workers=1)
    assert one == {"run", "worker of environments 0 to 1"}
    assert "evaluation" in looked_at(tmp_path / "b", **LOCAL, trainer__eval_async=True, trainer__total_env_steps=200)


def test_titles_of_runs_inside_runs_come_back(tmp_path):
    with entitled("run", "outer"):
        with entitled("serve", "inner"):
            assert title("x") == "palaestra: x, inner"
        assert title("x") == "palaestra: x, outer"
    assert title("x") == "palaestra: x"


@pytest.mark.needs_linux
def test_without_the_library_nothing_happens(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "setproctitle", None)
    before = Path("/proc/self/cmdline").read_bytes()
    with entitled("run", "somewhere"):
        assert Path("/proc/self/cmdline").read_bytes() == before
    assert trained(tmp_path).result.status == "done"
