"""What the command line does for one agent, it does for many and for robots: bench, dry runs, data, seeds, hosts."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from palaestra.core import ConfigError
from palaestra.experiments import RunDirectory, evaluate_run, policies_of_run, policy_of_run, read_faults
from tests.algorithms.parts import slow_but_of
from tests.cli.parts import exit_code, output

MEETING = "palaestra.multiagent:Meeting"
SMALL = ("--run.no-tensorboard", "--trainer.eval-episodes", "2", "--env.num-envs", "2")
BUDGET = ("--trainer.total-env-steps", "180", "--algorithm.unroll-length", "30")
HOST = ("--distributed.num-policy-hosts", "1")
ROBOT, LINE = "tests.experiments.test_robots:Walker", "tests.experiments.test_robots:Line"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def answer(capsys, *arguments):
    assert exit_code(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def train(algorithm, *options, name="run", steps=120):
    sizes = ("--algorithm.network.hidden-sizes", "8", "--trainer.total-env-steps", str(steps))
    assert exit_code("train", algorithm, MEETING, *SMALL, *sizes, "--run.name", name, *options) == 0
    return Path("runs") / name


def learned(run):
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return {name: value for name, value in row.items() if name.startswith("learning/")}


@pytest.mark.parametrize("env", [MEETING, "tests.multiagent.parts:RandomWorld", "tests.multiagent.parts:Shop"])
def test_environments_are_timed(env, capsys):
    """Masks, agents that come and go, and late rewards included."""
    speed = answer(capsys, "bench", env, "--env.num-envs", "2", "--duration-s", "0.05")
    assert (speed["num_envs"], speed["vectorization"], speed["repetitions"]) == (2, "serial", 3)
    assert 0 < speed["slowest"] <= speed["env_steps_per_s"] <= speed["fastest"]


@pytest.mark.parametrize(
    ("command", "policies"),
    [
        (("ppo", MEETING, "--agents.sharing", "separate"), 3),
        (("qmix", MEETING, "--algorithm.unroll-length", "4", "--algorithm.mini-batch-size", "8"), 1),
        ((ROBOT, LINE, "--robot.steps-per-iteration", "20"), 2),
    ],
)
def test_a_dry_run_of_many_agents_or_of_a_robot_says_what_it_will_take(command, policies, capsys, tmp_path):
    """USERS: builds all, estimates memory and time, makes updates of every policy."""
    sizes = ("--env.num-envs", "2", "--trainer.total-env-steps", "1e6")
    estimate = answer(capsys, "train", *command, *sizes, "--dry-run")
    assert estimate["updates"] >= 2 * policies
    assert estimate["train_s"] == pytest.approx(1e6 / estimate["env_steps_per_s"])
    assert estimate["num_parameters"] > 0
    assert estimate["memory_bytes"] > estimate["buffer_bytes"] + estimate["model_bytes"] > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_chance_did_is_learned_from_offline_and_in_part(capsys):
    """A folder for each policy, offline and hybrid, and resumed."""
    assert (
        exit_code("data", "collect", "random", MEETING, "demo", "--steps", "200", "--agents.sharing", "separate") == 0
    )
    made = output(capsys)
    assert "demo/agent_2: 200 steps" in made
    assert "--offline.data demo --agents.sharing separate" in made
    options = ("--offline.data", "demo", "--agents.sharing", "separate", "--algorithm.mini-batch-size", "16")
    whole = train("discrete_cql", *options, steps=12, name="whole")
    train("discrete_cql", *options, steps=7, name="half")
    assert exit_code("resume", "half", "--until", "12") == 0
    assert learned(whole) == learned(Path("runs/half"))
    assert len({name.split("/")[1] for name in learned(whole)}) == 3
    hybrid = train("dqn", *options, "--algorithm.learning-starts", "20")
    assert learned(hybrid)
    assert exit_code("train", "discrete_cql", MEETING, *SMALL, *options[2:]) == 2
    assert "learns from data that it does not collect" in output(capsys)
    assert exit_code("train", "discrete_cql", MEETING, *SMALL, "--offline.data", "demo") == 2
    said = output(capsys)
    assert "demo/shared', but there is no such folder" in said
    assert "demo has agent_0, agent_1, agent_2. Policies of many agents need the --agents of their data" in said


def test_what_policies_of_a_run_did_is_a_data_set_for_each(capsys):
    team = (
        "--algorithm.unroll-length",
        "4",
        "--algorithm.mini-batch-size",
        "8",
        "--algorithm.learning-starts",
        "8",
    )
    train("qmix", *team)
    exported = answer(capsys, "data", "export", "run", "kept")
    assert exported["steps"] == exported["parts"]["shared"]["steps"] > 60
    assert exit_code("data", "collect", "run", "shown", "--steps", "30") == 0
    assert re.search(r"shown: .* of an agent's episode, as its actions earned it\n +shown/shared: ", output(capsys))
    collected = answer(capsys, "data", "collect", "run", "played", "--steps", "30")
    assert list(collected["parts"]) == ["shared"]
    assert collected["episodes"] > 2
    hybrid = train("qmix", *team, "--offline.data", "kept", name="hybrid")
    assert learned(hybrid)


@pytest.mark.slow
def test_actors_of_many_agents_wait_for_nobody():
    """MARO-01, MARO-10: the same command with another mode; it is resumed like any other run."""
    workers = ("--runtime", "local", "--num-workers", "2", "--mode", "async", "--agents.sharing", "separate")
    run = train("ppo", *workers, "--algorithm.unroll-length", "10", "--asynchronous.max-lag", "4")
    assert exit_code("resume", "run", "--until", "200") == 0
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["env_steps"] >= 200
    assert row["workers/lag_max"] <= 4
    assert row["workers/fragments"] == row["iterations"] == row["policy_version"]
    assert len({name.split("/")[1] for name in learned(run)}) == 3
    assert RunDirectory(run).info["status"] == "done"


@pytest.mark.slow
def test_each_policy_of_a_run_has_its_own_limit_of_lag(tmp_path):
    """MARO-12, F19: in real processes, one always far behind; only rows of the policy with a limit are too old."""
    variants = ("--env.variants", "{kwargs: {}}", "{kwargs: {behind: 12}}")
    world = ("tests.multiagent.parts:Overtaken", "--env.num-envs", "2", "--env.kwargs", "file", str(tmp_path / "moves"))
    agents = ("--agents.mapping", "agent_0", "eager", "agent_1", "patient")
    patient = "{algorithm: dqn, learning_starts: 20, mini_batch_size: 8, network: {hidden_sizes: [8]}}"
    actors = ("--runtime", "process", "--num-workers", "2", "--mode", "async")
    bounds = ("--asynchronous.max-lag", "4", "--asynchronous.max-lags", "patient", "none")
    sizes = ("--algorithm.unroll-length", "5", "--trainer.total-env-steps", "400", "--trainer.eval-episodes", "0")
    options = (*variants, *agents, "--agents.policies", "patient", patient, *actors, *bounds, *sizes)
    assert exit_code("train", "impala", *world, *options, "--run.no-tensorboard", "--run.name", "run") == 0
    rows = [json.loads(line) for line in Path("runs/run/metrics.jsonl").read_text().splitlines()]
    row = rows[-1]
    assert row["workers/dropped/eager"] == row["workers/dropped"] >= 3
    assert row["workers/dropped/patient"] == 0
    _, policies = policies_of_run("run", "last")
    assert policies["eager"].version == row["iterations"] - row["workers/dropped/eager"]
    assert policies["patient"].version > policies["eager"].version
    assert max(one["workers/lag_max"] for one in rows) > 4


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("data", "collect", "random", "CartPole-v1", "d", "--agents.sharing", "separate"), "has one"),
        (
            ("data", "collect", "random", MEETING, "d", "--agents.policies", "shared", "ppo"),
            "chance acts for everybody",
        ),
        (("train", "discrete_cql", MEETING, "--offline.data", "minari:a/b-v0"), "such a dataset is of one agent"),
        (
            ("train", "ppo", MEETING, "--runtime", "local", "--distributed.num-policy-hosts", "2"),
            "the policies that learn are shared: a host for each",
        ),
        (("train", "ppo", MEETING, "--distributed.num-policy-hosts", "1"), "num_policy_hosts needs workers"),
        (
            ("train", "ppo", MEETING, "--mode", "async", "--runtime", "local", "--asynchronous.max-lags", "buyer", "2"),
            "max_lags names buyer, but the policies that learn are shared",
        ),
        ((*("train", ROBOT, LINE, "--env.num-envs", "2", "--runtime", "local"), *HOST), "is a robot"),
        (
            ("train", "trpo", "CartPole-v1", "--runtime", "local", "--distributed.num-learners", "2"),
            "use an algorithm that states losses, such as PPO",
        ),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(command, message, capsys):
    """F27."""
    assert exit_code(*command) == 2
    assert message in output(capsys)
    assert not Path("runs").exists()


@pytest.mark.slow
def test_several_seeds_of_many_agents_are_a_group(capsys):
    assert exit_code("train", "ppo", MEETING, *SMALL, "--trainer.total-env-steps", "60", "--seeds", "2") == 0
    assert "2 of 2 seeds" in output(capsys)


@pytest.mark.parametrize("runtime", ["local", pytest.param("process", marks=pytest.mark.slow)])
def test_policy_hosts_learn_what_the_run_itself_would(runtime):
    """MARO-24, MARO-25: `--distributed.num-policy-hosts`; bit for bit."""
    options = ("--agents.sharing", "separate", "--algorithm.unroll-length", "16", "--runtime", runtime)
    alone = train("ppo", *options, name="alone")
    for hosts in ("2", "3"):
        hosted = train("ppo", *options, "--distributed.num-policy-hosts", hosts, name=f"hosted{hosts}")
        assert learned(alone) == learned(hosted)
        assert (alone / "episodes.csv").read_text() == (hosted / "episodes.csv").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("mode", slow_but_of(("sync",), ["sync", "async"]))
def test_one_policy_may_have_a_host_too(mode):
    """In either mode, with gradient workers or without."""
    options = ("--distributed.num-policy-hosts", "1", "--mode", mode, "--env.num-envs", "2", "--runtime", "local")
    sizes = ("--algorithm.unroll-length", "8", "--trainer.total-env-steps", "64", "--run.no-tensorboard")
    for count in ("1", "3"):
        workers = ("--distributed.num-learners", count, "--run.name", f"run{count}")
        assert exit_code("train", "ppo", "CartPole-v1", *options, *sizes, *workers) == 0
        assert RunDirectory(f"runs/run{count}").info["status"] == "done"
        assert learned(Path(f"runs/run{count}"))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", slow_but_of(("ppo",), ["ppo", "dqn", "sac", "impala"]))
def test_a_resumed_run_may_have_another_number_of_gradient_workers(algorithm):
    """With a number of shards: the same weights as with one worker all the way, bit for bit."""
    env = "Pendulum-v1" if algorithm == "sac" else "CartPole-v1"
    starts = () if algorithm in ("ppo", "impala") else ("--algorithm.learning-starts", "16")
    options = (
        "--env.num-envs",
        "2",
        "--runtime",
        "local",
        "--distributed.gradient-shards",
        "4",
        "--run.no-tensorboard",
    )
    sizes = (*starts, "--trainer.eval-episodes", "0", "--trainer.total-env-steps", "128")
    for name, begun, resumed in (("one", "1", "1"), ("more", "2", "4")):
        workers = ("--distributed.num-learners", begun, "--run.name", name)
        assert exit_code("train", algorithm, env, *options, *sizes, *workers) == 0
        more = () if begun == resumed else ("--override", f"distributed.num_learners={resumed}")
        assert exit_code("resume", name, "--until", "256", *more) == 0
    assert learned(Path("runs/one")) == learned(Path("runs/more"))


def test_a_resume_with_another_number_of_learners_and_no_shards_says_that_bits_change():
    options = ("--env.num-envs", "2", "--runtime", "local", "--run.no-tensorboard", "--trainer.eval-episodes", "0")
    assert exit_code("train", "ppo", "CartPole-v1", *options, "--trainer.total-env-steps", "64", "--run.name", "a") == 0
    assert exit_code("resume", "a", "--until", "128") == 0
    assert RunDirectory("runs/a").info["resume"] == "exact"
    assert exit_code("resume", "a", "--until", "192", "--override", "distributed.num_learners=2") == 0
    info = RunDirectory("runs/a").info
    assert info["resume"] == "statistical"
    assert info["resume_reasons"] == ["with sums of another device, precision, code or number of learners, or of a GPU"]


def test_a_environment_that_fails_is_restarted_and_written_down():
    """F1: from the command line."""
    options = ("--env.on-fault", "restart", "--env.kwargs", "fails_at", "40", "--run.name", "run")
    assert exit_code("train", "ppo", "tests.multiagent.test_faults:Fragile", *SMALL, *options, *BUDGET) == 0
    faults = read_faults("runs/run")
    assert {fault.action for fault in faults} == {"restarted"}
    assert len(faults) == 4


def test_a_robot_has_no_data_of_one_policy(capsys):
    """F27."""
    budget = ("--trainer.total-env-steps", "60", "--robot.steps-per-iteration", "20", "--run.name", "robot")
    assert exit_code("train", ROBOT, LINE, *SMALL, *budget) == 0
    assert exit_code("data", "collect", "robot", "d", "--steps", "20") == 2
    assert "whose tasks see and do other things" in output(capsys)
    assert exit_code("data", "export", "robot", "d") == 2
    assert "none to export" in output(capsys)
    with pytest.raises(ConfigError, match="use `policies_of_run`"):
        policy_of_run(RunDirectory("runs/robot"))


def test_what_each_of_several_policies_earned_is_said(capsys):
    """Their sum stood alone, though one wins what the other loses."""
    run = train("ppo", "--agents.sharing", "separate", *BUDGET)
    capsys.readouterr()
    assert exit_code("eval", "run", "--episodes", "2") == 0
    said = output(capsys)
    page = (run / "report.html").read_text()
    for name in ("agent_0", "agent_1", "agent_2"):
        assert re.search(rf"each agent of {name}: -?\d", said) and f"<th>each agent of {name}</th>" in page
    parts = evaluate_run("run", episodes=2)
    assert parts.policies == {name: parts.parts[f"{name}/return"] for name in parts.policies}
    assert not evaluate_run(train("ppo", *BUDGET, name="shared"), episodes=2).policies


SELF_PLAY = ("--agents.self-play.pool-size", "3", "--agents.self-play.snapshot-period", "1")


def trained_against_itself(name, *options):
    sizes = ("--algorithm.network.hidden-sizes", "8", "--algorithm.unroll-length", "30", "--env.num-envs", "4")
    rest = ("--trainer.total-env-steps", "400", "--trainer.eval-episodes", "4", "--run.no-tensorboard")
    assert exit_code("train", "ppo", MEETING, *sizes, *rest, *SELF_PLAY, "--run.name", name, *options) == 0
    return Path("runs") / name


@pytest.mark.slow
def test_a_policy_plays_its_earlier_selves_and_is_rated(capsys):
    """Scores against snapshots in training, Elo above random actions and the pool at evaluations, a match of runs."""
    run = trained_against_itself("a")
    trained_against_itself("b", "--run.seed", "1")
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 <= row["info/self_play/score"] <= 1
    assert row["info/self_play/age"] >= 0
    assert row["eval/info/elo_low"] < row["eval/info/elo"] < row["eval/info/elo_high"]
    evaluation = json.loads(next((run / "evals").glob("*.json")).read_text())
    assert {"elo", "elo_low", "elo_high"} <= evaluation["parts"].keys()
    assert row["eval/info/pool_elo_low"] < row["eval/info/pool_elo"] < row["eval/info/pool_elo_high"]
    capsys.readouterr()
    last = answer(capsys, "eval", "a", "--episodes", "4", "--which", "last", "--stochastic")["runs"]["runs/a"]["parts"]
    assert last["pool_elo_low"] < last["pool_elo"] < last["pool_elo_high"]
    assert "pool_elo" in answer(capsys, "eval", "a", "--episodes", "4")["runs"]["runs/a"]["parts"]
    assert exit_code("eval", "a", "--episodes", "4") == 0
    said = output(capsys)
    assert "Elo above the mean of its pool: " in said and "sampled actions)" in said
    rated = answer(capsys, "rate", "a", "b@last", "--games", "20", "--baseline")
    assert rated["players"] == ["runs/a", "runs/b@last", "random actions"]
    scores = np.array(rated["scores"])
    assert np.allclose(scores + scores.T, 20 * (1 - np.eye(3)))
    assert sum(one["value"] for one in rated["elo"]) == pytest.approx(0, abs=1e-6)
    assert answer(capsys, "rate", "a", "b@last", "--games", "20", "--baseline") == rated
    assert exit_code("rate", "a", "b", "--games", "2") == 0
    assert "Elo [95% interval] score (2 games each, stochastic)" in output(capsys)
    Path("runs/b").rename("runs/b@2")
    rated = answer(capsys, "rate", "a", "b@2", "runs/b@2@last", "--games", "2")
    assert rated["players"] == ["runs/a", "runs/b@2", "runs/b@2@last"]


@pytest.mark.slow
def test_what_cannot_be_rated_is_refused(capsys):
    trained_against_itself("a")
    train("qmix", "--algorithm.unroll-length", "4", name="team")
    for command, told in (
        (("a",), "rate at least two"),
        (("a", "--baseline", "--games", "7"), "give an even number"),
        (("a", "team"), "has no agents that could play against each other"),
    ):
        assert exit_code("rate", *command) == 2
        assert told in output(capsys)
    assert exit_code("rate", "a", "a@0") != 0
    assert "no checkpoint 0" in output(capsys)


@pytest.mark.slow
def test_self_play_in_workers_is_the_same_on_every_runtime():
    """The same pool and seats, here and in processes."""
    weights, rated, again = [], [], []
    for runtime in ("local", "process"):
        run = trained_against_itself(runtime, "--runtime", runtime, "--num-workers", "2")
        weights.append(policy_of_run(RunDirectory(run), "last").state_dict())
        evaluations = sorted(run.glob("evals/*.json"))
        rated.append({path.name: json.loads(path.read_text())["parts"] for path in evaluations})
        again.append(evaluate_run(run, episodes=4, which="last").parts)
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    assert rated[0] == rated[1]
    assert "pool_elo" in next(reversed(rated[0].values()))
    assert again[0] == again[1]
    assert "pool_elo" in again[0]


@pytest.mark.slow
def test_the_pool_is_sent_to_the_process_that_evaluates():
    run = trained_against_itself("async", "--trainer.eval-async")
    assert any("pool_elo" in json.loads(path.read_text())["parts"] for path in run.glob("evals/*.json"))


def test_opponents_that_share_one_reward_are_told_so_at_the_start(caplog):
    """Issue 51: README's example for many agents trained to its end on a reward that is 0 by construction."""
    pytest.importorskip("pettingzoo.classic")
    game = ("pettingzoo:classic/tictactoe-v3", "--trainer.total-env-steps", "400", "--trainer.eval-episodes", "0")
    assert exit_code("train", "mappo", *game, "--run.no-tensorboard") == 0
    told = [one.message for one in caplog.records if "the agents share one reward" in one.message]
    assert len(told) == 1 and "--agents.self-play.pool-size" in told[0]
    assert exit_code("train", "ppo", *game, "--run.no-tensorboard", "--agents.self-play.pool-size", "2") == 0
    assert len([one for one in caplog.records if "the agents share one reward" in one.message]) == 1
