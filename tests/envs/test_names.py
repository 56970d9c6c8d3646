"""Tests of names: of code, and of environments."""

import itertools

import pytest

from palaestra.core import ConfigError, import_object
from palaestra.envs import EnvConfig, Wrap, create_environment, load

NUMBERS = itertools.count()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../d/lift:Lift", "Run from the folder '../d', or put it on PYTHONPATH, and write lift:Lift"),
        ("./lift:Lift", "Run from that folder, or put it on PYTHONPATH, and write lift:Lift"),
        ("d/lift.py:Lift", "Run from the folder 'd', or put it on PYTHONPATH, and write lift:Lift"),
        ("lift.py:Lift", "Run from that folder, or put it on PYTHONPATH, and write lift:Lift"),
        (".lift:Lift", "Run from that folder, or put it on PYTHONPATH, and write lift:Lift"),
    ],
)
@pytest.mark.parametrize("use", [import_object, load, lambda name: Wrap(name)(load("CartPole-v1"))])
def test_a_file_instead_of_a_module_is_refused_with_what_to_write(use, name, words):
    with pytest.raises(ConfigError) as caught:
        use(name)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("def f(:", r"importing it raised SyntaxError: .* \(broken_\d+\.py, line 1\)"),
        ("{}['wheel']", "importing it raised KeyError: 'wheel'"),
        ("raise SystemExit(3)", "importing it raised SystemExit: 3"),
        (
            "class NoSuchDisplayException(Exception):\n    pass\nraise NoSuchDisplayException('none')",
            r"importing it found no screen to draw on \(none\); .* PYGLET_HEADLESS=true .* under xvfb-run$",
        ),
        ("import no_such_module", "which cannot be imported: No module named 'no_such_module'"),
    ],
)
@pytest.mark.parametrize("attribute", ["Lift", "Lift-v0"])
def test_a_module_that_fails_while_it_is_imported_is_named(content, words, attribute, tmp_path, monkeypatch):
    name = f"broken_{next(NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=words):
        load(f"{name}:{attribute}")


def test_an_id_of_a_module_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="'nosuchmod:Foo-v0' names the module 'nosuchmod', which cannot be imported"):
        load("nosuchmod:Foo-v0")


@pytest.mark.parametrize("name", ["", ":", "a:", ":b"])
def test_half_a_name_is_refused(name):
    with pytest.raises(ConfigError, match=f"the environment's name is '{name}'; give an id of Gymnasium's registry"):
        load(name)


def test_a_configuration_without_an_environment_is_refused():
    with pytest.raises(ConfigError, match=r"env.name is ''; give an environment, such as CartPole-v1"):
        EnvConfig(name="")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_episode_steps": 7}, r"env.kwargs has max_episode_steps, .* give env.max_episode_steps"),
        ({"disable_env_checker": True}, "cannot be made with the arguments"),
    ],
)
def test_what_gymnasium_takes_itself_is_no_argument_of_an_environment(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        create_environment(EnvConfig(name="CartPole-v1", kwargs=kwargs))
