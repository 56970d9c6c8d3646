"""Runs of strangers: nothing that they name is imported or called (F12)."""

import base64
import hashlib
import hmac
import itertools
import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path

import pytest
import yaml

import palaestra
from palaestra import EnvConfig, create_environment
from palaestra.core import CheckpointError, ConfigError, import_maker, importing
from palaestra.experiments import RunDirectory
from palaestra.runs.trust import sign
from tests.cli.parts import exit_code, output

EVIL = """
import pathlib
pathlib.Path({mark!r}).touch()

def run(*arguments, **options):
    pathlib.Path({mark!r}).touch()
"""

VERBS = ["eval", "resume", "play", "serve", "report", "plot", "compare", "diagnose", "export", "share"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run."""
    folder = tmp_path_factory.mktemp("made")
    palaestra.train("ppo", "CartPole-v1", trainer__total_env_steps=64, run__directory=str(folder), run__name="run")
    return folder / "run"


@pytest.fixture
def stranger(made, tmp_path, monkeypatch):
    """A copy of the run, whose configuration may change, and code on the Python path that leaves a mark."""
    monkeypatch.setattr(importing, "_trusted", set())
    run, code = tmp_path / "runs" / "stranger", tmp_path / "code"
    shutil.copytree(made, run)
    code.mkdir()
    mark = tmp_path / "mark"
    (code / "evil_code.py").write_text(EVIL.format(mark=str(mark)))
    (home := tmp_path / "home").mkdir()
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(code)
    sys.modules.pop("evil_code", None)
    yield run, mark
    sys.modules.pop("evil_code", None)


@pytest.fixture(autouse=True)
def memory():
    """No test takes a gigabyte more than what was taken before."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < 1 << 30


def change(run, **settings):
    """Writes settings, given by path with `__`, into a run's configuration."""
    file = run / "config.yaml"
    config = yaml.safe_load(file.read_text())
    for path, value in settings.items():
        *parts, last = path.split("__")
        place = config
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    file.write_text(yaml.safe_dump(config))


STRANGE = {
    "environment": {"env__name": "evil_code:run"},
    "registered environment": {"env__name": "evil_code:Evil-v0"},
    "environment behind a prefix": {"env__variants": [{"name": "vector:evil_code:run"}]},
    "bytes": {"env__name": b"evil_code:run"},
    "set": {"env__wrappers": {"evil_code:run"}},
    "environment by a loader": {"env__name": "palaestra.envs:load", "env__kwargs": {"name": "evil_code:run"}},
    "wrapper's argument": {"env__wrappers": ["RewardMap(function='evil_code:run')"]},
    "wrapper": {"env__wrappers": ["evil_code:run"]},
    "wrapper with arguments": {"env__wrappers": ["evil_code:run(x=1)"]},
    "gym wrapper": {"env__gym_wrappers": ["evil_code:run"]},
    "train wrapper": {"env__train_wrappers": ["evil_code:run"]},
    "algorithm": {"algorithm_name": "evil_code:run"},
    "callback": {"run__callbacks": ["evil_code:run"]},
    "network": {"algorithm__network__encoder": "evil_code:run"},
    "learned reward": {"algorithm__bonus__kind": "evil_code:run"},
    "optimizer": {"algorithm__optimizers": {"ppo": {"cls": "evil_code:run"}}},
    "policy of an agent": {"agents__policies": {"a": {"algorithm": "evil_code:run"}}},
    "module in a package": {"env__name": "evil_code.inner:run"},
    "part of Python": {"env__name": "os:system", "env__kwargs": {"command": "touch evil"}},
    "built into Python": {"env__name": "builtins:exec", "env__kwargs": {}},
    "import of a module of ours": {
        "env__name": "palaestra.multiagent.envs:load_multi_agent_env",
        "env__kwargs": {"name": "palaestra.analysis.stats:np.load", "kwargs": {"file": "x", "allow_pickle": True}},
    },
    "number after the colon": {"env__name": "evil_code:0"},
    "path with underscores": {"env__name": "x", "note": {"env__name": "evil_code:2048-v0"}},
    "texts side by side": {"env__wrappers": ["RewardMap(function='evil_code' ':run')"]},
    "escape in a call": {"env__wrappers": ["RewardMap(function='evil_code\\x3arun')"]},
    "library where code is named": {"run__callbacks": ["pettingzoo:utils.parallel_to_aec"]},
    "installed elsewhere": {"env__name": "pygments:lex", "env__kwargs": {"code": "", "lexer": 0}},
}


@pytest.mark.parametrize("kind", STRANGE)
def test_f12_a_run_that_names_a_strangers_code_is_not_opened(stranger, kind, capsys):
    run, mark = stranger
    change(run, **STRANGE[kind])
    for verb in VERBS:
        assert exit_code(verb, *[str(run)] * (2 if verb == "compare" else 1)) == 2
        assert "names code that is neither part of palaestra" in output(capsys)
    assert not mark.exists()
    assert "evil_code" not in sys.modules


@pytest.mark.parametrize("name", ["os:system", "subprocess:check_output", "builtins:exec", "palaestra:PPO"])
@pytest.mark.parametrize("field", ["name", "wrappers", "gym_wrappers"])
def test_f12_a_name_means_only_what_is_of_its_kind(name, field):
    config = {"name": name} if field == "name" else {field: (f"{name}(command='touch evil')",)}
    with pytest.raises(ConfigError, match=r"(an environment|a wrapper) is needed"):
        create_environment(EnvConfig(**config)).reset()


def test_f12_devices_and_plain_texts_name_no_code(stranger, monkeypatch):
    """Although there may be packages of these names: PyTorch for GPUs brings one called cuda."""
    run, _ = stranger
    (run.parents[1] / "code" / "cuda").mkdir()
    change(run, env__kwargs={"render_mode": None, "note": "json: 3"}, run__device="cuda:1")
    assert RunDirectory(run).config.run.device == "cuda:1"


def test_f12_a_trusted_run_is_opened(stranger, capsys):
    run, mark = stranger
    change(run, env__name="evil_code:run")
    assert exit_code("eval", str(run)) == 2
    assert "give --trust" in output(capsys)
    assert exit_code("eval", str(run), "--trust")
    assert mark.exists()


@pytest.mark.parametrize("key", [None, b""])
def test_f12_without_a_key_no_run_is_this_users_own(stranger, monkeypatch, key):
    """A user without a home, or whose disk was full when the key was made, signs nothing and knows no signature."""
    run, mark = stranger
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/none")
    if key is not None:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(run.parent))
        (run.parent / "palaestra").mkdir()
        (run.parent / "palaestra/key").write_bytes(key)
    change(run, env__name="evil_code:run")
    known = hmac.new(key or b"", (run / "config.yaml").read_bytes(), hashlib.sha256).hexdigest()
    for signature in (None, "None", known):
        (run / "run.json").write_text(json.dumps({**RunDirectory(run).info, "signature": signature}))
        with pytest.raises(ConfigError, match="names code that is neither part of palaestra"):
            _ = RunDirectory(run).config
    assert not mark.exists()


