"""Which policy of a game counts as the best, where what all earn together is the same in every episode."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import palaestra
from palaestra.cli.main import main
from palaestra.config.config import ExperimentConfig, config_from_mapping
from palaestra.core import BoundedSpec, ConfigError, DiscreteSpec, restart, termination
from palaestra.experiments import Search, policies_of_run, preset
from palaestra.experiments.tuning import asked_search
from palaestra.multiagent import AgentSpec, MultiAgentEnv, MultiAgentStep
from palaestra.runs.records import read_evaluations
from palaestra.runs.run_directory import RunDirectory
from palaestra.training import Callback

GAME = "tests.experiments.test_best_of_a_game:Duel"
WISE, FOOL = (-9.0, 9.0), (9.0, -9.0)


class Duel(MultiAgentEnv):
    """Both choose at once; who chose 1 and not 0 takes a point from the other, or is the only one who is paid."""

    def __init__(self, loses: float = -1.0) -> None:
        self._loses = loses

    @property
    def agents(self):
        seen = BoundedSpec((2,), minimum=np.array(0), maximum=np.array(1))
        return {name: AgentSpec(seen, DiscreteSpec(num=2)) for name in ("left", "right")}

    def begin_episode(self, seed):
        return MultiAgentStep({name: restart(np.ones(2, np.float32)) for name in self.agents})

    def advance(self, actions):
        left, right = int(actions["left"]), int(actions["right"])
        paid = {"left": self._paid(left - right), "right": self._paid(right - left)}
        seen = np.ones(2, np.float32)
        return MultiAgentStep({name: termination(seen, reward) for name, reward in paid.items()}, True)

    def _paid(self, ahead: int) -> float:
        return 1.0 if ahead > 0 else self._loses if ahead < 0 else 0.0


class Dilemma(Duel):
    """Who chose 1 has left the other in the lurch: 3 for both, 1 for both, or 5 and 0."""

    def advance(self, actions):
        left, right = int(actions["left"]), int(actions["right"])
        both = {(0, 0): (3.0, 3.0), (1, 1): (1.0, 1.0), (1, 0): (5.0, 0.0), (0, 1): (0.0, 5.0)}[left, right]
        seen = np.ones(2, np.float32)
        return MultiAgentStep(
            {name: termination(seen, reward) for name, reward in zip(self.agents, both, strict=True)}, True
        )


class Spoil(Callback):
    """Puts another policy into each evaluation: what it chooses follows from the list alone."""

    def __init__(self, *biases):
        self.biases = list(biases)

    def evaluation_began(self, trainer):
        bias = torch.tensor(self.biases.pop(0) if len(self.biases) > 1 else self.biases[0])
        for algorithm in trainer.algorithms.values():
            for parameter in algorithm.policy.parameters():
                if parameter.shape == (2,):
                    parameter.data.copy_(bias)


def trained(folder, *biases, **settings):
    sizes = {"algorithm__network__hidden_sizes": (8,), "algorithm__unroll_length": 16, "env__num_envs": 2}
    steps = {"trainer__total_env_steps": 32 * len(biases), "trainer__eval_every_steps": 32, "trainer__eval_episodes": 6}
    settings = {"run__directory": str(folder), "run__name": "duel", **sizes, **steps, **settings}
    done = palaestra.train("ppo", settings.pop("game", GAME), callbacks=[Spoil(*biases)], **settings)
    return RunDirectory(done.directory)


def chosen(run):
    """What the kept policies do."""
    policies = policies_of_run(run)[1]
    return {int(policy([1.0, 1.0])) for policy in policies.values()}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"agents__sharing": "separate"},
        {"agents__self_play__pool_size": 2, "agents__self_play__snapshot_period": 1},
        {"agents__self_play__pool_size": 2, "env__kwargs": {"loses": 0.0}},
    ],
    ids=["one policy", "two policies", "a pool", "only winners are paid"],
)
def test_the_best_policy_of_a_game_is_the_one_that_wins_and_not_the_newest(tmp_path, settings):
    """The sum of what both earn is 0 in every episode, whoever plays: the newest of equals was kept."""
    run = trained(tmp_path, FOOL, WISE, FOOL, **settings)
    assert chosen(run) == {1}
    assert [one["against_best"] for _, one in read_evaluations(run.path)] == [None, 1.0, 0.0]


def test_returns_decide_where_they_differ_from_those_before(tmp_path):
    """Without randomness all episodes of an evaluation earn the same, and yet returns say who is better."""
    run = trained(tmp_path, FOOL, WISE, game=GAME.replace("Duel", "Dilemma"))
    assert [(one["return_mean"], one["against_best"]) for _, one in read_evaluations(run.path)] == [
        (6, None),
        (2, None),
    ]
    assert chosen(run) == {0}


def test_equals_are_the_newest_and_a_continued_run_knows_whom_it_has_to_beat(tmp_path):
    run = trained(tmp_path, WISE, WISE)
    assert [one["best"] for _, one in read_evaluations(run.path)] == [True, True]
    palaestra.resume(run.path, trainer__total_env_steps=96, callbacks=[Spoil(FOOL)])
    first, second, *later = [one["against_best"] for _, one in read_evaluations(run.path)]
    assert (first, second, {*later}) == (None, 0.5, {0.0})
    assert chosen(run) == {1}


def test_what_cannot_be_rated_says_how_to_make_a_run_that_can(tmp_path, capsys):
    team = "palaestra.multiagent:Meeting"
    small = {"algorithm__unroll_length": 4, "trainer__total_env_steps": 8, "trainer__eval_episodes": 1}
    for number, (algorithm, env) in enumerate([("mappo", team), ("ppo", "CartPole-v1")]):
        palaestra.train(algorithm, env, run__directory=str(tmp_path), run__name=f"run{number}", **small)
        with pytest.raises(SystemExit, match="2"):
            main(["rate", str(tmp_path / f"run{number}"), "--baseline"])
        told = " ".join(capsys.readouterr().err.split())
        assert "palaestra train ppo pettingzoo:classic/tictactoe-v3 --agents.self-play.pool-size 10" in told


def test_a_fork_plays_against_the_policies_that_it_took_along(tmp_path):
    run = trained(tmp_path, WISE, WISE, agents__sharing="separate")
    forked = palaestra.resume(run.path, fork="again", trainer__total_env_steps=96, callbacks=[Spoil(FOOL)])
    *_, (_, last) = read_evaluations(forked.directory)
    assert (last["against_best"], last["best"]) == (0.0, False)
    assert chosen(RunDirectory(forked.directory)) == {1}


SEPARATE = {"agents__sharing": "separate"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "Duel together earn the same in every game, .*trial is better; train a run .*: palaestra rate RUN RUN"),
        (SEPARATE, r"are judged \(left, right\), .*name one policy .*, such as --agents.judged right, or train a run"),
        ({"agents__self_play__pool_size": 2, "env__kwargs": {"loses": 0.0}}, "pool_size is 2, and .*; train a run"),
        (SEPARATE | {"agents__judged": ("left",)}, ""),
        ({"env__kwargs": {"loses": 0.0}}, ""),
        ({"env__name": GAME.replace("Duel", "Dilemma")}, ""),
    ],
)
def test_a_search_by_returns_that_are_always_the_same_is_refused(settings, message, tmp_path):
    """All trials had 0.00, and the first of them won; a study that has begun goes on."""
    config = config_from_mapping(ExperimentConfig, settings, base=preset("ppo", GAME))
    search = Search(output=str(tmp_path))
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        asked_search(config, search, None)
    (tmp_path / "study.json").touch()
    asked_search(config, search, None)
