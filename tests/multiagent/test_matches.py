"""Matches of policies: Elo against chance and against snapshots, with games that both sides share evenly."""

import dataclasses

import pytest

from palaestra import EnvConfig
from palaestra.core import DiscreteSpec
from palaestra.multiagent import assign_policies
from palaestra.policies import RulePolicy
from palaestra.rollout import Evaluation
from palaestra.runs.matches import Player, play_match, rated, says_nothing
from tests.experiments.test_best_of_a_game import GAME, Duel


def player(choice):
    specs = assign_policies(Duel().agents, {"*": "all"})
    seen = specs["all"].observation_spec
    return Player(specs, {"all": RulePolicy(lambda rows: [choice] * len(rows), seen, DiscreteSpec(num=2))})


def test_who_always_wins_is_far_above_its_snapshots_and_above_chance():
    """Against chance, which chooses as well half of the time, three quarters of the points are 191 Elo."""
    game = EnvConfig(name=GAME)
    found = rated(player(1), [player(0), player(0)], game, 40, 0, None)
    assert 0 < found["pool_elo"] < found["pool_elo_high"]
    assert 60 < found["elo"] < 400
    lost = rated(player(0), [player(1)], game, 40, 0, None)
    assert lost["pool_elo"] < 0
    assert lost["elo"] < -60
    even = rated(player(1), [player(1)], game, 40, 0, None)
    assert even["pool_elo"] == pytest.approx(0, abs=50)  # games against chance count, too
    assert rated(player(0), [player(1)], game, 39, 0, None) == lost, "both sides begin as often"


def test_what_players_draw_follows_from_the_seed_on_each_side():
    """In a game without chance of its own every match was the same, and the second half of it was the first."""
    game, chance = EnvConfig(name=GAME), Player.at_random(player(1).policy_specs)
    won = [play_match(chance, chance, game, games=40, seed=seed).won for seed in (0, 0, 1, 2, 3)]
    assert won[0] == won[1]
    assert len(set(won)) > 1
    assert set(won) != {20.0}, "sides that draw alike win as often as they lose"


@pytest.mark.parametrize(
    ("judged", "returns", "asked"), [(True, [0.0, 0.0], 1), (True, [0.0, 1.0], 0), (False, [0.0, 0.0], 0)]
)
def test_the_best_policies_are_read_only_where_they_are_needed(judged, returns, asked):
    """All evaluations of a run and its policy are opened for it."""
    specs = {name: dataclasses.replace(spec, judged=judged) for name, spec in player(1).policy_specs.items()}
    calls, evaluation = [], Evaluation(0.0, 0.0, (0.0, 0.0), 1.0, 2, [], True, returns, {}, [0, 0], [])
    assert says_nothing(evaluation, specs, lambda: calls.append(1) or 0.0) is bool(asked)
    assert len(calls) == asked


def test_games_that_all_go_alike_say_no_more_than_one():
    """Rules that draw nothing, in a game that draws nothing, play one game of each side however many are asked for."""
    game = EnvConfig(name=GAME)
    few, many = (rated(player(1), [player(0)], game, games, 0, None) for games in (4, 400))
    assert play_match(player(1), player(0), game, games=400, seed=0) == (400, 2)
    assert many["pool_elo_high"] - many["pool_elo_low"] > 0.8 * (few["pool_elo_high"] - few["pool_elo_low"])
    assert play_match(player(1), Player.at_random(player(1).policy_specs), game, games=40, seed=0).different == 40
