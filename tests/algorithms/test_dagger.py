"""Tests of DAgger: its loss against a plain transcription, who acts, and which teachers there can be."""

import functools
import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import palaestra
from palaestra import NetworkConfig
from palaestra.algorithms import DAgger, DAggerConfig
from palaestra.core import (
    Batch,
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    Linear,
    MultiBinarySpec,
    RunSeeds,
    SpecError,
    StepType,
    TensorSpec,
    TimeStep,
)
from palaestra.policies import CategoricalPolicy, Phase, RulePolicy, SquashedGaussianPolicy, load_policy, save_policy
from palaestra.training.checkpoints import _weights
from tests.algorithms.parts import environment
from tests.experiments.parts import SMALL

SPEC = {"state": TensorSpec((2,)), "privileged": TensorSpec((1,))}
BOX = BoundedSpec((2,), minimum=np.full(2, -2.0), maximum=np.full(2, 2.0))
CHOICE = DiscreteSpec(num=3, start=1)
SMALL_NETWORK = NetworkConfig(hidden_sizes=(8,), policy_sees=("state",))


def by_sign(observation):
    """A rule that needs what the student does not see."""
    return torch.where(observation["privileged"][:, 0] > 0, 3, 1)


def pushes(observation):
    """The environment's units: twice those of the student."""
    return observation["state"].clamp(-2, 2)


def pushes_too_far(observation):
    return observation["state"] * 30


def pulls(observation):
    return observation["state"].abs() - 5


def first_of_all(observation):
    return torch.zeros(len(observation), dtype=torch.int64)


def student(teacher: Any, action_spec: Any = CHOICE, spec: Any = SPEC, **settings: Any) -> DAgger:
    settings = {"network": SMALL_NETWORK, "beta": 0.0} | settings
    config = DAggerConfig(teacher=teacher and f"{__name__}:{teacher.__name__}", **settings)
    return DAgger(spec, action_spec, config, RunSeeds(0))