def test_f12_a_user_without_a_home_signs_nothing(monkeypatch):
    def homeless(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert sign(b"") is None


def test_a_run_of_this_user_needs_no_trust(stranger):
    """The signature is of the configuration as it was written."""
    run, _ = stranger
    config = RunDirectory(run).config
    own = RunDirectory.create(
        palaestra.experiments.config_from_mapping(
            type(config),
            {"env": {"name": "evil_code:run"}, "run": {"directory": str(run.parent), "name": "own"}},
            base=config,
        )
    )
    assert RunDirectory(own.path).config.env.name == "evil_code:run"


def test_f12_code_in_a_run_directory_is_never_the_readers_own(stranger, monkeypatch):
    run, mark = stranger
    (run / "beside.py").write_text(EVIL.format(mark=str(mark)))
    change(run, env__name="beside:run")
    for folder in (run, run / "policy", run / "checkpoints"):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", ["", *sys.path])
        assert exit_code("eval", str(run)) == 2
        assert not {"", str(folder)} & set(sys.path)
    assert not mark.exists()


def test_f12_code_in_a_run_is_not_the_readers_own_where_the_run_lies_in_the_working_directory(stranger, monkeypatch):
    """A folder without `__init__.py` is a package, too."""
    run, mark = stranger
    (run / "beside.py").write_text(EVIL.format(mark=str(mark)))
    monkeypatch.chdir(run.parent.parent)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    change(run, env__name="runs.stranger.beside:run")
    assert exit_code("eval", "runs/stranger") == 2
    odd = run.rename(run.with_name("a-stranger"))
    change(odd, env__name="runs.a-stranger.beside:run")
    with pytest.raises(ConfigError, match="which an import statement could not name"):
        create_environment(RunDirectory(odd).config.env)
    assert not mark.exists()


@pytest.mark.parametrize("place", ["encoder", "simulator"])
def test_f12_a_policy_names_no_strangers_code(stranger, place):
    run, mark = stranger
    for file in run.rglob("policy.json"):
        policy = json.loads(file.read_text())
        if place == "encoder":
            policy["network"]["encoder"] = "evil_code:run"
        else:
            policy |= {
                "policy": "SearchPolicy",
                "options": {"planning": [1.0, 10.0, 51, [8, 4, 0.1, 0.0], 0, "evil_code:run"]},
            }
        file.write_text(json.dumps(policy))
        with pytest.raises(ConfigError, match=r"= 'evil_code:run' .* palaestra.core.trust"):
            palaestra.load_policy(file.parent)
    assert not mark.exists()


def test_a_maker_is_a_class_or_a_function_that_makes_its_objects():
    def fits(kind):
        return issubclass(kind, str)

    assert import_maker("tests.runs.test_trust:change", "a text", fits) is change  # says nothing
    with pytest.raises(ConfigError, match="a text is needed"):
        import_maker("palaestra:PPO", "a text", fits)
    with pytest.raises(ConfigError, match="a text is needed"):
        import_maker("palaestra:create_environment", "a text", fits)


SIZES = {
    "nested": "[" * 200_000,
    "a list for a name": {"policy": ["GaussianPolicy"]},
    "wide": {"network": {"hidden_sizes": [100_000, 100_000]}},
    "deep": {"network": {"hidden_sizes": [64] * 200_000}},
    "negative": {"network": {"hidden_sizes": [-1]}},
    "a text": {"network": {"hidden_sizes": "64"}},
    "many layers": {"network": {"recurrent": "attention", "recurrent_size": 4, "attention_layers": 5000}},
    "many atoms": {"policy": "SearchPolicy", "options": {"planning": [1.0, 10.0, 10**9, [8, 4, 0.1, 0.0], 0, ""]}},
    "much to observe": {
        "observation_spec": {"kind": "TensorSpec", "shape": [50_000_000], "dtype": "float32"},
        "normalizer": None,
    },
}


@pytest.mark.parametrize("kind", SIZES)
def test_f12_a_policy_that_asks_for_the_machine_is_refused_at_once(stranger, kind):
    run, _ = stranger
    file, change = run / "policy" / "policy.json", SIZES[kind]
    policy = json.loads(file.read_text())
    if isinstance(change, dict):
        policy |= {name: policy[name] | value if isinstance(value, dict) else value for name, value in change.items()}
    file.write_text(change if isinstance(change, str) else json.dumps(policy))
    began = time.process_time()
    with pytest.raises((CheckpointError, ConfigError), match=r"policy"):
        palaestra.load_policy(file.parent)
    assert time.process_time() - began < 5


BOMB = "env:\n  kwargs:\n    a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"    {new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in itertools.pairwise("abcdefghij")
)
HARMFUL = {
    "aliases of aliases": BOMB,
    "an alias of itself": "env:\n  kwargs:\n    a: &a [*a]\n",
    "nested": "env: " + "[" * 100_000,
    "nested mappings": "env: " + "{a: " * 10_000 + "1" + "}" * 10_000,
    "many values": "env:\n  kwargs:\n    a: [" + "1, " * 200_000 + "]\n",
    "an object of Python": "env: !!python/object/apply:os.system ['touch evil']\n",
    "a module of Python": "env: !!python/module:evil_code\n",
    "an escape": 'env:\n  name: "\\e[31mCartPole-v1"\n',
    "zeros": "\0" * 1000,
}


@pytest.mark.parametrize("kind", HARMFUL)
def test_f12_a_configuration_that_does_harm_is_refused_at_once(stranger, kind, capsys):
    run, mark = stranger
    (run / "config.yaml").write_text(HARMFUL[kind])
    began = time.process_time()
    for verb in VERBS:
        assert exit_code(verb, *[str(run)] * (2 if verb == "compare" else 1)) == 2
        assert "config.yaml cannot be read" in (said := output(capsys))
        assert "\x1b[31m" not in said
    assert time.process_time() - began < 2 * len(VERBS)
    assert not mark.exists()


def test_f12_a_terminal_shows_what_a_stranger_wrote_and_does_not_obey_it(stranger, capsys):
    run, _ = stranger
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "status": "\x1b]0;owned\x07", "algorithm": "\x1b[2J"}))
    odd = run.parent / "\x1b[31mred"
    shutil.copytree(run, odd)
    assert exit_code("list", "runs", "--root", str(run.parent)) == 0
    assert exit_code("eval", str(odd)) == 2
    assert "\\x1b[31mred has control characters" in (said := output(capsys))
    assert not {"\x1b", "\x07"} & set(said)


