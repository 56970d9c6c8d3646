"""Runs that imitate data: what they are refused, and that they resume as if they had never stopped."""

import pytest
import torch

import palaestra
from palaestra.core import ConfigError, load_tensors
from palaestra.envs import EnvConfig
from palaestra.runs.datasets import collect_data
from palaestra.training import Callback

SETTINGS = {
    "algorithm__bonus__kind": "gail",
    "algorithm__learning_rate": 1e-3,  # schedules would follow the budget
    "algorithm__clip": 0.2,
    "run__tensorboard": False,
    "trainer__eval_every_steps": None,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imitated") / "data"
    collect_data(None, EnvConfig(name="CartPole-v1", num_envs=2), folder, steps=200)
    return str(folder)


def trained(data, folder, name, steps, **more):
    settings = SETTINGS | {"run__directory": str(folder), "run__name": name, "trainer__total_env_steps": steps} | more
    return palaestra.train("ppo", "CartPole-v1", offline__data=data, algorithm__unroll_length=32, **settings)


def test_a_run_that_imitates_is_resumed_as_if_it_had_never_stopped(data, tmp_path):
    trained(data, tmp_path, "whole", 1024)
    trained(data, tmp_path, "parts", 512)
    palaestra.resume(tmp_path / "parts", trainer__total_env_steps=1024)
    ends = [sorted((tmp_path / name / "checkpoints").glob("*/"))[-1] for name in ("whole", "parts")]
    whole, parts = (load_tensors(next(iter(sorted(end.rglob("*algorithm*.safetensors"))))) for end in ends)
    learned = [key for key in whole if "bonus" in key]
    assert learned
    assert all(torch.equal(whole[key], parts[key]) for key in whole if isinstance(whole[key], torch.Tensor))


def test_data_that_is_not_there_or_is_asked_for_more_is_refused(data, tmp_path):
    with pytest.raises(ConfigError, match=r"ppo learns from data that it does not collect; name some by offline\.data"):
        trained(None, tmp_path, "without", 64)
    with pytest.raises(ConfigError, match="imitation only looks at the data"):
        trained(data, tmp_path, "mixed", 64, offline__fraction=0.5)


@pytest.mark.parametrize(("kind", "idle"), [("gail", {"weight": 0.5}), ("rnd", {"gradient_penalty": 2.0})])
def test_a_setting_of_another_kind_of_reward_is_refused(kind, idle, data, tmp_path):
    settings = {f"algorithm__bonus__{name}": value for name, value in idle.items()}
    with pytest.raises(ConfigError, match=rf"algorithm\.bonus\.{next(iter(idle))} is of .*, and kind is {kind}"):
        trained(None if kind == "rnd" else data, tmp_path, "idle", 64, algorithm__bonus__kind=kind, **settings)


def test_a_run_goes_on_with_the_demonstrations_that_it_began_with(data, tmp_path):
    """It was called exact, whatever lay in the folder by then."""
    trained(data, tmp_path, "run", 64)
    collect_data(None, EnvConfig(name="CartPole-v1", num_envs=2), tmp_path / "other", steps=90)
    with pytest.raises(ConfigError, match="a run resumes with the data that it began with"):
        palaestra.resume(tmp_path / "run", offline__data=str(tmp_path / "other"), trainer__total_env_steps=512)


def test_what_steps_elsewhere_has_no_hook_for_steps(data, tmp_path):
    hook = "tests.experiments.test_imitation:Watches"
    with pytest.raises(ConfigError, match=r"Watches' with a hook stepped, .* leave out distributed\.runtime"):
        trained(data, tmp_path, "watched", 64, run__callbacks=(hook,), distributed__runtime="process")
    assert not (tmp_path / "watched").exists()


class Watches(Callback):
    """Sees every env step."""

    def stepped(self, trainer, time_step):
        pass
