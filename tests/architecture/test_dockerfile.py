"""The image is small, runs without rights, and holds what it says; it is built where a Docker daemon answers."""

import re
import shutil
import subprocess
import tomllib

import pytest

from tests.architecture.source import ROOT

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
STEPS = [
    line.split(maxsplit=1)
    for line in TEXT.replace("\\\n", " ").splitlines()
    if line.strip() and not line.startswith("#")
]
LAST_STAGE = STEPS[max(number for number, (word, _) in enumerate(STEPS) if word == "FROM") :]


def arguments(word, steps=STEPS):
    return [rest for name, rest in steps if name == word]


def docker_answers() -> bool:
    found = shutil.which("docker")
    return found is not None and subprocess.run([found, "info"], capture_output=True, check=False).returncode == 0


def test_it_does_not_run_as_root():
    (user,) = arguments("USER", LAST_STAGE)
    assert user not in ("root", "0")
    words = [word for word, _ in LAST_STAGE]
    assert not {"RUN", "COPY", "ADD"} & set(words[words.index("USER") + 1 :]), "what follows USER is the user's alone"


def test_images_have_a_tag_and_the_python_that_is_tested():
    stages = set(re.findall(r" AS (\w+)", TEXT))
    for image in (rest.split()[0] for rest in arguments("FROM")):
        assert image in stages or re.fullmatch(r"python:3\.1[1-3]-slim", image)


def test_what_is_copied_is_there_and_let_through():
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for rest in arguments("COPY"):
        if not rest.startswith("--from"):
            *sources, _ = rest.split()
            for source in (source.removeprefix("./") for source in sources):
                assert (ROOT / source).exists()
                assert source in let_through
    assert not arguments("ADD"), "COPY does what it says; ADD fetches and unpacks"


def test_all_that_the_wheel_holds_is_copied():
    """A file that the build is told to include, and does not find, ends it."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = {source.removeprefix("./") for rest in arguments("COPY") for source in rest.split()[:-1]}
    assert set(wheel["packages"]) <= {f"{source}/palaestra" for source in copied}
    assert set(wheel["force-include"]) <= copied


def test_packages_come_from_the_default_index():
    assert "index-url" not in TEXT


def test_it_installs_tested_versions_and_extras_that_exist():
    (install,) = [rest for rest in arguments("RUN") if "pip install" in rest]
    assert "-c constraints.txt" in install
    assert "--no-cache-dir" in install
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.search(r"'\.\[([\w,]+)\]'", install)[1].split(",")) <= set(extras)


def test_signals_reach_the_run():
    """In the form of a list: a shell between would keep SIGTERM to itself."""
    assert arguments("ENTRYPOINT") == ['["palaestra"]']
    assert arguments("STOPSIGNAL") == ["SIGTERM"]


@pytest.mark.slow
@pytest.mark.skipif(not docker_answers(), reason="needs a Docker daemon")
def test_the_image_is_built_and_runs():
    subprocess.run(["docker", "build", "-t", "palaestra:test", "."], cwd=ROOT, check=True, timeout=1200)
    done = subprocess.run(
        ["docker", "run", "--rm", "palaestra:test", "doctor"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
