"""Tests of population-based training: `palaestra tune --pbt-every`."""

import dataclasses
import itertools
import json
import shutil

import pytest
import torch

import palaestra
from palaestra.cli.main import main
from palaestra.config.config import ExperimentConfig, config_from_mapping
from palaestra.config.dimensions import Dimension
from palaestra.core import CheckpointError, ConfigError, DiscreteSpec, Piecewise, TensorSpec
from palaestra.core.schedule import schedule_value
from palaestra.envs import TensorEnvironment
from palaestra.experiments import RunDirectory, Search, find_runs, load_config, preset, read_evaluations, study
from palaestra.experiments import seeds as module
from palaestra.experiments.pbt import Ancestry, Exploit, Selection, population_space
from palaestra.experiments.seeds import train_members
from palaestra.experiments.together import train_directories
from palaestra.policies import load_policy
from tests.experiments.parts import written
from tests.experiments.test_together import require_same_runs

RATE = Dimension("algorithm.learning_rate", "linear", 0.0, 0.1)
GAMMA = Dimension("algorithm.gamma", "log_below_one", 0.5, 0.999)
SETTINGS = {
    "algorithm__unroll_length": 8,
    "algorithm__mini_batch_size": 16,
    "algorithm__network__hidden_sizes": (8,),
    "env__num_envs": 4,
    "env__max_episode_steps": None,
    "run__compile": False,
    "run__tensorboard": False,
    "trainer__total_env_steps": 320,
    "trainer__eval_every_steps": 200,
    "trainer__eval_episodes": 2,
    "trainer__log_every_steps": 32,
    "trainer__checkpoint_every_steps": 64,
}


class Choice(TensorEnvironment):
    """Episodes of four steps, in each of which action 1 is worth 1."""

    num_random = 1
    observation_spec = TensorSpec((1,))
    action_spec = DiscreteSpec(num=2)

    def fresh(self, uniform):
        return {"step": torch.zeros_like(uniform[:, 0])}

    def transition(self, state, action):
        step = state["step"] + 1
        return {"step": step}, action.float(), step >= 4

    def observe(self, state):
        return state["step"][:, None]


class Uneven(Choice):
    """Action 0 ends an episode, so that members differ in how many rows only begin one."""

    def transition(self, state, action):
        state, reward, over = super().transition(state, action)
        return state, reward, over | (action == 0)


ENV = f"{__name__}:Choice"


@pytest.fixture
def here(monkeypatch):
    """Populations train in this process."""

    def trained(parts, title, **_):
        for part in parts:
            given = part[0].selection
            train_directories([seed.directory for seed in part], given and Selection.from_json(given))
            for seed in part:
                seed.finished = True

    monkeypatch.setattr(module, "_train_parts", trained)


def population(folder, selection, rates, env=ENV, **settings):
    """A population with these learning rates; its run directories."""
    base = preset("ppo", env)
    config = config_from_mapping(ExperimentConfig, SETTINGS | {"run__directory": str(folder)} | settings, base=base)
    members = selection.members(config, len(rates))
    for place, rate in enumerate(rates):
        algorithm = dataclasses.replace(members[place].algorithm, learning_rate=Piecewise(((0.0, rate),)))
        members[place] = dataclasses.replace(members[place], algorithm=algorithm)
    seeds, names = [[number] for number in range(len(rates))], [f"member_{number}" for number in range(len(rates))]
    train_members(members, seeds, names=names, selection=selection.to_json())
    return {run.config.run.seed: run for name in names for run in find_runs([name], folder)}


def test_the_worst_copy_one_of_the_best_that_is_better():
    selection = Selection(every=1, seed=3, space=(RATE, GAMMA))
    scores = {place: float(place % 10) for place in range(20)}
    copied = selection.copied(scores, 1)
    assert sorted(copied) == [0, 1, 10, 11] and set(copied.values()) <= {8, 9, 18, 19}
    assert selection.copied(scores, 1) == copied
    assert len({str(selection.copied(scores, one)) for one in range(1, 9)}) > 1
    assert selection.copied(dict.fromkeys(range(10), 1.0), 1) == {}
    assert selection.copied({4: 1.0}, 1) == {}


def test_numbers_are_perturbed_or_drawn_anew_within_their_ranges():
    selection = Selection(every=1, seed=0, space=(RATE, GAMMA))
    found = [selection.explored({RATE.path: 0.01, GAMMA.path: 0.99}, number, 0) for number in range(200)]
    rates, gammas = ([one[path] for one in found] for path in (RATE.path, GAMMA.path))
    for values, perturbed in ((rates, (0.008, 0.012)), (gammas, (0.988, 0.992))):
        near = [sum(value == pytest.approx(one) for value in values) for one in perturbed]
        assert all(50 < count < 100 for count in near) and 25 < 200 - sum(near) < 75
    assert all(0 <= rate <= 0.1 for rate in rates) and all(0.5 <= gamma <= 0.999 for gamma in gammas)
    assert selection.explored({RATE.path: 0.09, GAMMA.path: 0.5}, 5, 1)[RATE.path] <= 0.1


