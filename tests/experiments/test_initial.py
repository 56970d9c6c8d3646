"""Runs that begin with the policies of another run."""

import dataclasses
import json
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import palaestra
from palaestra.algorithms import ALGORITHMS
from palaestra.config.config import config_from_mapping
from palaestra.core import POLICY, CheckpointError, ConfigError
from palaestra.experiments import RunDirectory, dry_run, make_learner, preset, resume, seeds, train_seeds
from palaestra.multiagent import AgentsConfig
from palaestra.policies import save_policy
from palaestra.runs import records
from palaestra.runs.lineage import begin_from, for_new_run
from tests.algorithms.parts import any_kind, environment, make
from tests.experiments.parts import CHAIN, SMALL, config_of, trained


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run with observation statistics."""
    return trained(tmp_path_factory.mktemp("source"), algorithm__normalize_observation=True).directory


def learner_from(source, algorithm="ppo", env=CHAIN, **settings):
    """A learner that begins with the policy of a run."""
    small = {name: value for name, value in SMALL.items() if algorithm == "ppo" or "unroll" not in name}
    base = preset(algorithm, env)
    config = config_from_mapping(base.__class__, small | {"run__initial_policy": str(source)} | settings, base=base)
    learner = make_learner(for_new_run(config))
    return learner, begin_from(learner)


def test_a_new_run_begins_with_the_weights_and_statistics_of_another(source):
    saved = palaestra.load_policy(source / "policy")
    learner, origin = learner_from(source, algorithm__normalize_observation=True, run__seed=9)
    (algorithm,) = learner.algorithms.values()
    for name, tensor in saved.state_dict().items():
        assert torch.equal(tensor, algorithm.policy.state_dict()[name]), name
    assert algorithm.num_gradient_steps == 0
    described = json.loads((source / "policy/policy.json").read_text())
    assert origin == {"path": str(source.resolve()), "weights_sha256": {"policy": described["weights_sha256"]}}


def test_a_run_that_has_saved_nothing_notices_that_its_beginning_was_trained_on(source, tmp_path, monkeypatch):
    start = tmp_path / "start"
    shutil.copytree(source, start)
    settings = {"run__initial_policy": str(start), "algorithm__normalize_observation": True}
    with monkeypatch.context() as broken:
        broken.setattr("palaestra.training.Trainer.run", failing)
        with pytest.raises(RuntimeError, match="before its first checkpoint"):
            trained(tmp_path / "runs", **settings)
    policy = palaestra.load_policy(start / "policy")
    next(iter(policy.parameters())).data += 1
    save_policy(policy, start / "policy")
    with pytest.raises(ConfigError, match="has saved nothing yet, and the policy that it began with is another now"):
        resume(next((tmp_path / "runs").iterdir()))


def failing(trainer):
    raise RuntimeError("before its first checkpoint")


def test_target_networks_become_copies_of_what_was_loaded(tmp_path):
    settings = {**SMALL, "algorithm__learning_starts": 8, "run__directory": str(tmp_path)}
    del settings["algorithm__unroll_length"]
    source = palaestra.train("dqn", CHAIN, **settings).directory
    learner, _ = learner_from(source, "dqn", algorithm__learning_starts=8, run__seed=5)
    (algorithm,) = learner.algorithms.values()
    online, target = (algorithm.model.component[name].state_dict() for name in ("q", "target_q"))
    saved = palaestra.load_policy(source / "policy").network.state_dict()
    assert all(torch.equal(saved[name], online[name]) and torch.equal(saved[name], target[name]) for name in saved)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_can_begin_with_a_policy_of_its_own_kind(name, tmp_path):
    """Statistics included, and no part of the model keeps a copy of what the policy was before."""
    kind = any_kind(name)
    with environment(kind, 1) as env:
        first, second = (make(name, env, seed, kind=kind) for seed in (1, 2))
    for tensor in first.policy.state_dict().values():
        tensor.add_(1)
    save_policy(first.policy, tmp_path / "policy")
    config = SimpleNamespace(run=SimpleNamespace(initial_policy=str(tmp_path)), agents=AgentsConfig())
    nothing = {"require_new": lambda: None, "begun": lambda: None}
    learner: Any = SimpleNamespace(config=config, algorithms={POLICY: second}, **nothing)
    origin = begin_from(learner)
    assert origin is not None and list(origin["weights_sha256"]) == [POLICY]
    ours, theirs = second.policy.state_dict(), first.policy.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    parts = second.model.component
    for target in [part for part in parts if part.startswith("target_")]:
        followed = parts[target.removeprefix("target_")].state_dict()
        assert all(torch.equal(value, followed[key]) for key, value in parts[target].state_dict().items())


def test_with_many_agents_every_policy_begins_with_its_namesake(tmp_path):
    meeting, sizes = "palaestra.multiagent:Meeting", {"trainer__total_env_steps": 64, "algorithm__unroll_length": 16}
    sizes |= {"env__num_envs": 2, "trainer__eval_episodes": 2, "agents__sharing": "separate"}
    run: dict[str, Any] = {"run__directory": str(tmp_path), "run__tensorboard": False}
    done = palaestra.train("ppo", meeting, **sizes, **run, run__name="team")
    base = preset("ppo", meeting)

    def begun(**settings):
        given = sizes | run | {"run__initial_policy": "team", "run__seed": 4} | settings
        learner = make_learner(for_new_run(config_from_mapping(type(base), given, base=base)))
        return learner, begin_from(learner)

    learner, origin = begun()
    assert list(origin["weights_sha256"]) == ["agent_0", "agent_1", "agent_2"]
    for name, policy in learner.policies.items():
        saved = palaestra.load_policy(done.directory / "policy" / name).state_dict()
        assert all(torch.equal(value, policy.state_dict()[key]) for key, value in saved.items())
    with pytest.raises(
        CheckpointError, match="has the policies agent_0, agent_1, agent_2, and this run learns 'shared'"
    ):
        begun(agents__sharing="shared")
    single = trained(tmp_path, "single").directory
    with pytest.raises(CheckpointError, match="has one policy, of a single agent; this run needs one for 'agent_0'"):
        begun(run__initial_policy=str(single))


def test_what_does_not_fit_is_named(source, tmp_path):
    with pytest.raises(ConfigError, match=r"network.hidden_sizes is \[8\] there and \[16\] here") as refused:
        learner_from(source, algorithm__normalize_observation=True, algorithm__network__hidden_sizes=(16,))
    assert "Give this run the same environment, algorithm and network" in str(refused.value)
    with pytest.raises(ConfigError, match=r"normalizer is \{.*\} there and null here"):
        learner_from(source)
    with pytest.raises(ConfigError, match=r"it sees .* there and .* here"):
        learner_from(source, env="CartPole-v1", algorithm__normalize_observation=True, env__max_episode_steps=None)
    with pytest.raises(CheckpointError, match="there is no run 'nowhere'"):
        learner_from("nowhere", run__directory=str(tmp_path))
    assert not list(tmp_path.iterdir()), "nothing has been started"


def test_a_dry_run_says_what_the_run_would_say(source, tmp_path):
    with pytest.raises(CheckpointError, match="there is no run 'nowhere'"):
        dry_run(config_of(tmp_path, run__initial_policy="nowhere"))
    with pytest.raises(ConfigError, match=r"normalizer is \{.*\} there and null here"):
        dry_run(config_of(tmp_path, run__initial_policy=str(source)))


def test_a_run_without_an_evaluation_has_no_policy_to_begin_with(tmp_path):
    empty = trained(tmp_path, "empty", trainer__eval_episodes=0, trainer__eval_every_steps=None).directory
    with pytest.raises(CheckpointError, match="has kept no policy yet"):
        learner_from(empty)


def test_the_origin_is_recorded_and_the_run_resumes_exactly_without_it(source, tmp_path):
    begun = {"algorithm__normalize_observation": True, "run__initial_policy": str(source), "run__seed": 3}
    whole = trained(tmp_path, "whole", **begun)
    assert RunDirectory(whole.directory).info["began_from"]["path"] == str(source.resolve())
    other = trained(tmp_path, "other", algorithm__normalize_observation=True, run__seed=3)
    assert _sum(other.policy) != _sum(whole.policy), "it did not begin with the weights"

    half = trained(tmp_path, "half", **begun, trainer__total_env_steps=48)
    config = half.directory / "config.yaml"
    config.write_text(config.read_text().replace(str(source.resolve()), str(tmp_path / "gone")))
    resumed = resume(half.directory, trainer__total_env_steps=96)
    assert _sum(resumed.policy) == _sum(whole.policy)
    with pytest.raises(ConfigError, match=r"run.initial_policy cannot change in a run that continues"):
        resume(half.directory, run__initial_policy=str(source), trainer__total_env_steps=192)


def test_every_seed_of_a_group_is_checked_before_any_begins(source, tmp_path):
    base = preset("ppo", CHAIN)
    config = config_from_mapping(type(base), SMALL | {"run__initial_policy": str(source)}, base=base)
    run = dataclasses.replace(config.run, directory=str(tmp_path / "runs"))
    with pytest.raises(ConfigError, match="normalizer"):
        train_seeds(dataclasses.replace(config, run=run), 2)
    assert not (tmp_path / "runs").exists()


def _sum(policy):
    return [tensor.double().sum().item() for tensor in policy.state_dict().values()]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"robot__timeout_s": 5.0}, "settings of robot are for robots, and ppo is none"),
        ({"algorithm__network__recurrent_size": 64}, "network.recurrent_size is 64, and .*recurrent None, so that it"),
        (
            {"algorithm__mini_batch_length": 2},
            "algorithm.mini_batch_length is 2, and .*recurrent None, so that it would",
        ),
        (
            {"algorithm__network__recurrent": "lstm", "algorithm__network__attention_window": 8},
            "attention_window is 8, and algorithm.network.recurrent lstm, .* it is for attention",
        ),
        ({"algorithm__bonus__weight": 0.5}, "algorithm.bonus has settings and no kind"),
        (
            {"algorithm__network__block": "simba2", "algorithm__network__init": "orthogonal"},
            "network.init is orthogonal, but simba2 layers start with weights of their own",
        ),
        ({"agents__sharing": "separate"}, "settings of agents are for environments with many agents"),
        (
            {"env__gym_wrappers": ("NormalizeReward",)},
            r"NormalizeReward keeps .* give --env.train-wrappers NormalizeReward",
        ),
        (
            {"env__gym_wrappers": ("NormalizeObservation",)},
            "NormalizeObservation keeps statistics that no",
        ),
        (
            {"env__gym_wrappers": ("gymnasium.wrappers:RecordEpisodeStatistics",)},
            r"reports no episode that the time limit cuts off.* give --env\.wrappers EpisodeStatistics",
        ),
        (
            {"env__wrappers": ("EpisodeStatistics", "ScaleReward(scale=2)", "TimeLimit(duration=3)")},
            r"^EpisodeStatistics reports no episode that the time limit cuts off.* after TimeLimit",
        ),
        (
            {"env__train_wrappers": ("NormalizeObservation",)},
            r"and the policy is evaluated and used without; give --algorithm.normalize-observation true",
        ),
    ],
)
def test_settings_of_something_else_are_refused(settings, message):
    base = preset("ppo", CHAIN)
    with pytest.raises(ConfigError, match=message):
        make_learner(for_new_run(config_from_mapping(base.__class__, settings, base=base)))


def test_statistics_around_a_time_limit_are_accepted():
    settings = {"env__wrappers": ("TimeLimit(duration=3)", "EpisodeStatistics")}
    for_new_run(config_from_mapping(type(preset("ppo", CHAIN)), settings, base=preset("ppo", CHAIN)))


@pytest.mark.parametrize("setting", ["priority_alpha", "priority_beta"])
def test_priorities_of_what_is_not_drawn_by_priority_are_refused(setting):
    """F27."""
    base = preset("dqn", CHAIN)
    settings = {f"algorithm__{setting}": 0.3, "algorithm__prioritized": False}
    with pytest.raises(ConfigError, match=rf"algorithm\.{setting} is 0\.3, but algorithm\.prioritized is False"):
        for_new_run(config_from_mapping(base.__class__, settings, base=base))
    drawn = config_from_mapping(base.__class__, settings | {"algorithm__prioritized": True}, base=base)
    assert getattr(for_new_run(drawn).algorithm, setting) == 0.3


@pytest.mark.parametrize(
    ("wrapper", "instead"),
    [("NormalizeObservation", "--algorithm.normalize-observation true"), ("NormalizeReward", "--env.train-wrappers")],
)
def test_statistics_that_evaluations_begin_without_are_told_of(wrapper, instead, caplog):
    """A one-hot observation was 0.96 right in evaluations, for the first of each lane came out as 0."""
    records.say_once.cache_clear()
    base = preset("ppo", CHAIN)
    for _ in range(2):
        for_new_run(config_from_mapping(type(base), {"env__wrappers": (wrapper,)}, base=base))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"env.wrappers has {wrapper}: evaluations, and") and instead in caplog.text


def test_a_budget_in_which_nothing_would_be_learned_is_said(tmp_path, caplog):
    """F27: a run that goes on, too."""
    settings = {"algorithm__network__hidden_sizes": (8,), "trainer__eval_episodes": 0, "env__num_envs": 2}
    settings |= {"run__directory": str(tmp_path), "algorithm__unroll_length": 1, "trainer__total_env_steps": 100}
    run = palaestra.train("dqn", CHAIN, algorithm__learning_starts=99, **settings)
    assert json.loads((run.directory / "metrics.jsonl").read_text().splitlines()[-1])["gradient_steps"] == 1
    assert "nothing will be learned" not in caplog.text
    palaestra.resume(run.directory, algorithm__learning_starts=102, trainer__total_env_steps=102)
    assert "nothing will be learned: learning begins after 102 env steps (algorithm.learning_starts)" in caplog.text


def test_seeds_of_a_group_begin_with_what_was_there_when_it_was_made(source, tmp_path, monkeypatch):
    """A source that trains on meanwhile is refused by those that begin later, and not taken as it is then."""
    monkeypatch.setattr(seeds, "_train_parts", lambda *_, **__: None)
    base = config_of(tmp_path, run__initial_policy=str(source), algorithm__normalize_observation=True)
    group = train_seeds(base, 2)
    origins = [RunDirectory(seed.directory).info["began_from"] for seed in group.seeds]
    assert origins[0] == origins[1] and origins[0]["weights_sha256"]
