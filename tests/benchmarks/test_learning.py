"""What the learning benchmark says about its seeds, and how its queue goes on where it stopped."""

import json
import re
import sys

import pytest

from benchmarks.learning import __main__ as command_line
from benchmarks.learning import frontier, queue
from benchmarks.learning.__main__ import CURVES, RESULTS
from benchmarks.learning.chance import chance
from benchmarks.learning.pages import ALL, HEADING, PAGES, all_results, page_with, section, write_pages
from benchmarks.learning.rows import CAR_REPEAT, ROWS, peer_of
from benchmarks.learning.summary import (
    curve,
    drawn,
    level_bar,
    markdown,
    marks,
    peer_seeds,
    peer_title,
    summarize,
    verdict,
)
from benchmarks.numbers import Sample, sample
from benchmarks.record import provenance
from palaestra.algorithms import ALGORITHMS
from palaestra.config.config import config_from_mapping
from palaestra.envs import Wrap
from palaestra.experiments import ExperimentConfig, preset


def seed(number, last, *, returns=(20.0, 500.0, 500.0), train_s=20.0):
    return {
        "seed": number,
        "env_steps": [50_000, 90_000 + number, 100_100],
        "return_mean": list(returns),
        "episodes": 20,
        "final": {which: {"return_mean": last, "return_std": 1.0, "episodes": 100} for which in ("last", "best")},
        "train_s": train_s,
    }


@pytest.mark.parametrize(
    ("returns", "verdict"),
    [
        ((-77.0, -77.1, -77.2), "met"),
        ((-120.0, -121.0, -122.0), "not met"),
        ((-70.0, -80.0, -90.0), "undecided"),  # wide, though its mean is near
        ((-77.0,), "undecided"),
    ],
)
def test_a_row_is_level_if_its_interval_lies_above_the_margin(returns, verdict):
    """5% of what the Zoo's -76.6 is above chance, which is about -498: 21."""
    bar = summarize(ROWS["dqn_Acrobot-v1"], [seed(i, value) for i, value in enumerate(returns)])["bars"][0]
    assert bar["verdict"] == verdict
    assert bar["text"].startswith("level with the Zoo: ")
    assert bar["text"].endswith(", above -21.1")


def test_a_wide_interval_is_not_level_with_anything():
    """DDPG on MountainCarContinuous: a mean of -35 was counted as level with 93.5, two standard errors being 130."""
    zoo = Sample(93.5, 0.05, 150)
    assert level_bar([-99.0, -99.0, 93.0], "the Zoo", zoo, -33.0)["verdict"] == "undecided"
    assert level_bar([-99.0, -98.0, -99.0], "the Zoo", zoo, -33.0)["verdict"] == "not met"
    assert level_bar([93.0, 93.1, 92.9], "the Zoo", zoo, -33.0)["verdict"] == "met"


def test_a_row_with_a_peer_is_compared_with_what_the_peer_learned():
    row = ROWS["sac_HalfCheetah-v5"]
    theirs = [seed(i, value) for i, value in enumerate((4990.0, 5000.0, 5010.0))]
    verdicts = {}
    for mean in (4600.0, 4900.0):
        summary = summarize(row, [seed(i, mean + 10 * i) for i in range(3)], theirs)
        verdicts[mean] = [bar["verdict"] for bar in summary["bars"]]
    assert verdicts == {4600.0: ["not met"], 4900.0: ["met"]}
    assert summarize(row, [seed(0, 4900.0)])["bars"] == []
    assert peer_of(row) == ROWS["sb3_sac_HalfCheetah-v5"]
    assert peer_of(ROWS["sb3_sac_HalfCheetah-v5"]) is None


def test_a_row_with_a_rival_has_to_be_above_it():
    row = ROWS["pqn_MinAtarBreakout"]
    theirs = [seed(i, value) for i, value in enumerate((9.0, 10.0, 11.0))]
    verdicts = {}
    for mean in (5.0, 10.5, 20.0):
        bars = summarize(row, [seed(i, mean + i / 10) for i in range(3)], theirs)["bars"]
        verdicts[mean] = [bar["verdict"] for bar in bars]
    assert verdicts == {5.0: ["not met"], 10.5: ["undecided"], 20.0: ["met"]}
    assert peer_of(row) == ROWS["dqn_MinAtarBreakout"]
    assert peer_of(ROWS["dqn_MinAtarBreakout"]) is None


