"""Every equation of the documentation is one that can be set."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEMML = ROOT / "docs/assets/temml"
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
EQUATION = re.compile(r"(?<![\\$])\$\$?(?=\S)([^$\n]+?)(?<=\S)\$\$?(?![\d$])")
SCRIPT = """
const file = require("fs");
const temml = new Function(file.readFileSync(process.argv[1], "utf8") + "; return temml")();
const wrong = JSON.parse(file.readFileSync(0, "utf8")).filter((equation) => {
  try { temml.renderToString(equation, { throwOnError: true }); return false; } catch { return true; }
});
console.log(JSON.stringify(wrong));
"""


def equations() -> dict[str, str]:
    """Each equation, and a page that has it."""
    return {
        equation: page.name
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for equation in EQUATION.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    }


@pytest.mark.skipif(shutil.which("node") is None, reason="equations are set by a program for browsers: needs node")
def test_every_equation_can_be_set():
    found = [*equations(), r"\frac{1}{"]
    done = subprocess.run(
        ["node", "-e", SCRIPT, str(TEMML / "temml.min.js")],
        input=json.dumps(found),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *wrong, broken = json.loads(done.stdout)
    assert broken == found[-1], "an equation without an end was not noticed"
    assert not wrong, [f"{equations()[equation]}: {equation}" for equation in wrong]
    assert len(found) > 100


def test_what_sets_the_equations_comes_with_its_licence():
    assert "MIT" in (TEMML / "LICENSE").read_text(encoding="utf-8")
