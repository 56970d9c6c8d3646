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
        (lambda: OnPolicy(unroll_length=0), r"OnPolicy.unroll_length is 0; it must be greater than 0"),
        (lambda: OnPolicy(unroll_length=math.nan), "unroll_length is nan"),
        (lambda: OnPolicy(unroll_length=8, num_epochs=0), "num_epochs"),
        (lambda: OnPolicy(unroll_length=8, mini_batch_size=-1), "mini_batch_size is -1"),
        (lambda: OnPolicy(unroll_length=8, mini_batch_length=0), "mini_batch_length"),
        (lambda: Replay(unroll_length=1, capacity=0), "capacity"),
        (lambda: Replay(unroll_length=1, n_step=0), "n_step"),
        (lambda: Replay(unroll_length=1, learning_starts=-1), "learning_starts is -1"),
        (lambda: Offline(mini_batch_size=0), "Offline.mini_batch_size is 0"),
    ],
)
def test_impossible_plans_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("plan", "window"),
    [
        (OnPolicy(unroll_length=8), 1),
        (Replay(unroll_length=1, n_step=3), 3),
        (Replay(unroll_length=1, n_step=3, mini_batch_length=20), 20),
        (Replay(unroll_length=1, mini_batch_length=20, burn_in=20), 40),
        (Offline(n_step=2), 2),
        (Offline(mini_batch_length=5, burn_in=2), 7),
    ],
)
def test_a_plan_knows_how_many_rows_of_a_lane_one_draw_needs(plan, window):
    assert plan.window == window


def test_learning_begins_when_one_lane_has_the_rows_of_a_draw_and_the_initial_steps_are_taken():
    plan = Replay(unroll_length=1, mini_batch_length=20, burn_in=20, learning_starts=100)
    assert not plan.may_learn(env_steps=1600, new_rows=40, num_lanes=40)
    assert plan.may_learn(env_steps=1601, new_rows=1, num_lanes=40)
    assert (plan.learns_after(1), plan.learns_after(40)) == (100, 1600)
    on_policy = OnPolicy(unroll_length=8)
    assert on_policy.may_learn(env_steps=0, new_rows=1, num_lanes=4)
    assert not on_policy.may_learn(env_steps=9, new_rows=0, num_lanes=4)
    assert Offline().may_learn(env_steps=0, new_rows=0, num_lanes=1)


def test_a_buffer_has_room_for_one_draw_in_every_lane():
    plan = Replay(unroll_length=1, mini_batch_length=20, burn_in=20, capacity=1000)
    assert (plan.capacity_for(1), plan.capacity_for(40)) == (1000, 2400)
    assert OnPolicy(unroll_length=8).capacity_for(4) is None
    assert OnPolicy(unroll_length=8, clear=False, capacity=64).capacity_for(4) == 64
    with pytest.raises(ConfigError, match="collects nothing"):
        Offline().capacity_for(1)


def test_plans_are_values():
    """ALF-04: the length of an unroll may be a fraction."""
    assert OnPolicy(unroll_length=0.5) == OnPolicy(unroll_length=0.5)
    with pytest.raises(AttributeError):
        OnPolicy(unroll_length=8).num_epochs = 2  # pyright: ignore[reportAttributeAccessIssue]


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