def test_a_task_is_solved_when_every_seed_has_solved_it():
    row, rival = ROWS["ppo_Recall_64-steps-LSTM"], ROWS["ppo_Recall_64-steps-no-memory"]
    verdicts = {}
    for returns in ((1.0,) * 4, (1.0,) * 5, (1.0, 1.0, 1.0, 1.0, 0.3)):
        bars = summarize(row, [seed(i, value) for i, value in enumerate(returns)])["bars"]
        verdicts[returns] = [(bar["text"].partition(": ")[2], bar["verdict"]) for bar in bars]
    assert list(verdicts.values()) == [
        [("4 of 4 seeds", "undecided")],
        [("5 of 5 seeds", "met")],
        [("4 of 5 seeds", "not met")],
    ]
    bars = summarize(row, [seed(i, 1.0) for i in range(5)], [seed(i, 0.25 + i / 100) for i in range(5)])["bars"]
    assert [bar["verdict"] for bar in bars] == ["met", "met"]
    assert bars[0]["text"].startswith("above 64 steps, no memory at equal steps: 0.73")
    assert summarize(rival, [seed(0, 0.25)])["bars"] == []


def test_the_verdict_of_the_planned_seeds_stands_beside_that_of_all_where_more_were_run():
    """Seeds that are added after a look choose when to stop, so a reader sees what the planned ones said."""
    row, solves = ROWS["reinforce_CartPole-v1"], (20.0, 500.0, 500.0)
    seeds = [seed(i, 500.0, returns=solves if i > 1 else (20.0, 30.0, 40.0)) for i in range(15)]
    (planned,) = summarize(row, seeds[: row.seeds])["bars"]
    (bar,) = summarize(row, seeds)["bars"]
    assert (planned["text"].endswith("3 of 5 seeds"), verdict(planned)) == (True, "not met")
    assert (bar["text"].endswith("13 of 15 seeds"), verdict(bar)) == (True, "met (the 5 planned seeds: not met)")
    assert verdict({**bar, "verdict": "undecided"}, bold=True).startswith("**undecided** (the 5")
    record = {**provenance("python -m benchmarks.learning run"), "seeds": seeds}
    records = dict.fromkeys(ROWS) | {row.name: record}
    assert "<summary>met*</summary>" in markdown(records)
    assert "13 of 15 seeds: met (the 5 planned seeds: not met)" in markdown(records)
    assert "13 of 15 seeds: met (the 5 planned seeds: not met)" in section("reinforce", records)


def test_seeds_that_were_added_to_the_other_row_are_named_too():
    row, theirs = ROWS["td3_HalfCheetah-v5"], [seed(i, 5000.0 + i) for i in range(4)]
    (bar,) = summarize(row, [seed(i, 5500.0 + i) for i in range(5)], theirs)["bars"]
    assert bar["planned"]["seeds"] == "5 and 2"
    (bar,) = summarize(row, [seed(i, 5500.0 + i) for i in range(5)], theirs[:2])["bars"]
    assert "planned" not in bar


def test_the_row_that_is_compared_with_is_named_with_its_variant():
    titles = {name: peer_title(ROWS[name]) for name in ("xqc_HalfCheetah-v5", "dreamer_CartPole-v1_positions-only")}
    assert list(titles.values()) == ["sac (bf16)", "ppo (positions only, 10,000 steps)"]
    assert peer_title(ROWS["xqc_Ant-v5"]) == "sac"


