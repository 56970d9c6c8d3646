"""The page "your own algorithm" leads to a file that the command line trains."""

import subprocess
from pathlib import Path

from tests.docs.test_code_blocks import COMMAND_LINE, ROOT, blocks

PAGE = ROOT / "docs" / "algorithms" / "own.md"
MAX_LINES = 100


def test_the_file_of_the_page_is_short_and_trains_from_the_command_line(tmp_path: Path):
    """ALF-12: one file of at most 100 lines is all there is to write; environment, data, training are the library's."""
    code = blocks(PAGE, "python")[0].code
    assert len(code.splitlines()) <= MAX_LINES
    (tmp_path / "awr.py").write_text(code)
    (command,) = (block.code.split() for block in blocks(PAGE, "bash"))
    assert command[:4] == ["palaestra", "train", "awr:AWR", "CartPole-v1"]
    small = ["--trainer.total-env-steps", "1024", "--trainer.eval-episodes", "2", "--run.directory", "runs"]
    done = subprocess.run(
        [*COMMAND_LINE, *command[1:], *small], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    text = (run / "config.yaml").read_text()
    assert "temperature: 0.2" in text
    assert "awr:AWR" in text
    assert (run / "metrics.jsonl").read_text().count("learning/entropy") > 0
