"""Tests of `palaestra share` and `pull`."""

import hashlib
import json
import os
import shlex
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
import yaml

import palaestra
from palaestra.core import CheckpointError, ConfigError, files, importing
from palaestra.core.errors import placeless
from palaestra.deployment import check_shared, exporting, pull, share, sharing
from palaestra.deployment.card import model_card, public_changes, typed
from palaestra.experiments import RunDirectory, evaluate_run
from palaestra.policies import save_policy
from tests.cli.parts import exit_code, output
from tests.deployment.hub import TOKEN, hub
from tests.experiments.parts import CHAIN, config_of, rows_of, trained, written


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a group of two seeds, and its shared folder."""
    folder = tmp_path_factory.mktemp("sharing")
    group = folder / "runs/g"
    for seed in (5, 6):
        trained(group, f"seed_{seed}", run__seed=seed)
    (group / "group.json").write_text('{"format": 1, "seeds": [5, 6]}')
    share(group, output=folder / "shared/g", episodes=4)
    return folder


@pytest.fixture
def shared(made, tmp_path, monkeypatch):
    """A copy of the shared folder, below a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made / "shared/g", tmp_path / "theirs")
    return Path("theirs")


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """The models of a hub that the client talks to."""
    with hub() as (address, models):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield models
        huggingface_hub.close_session()


def test_a_shared_folder_is_a_policy_with_a_card_a_curve_and_hashes(made, shared):
    facts = check_shared(shared)
    best = max((RunDirectory(made / f"runs/g/seed_{seed}") for seed in (5, 6)), key=lambda run: run.info["best_return"])
    assert facts["seed"] == best.config.run.seed
    weights = (shared / "policy/weights.safetensors").read_bytes()
    assert weights == (best.path / "policy/weights.safetensors").read_bytes()
    assert facts["weights_sha256"] == {"policy": hashlib.sha256(weights).hexdigest()}
    fresh = evaluate_run(best.path, episodes=4)
    assert facts["evaluation"]["return_mean"] == fresh.return_mean
    assert sorted(facts["seeds"]["return_mean"]) == ["5", "6"]
    low, high = facts["seeds"]["ci95"]
    assert low <= facts["seeds"]["mean"] <= high
    assert {"config.yaml", "curve.csv", "curve.png", "evals/evaluation.json"} <= set(facts["files"])
    assert not [path for path in shared.rglob("*") if path.suffix in (".pkl", ".pt", ".pth")]


def test_what_is_known_of_a_shared_policy_is_in_its_manifest(shared):
    """It had no env steps, no algorithm and no seed where it was shared or exported again."""
    facts, known = check_shared(shared), exporting.facts_of(RunDirectory(shared))
    assert [known[name] for name in ("algorithm", "env", "seed", "env_steps")] == ["ppo", CHAIN, facts["seed"], 96]
    assert known["last_evaluation"]["return_mean"] == facts["evaluation"]["return_mean"]
    with pytest.raises(ConfigError, match="is a shared policy already; `palaestra pull theirs --output FOLDER` checks"):
        share(shared)


def test_the_hub_reads_the_front_matter_of_the_card(shared):
    card = huggingface_hub.ModelCard.load(shared / "README.md")
    facts = check_shared(shared)
    assert card.data.library_name == "palaestra"
    assert "reinforcement-learning" in card.data.tags
    (result,) = card.data.eval_results
    mean, std = facts["evaluation"]["return_mean"], facts["evaluation"]["return_std"]
    assert (result.dataset_name, result.metric_type) == ("palaestra.envs.tiny:Chain", "mean_reward")
    assert result.metric_value == f"{mean:.2f} +/- {std:.2f}"
    assert "95% interval" in card.text
    assert facts["weights_sha256"]["policy"] in card.text
    assert "palaestra pull shared/g" in card.text


