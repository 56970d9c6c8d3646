"""Tests of `palaestra.core.plan` and `palaestra.core.errors`."""

import math

import pytest
import torch

from palaestra.core import (
    Batch,
    CheckpointError,
    ConfigError,
    DataSource,
    EnvError,
    MissingExtraError,
    NonFiniteError,
    Offline,
    OnPolicy,
    PalaestraError,
    Replay,
    ShapeError,
    SpecError,
    did_you_mean,
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OnPolicy(unroll_length=0), r"OnPolicy\(unroll_length=0\): unroll_length must be greater than 0"),
        (lambda: OnPolicy(unroll_length=math.nan), "unroll_length=nan"),
        (lambda: OnPolicy(unroll_length=8, num_updates=0), "num_updates"),
        (lambda: OnPolicy(unroll_length=8, mini_batch_size=-1), "mini_batch_size=-1"),
        (lambda: OnPolicy(unroll_length=8, mini_batch_length=0), "mini_batch_length"),
        (lambda: Replay(unroll_length=1, capacity=0), "capacity"),
        (lambda: Replay(unroll_length=1, n_step=0), "n_step"),
        (lambda: Replay(unroll_length=1, initial_collect_steps=-1), "initial_collect_steps=-1"),
        (lambda: Offline(mini_batch_size=0), r"Offline\(mini_batch_size=0\)"),
    ],
)
def test_impossible_plans_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_plans_are_values():
    """ALF-04: the length of an unroll may be a fraction."""
    assert OnPolicy(unroll_length=0.5) == OnPolicy(unroll_length=0.5)
    with pytest.raises(AttributeError):
        OnPolicy(unroll_length=8).num_updates = 2  # pyright: ignore[reportAttributeAccessIssue]


def test_anything_that_draws_is_a_data_source():
    class Constant:
        def draw(self, plan, generator):
            return Batch(x=torch.zeros(1))

        def write_back(self, indices, priority): ...

    assert isinstance(Constant(), DataSource)
    assert not isinstance(Batch(), DataSource)


def test_every_error_has_the_exit_code_of_its_kind():
    """F27: and is also the built-in exception that a caller would expect."""
    codes = {ConfigError: 2, MissingExtraError: 2, ShapeError: 2, SpecError: 2, EnvError: 3, NonFiniteError: 4}
    for kind, code in {**codes, CheckpointError: 5}.items():
        assert issubclass(kind, PalaestraError)
        assert kind.exit_code == code
    assert issubclass(ShapeError, ValueError)
    assert issubclass(EnvError, RuntimeError)


def test_a_missing_extra_says_how_to_install_it():
    message = str(MissingExtraError("ale_py", "atari", "the environment ALE/Pong-v5"))
    assert message == "the environment ALE/Pong-v5 needs the package 'ale_py': pip install 'palaestra[atari]'"


def test_suggestions_name_what_is_close_or_what_there_is():
    assert did_you_mean("adma", ["adam", "sgd"]) == " — did you mean 'adam'?"
    assert did_you_mean("zzz", ["sgd", "adam"]) == "; known: adam, sgd"
    assert did_you_mean("zzz", []) == "; known: none"