def test_no_member_ends_with_a_learning_rate_of_0(tmp_path, here):
    """Half of the members begin with it; the others learn within a few updates."""
    selection, unsaved = Selection(every=2, seed=0, space=(RATE,)), {"trainer__checkpoint_every_steps": 0}
    runs = population(tmp_path, selection, [0.0, 0.03] * 3, **unsaved)
    last = {number: run.config.algorithm.learning_rate(1.0) for number, run in runs.items()}
    assert min(last.values()) > 0
    copies = {number: run.info["copies"] for number, run in runs.items()}
    assert all(copies[number] for number in (0, 2, 4))
    one = copies[0][-1]
    assert one["from_score"] > one["score"] and one["from"] != 0
    row = json.loads((runs[0].path / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["pbt/copies"] == len(copies[0]) and row["pbt/copied"] == one["from"]
    assert row["learning/learning_rate"] == pytest.approx(last[0])
    assert all(read_evaluations(run.path)[-1][1]["return_mean"] == 4 for run in runs.values())


@pytest.mark.slow
@pytest.mark.parametrize("env", [ENV, f"{__name__}:Uneven"])
def test_a_population_that_was_killed_goes_on_exactly(env, tmp_path, here, monkeypatch, caplog):
    """In the middle, after one member has saved what another has not; copies made since are made again."""
    selection, rates = Selection(every=1, seed=1, space=(RATE, GAMMA)), [0.0, 1e-2, 3e-2, 0.0]
    whole = population(tmp_path / "whole", selection, rates, env)

    calls = itertools.count()

    def breaks(self, places):
        if next(calls) == 6:
            raise KeyboardInterrupt
        compare(self, places)

    compare = Exploit.__call__
    monkeypatch.setattr(Exploit, "__call__", breaks)
    with pytest.raises(KeyboardInterrupt):
        population(tmp_path / "parts", selection, rates, env)
    monkeypatch.setattr(Exploit, "__call__", compare)
    parts = {run.config.run.seed: run for run in (find_runs([p], tmp_path)[0] for p in (tmp_path / "parts").iterdir())}
    shutil.rmtree(parts[2].checkpoints().steps()[-1])
    paths = [tmp_path / "parts" / f"member_{number}" for number in range(len(rates))]
    module.resume_members(paths, selection=selection.to_json())
    assert "begins anew" not in caplog.text
    for number, run in whole.items():
        assert parts[number].info["copies"] == run.info["copies"]
        assert parts[number].config.algorithm == run.config.algorithm
        require_same_runs(parts[number].path, run.path)
        states = [load_policy(one.path / "policy").state_dict() for one in (run, parts[number])]
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert sum(len(run.info["copies"]) for run in whole.values()) > 3


def test_where_nobody_is_copied_each_ends_as_it_would_alone(tmp_path, here):
    selection = Selection(every=1000, seed=1, space=(RATE, GAMMA))
    runs = population(tmp_path, selection, [1e-2, 3e-2])
    own = runs[1].config.algorithm
    numbers = {"algorithm__gamma": schedule_value(own.gamma, 0.0), "algorithm__learning_rate": 3e-2}
    alone = palaestra.train("ppo", ENV, **SETTINGS | numbers, run__seed=1, run__directory=str(tmp_path), run__name="a")
    require_same_runs(runs[1].path, alone.directory)


@pytest.mark.slow
def test_the_command_trains_members_writes_their_lineage_and_goes_on(tmp_path, here, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = {name.replace("__", ".").replace("_", "-"): value for name, value in SETTINGS.items()}
    del given["env.max-episode-steps"], given["algorithm.network.hidden-sizes"]
    typed = ["tune", "ppo", ENV, "--pbt-every", "2", "--trials", "5", "--top", "1", "--fresh-seeds", "2"]
    typed += [f"--{name}={value}" for name, value in given.items()] + ["--fresh-episodes", "2", "--output", "study"]
    monkeypatch.setattr(study, "train_seeds", serial_seeds)
    with pytest.raises(SystemExit) as ended:
        main(typed)
    assert ended.value.code == 0
    said, page = capsys.readouterr().out, (tmp_path / "study/lineage.md").read_text()
    assert "5 members learn side by side in one graph, and are compared every 2 updates" in said
    assert "5 members are complete" in said and "trial" not in said.replace("trials      study", "")
    assert "| member | last score | after env steps | where it comes from |" in page and " ended with " in said
    assert page.count("→") > 1 and "| env steps | member | score | copied | its score | learning_rate |" in page
    runs = {number: find_runs([f"member_{number}"], tmp_path / "study/runs")[0] for number in range(5)}
    summary = json.loads((tmp_path / "study/summary.json").read_text())
    best = summary["winners"][0]
    ancestry = Ancestry.of(best["trial"], runs, population_space(preset("ppo", ENV), None)[1])
    assert best["settings"] == ancestry.settings and ancestry.members[-1] == best["trial"]
    learned = load_config(tmp_path / "study/preset.yaml").algorithm
    assert str(learned.gamma) == best["settings"]["algorithm.gamma"]
    with pytest.raises(SystemExit) as ended:
        main(typed)
    assert ended.value.code == 0 and json.loads((tmp_path / "study/summary.json").read_text()) == summary
    with pytest.raises(SystemExit) as ended:
        main([*typed, "--trials", "6"])
    assert ended.value.code == 2 and "other settings, seeds or space" in capsys.readouterr().err


def serial_seeds(config, seeds, **_):
    """`train_seeds` in this process."""
    return train_members([config], [list(seeds)], names=[config.run.name])[0]


def test_members_that_only_fill_a_buffer_are_never_compared(tmp_path):
    """Of 2,500 iterations 1,250 learn."""
    config = preset("dqn", "palaestra.envs.tiny:TensorCartPole")
    plan = dataclasses.replace(config.algorithm, learning_starts=10_000)
    config = dataclasses.replace(
        config,
        env=dataclasses.replace(config.env, num_envs=8),
        trainer=dataclasses.replace(config.trainer, total_env_steps=20_000),
        algorithm=dataclasses.replace(plan, unroll_length=1),
    )
    with pytest.raises(ConfigError, match="a run has 1250 updates, in which members would never be compared"):
        Search(output=str(tmp_path / "study"), pbt_every=1500).begin(config, None)


@pytest.mark.parametrize(
    ("search", "space", "message"),
    [
        ({"seeds": 2}, None, r"search\.seeds is 2"),
        ({"jobs": 2}, None, r"search\.jobs is 2"),
        ({"trials": 1}, None, r"search\.trials is 1"),
        ({"time_limit_s": 5.0}, None, r"search\.time_limit_s is 5"),
        ({"pbt_every": 1000}, None, r"search\.pbt_every is 1000, and a run has \d+ updates, .* never be compared"),
        ({}, {"algorithm.unroll_length": (8, 16)}, "unroll_length cannot change within a run: it is no rate"),
        ({}, {"algorithm.gama": (0.1, 0.2)}, "no number that can be searched"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, search, space, message):
    def asked():
        given = Search(output=str(tmp_path / "study"), **{"pbt_every": 2, **search})
        palaestra.tune("ppo", ENV, search=given, space=space, **SETTINGS)

    with pytest.raises(ConfigError, match=message):
        asked()
    assert not list(tmp_path.iterdir())


def test_an_environment_that_is_no_tensor_is_refused_by_what_was_asked_for(tmp_path):
    """`run.together` was not, and the same folder takes the search that follows the advice."""
    search = Search(output=str(tmp_path / "study"), pbt_every=2)
    with pytest.raises(ConfigError, match=r"tune --pbt-every\) is for environments that are tensors, and CartPole-v1"):
        palaestra.tune("ppo", "CartPole-v1", search=search, **SETTINGS)
    assert not list(tmp_path.iterdir())


def test_what_anneals_by_itself_begins_as_the_number_it_starts_from():
    config = config_from_mapping(
        ExperimentConfig, {"algorithm__learning_rate": "linear(1e-3, 0)"}, base=preset("ppo", ENV)
    )
    begun, space = population_space(config, None)
    assert begun.algorithm.learning_rate == 1e-3
    assert "algorithm.learning_rate" in [one.path for one in space]


def test_runs_of_a_study_are_deleted_only_where_none_of_them_has_begun(tmp_path):
    """A member that was missing, or a fork in one, made the next call delete all of them."""
    wanted = {tmp_path / "member_0": [0], tmp_path / "member_1": [1]}
    for path, (seed,) in wanted.items():
        written(path, [], f"seed_{seed}").write_info({"status": "done"})
        (path / "group.json").write_text("{}")
    assert [run.path.name for run in study.runs_to_resume(wanted)] == ["seed_0", "seed_1"]
    (tmp_path / "member_1").rename(tmp_path / "elsewhere")
    written(tmp_path / "member_0", [], "seed_0_fork")
    with pytest.raises(CheckpointError, match=r"missing are .*member_1/seed_1, and too many .*seed_0_fork"):
        study.runs_to_resume(wanted)
    RunDirectory(tmp_path / "member_0/seed_0").write_info({"status": "created"})
    assert study.runs_to_resume(wanted) == [] and not (tmp_path / "member_0").exists()
