"""Tests of `palaestra.deployment.exporting` and `palaestra export`: programs that act as the policy does."""

import contextlib
import hashlib
import json
import logging
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import palaestra
from palaestra import PPO, NetworkConfig, PPOConfig, RunSeeds
from palaestra.core import (
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    MissingExtraError,
    MultiBinarySpec,
    MultiDiscreteSpec,
    PalaestraError,
    TensorSpec,
)
from palaestra.deployment import exporting
from palaestra.experiments import RunDirectory, policies_of_run
from palaestra.policies import (
    CategoricalPolicy,
    SearchPolicy,
    SquashedGaussianPolicy,
    load_policy,
    save_policy,
    stochastic_policy,
)
from palaestra.rollout import Evaluation
from tests.algorithms.parts import ATTENTION, CASES, collected
from tests.cli.parts import exit_code, output
from tests.deployment.served import serving
from tests.experiments.parts import SMALL, trained, written
from tests.experiments.test_robots import ROBOT, SIZES, WORLD


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A policy that normalises what it observes."""
    folder = tmp_path_factory.mktemp("runs")
    changes = {**SMALL, "run__directory": str(folder), "run__name": "run", "algorithm__normalize_observation": True}
    return palaestra.train("ppo", "Pendulum-v1", **changes).directory


def test_a_run_is_exported_from_the_command_line_and_runs_without_us(run, capsys, monkeypatch):
    """After training in the same process, which failed once."""
    monkeypatch.chdir(run.parent)
    assert exit_code("export", "run", "--root", ".") == 0
    assert "parity largest difference" in output(capsys)
    file = run / "export" / "onnx" / "policy.onnx"
    manifest = json.loads((file.parent / "manifest.json").read_text())
    assert manifest["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    saved = json.loads((run / "policy" / "policy.json").read_text())
    assert manifest["weights_sha256"] == saved["weights_sha256"], "one policy, one hash"
    assert not list(file.parent.glob("*.safetensors"))
    assert (manifest["algorithm"], manifest["env"]) == ("ppo", "Pendulum-v1")
    assert manifest["inputs"][0] == {
        "name": "observation",
        "shape": ["batch", 3],
        "dtype": "float32",
        "minimum": [-1.0, -1.0, -8.0],
        "maximum": [1.0, 1.0, 8.0],
    }
    assert manifest["parity"]["observations"] == 1000
    assert manifest["last_evaluation"]["episodes"] == 4
    session, policy = onnxruntime.InferenceSession(file), load_policy(run / "policy")
    for rows in (1, 5):
        seen = np.random.default_rng(rows).uniform(-1, 1, (rows, 3)).astype(np.float32)
        (action,) = session.run(None, {"observation": seen})
        assert action == pytest.approx(policy(seen), abs=1e-5)
        assert np.abs(action).max() <= 2  # as the environment takes it
    assert exit_code("export", "run", "--root", ".", "--output", "my/p.onnx") == 2
    assert "--output is 'my/p.onnx'; give a folder for policy.onnx" in output(capsys) and not Path("my").exists()
    assert exit_code("export", "run", "--root", ".") == 2
    assert "exists already; give another --output" in output(capsys)


@pytest.mark.parametrize("inputs", [(), ("reward",)], ids=["observations", "rewards"])
def test_wrappers_are_named_wherever_a_policy_goes(inputs, tmp_path, caplog):
    """Nobody said them: half the torque was executed, by who followed the page; then whole rewards were told."""
    wrappers = ("ScaleReward(scale=0.1)", "NormalizeAction", "FrameStack(num_frames=2)")
    done = trained(tmp_path, env__name="Pendulum-v1", env__wrappers=wrappers, env__inputs=inputs)
    named = list(wrappers if inputs else wrappers[1:])
    line = f"inside {', '.join(named)}: apply them yourself"
    for source in (done.directory, done.directory / "policy"):
        (made,) = palaestra.export(source, tmp_path / "made" / source.name, format="torch")
        assert made.manifest["wrappers"] == named and line in str(made)
    card = palaestra.share(done.directory, output=tmp_path / "shared", episodes=1, film=False)
    assert card.facts["wrappers"] == named and line in str(card)
    assert line in (tmp_path / "shared" / "README.md").read_text()
    with serving(done.directory) as running:
        assert running.client.get("/schema").json()["policies"]["policy"]["wrappers"] == named
    assert line in caplog.text
    file = done.directory / "policy" / "policy.json"  # as older versions wrote it
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "wrappers"}))
    assert load_policy(file.parent).wrappers == ()
    for which in ("best", "last"):
        assert policies_of_run(RunDirectory(done.directory), which)[1]["policy"].wrappers == tuple(named)


def test_wrappers_of_rewards_are_named_of_a_policy_that_is_told_rewards(tmp_path, monkeypatch):
    monkeypatch.setattr(CategoricalPolicy, "reads_reward", True)
    done = trained(tmp_path, env__wrappers=("ScaleReward(scale=0.1)",))
    assert load_policy(done.directory / "policy").wrappers == ("ScaleReward(scale=0.1)",)
    for which in ("best", "last"):
        policy = policies_of_run(RunDirectory(done.directory), which)[1]["policy"]
        assert policy.wrappers == ("ScaleReward(scale=0.1)",)


def test_the_newest_evaluation_is_that_of_the_most_env_steps(tmp_path):
    """Not the last by its name: 9,000 comes after 10,000 there."""
    run = written(tmp_path, [])
    for env_steps in (9_000, 10_000):
        result = Evaluation(1.0, 0.0, (1.0, 1.0), 1.0, 1, [0], deterministic=True, returns=[1.0]).to_json()
        (run.path / f"evals/{env_steps}.json").write_text(json.dumps({**result, "env_steps": env_steps}))
    facts = exporting.facts_of(run)
    assert facts["last_evaluation"]["env_steps"] == 10_000
    assert facts["best_return"] == 1.0, "a killed run has not written it down"


def test_a_program_of_torch_is_loaded_without_us(run, tmp_path, capsys, monkeypatch):
    log = logging.getLogger("torch.onnx")
    monkeypatch.setattr(log, "level", logging.INFO)  # what a user had set is there again afterwards
    assert exit_code("export", str(run), "--format", "torch", "--output", str(tmp_path / "out"), "--json") == 0
    (record,) = json.loads(output(capsys))
    program = torch.export.load(record["path"]).module()
    assert log.level == logging.INFO
    seen = torch.tensor([[0.6, 0.8, 1.0], [1.0, 0.0, -3.0]])
    assert program(seen)[0].detach().numpy() == pytest.approx(load_policy(run / "policy")(seen), abs=1e-5)


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_a_program_says_nothing_of_the_machine_that_wrote_it(run, tmp_path, format):
    """torch wrote the place in the source of every operation, so that two machines had two hashes of one policy."""
    for name in ("a", "b"):
        (made,) = palaestra.export(run, tmp_path / name, format=format)
        for place in (Path(palaestra.__file__).parent, Path(torch.__file__).parent, Path(__file__).parents[2]):
            assert str(place).encode() not in made.path.read_bytes()
        assert str(Path.home()).encode() + b"/" not in made.path.read_bytes()
    assert (tmp_path / "a" / made.path.name).read_bytes() == made.path.read_bytes()


def test_a_memory_goes_in_and_out_and_ends_with_its_episode(tmp_path):
    """Step by step beside the policy in a plain loop."""
    policy = collected("ppo", "recurrent")[0].policy.eval()
    save_policy(policy, tmp_path / "policy")
    (made,) = palaestra.export(tmp_path / "policy", tmp_path / "out", format="torch")
    assert [entry["name"] for entry in made.manifest["inputs"]] == ["observation", "state.hidden", "first"]
    assert made.manifest["state"] == {"state.hidden": "next.state.hidden"}
    program, memory, state = torch.export.load(made.path).module(), torch.zeros(1, 6), None
    generator = torch.Generator().manual_seed(0)
    for step in range(12):
        seen, first = torch.rand(1, *policy.observation_spec.shape, generator=generator), step in (0, 7)
        action, memory = program(seen, memory, torch.tensor([first]))
        answer = policy(palaestra.Batch(obs=seen), None if first else state)
        state = answer.state
        assert action.tolist() == answer.act.tolist()
        torch.testing.assert_close(memory, state.hidden)


def test_the_manifest_says_where_choices_begin(tmp_path):
    observation = {"k": DiscreteSpec(num=5, start=2), "x": TensorSpec((2,))}
    actions = {"d": DiscreteSpec(num=3, start=-1), "m": MultiDiscreteSpec(nvec=(2, 4))}
    save_policy(stochastic_policy(observation, actions, NetworkConfig(hidden_sizes=(8,))), tmp_path / "policy")
    (made,) = palaestra.export(tmp_path / "policy", tmp_path / "out", format="torch")
    told = {entry["name"]: entry for entry in [*made.manifest["inputs"], *made.manifest["outputs"]]}
    bounds = {name: (entry.get("minimum"), entry.get("maximum")) for name, entry in told.items()}
    assert bounds["observation.k"] == (2, 6) and bounds["observation.x"] == (None, None)
    assert bounds["action.d"] == (-1, 1) and bounds["action.m"] == (0, [1, 3])


class Noting(nn.Module):
    """An encoder that notes what it sees, but for what is traced."""

    seen: ClassVar[list[torch.Tensor]] = []

    def __init__(self, observation_spec: TensorSpec) -> None:
        super().__init__()
        self.layer = nn.Linear(observation_spec.size, 4)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.seen.append(observation.clone())
        return self.layer(observation.float() / 100)


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(torch.uint8, 0, 255), (torch.int8, -128, 127), (torch.int64, -1000, 1000)], ids=str
)
def test_integers_without_bounds_are_tried_over_all_that_they_may_be(tmp_path, dtype, low, high):
    """Bytes were drawn from 0 to 3, and negative ones became 253 to 255: a picture in black and white."""
    network = NetworkConfig(hidden_sizes=(8,), encoder=f"{__name__}:Noting")
    save_policy(stochastic_policy(TensorSpec((3,), dtype), DiscreteSpec(num=3), network), tmp_path / "policy")
    Noting.seen.clear()
    (made,) = palaestra.export(tmp_path / "policy", tmp_path / "out", format="torch")
    assert made.parity.observations == 1000
    values = torch.cat([seen.flatten() for seen in Noting.seen if len(seen) > 2]).double()
    assert (values.min() - low).abs() < 0.05 * (high - low) and (values.max() - high).abs() < 0.05 * (high - low)
    counts = torch.histc(values, 10, low, high)
    assert counts.sum() == len(values) and counts.min() > 0.7 * len(values) / 10


@pytest.mark.slow
def test_attention_is_exported_with_what_it_saw(tmp_path):
    """Both formats, step by step beside the policy, beyond the window and over the end of an episode."""
    policy = collected("ppo", "recurrent", network=ATTENTION)[0].policy.eval()
    save_policy(policy, tmp_path / "policy")
    made = {kind: palaestra.export(tmp_path / "policy", tmp_path / kind, format=kind)[0] for kind in ("torch", "onnx")}
    names = ["observation", "state.seen", "state.length", "first"]
    assert [entry["name"] for entry in made["onnx"].manifest["inputs"]] == names
    program, session = torch.export.load(made["torch"].path).module(), onnxruntime.InferenceSession(made["onnx"].path)
    state, memory = None, [leaf for _, leaf in policy.initial_state(1).items()]
    generator = torch.Generator().manual_seed(0)
    for step in range(12):
        seen, first = torch.rand(1, *policy.observation_spec.shape, generator=generator), torch.tensor([step in (0, 7)])
        given = dict(zip(names, (seen, *memory, first), strict=True))
        run = session.run(None, {name: leaf.numpy() for name, leaf in given.items()})
        with torch.no_grad():
            action, *memory = program(seen, *memory, first)
        answer = policy(palaestra.Batch(obs=seen), None if first else state)
        state = answer.state
        assert action.tolist() == answer.act.tolist() == run[0].tolist()
        for ours, torchs, onnxs in zip(state.values(), memory, run[1:], strict=True):
            torch.testing.assert_close(torchs, ours)
            torch.testing.assert_close(torch.from_numpy(onnxs), ours)


def test_every_policy_of_many_agents_has_a_program(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = ("--algorithm.network.hidden-sizes", "8", "--trainer.eval-episodes", "1", "--run.no-tensorboard")
    short = ("--trainer.total-env-steps", "60", "--run.name", "run")
    assert exit_code("train", "dqn", "palaestra.multiagent:Meeting", *sizes, *short) == 0
    assert exit_code("export", "run", "--format", "torch") == 0
    made = sorted((tmp_path / "runs/run/export/torch").rglob("policy.pt2"))
    kept = sorted((tmp_path / "runs/run/policy").rglob("policy.json"))
    assert len(made) == len(kept) >= 1
    capsys.readouterr()
    assert exit_code("export", "run", "--policy", "nobody") == 2
    assert "has no policy 'nobody'" in output(capsys)


@pytest.mark.slow
def test_tasks_of_a_robot_have_programs(tmp_path):
    settings = {**SIZES, "run__directory": str(tmp_path), "run__name": "run"}
    done = palaestra.train(ROBOT, WORLD, **settings)
    made = palaestra.export(done.directory, format="torch")
    assert {one.policy for one in made} == set(policies_of_run(RunDirectory(done.directory))[1])
    assert all(one.parity.observations == 1000 for one in made)


def test_a_program_that_acts_otherwise_is_not_kept(run, tmp_path, monkeypatch):
    """What is off is named; a tie between two choices is none of it."""
    torch_program = exporting._torch

    def spoiled(program, file):
        right = torch_program(program, file)
        return lambda inputs: [right(inputs)[0] + 3e-5]

    monkeypatch.setattr(exporting, "_torch", spoiled)
    with pytest.raises(PalaestraError, match=r"policy.pt2 says action of shape \(1,\) otherwise .* 3.0e-05"):
        palaestra.export(run, tmp_path / "out", format="torch")
    policy = collected("dqn", "discrete")[0].policy
    save_policy(policy, tmp_path / "policy")
    monkeypatch.setattr(exporting, "_torch", lambda program, file: lambda inputs: [torch.zeros(len(inputs[0])).long()])
    with pytest.raises(PalaestraError, match=r"chooses action = 0 where the policy chooses [12]"):
        palaestra.export(tmp_path / "policy", tmp_path / "out", format="torch")
    spec, config = MultiDiscreteSpec(nvec=(3, 4)), PPOConfig(network=NetworkConfig(hidden_sizes=(8,)))
    save_policy(PPO(TensorSpec((3,)), spec, config, RunSeeds(0)).policy, tmp_path / "policies")

    def spoiled_choice(program, file):  # the second of two
        right = torch_program(program, file)
        return lambda inputs: [right(inputs)[0] * torch.tensor([1, 0])]

    monkeypatch.setattr(exporting, "_torch", spoiled_choice)
    with pytest.raises(PalaestraError, match="where the policy chooses"):
        palaestra.export(tmp_path / "policies", tmp_path / "out", format="torch")
    assert not (tmp_path / "out").exists()


def test_rounding_is_in_proportion_to_what_the_policy_says_there(tmp_path, monkeypatch):
    """Torques of up to 100 were refused for 1.3e-05 where one was near 0; a small one beside them still counts."""
    box = BoundedSpec((2,), minimum=np.array([-100.0, -1.0]), maximum=np.array([100.0, 1.0]))
    policy = SquashedGaussianPolicy.build(TensorSpec((3,)), box, NetworkConfig(hidden_sizes=(64, 64)))
    generator = torch.Generator().manual_seed(0)
    for weights in policy.parameters():
        weights.data.normal_(std=0.3, generator=generator)
    save_policy(policy, tmp_path / "policy")
    (made,) = palaestra.export(tmp_path / "policy", tmp_path / "onnx")
    assert made.parity.largest_difference < 1e-5
    for off, refused in (([5e-4, 0.0], False), ([5e-3, 0.0], True), ([0.0, 3e-5], True)):

        def spoiled(program, file, off=off):
            file.touch()
            return lambda inputs: [program.reference(inputs)[0] + torch.tensor(off)]

        monkeypatch.setattr(exporting, "_torch", spoiled)
        expected = pytest.raises(PalaestraError, match="is rounding") if refused else contextlib.nullcontext()
        with expected:
            palaestra.export(tmp_path / "policy", tmp_path / f"out{off}", format="torch")


def test_what_cannot_be_exported_is_said(run, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="the format is 'onx' — did you mean 'onnx'"):
        palaestra.export(run, tmp_path, format="onx")  # type: ignore
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'palaestra\[export\]'"):
        palaestra.export(run, tmp_path / "out")


def test_rules_have_nothing_to_export(tmp_path, monkeypatch):
    done = trained(tmp_path)
    rule = palaestra.policies.RandomPolicy(*_specs(RunDirectory(done.directory)))
    policies = {"rule": rule, "new": done.policy, "other": done.policy}
    monkeypatch.setattr(exporting, "policies_of_run", lambda run, which: (None, policies))
    refused = r"'rule' is a RandomPolicy: a rule, or a search, in Python.*another one with --policy: new, other$"
    with pytest.raises(ConfigError, match=refused):
        palaestra.export(done.directory, tmp_path / "out", format="torch")


@pytest.mark.parametrize(
    ("mask", "action"),
    [
        (TensorSpec((7,), torch.bool), DiscreteSpec(num=7)),
        (MultiBinarySpec((1,)), DiscreteSpec(num=1)),
        (MultiBinarySpec((4,)), MultiDiscreteSpec(nvec=(1, 3))),
        ({"b": MultiBinarySpec((2,))}, {"a": TensorSpec((2,)), "b": DiscreteSpec(num=2)}),
    ],
    ids=["bool", "single", "parts", "nest"],
)
def test_masks_of_every_kind_are_tried_as_they_can_be(mask, action, tmp_path):
    observation = {"x": TensorSpec((3,)), "action_mask": mask}
    save_policy(stochastic_policy(observation, action, NetworkConfig(hidden_sizes=(8,))), tmp_path / "policy")
    (done,) = palaestra.export(tmp_path / "policy", tmp_path / "out", format="torch")
    assert done.parity.observations == 1000


@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        (BoundedSpec((2,), minimum=np.full(2, 5000.0), maximum=np.full(2, 6000.0)), 5000, 6000),
        (DiscreteSpec(num=4, start=2000), 2000, 2003),
        (BoundedSpec((2,), minimum=np.full(2, -np.inf), maximum=np.full(2, np.inf)), -1000, 1000),
    ],
    ids=["box", "categories", "unbounded"],
)
def test_observations_that_are_tried_are_all_that_the_spec_allows(spec, low, high):
    values = exporting._drawn(spec, 200, np.random.default_rng(0))
    assert values.min() >= low and values.max() <= high
    assert len(values.unique()) >= min(100, high - low + 1)


def _specs(run: RunDirectory):
    policy = load_policy(run.path / "policy")
    return policy.observation_spec, policy.action_spec


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "torch"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_algorithm_has_programs_that_act_alike(name, kind, format, tmp_path):
    """All algorithms, with every kind of action that they accept, with memory, masks and statistics."""
    algorithm, collector = collected(name, kind, normalize_observation=True)
    if isinstance(algorithm.policy, SearchPolicy):
        save_policy(algorithm.policy, tmp_path / "run")
        with pytest.raises(ConfigError, match="is a SearchPolicy: a rule, or a search, in Python"):
            palaestra.export(tmp_path / "run", tmp_path / "out", format=format)
        return
    if algorithm.policy.normalizer is not None:
        rows = collector.buffer.newest(4).observation
        algorithm.policy.normalizer.merge(algorithm.policy.normalizer.increment(rows))
    save_policy(algorithm.policy, tmp_path / "run")
    (made,) = palaestra.export(tmp_path / "run", tmp_path / "out", format=format)
    parity = made.parity
    assert parity.observations >= 1000
    assert parity.largest_difference <= 1e-5
    assert parity.other_choices <= 2
