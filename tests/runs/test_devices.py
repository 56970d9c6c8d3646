"""Runs whose policies act and learn on a device."""

import json

import pytest
import torch

import palaestra
import palaestra.nn.optimizer
from palaestra.algorithms import GradientAlgorithm
from palaestra.cli.main import main
from palaestra.core import ConfigError, load_tensors
from palaestra.experiments import evaluate_run, policy_of_run
from palaestra.runs.run_directory import RunDirectory
from tests.devices import NAME, pretend_device
from tests.experiments.parts import CHAIN, trained

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch with CUDA")
DQN = {
    "algorithm__mini_batch_size": 8,
    "algorithm__learning_starts": 20,
    "algorithm__capacity": 60,
    "algorithm__network__hidden_sizes": (8,),
    "algorithm__prioritized": True,
}


@pytest.fixture(autouse=True)
def equal_rounding(monkeypatch):
    """The CPU's optimizer adds up as that of a device does, so that results can be equal to the last bit."""
    monkeypatch.setattr(palaestra.nn.optimizer, "_SMALL", 0)


def left(directory):
    """Weights of the newest checkpoint, and what was learned and earned."""
    newest = max((directory / "checkpoints").glob("step_*"))
    tensors = {f.stem: load_tensors(f) for f in newest.glob("algorithm*.safetensors")}
    weights = {f"{part}/{k}": v.tolist() for part, found in tensors.items() for k, v in found.items() if "model." in k}
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    learned = [{k: v for k, v in row.items() if k.startswith(("learning", "return", "eval"))} for row in rows]
    return weights, learned


SHORT = {"algorithm__unroll_length": 8}
MEMORY = {"algorithm__network__recurrent": "lstm", "algorithm__mini_batch_length": 4}
WORKERS = {"distributed__runtime": "local", "distributed__num_workers": 2}
CASES = {
    "ppo": ("ppo", CHAIN, {**SHORT, "algorithm__normalize_observation": True}),
    "dqn": ("dqn", CHAIN, DQN),
    "memory": ("ppo", "palaestra.envs.tiny:Recall", SHORT | MEMORY),
    "many agents": ("ppo", "palaestra.multiagent:Meeting", SHORT),
    "workers": ("ppo", CHAIN, SHORT | WORKERS),
    "gradient workers": ("ppo", CHAIN, {**SHORT, **WORKERS, "distributed__num_learners": 3}),
    "policy hosts": ("dqn", CHAIN, {**DQN, **WORKERS, "distributed__num_policy_hosts": 1}),
    "hosts and gradient workers": (
        "ppo",
        CHAIN,
        {**SHORT, **WORKERS, "distributed__num_learners": 3, "distributed__num_policy_hosts": 1},
    ),
    "actors": ("impala", CHAIN, {**WORKERS, "distributed__mode": "async"}),
}


def run(kind, folder, device, **settings):
    algorithm, env, own = CASES[kind]
    defaults = {
        "env__num_envs": 2,
        "trainer__total_env_steps": 64,
        "trainer__eval_every_steps": 30,
        "trainer__eval_episodes": 2,
    }
    if "multiagent" not in env:
        defaults["env__max_episode_steps"] = 6
    given = {**defaults, **own, "run__tensorboard": False, "run__device": device, **settings}
    return palaestra.train(algorithm, env, run__directory=str(folder), run__name=device, **given)


FAST, SLOW = ["ppo", "dqn", "many agents", "workers"], ["memory", "gradient workers", "policy hosts"]


@pytest.mark.parametrize("kind", FAST + [pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW])
def test_a_run_on_a_device_is_the_run_on_the_cpu(kind, tmp_path):
    """ALF-56: with generators that draw alike; collecting, learning, evaluations and checkpoints."""
    here = run(kind, tmp_path, "cpu")
    with pretend_device() as device:
        there = run(kind, tmp_path, device)
        assert {p.device.type for p in there.policy.parameters()} == {device}
    weights, learned = left(there.directory)
    expected, expected_learned = left(here.directory)
    if kind == "memory":  # other operations compute it there
        assert weights.keys() == expected.keys()
    else:
        assert weights == expected
        assert learned == expected_learned


def test_actors_act_on_the_cpu_and_the_server_learns_on_the_device(tmp_path):
    with pretend_device() as device:
        done = run("actors", tmp_path, device)
        assert {p.device.type for p in done.policy.parameters()} == {device}
    assert done.result.status == "done"


