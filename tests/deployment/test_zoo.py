"""Tests of the zoo: what is in it, and how its policies are listed and pulled."""

import functools
import http.server
import json
import shutil
import threading
from pathlib import Path

import pytest

from benchmarks.learning.zoo import index_of
from palaestra.core import CheckpointError, ConfigError
from palaestra.deployment import check_shared, pull, zoo_policies
from tests.architecture.source import ROOT
from tests.cli.parts import exit_code, output

ZOO = ROOT / "zoo"
NAME = "ppo/CartPole-v1"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A zoo of one policy, which is the zoo here, and a working directory of its own."""
    shutil.copytree(ZOO / NAME, tmp_path / "zoo" / NAME)
    (tmp_path / "zoo/index.json").write_text(json.dumps(index_of(tmp_path / "zoo")))
    monkeypatch.setenv("PALAESTRA_ZOO", str(tmp_path / "zoo"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "zoo"


def test_the_zoo_holds_thirty_policies_that_have_learned_in_20_mb():
    listed = zoo_policies()
    assert [one.name for one in listed] == sorted(
        path.parent.relative_to(ZOO).as_posix() for path in ZOO.glob("*/*/manifest.json")
    )
    assert len(listed) >= 30
    assert sum(path.stat().st_size for path in ZOO.rglob("*") if path.is_file()) < 20_000_000
    assert index_of(ZOO) == json.loads((ZOO / "index.json").read_text())
    for one in listed:
        facts = check_shared(ZOO / one.name)
        better = one.elo_ci95[0] > 0 if one.elo_ci95 else one.return_ci95[0] > facts["random"]["return_ci95"][1]
        assert better, f"{one.name} has not learned"
        assert len(facts["revision"]) == 40 and facts["command"].startswith("palaestra train "), one.name
        assert facts["evaluation"]["episodes"] == facts["random"]["episodes"] == 100, one.name
        card = (ZOO / one.name / "README.md").read_text()
        assert f"palaestra pull zoo:{one.name}" in card and facts["revision"] in card
        assert (ZOO / one.name / "curve.png").is_file()


def test_a_policy_is_listed_pulled_and_evaluated(folder, capsys):
    assert exit_code("list", "policies") == 0
    assert f"zoo:{NAME}" in output(capsys)
    assert exit_code("pull", f"zoo:{NAME}", "--json") == 0
    assert json.loads(capsys.readouterr().out)["directory"] == "shared/ppo_CartPole-v1"
    assert check_shared("shared/ppo_CartPole-v1") == check_shared(folder / NAME)
    assert exit_code("eval", "shared/ppo_CartPole-v1", "--episodes", "1") == 0
    assert exit_code("pull", "zoo:ppo/CartPol-v1", "--output", "other") == 2
    assert "did you mean 'ppo/CartPole-v1'" in output(capsys)


def test_the_same_over_http(folder, monkeypatch):
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PALAESTRA_ZOO", f"http://127.0.0.1:{server.server_port}/")
        assert pull(f"zoo:{NAME}", output="mine").facts == check_shared(folder / NAME)
        (folder / NAME / "curve.csv").unlink()
        with pytest.raises(CheckpointError, match=r"curve.csv was not read: HTTP Error 404.*Is PALAESTRA_ZOO"):
            pull(f"zoo:{NAME}", output="other")
        server.shutdown()
    with pytest.raises(CheckpointError, match=r"index.json was not read"):
        zoo_policies()


def test_what_is_not_what_the_index_names_is_refused(folder):
    weights = folder / NAME / "policy/weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match=rf"^zoo:{NAME}/policy/weights.safetensors is missing or damaged"):
        pull(f"zoo:{NAME}")
    weights.write_bytes(whole)
    index = json.loads((folder / "index.json").read_text())
    index["policies"][NAME]["manifest_sha256"] = "0" * 64
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"manifest.json of ppo/CartPole-v1 is not the one that the zoo's index"):
        pull(f"zoo:{NAME}")
    (folder / "index.json").write_text('{"policies": {"a/b": {}}}')
    with pytest.raises(CheckpointError, match=r"index.json of the zoo .* is not what `zoo` writes"):
        zoo_policies()
    assert not Path("shared").exists(), "nothing is left behind"


def test_an_installed_package_says_where_a_zoo_may_be(monkeypatch, tmp_path):
    monkeypatch.setattr("palaestra.deployment.zoo.__file__", str(tmp_path / "a/b/c/zoo.py"))
    with pytest.raises(ConfigError, match=r"Set PALAESTRA_ZOO to a folder or to an address"):
        zoo_policies()