def observed(count: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(1)
    return Batch.of({key: torch.randn(count, spec.shape[0], generator=generator) for key, spec in SPEC.items()})


def test_the_loss_is_the_cross_entropy_to_what_the_teacher_would_have_done():
    """Ross et al. 2011, algorithm 3.1: D_i = {(s, π*(s))} of states that any policy visited; row by row."""
    algorithm, seen = student(by_sign), observed()
    batch = Batch.of(
        {"observation": seen, "action": torch.zeros(6, dtype=torch.int64)}
    )  # what was done does not matter
    loss = algorithm.losses(algorithm.preprocess(batch, None)).terms["policy"]  # pyright: ignore[reportArgumentType]
    total = 0.0
    for row in range(6):
        logits = algorithm.policy.network(seen[row : row + 1])[0].tolist()
        label = 2 if float(seen["privileged"][row]) > 0 else 0  # counted from 0
        total -= logits[label] - math.log(sum(map(math.exp, logits)))
    assert float(loss.detach()) == pytest.approx(total / 6, rel=1e-5)


def test_of_boxes_it_is_the_likelihood_of_the_teachers_action_in_the_students_units():
    algorithm, seen = student(pushes, BOX), observed()
    batch = algorithm.preprocess(Batch.of({"observation": seen, "action": torch.zeros(6, 2)}), None)  # pyright: ignore
    total = 0.0
    normal = algorithm.policy.distribution(seen).mode().detach()
    for row in range(6):
        for number in range(2):
            label = min(max(float(seen["state"][row, number]), -2.0), 2.0) / 2
            z = (label - float(normal[row, number])) / 1.0  # σ is 1 at the start
            total += 0.5 * z * z + 0.5 * math.log(2 * math.pi)
    assert float(algorithm.losses(batch).terms["policy"].detach()) == pytest.approx(total / 6, rel=1e-5)


def test_a_memory_learns_from_sequences_and_not_from_ends_or_their_burn_in():
    network = NetworkConfig(hidden_sizes=(8,), policy_sees=("state",), recurrent="gru", recurrent_size=4)
    algorithm = student(by_sign, network=network, mini_batch_length=3, burn_in=1)
    policy, seen = algorithm.policy, observed(10)
    rows = Batch.of({key: leaf.view(5, 2, -1) for key, leaf in seen.items()})  # [L+1, N]
    kinds = torch.tensor([[0, 1], [1, 1], [2, 1], [0, 1], [1, 1]], dtype=torch.int32)
    state = policy.initial_state(2).map(lambda leaf: leaf + 0.5)
    drawn = {"observation": rows, "action": torch.zeros(4, 2, dtype=torch.int64), "step_type": kinds}
    batch = algorithm.preprocess(Batch.of(drawn | {"state": state.map(lambda leaf: leaf[None])}), None)  # pyright: ignore
    loss = algorithm.losses(batch).terms["policy"]
    total, count = 0.0, 0
    for lane in range(2):
        memory = state.map(lambda leaf, lane=lane: leaf[lane : lane + 1])
        for row in range(4):
            kind, here = int(kinds[row, lane]), rows.map(lambda leaf, row=row, lane=lane: leaf[row, lane][None])
            if kind == StepType.FIRST:
                memory = policy.initial_state(1)
            features, memory = policy.features(here, memory)
            if row >= 1 and kind != StepType.LAST:
                label = 2 if float(here["privileged"]) > 0 else 0
                total -= float(policy.head(features).log_softmax(-1)[0, label].detach())
                count += 1
    assert count == 5
    assert float(loss.detach()) == pytest.approx(total / count, rel=1e-5)
    kinds[:, 1] = torch.tensor([1, 2, 1, 0, 1])  # behind a gap, the memory is another episode's
    batch = algorithm.preprocess(Batch.of(drawn | {"state": state.map(lambda leaf: leaf[None])}), None)  # pyright: ignore
    assert batch.valid[:, 1].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(("beta", "least", "most"), [(1.0, 1.0, 1.0), (0.0, 0.2, 0.5), (0.5, 0.55, 0.78)])
def test_a_share_of_the_actions_is_the_teachers(beta, least, most):
    algorithm, seen = student(by_sign, beta=beta), observed(2000)
    step = TimeStep(observation=seen)
    theirs = algorithm.taught(seen)
    share = float((algorithm.policy.act(step, phase=Phase.COLLECT).action == theirs).float().mean())
    assert least <= share <= most
    own = algorithm.policy.act(step, phase=Phase.EVAL, deterministic=True).action
    assert float((own == theirs).float().mean()) < 0.8, "in evaluations the student acts"


def test_a_row_is_the_teachers_whole_or_not_at_all():
    """Of vectors, too: as many rows as numbers do not let the draws of rows fall on numbers."""
    algorithm, seen = student(pushes, BOX, beta=0.5), observed(2)
    theirs, kinds = algorithm.taught(seen), set[tuple[bool, ...]]()
    for _ in range(40):
        done = algorithm.policy.act(TimeStep(observation=seen), phase=Phase.COLLECT).action
        rows = torch.isclose(done, theirs)
        assert torch.equal(rows.all(1), rows.any(1))
        kinds.add(tuple(rows.all(1).tolist()))
    assert len(kinds) == 4


def test_the_share_falls_with_the_run_as_its_schedule_says():
    algorithm = student(by_sign, beta=Linear(1.0, 0.0, 0.5))
    shares = []
    for progress in (0.0, 0.25, 0.5, 1.0):
        algorithm.set_progress(progress)
        shares.append(algorithm.policy.exploration.strength)
    assert shares == [1.0, 0.5, 0.0, 0.0]


def test_a_saved_policy_of_other_units_and_more_keys_teaches(tmp_path):
    torch.manual_seed(0)
    teacher = SquashedGaussianPolicy.build(SPEC, BOX, NetworkConfig(hidden_sizes=(8,)))
    save_policy(teacher, tmp_path / "policy")
    for folder in (tmp_path, tmp_path / "policy"):  # that of a run, or of the policy
        config = DAggerConfig(teacher=str(folder), network=SMALL_NETWORK)
        algorithm, seen = DAgger(SPEC, BOX, config, RunSeeds(0)), observed()
        executed = algorithm.policy.env_action(algorithm.taught(seen))
        np.testing.assert_allclose(executed, teacher(seen), rtol=1e-5)


def remembering(folder: Path) -> None:
    save_policy(CategoricalPolicy.build(SPEC, CHOICE, NetworkConfig(hidden_sizes=(8,), recurrent="gru")), folder)


def seeing_more(folder: Path) -> None:
    save_policy(
        CategoricalPolicy.build(SPEC | {"x": TensorSpec((1,))}, CHOICE, NetworkConfig(hidden_sizes=(8,))), folder
    )


def doing_more(folder: Path) -> None:
    save_policy(CategoricalPolicy.build(SPEC, DiscreteSpec(num=9), NetworkConfig(hidden_sizes=(8,))), folder)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (remembering, "has a memory, and is asked about single rows"),
        (seeing_more, r"sees \{.*'x': .*, and here is"),
        (doing_more, r"does \{.*of 9.*, and here is .*of 3"),
        (None, "is no folder .*it needs a teacher: the folder of a run"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(make, said, tmp_path):
    folder = tmp_path / "teacher"
    if make is not None:
        make(folder)
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        DAgger(SPEC, CHOICE, DAggerConfig(teacher=str(folder), network=SMALL_NETWORK))


def test_what_no_environment_executes_is_not_imitated():
    """It was, without a word: labels outside of the bounds."""
    with pytest.raises(SpecError, match=r"the teacher's actions are from .* outside of BoundedSpec.*clip them"):
        student(pushes_too_far, BOX).taught(observed())


@pytest.mark.parametrize("memory", [False, True])
def test_what_a_mask_forbids_is_not_imitated(memory):
    """The loss was infinite, and nothing said. By hand: the rule takes 3 or 1, of which the mask may allow one."""
    network = NetworkConfig(hidden_sizes=(8,), policy_sees=("state",), recurrent="gru" if memory else None)
    spec = {**SPEC, "action_mask": MultiBinarySpec((3,))}
    algorithm = student(by_sign, spec=spec, network=network, burn_in=0)
    seen, kinds = observed(), torch.tensor([StepType.FIRST, StepType.MID, StepType.MID, StepType.LAST, StepType.FIRST])
    high = seen["privileged"][:, :1] > 0
    right = torch.cat((~high, torch.ones(6, 1, dtype=torch.bool), high), -1)

    def prepared(mask):
        rows = Batch.of({**dict(seen.items()), "action_mask": mask.to(torch.int8)})
        fields = {"observation": rows, "action": torch.zeros(6, dtype=torch.int64)}
        if memory:  # one sequence of five rows and the row behind them
            one: dict[str, Any] = {"observation": rows.map(lambda leaf: leaf.unsqueeze(1))}
            state = algorithm.policy.initial_state(1).map(lambda leaf: leaf[None])
            one |= {"action": torch.zeros(5, 1, dtype=torch.int64), "state": state}
            fields = one | {"step_type": torch.cat((kinds, kinds[1:2])).unsqueeze(1)}
        return algorithm.preprocess(Batch.of(fields), None)  # pyright: ignore[reportArgumentType]

    assert algorithm.losses(prepared(right)).terms["policy"].isfinite()
    wrong = right.clone()
    wrong[2] = ~wrong[2]
    done = 3 if high[2] else 1
    with pytest.raises(SpecError, match=rf"to imitate is {done}, which the observation's action_mask forbids"):
        prepared(wrong)
    if memory:  # nothing is learned from an end, where a mask allows nothing
        right[3] = False
        prepared(right)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_bound_on_one_side_holds(sign):
    """By hand: |x| - 5 is far below 0, and -30 |x| is; what is inside is imitated as it is."""
    bounds: Any = {"minimum": np.zeros(2), "maximum": np.full(2, np.inf)}
    if sign < 0:
        bounds = {"minimum": np.full(2, -np.inf), "maximum": np.full(2, -6.0)}
    with pytest.raises(SpecError, match=r"the teacher's actions are from .* outside of BoundedSpec.*clip them"):
        student(pulls, BoundedSpec((2,), **bounds)).taught(observed())
    inside: Any = {"minimum": np.full(2, -5.0), "maximum": np.full(2, np.inf)}
    assert student(pulls, BoundedSpec((2,), **inside)).taught(observed()).shape == (6, 2)


def test_a_teacher_is_a_run_by_its_name_wherever_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    taught = SMALL | {"trainer__total_env_steps": 200, "trainer__eval_episodes": 1}
    for name, settings in {"expert": {}, "pupil": {"algorithm__teacher": "expert"}}.items():
        palaestra.train("dagger" if settings else "ppo", "CartPole-v1", **taught, **settings, run__name=name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = palaestra.resume("../runs/pupil", trainer__total_env_steps=400)
    assert done.result.env_steps >= 400
    expert = palaestra.load_policy("../runs/expert/policy")
    next(iter(expert.parameters())).data += 1  # as if it had been trained on meanwhile
    save_policy(expert, tmp_path / "runs/expert/policy")
    with pytest.raises(ConfigError, match="a run resumes with the teacher that it began with: give a copy of a policy"):
        palaestra.resume("../runs/pupil", trainer__total_env_steps=600)


def test_a_run_needs_a_teacher_and_a_loop_of_ones_own_does_not(tmp_path):
    with pytest.raises(ConfigError, match=r"dagger needs algorithm.teacher: a teacher: the folder"):
        palaestra.train("dagger", "CartPole-v1", run__directory=str(tmp_path))
    with environment("discrete") as env:
        algorithm = DAgger(
            env.observation_spec, env.action_spec, DAggerConfig(network=NetworkConfig(hidden_sizes=(8,)))
        )
    stored = torch.tensor([1, 2])
    batch = Batch.of({"observation": torch.zeros(2, 18), "action": stored})
    assert algorithm.preprocess(batch, None).action is stored  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("recurrent", [None, pytest.param("gru", marks=pytest.mark.slow)])
def test_a_run_learns_what_a_rule_does(recurrent, tmp_path):
    settings = SMALL | {
        "algorithm__teacher": f"{__name__}:first_of_all",
        "algorithm__learning_rate": 0.02,
        "algorithm__network__recurrent": recurrent,
        "algorithm__mini_batch_size": 16,
    }
    settings |= {"algorithm__mini_batch_length": 4} if recurrent else {}
    done = palaestra.train("dagger", "palaestra.envs.tiny:Chain", run__directory=str(tmp_path), **settings)
    policy = load_policy(done.directory / "policy")
    spec: Any = policy.observation_spec
    assert {int(policy(row)) for row in np.eye(*spec.shape, dtype=np.float32)} == {0}


def test_rules_are_told_apart_by_what_they_say(monkeypatch):
    """Two functions had the same, empty, weights; the hash of one does not follow its comments."""
    first, other = (student(rule, BOX).teacher for rule in (pushes, pushes_too_far))
    assert _weights(first) != _weights(other)
    before, text = _weights(first), inspect.getsource(pushes)
    monkeypatch.setattr("inspect.getsource", lambda _: f"{text}    # a remark\n")
    assert _weights(first) == before
    assert RulePolicy(functools.partial(pushes), SPEC, BOX).source