def test_the_card_says_what_a_resume_has_changed(made, shared):
    facts = check_shared(shared)
    assert "trains again" in (shared / "README.md").read_text()
    changes = {
        "algorithm.learning_rate": [0.1, 0.2],
        "distributed.address": [None, "10.1.2.3:6379"],
        "run.name": ["a", "b"],
    }
    overrides = public_changes([{"env_steps": 1234, "time": "2026-11-27", "changes": changes}])
    card = model_card({**facts, "overrides": overrides}, [], "theirs")
    assert "10.1.2.3" not in card and "run.name" not in card
    assert "- after 1,234 env steps: `algorithm.learning_rate` from `0.1` to `0.2`" in card
    assert "trains again" not in card


def test_nothing_of_the_machine_is_in_it(made, shared):
    secret = [str(made), os.uname().nodename, str(Path.home())]
    for path in shared.rglob("*"):
        if path.suffix in (".json", ".yaml", ".md", ".csv"):
            assert not [word for word in secret if word in path.read_text()], path
    config = yaml.safe_load((shared / "config.yaml").read_text())
    assert (config["run"]["directory"], config["run"]["name"]) == ("runs", None)


def test_folders_and_addresses_that_were_typed_or_set_stay_out(tmp_path):
    words = ["/usr/bin/palaestra", "train", "--offline.data=/data/mine", "--address", "ray://10.0.0.1:1", "ppo"]
    assert typed(words) == "palaestra train --offline.data=mine --address ADDRESS ppo"
    config = config_of(tmp_path, distributed__address="auto", distributed__runtime="ray", env__kwargs={"map": "/a/b"})
    public = sharing._published(config)
    assert (public.distributed.address, public.env.kwargs) == (None, {"map": "b"})
    plain = {"root": "/", "rate": "1/2", "at": "http://x/a/b", "kind": "/x"}
    assert placeless(plain) == plain
    home = str(Path.home())
    given = ["d4rl:/a/me/x.h5", "--data=d4rl:/a/my b/x y.h5", "R(a='/a/my b/x', b=\"/a b/c d\")", home, f"d4rl:{home}/"]
    assert placeless(given) == ["d4rl:x.h5", "--data=d4rl:x y.h5", "R(a='x', b=\"c d\")", "~", "d4rl:~"]
    words = ["palaestra", "train", "--env.kwargs", "{'map': '/home/me/a'}", "--env.ip-address", "my home"]
    assert shlex.split(typed(words))[2:] == ["--env.kwargs", "{'map': 'a'}", "--env.ip-address", "my home"]


def test_the_best_of_a_group_may_have_a_return_of_zero(tmp_path):
    worse, best = written(tmp_path, rows_of([1.0]), "worse"), written(tmp_path, rows_of([1.0]), "best")
    worse.write_info({"best_return": -3.0})
    best.write_info({"best_return": 0.0})
    assert sharing.experiments.best_run([worse, best]) is best