def test_f12_a_report_shows_no_file_that_a_link_leads_to(stranger):
    run, _ = stranger
    secret = run.parent / "secret"
    secret.write_text("the password")
    (run / "videos").mkdir(exist_ok=True)
    (run / "videos" / "film.gif").symlink_to(secret)
    (run / "videos" / "film.mp4").symlink_to(secret)
    assert exit_code("report", str(run), "--trust") == 0
    page = (run / "report.html").read_text()
    assert base64.b64encode(b"the password").decode() not in page
    assert "data:image/gif" not in page


@pytest.mark.parametrize(
    ("name", "kind"),
    [("report.html", "link"), ("run.lock", "dangling link"), ("videos/play.mp4", "pipe"), ("metrics.jsonl", "pipe")],
)
def test_f12_a_run_with_links_or_devices_is_not_opened(stranger, name, kind, capsys):
    """Through them, writing a report or a film would reach any file of the reader."""
    run, _ = stranger
    change(run, trainer__eval_episodes=1)  # else it is still a run of this user, whose links are followed
    (run / name).unlink(missing_ok=True)
    secret = run.parents[1] / "secret"
    if kind == "link":
        secret.write_text("the password")
    if kind == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to(secret)
    for verb in VERBS:
        assert exit_code(verb, *[str(run)] * (2 if verb == "compare" else 1)) == 2
        assert f"is a {kind.removeprefix('dangling ')}" in output(capsys)
    assert secret.exists() == (kind == "link") and (kind != "link" or secret.read_text() == "the password")


