"""Calls of this library that are made on the way to something, counted for `test_numbers`."""

import collections
import contextlib
import functools
import io
import itertools
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import torch

from palaestra import PPO, Collector, EnvConfig, Trainer, create_environment, preset
from palaestra.cli import main
from tests.architecture.source import ROOT


class Number(NamedTuple):
    """A count, and what was counted."""

    value: float
    report: str


def ours(filename: str) -> str:
    """A file's path inside the package; empty for others."""
    path, folder = Path(filename), ROOT / "src" / "palaestra"
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else ""


def own_calls() -> list[str]:
    """Calls of ours that are on the stack, the first first."""
    frames = traceback.extract_stack()
    return [f"{path}:{frame.name}" for frame in frames if (path := ours(frame.filename))]


@functools.cache
def calls() -> dict[str, list[str]]:
    """What `palaestra train ppo CartPole-v1` has called when it first updates, and when it first differentiates."""
    found: dict[str, list[str]] = {}
    update: Any = PPO.begin_update
    losses: Any = PPO.losses

    def seen_update(self: PPO, *arguments: Any) -> Any:
        found.setdefault("update", [*own_calls(), "begin_update"])
        return update(self, *arguments)

    def note_engine(gradient: torch.Tensor) -> None:
        found.setdefault("backward", [*own_calls(), "the autograd engine"])

    def seen_losses(self: PPO, batch: Any) -> Any:
        result = losses(self, batch)
        (loss,) = result.terms.values()
        loss.register_hook(note_engine)
        return result

    command = ["train", "ppo", "CartPole-v1", "--trainer.total-env-steps", "300", "--trainer.eval-episodes", "1"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(mock.patch.object(PPO, "begin_update", seen_update))
        stack.enter_context(mock.patch.object(PPO, "losses", seen_losses))
        with contextlib.suppress(SystemExit):
            main(command)
    return found


def calls_to_update() -> Number:
    return Number(len(calls()["update"]), " > ".join(calls()["update"]))


def calls_to_backward() -> Number:
    return Number(len(calls()["backward"]), " > ".join(calls()["backward"]))


@contextlib.contextmanager
def noted() -> Iterator[list[str]]:
    """All calls of ours that are made meanwhile, as `file:function`."""
    made: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and (path := ours(frame.f_code.co_filename)):
            made.append(f"{path}:{frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        yield made
    finally:
        sys.setprofile(None)


def files_in(made: Iterable[str], *, below: str = "") -> Number:
    files = dict.fromkeys(path for call in made if (path := call.partition(":")[0]).startswith(below))
    return Number(len(files), ", ".join(files))


def files_of_a_step() -> Number:
    """Files of `envs` that a step of CartPoles in this process enters; episodes begin and end meanwhile."""
    found: list[str] = []
    with create_environment(EnvConfig(name="CartPole-v1", num_envs=4), seed=0) as env:
        env.reset()
        for _ in range(50):
            with noted() as made:
                env.step(torch.zeros(4, dtype=torch.int64))
            found += made
    return files_in(found, below="envs/")


@functools.cache
def iteration() -> tuple[list[str], int]:
    """The calls of an iteration of PPO on 8 CartPoles, after two of them; and how many gradient steps that is."""
    with create_environment(EnvConfig(name="CartPole-v1", num_envs=8), seed=0) as env:
        algorithm = PPO(env.observation_spec, env.action_spec, preset("ppo", "CartPole-v1").algorithm)
        trainer = Trainer(Collector.of(env, algorithm), algorithm)
        trainer.train_iter()
        trainer.train_iter()
        before = algorithm.num_gradient_steps
        with noted() as made:
            trainer.train_iter()
    return made, algorithm.num_gradient_steps - before


def from_act_to_act() -> list[str]:
    """The calls from an `act` to the next one, of a step in which no episode ends or begins: the fewest."""
    made = iteration()[0]
    acts = [place for place, call in enumerate(made) if call.endswith(":Policy.act")]
    return min((made[act:after] for act, after in itertools.pairwise(acts)), key=len)


def calls_of_acting() -> Number:
    return Number(len(from_act_to_act()), " > ".join(from_act_to_act()))


def files_of_acting() -> Number:
    return files_in(from_act_to_act())


def files_of_an_iteration() -> Number:
    return files_in(iteration()[0])


def calls_of_a_gradient_step() -> Number:
    """Of an update, drawing and shuffling included."""
    made, steps = iteration()
    begins = next(place for place, call in enumerate(made) if call.endswith(".begin_update"))
    counted = collections.Counter(made[begins:])
    return Number(len(made[begins:]) / steps, ", ".join(f"{call} {n}" for call, n in counted.most_common()))