def test_play_eval_and_new_runs_take_the_folder_and_resume_does_not(shared, capsys):
    assert exit_code("eval", "theirs", "--episodes", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["return_mean"] == evaluate_run(shared, episodes=2).return_mean
    assert exit_code("resume", "theirs") == 2
    assert "theirs is a shared policy without checkpoints" in output(capsys)
    small = ("--env.max-episode-steps", "6", "--env.num-envs", "2", "--algorithm.unroll-length", "8")
    size = ("--algorithm.network.hidden-sizes", "8", "--trainer.total-env-steps", "16", "--run.no-tensorboard")
    run = ("train", "ppo", "palaestra.envs.tiny:Chain", *small, *size, "--from", "theirs", "--run.name", "next")
    assert exit_code(*run) == 0
    hashes = check_shared(shared)["weights_sha256"]
    assert RunDirectory("runs/next").info["began_from"] == {"path": str(shared.resolve()), "weights_sha256": hashes}


def test_a_folder_that_exists_and_runs_that_differ_are_refused(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"shared/g exists already; give another folder as --output"):
        share(made / "runs/g", output=made / "shared/g")
    other = tmp_path / "runs/mixed"
    shutil.copytree(made / "runs/g", other)
    config = other / "seed_6/config.yaml"
    config.write_text(config.read_text().replace("initial_policy: null", "initial_policy: elsewhere"))
    monkeypatch.setattr(sharing, "_create", lambda name: pytest.fail(f"{name} is made on the hub"))
    with pytest.raises(ConfigError, match=r"differ in run.initial_policy; an interval is over seeds of one experiment"):
        share(other, push="me/agent")
    empty = trained(tmp_path, "empty", trainer__eval_episodes=0, trainer__eval_every_steps=None).directory
    with pytest.raises(CheckpointError, match="has not been evaluated yet"):
        share(empty, push="me/agent")
    assert not Path("shared").exists(), "nothing is left behind"


def test_a_policy_that_is_kept_while_the_one_before_is_evaluated_is_noticed(made, tmp_path, monkeypatch):
    """F26: the run still trains; the card would state returns of one policy beside the weights of another."""
    run, evaluate = shutil.copytree(made / "runs/g/seed_5", tmp_path / "run"), sharing.experiments.evaluate_runs

    def and_meanwhile(*args, **kwargs):
        found = evaluate(*args, **kwargs)
        save_policy(palaestra.load_policy(made / "runs/g/seed_6/policy"), run / "policy")
        return found

    monkeypatch.setattr(sharing.experiments, "evaluate_runs", and_meanwhile)
    with pytest.raises(ConfigError, match="still trains, and kept a better policy meanwhile; share it once more"):
        share(run, output=tmp_path / "shared", episodes=2, film=False)
    assert not (tmp_path / "shared").exists(), "nothing is left behind"
    hashes = share(run, output=tmp_path / "shared", episodes=2, film=False).facts["weights_sha256"]
    weights = (made / "runs/g/seed_6/policy/weights.safetensors").read_bytes()
    assert hashes == {"policy": hashlib.sha256(weights).hexdigest()}


def test_policies_of_many_agents_are_shared_together(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sizes = ("--trainer.total-env-steps", "64", "--algorithm.unroll-length", "16", "--env.num-envs", "2")
    names = ("--agents.sharing", "separate", "--run.name", "team", "--trainer.eval-episodes", "2")
    assert exit_code("train", "ppo", "palaestra.multiagent:Meeting", *sizes, *names, "--run.no-tensorboard") == 0
    assert exit_code("share", "team", "--episodes", "2", "--no-film") == 0
    facts = check_shared("shared/team")
    assert f"weights {facts['weights_sha256']['policy/agent_1']} policy/agent_1" in output(capsys)
    assert list(facts["weights_sha256"]) == ["policy/agent_0", "policy/agent_1", "policy/agent_2"]
    card = Path("shared/team/README.md").read_text()
    for number in range(3):
        assert f'palaestra.load_policy("shared/team/policy/agent_{number}")' in card
    for verb in (["export", "--format", "torch"], ["report"]):  # into this folder: theirs is what its manifest says
        assert exit_code(verb[0], "shared/team", *verb[1:]) == 0
        assert check_shared("shared/team") == facts
    assert Path("report.html").is_file() and Path("export/torch").is_dir()
    capsys.readouterr()
    assert exit_code("eval", "shared/team", "--episodes", "2") == 0
    assert importing.in_run(tmp_path / "shared/team"), "code in it is not that of a working directory"


@pytest.mark.slow
def test_a_film_is_made_where_the_environment_draws_and_its_lack_is_named_where_not(tmp_path, monkeypatch):
    pytest.importorskip("pygame")
    pytest.importorskip("imageio_ffmpeg")
    sizes = {"trainer__total_env_steps": 32, "env__max_episode_steps": 8, "trainer__eval_episodes": 1}
    done = palaestra.train("ppo", "CartPole-v1", run__directory=str(tmp_path), run__tensorboard=False, **sizes)
    filmed = share(done.directory, output=tmp_path / "filmed", episodes=1)
    assert filmed.missing == ()
    assert "replay.mp4" in filmed.facts["files"]
    assert "(replay.mp4)" in (tmp_path / "filmed/README.md").read_text()
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert exit_code("play", "filmed") == 0
    assert Path("play.mp4").is_file()
    assert check_shared("filmed"), "playing leaves the folder as it is"
    (missing,) = share(trained(tmp_path).directory, output=tmp_path / "plain", episodes=1).missing
    assert missing.startswith("the film: palaestra.envs.tiny:Chain cannot be drawn")
    assert "replay.mp4" not in (tmp_path / "plain/README.md").read_text()


def test_a_run_that_only_learned_from_data_shows_its_evaluations(tmp_path):
    data = tmp_path / "data"
    assert (
        exit_code("data", "collect", "random", CHAIN, str(data), "--steps", "64", "--env.max-episode-steps", "6") == 0
    )
    sizes = {"env__max_episode_steps": 6, "trainer__total_env_steps": 64, "trainer__eval_episodes": 2}
    run = {"run__directory": str(tmp_path), "run__tensorboard": False, "offline__data": str(data)}
    done = palaestra.train("behaviour_cloning", CHAIN, **sizes, **run)
    shared = share(done.directory, output=tmp_path / "cloned", episodes=2, film=False)
    assert shared.missing == ()
    assert (tmp_path / "cloned/curve.csv").read_text().startswith("label,updates,eval/return_mean")
    assert "run of 64 updates (seed" in (tmp_path / "cloned/README.md").read_text()
    page = (done.directory / "report.html").read_text()
    assert "done after 64 updates" in repr(done) and "updates per second" in page
    assert "env steps" not in page and ">updates</text>" in page and "<dt>updates</dt>" in page


def _resealed(folder):
    """As a stranger does who knows how manifests are written."""
    facts = files.read_manifest(folder, 1)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    facts["files"] = {
        name: files.fingerprint(folder / name) for name in names if name not in ("manifest.json", "README.md")
    }
    files.write_manifest(folder, facts)


def _pickled(folder):
    torch.save({"a": 1}, folder / "policy/weights.pt")
    _resealed(folder)


def _linked(folder):
    (folder / "policy/weights.safetensors").unlink()
    (folder / "policy/weights.safetensors").symlink_to("/etc/passwd")


def _linked_folder(folder):
    shutil.rmtree(folder / "evals")
    (folder / "evals").symlink_to("/etc")


def _huge(folder):
    with (folder / "config.yaml").open("r+b") as file:
        file.truncate(2**24 + 1)
    _resealed(folder)


def _changed(folder):
    file = folder / "policy/weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def _outside(folder):
    facts = files.read_manifest(folder, 1)
    facts["files"]["../../outside.json"] = facts["files"]["config.yaml"]
    files.write_manifest(folder, facts)


def _emptied(folder):
    facts = files.read_manifest(folder, 1)
    del facts["evaluation"]
    files.write_manifest(folder, facts)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_pickled, r"holds policy/weights.pt, which does not belong to a shared policy.*no pickles, no code"),
        (_linked, r"holds policy/weights.safetensors, a link or device; only files belong there"),
        (_linked_folder, r"holds evals, a link or device"),
        (_huge, r"holds config.yaml of 16,777,217 bytes; at most 16,777,216 are taken"),
        (_changed, r"policy/weights.safetensors is missing or damaged: its hash is not the one in manifest.json"),
        (_outside, r"outside.json is missing or damaged"),
        (_emptied, r"manifest.json lacks what `palaestra share` writes there"),
        (lambda folder: (folder / "manifest.json").unlink(), r"has no manifest.json, so it is no shared policy"),
        (lambda folder: (folder / "manifest.json").write_text("{"), r"has no readable manifest.json"),
        (lambda folder: (folder / "curve.csv").unlink(), r"curve.csv is missing or damaged"),
    ],
)
def test_what_does_not_belong_is_refused(shared, capsys, spoil, said):
    """F12: a stranger's folder is data, or it is refused."""
    spoil(shared)
    with pytest.raises(CheckpointError, match=said):
        pull(shared)
    assert exit_code("pull", "theirs", "--output", "here") == 5
    assert not Path("here").exists()
    assert not [name for name in os.listdir() if name.startswith(".tmp-")]