def test_rows_say_whether_they_are_compiled_and_in_bfloat16():
    names = ("ppo_Pendulum-v1", "crossq_Pendulum-v1", "xqc_Ant-v5", "sb3_sac_HalfCheetah-v5")
    assert [marks(ROWS[name]) for name in names] == [[], ["compiled"], ["compiled", "bf16"], []]
    record = {**provenance("python -m benchmarks.learning run"), "seeds": [seed(0, 1.0)]}
    records = dict.fromkeys(ROWS) | {"xqc_Ant-v5": record}
    assert "<td>20 s, compiled, bf16</td>" in markdown(records)
    assert "| Ant-v5, compiled, bf16 |" in section("xqc", records)


def test_variants_of_a_row_differ_in_what_they_train():
    """A row's settings are those of its preset but for what the row names; the row without memory has none."""
    kinds = {}
    for row in ROWS.values():
        if row.variant:
            settings = json.loads(json.dumps(row.settings))
            config = config_from_mapping(ExperimentConfig, settings, base=preset(row.algorithm, row.env))
            kinds[row.variant] = config.algorithm.network.recurrent
            assert row.variant in row.task
    assert (kinds["64 steps, no memory"], kinds["64 steps, LSTM"]) == (None, "lstm")
    assert json.loads(json.dumps(queue.described(ROWS["ppo_Recall_64-steps-LSTM"])))["row"]["settings"]["env"]["kwargs"]


def test_chance_is_known_of_every_environment_that_has_a_row_to_compare_with():
    with_bars = {row.env for row in ROWS.values() if not row.peer and (row.zoo or (peer_of(row) and row.rival is None))}
    done = {row.env for row in ROWS.values() if queue.read(RESULTS, row) is not None}
    assert with_bars & done <= chance().keys()


@pytest.mark.parametrize(
    ("failed", "verdict"),
    [
        ([], "met"),
        ([seed(9, 500.0, returns=(500.0, 500.0, 499.0))], "met"),
        ([seed(9, 500.0, train_s=31.0), seed(8, 500.0, returns=(20.0, 400.0, 500.0))], "not met"),
    ],
)
def test_cartpole_needs_four_of_five_seeds_at_500_within_budget_and_time(failed, verdict):
    seeds = [*failed, *(seed(i, 500.0) for i in range(5 - len(failed)))]
    bar = summarize(ROWS["ppo_CartPole-v1"], seeds)["bars"][-1]
    assert bar["verdict"] == verdict
    assert bar["text"].endswith(f"{5 - len(failed)} of 5 seeds")


def test_the_curve_averages_the_evaluations_that_all_seeds_have():
    short = seed(2, 500.0, returns=(40.0, 300.0))
    short["env_steps"] = short["env_steps"][:2]
    points = curve([seed(0, 500.0), short])
    assert [steps for steps, _ in points] == [50_000, 90_001]
    assert [interval.mean for _, interval in points] == [30.0, 400.0]


def test_the_table_has_every_row_and_says_how_much_of_it_is_done():
    origin = provenance("python -m benchmarks.learning run")
    records = dict.fromkeys(ROWS) | {
        "dqn_MountainCar-v0": {**origin, "seeds": [seed(i, -100.0 + i) for i in range(5)]},
        "sarsa_CartPole-v1": {**origin, "seeds": [seed(0, 120.0)]},
    }
    text = markdown(records)
    cells = [
        re.sub(r"<[^>]*>", "|", line.replace("</td><td>", "|")) for line in text.splitlines() if line.startswith("<tr>")
    ]
    said = [re.sub(r"\|+", "|", line) for line in cells]
    (car,) = [line for line in said if line.startswith("|dqn|120,000|")]
    assert car.startswith("|dqn|120,000|5|-98.0 ± 2.0|-98.0 ± 2.0|20 s|-100.8 ± 9.9|met|level with the Zoo: ")
    assert any(line.startswith("|sarsa|500,000|1 of 5|120.0|120.0|20 s|") for line in said)
    assert "|ppo|1,000,000|0 of 3|not run|compiled|5819.1 ± 663.5|" in said
    assert len(said) == len(ROWS)
    assert text.count("## ") == len({row.env for row in ROWS.values()})