@pytest.mark.parametrize("beside", [".", "..", "../.."])
def test_f12_what_lies_beside_a_run_may_have_been_packed_with_it(stranger, monkeypatch, beside):
    run, mark = stranger
    home = run.parents[2]
    place = (run / beside).resolve()
    (place / "evil_beside.py").write_text(EVIL.format(mark=str(mark)))
    (place / "__init__.py").touch()
    (run.parent / "__init__.py").touch()
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    change(run, env__name=".".join([*place.relative_to(home).parts, "evil_beside"]) + ":run")
    assert exit_code("eval", str(run)) == 2
    assert not mark.exists()


def test_f12_what_writes_or_connects_as_a_stranger_says_is_refused(stranger, capsys):
    run, _ = stranger
    for settings in (
        {"env__wrappers": [f"RecordVideo(directory={str(run / 'elsewhere')!r})"]},
        {"env__wrappers": [], "distributed__address": "ray://127.0.0.1:1"},
    ):
        change(run, **settings)
        assert exit_code("eval", str(run)) == 2
        assert "would write files of its choice or connect elsewhere" in output(capsys)
    exit_code("eval", str(run), "--episodes", "1", "--trust")
    assert "would write files of its choice" not in output(capsys), "its reader says that it may"


def test_f12_a_signature_trusts_no_code_in_the_run(stranger, monkeypatch):
    """A run of this user may have been somebody else's meanwhile. Links in it are followed."""
    run, mark = stranger
    change(run, env__name="evil_code:Env")
    (run / "run.json").write_text(
        json.dumps({**RunDirectory(run).info, "signature": sign((run / "config.yaml").read_bytes())})
    )
    file = run / "policy" / "policy.json"
    policy = json.loads(file.read_text())
    policy["network"]["encoder"] = "runs.stranger.beside:run"
    file.write_text(json.dumps(policy))
    (run / "beside.py").write_text(EVIL.format(mark=str(mark)))
    monkeypatch.chdir(run.parent.parent)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert RunDirectory(run).config.env.name == "evil_code:Env"
    with pytest.raises(ConfigError, match=r"palaestra.core.trust"):
        palaestra.load_policy(file.parent)
    assert not mark.exists()
