"""The notebooks run from top to bottom in a kernel, and the panel of training is drawn in one place."""

import json
import os
import re
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def executed(notebook, folder):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=environ)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs_of(cells, kind):
    return ["".join(output.data[kind]) for cell in cells for output in cell.outputs if kind in output.get("data", {})]


@every_notebook
def test_a_notebook_is_committed_without_outputs(path):
    """And without what an editor leaves: differences between versions are differences of its text."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(notebook)
    for cell in notebook["cells"]:
        assert cell.get("outputs", []) == [] and cell.get("execution_count") is None
        if cell["cell_type"] == "code":
            compile("".join(cell["source"]), path.name, "exec")
            assert max(map(len, "".join(cell["source"]).splitlines())) <= 120


@pytest.mark.slow
@every_notebook
def test_a_notebook_runs(path, tmp_path):
    """Each has one panel for every training that shows itself, in one place, without control codes."""
    cells = executed(nbformat.read(path, as_version=4), tmp_path)
    panels = [html for html in outputs_of(cells, "text/html") if "╭" in html]
    shown = sum("progress=True" in cell.source or "ConsoleLogger(" in cell.source for cell in cells)
    assert len(panels) == shown == 1
    (text,) = [text for text in outputs_of(cells, "text/plain") if "╭" in text]
    steps, total = (int(number.replace(",", "")) for number in re.search(r"([\d,]+) of ([\d,]+)", text).groups())
    assert steps >= total, "the panel shows an older row than the last one"
    written = json.dumps([output for cell in cells for output in cell.outputs])
    assert "\\u001b" not in written
    if path.stem == "first_agent":
        (result,) = outputs_of(cells[2:3], "text/html")
        assert "<table" in result
        assert "<svg" in result