def test_an_interval_is_drawn_where_it_lies():
    assert drawn((25, 50), (0, 100), 75) == (
        '<span class="axis"><i style="left:25.0%;width:25.0%"></i><b style="left:75.0%"></b></span>'
    )
    assert 'style="left:0.0%;width:0.0%"' in drawn((500, 500), (500, 500), None)


def test_the_queue_runs_what_is_missing_and_keeps_what_is_there(tmp_path):
    """F25 of a whole benchmark: stopped anywhere, it goes on with the next seed."""
    row, origin = ROWS["trpo_CartPole-v1"], provenance("python -m benchmarks.learning run trpo_CartPole-v1")
    assert queue.status(tmp_path, row) == "not run"
    assert [job.seed for job in queue.pending(tmp_path, [row.name])] == [0, 1, 2, 3, 4]
    queue.add(tmp_path, queue.Job(row, 1), seed(1, 480.0), origin)
    assert queue.status(tmp_path, row) == "partial"
    assert [job.seed for job in queue.pending(tmp_path, [row.name])] == [0, 2, 3, 4]
    for number in (2, 0, 4, 3):
        queue.add(tmp_path, queue.Job(row, number), seed(number, 500.0), origin)
    assert queue.status(tmp_path, row) == "done"
    assert queue.pending(tmp_path, [row.name]) == []
    record = json.loads((tmp_path / f"{row.name}.json").read_text())
    assert [entry["seed"] for entry in record["seeds"]] == [0, 1, 2, 3, 4]
    assert record["summary"]["last"]["mean"] == pytest.approx(2480 / 5)
    assert [job.seed for job in queue.pending(tmp_path, [row.name], seeds=[2, 7])] == [7]


def test_a_seed_of_a_row_renews_what_is_said_of_rows_that_are_compared_with_it(tmp_path):
    row, rival, origin = ROWS["pqn_MinAtarBreakout"], ROWS["dqn_MinAtarBreakout"], provenance("python")
    for number in range(2):
        queue.add(tmp_path, queue.Job(row, number), seed(number, 20.0 + number), origin)
    for number in range(2):
        queue.add(tmp_path, queue.Job(rival, number), seed(number, 9.0 + number), origin)
    records = {one.name: queue.read(tmp_path, one) for one in (row, rival)}
    assert [bar["verdict"] for bar in records[row.name]["summary"]["bars"]] == ["met"]
    assert [entry["seed"] for entry in records[row.name]["seeds"]] == [0, 1]
    assert records[row.name]["row"]["env"] == row.env


def test_the_whole_queue_is_every_row_in_order(tmp_path):
    jobs = queue.pending(tmp_path, [])
    assert len(jobs) == sum(row.seeds for row in ROWS.values())
    assert jobs[0] == queue.Job(ROWS["ppo_CartPole-v1"], 0)


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_every_row_names_an_algorithm_and_a_budget(row):
    assert row.algorithm in ALGORITHMS
    assert row.env_steps > 0
    assert "/" not in row.name


@pytest.mark.parametrize("row", [row for row in ROWS.values() if "CarContinuous" in row.env], ids=lambda row: row.name)
def test_the_budget_in_frames_is_that_of_the_actions_that_are_repeated(row):
    config = preset(row.algorithm, row.env)
    assert config.env.wrappers == (Wrap("ActionRepeat", repeat=CAR_REPEAT),)
    assert config.trainer.total_env_steps == row.env_steps


RECORDS = {name: queue.read(RESULTS, row) for name, row in ROWS.items()}


@pytest.mark.parametrize("algorithm", sorted({row.algorithm for row in ROWS.values()}))
def test_the_page_of_an_algorithm_says_what_the_committed_results_say(algorithm):
    """`python -m benchmarks.learning report` writes the pages and draws the curves."""
    page = (PAGES / f"{algorithm}.md").read_text()
    assert page_with(page, section(algorithm, RECORDS)) == page
    drawn = [row.name for row in ROWS.values() if row.algorithm == algorithm and RECORDS[row.name] and not row.peer]
    assert all((CURVES / f"{name}.svg").exists() and f"{name}.svg" in page for name in drawn)


