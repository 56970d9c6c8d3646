"""What belongs together changes in one step, for whoever reads while another process writes."""

import multiprocessing
import os

import pytest
import torch

from palaestra import preset
from palaestra.config import config_from_mapping
from palaestra.core import DiscreteSpec, TensorSpec, load_tensors
from palaestra.experiments import RunDirectory
from palaestra.nn import NetworkConfig
from palaestra.policies import CategoricalPolicy, copy_policy, load_policy, load_weights, save_policy
from palaestra.runs.trust import require_trust
from palaestra.training import CheckpointStore

os.fsync = lambda descriptor: None  # in the process that writes, too
FAST, WHOLE = 60, 10_000  # reads of what another process is saving


def policy(value):
    """One whose every weight is the same number."""
    built = CategoricalPolicy.build(TensorSpec((2,)), DiscreteSpec(num=2), NetworkConfig(hidden_sizes=(4,)))
    with torch.no_grad():
        for weight in built.parameters():
            weight.fill_(value)
    return built


def save_policies(folder, number):
    save_policy(policy(number % 128), folder / "policy")


def save_checkpoints(folder, number):
    value = {"x": torch.full((4,), float(number))}
    CheckpointStore(folder / "checkpoints", keep=2).save(number, {"a": value, "b": value})


def save_configurations(folder, number):
    RunDirectory(folder / "run").save_config(changed(number % 100))


def saving(save, folder, stop, count):
    while not stop.is_set():
        count.value += 1
        save(folder, count.value)


def changed(number):
    base = preset("ppo", "CartPole-v1")
    return config_from_mapping(type(base), {"trainer__eval_episodes": number + 1}, base=base)


def read_policy(folder):
    """Three reads; those of a folder that nobody writes are not counted."""
    weights = torch.cat([weight.detach().flatten() for weight in load_policy(folder / "policy").parameters()])
    assert (weights == weights[0]).all()
    load_weights(policy(0), folder / "policy")
    (folder / "copy").mkdir(exist_ok=True)
    copy_policy(folder / "policy", folder / "copy")
    load_policy(folder / "copy")
    return 3


def read_checkpoint(folder):
    step, state = CheckpointStore(folder / "checkpoints").load_newest(rename=False)
    assert state["a"]["x"].tolist() == state["b"]["x"].tolist() == [float(step)] * 4
    return 1


def read_configuration(folder):
    run = RunDirectory(folder / "run")
    assert run.edited == {}
    require_trust({"env": {"name": "strange_package:Env"}}, folder / "run")  # signed, whichever of both it is
    return 1


@pytest.mark.parametrize("times", [FAST, pytest.param(WHOLE, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("save", "read"),
    [
        (save_policies, read_policy),
        (save_checkpoints, read_checkpoint),
        (save_configurations, read_configuration),
    ],
)
def test_a_reader_finds_what_was_or_what_is(save, read, times, tmp_path, caplog, wait_until):
    save_policy(policy(1), tmp_path / "policy")
    CheckpointStore(tmp_path / "checkpoints").save(0, {"a": {"x": torch.zeros(4)}, "b": {"x": torch.zeros(4)}})
    (tmp_path / "run").mkdir()
    RunDirectory(tmp_path / "run").begin(changed(0))
    context = multiprocessing.get_context("forkserver")  # which has imported most of it
    stop, count = context.Event(), context.Value("q", 0)
    writer = context.Process(target=saving, args=(save, tmp_path, stop, count))
    writer.start()
    try:
        wait_until(lambda: count.value > 1, what="the first save")
        reads = 0
        while reads < times:
            reads += read(tmp_path)
        assert writer.is_alive()
    finally:
        stop.set()
        writer.join()
    assert writer.exitcode == 0
    assert not caplog.records
    print(f"{reads:,} reads during {count.value:,} saves")


def test_a_policy_survives_who_dies_between_the_two_files(tmp_path):
    save_policy(policy(1), tmp_path / "policy")
    save_policy(policy(2), tmp_path / "next")
    (tmp_path / "next/policy.json").rename(tmp_path / "policy/policy.json.tmp")
    (tmp_path / "next/weights.safetensors").rename(tmp_path / "policy/weights.safetensors")
    assert next(load_policy(tmp_path / "policy").parameters()).flatten()[0] == 2
    assert load_tensors(tmp_path / "policy/weights.safetensors")


def test_policies_of_a_team_are_all_replaced_or_none(tmp_path, monkeypatch):
    from palaestra.policies import artefact

    folders = {tmp_path / name: policy(1) for name in "ab"}
    artefact.save_policies(folders)

    def full(path, tensors, write=artefact.save_tensors):
        if path.parent.name == "b":
            raise OSError(28, "No space left on device")
        write(path, tensors)

    monkeypatch.setattr(artefact, "save_tensors", full)
    with pytest.raises(OSError, match="No space"):
        artefact.save_policies({folder: policy(2) for folder in folders})
    assert {next(load_policy(folder).parameters()).flatten()[0].item() for folder in folders} == {1.0}
    assert [path.name for path in tmp_path.rglob("*.tmp")] == []