@pytest.mark.slow
@pytest.mark.parametrize("way", [("cpu", NAME), (NAME, "cpu")], ids="-".join)
def test_a_run_goes_on_on_another_device(way, tmp_path):
    """F25: a GPU's numbers are exact nowhere else, and there only with `deterministic`; the run says so."""
    with pretend_device():
        done = run("dqn", tmp_path, way[0])
        again = palaestra.resume(done.directory, trainer__total_env_steps=160, run__device=way[1])
        assert {p.device.type for p in again.policy.parameters()} == {way[1]}
        directory = RunDirectory(done.directory)
        assert directory.info["resume"] == "statistical"
        assert directory.config.run.device == way[1]
        more = palaestra.resume(done.directory, trainer__total_env_steps=200, run__deterministic=True)
        torch.use_deterministic_algorithms(False)
    info = RunDirectory(more.directory).info
    assert info["resume"] == "statistical"  # what an earlier session was not, the run is not any more
    assert info["resume_reasons"] == directory.info["resume_reasons"]  # and this one adds nothing
    assert more.result.env_steps >= 200


@pytest.mark.slow
def test_a_run_from_a_device_is_looked_at_where_there_is_none(tmp_path):
    with pretend_device() as device:
        done = run("ppo", tmp_path, device)
    directory = RunDirectory(done.directory)
    assert directory.config.run.device == device
    for which in ("best", "last"):
        assert policy_of_run(directory, which).device.type == "cpu"
    assert evaluate_run(done.directory, episodes=2).episodes == 2
    with pytest.raises(ConfigError, match=rf"run.device is '{device}', but this process can compute on cpu"):
        palaestra.resume(done.directory, trainer__total_env_steps=160)
    assert palaestra.resume(done.directory, trainer__total_env_steps=160, run__device="cpu").result.env_steps >= 160


@pytest.mark.slow
def test_evaluations_beside_training_are_made_on_the_cpu(tmp_path):
    with pretend_device() as device:
        done = run("ppo", tmp_path, device, trainer__eval_async=True)
    assert len(list((done.directory / "evals").glob("*.json"))) >= 2


def test_a_device_that_is_not_there_is_refused_before_anything_is_made(tmp_path, monkeypatch, capsys):
    """What was given, what is there, what to do."""

    def never(*arguments, **named):
        raise AssertionError("an environment was made")

    monkeypatch.setattr("palaestra.runs.making.probe_specs", never)
    with pytest.raises(ConfigError, match=r"run.device is 'cuda:77', but this process can compute on cpu.*give one"):
        trained(tmp_path, run__device="cuda:77")
    arguments = ["train", "ppo", "CartPole-v1", "--run.directory", str(tmp_path)]
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--device", "cuda:77"])
    assert "run.device is 'cuda:77'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_gradient_workers_and_policy_hosts_compute_on_the_device(tmp_path, monkeypatch):
    """MARO-25, MARO-31: parameters, data and gradients are placed where they arrive."""
    places: set[tuple[str, str]] = set()
    gradients = GradientAlgorithm.gradients

    def seen(algorithm, batch):
        tensors = (batch.action, batch.observation, *algorithm.model.parameters())
        places.update((str(tensor.device), str(algorithm.device)) for tensor in tensors)
        return gradients(algorithm, batch)

    monkeypatch.setattr(GradientAlgorithm, "gradients", seen)
    with pretend_device() as device:
        for kind in ("gradient workers", "policy hosts", "hosts and gradient workers"):
            places.clear()
            assert run(kind, tmp_path / kind, device).result.status == "done"
            assert places == {(device, device)}


def test_the_doctor_names_the_devices(capsys, monkeypatch):
    monkeypatch.setattr("palaestra.cli.inspect.available_devices", lambda: ["cpu", "cuda:0"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda name: f"Name of {name}")
    with pytest.raises(SystemExit, match="0"):
        main(["doctor"])
    assert "devices for --device  cpu, cuda:0 (Name of cuda:0)" in capsys.readouterr().out


@needs_cuda
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore::UserWarning:torch._inductor")
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("kind", CASES)
def test_a_run_learns_on_a_gpu_and_goes_on_on_the_cpu(kind, compile, tmp_path):
    if compile and kind in (
        "memory",
        "actors",
        "workers",
        "gradient workers",
        "policy hosts",
        "hosts and gradient workers",
    ):
        pytest.skip("not compiled, or not otherwise than the others")
    done = run(kind, tmp_path, "cuda", run__compile=compile)
    assert {p.device.type for p in done.policy.parameters()} == {"cuda"}
    again = palaestra.resume(done.directory, trainer__total_env_steps=160, run__device="cpu", run__compile=False)
    assert again.result.env_steps >= 160