def test_a_whole_folder_is_copied_and_only_what_is_listed(shared):
    (shared / "README.md").write_text("edited by hand")
    copied = pull(shared, output="here")
    names = {path.relative_to("here").as_posix() for path in Path("here").rglob("*") if path.is_file()}
    assert names == {*copied.facts["files"], "manifest.json", "README.md"}
    with pytest.raises(ConfigError, match="here exists already"):
        pull(shared, output="here")


def test_a_policy_goes_to_the_hub_and_comes_back(made, tmp_path, monkeypatch, stand_in, capsys):
    monkeypatch.chdir(tmp_path)
    pushed = ("share", str(made / "runs/g/seed_5"), "--episodes", "2", "--no-film", "--push", "me/agent")
    assert exit_code(*pushed, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["url"].endswith("/me/agent")
    assert set(stand_in["me/agent"]) >= {"README.md", "manifest.json", "policy/weights.safetensors", "config.yaml"}
    stand_in["me/agent"]["curve.svg"] = b"of an older version"
    assert exit_code(*pushed, "--output", "again") == 0
    assert "curve.svg" not in stand_in["me/agent"], "what the folder has not is deleted"

    assert exit_code("pull", "me/agent", "--json") == 0
    back = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert back["directory"] == "shared/agent"
    assert back["weights_sha256"] == record["weights_sha256"]
    assert exit_code("eval", "shared/agent", "--episodes", "2") == 0
    assert isinstance(palaestra.load_policy("shared/agent/policy"), palaestra.Policy)


def test_the_hub_is_asked_for_nothing_that_does_not_belong(made, tmp_path, monkeypatch, stand_in):
    monkeypatch.chdir(tmp_path)
    stand_in["them/agent"] = {"manifest.json": b"{}", "model.pkl": b"evil"}
    with pytest.raises(CheckpointError, match=r"them/agent holds model.pkl, which does not belong"):
        pull("them/agent")
    stand_in["them/agent"] = {"config.yaml": b"{}"}
    with pytest.raises(CheckpointError, match=r"them/agent has no manifest.json"):
        pull("them/agent")
    with pytest.raises(CheckpointError, match=r"pulling them/none failed: RepositoryNotFoundError"):
        pull("them/none")
    with pytest.raises(ConfigError, match=r"'nothing' is neither a folder nor a model on the hub"):
        pull("nothing")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(CheckpointError, match=r"pushing me/agent failed: .*is there a token"):
        share(made / "runs/g/seed_5", output="mine", episodes=1, film=False, push="me/agent")
    assert not Path("mine").exists(), "a wrong token is found before any work is done"


def test_a_hub_that_fails_in_the_middle_leaves_a_folder_to_be_pushed(made, tmp_path, monkeypatch, stand_in, capsys):
    def broken(*arguments, **options):
        raise ConnectionError("the line is dead")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.HfApi, "create_commit", broken)
    pushed = ("share", str(made / "runs/g/seed_5"), "--episodes", "1", "--no-film", "--push", "me/agent")
    assert exit_code(*pushed) == 5
    said = output(capsys)
    assert "pushing me/agent failed: ConnectionError: the line is dead" in said
    assert "the folder shared/g is whole; `hf upload me/agent shared/g` pushes it, too" in said
    assert check_shared("shared/g")


def test_code_that_a_shared_folder_names_is_not_imported(shared, tmp_path, monkeypatch, capsys):
    """F12: the folder is whole and as its author made it, and still nothing of it runs."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "their_code.py").write_text("raise SystemExit('their code has run')")
    monkeypatch.syspath_prepend(code)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    config = tmp_path / "theirs/config.yaml"
    config.write_text(config.read_text().replace("palaestra.envs.tiny:Chain", "their_code:Env"))
    _resealed(tmp_path / "theirs")
    assert exit_code("pull", str(tmp_path / "theirs"), "--output", "here") == 0
    assert exit_code("eval", "here") == 2
    assert "names code that is neither part of palaestra nor in the working directory" in output(capsys)