def test_committed_summaries_are_those_of_the_committed_seeds():
    """`python -m benchmarks.learning report` renews them."""
    outdated = [
        name
        for name, record in RECORDS.items()
        if record and record["summary"] != summarize(ROWS[name], record["seeds"], peer_seeds(ROWS[name], RECORDS))
    ]
    assert outdated == []


def test_the_page_of_all_results_says_what_the_committed_results_say():
    assert (PAGES / ALL).read_text() == all_results(RECORDS)


def test_the_frontier_has_a_verdict_for_all_five_tasks_alone():
    """Ratios of 1.3 with little spread meet the bar; one task less, or one seed, leaves it undecided."""
    returns = {task: [1.28 * sac, 1.3 * sac, 1.32 * sac] for task, sac in frontier.SAC_AT_1M.items()}
    samples = {task: sample(values) for task, values in returns.items()}
    level = frontier.ratio(samples)
    assert level["mean"] == pytest.approx(1.3)
    # each mean has a standard error of 0.02 / sqrt(3), that of five tasks a sqrt(5)th, with 10 degrees of freedom
    assert level["half_width"] == pytest.approx(2.228 * 0.02 / 15**0.5, rel=1e-3)
    assert level["verdict"] == "met"
    assert frontier.ratio({task: samples[task] for task in ("Ant", "Hopper")})["verdict"] == "undecided"
    assert frontier.ratio(samples | {"Ant": sample(returns["Ant"][:1])})["verdict"] == "undecided"
    poor = {task: sample([0.5 * value for value in values]) for task, values in returns.items()}
    assert frontier.ratio(poor)["verdict"] == "not met"


def test_sections_are_renewed_in_their_place_added_and_taken_away(tmp_path):
    record = {**provenance("python -m benchmarks.learning run"), "seeds": [seed(0, -100.0)]}
    records = dict.fromkeys(ROWS) | {"dqn_MountainCar-v0": record}
    for name in {row.algorithm for row in ROWS.values()}:
        (tmp_path / f"{name}.md").write_text(f"# {name}\n")
    (tmp_path / "dqn.md").write_text(f"# DQN\n\n{HEADING}\nold\n\n## Then\n\nnew\n")
    (tmp_path / "c51.md").write_text(f"# C51\n\n{HEADING}\nold\n")
    assert {path.name for path in write_pages(records, tmp_path)} == {ALL, "dqn.md", "c51.md"}
    text = (tmp_path / "dqn.md").read_text()
    assert "| MountainCar-v0 | 120,000 | 1 of 5 | -100.0 | -100.0 | -100.849 ± 9.925 |" in text
    assert "old" not in text
    assert text.endswith("\n\n## Then\n\nnew\n")
    assert page_with(text, section("dqn", records)) == text
    assert (tmp_path / "c51.md").read_text() == "# C51\n"
    assert page_with("# C51\n", "x\n") == f"# C51\n\n{HEADING}\nx\n"


def test_rows_of_the_peer_are_trained_by_the_peers_interpreter(tmp_path, monkeypatch):
    asked = []

    def trained(job, worker, rest):
        asked.append((job.row.name, worker[0], worker[-1], rest[-1]))
        return seed(job.seed, 100.0)

    monkeypatch.setattr(command_line, "train", trained)
    monkeypatch.setattr(command_line, "installed_peer", lambda directory, name: (directory / "sb3" / "python", {}))
    names = ["sac_HalfCheetah-v5", "sb3_sac_HalfCheetah-v5"]
    command = ["learning", "run", *names, "--seeds", "0", "--jobs", "1", "--env-steps", "500"]
    monkeypatch.setattr(sys, "argv", [*command, "--results", str(tmp_path), "--peer-dir", str(tmp_path)])
    command_line.run(command_line.parse())
    settings = '{"trainer__total_env_steps": 500, "run__compile": true}'
    assert asked == [
        (names[0], sys.executable, "benchmarks.learning.worker", settings),
        (names[1], str(tmp_path / "sb3" / "python"), "benchmarks.learning.peer_worker", "500"),
    ]
    assert queue.status(tmp_path, ROWS[names[1]]) == "partial"
